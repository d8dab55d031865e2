//! ConsumerGroupHeartbeat: a member joins, tells what it subscribes to and what it has, and learns what it is to
//! have.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use kafka_protocol::messages::consumer_group_heartbeat_response::{Assignment, TopicPartitions};
use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
use kafka_protocol::protocol::StrBytes;

use super::assignor::{self, Candidate, PartitionCounts};
use super::draft::Draft;
use super::group::ConsumerGroup;
use super::member::{Epoch, Member, MemberMetadata, Owned, Partitions, sorted_names, without_epochs};
use super::reconcile::{Goal, reconcile};
use super::records::{ConsumerRecord, GroupEpoch, ResolvedRegex, TargetEpoch};
use super::regexes::{self, EXPRESSIONS_MAX, REFRESHED_MAX, RESOLVED_BYTES_MAX};
use super::requests::{Applied, Refusal};
use crate::base::clock::Timestamp;
use crate::base::{PartitionIndex, TopicId};
use crate::config::Assignor;
use crate::coordinator::codec::STRING_BYTES_MAX;
use crate::coordinator::interface::Client;
use crate::coordinator::member::copy_text;
use crate::coordinator::turn::Turn;
use crate::wire::ErrorCode;
use crate::wire::beat::Beat;

/// "Not told" in a request.
const NOT_TOLD: i32 = -1;
/// From here on a member makes its id itself.
const FIRST_VERSION_WITH_OWN_ID: i16 = 1;
/// When topics come and go, the expressions of a group are matched again no sooner than this after the last time.
const REGEX_REFRESH_MS_MIN: i64 = 10_000;

/// What is wrong with a heartbeat whatever its group is like.
pub(super) fn invalid(
    request: &ConsumerGroupHeartbeatRequest,
    client: &Client,
    assignors: &[Assignor],
) -> Result<(), Refusal> {
    let refuse = |message: &str| Err(Refusal::new(ErrorCode::InvalidRequest, message));
    let epoch = Epoch(request.member_epoch);
    let needs_id = client.api_version >= FIRST_VERSION_WITH_OWN_ID || epoch.0 > 0 || epoch == Epoch::LEAVING;
    if needs_id && is_blank(&request.member_id) {
        return refuse("MemberId can't be empty.");
    }
    if is_blank(&request.group_id.0) {
        return refuse("GroupId can't be empty.");
    }
    if request.instance_id.as_ref().is_some_and(is_blank) {
        return refuse("InstanceId can't be empty.");
    }
    if request.rack_id.as_ref().is_some_and(is_blank) {
        return refuse("RackId can't be empty.");
    }
    if epoch == Epoch::ZERO {
        if request.rebalance_timeout_ms == NOT_TOLD {
            return refuse("RebalanceTimeoutMs must be provided in first request.");
        }
        if !request.topic_partitions.as_ref().is_some_and(Vec::is_empty) {
            return refuse("TopicPartitions must be empty when (re-)joining.");
        }
        if request.subscribed_topic_names.is_none() && request.subscribed_topic_regex.is_none() {
            return refuse(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            );
        }
    } else if epoch == Epoch::STATIC_LEAVING {
        if request.instance_id.is_none() {
            return refuse("InstanceId can't be null.");
        }
    } else if epoch < Epoch::STATIC_LEAVING {
        return refuse("MemberEpoch is invalid.");
    }
    if let Some(name) = &request.server_assignor
        && !assignors.iter().any(|assignor| assignor.name() == name.as_str())
    {
        let supported: Vec<&str> = assignors.iter().map(|assignor| assignor.name()).collect();
        let supported = supported.join(", ");
        return Err(Refusal::new(
            ErrorCode::UnsupportedAssignor,
            format!("ServerAssignor {name} is not supported. Supported assignors: {supported}."),
        ));
    }
    // These are in the keys of records, which hold no longer ones.
    let keys = [&request.group_id.0, &request.member_id].into_iter().chain(&request.subscribed_topic_regex);
    if keys.into_iter().any(|text| text.len() > STRING_BYTES_MAX) {
        return refuse("A name is too long.");
    }
    Ok(())
}

