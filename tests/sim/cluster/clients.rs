//! Producers that are idempotent, wait for all and send again, several batches at a time; consumers that read what is
//! committed. They know of a partition's leader what some broker has last told.

use std::collections::VecDeque;

use bytes::Bytes;
use kuring::base::random::Random;
use kuring::base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};
use kuring::log::{AbortedTransaction, Appended};
use kuring::shard::PartitionKey;
use kuring::wire::ErrorCode;
use kuring::wire::fetch::{FetchPartition, FetchedSlice};
use kuring::wire::record::{BatchBuilder, Codec, Compression};

use super::checker::{Checker, History, Value};
use super::entries::{committed, entries};
use super::messages::{Attempt, Consumed, Message, Place, Reading, Token};
use super::transactors::Transactor;
use super::world::wall;

/// Batches from the first that waits for an answer on: a partition knows the last five of a producer again.
const IN_FLIGHT_MAX: u64 = 3;
const ANSWER_TIME_US: u64 = 1_500_000;
const AGAIN_AFTER_US: u64 = 30_000;
/// The bytes of a consumer's answer are bound by its leader.
const CONSUME_BYTES: i32 = 800;

/// How long a consumer goes where a leader has sent it.
const LEASE_US: u64 = 2_000_000;

/// What a client believes of its partition: the leader's node and epoch.
pub type Leader = Option<(usize, LeaderEpoch)>;

pub enum Client {
    Producer(Producer),
    Consumer(Consumer),
    Transactor(Transactor),
}

struct Sent {
    number: u64,
    sequence: i32,
    values: Vec<Value>,
    records: Bytes,
    /// It has been sent and is waited for until then.
    until: u64,
}

pub struct Producer {
    number: usize,
    pub key: PartitionKey,
    id: Option<ProducerId>,
    asked_for_id: u64,
    sequence: i32,
    made: u64,
    /// The last of the sequences that are.
    acknowledged: i32,
    /// The partition has a batch of it.
    is_known: bool,
    written: u64,
    batches: VecDeque<Sent>,
    again_at: u64,
    refusal: Option<ErrorCode>,
    pub stops: bool,
}

/// How a consumer reads.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// It reads committed transactions alone.
    pub is_committed: bool,
    /// It had rather read from the replica on this node.
    pub near: Option<usize>,
    /// It says which leader it means, and believes nobody who knows less; old ones do not.
    pub knows_epochs: bool,
}

pub struct Consumer {
    number: usize,
    pub key: PartitionKey,
    habits: Habits,
    position: Offset,
    /// As it was told last.
    end: Offset,
    /// The newest leadership that it has heard of.
    epoch: LeaderEpoch,
    /// The node that the leader has sent it to, for a while.
    preferred: Option<(usize, u64)>,
    attempt: Attempt,
    until: u64,
}

impl Producer {
    pub fn new(number: usize, key: PartitionKey) -> Self {
        Self {
            number,
            key,
            id: None,
            asked_for_id: 0,
            sequence: 0,
            made: 0,
            acknowledged: -1,
            is_known: false,
            written: 0,
            batches: VecDeque::new(),
            again_at: 0,
            refusal: None,
            stops: false,
        }
    }

    /// Everything was acknowledged.
    pub fn is_done(&self) -> bool {
        self.batches.is_empty()
    }

    /// Nobody knows any more what it wrote: all of that was deleted before it was told, and whoever leads now began its log
    /// behind it. Kafka's producers begin a new epoch then.
    pub fn is_forgotten(&self, history: &History) -> bool {
        self.refusal == Some(ErrorCode::OutOfOrderSequenceNumber) && history.is_cut_off()
    }

    /// What it waits for.
    pub fn obstacle(&self) -> String {
        let sequences: Vec<i32> = self.batches.iter().map(|batch| batch.sequence).collect();
        format!("producer {}: {sequences:?}, {:?} refused with {:?}", self.number, self.id, self.refusal)
    }

