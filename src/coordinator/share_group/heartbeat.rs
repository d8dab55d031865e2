//! ShareGroupHeartbeat: a member joins, tells what it subscribes to, and learns what it has; or it leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use kafka_protocol::messages::share_group_heartbeat_response::{Assignment, TopicPartitions};
use kafka_protocol::messages::{ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse};
use kafka_protocol::protocol::StrBytes;

use super::assignor;
use super::group::{Member, ShareGroup};
use super::records::{GroupEpoch, MemberMetadata, Position, ShareRecord, TargetEpoch};
use crate::base::TopicId;
use crate::base::clock::Timestamp;
use crate::coordinator::codec::STRING_BYTES_MAX;
use crate::coordinator::consumer::{Epoch, Partitions, Topics};
use crate::coordinator::interface::Client;
use crate::coordinator::member::copy_text;
use crate::wire::ErrorCode;

/// Why a heartbeat is refused, with Kafka's words for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) code: ErrorCode,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(code: ErrorCode, message: impl Display) -> Self {
        Self { code, message: message.to_string() }
    }
}

/// What is wrong with a heartbeat whatever its group is like.
pub(super) fn invalid(request: &ShareGroupHeartbeatRequest, client: &Client) -> Result<(), Refusal> {
    let refuse = |message: &str| Err(Refusal::new(ErrorCode::InvalidRequest, message));
    let is_blank = |text: &StrBytes| text.chars().all(|letter| letter <= ' ');
    if is_blank(&request.member_id) {
        return refuse("MemberId can't be empty.");
    }
    if is_blank(&request.group_id.0) {
        return refuse("GroupId can't be empty.");
    }
    if request.rack_id.as_ref().is_some_and(is_blank) {
        return refuse("RackId can't be empty.");
    }
    let epoch = Epoch(request.member_epoch);
    if epoch == Epoch::ZERO && request.subscribed_topic_names.as_ref().is_none_or(Vec::is_empty) {
        return refuse("SubscribedTopicNames must be set in first request.");
    }
    if epoch < Epoch::LEAVING {
        return refuse("MemberEpoch is invalid.");
    }
    // These are in the keys of records, which hold no longer ones.
    let texts = [&request.group_id.0, &request.member_id, &client.id, &client.host];
    if texts.into_iter().any(|text| text.len() > STRING_BYTES_MAX) {
        return refuse("A name is too long.");
    }
    Ok(())
}

impl ShareGroup {
    /// Whether a heartbeat says and asks nothing new: the road of nearly all.
    pub(super) fn is_quiet(&self, request: &ShareGroupHeartbeatRequest, client: &Client) -> bool {
        let Some(member) = self.members.get(&request.member_id) else { return false };
        request.member_epoch > 0
            && request.subscribed_topic_names.is_none()
            && request.rack_id.as_ref().is_none_or(|rack| member.metadata.rack_id.as_ref() == Some(rack))
            && Epoch(request.member_epoch) == member.position.epoch
            && member.position.epoch == self.target_epoch
            && self.target_epoch == self.epoch
            && !self.soft.is_outdated
            && !self.soft.lacks_states
            && member.metadata.client_id == client.id
            && member.metadata.client_host == client.host
    }
}

/// A group as it will be when the records that were gathered are written.
pub(super) struct Draft {
    pub(super) group: ShareGroup,
    pub(super) records: Vec<ShareRecord>,
}

impl Draft {
    pub(super) fn of(group: &ShareGroup) -> Self {
        Self { group: group.clone(), records: Vec::new() }
    }

    pub(super) fn put(&mut self, record: ShareRecord) {
        self.group.apply(record.clone());
        self.records.push(record);
    }

    /// A member's heartbeat (`GroupMetadataManager.shareGroupHeartbeat`).
    pub(super) fn heartbeat(
        &mut self,
        request: &ShareGroupHeartbeatRequest,
        client: &Client,
        members_max: i32,
        topics: &mut Topics,
        now: Timestamp,
    ) -> Result<ShareGroupHeartbeatResponse, Refusal> {
        let id = copy_text(&request.member_id);
        let joins = request.member_epoch == 0;
        let before = self.find(&id, request.member_epoch, members_max)?;
        let metadata = told(&before, request, client);
        let names_changed = before.metadata.topic_names != metadata.topic_names;
        if !self.group.members.contains_key(&id) || before.metadata != metadata {
            self.put(ShareRecord::Member {
                group: self.group.id.clone(),
                member: id.clone(),
                value: Some(Box::new(metadata)),
            });
        }
        self.update_target(names_changed, topics, now);
        let assigned = self.group.target.get(&id).cloned().unwrap_or_default();
        let epoch = self.group.target_epoch;
        if before.position.epoch != epoch || before.position.assigned != assigned {
            let value = Position { epoch, previous_epoch: before.position.epoch, assigned: assigned.clone() };
            self.put(ShareRecord::Position {
                group: self.group.id.clone(),
                member: id.clone(),
                value: Some(Box::new(value)),
            });
        }
        let is_told =
            joins || request.subscribed_topic_names.is_some() || assigned != before.position.assigned;
        Ok(ShareGroupHeartbeatResponse::default()
            .with_member_id(Some(id))
            .with_member_epoch(epoch.0)
            .with_assignment(is_told.then(|| assignment(&assigned))))
    }

