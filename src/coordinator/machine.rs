//! The coordinator itself: finds the partition and the group of a request, keeps the appends in order and
//! applies them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::protocol::StrBytes;

use super::consumer::Topics;
use super::gate::Waiting;
use super::group::Group;
use super::interface::{Client, Content, Effect, KeyValue, ReplyToken, Request, Response, Ticket};
use super::partition::{Partition, Pending, tombstones};
use super::partitioner::partition_for;
use super::records::Record;
use super::room::Room;
use super::timers::{TimerKey, Timers};
use super::turn::{Then, Turn, Write, append_error};
use crate::base::clock::{Monotonic, Now};
use crate::base::random::Random;
use crate::base::{PartitionIndex, ProducerId, TopicName};
use crate::config::{ConsumerGroupTimes, GroupSettings};
use crate::metadata::{ConfigResource, Image};
use crate::wire::ErrorCode;

/// Above this a write of offsets is appended in parts: well below the smallest batch limit in use.
const APPEND_BYTES_MAX: usize = 512 << 10;

/// How long a timer is put off whose group is being written.
const TIMER_RETRY: Duration = Duration::from_millis(20);

/// All groups and offsets of the partitions of `__consumer_offsets` that this node leads.
pub struct Coordinator {
    pub(super) settings: GroupSettings,
    partition_count: i32,
    pub(super) partitions: BTreeMap<PartitionIndex, Partition>,
    /// Where an append under way belongs.
    tickets: HashMap<Ticket, PartitionIndex>,
    next_ticket: u64,
    timers: Timers,
    topics: Topics,
    /// Of the groups that have configs of their own.
    times: HashMap<StrBytes, ConsumerGroupTimes>,
    /// Groups whose writes are done while requests wait for that.
    ready: VecDeque<(PartitionIndex, StrBytes)>,
    random: Random,
    effects: Vec<Effect>,
    pub(super) room: Room,
}

impl Coordinator {
    /// `partition_count` is how many partitions `__consumer_offsets` has or will have.
    pub fn new(settings: GroupSettings, partition_count: i32, random: Random, now: Now) -> Self {
        let mut timers = Timers::new(now.monotonic);
        timers.set(TimerKey::Sweep, now.monotonic.plus(sweep_interval(&settings)));
        Self {
            settings,
            partition_count,
            partitions: BTreeMap::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
            timers,
            topics: Topics::default(),
            times: HashMap::new(),
            ready: VecDeque::new(),
            random,
            effects: Vec::new(),
            room: Room::default(),
        }
    }

    /// The topic turned out to have another number of partitions than its setting says.
    pub fn set_partition_count(&mut self, partition_count: i32) {
        assert!(self.partitions.is_empty(), "groups never move between partitions");
        self.partition_count = partition_count;
    }

    pub fn partition_of(&self, group_id: &str) -> PartitionIndex {
        partition_for(group_id, self.partition_count)
    }

    /// This node now leads the partition and reads its log: [`Coordinator::replay`] each record, then
    /// [`Coordinator::loaded`]. Until then its groups are answered COORDINATOR_LOAD_IN_PROGRESS.
    pub fn load(&mut self, partition: PartitionIndex, now: Now) {
        self.unload(partition, now);
        self.partitions.insert(partition, Partition::loading());
    }

    /// Applies one record of the log of a partition that is being loaded. What is not understood is
    /// skipped, with a line in the log.
    pub fn replay(&mut self, partition: PartitionIndex, key: &[u8], value: Option<&[u8]>) {
        if let Some(partition) = self.partitions.get_mut(&partition).filter(|it| it.is_loading) {
            partition.replay(key, value);
        }
    }

    /// [`Coordinator::replay`] of a record that belongs to a transaction.
    pub fn replay_in_transaction(
        &mut self,
        partition: PartitionIndex,
        producer: ProducerId,
        key: &[u8],
        value: Option<&[u8]>,
    ) {
        if let Some(partition) = self.partitions.get_mut(&partition).filter(|it| it.is_loading) {
            partition.replay_in_transaction(producer, key, value);
        }
    }

    /// [`Coordinator::replay`] of the end of a transaction.
    pub fn replay_marker(&mut self, partition: PartitionIndex, producer: ProducerId, commit: bool) {
        if let Some(partition) = self.partitions.get_mut(&partition).filter(|it| it.is_loading) {
            partition.end_transaction(producer, commit);
        }
    }

