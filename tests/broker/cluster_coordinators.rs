//! Coordinators in three processes: each is where the partition's leader is that keeps its groups or transactional ids, and
//! goes with it. What was acknowledged outlives the node that coordinated it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, CreateTopicsRequest, DescribeGroupsRequest, DescribeProducersRequest,
    DescribeTransactionsRequest, FindCoordinatorRequest, GroupId, TransactionalId, WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::StrBytes;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use super::cluster::{Cluster, KILLS, partitions};
use super::exactly_once::{put, read};
use super::exactly_once_kills::{Copier, PARTITIONS, copied};
use super::harness::client::{Client, Send};
use super::harness::raw::{Raw, name};
use super::harness::{Broker, PATIENCE};
use super::share_groups::{ACCEPT, Member as ShareMember, configure};

/// Few partitions each, so that three nodes have something of each and start quickly. The replicas are Kafka's defaults.
const SETTINGS: [(&str, &str); 9] = [
    ("offsets.topic.num.partitions", "3"),
    ("offsets.topic.replication.factor", "3"),
    ("transaction.state.log.num.partitions", "3"),
    ("transaction.state.log.replication.factor", "3"),
    ("transaction.state.log.min.isr", "2"),
    ("share.coordinator.state.topic.num.partitions", "3"),
    ("share.coordinator.state.topic.replication.factor", "3"),
    ("share.coordinator.state.topic.min.isr", "2"),
    ("group.initial.rebalance.delay.ms", "0"),
];

/// How long a fail-over may take with all that clients do about it: the machine is busy.
const FAILOVER_PATIENCE: Duration = Duration::from_secs(150);

/// Two fail-overs and more, on a machine that is not too busy.
const STANDSTILL: Duration = Duration::from_secs(15);

const NOT_COORDINATOR: i16 = 16;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;
const CLUSTER_AUTHORIZATION_FAILED: i16 = 31;
const TRANSACTION_COORDINATOR_FENCED: i16 = 52;

/// Kinds of coordinators, as FindCoordinator has them, and the topic of each.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const SHARE: i8 = 2;
const KINDS: [(i8, &str); 3] =
    [(GROUP, "__consumer_offsets"), (TRANSACTION, "__transaction_state"), (SHARE, "__share_group_state")];

#[track_caller]
fn at_last<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(begun.elapsed() < FAILOVER_PATIENCE, "not within {FAILOVER_PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// With [`SETTINGS`], for brokers that are going to be killed.
fn start_for_kills() -> Cluster {
    Cluster::start_with(&[&SETTINGS[..], &KILLS].concat())
}

fn client(cluster: &Cluster) -> Client {
    Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()))
}

/// Creates a topic with three replicas, of which two must have what is acknowledged.
fn create(cluster: &Cluster, topic: &str, partitions: i32) {
    at_last(&format!("somebody creates {topic}"), || {
        cluster.running().find_map(|(_, node)| {
            let topic = CreatableTopic::default()
                .with_name(name(topic))
                .with_num_partitions(partitions)
                .with_replication_factor(3);
            let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000);
            // One that is there already was created by an attempt that was not answered in time.
            matches!(Raw::connect(node).call(7, &request).topics[0].error_code, 0 | 36).then_some(())
        })
    });
    Raw::connect(&cluster.nodes[0]).set_topic_config(topic, "min.insync.replicas", Some("2"));
    client(cluster).await_partitions(topic, partitions);
}

/// Node, host and port, or the code.
fn find_at(raw: &mut Raw, kind: i8, key: &str) -> Result<(i32, String), i16> {
    let request =
        FindCoordinatorRequest::default().with_key_type(kind).with_coordinator_keys(vec![text(key)]);
    let found = raw.call(4, &request).coordinators.remove(0);
    match found.error_code {
        0 => Ok((found.node_id.0, format!("{}:{}", &*found.host, found.port))),
        code => Err(code),
    }
}

/// The index of the node that all that run name.
fn coordinator(cluster: &Cluster, kind: i8, key: &str) -> usize {
    at_last(&format!("one coordinator of {key}"), || {
        let found: BTreeSet<Option<i32>> = cluster
            .running()
            .map(|(_, node)| find_at(&mut Raw::connect(node), kind, key).ok().map(|(id, _)| id))
            .collect();
        let id = found.first().copied().flatten().filter(|_| found.len() == 1)?;
        let index = usize::try_from(id - 1).ok()?;
        cluster.nodes[index].runs().then_some(index)
    })
}