/// Java's `trim().isEmpty()`.
fn is_blank(text: &StrBytes) -> bool {
    text.chars().all(|letter| letter <= ' ')
}

/// The partitions that a request names; no topic without partitions.
pub(super) fn reported(request: &ConsumerGroupHeartbeatRequest) -> Option<Partitions> {
    let topics = request.topic_partitions.as_ref()?;
    let mut reported = Partitions::new();
    for topic in topics.iter().filter(|topic| !topic.partitions.is_empty()) {
        let partitions = topic.partitions.iter().copied().map(PartitionIndex);
        reported.entry(TopicId(topic.topic_id)).or_default().extend(partitions);
    }
    Some(reported)
}

/// What a heartbeat says that tells nothing of its member but that it lives.
pub(super) fn beat_of(request: &ConsumerGroupHeartbeatRequest) -> Option<Beat> {
    let tells = request.rebalance_timeout_ms != NOT_TOLD
        || request.subscribed_topic_names.is_some()
        || request.subscribed_topic_regex.is_some()
        || request.topic_partitions.is_some()
        || request.server_assignor.is_some()
        || request.rack_id.is_some();
    (!tells).then(|| Beat {
        group: request.group_id.0.clone(),
        member: request.member_id.clone(),
        instance: request.instance_id.clone(),
        epoch: request.member_epoch,
    })
}

impl ConsumerGroup {
    /// Whether there is nothing new to a member that says no more than this: the road of nearly all heartbeats.
    pub(in crate::coordinator) fn is_quiet(&self, beat: &Beat, client_id: &[u8], client_host: &str) -> bool {
        let Some(member) = self.member(&beat.member) else { return false };
        let metadata = &member.metadata;
        beat.epoch > 0
            && Epoch(beat.epoch) == member.position.epoch
            && beat.instance == metadata.instance_id
            && member.is_reconciled_to(self.target_epoch)
            && self.epoch == self.target_epoch
            && !self.soft.is_outdated
            && !member.uses_classic_protocol()
            && metadata.client_id.as_bytes() == client_id
            && metadata.client_host.as_str() == client_host
    }

    /// Whether expressions are to be matched again before a heartbeat of the member is served.
    pub(in crate::coordinator) fn has_regexes_due(&self, member: &StrBytes, turn: &Turn<'_>) -> bool {
        self.soft.regexes_rest_until <= turn.now.monotonic
            && self.regexes().values().any(|resolved| is_due(resolved, turn))
            && self.member(member).is_some()
    }
}

/// Whether topics came or went since the expression was matched, and long enough ago. Another broker may have
/// counted versions otherwise, and its clock may have been ahead.
fn is_due(resolved: &ResolvedRegex, turn: &Turn<'_>) -> bool {
    let is_stale =
        resolved.version < turn.topics.version_of_names() || resolved.version > turn.topics.version();
    let age_ms = turn.now.wall.0.saturating_sub(resolved.at.0);
    is_stale && !(0..REGEX_REFRESH_MS_MIN).contains(&age_ms)
}

