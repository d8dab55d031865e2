//! Transactions of librdkafka: what read_committed consumers see of them, through zombies, time-outs, restarts and
//! crashes.

use std::collections::BTreeSet;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::harness::client::{Client, Send};
use crate::harness::{Broker, PATIENCE, eventually, shard_counts};

pub const ONE_REPLICA: [(&str, &str); 4] = [
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
    ("offsets.topic.replication.factor", "1"),
    ("group.initial.rebalance.delay.ms", "0"),
];

fn producer(client: &Client, id: &str, more: &[(&str, &str)]) -> BaseProducer {
    let mut config = client.config(more);
    let producer: BaseProducer =
        config.set("transactional.id", id).set("linger.ms", "1").create().expect("a producer");
    producer.init_transactions(PATIENCE).expect("a producer id");
    producer
}

pub fn put(producer: &BaseProducer, topic: &str, partition: i32, values: &[&str]) {
    for value in values {
        let record = BaseRecord::<(), str>::to(topic).partition(partition).payload(value);
        producer.send(record).map_err(|(error, _)| error).expect("queued");
    }
}

/// All values of the partitions, in the order of each partition, up to the last stable offset or the end.
pub fn read(client: &Client, topic: &str, partitions: i32, isolation: &str) -> Vec<String> {
    let consumer = client.consumer(&[("isolation.level", isolation), ("enable.partition.eof", "true")]);
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment.add_partition_offset(topic, partition, Offset::Beginning).expect("a valid offset");
    }
    consumer.assign(&assignment).expect("assign");
    let mut values = Vec::new();
    let mut ended = BTreeSet::new();
    eventually("every partition is read", || {
        // Without a pause in between: there may be thousands.
        while ended.len() < partitions as usize
            && let Some(polled) = consumer.poll(Duration::from_millis(200))
        {
            match polled {
                Ok(message) => {
                    let value = message.payload().expect("every record has a value");
                    values.push(String::from_utf8(value.to_vec()).expect("text"));
                }
                Err(KafkaError::PartitionEOF(partition)) => {
                    ended.insert(partition);
                }
                Err(error) => println!("{error}"),
            }
        }
        (ended.len() == partitions as usize).then_some(())
    });
    values
}

#[test]
fn committed_transactions_are_read_and_aborted_ones_are_not() {
    for shards in shard_counts([1, 3]) {
        let broker = Broker::with(shards, &ONE_REPLICA);
        let client = Client::of(&broker);
        client.create_topic("t", 3, &[]);
        let one = producer(&client, "one", &[]);
        one.begin_transaction().unwrap();
        put(&one, "t", 0, &["a0", "a1"]);
        put(&one, "t", 1, &["a2"]);
        put(&one, "t", 2, &["a3"]);
        one.commit_transaction(PATIENCE).unwrap();
        one.begin_transaction().unwrap();
        put(&one, "t", 0, &["b0"]);
        put(&one, "t", 1, &["b1"]);
        one.flush(PATIENCE).unwrap();
        one.abort_transaction(PATIENCE).unwrap();
        let plain = client.producer(&[]);
        client.send(&plain, "t", &[Send::value("p").to(1)]);
        one.begin_transaction().unwrap();
        put(&one, "t", 0, &["c0"]);
        one.commit_transaction(PATIENCE).unwrap();
        // One that is open holds up what comes behind it.
        let two = producer(&client, "two", &[]);
        two.begin_transaction().unwrap();
        put(&two, "t", 1, &["d0"]);
        two.flush(PATIENCE).unwrap();
        client.send(&plain, "t", &[Send::value("q").to(1)]);

        let committed = || {
            let mut values = read(&client, "t", 3, "read_committed");
            values.sort();
            values
        };
        // A commit is answered before its markers are everywhere.
        eventually("the markers are there", || {
            (committed() == ["a0", "a1", "a2", "a3", "c0", "p"]).then_some(())
        });
        let mut all = read(&client, "t", 3, "read_uncommitted");
        all.sort();
        assert_eq!(all, ["a0", "a1", "a2", "a3", "b0", "b1", "c0", "d0", "p", "q"]);
        two.commit_transaction(PATIENCE).unwrap();
        eventually("the open one is there", || {
            (committed() == ["a0", "a1", "a2", "a3", "c0", "d0", "p", "q"]).then_some(())
        });
    }
}

