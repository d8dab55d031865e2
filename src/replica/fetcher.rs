//! What a follower asks one leader's broker for, and what it makes of the answers (Kafka's `AbstractFetcherThread`).
//! Pure: it is told where each replica stands, and says what is to be done with it. One request is under way at a
//! time.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use crate::base::clock::Monotonic;
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId};
use crate::partition::Position;
use crate::shard::PartitionKey;
use crate::wire::ErrorCode;
use crate::wire::fetch::{
    FetchAnswer, FetchPartition, FetchRequest, FetchTopic, FetchedSlice, ForgottenTopic, IsolationLevel,
    SessionEpoch, SessionId,
};
use crate::wire::parts::TopicRef;

/// How long a partition is let alone after an error, unless its leader changes (`replica.fetch.backoff.ms`).
const BACK_OFF: Duration = Duration::from_millis(1000);

/// The same where one of the two brokers has not heard yet of what the other one has.
const SOON: Duration = Duration::from_millis(50);

/// Of one partition, and of all together (`replica.fetch.max.bytes`, `replica.fetch.response.max.bytes`).
const PARTITION_BYTES_MAX: i32 = 1 << 20;
const RESPONSE_BYTES_MAX: i32 = 10 << 20;

/// What is to be done with a partition after an answer.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// Append, and take what the leader says of itself.
    Append { records: Bytes, high_watermark: Offset, log_start: Offset },
    /// The log parts from the leader's, whose records of epochs up to this one end there.
    Cut { epoch: LeaderEpoch, end: Offset },
    /// All of the log lies before the leader's: begin anew at its start.
    Anew(Offset),
}

/// A partition and what is to be done with it.
#[derive(Clone, PartialEq, Debug)]
pub struct Task {
    pub key: PartitionKey,
    /// The leadership that it was asked in.
    pub epoch: LeaderEpoch,
    /// The offset that was asked for.
    pub at: Offset,
    pub step: Step,
}

/// The requests to one broker.
#[derive(Debug)]
pub struct Fetcher {
    me: BrokerId,
    wait_max: Duration,
    parts: BTreeMap<PartitionKey, Part>,
    session: Session,
}

#[derive(Debug)]
struct Part {
    epoch: LeaderEpoch,
    /// `None`: not told yet, or it may not be asked for.
    position: Option<Position>,
    /// Let alone until then.
    pause: Option<Monotonic>,
    /// As the leader told it last; `None`: not in this leadership.
    leader_high_watermark: Option<Offset>,
}

/// The fetch session (KIP-227): what the leader was asked for last.
#[derive(Debug)]
struct Session {
    id: SessionId,
    epoch: SessionEpoch,
    asked: BTreeMap<PartitionKey, FetchPartition>,
}

impl Session {
    fn new() -> Self {
        Self { id: SessionId::NONE, epoch: SessionEpoch::INITIAL, asked: BTreeMap::new() }
    }
}

impl Fetcher {
    /// The leader may wait for something to send for `wait_max`.
    pub fn new(me: BrokerId, wait_max: Duration) -> Self {
        Self { me, wait_max, parts: BTreeMap::new(), session: Session::new() }
    }

    pub fn is_idle(&self) -> bool {
        self.parts.is_empty()
    }

    /// These are followed from here on, each in its leadership; what was paused in another one is not any more.
    pub fn follow(&mut self, wanted: impl IntoIterator<Item = (PartitionKey, LeaderEpoch)>) {
        let mut before = std::mem::take(&mut self.parts);
        for (key, epoch) in wanted {
            let same = before.remove(&key).filter(|part| part.epoch == epoch);
            self.parts.insert(key, same.unwrap_or_else(|| Part::new(epoch)));
        }
    }