/// All brokers are in sync with all partitions of these topics.
fn await_in_sync(cluster: &Cluster, topics: &[&str]) {
    for topic in topics {
        at_last(&format!("{topic} is in sync"), || {
            cluster
                .running()
                .all(|(_, node)| {
                    let found = partitions(&mut Raw::connect(node), topic).unwrap_or_default();
                    !found.is_empty() && found.iter().all(|partition| partition.isr_nodes.len() == 3)
                })
                .then_some(())
        });
    }
}

/// Brings the one back that was killed.
fn heal(cluster: &mut Cluster, topics: &[&str]) {
    cluster.start_stopped();
    cluster.await_brokers(&[1, 2, 3]);
    await_in_sync(cluster, topics);
}

#[test]
fn every_node_names_the_coordinator_and_it_alone_serves() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start_with(&SETTINGS);
    cluster.await_brokers(&[1, 2, 3]);
    for (kind, topic) in KINDS {
        // The first question makes the topic, whoever is asked and whoever is the controller.
        let asked = &cluster.nodes[kind as usize];
        let keys = match kind {
            SHARE => ["g:AAAAAAAAAAAAAAAAAAAAAQ:0", "h:AAAAAAAAAAAAAAAAAAAAAQ:0"],
            _ => ["one", "two"],
        };
        at_last("a coordinator", || find_at(&mut Raw::connect(asked), kind, keys[0]).ok());
        let made = partitions(&mut Raw::connect(asked), topic).expect("it was made");
        assert!(made.iter().all(|partition| partition.replica_nodes.len() == 3), "{made:?}");
        for key in keys {
            let index = coordinator(&cluster, kind, key);
            for (_, node) in cluster.running() {
                let (_, address) = find_at(&mut Raw::connect(node), kind, key).expect("all know it");
                assert_eq!(address, cluster.nodes[index].bootstrap());
            }
        }
    }
    let group = coordinator(&cluster, GROUP, "one");
    let transaction = coordinator(&cluster, TRANSACTION, "one");
    for (index, node) in cluster.running() {
        let mut raw = Raw::connect(node);
        let request = DescribeGroupsRequest::default().with_groups(vec![GroupId(text("one"))]);
        let code = at_last("loaded", || {
            let code = raw.call(5, &request).groups[0].error_code;
            (code != 14).then_some(code)
        });
        assert_eq!(code == NOT_COORDINATOR, index != group, "node {}: {code}", index + 1);
        let id = TransactionalId(text("one"));
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id]);
        let code = at_last("loaded", || {
            let code = raw.call(0, &request).transaction_states[0].error_code;
            (code != 14).then_some(code)
        });
        // TRANSACTIONAL_ID_NOT_FOUND where it would be.
        let expected = if index == transaction { 105 } else { NOT_COORDINATOR };
        assert_eq!(code, expected, "node {}", index + 1);
    }
}

#[test]
fn strangers_may_not_ask_what_brokers_ask_each_other() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start_with(&SETTINGS);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "t", 3);
    for (_, node) in cluster.running() {
        let mut raw = Raw::connect(node);
        let topic = AddPartitionsToTxnTopic::default().with_name(name("t")).with_partitions(vec![0]);
        let transaction = AddPartitionsToTxnTransaction::default()
            .with_transactional_id(TransactionalId(text("id")))
            .with_producer_id(7.into())
            .with_topics(vec![topic]);
        let request = AddPartitionsToTxnRequest::default().with_transactions(vec![transaction]);
        assert_eq!(raw.call(4, &request).error_code, CLUSTER_AUTHORIZATION_FAILED);
    }
}

