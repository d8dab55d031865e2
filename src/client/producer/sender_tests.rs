use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::base::BrokerId;
use crate::base::clock::{Monotonic, Now};
use crate::base::random::Random;
use crate::client::ClusterConfig;
use crate::wire::ErrorCode;
use crate::wire::record::BatchView;

struct Bench {
    sender: Sender,
    now: Monotonic,
}

const LEADER: BrokerId = BrokerId(1);

impl Bench {
    fn new(change: impl FnOnce(&mut ProducerConfig)) -> Self {
        let mut config = ProducerConfig::new(ClusterConfig::new("h:1"));
        config.batch_bytes = 200;
        change(&mut config);
        let mut sender = Sender::new(config, Random::seeded(1));
        sender.set_producer(ProducerId(9), ProducerEpoch(0));
        Self { sender, now: Monotonic::from_millis(1000) }
    }

    /// A record that fills a batch.
    fn add(&mut self, partition: i32) {
        self.add_sized(partition, 200);
    }

    fn add_sized(&mut self, partition: i32, bytes: usize) {
        let record = ProducerRecord::new("t", Some(Bytes::from(vec![0; bytes])));
        let now = Now { monotonic: self.now, wall: Timestamp(5) };
        self.sender.append(name(partition), &record, now);
    }

    fn drain(&mut self) -> Vec<Request> {
        self.sender.drain(self.now, |_| Some(LEADER))
    }

    /// Drains until nothing comes.
    fn drain_all(&mut self) -> Vec<Request> {
        let mut all = Vec::new();
        loop {
            let requests = self.drain();
            if requests.is_empty() {
                return all;
            }
            all.extend(requests);
        }
    }

    fn answer(&mut self, request: &Request, outcome: Result<i64, ErrorCode>) -> Option<Delivery> {
        self.sender.request_done(request.broker);
        let (name, id, _) = &request.batches[0];
        let outcome =
            outcome.map(|o| Some(Offset(o))).map_err(|code| ClientError::broker("produce", code, None));
        self.sender.answered(name, *id, outcome, self.now)
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus(Duration::from_millis(ms));
    }
}

fn name(partition: i32) -> TopicPartition {
    TopicPartition::new("t", PartitionIndex(partition))
}

/// Epoch and first sequence of a request's first batch.
fn sequence(request: &Request) -> (i16, i32) {
    let view = BatchView::parse(&request.batches[0].2).expect("a batch");
    (view.head().producer_epoch().0, view.head().base_sequence())
}

#[test]
fn a_batch_waits_for_linger_unless_it_is_full() {
    let mut bench = Bench::new(|config| config.linger = Duration::from_millis(50));
    bench.add_sized(0, 10);
    assert!(bench.drain().is_empty());
    assert_eq!(bench.sender.due_in(bench.now), Duration::from_millis(50));
    bench.add(1);
    assert_eq!(bench.drain()[0].batches[0].0, name(1));
    bench.pass(50);
    assert_eq!(bench.drain()[0].batches[0].0, name(0));
}

#[test]
fn a_flush_does_not_wait_for_linger() {
    let mut bench = Bench::new(|config| config.linger = Duration::from_secs(50));
    bench.add_sized(0, 10);
    let flushed = bench.sender.last_batch();
    bench.sender.set_hurry(true);
    let requests = bench.drain();
    assert!(bench.sender.has_older_than(flushed));
    assert!(bench.answer(&requests[0], Ok(0)).is_some());
    assert!(!bench.sender.has_older_than(flushed));
}

#[test]
fn records_gather_in_one_batch() {
    let mut bench = Bench::new(|config| config.batch_bytes = 16384);
    for _ in 0..10 {
        bench.add_sized(0, 10);
    }
    bench.pass(5);
    let requests = bench.drain_all();
    let view = BatchView::parse(&requests[0].batches[0].2).expect("a batch");
    assert_eq!((requests.len(), view.head().count()), (1, 10));
}

#[test]
fn partitions_of_one_broker_share_a_request_up_to_its_limit() {
    let mut bench = Bench::new(|config| config.request_bytes_max = 700);
    for partition in 0..4 {
        bench.add(partition);
    }
    let sizes: Vec<usize> = bench.drain_all().iter().map(|request| request.batches.len()).collect();
    assert_eq!(sizes, [2, 2]);
}

#[test]
fn at_most_five_requests_are_in_flight() {
    let mut bench = Bench::new(|_| ());
    for _ in 0..7 {
        bench.add(0);
    }
    let requests = bench.drain_all();
    assert_eq!(requests.iter().map(sequence).collect::<Vec<_>>(), [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]);
    bench.answer(&requests[0], Ok(0));
    assert_eq!(bench.drain_all().len(), 1);
}

#[test]
fn what_was_lost_is_sent_again_in_order_with_its_sequence() {
    let mut bench = Bench::new(|_| ());
    for _ in 0..3 {
        bench.add(0);
    }
    let requests = bench.drain_all();
    for request in &requests {
        assert!(bench.answer(request, Err(ErrorCode::NetworkException)).is_none());
    }
    bench.add(0);
    assert!(bench.drain_all().is_empty(), "backing off");
    bench.pass(2000);
    for expected in 0..4 {
        let again = bench.drain_all();
        assert_eq!(again.iter().map(sequence).collect::<Vec<_>>(), [(0, expected)], "one at a time");
        assert!(bench.answer(&again[0], Ok(i64::from(expected))).is_some());
    }
    assert!(bench.sender.is_empty());
}

