//! ApiVersions 0–4: the table of [`crate::wire::api`]. Unknown versions are answered before a handler is
//! chosen (`wire::header`).

use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;

use super::Client;
use crate::metadata::{FEATURES, Image, KRAFT};
use crate::wire::ErrorCode;
use crate::wire::api::{APIS, Api};

/// From here on an answer tells the features.
const FIRST_VERSION_WITH_FEATURES: i16 = 3;
/// From here on a feature may be supported from level 0 on: older clients would refuse the answer (KIP-584).
const FIRST_VERSION_WITH_LEVEL_0: i16 = 4;

pub async fn handle(client: &Client, version: i16, request: ApiVersionsRequest) -> ApiVersionsResponse {
    respond(&client.shard.image(), version, &request, |api| client.may_ask(api))
}

fn respond(
    image: &Image,
    version: i16,
    request: &ApiVersionsRequest,
    may_ask: impl Fn(&Api) -> bool,
) -> ApiVersionsResponse {
    // The client's name goes into metrics, so it is checked (KIP-511).
    let names = [&request.client_software_name, &request.client_software_version];
    if version >= 3 && !names.into_iter().all(|name| is_software_name(name)) {
        return ApiVersionsResponse::default().with_error_code(ErrorCode::InvalidRequest.code());
    }
    let keys = APIS.iter().filter(|api| may_ask(api)).map(|api| {
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
    // A node alone has no controllers in its log, and no voters that could change.
    let kraft = image.controllers().next().map(|_| &KRAFT);
    let told = FEATURES.iter().chain(kraft);
    let told = told.filter(|feature| feature.min > 0 || version >= FIRST_VERSION_WITH_LEVEL_0);
    let told = told.map(|feature| supported(feature.name, feature.min, feature.max));
    let levels = image.features().map(|(name, level)| finalized(name, level));
    response
        .with_supported_features(told.collect())
        .with_finalized_features_epoch(i64::try_from(image.version()).unwrap_or(i64::MAX))
        .with_finalized_features(levels.collect())
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
    use crate::metadata::Record;
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
            let response = respond(&Image::default(), version, &request("librdkafka", "2.0.2"), |_| true);
            assert_eq!(response.api_keys.len(), APIS.len());
            let produce = &response.api_keys[0];
            assert_eq!((produce.api_key, produce.min_version), (0, 0));
            assert_eq!(response.finalized_features, [], "of an image without features");
            assert!(guard::encode(version, CorrelationId(1), &response).is_ok());
        }
    }

    /// The answers of a real Kafka 4.4.
    #[test]
    fn a_client_without_a_proper_name_is_refused() {
        for (name, version) in [("", ""), ("x y", "1"), ("a", "-1"), ("a", "1."), ("ü", "1")] {
            assert_eq!(
                respond(&Image::default(), 3, &request(name, version), |_| true).error_code,
                42,
                "{name} {version}"
            );
        }
        assert_eq!(
            respond(&Image::default(), 3, &request("apache-kafka-java", "4.1.0-SNAPSHOT"), |_| true)
                .error_code,
            0
        );
        assert_eq!(respond(&Image::default(), 0, &ApiVersionsRequest::default(), |_| true).error_code, 0);
    }

    #[test]
    fn features_are_told_to_clients_that_understand_them() {
        let mut cluster = super::super::cluster_view::testing::cluster(&[]);
        let level = Record::Feature { name: "group.version".to_owned(), level: 1 };
        cluster.apply(2, &[level]).expect("the next entry");
        let told = |version| respond(cluster.image(), version, &request("librdkafka", "2.0.2"), |_| true);
        assert_eq!(told(2).supported_features, []);
        assert_eq!(told(3).supported_features, [], "they begin at level 0");
        let features = told(4).supported_features;
        let shown: Vec<_> = features.iter().map(|it| (&*it.name, it.min_version, it.max_version)).collect();
        let all = [
            ("group.version", 0, 1),
            ("kuring.metadata.version", 0, 1),
            ("share.version", 0, 1),
            ("transaction.version", 0, 2),
        ];
        assert_eq!(shown, all);
        let finalized = told(3).finalized_features;
        let levels: Vec<_> = finalized.iter().map(|it| (&*it.name, it.max_version_level)).collect();
        assert_eq!(levels, [("group.version", 1)]);
        for version in 0..=4 {
            assert!(guard::encode(version, CorrelationId(1), &told(version)).is_ok(), "{version}");
        }
        let controller = crate::metadata::ControllerImage {
            id: crate::base::BrokerId(1),
            incarnation: uuid::Uuid::from_u128(1),
            endpoints: Vec::new(),
            features: Vec::new(),
        };
        cluster.apply(3, &[Record::ControllerRegistered(controller)]).expect("the next entry");
        let among_others = respond(cluster.image(), 4, &request("librdkafka", "2.0.2"), |_| true);
        let kraft = among_others.supported_features.iter().find(|it| it.name.as_str() == "kraft.version");
        assert_eq!(kraft.map(|it| (it.min_version, it.max_version)), Some((0, 1)), "it can be raised");
    }
}