    pub fn turn(
        &mut self,
        (leader, any): (Leader, usize),
        time: u64,
        random: &mut Random,
        out: &mut Vec<(Place, Message)>,
    ) {
        let Some(id) = self.id else {
            if self.asked_for_id + ANSWER_TIME_US / 3 <= time && !self.stops {
                self.asked_for_id = time;
                out.push((Place::Node(any), Message::InitProducer));
            }
            return;
        };
        let first = self.batches.front().map_or(self.made, |batch| batch.number);
        // A partition that knows nothing of a producer takes whatever comes first.
        let in_flight_max = if self.is_known { IN_FLIGHT_MAX } else { 1 };
        if self.made - first < in_flight_max && !self.stops && random.below(2) == 0 {
            let batch = self.make(id, time, random);
            self.batches.push_back(batch);
        }
        if self.batches.iter().any(|batch| batch.until > 0 && batch.until <= time) {
            self.send_again(time);
        }
        let Some((leader, _)) = leader.filter(|_| self.again_at <= time) else { return };
        for batch in self.batches.iter_mut().filter(|batch| batch.until == 0) {
            batch.until = time + ANSWER_TIME_US;
            let (number, sequence) = (batch.number, batch.sequence);
            let token = Token { client: self.number, number, sequence, key: self.key };
            out.push((
                Place::Node(leader),
                Message::Produce { token, records: batch.records.clone(), transaction: None },
            ));
        }
    }

    fn make(&mut self, id: ProducerId, time: u64, random: &mut Random) -> Sent {
        let mut builder = BatchBuilder::new(Offset::ZERO, Compression::of(Codec::None)).with_producer(
            id,
            ProducerEpoch(0),
            self.sequence,
        );
        let sequence = self.sequence;
        let mut values = Vec::new();
        for _ in 0..1 + random.below(3) {
            let value = (self.number as u64, self.written);
            let text =
                format!("{} {} {:0width$}", value.0, value.1, 0, width = 1 + random.below(100) as usize);
            builder.append(wall(time), None, Some(text.as_bytes()), &[]);
            values.push(value);
            self.written += 1;
        }
        self.sequence += values.len() as i32;
        let records = builder.finish().expect("a batch without compression");
        self.made += 1;
        Sent { number: self.made - 1, sequence, values, records, until: 0 }
    }

    /// All that was not answered goes again, in order.
    fn send_again(&mut self, time: u64) {
        self.batches.iter_mut().for_each(|batch| batch.until = 0);
        self.again_at = time + AGAIN_AFTER_US;
    }

    pub fn answered(
        &mut self,
        token: Token,
        result: Result<Appended, ErrorCode>,
        time: u64,
        checker: &mut Checker,
    ) {
        let place = self.batches.iter().position(|batch| batch.number == token.number);
        let Some(place) = place else { return };
        match result {
            Ok(appended) => {
                self.is_known = true;
                self.acknowledged = self.acknowledged.max(token.sequence);
                if let Some(batch) = self.batches.remove(place) {
                    checker.acknowledged(self.key, appended.first, &batch.values);
                }
            }
            // It was written, for one behind it was; its answer was lost, and then whoever leads now began its log behind
            // it: what was deleted nobody knows again.
            Err(ErrorCode::OutOfOrderSequenceNumber)
                if token.sequence < self.acknowledged && checker.history(self.key).is_cut_off() =>
            {
                self.batches.remove(place);
            }
            Err(code) => {
                self.refusal = Some(code);
                self.send_again(time);
            }
        }
    }

    pub fn identified(&mut self, id: ProducerId) {
        self.id.get_or_insert(id);
    }
}

impl Consumer {
    pub fn new(number: usize, key: PartitionKey, habits: Habits) -> Self {
        Self {
            number,
            key,
            habits,
            position: Offset::ZERO,
            end: Offset::ZERO,
            epoch: LeaderEpoch::NONE,
            preferred: None,
            attempt: Attempt(0),
            until: 0,
        }
    }