/// As `kafka-transactions find-hanging` and `abort` do.
#[test]
fn an_administrator_finds_an_open_transaction_at_each_replica_and_ends_it() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start_with(&SETTINGS);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "t", 1);
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    let producer: BaseProducer =
        client.config(&[("transactional.id", "hangs")]).create().expect("a producer");
    producer.init_transactions(PATIENCE).expect("initialised");
    producer.begin_transaction().expect("begun");
    put(&producer, "t", 0, &["v"]);
    let found = |node: &Broker| {
        let topic = TopicRequest::default().with_name(name("t")).with_partition_indexes(vec![0]);
        let request = DescribeProducersRequest::default().with_topics(vec![topic]);
        let mut answer = Raw::connect(node).call(0, &request);
        let partition = answer.topics.remove(0).partitions.remove(0);
        assert_eq!(partition.error_code, 0);
        partition.active_producers.into_iter().next()
    };
    for (_, node) in cluster.running() {
        // A follower has it a little later.
        at_last("the open transaction", || found(node).filter(|it| it.current_txn_start_offset == 0));
    }
    let leader = partitions(&mut Raw::connect(&cluster.nodes[0]), "t").expect("a topic")[0].leader_id.0;
    let abort = |node: &Broker, coordinator_epoch: i32| {
        let open = found(node).expect("it has written");
        let topic = WritableTxnMarkerTopic::default().with_name(name("t")).with_partition_indexes(vec![0]);
        let marker = WritableTxnMarker::default()
            .with_producer_id(open.producer_id)
            .with_producer_epoch(i16::try_from(open.producer_epoch).expect("an epoch"))
            .with_coordinator_epoch(coordinator_epoch)
            .with_topics(vec![topic]);
        let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
        Raw::connect(node).call(1, &request).markers[0].topics[0].partitions[0].error_code
    };
    for (index, node) in cluster.running() {
        let leads = index + 1 == usize::try_from(leader).expect("a node");
        let expected = if leads { TRANSACTION_COORDINATOR_FENCED } else { NOT_LEADER_OR_FOLLOWER };
        assert_eq!(abort(node, i32::MAX), expected, "node {}", index + 1);
    }
    let node = &cluster.nodes[usize::try_from(leader).expect("a node") - 1];
    assert_eq!(abort(node, 0), 0);
    assert_eq!(found(node).expect("it is remembered").current_txn_start_offset, -1);
}

/// A member of a group that commits, and what was acknowledged of that.
struct Member {
    consumer: BaseConsumer,
    acknowledged: BTreeMap<i32, i64>,
}

impl Member {
    fn join(client: &Client, topic: &str) -> Self {
        let config = [
            ("group.id", "one"),
            ("auto.offset.reset", "earliest"),
            ("session.timeout.ms", "30000"),
            ("heartbeat.interval.ms", "500"),
        ];
        let consumer = client.consumer(&config);
        consumer.subscribe(&[topic]).expect("a subscription");
        Self { consumer, acknowledged: BTreeMap::new() }
    }

    /// Reads and commits, some at a time, until so many were committed of all partitions together.
    fn go_on_to(&mut self, count: i64) {
        let begun = Instant::now();
        let mut next = BTreeMap::new();
        while self.acknowledged.values().sum::<i64>() < count {
            let done = self.acknowledged.values().sum::<i64>();
            assert!(begun.elapsed() < FAILOVER_PATIENCE, "{done} of {count} are committed");
            let polled = self.consumer.poll(Duration::from_millis(100));
            match &polled {
                Some(Ok(message)) => {
                    let committed = self.acknowledged.get(&message.partition()).copied().unwrap_or(0);
                    assert!(message.offset() >= committed, "what was committed is read again");
                    next.insert(message.partition(), message.offset() + 1);
                }
                Some(Err(error)) => println!("{error}"),
                None => {}
            }
            let is_ahead = |(partition, offset): (&i32, &i64)| {
                offset - self.acknowledged.get(partition).copied().unwrap_or(0)
            };
            let ahead: i64 = next.iter().map(is_ahead).sum();
            if ahead == 0 || (polled.is_some() && ahead < 10) {
                continue;
            }
            let mut list = TopicPartitionList::new();
            for (partition, offset) in &next {
                list.add_partition_offset("in", *partition, Offset::Offset(*offset)).expect("an offset");
            }
            match self.consumer.commit(&list, CommitMode::Sync) {
                Ok(()) => self.acknowledged.extend(&next),
                // It goes on with the next one.
                Err(error) => println!("{error}"),
            }
        }
    }

    /// Somebody else finds what was acknowledged.
    fn check(&self, client: &Client) {
        let consumer: BaseConsumer = client.config(&[("group.id", "one")]).create().expect("a consumer");
        let mut asked = TopicPartitionList::new();
        for partition in self.acknowledged.keys() {
            asked.add_partition("in", *partition);
        }
        let told =
            at_last("the coordinator tells", || consumer.committed_offsets(asked.clone(), PATIENCE).ok());
        for element in told.elements() {
            let (partition, offset) = (element.partition(), element.offset().to_raw().unwrap_or(-1));
            assert!(
                offset >= self.acknowledged[&partition],
                "partition {partition}: {offset} < {}",
                self.acknowledged[&partition]
            );
        }
    }
}