impl Draft<'_> {
    pub(in crate::coordinator) fn heartbeat(
        &mut self,
        request: &ConsumerGroupHeartbeatRequest,
        client: &Client,
        turn: &mut Turn<'_>,
        applied: &mut Applied,
    ) -> Result<ConsumerGroupHeartbeatResponse, Refusal> {
        let reported = reported(request);
        let id = match request.member_id.is_empty() {
            true => StrBytes::from_string(TopicId(turn.uuid()).to_string()),
            false => copy_text(&request.member_id),
        };
        let size_max = turn.settings.consumer.members_max;
        self.check_room(&request.member_id, request.instance_id.as_ref(), size_max)?;
        let member = self.find_or_join(request, &id, reported.as_ref(), applied)?;
        let before = without_epochs(&member.position.assigned);
        let metadata = told(&member.metadata, request, client);
        let member = self.advance(&member, metadata, reported.as_ref(), turn, applied)?;
        applied.heard_of.push(id.clone());

        let after = without_epochs(&member.position.assigned);
        let is_full = request.rebalance_timeout_ms != NOT_TOLD
            && (request.subscribed_topic_names.is_some() || request.subscribed_topic_regex.is_some())
            && reported.is_some();
        let tells_assignment = request.member_epoch == 0 || is_full || before != after;
        Ok(ConsumerGroupHeartbeatResponse::default()
            .with_member_id(Some(id))
            .with_member_epoch(member.position.epoch.0)
            .with_heartbeat_interval_ms(turn.consumer_times(&self.id).heartbeat_interval_ms)
            .with_assignment(tells_assignment.then(|| assignment(&after))))
    }

    pub(super) fn check_room(
        &self,
        member: &StrBytes,
        instance_id: Option<&StrBytes>,
        size_max: i32,
    ) -> Result<(), Refusal> {
        let is_known = (!member.is_empty() && self.member(member).is_some())
            || instance_id.is_some_and(|instance_id| self.static_member(instance_id).is_some());
        match is_known || self.len() < usize::try_from(size_max).unwrap_or(0) {
            true => Ok(()),
            false => Err(Refusal::new(
                ErrorCode::GroupMaxSizeReached,
                format!("The consumer group has reached its maximum capacity of {size_max} members."),
            )),
        }
    }

    /// The member as it is, or a new one; a static member that comes back takes the place of its former self.
    fn find_or_join(
        &mut self,
        request: &ConsumerGroupHeartbeatRequest,
        id: &StrBytes,
        reported: Option<&Partitions>,
        applied: &mut Applied,
    ) -> Result<Member, Refusal> {
        let epoch = Epoch(request.member_epoch);
        let joins = epoch == Epoch::ZERO;
        let Some(instance_id) = &request.instance_id else {
            let member = self.member(id).cloned();
            let member = match member {
                None if joins => Member::new(id.clone()),
                None => return Err(self.no_member(id)),
                Some(member) => member,
            };
            check_epoch(&member, epoch, reported)?;
            return Ok(member);
        };
        let existing = self.static_member(instance_id).cloned();
        match existing {
            None if joins => Ok(Member::new(id.clone())),
            None => Err(unknown_instance(instance_id)),
            Some(member) if !joins => {
                check_instance(&member, id, instance_id)?;
                check_epoch(&member, epoch, reported)?;
                Ok(member)
            }
            Some(former) => {
                if !former.uses_classic_protocol() && former.position.epoch != Epoch::STATIC_LEAVING {
                    return Err(Refusal::new(
                        ErrorCode::UnreleasedInstanceId,
                        format!(
                            "Static member {id} with instance id {instance_id} cannot join the group because \
                             the instance id is owned by {} member.",
                            former.id
                        ),
                    ));
                }
                Ok(self.replace(&former, id, applied))
            }
        }
    }

    /// Puts `id` into the place of `former`, with all that it had.
    pub(super) fn replace(&mut self, former: &Member, id: &StrBytes, applied: &mut Applied) -> Member {
        let mut member = Member { id: id.clone(), ..former.clone() };
        member.position.epoch = Epoch::ZERO;
        member.position.previous_epoch = Epoch::ZERO;
        let target = self.target(&former.id).clone();
        self.remove(&former.id, applied);
        let group = self.id.clone();
        self.put(ConsumerRecord::Member {
            group: group.clone(),
            member: id.clone(),
            value: Some(Box::new(member.metadata.clone())),
        });
        self.put(ConsumerRecord::Target { group: group.clone(), member: id.clone(), value: Some(target) });
        self.put(ConsumerRecord::Position {
            group,
            member: id.clone(),
            value: Some(Box::new(member.position.clone())),
        });
        // It may come back under the id it had.
        applied.removed.retain(|removed| removed != id);
        member
    }

    pub(super) fn no_member(&self, id: &StrBytes) -> Refusal {
        Refusal::new(ErrorCode::UnknownMemberId, format!("Member {id} is not a member of group {}.", self.id))
    }

    /// Takes over what the member says, and from there all that follows: the group's epoch, the target, the
    /// member's next step.
    pub(super) fn advance(
        &mut self,
        member: &Member,
        metadata: MemberMetadata,
        reported: Option<&Partitions>,
        turn: &mut Turn<'_>,
        applied: &mut Applied,
    ) -> Result<Member, Refusal> {
        self.take_metadata(member, metadata, turn, applied)?;
        self.update_target(turn);
        self.step(&member.id, reported, turn, applied)
    }

    /// Returns whether the member subscribes to something else now.
    pub(super) fn take_metadata(
        &mut self,
        member: &Member,
        metadata: MemberMetadata,
        turn: &mut Turn<'_>,
        applied: &mut Applied,
    ) -> Result<bool, Refusal> {
        let assignor_before = self.preferred_assignor().cloned();
        let old = &member.metadata;
        let names_changed = old.topic_names != metadata.topic_names;
        let (old_regex, new_regex) = (old.topic_regex.clone(), metadata.topic_regex.clone());
        if *old != metadata || self.member(&member.id).is_none() {
            let value = Some(Box::new(metadata));
            let (group, member) = (self.id.clone(), member.id.clone());
            self.put(ConsumerRecord::Member { group, member, value });
        }
        let regex_changed = self.change_regex(&old_regex, &new_regex, turn)?;
        let assignor_changed = self.preferred_assignor() != assignor_before.as_ref();
        let bump = self.target_epoch == Epoch::ZERO || names_changed || regex_changed || assignor_changed;
        if bump || self.soft.is_outdated {
            self.refresh(bump, turn, applied);
        }
        Ok(names_changed || regex_changed)
    }

    /// A member changed its expression: the new one is matched at once, the old one goes with its last reader.
    fn change_regex(&mut self, old: &StrBytes, new: &StrBytes, turn: &Turn<'_>) -> Result<bool, Refusal> {
        if old == new {
            return Ok(false);
        }
        self.drop_unread_regexes();
        if !new.is_empty() && !self.regexes().contains_key(new) {
            let refuse = |reason: String| {
                Refusal::new(
                    ErrorCode::InvalidRegularExpression,
                    format!("SubscribedTopicRegex `{new}` is not a valid regular expression: {reason}."),
                )
            };
            if self.regexes().len() >= EXPRESSIONS_MAX {
                return Err(refuse(format!("the group has {EXPRESSIONS_MAX} already")));
            }
            let compiled = regexes::compile(new).map_err(refuse)?;
            let topics = regexes::matching(&compiled, turn.topics.image()).map_err(refuse)?;
            self.put_regex(new.clone(), topics, turn);
        }
        Ok(true)
    }

    pub(super) fn drop_unread_regexes(&mut self) {
        let unread: Vec<StrBytes> = self
            .regexes()
            .keys()
            .filter(|regex| !self.regex_subscribers().contains_key(*regex))
            .cloned()
            .collect();
        for regex in unread {
            let group = self.id.clone();
            self.put(ConsumerRecord::Regex { group, regex, value: None });
        }
    }

    fn put_regex(&mut self, regex: StrBytes, topics: BTreeSet<StrBytes>, turn: &Turn<'_>) {
        let value = ResolvedRegex { topics, version: turn.topics.version(), at: turn.now.wall };
        let group = self.id.clone();
        self.put(ConsumerRecord::Regex { group, regex, value: Some(value) });
    }

    /// Matches a few of the expressions again that are due; a later heartbeat goes on with the others. When one
    /// stands for other topics now, the group's epoch is raised.
    pub(super) fn refresh_regexes(&mut self, turn: &mut Turn<'_>, applied: &mut Applied) {
        let due: Vec<(StrBytes, BTreeSet<StrBytes>)> = self
            .regexes()
            .iter()
            .filter(|(_, resolved)| is_due(resolved, turn))
            .take(REFRESHED_MAX)
            .map(|(regex, resolved)| (regex.clone(), resolved.topics.clone()))
            .collect();
        let mut changed = false;
        let mut bytes = 0;
        for (regex, before) in due {
            if bytes > RESOLVED_BYTES_MAX {
                break;
            }
            let matching = regexes::compile(&regex)
                .and_then(|compiled| regexes::matching(&compiled, turn.topics.image()));
            let topics = matching.unwrap_or_else(|reason| {
                tracing::warn!(group = %self.id, %regex, %reason, "an expression keeps the topics it had");
                before.clone()
            });
            bytes += topics.iter().map(|name| name.len()).sum::<usize>();
            changed |= topics != before;
            self.put_regex(regex, topics, turn);
        }
        if changed {
            self.refresh(true, turn, applied);
        }
        applied.matched_regexes = true;
    }

    /// Looks at the topics again and, when they or the subscriptions changed, raises the group's epoch.
    pub(super) fn refresh(&mut self, bump: bool, turn: &mut Turn<'_>, applied: &mut Applied) {
        let names = self.subscribed_topics();
        let metadata_hash = turn.topics.hash(&names);
        if bump || metadata_hash != self.metadata_hash {
            let value = Some(GroupEpoch { epoch: self.epoch.next(), metadata_hash });
            let group = self.id.clone();
            self.put(ConsumerRecord::Group { group, value });
        }
        if self.has_partition_metadata {
            let group = self.id.clone();
            self.put(ConsumerRecord::PartitionMetadata { group, is_there: false });
        }
        applied.looked_at_topics = true;
    }

    /// Makes a new target when the group's epoch is ahead of it, but not more often than
    /// `group.consumer.assignment.interval.ms` allows: so many members that join together cost one.
    pub(super) fn update_target(&mut self, turn: &Turn<'_>) {
        if self.epoch <= self.target_epoch {
            return;
        }
        let interval_ms = i64::from(turn.consumer_times(&self.id).assignment_interval_ms);
        let Timestamp(at) = self.target_at;
        // A clock that was set back does not make anybody wait.
        let age_ms = turn.now.wall.0.saturating_sub(at);
        if at != 0 && (0..interval_ms).contains(&age_ms) {
            return;
        }
        let default = turn.settings.consumer.assignors.first().copied().unwrap_or(Assignor::Uniform);
        let preferred = self.preferred_assignor().and_then(|name| Assignor::from_name(name));
        let targets = self.targets_by(preferred.unwrap_or(default), turn);
        for (member, value) in targets {
            if self.target_of(&member) != Some(&value) {
                let group = self.id.clone();
                self.put(ConsumerRecord::Target { group, member, value: Some(value) });
            }
        }
        let value = Some(TargetEpoch { epoch: self.epoch, at: turn.now.wall });
        let group = self.id.clone();
        tracing::debug!(%group, epoch = %self.epoch, members = self.len(), "a new target assignment");
        self.put(ConsumerRecord::TargetEpoch { group, value });
    }

    fn targets_by(&self, assignor: Assignor, turn: &Turn<'_>) -> Vec<(StrBytes, Partitions)> {
        // Members with the same subscription have the same list, so its place tells it.
        let mut subscriptions = HashMap::new();
        let mut counts = PartitionCounts::new();
        let candidates: Vec<Candidate<'_>> = self
            .members()
            .map(|member| {
                let metadata = &member.metadata;
                let key = (Arc::as_ptr(&metadata.topic_names).addr(), &metadata.topic_regex);
                let topics = subscriptions.entry(key).or_insert_with(|| {
                    let ids = self.topic_ids(metadata, turn.topics);
                    counts.extend(ids.iter().map(|id| (*id, turn.topics.partition_count(*id).unwrap_or(0))));
                    Rc::new(ids)
                });
                Candidate {
                    id: &member.id,
                    instance_id: metadata.instance_id.as_ref(),
                    topics: topics.clone(),
                    present: self.target(&member.id),
                }
            })
            .collect();
        let targets = assignor::assign(assignor, &candidates, &counts);
        candidates.iter().map(|candidate| candidate.id.clone()).zip(targets).collect()
    }

    /// The member's next step towards its target.
    pub(super) fn step(
        &mut self,
        id: &StrBytes,
        reported: Option<&Partitions>,
        turn: &Turn<'_>,
        applied: &mut Applied,
    ) -> Result<Member, Refusal> {
        let member = self.member(id).expect("it was put before it moves").clone();
        let subscribed = self.topic_ids(&member.metadata, turn.topics);
        let subscription_changed = member.position.assigned.keys().any(|topic| !subscribed.contains(topic));
        if member.is_reconciled_to(self.target_epoch) && !subscription_changed {
            return Ok(member);
        }
        let is_owned = |topic, partition| self.is_owned(topic, partition);
        let goal = Goal {
            epoch: self.target_epoch,
            target: self.target(id),
            subscribed: &subscribed,
            subscription_changed,
            reported,
            is_owned: &is_owned,
        };
        let position = reconcile(&member.position, &goal)?;
        if position != member.position {
            let (group, value) = (self.id.clone(), Some(Box::new(position.clone())));
            self.put(ConsumerRecord::Position { group, member: id.clone(), value });
            applied.moved = Some(id.clone());
        }
        Ok(Member { position, ..member })
    }
}