#[test]
fn a_new_instance_fences_the_old_one_and_aborts_its_transaction() {
    let broker = Broker::with(2, &ONE_REPLICA);
    let client = Client::of(&broker);
    client.create_topic("t", 1, &[]);
    let zombie = producer(&client, "id", &[]);
    zombie.begin_transaction().unwrap();
    put(&zombie, "t", 0, &["zombie"]);
    zombie.flush(PATIENCE).unwrap();
    let successor = producer(&client, "id", &[]);
    successor.begin_transaction().unwrap();
    put(&successor, "t", 0, &["successor"]);
    successor.commit_transaction(PATIENCE).unwrap();
    put(&zombie, "t", 0, &["zombie again"]);
    let error = zombie.commit_transaction(PATIENCE).expect_err("it is fenced");
    match error {
        KafkaError::Transaction(error) => {
            assert!(error.is_fatal() && !error.is_retriable(), "{error}");
            let fenced = [RDKafkaErrorCode::Fenced, RDKafkaErrorCode::ProducerFenced];
            assert!(
                fenced.contains(&error.code()) || error.code() == RDKafkaErrorCode::InvalidProducerEpoch,
                "{error}"
            );
        }
        other => panic!("{other}"),
    }
    eventually("the markers are there", || {
        (read(&client, "t", 1, "read_committed") == ["successor"]).then_some(())
    });
}

#[test]
fn a_transaction_that_times_out_is_aborted() {
    let interval = ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "200");
    let settings: Vec<_> = ONE_REPLICA.into_iter().chain([interval]).collect();
    let broker = Broker::with(2, &settings);
    let client = Client::of(&broker);
    client.create_topic("t", 1, &[]);
    let slow = producer(
        &client,
        "slow",
        &[("transaction.timeout.ms", "1000"), ("message.timeout.ms", "1000"), ("socket.timeout.ms", "1000")],
    );
    slow.begin_transaction().unwrap();
    put(&slow, "t", 0, &["late"]);
    slow.flush(PATIENCE).unwrap();
    let plain = client.producer(&[]);
    client.send(&plain, "t", &[Send::value("after").to(0)]);
    eventually("the last stable offset moves on", || {
        (read(&client, "t", 1, "read_committed") == ["after"]).then_some(())
    });
    let error = slow.commit_transaction(PATIENCE).expect_err("it was aborted");
    assert!(matches!(error, KafkaError::Transaction(_)), "{error}");
}

/// Copies records from `in` to `out` with their offsets in one transaction for some at a time; every other one is
/// aborted first and begun again.
fn copy(client: &Client, consumer: &BaseConsumer, producer: &BaseProducer, count: usize) {
    let mut copied = 0;
    let mut attempt = 0;
    while copied < count {
        let mut batch = Vec::new();
        let mut next = TopicPartitionList::new();
        eventually("records to copy", || {
            match consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => {
                    batch.push(String::from_utf8(message.payload().unwrap().to_vec()).unwrap());
                    let offset = Offset::Offset(message.offset() + 1);
                    next.add_partition_offset("in", message.partition(), offset).unwrap();
                }
                Some(Err(error)) => println!("{error}"),
                None => {}
            }
            (batch.len() >= 5 || copied + batch.len() >= count).then_some(())
        });
        attempt += 1;
        producer.begin_transaction().unwrap();
        for value in &batch {
            put(producer, "out", 0, &[value]);
        }
        let group = consumer.group_metadata().expect("it is in a group");
        producer.send_offsets_to_transaction(&next, &group, PATIENCE).unwrap();
        if attempt % 2 == 1 {
            producer.flush(PATIENCE).unwrap();
            producer.abort_transaction(PATIENCE).unwrap();
            rewind(client, consumer);
        } else {
            producer.commit_transaction(PATIENCE).unwrap();
            copied += batch.len();
        }
    }
}

/// Back to what is committed, as a consumer does after an abort.
fn rewind(_client: &Client, consumer: &BaseConsumer) {
    let committed = consumer.committed(PATIENCE).expect("committed offsets");
    for element in committed.elements() {
        let offset = match element.offset() {
            Offset::Offset(offset) => Offset::Offset(offset),
            _ => Offset::Beginning,
        };
        consumer.seek(element.topic(), element.partition(), offset, PATIENCE).expect("seek");
    }
}