    /// Whose position is not known: it is to be told by [`Fetcher::place`] before the next request.
    pub fn unplaced(&self, now: Monotonic) -> Vec<(PartitionKey, LeaderEpoch)> {
        let wanted = self.parts.iter().filter(|(_, part)| part.position.is_none() && !part.is_paused(now));
        wanted.map(|(key, part)| (*key, part.epoch)).collect()
    }

    /// Where a replica stands.
    pub fn place(&mut self, key: PartitionKey, position: Position) {
        if let Some(part) = self.parts.get_mut(&key) {
            part.position = Some(position);
            part.pause = None;
        }
    }

    /// The replica is somewhere else now.
    pub fn displace(&mut self, key: PartitionKey) {
        if let Some(part) = self.parts.get_mut(&key) {
            part.position = None;
        }
    }

    /// Something is wrong with the partition: it is let alone for a while.
    pub fn pause(&mut self, key: PartitionKey, now: Monotonic) {
        self.pause_for(key, BACK_OFF, now);
    }

    fn pause_for(&mut self, key: PartitionKey, time: Duration, now: Monotonic) {
        if let Some(part) = self.parts.get_mut(&key) {
            part.position = None;
            part.pause = Some(now.plus(time));
        }
    }

    /// When the first pause ends.
    pub fn next_due(&self) -> Option<Monotonic> {
        self.parts.values().filter_map(|part| part.pause).min()
    }

    /// The connection is lost, and its session with it.
    pub fn disconnected(&mut self) {
        self.session = Session::new();
    }

    /// What to ask now; `None`: nothing. `is_held` is asked whether a partition has to wait for its throttle; those that
    /// lack nothing that is committed have not (`RemoteLeaderEndPoint.shouldFollowerThrottle`).
    pub fn request(
        &mut self,
        epoch: BrokerEpoch,
        now: Monotonic,
        is_held: impl Fn(PartitionKey) -> bool,
    ) -> Option<FetchRequest> {
        let ready = self
            .parts
            .iter()
            .filter(|(key, part)| !part.is_paused(now) && (part.has_all_committed() || !is_held(**key)));
        let wanted: BTreeMap<PartitionKey, FetchPartition> =
            ready.filter_map(|(key, part)| Some((*key, part.wanted(*key)?))).collect();
        if wanted.is_empty() {
            return None;
        }
        let asked = &self.session.asked;
        let changed = wanted.iter().filter(|(key, part)| asked.get(*key) != Some(*part));
        let topics = by_topic(changed.map(|(key, part)| (key.topic, *part)));
        let gone = asked.keys().filter(|key| !wanted.contains_key(*key));
        let forgotten = by_topic(gone.map(|key| (key.topic, key.partition)));
        self.session.asked = wanted;
        Some(FetchRequest {
            cluster_id: None,
            replica_id: self.me,
            replica_epoch: epoch,
            max_wait_ms: i32::try_from(self.wait(now).as_millis()).unwrap_or(i32::MAX),
            min_bytes: 1,
            max_bytes: RESPONSE_BYTES_MAX,
            isolation_level: IsolationLevel::ReadUncommitted,
            session_id: self.session.id,
            session_epoch: self.session.epoch,
            topics: topics.into_iter().map(|(topic, partitions)| FetchTopic { topic, partitions }).collect(),
            forgotten: forgotten
                .into_iter()
                .map(|(topic, partitions)| ForgottenTopic { topic, partitions })
                .collect(),
            rack_id: StrBytes::new(),
        })
    }

    /// How long the leader may wait: a partition that is let alone for a while is asked for as soon as that is over.
    fn wait(&self, now: Monotonic) -> Duration {
        let pauses = self.parts.values().filter_map(|part| part.pause).filter(|until| *until > now);
        pauses.min().map_or(self.wait_max, |until| self.wait_max.min(until.since(now)))
    }

