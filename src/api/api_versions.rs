//! ApiVersions 0–4: the table of [`crate::wire::api`]. Unknown versions are answered before a handler is
//! chosen (`wire::header`).

use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;

use super::Client;
use crate::wire::ErrorCode;
use crate::wire::api::APIS;

/// The new group protocol (KIP-848): level 1 of 1, as in every new cluster of Kafka 4.
const GROUP_VERSION: &str = "group.version";
const GROUP_VERSION_LEVEL: i16 = 1;
/// From here on an answer tells the features.
const FIRST_VERSION_WITH_FEATURES: i16 = 3;
/// From here on a feature may be supported from level 0 on: older clients would refuse the answer (KIP-584).
const FIRST_VERSION_WITH_LEVEL_0: i16 = 4;

pub async fn handle(client: &Client, version: i16, request: ApiVersionsRequest) -> ApiVersionsResponse {
    let image_version = client.shard.image().version();
    respond(version, &request, i64::try_from(image_version).unwrap_or(i64::MAX))
}

fn respond(version: i16, request: &ApiVersionsRequest, features_epoch: i64) -> ApiVersionsResponse {
    // The client's name goes into metrics, so it is checked (KIP-511).
    let names = [&request.client_software_name, &request.client_software_version];
    if version >= 3 && !names.into_iter().all(|name| is_software_name(name)) {
        return ApiVersionsResponse::default().with_error_code(ErrorCode::InvalidRequest.code());
    }
    let keys = APIS.iter().map(|api| {
        ApiVersion::default().with_api_key(api.key as i16).with_min_version(api.min).with_max_version(api.max)
    });
    let response = ApiVersionsResponse::default().with_api_keys(keys.collect());
    if version < FIRST_VERSION_WITH_FEATURES {
        return response;
    }
    let name = StrBytes::from_static_str(GROUP_VERSION);
    let level_min = if version < FIRST_VERSION_WITH_LEVEL_0 { GROUP_VERSION_LEVEL } else { 0 };
    response
        .with_supported_features(vec![
            SupportedFeatureKey::default()
                .with_name(name.clone())
                .with_min_version(level_min)
                .with_max_version(GROUP_VERSION_LEVEL),
        ])
        .with_finalized_features_epoch(features_epoch)
        .with_finalized_features(vec![
            FinalizedFeatureKey::default()
                .with_name(name)
                .with_min_version_level(GROUP_VERSION_LEVEL)
                .with_max_version_level(GROUP_VERSION_LEVEL),
        ])
}

/// Letters, digits, `.` and `-`, the first and the last a letter or digit.
fn is_software_name(name: &str) -> bool {
    let is_word = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let bytes = name.as_bytes();
    is_word(bytes.first().copied())
        && is_word(bytes.last().copied())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    fn request(name: &'static str, version: &'static str) -> ApiVersionsRequest {
        ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str(name))
            .with_client_software_version(StrBytes::from_static_str(version))
    }

    #[test]
    fn the_table_is_answered_in_every_version() {
        for version in 0..=4 {
            let response = respond(version, &request("librdkafka", "2.0.2"), 7);
            assert_eq!(response.api_keys.len(), APIS.len());
            let produce = &response.api_keys[0];
            assert_eq!((produce.api_key, produce.min_version), (0, 0));
            assert_eq!(response.finalized_features.len(), usize::from(version >= 3));
            assert!(guard::encode(version, CorrelationId(1), &response).is_ok());
        }
    }

    /// The answers of a real Kafka 4.4.
    #[test]
    fn a_client_without_a_proper_name_is_refused() {
        for (name, version) in [("", ""), ("x y", "1"), ("a", "-1"), ("a", "1."), ("ü", "1")] {
            assert_eq!(respond(3, &request(name, version), 7).error_code, 42, "{name} {version}");
        }
        assert_eq!(respond(3, &request("apache-kafka-java", "4.1.0-SNAPSHOT"), 7).error_code, 0);
        assert_eq!(respond(0, &ApiVersionsRequest::default(), 7).error_code, 0);
    }
}
