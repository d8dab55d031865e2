//! ApiVersions 0–4: the table of [`crate::wire::api`]. Unknown versions are answered before a handler is
//! chosen (`wire::header`).

use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;

use super::Client;
use crate::metadata::{FEATURES, Image};
use crate::wire::ErrorCode;
use crate::wire::api::APIS;

/// The new group protocol (KIP-848): level 1 of 1, as in every new cluster of Kafka 4; not to be changed yet.
const GROUP_VERSION: &str = "group.version";
const GROUP_VERSION_LEVEL: i16 = 1;
/// From here on an answer tells the features.
const FIRST_VERSION_WITH_FEATURES: i16 = 3;
/// From here on a feature may be supported from level 0 on: older clients would refuse the answer (KIP-584).
const FIRST_VERSION_WITH_LEVEL_0: i16 = 4;

pub async fn handle(client: &Client, version: i16, request: ApiVersionsRequest) -> ApiVersionsResponse {
    respond(&client.shard.image(), version, &request)
}

fn respond(image: &Image, version: i16, request: &ApiVersionsRequest) -> ApiVersionsResponse {
    // The client's name goes into metrics, so it is checked (KIP-511).
    let names = [&request.client_software_name, &request.client_software_version];
    if version >= 3 && !names.into_iter().all(|name| is_software_name(name)) {
        return ApiVersionsResponse::default().with_error_code(ErrorCode::InvalidRequest.code());
    }
    let keys = APIS.iter().map(|api| {
        ApiVersion::default().with_api_key(api.key as i16).with_min_version(api.min).with_max_version(api.max)
    });
    let response = ApiVersionsResponse::default().with_api_keys(keys.collect());
    match version {
        FIRST_VERSION_WITH_FEATURES.. => with_features(image, version, response),
        _ => response,
    }
}

fn with_features(image: &Image, version: i16, response: ApiVersionsResponse) -> ApiVersionsResponse {
    let supported = |name, min, max| {
        // What older clients can be told is that the level is not open to change.
        let min = if version < FIRST_VERSION_WITH_LEVEL_0 { max } else { min };
        SupportedFeatureKey::default()
            .with_name(StrBytes::from_static_str(name))
            .with_min_version(min)
            .with_max_version(max)
    };
    let finalized = |name: &str, level| {
        FinalizedFeatureKey::default()
            .with_name(StrBytes::from_string(name.to_owned()))
            .with_min_version_level(level)
            .with_max_version_level(level)
    };
    let of_table = FEATURES.iter().filter(|feature| feature.min > 0 || version >= FIRST_VERSION_WITH_LEVEL_0);
    let of_table = of_table.map(|feature| supported(feature.name, feature.min, feature.max));
    let groups = supported(GROUP_VERSION, 0, GROUP_VERSION_LEVEL);
    let levels = image.features().map(|(name, level)| finalized(name, level));
    response
        .with_supported_features(std::iter::once(groups).chain(of_table).collect())
        .with_finalized_features_epoch(i64::try_from(image.version()).unwrap_or(i64::MAX))
        .with_finalized_features(
            std::iter::once(finalized(GROUP_VERSION, GROUP_VERSION_LEVEL)).chain(levels).collect(),
        )
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
            let response = respond(&Image::default(), version, &request("librdkafka", "2.0.2"));
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
            assert_eq!(
                respond(&Image::default(), 3, &request(name, version)).error_code,
                42,
                "{name} {version}"
            );
        }
        assert_eq!(
            respond(&Image::default(), 3, &request("apache-kafka-java", "4.1.0-SNAPSHOT")).error_code,
            0
        );
        assert_eq!(respond(&Image::default(), 0, &ApiVersionsRequest::default()).error_code, 0);
    }

    #[test]
    fn features_are_told_to_clients_that_understand_them() {
        let cluster = super::super::cluster_view::testing::cluster(&[]);
        let told = |version| respond(cluster.image(), version, &request("librdkafka", "2.0.2"));
        assert_eq!(told(2).supported_features, []);
        let is_told = |version| {
            told(version).supported_features.iter().any(|feature| &*feature.name == "transaction.version")
        };
        assert!(!is_told(3));
        let features = told(4).supported_features;
        let feature = &features[1];
        assert_eq!((&*feature.name, feature.min_version, feature.max_version), ("transaction.version", 0, 2));
        for version in 0..=4 {
            assert!(guard::encode(version, CorrelationId(1), &told(version)).is_ok(), "{version}");
        }
    }
}
