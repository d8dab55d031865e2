//! A coordinator, its log in memory, the partitions that get markers, and a clock that the test moves.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use kafka_protocol::protocol::StrBytes;

use crate::base::clock::{Monotonic, Now, Timestamp};
use crate::base::{PartitionIndex, ProducerEpoch, ProducerId, TopicPartition};
use crate::config::TransactionSettings;
use crate::coordinator::transactions::{
    Coordinator, Effect, Marker, Producer, Record, Request, Response, Transaction, TransactionVersion,
};
use crate::coordinator::{KeyValue, ReplyToken, Ticket};
use crate::wire::ErrorCode;

pub(super) const ID: &str = "t";
pub(super) const TIMEOUT_MS: i32 = 60_000;
/// The wall clock when the monotonic one is 0.
pub(super) const WALL_START_MS: i64 = 1_700_000_000_000;
const PARTITIONS: i32 = 2;

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub(super) fn settings() -> TransactionSettings {
    TransactionSettings {
        timeout_ms_max: 900_000,
        id_expiration_ms: 7 * 24 * 60 * 60 * 1000,
        abort_interval: Duration::from_secs(10),
        expiry_interval: Duration::from_secs(3600),
        topic_partitions: PARTITIONS,
        topic_replication_factor: 1,
        topic_segment_bytes: 100 << 20,
        topic_in_sync_replicas_min: 1,
        verifies_partitions: true,
        add_retry_pause: Duration::from_millis(20),
        add_retry_max: Duration::from_millis(100),
        bytes_max: 256 << 20,
    }
}

pub(super) fn partitions(names: &[&str]) -> BTreeSet<TopicPartition> {
    names.iter().map(|name| TopicPartition::new(*name, PartitionIndex(0))).collect()
}

pub(super) fn producer(id: i64, epoch: i16) -> Producer {
    Producer { id: ProducerId(id), epoch: ProducerEpoch(epoch) }
}

pub(super) struct Harness {
    pub(super) coordinator: Coordinator,
    settings: TransactionSettings,
    pub(super) version: TransactionVersion,
    pub(super) now_ms: u64,
    next_token: u64,
    pub(super) next_id: i64,
    /// Kept by the controller: survives restarts.
    pub(super) replies: HashMap<ReplyToken, Response>,
    pub(super) holds_appends: bool,
    pub(super) holds_markers: bool,
    pub(super) holds_ids: bool,
    pub(super) appends: VecDeque<(PartitionIndex, KeyValue, Ticket)>,
    pub(super) rounds: VecDeque<(Marker, BTreeSet<TopicPartition>, Ticket)>,
    /// Who waits for a producer id.
    pub(super) ids: VecDeque<Ticket>,
    pub(super) logs: BTreeMap<PartitionIndex, Vec<KeyValue>>,
    /// What each partition was told, in order.
    pub(super) written: BTreeMap<TopicPartition, Vec<Marker>>,
    epoch: i32,
}

impl Harness {
    pub(super) fn new(version: TransactionVersion) -> Self {
        Self::with(settings(), version)
    }

    pub(super) fn with(settings: TransactionSettings, version: TransactionVersion) -> Self {
        let mut harness = Self {
            coordinator: fresh(&settings, version, now_at(0)),
            settings,
            version,
            now_ms: 0,
            next_token: 0,
            next_id: 1000,
            replies: HashMap::new(),
            holds_appends: false,
            holds_markers: false,
            holds_ids: false,
            appends: VecDeque::new(),
            rounds: VecDeque::new(),
            ids: VecDeque::new(),
            logs: BTreeMap::new(),
            written: BTreeMap::new(),
            epoch: 0,
        };
        harness.load_all();
        harness
    }

    pub(super) fn now(&self) -> Now {
        now_at(self.now_ms)
    }