#[test]
fn batches_behind_a_failed_one_follow_it() {
    let mut bench = Bench::new(|_| ());
    for _ in 0..3 {
        bench.add(0);
    }
    let requests = bench.drain_all();
    assert!(bench.answer(&requests[0], Err(ErrorCode::NotLeaderOrFollower)).is_none());
    assert!(bench.answer(&requests[1], Err(ErrorCode::OutOfOrderSequenceNumber)).is_none());
    assert!(bench.answer(&requests[2], Err(ErrorCode::OutOfOrderSequenceNumber)).is_none());
    for expected in 0..3 {
        bench.pass(2000);
        let again = bench.drain_all();
        assert_eq!(again.iter().map(sequence).collect::<Vec<_>>(), [(0, expected)]);
        bench.answer(&again[0], Ok(0));
    }
}

#[test]
fn a_refused_batch_leaves_no_hole_but_a_new_epoch() {
    let mut bench = Bench::new(|_| ());
    for _ in 0..3 {
        bench.add(0);
    }
    let requests = bench.drain_all();
    let failed = bench.answer(&requests[0], Err(ErrorCode::MessageTooLarge)).expect("it is over");
    assert!(failed.outcome.is_err());
    assert!(bench.answer(&requests[1], Err(ErrorCode::OutOfOrderSequenceNumber)).is_none());
    bench.pass(2000);
    assert!(bench.drain_all().is_empty(), "one is still in flight");
    assert!(bench.answer(&requests[2], Err(ErrorCode::OutOfOrderSequenceNumber)).is_none());
    for expected in 0..2 {
        bench.pass(2000);
        let again = bench.drain_all();
        assert_eq!(again.iter().map(sequence).collect::<Vec<_>>(), [(1, expected)]);
        assert!(bench.answer(&again[0], Ok(0)).is_some());
    }
}

#[test]
fn a_forgotten_producer_starts_again_under_a_new_epoch() {
    let mut bench = Bench::new(|_| ());
    bench.add(0);
    let requests = bench.drain_all();
    bench.answer(&requests[0], Ok(0));
    bench.add(0);
    let requests = bench.drain_all();
    assert_eq!(sequence(&requests[0]), (0, 1));
    assert!(bench.answer(&requests[0], Err(ErrorCode::UnknownProducerId)).is_none());
    bench.pass(2000);
    assert_eq!(sequence(&bench.drain_all()[0]), (1, 0));
}

#[test]
fn a_duplicate_is_a_success() {
    let mut bench = Bench::new(|_| ());
    bench.add(0);
    let requests = bench.drain_all();
    let delivery = bench.answer(&requests[0], Err(ErrorCode::DuplicateSequenceNumber)).expect("done");
    assert!(matches!(delivery.outcome, Ok(None)));
}

#[test]
fn delivery_ends_by_its_time_out() {
    let mut bench = Bench::new(|config| config.delivery_timeout = Duration::from_secs(2));
    bench.add(0);
    bench.pass(1999);
    assert!(bench.sender.expire(bench.now).is_empty());
    bench.pass(1);
    let delivery = bench.sender.expire(bench.now).pop().expect("expired");
    assert!(matches!(delivery.outcome, Err(ClientError::TimedOut { .. })));
    assert!(bench.sender.is_empty());
}

#[test]
fn memory_is_given_back() {
    let mut bench = Bench::new(|config| config.buffer_bytes_max = 600);
    let record = ProducerRecord::new("t", Some(Bytes::from(vec![0; 200])));
    while bench.sender.has_room(&record) {
        bench.add(0);
    }
    let requests = bench.drain_all();
    assert!(!bench.sender.has_room(&record), "until it is answered");
    for request in &requests {
        bench.answer(request, Ok(0));
    }
    assert!(bench.sender.has_room(&record));
}

#[test]
fn without_idempotence_no_sequence_is_sent() {
    let mut bench = Bench::new(|config| config.acks = Acks::Leader);
    bench.add(0);
    assert_eq!(sequence(&bench.drain_all()[0]), (-1, -1));
}

#[test]
fn nothing_leaves_before_the_producer_id_is_known() {
    let config = ProducerConfig::new(ClusterConfig::new("h:1"));
    let mut sender = Sender::new(config, Random::seeded(1));
    assert!(!sender.wants_producer());
    let now = Now { monotonic: Monotonic::ZERO, wall: Timestamp(0) };
    sender.append(name(0), &ProducerRecord::new("t", None), now);
    assert!(sender.wants_producer());
    sender.set_hurry(true);
    assert!(sender.drain(now.monotonic, |_| Some(LEADER)).is_empty());
    sender.set_producer(ProducerId(1), ProducerEpoch(0));
    assert_eq!(sender.drain(now.monotonic, |_| Some(LEADER)).len(), 1);
}
