//! The cluster as the group coordinator sees it: which topics there are, with how many partitions, on which
//! racks; and the hash by which a group notices that its topics changed (KIP-1101).

use std::collections::{BTreeSet, HashMap};
use std::hash::Hasher;
use std::sync::Arc;

use kafka_protocol::protocol::StrBytes;
use twox_hash::XxHash3_64;

use crate::base::TopicId;
use crate::metadata::{ConfigResource, Image, TopicImage};

/// What Kafka puts before a topic, so that it can change the rest one day.
const HASH_FORMAT: u8 = 0;

/// What an image changes for groups.
pub(in crate::coordinator) struct News {
    /// Topics that are other ones now for a group: made, deleted, with more partitions or on other racks.
    pub(in crate::coordinator) topics: BTreeSet<StrBytes>,
    /// Groups whose configs are others now.
    pub(in crate::coordinator) groups: Vec<String>,
}

#[derive(Default)]
pub(in crate::coordinator) struct Topics {
    image: Arc<Image>,
    /// By name; computed when first asked for.
    hashes: HashMap<StrBytes, i64>,
    /// The first image with the topics that there are now.
    version_of_names: i64,
}

impl Topics {
    /// Takes over a new image; returns what is new in it for groups.
    pub(in crate::coordinator) fn update(&mut self, image: Arc<Image>) -> News {
        let changes = image.changes_since(&self.image);
        let counts = |(before, after): &&(Arc<TopicImage>, Arc<TopicImage>)| {
            let replicas = |topic: &TopicImage| -> Vec<_> {
                topic.partitions.iter().map(|partition| partition.replicas.clone()).collect()
            };
            before.partitions.len() != after.partitions.len() || replicas(before) != replicas(after)
        };
        let changed = changes.topics_changed.iter().filter(counts).map(|(_, after)| after);
        let affected: BTreeSet<StrBytes> = changed
            .chain(&changes.topics_added)
            .chain(&changes.topics_removed)
            .map(|topic| StrBytes::from_string(topic.name.to_string()))
            .collect();
        if !changes.topics_added.is_empty() || !changes.topics_removed.is_empty() {
            self.version_of_names = i64::try_from(image.version()).unwrap_or(i64::MAX);
        }
        for name in &affected {
            self.hashes.remove(name);
        }
        let groups = changes.configs_changed.into_iter().filter_map(|resource| match resource {
            ConfigResource::Group(group) => Some(group),
            _ => None,
        });
        self.image = image;
        News { topics: affected, groups: groups.collect() }
    }

    pub(in crate::coordinator) fn image(&self) -> &Image {
        &self.image
    }

    pub(super) fn version_of_names(&self) -> i64 {
        self.version_of_names
    }

    pub(super) fn version(&self) -> i64 {
        i64::try_from(self.image.version()).unwrap_or(i64::MAX)
    }

    pub(in crate::coordinator) fn id(&self, name: &str) -> Option<TopicId> {
        self.image.topic(name).map(|topic| topic.id)
    }

    pub(in crate::coordinator) fn name(&self, id: TopicId) -> Option<StrBytes> {
        self.image.topic_by_id(id).map(|topic| StrBytes::from_string(topic.name.to_string()))
    }

    pub(super) fn partition_count(&self, id: TopicId) -> Option<i32> {
        self.image.topic_by_id(id).and_then(|topic| i32::try_from(topic.partitions.len()).ok())
    }

    /// The hash of those of `names` that there are (Kafka's `computeGroupHash`); `names` must be sorted.
    pub(in crate::coordinator) fn hash(&mut self, names: &BTreeSet<StrBytes>) -> i64 {
        let mut hasher = XxHash3_64::new();
        let mut is_empty = true;
        for name in names {
            let Some(topic) = self.image.topic(name) else { continue };
            is_empty = false;
            let hash = match self.hashes.get(name) {
                Some(hash) => *hash,
                None => {
                    let hash = topic_hash(&self.image, topic);
                    self.hashes.insert(name.clone(), hash);
                    hash
                }
            };
            hasher.write(&hash.to_le_bytes());
        }
        if is_empty { 0 } else { hasher.finish().cast_signed() }
    }
}

/// Kafka's `computeTopicHash`.
fn topic_hash(image: &Image, topic: &TopicImage) -> i64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(&[HASH_FORMAT]);
    let (high, low) = topic.id.0.as_u64_pair();
    hasher.write(&high.to_le_bytes());
    hasher.write(&low.to_le_bytes());
    write_text(&mut hasher, &topic.name);
    write_int(&mut hasher, topic.partitions.len());
    for (index, partition) in topic.partitions.iter().enumerate() {
        write_int(&mut hasher, index);
        let racks = partition.replicas.iter().filter_map(|id| image.broker(*id)?.rack.as_deref());
        let mut racks: Vec<&str> = racks.collect();
        racks.sort_unstable();
        racks.dedup();
        for rack in racks {
            write_int(&mut hasher, rack.encode_utf16().count());
            write_text(&mut hasher, rack);
        }
    }
    hasher.finish().cast_signed()
}

/// As hash4j feeds a string: its UTF-16 units, then how many there are.
fn write_text(hasher: &mut XxHash3_64, text: &str) {
    let mut units = 0;
    for unit in text.encode_utf16() {
        hasher.write(&unit.to_le_bytes());
        units += 1;
    }
    write_int(hasher, units);
}

fn write_int(hasher: &mut XxHash3_64, value: usize) {
    hasher.write(&(value as u32).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are hash4j 0.22's, which Kafka 4.4 uses.
    #[test]
    fn hashes_are_kafkas() {
        let mut hasher = XxHash3_64::new();
        write_text(&mut hasher, "tö");
        assert_eq!(hasher.finish().cast_signed(), 1_540_458_881_273_218_375);

        let mut hasher = XxHash3_64::new();
        hasher.write(&[HASH_FORMAT]);
        hasher.write(&0u64.to_le_bytes());
        hasher.write(&1u64.to_le_bytes());
        write_text(&mut hasher, "tö");
        write_int(&mut hasher, 2);
        write_int(&mut hasher, 0);
        write_int(&mut hasher, 2);
        write_text(&mut hasher, "r1");
        write_int(&mut hasher, 1);
        assert_eq!(hasher.finish().cast_signed(), 4_021_901_971_708_903_531);

        let mut hasher = XxHash3_64::new();
        hasher.write(&1i64.to_le_bytes());
        hasher.write(&(-2i64).to_le_bytes());
        assert_eq!(hasher.finish().cast_signed(), 1_559_002_273_794_826_001);
    }

    #[test]
    fn a_group_of_topics_that_are_not_there_has_no_hash() {
        let mut topics = Topics::default();
        assert_eq!(topics.hash(&BTreeSet::from([StrBytes::from_static_str("t")])), 0);
        assert_eq!(topics.hash(&BTreeSet::new()), 0);
    }
}