    /// The member as it is, or a new one.
    fn find(&self, id: &StrBytes, epoch: i32, members_max: i32) -> Result<Member, Refusal> {
        let Some(member) = self.group.members.get(id) else {
            if epoch != 0 {
                return Err(self.no_member(id));
            }
            if self.group.members.len() >= usize::try_from(members_max).unwrap_or(0) {
                return Err(Refusal::new(
                    ErrorCode::GroupMaxSizeReached,
                    format!("The share group has reached its maximum capacity of {members_max} members."),
                ));
            }
            return Ok(Member::default());
        };
        let known = member.position.epoch;
        let told = Epoch(epoch);
        if told > known {
            return Err(Refusal::new(
                ErrorCode::FencedMemberEpoch,
                format!(
                    "The share group member has a greater member epoch ({told}) than the one known by the group \
                     coordinator ({known}). The member must abandon all its partitions and rejoin."
                ),
            ));
        }
        let previous = member.position.previous_epoch;
        // It joins anew, or the answer with its last epoch was lost.
        if told < known && told != Epoch::ZERO && told != previous {
            return Err(Refusal::new(
                ErrorCode::FencedMemberEpoch,
                format!(
                    "The share group member has a smaller member epoch ({told}) than the one known by the group \
                     coordinator ({known}), and it does not match the previous member epoch ({previous}). The \
                     member must abandon all its partitions and rejoin."
                ),
            ));
        }
        Ok(member.clone())
    }

    fn no_member(&self, id: &StrBytes) -> Refusal {
        let message = format!("Member {id} is not a member of group {}.", self.group.id);
        Refusal::new(ErrorCode::UnknownMemberId, message)
    }

    /// Takes over what members subscribe to now and which partitions can be assigned: the group's epoch, the target.
    fn update_target(&mut self, names_changed: bool, topics: &mut Topics, now: Timestamp) {
        let assignable = self.group.assignable(topics);
        let mut assigned = Partitions::new();
        for (topic, partitions) in self.group.target.values().flatten() {
            assigned.entry(*topic).or_default().extend(partitions);
        }
        let bump = names_changed || assignable != assigned;
        let hash = match bump || self.group.soft.is_outdated {
            true => topics.hash(&self.group.topic_names()),
            false => self.group.metadata_hash,
        };
        if bump || hash != self.group.metadata_hash {
            self.bump(hash);
        }
        if self.group.target_epoch >= self.group.epoch {
            return;
        }
        let subscribed = |member: &Member| -> BTreeSet<TopicId> {
            member.metadata.topic_names.iter().filter_map(|name| topics.id(name)).collect()
        };
        let members: BTreeMap<StrBytes, BTreeSet<TopicId>> =
            self.group.members.iter().map(|(id, member)| (id.clone(), subscribed(member))).collect();
        let target = assignor::assign(&members, &assignable, &self.group.target);
        for (member, partitions) in target {
            if self.group.target.get(&member) != Some(&partitions) {
                let group = self.group.id.clone();
                self.put(ShareRecord::Target { group, member, value: Some(partitions) });
            }
        }
        let value = Some(TargetEpoch { epoch: self.group.epoch, at: now });
        self.put(ShareRecord::TargetEpoch { group: self.group.id.clone(), value });
    }

    pub(super) fn bump(&mut self, metadata_hash: i64) {
        let value = Some(GroupEpoch { epoch: self.group.epoch.next(), metadata_hash });
        self.put(ShareRecord::Group { group: self.group.id.clone(), value });
    }

    /// A member leaves.
    pub(super) fn leave(
        &mut self,
        id: &StrBytes,
        topics: &mut Topics,
    ) -> Result<ShareGroupHeartbeatResponse, Refusal> {
        if !self.group.members.contains_key(id) {
            return Err(self.no_member(id));
        }
        let id = copy_text(id);
        self.remove(&id, topics);
        Ok(ShareGroupHeartbeatResponse::default()
            .with_member_id(Some(id))
            .with_member_epoch(Epoch::LEAVING.0))
    }

    /// Takes a member out.
    pub(super) fn remove(&mut self, id: &StrBytes, topics: &mut Topics) {
        let (group, member) = (|| self.group.id.clone(), || id.clone());
        let records = [
            ShareRecord::Position { group: group(), member: member(), value: None },
            ShareRecord::Target { group: group(), member: member(), value: None },
            ShareRecord::Member { group: group(), member: member(), value: None },
        ];
        records.into_iter().for_each(|record| self.put(record));
        let hash = topics.hash(&self.group.topic_names());
        self.bump(hash);
    }
}

/// What the member says of itself now; what it does not mention stays.
fn told(member: &Member, request: &ShareGroupHeartbeatRequest, client: &Client) -> MemberMetadata {
    let before = &member.metadata;
    let names = request.subscribed_topic_names.as_ref();
    let names = names.map(|names| names.iter().map(|name| copy_text(&name.0)).collect());
    MemberMetadata {
        rack_id: request.rack_id.as_ref().map(copy_text).or_else(|| before.rack_id.clone()),
        client_id: copy_text(&client.id),
        client_host: copy_text(&client.host),
        topic_names: names.unwrap_or_else(|| before.topic_names.clone()),
    }
}

fn assignment(partitions: &Partitions) -> Assignment {
    let topics = partitions.iter().map(|(id, partitions)| {
        TopicPartitions::default()
            .with_topic_id(id.0)
            .with_partitions(partitions.iter().map(|partition| partition.0).collect())
    });
    Assignment::default().with_topic_partitions(topics.collect())
}
