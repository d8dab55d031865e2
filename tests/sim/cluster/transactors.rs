//! Producers that write to several partitions in transactions, as Kafka's clients do: with transactions v2, and with
//! the protocol before it. Two of them share each transactional id and fence each other; now and then one forgets all
//! that it was about.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use kuring::base::random::Random;
use kuring::base::{Offset, PartitionIndex, TopicPartition};
use kuring::coordinator::transactions::{Producer, Request, Response, TransactionVersion};
use kuring::log::Appended;
use kuring::shard::PartitionKey;
use kuring::wire::ErrorCode;
use kuring::wire::record::{BatchBuilder, Codec, Compression};

use super::checker::{Checker, Value};
use super::ledger::TransactionId;
use super::messages::{Attempt, Message, OfTransaction, Place, Token};
use super::world::{MS, TOPIC, wall};

const ANSWER_TIME_US: u64 = 1_500_000;
const AGAIN_AFTER_US: u64 = 40_000;
/// In which a transaction has to come to its end.
const TIMEOUT_MS: i32 = 3_000;

/// What a client believes of the cluster: who leads each partition, and where its coordinator is.
pub struct Beliefs {
    pub leaders: BTreeMap<PartitionKey, usize>,
    pub coordinator: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It has no producer id and epoch, or not any more.
    Fenced,
    Idle,
    Writing,
    Ending {
        commit: bool,
    },
}

struct Batch {
    number: u64,
    sequence: i32,
    values: Vec<Value>,
    records: Bytes,
}

/// What a transaction writes to one partition, one batch at a time.
struct Part {
    key: PartitionKey,
    batches: VecDeque<Batch>,
    /// The first one was sent and is waited for until then.
    until: u64,
}

pub struct Transactor {
    number: usize,
    id: StrBytes,
    version: TransactionVersion,
    keys: Vec<PartitionKey>,
    producer: Option<Producer>,
    phase: Phase,
    sequences: BTreeMap<PartitionKey, i32>,
    parts: Vec<Part>,
    /// The partitions were added, where the client does that.
    is_added: bool,
    commits: bool,
    transactions: u64,
    written: u64,
    attempt: Attempt,
    until: u64,
    again_at: u64,
    /// Something was written that its producer does not know the fate of.
    is_uncertain: bool,
    refusal: Option<ErrorCode>,
    pub stops: bool,
}

impl Transactor {
    pub fn new(number: usize, id: StrBytes, version: TransactionVersion, keys: Vec<PartitionKey>) -> Self {
        Self {
            number,
            id,
            version,
            keys,
            producer: None,
            phase: Phase::Fenced,
            sequences: BTreeMap::new(),
            parts: Vec::new(),
            is_added: false,
            commits: false,
            transactions: 0,
            written: 0,
            attempt: Attempt(0),
            until: 0,
            again_at: 0,
            is_uncertain: false,
            refusal: None,
            stops: false,
        }
    }

    pub fn id(&self) -> &StrBytes {
        &self.id
    }