    /// The whole log is read: the partition serves from now on.
    pub fn loaded(&mut self, index: PartitionIndex, now: Now) {
        let size_max = self.settings.members_max as usize;
        self.room.forget();
        let Some((partition, mut turn)) = self.parts(index, now) else { return };
        partition.is_loading = false;
        let mut writes = Vec::new();
        for group in partition.groups.values_mut() {
            for id in group.member_ids() {
                group.heard_of(&id, &mut turn);
            }
            if group.len() > size_max {
                writes.extend(group.prepare_rebalance("more members than group.max.size", &mut turn));
            }
        }
        for group in partition.consumers.values_mut() {
            group.start_timers(&mut turn);
        }
        for group in partition.shares.values_mut() {
            group.start_timers(&mut turn);
        }
        let groups = partition.groups.len() + partition.consumers.len() + partition.shares.len();
        let skipped = partition.skipped;
        tracing::debug!(partition = %index, groups, skipped, "loaded a partition of __consumer_offsets");
        for topic in std::mem::take(&mut partition.deleted_topics) {
            writes.push(Write::state(tombstones(partition.offsets_of_topic(&topic))));
        }
        self.submit_all(index, writes, now);
        self.resume(now);
    }

    /// This node leads the partition no more: all that waits is sent to look for the coordinator.
    pub fn unload(&mut self, index: PartitionIndex, now: Now) {
        let Some((partition, mut turn)) = self.parts(index, now) else { return };
        for group in partition.groups.values_mut() {
            group.abandon(ErrorCode::NotCoordinator, &mut turn);
        }
        for group in partition.consumers.values() {
            group.cancel_timers(&mut turn);
        }
        for group in partition.shares.values() {
            group.cancel_timers(&mut turn);
        }
        for waiting in partition.gates.drain() {
            let Waiting { request, token, .. } = *waiting;
            turn.reply(token, request.failed(ErrorCode::NotCoordinator));
        }
        for pending in std::mem::take(&mut partition.pending) {
            spoil(pending.write, ErrorCode::NotCoordinator, &mut turn);
        }
        self.partitions.remove(&index);
        self.tickets.retain(|_, partition| *partition != index);
    }

    /// Whether the partition serves or is being loaded.
    pub fn owns(&self, partition: PartitionIndex) -> bool {
        self.partitions.contains_key(&partition)
    }

    /// Topics with offsets in a loaded partition: those that are no more were deleted while this node was
    /// down, and belong into [`Coordinator::topics_deleted`].
    pub fn committed_topics(&self, partition: PartitionIndex) -> Vec<TopicName> {
        let topics = self.partitions.get(&partition).map(|partition| partition.offsets.topics());
        topics.into_iter().flatten().map(|topic| TopicName::new(&topic)).collect()
    }

    /// Serves a request. The reply comes as an [`Effect`], now or later, exactly once.
    pub fn handle(&mut self, request: Request, client: &Client, token: ReplyToken, now: Now) {
        if let Some(response) = self.serve(request, client, token, now) {
            self.effects.push(Effect::Reply { token, response });
        }
        self.resume(now);
    }

    /// The cluster changed: to be told of each image, in order.
    pub fn cluster_changed(&mut self, image: Arc<Image>) {
        let news = self.topics.update(image);
        for group in news.groups {
            let id = StrBytes::from_string(group.clone());
            let overrides = self.topics.image().overrides(&ConfigResource::Group(group));
            // A time that is another one now counts from each member's next heartbeat on.
            match overrides.is_empty() {
                true => self.times.remove(&id),
                false => self.times.insert(id, self.settings.consumer.times_of(overrides)),
            };
        }
        if news.topics.is_empty() {
            return;
        }
        for partition in self.partitions.values_mut() {
            partition.consumers.values_mut().for_each(|group| group.topics_changed(&news.topics));
            partition.shares.values_mut().for_each(|group| group.topics_changed(&news.topics));
        }
    }

