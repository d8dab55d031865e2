//! What administrators see of a consumer group.

use kafka_protocol::messages::consumer_group_describe_response::{
    Assignment, DescribedGroup, Member as DescribedMember, TopicPartitions,
};
use kafka_protocol::messages::{GroupId, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::group::ConsumerGroup;
use super::member::{Member, Partitions, without_epochs};
use super::topics::Topics;
use crate::config::Assignor;

/// ConsumerGroupDescribe 1 tells the protocol of each member.
const CLASSIC_MEMBER: i8 = 0;
const CONSUMER_MEMBER: i8 = 1;

impl ConsumerGroup {
    pub(in crate::coordinator) fn describe(&self, default: Assignor, topics: &Topics) -> DescribedGroup {
        let assignor = self.preferred_assignor().cloned();
        DescribedGroup::default()
            .with_group_id(GroupId(self.id.clone()))
            .with_group_state(StrBytes::from_static_str(self.state_name()))
            .with_group_epoch(self.epoch.0)
            .with_assignment_epoch(self.target_epoch.0)
            .with_assignor_name(assignor.unwrap_or(StrBytes::from_static_str(default.name())))
            .with_members(self.members().map(|member| self.describe_member(member, topics)).collect())
    }

    fn describe_member(&self, member: &Member, topics: &Topics) -> DescribedMember {
        let metadata = &member.metadata;
        DescribedMember::default()
            .with_member_id(member.id.clone())
            .with_instance_id(metadata.instance_id.clone())
            .with_rack_id(metadata.rack_id.clone())
            .with_member_epoch(member.position.epoch.0)
            .with_client_id(metadata.client_id.clone())
            .with_client_host(metadata.client_host.clone())
            .with_subscribed_topic_names(metadata.topic_names.iter().cloned().map(TopicName).collect())
            .with_subscribed_topic_regex(Some(metadata.topic_regex.clone()))
            .with_assignment(assignment(&without_epochs(&member.position.assigned), topics))
            .with_target_assignment(assignment(self.target(&member.id), topics))
            .with_member_type(if member.uses_classic_protocol() { CLASSIC_MEMBER } else { CONSUMER_MEMBER })
    }
}

/// Without the topics that are no more.
fn assignment(partitions: &Partitions, topics: &Topics) -> Assignment {
    let named = partitions.iter().filter_map(|(id, partitions)| {
        let name = topics.name(*id)?;
        let partitions = partitions.iter().map(|partition| partition.0).collect();
        Some(
            TopicPartitions::default()
                .with_topic_id(id.0)
                .with_topic_name(TopicName(name))
                .with_partitions(partitions),
        )
    });
    Assignment::default().with_topic_partitions(named.collect())
}