    /// Takes the answer to the last request: what is to be done, one partition after the other.
    pub fn answered(&mut self, answer: FetchAnswer, now: Monotonic) -> Vec<Task> {
        if let Some(code) = answer.error {
            // The session is not known there, or the broker does not take this one for what it is.
            self.disconnected();
            let is_session = matches!(
                code,
                ErrorCode::FetchSessionIdNotFound
                    | ErrorCode::InvalidFetchSessionEpoch
                    | ErrorCode::FetchSessionTopicIdError
            );
            if !is_session {
                let keys: Vec<PartitionKey> = self.parts.keys().copied().collect();
                keys.into_iter().for_each(|key| self.pause(key, now));
            }
            return Vec::new();
        }
        match answer.session_id {
            // It has no room for one: each request names all.
            SessionId::NONE => self.disconnected(),
            id => {
                self.session.id = id;
                self.session.epoch = self.session.epoch.next();
            }
        }
        answer.partitions.into_iter().filter_map(|slice| self.task(slice, now)).collect()
    }

    fn task(&mut self, slice: FetchedSlice, now: Monotonic) -> Option<Task> {
        let key = PartitionKey { topic: slice.topic, partition: slice.index };
        let part = self.parts.get_mut(&key)?;
        let position = part.position?;
        if slice.error.is_none() && slice.diverging.is_none() {
            part.leader_high_watermark = Some(slice.high_watermark);
        }
        let task = |step| Some(Task { key, epoch: part.epoch, at: position.end, step });
        match (slice.error, slice.diverging) {
            (None, Some(diverging)) => task(Step::Cut { epoch: diverging.epoch, end: diverging.end_offset }),
            (None, None) => task(Step::Append {
                records: slice.records,
                high_watermark: slice.high_watermark,
                log_start: slice.log_start,
            }),
            (Some(ErrorCode::OffsetOutOfRange), _)
                if slice.log_start > position.end
                    || (slice.log_start.0 >= 0 && position.log_start == position.end) =>
            {
                task(Step::Anew(slice.log_start))
            }
            (Some(code), _) => {
                tracing::debug!(?key, ?code, "not fetched");
                let is_behind = matches!(
                    code,
                    ErrorCode::NotLeaderOrFollower
                        | ErrorCode::UnknownLeaderEpoch
                        | ErrorCode::FencedLeaderEpoch
                        | ErrorCode::UnknownTopicId
                );
                self.pause_for(key, if is_behind { SOON } else { BACK_OFF }, now);
                None
            }
        }
    }
}

impl Part {
    fn new(epoch: LeaderEpoch) -> Self {
        Self { epoch, position: None, pause: None, leader_high_watermark: None }
    }

    fn has_all_committed(&self) -> bool {
        let known = self.position.zip(self.leader_high_watermark);
        known.is_some_and(|(position, committed)| position.end >= committed)
    }

    fn is_paused(&self, now: Monotonic) -> bool {
        self.pause.is_some_and(|until| now < until)
    }

    fn wanted(&self, key: PartitionKey) -> Option<FetchPartition> {
        let position = self.position?;
        Some(FetchPartition {
            index: key.partition,
            current_leader_epoch: self.epoch,
            fetch_offset: position.end,
            last_fetched_epoch: position.last_epoch,
            log_start_offset: position.log_start,
            max_bytes: PARTITION_BYTES_MAX,
            replica_directory_id: uuid::Uuid::nil(),
            high_watermark: Some(position.high_watermark),
        })
    }
}

/// Gathers what belongs to one topic; the keys come in order.
fn by_topic<T>(parts: impl Iterator<Item = (TopicId, T)>) -> Vec<(TopicRef, Vec<T>)> {
    let mut topics: Vec<(TopicRef, Vec<T>)> = Vec::new();
    for (topic, part) in parts {
        match topics.last_mut() {
            Some((TopicRef::Id(last), parts)) if *last == topic => parts.push(part),
            _ => topics.push((TopicRef::Id(topic), vec![part])),
        }
    }
    topics
}

#[cfg(test)]
#[path = "fetcher_tests.rs"]
mod tests;