    /// Serves who waited for writes that are done.
    fn resume(&mut self, now: Now) {
        while let Some((index, group)) = self.ready.pop_front() {
            while let Some(partition) = self.partitions.get_mut(&index)
                && let Some(waiting) = partition.gates.next(&group)
            {
                let Waiting { request, client, token } = *waiting;
                if let Some(response) = self.serve_now(index, request, &client, token, now) {
                    self.effects.push(Effect::Reply { token, response });
                }
            }
        }
    }

    /// An append succeeded (it is committed) or failed. Appends are applied in their order, whatever order
    /// the answers come in.
    pub fn appended(&mut self, ticket: Ticket, result: Result<(), ErrorCode>, now: Now) {
        // Unknown when the partition was unloaded in the meantime: all that waited has been answered.
        let Some(index) = self.tickets.remove(&ticket) else { return };
        let Some(partition) = self.partitions.get_mut(&index) else { return };
        if let Some(pending) = partition.pending.iter_mut().find(|pending| pending.ticket == ticket) {
            pending.outcome = Some(result.map_err(append_error));
        }
        self.settle(index, now);
        self.resume(now);
    }

    /// Deletes the offsets of topics that were deleted.
    pub fn topics_deleted(&mut self, topics: &[TopicName], now: Now) {
        let indexes: Vec<PartitionIndex> = self.partitions.keys().copied().collect();
        for index in indexes {
            let Some(partition) = self.partitions.get_mut(&index) else { continue };
            let names = topics.iter().map(|topic| StrBytes::from_string(topic.to_string()));
            if partition.is_loading {
                partition.deleted_topics.extend(names);
                continue;
            }
            let records: Vec<_> =
                names.flat_map(|name| tombstones(partition.offsets_of_topic(&name))).collect();
            self.submit_all(index, vec![Write::state(records)], now);
        }
        self.resume(now);
    }

