//! A producer's connection goes over to the shard of its partitions: the client notices nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use kafka_protocol::messages::ProduceRequest;

use crate::admin::metric;
use crate::harness::Broker;
use crate::harness::batch::{Batch, Record, read_all};
use crate::harness::client::Client;
use crate::harness::raw::{FETCH, PRODUCE, Raw, fetch, produce};

const PARTITIONS: usize = 8;
/// As producers without idempotence have.
const IN_FLIGHT: usize = 5;
const VALUE_BYTES: usize = 64 << 10;
/// 6 MB/s: little enough for one core to do all of it, also beside other tests.
const PAUSE: Duration = Duration::from_millis(10);
/// Longer than a connection and the owner are watched before it moves.
const ROUND: Duration = Duration::from_secs(5);
/// For some rounds on a busy machine.
const ROUNDS_TIME_MAX: Duration = Duration::from_secs(120);

fn moved(broker: &Broker) -> u64 {
    metric(broker, "kuring_connections_moved_total")
}

/// A connection that keeps requests in flight and checks that they are answered in order.
struct Producer {
    raw: Raw,
    sent: VecDeque<(i32, usize)>,
    next: [i64; PARTITIONS],
    acknowledged: [i64; PARTITIONS],
}

impl Producer {
    fn send(&mut self, partition: usize) {
        let number = self.next[partition];
        self.next[partition] += 1;
        let mut value = number.to_be_bytes().to_vec();
        value.resize(VALUE_BYTES, b'v');
        let mut batch = Batch::now(&["v"]);
        batch.records = vec![Record { value: Some(value), ..Record::default() }];
        let request = produce("moving", partition as i32, 1, batch.encode());
        self.sent.push_back((self.raw.send(PRODUCE, &request), partition));
        while self.sent.len() >= IN_FLIGHT {
            self.take_answer();
        }
    }

    fn take_answer(&mut self) {
        let (correlation, partition) = self.sent.pop_front().expect("a request is in flight");
        let (answered, response) = self.raw.receive::<ProduceRequest>(PRODUCE);
        let appended = &response.responses[0].partition_responses[0];
        assert_eq!((answered, appended.error_code), (correlation, 0));
        assert_eq!(appended.base_offset, self.acknowledged[partition], "batches keep their order");
        self.acknowledged[partition] += 1;
    }
}

#[test]
fn a_producers_connection_moves_to_its_partitions_and_nothing_is_lost_or_reordered() {
    if Broker::is_kafka() || crate::harness::broker::off_owner() {
        return;
    }
    let broker = Broker::with(3, &[]);
    Client::of(&broker).create_topic("moving", PARTITIONS as i32, &[]);
    let raw = Raw::connect(&broker);
    let mut producer =
        Producer { raw, sent: VecDeque::new(), next: [0; PARTITIONS], acknowledged: [0; PARTITIONS] };
    let start = Instant::now();
    // The partitions of a topic lie on one shard after the other: at most one round in two finds it at home.
    let mut round = 0;
    while moved(&broker) == 0 {
        assert!(start.elapsed() < ROUNDS_TIME_MAX, "no connection has moved");
        let until = Instant::now() + ROUND;
        while Instant::now() < until {
            producer.send(round % PARTITIONS);
            std::thread::sleep(PAUSE);
        }
        round += 1;
    }
    for partition in 0..PARTITIONS {
        producer.send(partition);
    }
    while !producer.sent.is_empty() {
        producer.take_answer();
    }
    for partition in 0..PARTITIONS {
        let mut offset = 0;
        while offset < producer.next[partition] {
            let request = fetch("moving", &[(partition as i32, offset)]);
            let response = producer.raw.call(FETCH, &request);
            let found = response.responses[0].partitions[0].records.clone().unwrap_or_default();
            for batch in read_all(&found) {
                assert_eq!(batch.base_offset, offset);
                let value = batch.values[0].as_ref().expect("a value");
                assert_eq!(value[..8], batch.base_offset.to_be_bytes());
                assert_eq!(value.len(), VALUE_BYTES);
                offset = batch.last_offset + 1;
            }
        }
        assert_eq!(offset, producer.next[partition]);
    }
    let open = metric(&broker, "kuring_connections_created_total")
        - metric(&broker, "kuring_connections_ended_total");
    drop(producer);
    crate::harness::eventually("the connection that moved is counted as ended once", || {
        let left = metric(&broker, "kuring_connections_created_total")
            - metric(&broker, "kuring_connections_ended_total");
        (left < open).then_some(())
    });
}

#[test]
fn with_moves_switched_off_a_connection_stays() {
    if Broker::is_kafka() || crate::harness::broker::off_owner() {
        return;
    }
    let broker = Broker::with(2, &[("kuring.connection.moves", "false")]);
    Client::of(&broker).create_topic("moving", PARTITIONS as i32, &[]);
    let raw = Raw::connect(&broker);
    let mut producer =
        Producer { raw, sent: VecDeque::new(), next: [0; PARTITIONS], acknowledged: [0; PARTITIONS] };
    for partition in 0..2 {
        let until = Instant::now() + ROUND;
        while Instant::now() < until {
            producer.send(partition);
            std::thread::sleep(PAUSE);
        }
    }
    assert_eq!(moved(&broker), 0);
}