#[test]
fn a_group_goes_on_and_loses_no_committed_offset_when_its_coordinator_is_killed() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "in", 3);
    let all = client(&cluster);
    let producer = all.producer(&[("enable.idempotence", "true"), ("message.timeout.ms", "120000")]);
    let feed = |count: i32| {
        let sends: Vec<Send> =
            (0..count).map(|number| Send::value(format!("v{number}")).to(number % 3)).collect();
        all.send(&producer, "in", &sends);
    };
    feed(90);
    let mut member = Member::join(&all, "in");
    member.go_on_to(90);
    for round in 1..=2 {
        await_in_sync(&cluster, &["in", "__consumer_offsets"]);
        feed(90);
        // In the middle of its work.
        member.go_on_to(90 * (2 * round - 1) + 30);
        let victim = coordinator(&cluster, GROUP, "one");
        cluster.nodes[victim].kill();
        let begun = Instant::now();
        let left = client(&cluster);
        member.check(&left);
        println!("coordinator {} killed, another one tells after {:?}", victim + 1, begun.elapsed());
        member.go_on_to(90 * 2 * round);
        println!("and the group had gone on after {:?}", begun.elapsed());
        feed(90);
        member.go_on_to(90 * (2 * round + 1));
        heal(&mut cluster, &["in", "__consumer_offsets"]);
        member.check(&client(&cluster));
    }
}

#[test]
fn transactions_end_on_all_leaders_and_their_offsets_with_them() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start_with(&SETTINGS);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "t", 6);
    let all = client(&cluster);
    // Ids of all three coordinators, partitions of all three leaders.
    for (number, id) in ["a", "b", "c", "d", "e", "f"].into_iter().enumerate() {
        let producer: BaseProducer =
            all.config(&[("transactional.id", id), ("linger.ms", "1")]).create().expect("a producer");
        producer.init_transactions(4 * PATIENCE).expect("a producer id");
        for (round, commits) in [true, false, true].into_iter().enumerate() {
            producer.begin_transaction().expect("begun");
            for partition in 0..6 {
                put(&producer, "t", partition, &[&format!("{number} {round} {partition}")]);
            }
            match commits {
                true => producer.commit_transaction(PATIENCE).expect("committed"),
                false => {
                    producer.flush(PATIENCE).expect("written");
                    producer.abort_transaction(PATIENCE).expect("aborted");
                }
            }
        }
    }
    at_last("all markers are there", || {
        let values = read(&all, "t", 6, "read_committed");
        (values.len() >= 6 * 2 * 6).then(|| {
            assert_eq!(values.len(), 6 * 2 * 6, "nothing twice, and nothing that was aborted");
            assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), values.len());
        })
    });
}

fn start_copier(cluster: &Cluster) -> Copier {
    let bootstrap: Vec<&str> = cluster.running().map(|(_, node)| node.bootstrap()).collect();
    Copier::start(&bootstrap.join(","))
}

/// Waits until so many inputs are copied. A copier that stands still is killed, and another one takes its place, which is
/// given twice as long:
/// librdkafka 2.12 waits without an end, and asks nobody, for a group coordinator that it remembers and that is gone
/// (`rd_kafka_coord_req_fsm` goes on only when a connection comes up or breaks, whatever time
/// `rd_kafka_send_offsets_to_transaction` was given).
fn await_copied(cluster: &Cluster, copier: &mut Copier, count: i64) {
    let client = client(cluster);
    let (mut before, mut since, mut standstill_max) = (-1, Instant::now(), STANDSTILL);
    at_last(&format!("{count} inputs are copied"), || {
        let now = copied(&client);
        if now != before {
            (before, since) = (now, Instant::now());
        } else if since.elapsed() > standstill_max {
            println!("the copier stands still at {now}: another one");
            (*copier, since) = (start_copier(cluster), Instant::now());
            standstill_max *= 2;
        }
        (now >= count).then_some(())
    });
}