    /// When [`Coordinator::advance`] is to be called at the latest.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        self.timers.next_deadline()
    }

    /// Does what is due at `now`.
    pub fn advance(&mut self, now: Now) {
        while let Some(key) = self.timers.pop_due(now.monotonic) {
            if self.put_off(&key, now) {
                continue;
            }
            match &key {
                TimerKey::Sweep => self.sweep(now),
                TimerKey::Revoke { group, .. }
                | TimerKey::MemberJoin { group, .. }
                | TimerKey::MemberSync { group, .. } => {
                    self.consumer_timer(self.partition_of(group), &key, now);
                }
                TimerKey::Session { group, .. } if self.is_share(group) => {
                    self.share_timer(self.partition_of(group), &key, now);
                }
                TimerKey::Session { group, .. } if self.is_consumer(group) => {
                    self.consumer_timer(self.partition_of(group), &key, now);
                }
                TimerKey::Session { group, member } => {
                    self.with_group(group, now, |group, turn| group.session_timer_fired(member, turn));
                }
                TimerKey::Join { group } => self.with_group(group, now, Group::join_phase_expired),
                TimerKey::Sync { group } => self.with_group(group, now, Group::sync_phase_expired),
            }
        }
        self.resume(now);
    }

    /// Puts a timer off while its group is being written: what it would do is not known until then.
    fn put_off(&mut self, key: &TimerKey, now: Now) -> bool {
        let Some(group) = key.group() else { return false };
        let index = self.partition_of(group);
        let Some(partition) = self.partitions.get(&index) else { return false };
        let changes_by_records =
            partition.consumers.contains_key(group) || partition.shares.contains_key(group);
        let is_written = match changes_by_records {
            true => partition.gates.is_shut(group),
            false => partition.gates.is_exclusive(group),
        };
        if is_written {
            self.timers.set(key.clone(), now.monotonic.plus(TIMER_RETRY));
        }
        is_written
    }

    fn is_consumer(&self, group: &StrBytes) -> bool {
        let partition = self.partitions.get(&self.partition_of(group));
        partition.is_some_and(|partition| partition.consumers.contains_key(group))
    }

    fn is_share(&self, group: &StrBytes) -> bool {
        let partition = self.partitions.get(&self.partition_of(group));
        partition.is_some_and(|partition| partition.shares.contains_key(group))
    }

    /// Takes what is to be done, in order.
    pub fn drain_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    #[cfg(test)]
    pub(super) fn timers_armed(&self) -> usize {
        self.timers.len()
    }

    /// The partition and what a turn on it needs.
    pub(super) fn parts(&mut self, index: PartitionIndex, now: Now) -> Option<(&mut Partition, Turn<'_>)> {
        let turn = Turn {
            settings: &self.settings,
            timers: &mut self.timers,
            topics: &mut self.topics,
            times: &self.times,
            effects: &mut self.effects,
            random: &mut self.random,
            now,
        };
        Some((self.partitions.get_mut(&index)?, turn))
    }

    fn with_group(
        &mut self,
        id: &StrBytes,
        now: Now,
        act: impl FnOnce(&mut Group, &mut Turn<'_>) -> Option<Write>,
    ) {
        let index = self.partition_of(id);
        let Some((partition, mut turn)) = self.parts(index, now) else { return };
        let Some(group) = partition.groups.get_mut(id) else { return };
        let write = act(group, &mut turn);
        self.submit_all(index, write, now);
    }

    fn sweep(&mut self, now: Now) {
        self.timers.set(TimerKey::Sweep, now.monotonic.plus(sweep_interval(&self.settings)));
        let retention_ms = self.settings.offsets_retention_ms;
        let indexes: Vec<PartitionIndex> = self.partitions.keys().copied().collect();
        for index in indexes {
            let Some(partition) = self.partitions.get_mut(&index).filter(|it| !it.is_loading) else {
                continue;
            };
            let writes = partition.sweep(retention_ms, now.wall);
            self.submit_all(index, writes, now);
        }
    }

    pub(super) fn submit_all(
        &mut self,
        index: PartitionIndex,
        writes: impl IntoIterator<Item = Write>,
        now: Now,
    ) {
        for write in writes {
            self.submit(index, write);
        }
        // A write without records is done when those before it are.
        self.settle(index, now);
    }

    /// Puts a write in the queue and asks for its append, in parts if it is long.
    fn submit(&mut self, index: PartitionIndex, write: Write) {
        let Write { records, replay, reply, then, gate } = write;
        self.count_written(&records);
        let mut part = Vec::new();
        let mut encoded = Vec::new();
        let mut bytes = 0;
        for record in records {
            let key_value = record.encode();
            let size = key_value.key.len() + key_value.value.as_ref().map_or(0, |value| value.len());
            // What a transaction or a consumer group writes is one batch: a part of it would stay if another
            // failed. Too large a batch is refused as a whole.
            let is_offset = matches!(record, Record::Offset { .. });
            let may_part = match &then {
                Then::InTransaction { .. } => false,
                Then::Consumer(_) => is_offset,
                Then::Share(_) => false,
                _ => true,
            };
            // The offsets of a group that is deleted go before it.
            let follows_offsets = !is_offset
                && matches!(then, Then::Consumer(_))
                && part.last().is_some_and(|last| matches!(last, Record::Offset { .. }));
            if follows_offsets || (may_part && bytes > 0 && bytes + size > APPEND_BYTES_MAX) {
                let records = std::mem::take(&mut part);
                let write = Write { records, replay, reply: None, then: Then::Part, gate: None };
                self.enqueue(index, write, std::mem::take(&mut encoded));
                bytes = 0;
            }
            bytes += size;
            part.push(record);
            encoded.push(key_value);
        }
        self.enqueue(index, Write { records: part, replay, reply, then, gate }, encoded);
    }

    fn enqueue(&mut self, index: PartitionIndex, write: Write, encoded: Vec<KeyValue>) {
        let partition = self.partitions.get_mut(&index).expect("only a partition that serves is written");
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let content = match &write.then {
            Then::EndTransaction(marker) => Some(Content::Marker(*marker)),
            _ if encoded.is_empty() => None,
            Then::InTransaction { producer, claim } => {
                Some(Content::InTransaction { records: encoded, producer: *producer, claim: *claim })
            }
            _ => Some(Content::Records(encoded)),
        };
        let outcome = match content {
            None => Some(Ok(())),
            Some(content) => {
                self.tickets.insert(ticket, index);
                self.effects.push(Effect::Append { partition: index, content, ticket });
                None
            }
        };
        if let Some(gated) = &write.gate {
            partition.gates.enter(gated);
        }
        partition.pending.push_back(Pending { ticket, write, outcome, spoiled: None });
    }

    /// Completes the writes at the head of the queue that have their outcome.
    fn settle(&mut self, index: PartitionIndex, now: Now) {
        loop {
            let Some((partition, mut turn)) = self.parts(index, now) else { return };
            if partition.pending.front().is_none_or(|pending| pending.outcome.is_none()) {
                return;
            }
            let Some(Pending { write, outcome: Some(result), spoiled, .. }) = partition.pending.pop_front()
            else {
                return;
            };
            let gated = write.gate.clone().filter(|gated| partition.gates.leave(gated));
            let next = complete(partition, write, result, spoiled, &mut turn);
            if let Some(gated) = gated {
                self.ready.push_back((index, gated.group));
            }
            if let Some(write) = next {
                self.submit(index, write);
            }
        }
    }
}

