//! UpdateFeatures 0–2 (KIP-584, KIP-1022): the controller finalizes the levels of features, all that are asked
//! for or none.

use kafka_protocol::messages::update_features_response::UpdatableFeatureResult;
use kafka_protocol::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};
use kafka_protocol::protocol::StrBytes;

use super::Client;
use crate::metadata::{Command, FeatureUpdate, Refusal, UpdateFeatures, UpgradeType};

/// From here on the kind of the change is named.
const FIRST_WITH_UPGRADE_TYPE: i16 = 1;
/// From here on there is one answer for all features.
const FIRST_WITHOUT_RESULTS: i16 = 2;

pub async fn handle(client: &Client, version: i16, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse {
    let names: Vec<StrBytes> = request.feature_updates.iter().map(|update| update.feature.clone()).collect();
    let updates = request.feature_updates.into_iter().map(|update| FeatureUpdate {
        name: update.feature.to_string(),
        level: update.max_version_level,
        upgrade: match (version, update.upgrade_type, update.allow_downgrade) {
            (..FIRST_WITH_UPGRADE_TYPE, _, false) | (FIRST_WITH_UPGRADE_TYPE.., 1, _) => UpgradeType::Upgrade,
            (..FIRST_WITH_UPGRADE_TYPE, _, true) | (FIRST_WITH_UPGRADE_TYPE.., 2, _) => {
                UpgradeType::SafeDowngrade
            }
            (FIRST_WITH_UPGRADE_TYPE.., 3, _) => UpgradeType::UnsafeDowngrade,
            _ => UpgradeType::Unknown,
        },
    });
    let command = UpdateFeatures { updates: updates.collect(), validate_only: request.validate_only };
    respond(version, names, client.command(Command::UpdateFeatures(command)).await.map(drop))
}

fn respond(version: i16, names: Vec<StrBytes>, result: Result<(), Refusal>) -> UpdateFeaturesResponse {
    let response = UpdateFeaturesResponse::default().with_error_message(None);
    match result {
        Ok(()) if version < FIRST_WITHOUT_RESULTS => {
            let done = |name| UpdatableFeatureResult::default().with_feature(name).with_error_message(None);
            response.with_results(names.into_iter().map(done).collect())
        }
        Ok(()) => response,
        Err(Refusal { code, message }) => {
            let message = format!(
                "The update failed for all features since the following feature had an error: {message}"
            );
            response.with_error_code(code.code()).with_error_message(Some(StrBytes::from_string(message)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ErrorCode;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    #[test]
    fn every_version_can_be_encoded() {
        for version in 0..=2 {
            let names = vec![StrBytes::from_static_str("transaction.version")];
            let refusal = Refusal::new(ErrorCode::InvalidUpdateVersion, "why");
            for result in [Ok(()), Err(refusal)] {
                let response = respond(version, names.clone(), result);
                assert!(guard::encode(version, CorrelationId(1), &response).is_ok(), "{version}");
            }
        }
    }
}