    /// It has ended what it was about.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Idle
    }

    pub fn obstacle(&self) -> String {
        format!("{} of {}: {:?} as {:?}, {:?}", self.number, self.id, self.phase, self.producer, self.refusal)
    }

    fn transaction(&self) -> TransactionId {
        (self.number, self.transactions)
    }

    pub fn turn(
        &mut self,
        beliefs: &Beliefs,
        (time, random): (u64, &mut Random),
        checker: &mut Checker,
        out: &mut Vec<(Place, Message)>,
    ) {
        if self.again_at > time {
            return;
        }
        if !self.stops && self.phase != Phase::Fenced && random.below(400) == 0 {
            // Its process ends, and another one begins.
            self.be_fenced(time, random);
            return;
        }
        match (self.phase, self.producer) {
            (Phase::Idle, Some(producer)) => {
                if !self.stops && random.below(4) == 0 {
                    self.begin(producer, time, random, checker);
                }
            }
            (Phase::Writing, Some(producer)) => self.write(producer, beliefs, time, out),
            (Phase::Ending { commit }, Some(producer)) => {
                let (id, version) = (self.id.clone(), self.version);
                checker.ledger.asked(self.transaction(), commit);
                self.ask(Request::End { id, producer, commit, version }, beliefs, time, out);
            }
            _ => {
                let request = Request::Init { id: self.id.clone(), timeout_ms: TIMEOUT_MS, expected: None };
                self.ask(request, beliefs, time, out);
            }
        }
        if self.phase == Phase::Writing && random.below(150) == 0 {
            self.give_up();
        }
    }

    fn ask(&mut self, request: Request, beliefs: &Beliefs, time: u64, out: &mut Vec<(Place, Message)>) {
        let Some(coordinator) = beliefs.coordinator.filter(|_| self.until <= time) else { return };
        self.attempt.0 += 1;
        self.until = time + ANSWER_TIME_US;
        out.push((Place::Node(coordinator), Message::Coordinate { attempt: self.attempt, request }));
    }

    fn begin(&mut self, producer: Producer, time: u64, random: &mut Random, checker: &mut Checker) {
        self.transactions += 1;
        self.phase = Phase::Writing;
        self.commits = random.below(4) > 0;
        self.is_added = self.version.bumps_epoch();
        self.is_uncertain = false;
        let count = 1 + random.below(self.keys.len() as u64) as usize;
        let first = random.below(self.keys.len() as u64) as usize;
        let mut written = Vec::new();
        self.parts.clear();
        for at in first..first + count {
            let key = self.keys[at % self.keys.len()];
            let mut batches = VecDeque::new();
            for _ in 0..1 + random.below(3) {
                let batch = self.make(producer, key, time, random);
                written.extend(batch.values.iter().map(|value| (key, *value)));
                batches.push_back(batch);
            }
            self.parts.push(Part { key, batches, until: 0 });
        }
        checker.ledger.begun(self.transaction(), written);
    }

    fn make(&mut self, producer: Producer, key: PartitionKey, time: u64, random: &mut Random) -> Batch {
        let sequence = self.sequences.entry(key).or_default();
        let compression = Compression::of([Codec::None, Codec::Lz4][random.below(2) as usize]);
        let mut builder = BatchBuilder::new(Offset::ZERO, compression)
            .with_producer(producer.id, producer.epoch, *sequence)
            .with_transactional();
        let mut values = Vec::new();
        for _ in 0..1 + random.below(3) {
            let value = (self.number as u64, self.written);
            let text =
                format!("{} {} {:0width$}", value.0, value.1, 0, width = 1 + random.below(60) as usize);
            builder.append(wall(time), None, Some(text.as_bytes()), &[]);
            values.push(value);
            self.written += 1;
        }
        let records = builder.finish().expect("a codec that works");
        let batch = Batch { number: values[0].1, sequence: *sequence, records, values };
        *sequence += batch.values.len() as i32;
        batch
    }

    fn write(&mut self, producer: Producer, beliefs: &Beliefs, time: u64, out: &mut Vec<(Place, Message)>) {
        if !self.is_added {
            let named = self.parts.iter().map(|part| TopicPartition::new(TOPIC, part.key.partition));
            let (id, partitions, version) = (self.id.clone(), named.collect::<BTreeSet<_>>(), self.version);
            return self.ask(
                Request::AddPartitions { id, producer, partitions, version },
                beliefs,
                time,
                out,
            );
        }
        for part in &mut self.parts {
            let Some(batch) = part.batches.front().filter(|_| part.until <= time) else { continue };
            let Some(leader) = beliefs.leaders.get(&part.key) else { continue };
            part.until = time + ANSWER_TIME_US;
            let (number, sequence) = (batch.number, batch.sequence);
            let token = Token { client: self.number, number, sequence, key: part.key };
            let transaction = Some(OfTransaction { id: self.id.clone(), version: self.version });
            let records = batch.records.clone();
            out.push((Place::Node(*leader), Message::Produce { token, records, transaction }));
        }
        if self.parts.iter().all(|part| part.batches.is_empty()) {
            self.phase = Phase::Ending { commit: self.commits };
            self.until = 0;
        }
    }

    /// What is not written by now never is.
    fn give_up(&mut self) {
        self.is_uncertain = true;
        self.attempt.0 += 1;
        self.parts.clear();
        self.phase = Phase::Ending { commit: false };
        self.until = 0;
    }

    /// It knows nothing of its transaction any more.
    fn be_fenced(&mut self, time: u64, random: &mut Random) {
        self.phase = Phase::Fenced;
        self.producer = None;
        self.parts.clear();
        self.attempt.0 += 1;
        self.until = 0;
        self.again_at = time + random.below(1_200 * MS);
    }

    pub fn answered(
        &mut self,
        token: Token,
        result: Result<Appended, ErrorCode>,
        (time, random): (u64, &mut Random),
        checker: &mut Checker,
    ) {
        let Some(part) = self.parts.iter_mut().find(|part| part.key == token.key) else { return };
        let Some(batch) = part.batches.front().filter(|batch| batch.number == token.number) else {
            return;
        };
        match result {
            Ok(appended) => {
                checker.acknowledged(token.key, appended.first, &batch.values);
                part.batches.pop_front();
                part.until = 0;
            }
            Err(
                ErrorCode::NotEnoughReplicas
                | ErrorCode::NotLeaderOrFollower
                | ErrorCode::UnknownTopicOrPartition
                | ErrorCode::ConcurrentTransactions
                | ErrorCode::RequestTimedOut,
            ) => part.until = time + AGAIN_AFTER_US,
            Err(ErrorCode::InvalidProducerEpoch | ErrorCode::ProducerFenced) => {
                self.refusal = result.err();
                self.be_fenced(time, random);
            }
            Err(_) => {
                self.refusal = result.err();
                self.give_up();
            }
        }
    }

    pub fn coordinated(
        &mut self,
        attempt: Attempt,
        response: Response,
        (time, random): (u64, &mut Random),
        checker: &mut Checker,
    ) {
        if attempt != self.attempt {
            return;
        }
        self.until = 0;
        let refused = match (self.phase, response) {
            (Phase::Fenced, Response::Init(Ok(producer))) => {
                self.sequences.clear();
                self.producer = Some(producer);
                self.phase = Phase::Idle;
                None
            }
            (Phase::Writing, Response::AddPartitions(Ok(()))) => {
                self.is_added = true;
                None
            }
            (Phase::Ending { commit }, Response::End(Ok(producer))) => {
                checker.ledger.ended(self.transaction(), commit, &mut checker.failure);
                self.phase = Phase::Idle;
                if self.version.bumps_epoch() {
                    self.producer = Some(producer);
                    self.sequences.clear();
                } else if self.is_uncertain {
                    // Another epoch, so that nothing of it can come later.
                    self.be_fenced(time, random);
                    self.again_at = time;
                }
                None
            }
            (
                _,
                Response::Init(Err(code)) | Response::AddPartitions(Err(code)) | Response::End(Err(code)),
            ) => Some(code),
            (phase, response) => {
                checker.fail(format!("a producer that is {phase:?} is told {response:?}"));
                None
            }
        };
        let Some(code) = refused else { return };
        self.refusal = Some(code);
        self.again_at = time + AGAIN_AFTER_US;
        match code {
            ErrorCode::ConcurrentTransactions
            | ErrorCode::NotCoordinator
            | ErrorCode::CoordinatorLoadInProgress
            | ErrorCode::CoordinatorNotAvailable
            | ErrorCode::NotEnoughReplicas
            | ErrorCode::RequestTimedOut => {}
            _ => self.be_fenced(time, random),
        }
    }
}

/// The partitions that a transactor may write to.
pub fn keys(topic: kuring::base::TopicId, count: i32) -> Vec<PartitionKey> {
    (0..count).map(|index| PartitionKey { topic, partition: PartitionIndex(index) }).collect()
}