fn sweep_interval(settings: &GroupSettings) -> Duration {
    Duration::from_millis(settings.offsets_retention_check_interval_ms.max(1) as u64)
}

/// Applies a write or undoes what stood on it, and answers. May lead to another write.
fn complete(
    partition: &mut Partition,
    write: Write,
    result: Result<(), ErrorCode>,
    spoiled: Option<ErrorCode>,
    turn: &mut Turn<'_>,
) -> Option<Write> {
    let Write { records, replay, reply, then, .. } = write;
    // A group that becomes one of the other protocol goes on; one that is deleted does not.
    let farewell = match then {
        Then::Consumer(_) => ErrorCode::RebalanceInProgress,
        _ => ErrorCode::UnknownMemberId,
    };
    if let (Then::InTransaction { producer, .. }, Ok(())) = (&then, result) {
        for record in records {
            partition.hold(producer.id, record);
        }
    } else if let (Then::EndTransaction(marker), Ok(())) = (&then, result) {
        partition.end_transaction(marker.producer.id, marker.commit);
    } else if replay && result.is_ok() {
        for record in records {
            if let Some(mut group) = partition.apply(record) {
                group.abandon(farewell, turn);
            }
        }
    }
    if let Some((token, response)) = reply {
        let response = match result.err().or(spoiled) {
            Some(error) => response.spoiled(error),
            None => response,
        };
        turn.reply(token, response);
    }
    match (then, result) {
        (Then::Nothing | Then::InTransaction { .. } | Then::EndTransaction(_), Ok(())) => None,
        (Then::Nothing | Then::InTransaction { .. } | Then::EndTransaction(_), Err(error)) => {
            tracing::warn!(%error, "an append to __consumer_offsets failed");
            None
        }
        (Then::Part, result) => {
            if let (Some(next), Some(error)) = (partition.pending.front_mut(), result.err().or(spoiled)) {
                next.spoiled = Some(error);
            }
            None
        }
        (Then::Created { .. } | Then::Buried { .. }, Ok(())) => None,
        (Then::Created { group }, Err(error)) => {
            tracing::warn!(%group, %error, "a new group could not be written");
            if let Some(mut group) = partition.groups.remove(&group) {
                group.abandon(error, turn);
            }
            None
        }
        (Then::Buried { group }, Err(error)) => {
            tracing::warn!(%group, %error, "a group could not be deleted");
            if let Some(group) = partition.groups.get_mut(&group) {
                group.revive();
            }
            None
        }
        (Then::Assigned { group, generation, leader, assignments }, result) => {
            let group = partition.groups.get_mut(&group)?;
            group.assigned(generation, &leader, assignments, result, turn)
        }
        (Then::Consumer(applied), result) => applied.complete(partition, result, turn),
        (Then::Share(applied), result) => {
            applied.complete(partition, result, turn);
            None
        }
        (Then::Renamed(renamed), result) => {
            let group = partition.groups.get_mut(&renamed.group)?;
            group.renamed(*renamed, result, turn);
            None
        }
        (Then::Fetch { token, group }, _) => {
            turn.reply(token, Response::FetchOffsets(partition.fetch_stable(&group)));
            None
        }
    }
}

/// Answers what waits on a write that nobody will hear of again.
fn spoil(write: Write, error: ErrorCode, turn: &mut Turn<'_>) {
    if let Some((token, response)) = write.reply {
        turn.reply(token, response.spoiled(error));
    }
    if let Then::Fetch { token, group } = write.then {
        turn.reply(token, Request::FetchOffsets { group, require_stable: true }.failed(error));
    }
}
