//! What the cluster can be finalized to speak (KIP-584): features by their names in Kafka, with the levels that
//! this version of kuring has.

use super::image::{FeatureRange, Image};

/// Which group protocols there are: at level 1 the new one of consumers too (KIP-848).
pub const GROUP_VERSION: &str = "group.version";
/// How transactions work: at level 2 every transaction has an epoch of its own (KIP-890).
pub const TRANSACTION_VERSION: &str = "transaction.version";

/// Share groups (KIP-932): at level 1 they are served.
pub const SHARE_VERSION: &str = "share.version";

/// In which forms the metadata's records are written (`forms`). Kafka's `metadata.version` is the same for its own log: no
/// level of that is told, for no node of Kafka's may join.
pub const METADATA_VERSION: &str = "kuring.metadata.version";

/// At level 1 the voters on the metadata log may change (KIP-853). Clusters have it from their beginning or are raised to it;
/// a node alone has neither.
pub const KRAFT_VERSION: &str = "kraft.version";

/// A feature and its levels; level 0 is the same as none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feature {
    pub name: &'static str,
    pub min: i16,
    pub max: i16,
    /// What a new cluster begins with.
    pub initial: i16,
}

/// All of them, ascending by name.
pub const FEATURES: &[Feature] = &[
    Feature { name: GROUP_VERSION, min: 0, max: 1, initial: 1 },
    Feature { name: METADATA_VERSION, min: 0, max: 1, initial: 1 },
    Feature { name: SHARE_VERSION, min: 0, max: 1, initial: 1 },
    Feature { name: TRANSACTION_VERSION, min: 0, max: 2, initial: 2 },
];

/// Beside the table: it says something of the log that the others are in, and no cluster gets it by itself.
pub const KRAFT: Feature = Feature { name: KRAFT_VERSION, min: 0, max: 1, initial: 0 };

/// Any of them by its name.
pub fn feature(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().chain([&KRAFT]).find(|feature| feature.name == name)
}

/// What this version of kuring can work at, as a broker tells it with its registration.
pub fn own_features() -> Vec<FeatureRange> {
    let range = |feature: &Feature| FeatureRange {
        name: feature.name.to_owned(),
        min: feature.min,
        max: feature.max,
    };
    FEATURES.iter().chain([&KRAFT]).map(range).collect()
}

/// The features that `image` has at a lower level than a new cluster begins with, each with that level. A cluster that is
/// older than a feature, or than one of its levels, does not get it by itself: as in Kafka, levels stay until somebody
/// raises them, because what is written by then an older version could not read.
pub fn below_initial(image: &Image) -> Vec<(Feature, i16)> {
    let levels = FEATURES.iter().map(|feature| (*feature, image.feature(feature.name).unwrap_or(0)));
    levels.filter(|(feature, level)| *level < feature.initial).collect()
}