#[test]
fn each_input_is_copied_once_though_coordinators_and_leaders_are_killed() {
    if Broker::is_kafka() {
        return;
    }
    const TOPICS: [&str; 5] = ["in", "out-a", "out-b", "__consumer_offsets", "__transaction_state"];
    let mut cluster = start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    for topic in &TOPICS[..3] {
        create(&cluster, topic, PARTITIONS);
    }
    let all = client(&cluster);
    let mut copier = start_copier(&cluster);
    let producer = all.producer(&[("enable.idempotence", "true"), ("message.timeout.ms", "120000")]);
    let mut inputs = Vec::new();
    let mut feed = || {
        let first = inputs.len();
        let values: Vec<String> = (first..first + 30).map(|number| format!("v{number:05}")).collect();
        let sends: Vec<Send> = values
            .iter()
            .zip(first..)
            .map(|(value, number)| Send::value(value.as_str()).to(number as i32 % PARTITIONS))
            .collect();
        all.send(&producer, "in", &sends);
        inputs.extend(values);
        inputs.len() as i64
    };
    let fed = feed();
    await_copied(&cluster, &mut copier, fed / 2);
    for kill in ["coordinator", "leader", "coordinator"] {
        let fed = feed();
        let victim = match kill {
            "leader" => {
                let found = partitions(&mut Raw::connect(&cluster.nodes[0]), "out-a").expect("it is there");
                let first = found.iter().find(|partition| partition.partition_index == 0);
                first.expect("its first partition").leader_id.0 as usize - 1
            }
            _ => coordinator(&cluster, TRANSACTION, "copier"),
        };
        cluster.nodes[victim].kill();
        let begun = Instant::now();
        await_copied(&cluster, &mut copier, fed);
        println!("{kill} {} killed, all is copied after {:?}", victim + 1, begun.elapsed());
        heal(&mut cluster, &TOPICS);
    }
    let fed = feed();
    await_copied(&cluster, &mut copier, fed);
    // Nodes come back with other ports: the first ones may be nobody's by now.
    let all = client(&cluster);
    for topic in ["out-a", "out-b"] {
        at_last("the markers are everywhere", || {
            let mut values = read(&all, topic, PARTITIONS, "read_committed");
            values.sort_unstable();
            (values.len() >= inputs.len()).then(|| assert_eq!(values, inputs, "{topic}"))
        });
    }
}

/// What a member of a share group gets of each partition, where that is led, within the patience; all of it is accepted.
fn share_all(cluster: &Cluster, member: &ShareMember, partitions_count: i32, each: usize) {
    for partition in 0..partitions_count {
        let (mut accepted, mut maybe) = (BTreeSet::new(), BTreeSet::new());
        at_last(&format!("all of partition {partition}"), || {
            let (_, any) = cluster.running().next()?;
            let found = partitions(&mut Raw::connect(any), "shared").ok()?;
            let found = found.iter().find(|found| found.partition_index == partition)?;
            let leader = cluster.nodes.get(usize::try_from(found.leader_id.0 - 1).ok()?)?;
            if !leader.runs() {
                return None;
            }
            // Each attempt has a session of its own: what it does not accept comes again.
            let mut there = member.at(leader, [partition]);
            let got = there.try_fetch(500, &[])?;
            let first = got.iter().map(|(_, offset, _)| *offset).min()?;
            let last = got.iter().map(|(_, offset, _)| *offset).max()?;
            let is_known = there.try_fetch(0, &[(partition, first, last, ACCEPT)]).is_some();
            for (_, offset, _) in got {
                assert!(!accepted.contains(&offset), "{offset} of partition {partition} was accepted before");
                // Where the answer was an error it may be kept all the same.
                if is_known {
                    accepted.insert(offset)
                } else {
                    maybe.insert(offset)
                };
            }
            (accepted.union(&maybe).count() >= each).then_some(())
        });
        assert_eq!(accepted.union(&maybe).count(), each, "partition {partition}");
    }
}

#[test]
fn a_share_group_is_served_by_leaders_whose_states_are_kept_elsewhere() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = start_for_kills();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "shared", 6);
    let group = coordinator(&cluster, GROUP, "g");
    let mut raw = Raw::connect(&cluster.nodes[group]);
    configure(&mut raw, "g", &[("share.auto.offset.reset", "earliest")]);
    let all = client(&cluster);
    let producer = all.producer(&[("enable.idempotence", "true"), ("message.timeout.ms", "120000")]);
    let feed = |count: i32| {
        let sends: Vec<Send> =
            (0..count).map(|number| Send::value(format!("v{number}")).to(number % 6)).collect();
        all.send(&producer, "shared", &sends);
    };
    feed(60);
    let member = ShareMember::join(&cluster.nodes[group], "g", "shared");
    share_all(&cluster, &member, 6, 10);
    // Not the group's coordinator: the member stays in.
    let victim = (group + 1) % 3;
    cluster.nodes[victim].kill();
    feed(60);
    share_all(&cluster, &member, 6, 10);
}
