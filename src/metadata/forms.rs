//! In which form each record is stored, and from which level of `kuring.metadata.version` on that may be written: a node
//! that does not know a form stops, so none is written before all nodes know it.

use super::features::METADATA_VERSION;
use super::image::Image;
use super::record::Record;

/// The version that every record begins with. One is written in the lowest version that has all of it: a node alone
/// writes what its older versions read.
pub const FIRST: u8 = 0;
/// With what only a cluster has: [`super::BrokerImage::shutting_down`], [`super::PartitionImage::transit`].
pub const SECOND: u8 = 1;
/// With [`super::BrokerImage::features`], too.
pub const THIRD: u8 = 2;

/// What a stored record begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    pub kind: u8,
    pub version: u8,
}

/// Every form: kind, version and level. Those of level 0 are older than levels.
const FORMS: &[(u8, u8, i16)] = &[
    (0, FIRST, 0),
    (1, FIRST, 0),
    (1, SECOND, 0),
    (1, THIRD, 0),
    (2, FIRST, 0),
    (3, FIRST, 0),
    (4, FIRST, 0),
    (5, FIRST, 0),
    (6, FIRST, 0),
    (6, SECOND, 0),
    (7, FIRST, 0),
    (7, SECOND, 0),
    (8, FIRST, 0),
    (9, FIRST, 0),
    (10, FIRST, 0),
    (11, FIRST, 0),
    (12, FIRST, 0),
    (13, FIRST, 0),
    (18, FIRST, 0),
    (20, FIRST, 0),
];

impl Form {
    /// The lowest that has all of the record.
    pub fn of(record: &Record) -> Self {
        let version = |has_more: bool| if has_more { SECOND } else { FIRST };
        let (kind, version) = match record {
            Record::Cluster { .. } => (0, FIRST),
            Record::BrokerRegistered(broker) if !broker.features.is_empty() => (1, THIRD),
            Record::BrokerRegistered(broker) => (1, version(broker.shutting_down)),
            Record::BrokerFenced { .. } => (2, FIRST),
            Record::BrokerUnfenced { .. } => (3, FIRST),
            Record::BrokerRemoved { .. } => (4, FIRST),
            Record::Topic { .. } => (5, FIRST),
            Record::Partition { partition, .. } => (6, version(partition.transit.is_some())),
            Record::PartitionChanged(change) => (7, version(change.transit.is_some())),
            Record::TopicRemoved { .. } => (8, FIRST),
            Record::Config { .. } => (9, FIRST),
            Record::ProducerIds { .. } => (10, FIRST),
            Record::Feature { .. } => (11, FIRST),
            Record::BrokerChanged(_) => (12, FIRST),
            Record::ClientQuota { .. } => (13, FIRST),
            Record::DirectoryFailed { .. } => (18, FIRST),
            Record::ControllerRegistered(_) => (20, FIRST),
        };
        Self { kind, version }
    }

    /// From which on it may be written; `None`: this kuring does not know it.
    pub fn level(self) -> Option<i16> {
        let found = FORMS.iter().find(|(kind, version, _)| (*kind, *version) == (self.kind, self.version));
        found.map(|(_, _, level)| *level)
    }
}

/// The level that the records need, where that is above what is finalized: in `image`, or by one of them.
pub fn missing_level(image: &Image, records: &[Record]) -> Option<Missing> {
    missing(image, records, |record| Form::of(record).level())
}

/// A level that is not finalized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing {
    pub needed: i16,
    pub finalized: i16,
}

fn missing(image: &Image, records: &[Record], level_of: impl Fn(&Record) -> Option<i16>) -> Option<Missing> {
    let raised = records.iter().filter_map(|record| match record {
        Record::Feature { name, level } if name == METADATA_VERSION => Some(*level),
        _ => None,
    });
    let finalized = raised.chain(image.feature(METADATA_VERSION)).max().unwrap_or(0);
    // What has no level is written by nobody.
    let needed = records.iter().map(|record| level_of(record).unwrap_or(i16::MAX)).max()?;
    (needed > finalized).then_some(Missing { needed, finalized })
}

#[cfg(test)]
mod tests {
    use super::super::features::FEATURES;
    use super::super::state::State;
    use super::*;
    use crate::base::TopicId;

    fn raised(level: i16) -> Record {
        Record::Feature { name: METADATA_VERSION.to_owned(), level }
    }

    #[test]
    fn a_record_waits_for_the_level_that_its_form_has() {
        let removed = Record::TopicRemoved { id: TopicId(uuid::Uuid::nil()) };
        // As if topics were removed in a form that is new.
        let level_of = |record: &Record| match record {
            Record::TopicRemoved { .. } => Some(2),
            record => Form::of(record).level(),
        };
        let mut state = State::default();
        let missing = |state: &State, records: &[Record]| missing(state.image(), records, level_of);
        let told = |finalized| Some(Missing { needed: 2, finalized });
        assert_eq!(missing(&state, std::slice::from_ref(&removed)), told(0));
        state.apply(1, &[Record::Cluster { id: "c".into() }, raised(1)]).unwrap();
        assert_eq!(missing(&state, &[raised(1), removed.clone()]), told(1));
        assert_eq!(missing(&state, &[removed.clone(), raised(2)]), None, "it comes with the level");
        assert_eq!(missing(&state, &[]), None);
        state.apply(2, &[raised(2)]).unwrap();
        assert_eq!(missing(&state, &[removed]), None);
    }

    #[test]
    fn every_form_is_once_in_the_table_and_of_a_level_that_can_be_finalized() {
        let mut heads: Vec<(u8, u8)> = FORMS.iter().map(|(kind, version, _)| (*kind, *version)).collect();
        heads.sort_unstable();
        heads.dedup();
        assert_eq!(heads.len(), FORMS.len());
        let feature = FEATURES.iter().find(|feature| feature.name == METADATA_VERSION).unwrap();
        assert!(FORMS.iter().all(|(_, _, level)| (feature.min..=feature.max).contains(level)));
        assert_eq!(feature.initial, feature.max, "a new cluster writes all");
    }
}