    fn load_all(&mut self) {
        self.epoch += 1;
        for index in (0..PARTITIONS).map(PartitionIndex) {
            self.coordinator.load(index, self.epoch);
            for KeyValue { key, value } in self.logs.entry(index).or_default().iter() {
                self.coordinator.replay(index, key, value.as_deref());
            }
            let now = self.now();
            self.coordinator.loaded(index, now);
        }
        self.run_effects();
    }

    /// The process is killed and starts again with what was written. What was held is lost.
    pub(super) fn restart(&mut self) {
        self.appends.clear();
        self.rounds.clear();
        self.ids.clear();
        self.coordinator = fresh(&self.settings, self.version, self.now());
        self.load_all();
    }

    pub(super) fn run_effects(&mut self) {
        loop {
            let effects = self.coordinator.drain_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Reply { token, response } => {
                        let old = self.replies.insert(token, response);
                        assert_eq!(old, None, "a request is answered once");
                    }
                    Effect::Append { partition, record, ticket } => {
                        self.appends.push_back((partition, record, ticket));
                    }
                    Effect::NewProducerId { ticket } => self.ids.push_back(ticket),
                    Effect::WriteMarkers { marker, partitions, ticket } => {
                        assert!(!partitions.is_empty(), "a round has partitions");
                        self.rounds.push_back((marker, partitions, ticket));
                    }
                }
            }
            while !self.holds_ids
                && let Some(ticket) = self.ids.pop_front()
            {
                self.give_id(ticket);
            }
            while !self.holds_appends && !self.appends.is_empty() {
                self.write_one();
            }
            while !self.holds_markers && !self.rounds.is_empty() {
                self.mark_one();
            }
        }
    }

    fn give_id(&mut self, ticket: Ticket) {
        let id = ProducerId(self.next_id);
        self.next_id += 1;
        let now = self.now();
        self.coordinator.producer_id(ticket, Ok(id), now);
    }

    /// Gives a producer id to whoever has waited longest for one.
    pub(super) fn give_one_id(&mut self) {
        let ticket = self.ids.pop_front().expect("somebody waits for an id");
        self.give_id(ticket);
        self.run_effects();
    }

    /// There are no producer ids.
    pub(super) fn refuse_ids(&mut self, error: ErrorCode) {
        let now = self.now();
        for ticket in std::mem::take(&mut self.ids) {
            self.coordinator.producer_id(ticket, Err(error), now);
        }
        self.run_effects();
    }

    /// Writes and acknowledges the oldest held append.
    pub(super) fn write_one(&mut self) {
        let (partition, record, ticket) = self.appends.pop_front().expect("an append is held");
        self.logs.entry(partition).or_default().push(record);
        let now = self.now();
        self.coordinator.appended(ticket, Ok(()), now);
    }

    /// Fails the oldest held append.
    pub(super) fn fail_one(&mut self, error: ErrorCode) {
        let (_, _, ticket) = self.appends.pop_front().expect("an append is held");
        let now = self.now();
        self.coordinator.appended(ticket, Err(error), now);
        self.run_effects();
    }

    /// Writes the oldest held round of markers.
    pub(super) fn mark_one(&mut self) {
        let (marker, partitions, ticket) = self.rounds.pop_front().expect("a round is held");
        let results = partitions.into_iter().map(|partition| {
            self.written.entry(partition.clone()).or_default().push(marker);
            (partition, Ok(()))
        });
        let results = results.collect();
        let now = self.now();
        self.coordinator.markers_written(ticket, results, now);
    }

    /// Fails the oldest held round on the named partitions; the others get their marker.
    pub(super) fn fail_markers(&mut self, failing: &[&str], error: ErrorCode) {
        let (marker, partitions, ticket) = self.rounds.pop_front().expect("a round is held");
        let mut results = Vec::new();
        for partition in partitions {
            if failing.contains(&&*partition.topic) {
                results.push((partition, Err(error)));
            } else {
                self.written.entry(partition.clone()).or_default().push(marker);
                results.push((partition, Ok(())));
            }
        }
        let now = self.now();
        self.coordinator.markers_written(ticket, results, now);
        self.run_effects();
    }

    /// Lets time pass, stopping at every deadline on the way.
    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while let Some(deadline) = self.coordinator.next_deadline().filter(|at| at.as_millis() <= end) {
            self.now_ms = self.now_ms.max(deadline.as_millis());
            let now = self.now();
            self.coordinator.advance(now);
            self.run_effects();
        }
        self.now_ms = end;
    }

    pub(super) fn send(&mut self, request: Request) -> ReplyToken {
        let token = ReplyToken(self.next_token);
        self.next_token += 1;
        let now = self.now();
        self.coordinator.handle(request, token, now);
        self.run_effects();
        token
    }

    pub(super) fn call(&mut self, request: Request) -> Response {
        let token = self.send(request);
        self.replies.remove(&token).expect("it is answered at once")
    }

    pub(super) fn init(&mut self, expected: Option<Producer>) -> Result<Producer, ErrorCode> {
        match self.call(Request::Init { id: text(ID), timeout_ms: TIMEOUT_MS, expected }) {
            Response::Init(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn add(&mut self, producer: Producer, names: &[&str]) -> Result<(), ErrorCode> {
        match self.call(self.adding(producer, names)) {
            Response::AddPartitions(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn adding(&self, producer: Producer, names: &[&str]) -> Request {
        let partitions = partitions(names);
        Request::AddPartitions { id: text(ID), producer, partitions, version: self.version }
    }

    pub(super) fn ending(&self, producer: Producer, commit: bool) -> Request {
        Request::End { id: text(ID), producer, commit, version: self.version }
    }

    pub(super) fn end(&mut self, producer: Producer, commit: bool) -> Result<Producer, ErrorCode> {
        match self.call(self.ending(producer, commit)) {
            Response::End(result) => result,
            other => panic!("{other:?}"),
        }
    }

    /// The state as DescribeTransactions has it, and who the producer is.
    pub(super) fn state(&mut self) -> (String, Producer) {
        match self.call(Request::Describe(text(ID))) {
            Response::Describe(state) => (
                match state.error_code {
                    0 => state.transaction_state.to_string(),
                    code => format!("error {code}"),
                },
                producer(state.producer_id.0, state.producer_epoch),
            ),
            other => panic!("{other:?}"),
        }
    }

    /// The last record of the id; `None` is a tombstone.
    pub(super) fn last_record(&self) -> Option<Transaction> {
        let partition = self.coordinator.partition_of(ID);
        let KeyValue { key, value } = self.logs[&partition].last().expect("something was written");
        let record = Record::decode(key, value.as_deref()).expect("what was written");
        assert_eq!(record.id, text(ID));
        record.value
    }

    pub(super) fn records(&self) -> usize {
        self.logs.values().map(Vec::len).sum()
    }
}

/// A coordinator that finds an empty transaction of producer 5 in its log.
pub(super) fn at_epoch(epoch: i16, version: TransactionVersion) -> Harness {
    let mut h = Harness::new(version);
    let mut transaction = Transaction::created(ProducerId(5), TIMEOUT_MS, h.now().wall);
    transaction.epoch = ProducerEpoch(epoch);
    let record = Record { id: text(ID), value: Some(transaction) };
    let partition = h.coordinator.partition_of(ID);
    h.logs.entry(partition).or_default().push(record.encode(version));
    h.restart();
    h
}

fn fresh(settings: &TransactionSettings, version: TransactionVersion, now: Now) -> Coordinator {
    let mut coordinator = Coordinator::new(settings.clone(), PARTITIONS, now);
    coordinator.set_version(version);
    coordinator
}

fn now_at(ms: u64) -> Now {
    Now { monotonic: Monotonic::from_millis(ms), wall: Timestamp(WALL_START_MS + ms as i64) }
}