    pub fn turn(&mut self, leader: Leader, time: u64, random: &mut Random, out: &mut Vec<(Place, Message)>) {
        if self.until > time {
            return;
        }
        if self.preferred.is_some_and(|(_, until)| until <= time) {
            self.preferred = None;
        }
        // Whoever knows of epochs believes nobody who is behind.
        let is_older = |epoch: LeaderEpoch| self.habits.knows_epochs && epoch < self.epoch;
        let Some((leader, epoch)) = leader.filter(|(_, epoch)| !is_older(*epoch)) else { return };
        self.epoch = epoch;
        self.attempt.0 += 1;
        self.until = time + ANSWER_TIME_US;
        if self.habits.knows_epochs && !self.habits.is_committed && random.below(20) == 0 {
            let (attempt, key) = (self.attempt, self.key);
            return out.push((Place::Node(leader), Message::AskEnd { attempt, key, epoch }));
        }
        let known = match self.habits.knows_epochs {
            true => epoch,
            false if random.below(2) == 0 => epoch,
            false => LeaderEpoch::NONE,
        };
        let part = FetchPartition {
            index: self.key.partition,
            current_leader_epoch: known,
            fetch_offset: self.position,
            last_fetched_epoch: LeaderEpoch::NONE,
            log_start_offset: Offset(-1),
            max_bytes: CONSUME_BYTES,
            replica_directory_id: uuid::Uuid::nil(),
            high_watermark: None,
        };
        let (attempt, key) = (self.attempt, self.key);
        let reading = Reading { is_committed: self.habits.is_committed, near: self.habits.near };
        let to = self.preferred.map_or(leader, |(node, _)| node);
        out.push((Place::Node(to), Message::Consume { attempt, key, part, reading }));
    }

    /// The end never lies before what it has read, or was told before, by whoever led earlier.
    pub fn end_is(&mut self, attempt: Attempt, result: Result<Offset, ErrorCode>, checker: &mut Checker) {
        if attempt != self.attempt {
            return;
        }
        self.until = 0;
        let Ok(end) = result else { return };
        let before = self.position.max(self.end);
        if end < before && !checker.history(self.key).is_unclean {
            let number = self.number;
            checker.fail(format!("consumer {number} is told that the end is {end}, it was at {before}"));
        }
        self.end = end;
    }

    pub fn answered(&mut self, attempt: Attempt, consumed: Consumed, time: u64, checker: &mut Checker) {
        if attempt != self.attempt {
            return;
        }
        self.until = 0;
        let Consumed { slice, aborted, elsewhere } = consumed;
        match slice.error {
            // Whoever it was sent to has another part now, or has not yet what it wants: the leader knows.
            Some(ErrorCode::OffsetOutOfRange) if self.preferred.is_some() => self.preferred = None,
            // What was deleted, or is left after an unclean election.
            Some(ErrorCode::OffsetOutOfRange) => {
                let is_there = self.position >= slice.log_start;
                if self.habits.knows_epochs && is_there && !checker.history(self.key).is_unclean {
                    checker.fail(format!(
                        "consumer {} is told that {} is out of range, in a log from {} on",
                        self.number, self.position, slice.log_start
                    ));
                }
                self.position = slice.log_start.max(Offset::ZERO);
            }
            Some(_) => self.preferred = None,
            None => {
                if let Some(node) = elsewhere {
                    self.preferred = Some((node, time + LEASE_US));
                }
                if let Err(error) = self.read(&slice, &aborted, checker) {
                    checker.fail(format!("a consumer cannot read: {error}"));
                }
            }
        }
    }

    fn read(
        &mut self,
        slice: &FetchedSlice,
        aborted: &[AbortedTransaction],
        checker: &mut Checker,
    ) -> Result<(), String> {
        let found = entries(&slice.records)?;
        let is_new = |offset: i64| offset >= self.position.0;
        let fresh = found.iter().filter(|entry| is_new(entry.offset));
        let hole = (self.position.0..).zip(fresh.clone()).find(|(at, entry)| *at != entry.offset);
        if let Some((at, entry)) = hole {
            checker.fail(format!("a consumer finds {} where {at} should come", entry.offset));
        }
        let seen = match self.habits.is_committed {
            true => committed(&found, aborted),
            false => found.iter().filter_map(|entry| Some((entry.offset, entry.value()?))).collect(),
        };
        let seen: Vec<(i64, Value)> = seen.into_iter().filter(|(offset, _)| is_new(*offset)).collect();
        if let Some(last) = found.last().filter(|last| last.offset >= self.position.0) {
            self.position = Offset(last.offset + 1);
        }
        if self.habits.is_committed {
            checker.read_committed(self.key, seen.iter().map(|(_, value)| *value));
        }
        let how = format!("read by consumer {}", self.number);
        checker.committed(self.key, seen.into_iter(), &how);
        Ok(())
    }
}