#[test]
fn consume_transform_produce_copies_each_record_once() {
    let mut broker = Broker::with(2, &ONE_REPLICA);
    let client = Client::of(&broker);
    client.create_topic("in", 1, &[]);
    client.create_topic("out", 1, &[]);
    let values: Vec<String> = (0..20).map(|number| format!("v{number:02}")).collect();
    let plain = client.producer(&[]);
    let sends: Vec<Send> = values.iter().map(|value| Send::value(value.as_bytes()).to(0)).collect();
    client.send(&plain, "in", &sends);
    let group = [
        ("group.id", "copier"),
        ("enable.auto.commit", "false"),
        ("auto.offset.reset", "earliest"),
        ("isolation.level", "read_committed"),
    ];
    let consumer: BaseConsumer = client.config(&group).create().expect("a consumer");
    consumer.subscribe(&["in"]).unwrap();
    let copier = producer(&client, "copier", &[]);
    copy(&client, &consumer, &copier, values.len());
    eventually("all are copied once", || (read(&client, "out", 1, "read_committed") == values).then_some(()));
    let committed = |consumer: &BaseConsumer| {
        let mut asked = TopicPartitionList::new();
        asked.add_partition("in", 0);
        let told = consumer.committed_offsets(asked, PATIENCE).expect("offsets");
        told.elements()[0].offset()
    };
    assert_eq!(committed(&consumer), Offset::Offset(20));
    drop((consumer, copier));
    for kill in [false, true] {
        match kill {
            false => drop(broker.terminate()),
            true => broker.kill(),
        }
        broker.start_again(2);
        let client = Client::of(&broker);
        let consumer: BaseConsumer = client.config(&group).create().expect("a consumer");
        assert_eq!(committed(&consumer), Offset::Offset(20));
        assert_eq!(read(&client, "out", 1, "read_committed"), values);
        // The offset is a commit like any other.
        let mut back = TopicPartitionList::new();
        back.add_partition_offset("in", 0, Offset::Offset(20)).unwrap();
        consumer.commit(&back, CommitMode::Sync).expect("a commit from outside of a group");
    }
}

/// Kills the broker around commits: whatever the producer was told, the transaction is whole or not there at all.
#[test]
fn a_transaction_is_whole_or_not_there_after_a_kill() {
    if Broker::is_kafka() {
        return;
    }
    const PARTITIONS: i32 = 4;
    let mut broker = Broker::with(3, &ONE_REPLICA);
    Client::of(&broker).create_topic("t", PARTITIONS, &[]);
    let mut acknowledged = Vec::new();
    for round in 0..8 {
        let client = Client::of(&broker);
        let id = format!("id{}", round % 2);
        let one = producer(&client, &id, &[("socket.timeout.ms", "1000")]);
        one.begin_transaction().unwrap();
        for partition in 0..PARTITIONS {
            put(&one, "t", partition, &[&format!("{round}:{partition}")]);
        }
        one.flush(PATIENCE).unwrap();
        // Sooner or later than the decision, the markers, the record that it is complete.
        let delay = Duration::from_micros([0, 300, 700, 1_000, 1_500, 2_000, 4_000, 20_000][round]);
        let told = std::thread::scope(|scope| {
            let commit = scope.spawn(|| one.commit_transaction(Duration::from_millis(300)));
            std::thread::sleep(delay);
            broker.kill();
            commit.join().expect("no panic")
        });
        if told.is_ok() {
            acknowledged.push(round);
        }
        broker.start_again(3);
    }
    let client = Client::of(&broker);
    // Whatever is open is ended by the next to come.
    for id in ["id0", "id1"] {
        producer(&client, id, &[]);
    }
    let whole = eventually("no transaction is open", || {
        let values = read(&client, "t", PARTITIONS, "read_committed");
        let rounds: BTreeSet<usize> =
            values.iter().map(|value| value.split(':').next().unwrap().parse().unwrap()).collect();
        (values.len() == rounds.len() * PARTITIONS as usize).then_some(rounds)
    });
    for round in acknowledged {
        assert!(whole.contains(&round), "{round} was acknowledged, {whole:?} are there");
    }
}
