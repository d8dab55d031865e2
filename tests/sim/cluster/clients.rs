//! Producers that are idempotent, wait for all and send again, several batches at a time; consumers that read what is
//! committed. They know of a partition's leader what some broker has last told.

use std::collections::VecDeque;

use bytes::Bytes;
use kuring::base::random::Random;
use kuring::base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};
use kuring::log::Appended;
use kuring::shard::PartitionKey;
use kuring::wire::ErrorCode;
use kuring::wire::fetch::{FetchPartition, FetchedSlice};
use kuring::wire::record::{BatchBuilder, Batches, Codec, Compression};

use super::checker::{Checker, Value};
use super::messages::{Attempt, Message, Place, Token};
use super::world::wall;

/// Batches from the first that waits for an answer on: a partition knows the last five of a producer again.
const IN_FLIGHT_MAX: u64 = 3;
const ANSWER_TIME_US: u64 = 1_500_000;
const AGAIN_AFTER_US: u64 = 30_000;
/// The bytes of a consumer's answer are bound by its leader.
const CONSUME_BYTES: i32 = 800;

/// What a client believes of its partition: the leader's node and epoch.
pub type Leader = Option<(usize, LeaderEpoch)>;

pub enum Client {
    Producer(Producer),
    Consumer(Consumer),
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
    /// The partition has a batch of it.
    is_known: bool,
    written: u64,
    batches: VecDeque<Sent>,
    again_at: u64,
    refusal: Option<ErrorCode>,
    pub stops: bool,
}

pub struct Consumer {
    number: usize,
    pub key: PartitionKey,
    position: Offset,
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
            let token = Token { client: self.number, sequence: batch.sequence, key: self.key };
            out.push((Place::Node(leader), Message::Produce { token, records: batch.records.clone() }));
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
        let place = self.batches.iter().position(|batch| batch.sequence == token.sequence);
        let Some(place) = place else { return };
        match result {
            Ok(appended) => {
                self.is_known = true;
                if let Some(batch) = self.batches.remove(place) {
                    checker.acknowledged(self.key, appended.first, &batch.values);
                }
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
    pub fn new(number: usize, key: PartitionKey) -> Self {
        Self { number, key, position: Offset::ZERO, attempt: Attempt(0), until: 0 }
    }

    pub fn turn(&mut self, leader: Leader, time: u64, random: &mut Random, out: &mut Vec<(Place, Message)>) {
        if self.until > time {
            return;
        }
        let Some((leader, epoch)) = leader else { return };
        self.attempt.0 += 1;
        self.until = time + ANSWER_TIME_US;
        // Old clients do not say what they know.
        let known = if random.below(2) == 0 { epoch } else { LeaderEpoch::NONE };
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
        out.push((Place::Node(leader), Message::Consume { attempt, key, part }));
    }

    pub fn answered(&mut self, attempt: Attempt, slice: FetchedSlice, checker: &mut Checker) {
        if attempt != self.attempt {
            return;
        }
        self.until = 0;
        match slice.error {
            // Whoever leads now, or what is left after an unclean election.
            Some(ErrorCode::OffsetOutOfRange) => self.position = Offset::ZERO,
            Some(_) => {}
            None => match values(&slice.records) {
                Ok(found) => {
                    let found = found.into_iter().filter(|(offset, _)| *offset >= self.position.0);
                    let found: Vec<(i64, Value)> = found.collect();
                    if let Some((last, _)) = found.last() {
                        let at = (self.position.0..).zip(&found).find(|(at, (offset, _))| at != offset);
                        if let Some((at, (offset, _))) = at {
                            checker.fail(format!("a consumer finds {offset} where {at} should come"));
                        }
                        self.position = Offset(last + 1);
                    }
                    let how = format!("read by consumer {}", self.number);
                    checker.committed(self.key, found.into_iter(), &how);
                }
                Err(error) => checker.fail(format!("a consumer cannot read: {error}")),
            },
        }
    }
}

/// The records in `bytes`; a batch that is cut off at the end is left out.
pub fn values(bytes: &[u8]) -> Result<Vec<(i64, Value)>, String> {
    let mut found = Vec::new();
    let mut scratch = Vec::new();
    for batch in Batches::new(bytes) {
        let Ok(batch) = batch else { break };
        batch.check_crc().map_err(|error| error.to_string())?;
        for record in batch.records(&mut scratch, 1 << 20).map_err(|error| error.to_string())? {
            let record = record.map_err(|error| error.to_string())?;
            let text =
                std::str::from_utf8(record.value.unwrap_or_default()).map_err(|error| error.to_string())?;
            let mut numbers = text.split(' ').filter_map(|number| number.parse().ok());
            let value = numbers.next().zip(numbers.next()).ok_or("a record that nobody wrote")?;
            found.push((record.offset.0, value));
        }
    }
    Ok(found)
}
