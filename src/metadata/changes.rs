//! What differs between two images: what a shard acts on when a new image arrives.

use std::sync::Arc;

use super::image::{ConfigResource, Image, TopicImage};
use super::sorted_map::SortedMap;

/// The difference of two images. A topic that was deleted and created again under its name is in
/// `topics_removed` and in `topics_added`.
#[derive(Clone, Default, Debug)]
pub struct Changes {
    pub topics_added: Vec<Arc<TopicImage>>,
    pub topics_removed: Vec<Arc<TopicImage>>,
    /// (before, after), of one topic id.
    pub topics_changed: Vec<(Arc<TopicImage>, Arc<TopicImage>)>,
    /// Resources whose overrides are others now, those that have none any more included.
    pub configs_changed: Vec<ConfigResource>,
    pub brokers_changed: bool,
}

impl Changes {
    pub(super) fn between(old: &Image, new: &Image) -> Changes {
        let mut changes = Changes::default();
        SortedMap::diff(&old.topics_by_id, &new.topics_by_id, |_, before, after| match (before, after) {
            (None, Some(topic)) => changes.topics_added.push(topic.clone()),
            (Some(topic), None) => changes.topics_removed.push(topic.clone()),
            (Some(before), Some(after)) if !Arc::ptr_eq(before, after) => {
                changes.topics_changed.push((before.clone(), after.clone()));
            }
            _ => {}
        });
        SortedMap::diff(&old.configs, &new.configs, |resource, before, after| {
            if before != after {
                changes.configs_changed.push(resource.clone());
            }
        });
        SortedMap::diff(&old.brokers, &new.brokers, |_, before, after| {
            changes.brokers_changed |= before != after;
        });
        changes
    }

    pub fn is_empty(&self) -> bool {
        self.topics_added.is_empty()
            && self.topics_removed.is_empty()
            && self.topics_changed.is_empty()
            && self.configs_changed.is_empty()
            && !self.brokers_changed
    }
}