/// What the member says now; what it does not say stays.
fn told(old: &MemberMetadata, request: &ConsumerGroupHeartbeatRequest, client: &Client) -> MemberMetadata {
    let mut metadata = old.clone();
    if let Some(instance_id) = &request.instance_id {
        metadata.instance_id = Some(copy_text(instance_id));
    }
    if let Some(rack_id) = &request.rack_id {
        metadata.rack_id = Some(copy_text(rack_id));
    }
    if request.rebalance_timeout_ms != NOT_TOLD {
        metadata.rebalance_timeout_ms = request.rebalance_timeout_ms;
    }
    if let Some(assignor) = &request.server_assignor {
        metadata.assignor = Some(copy_text(assignor));
    }
    if let Some(names) = &request.subscribed_topic_names {
        metadata.topic_names = sorted_names(names.iter().map(|name| copy_text(&name.0)).collect());
    }
    if let Some(regex) = &request.subscribed_topic_regex {
        metadata.topic_regex = copy_text(regex);
    }
    metadata.client_id = copy_text(&client.id);
    metadata.client_host = copy_text(&client.host);
    metadata.classic = None;
    metadata
}

fn check_epoch(member: &Member, received: Epoch, reported: Option<&Partitions>) -> Result<(), Refusal> {
    let known = member.position.epoch;
    if received == Epoch::ZERO || received == known {
        return Ok(());
    }
    // It may not have heard of its last step.
    if received < known
        && received == member.position.previous_epoch
        && reported.is_some_and(|reported| is_within(reported, &member.position.assigned))
    {
        return Ok(());
    }
    let comparison = if received > known { "greater" } else { "smaller" };
    Err(Refusal::new(
        ErrorCode::FencedMemberEpoch,
        format!(
            "The consumer group member has a {comparison} member epoch ({received}) than the one known by the \
             group coordinator ({known}). The member must abandon all its partitions and rejoin."
        ),
    ))
}

fn is_within(reported: &Partitions, assigned: &Owned) -> bool {
    reported.iter().all(|(topic, partitions)| {
        let assigned = assigned.get(topic);
        partitions.iter().all(|partition| assigned.is_some_and(|assigned| assigned.contains_key(partition)))
    })
}

pub(super) fn check_instance(member: &Member, id: &StrBytes, instance_id: &StrBytes) -> Result<(), Refusal> {
    match member.id == *id {
        true => Ok(()),
        false => Err(Refusal::new(
            ErrorCode::FencedInstanceId,
            format!("Static member {id} with instance id {instance_id} was fenced by member {}.", member.id),
        )),
    }
}

pub(super) fn unknown_instance(instance_id: &StrBytes) -> Refusal {
    Refusal::new(ErrorCode::UnknownMemberId, format!("Instance id {instance_id} is unknown."))
}

fn assignment(partitions: &Partitions) -> Assignment {
    let topics = partitions.iter().map(|(topic, partitions)| {
        TopicPartitions::default()
            .with_topic_id(topic.0)
            .with_partitions(partitions.iter().map(|partition| partition.0).collect())
    });
    Assignment::default().with_topic_partitions(topics.collect())
}
