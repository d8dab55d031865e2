//! Three processes under load, of which some are killed, stand still or are restarted one after the other: what is
//! acknowledged is there, once, in its order, and for how long partitions took nothing is told.

use std::time::Instant;

use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{FetchRequest, ListOffsetsRequest};

use super::cluster::{Cluster, KILLS, partitions};
use super::cluster_commands::done;
use super::cluster_elections::{
    NONE, PREFERRED, await_all_in_sync, await_without, create, elect, kill, leaders, roles,
};
use super::harness::batch::Batch;
use super::harness::client::Client;
use super::harness::load::Load;
use super::harness::raw::{FETCH, PRODUCE, Raw, fetch, name, produce};
use super::harness::{Broker, PATIENCE, eventually};

const TOPIC: &str = "load";
/// A fetch that leaders alone answer.
const FETCH_OF_LEADERS: i16 = 10;
const LIST_OFFSETS: i16 = 7;
const LATEST: i64 = -1;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;

/// Of clusters in which nothing is acknowledged that one node alone has.
pub(super) const TWO_IN_SYNC: (&str, &str) = ("min.insync.replicas", "2");

/// Three partitions, each led by another node, and what is sent to them.
pub(super) fn load_on(cluster: &Cluster) -> (Client, Load) {
    cluster.await_brokers(&[1, 2, 3]);
    create(cluster, TOPIC, &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]]);
    let client = Client::of_all(cluster.running().map(|(_, node)| node.bootstrap()));
    client.await_partitions(TOPIC, 3);
    let load = Load::start(&client, TOPIC, 3);
    load.await_progress("in the beginning");
    (client, load)
}

/// All run, and each leads a partition of the load.
fn await_order(cluster: &Cluster) {
    cluster.await_brokers(&[1, 2, 3]);
    await_all_in_sync(cluster, TOPIC);
    elect(&cluster.nodes[cluster.controller()], PREFERRED, None);
    eventually("each leads", || (leaders(cluster, TOPIC) == [1, 2, 3]).then_some(()));
}

#[test]
fn nothing_is_lost_with_a_leader_a_controller_or_both() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_with(&[&KILLS[..], &[TWO_IN_SYNC]].concat());
    let (client, load) = load_on(&cluster);
    for what in ["a leader", "the controller, which leads too", "both"] {
        await_order(&cluster);
        let (controller, leader, _) = roles(&cluster);
        let since = Instant::now();
        if what != "a leader" {
            kill(&mut cluster, controller);
        }
        if what != "the controller, which leads too" {
            kill(&mut cluster, leader);
        }
        if what != "both" {
            load.await_progress(&format!("without {what}"));
        }
        cluster.start_stopped();
        load.await_progress(&format!("after {what} was killed"));
        load.tell(&format!("{what} killed"), since);
    }
    await_order(&cluster);
    load.finish(&client);
}

#[test]
fn a_leader_that_stands_still_leads_no_more_when_it_goes_on() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start_with(&[&KILLS[..], &[TWO_IN_SYNC]].concat());
    let (client, load) = load_on(&cluster);
    let (controller, victim, other) = roles(&cluster);
    create(&cluster, "probe", &[&[victim, other, controller]]);
    client.await_partitions("probe", 1);
    let still = &cluster.nodes[victim as usize - 1];
    let mut before = Raw::connect(still);
    let mut reader = Raw::connect(still);

    let since = Instant::now();
    still.stand_still(true);
    // It finds this when it goes on, and believes itself the leader.
    before.send(PRODUCE, &produce("probe", 0, -1, Batch::now(&["never"]).encode()));
    await_without(&cluster, victim);
    eventually("others lead", || (!leaders(&cluster, TOPIC).contains(&victim)).then_some(()));
    load.await_progress("while a leader stands still");
    load.tell("a leader stands still", since);
    let leader = leaders(&cluster, "probe")[0];
    let leads = &cluster.nodes[leader as usize - 1];
    assert_ne!(leader, victim);
    let answer = Raw::connect(leads).produce("probe", 0, -1, Batch::now(&["kept"]).encode());
    assert_eq!(answer.error_code, NONE);
    let epoch = partitions(&mut Raw::connect(leads), "probe").expect("it is there")[0].leader_epoch;

    still.stand_still(false);
    let since = Instant::now();
    // It answers nothing of what it is to know first, whenever it learns of the epoch.
    while !leads_nothing(&mut reader, epoch) {
        assert!(since.elapsed() < PATIENCE, "it does not learn who leads");
    }
    let (_, answer) = before.receive::<ProduceRequest>(PRODUCE);
    let code = answer.responses[0].partition_responses[0].error_code;
    assert_ne!(code, NONE, "what it alone has is not acknowledged");
    cluster.await_brokers(&[1, 2, 3]);
    await_all_in_sync(&cluster, TOPIC);
    await_all_in_sync(&cluster, "probe");
    load.await_progress("when it is back");
    load.tell("it goes on", since);
    assert!(!read_as_follower(&mut reader).contains(&"never".to_owned()));
    let found: Vec<String> = client.read("probe", &[0], 1).iter().map(|got| got.text()).collect();
    let offsets = eventually("its leader tells it", || client.try_offsets("probe", 0));
    assert_eq!((found, offsets), (vec!["kept".to_owned()], (0, 1)));
    load.finish(&client);
}

/// Asks as one who knows the newest leader's epoch: no answer may come as a leader's. True when it says who leads.
fn leads_nothing(raw: &mut Raw, epoch: i32) -> bool {
    let mut request: FetchRequest = fetch("probe", &[(0, 0)]);
    request.topics[0].partitions[0].current_leader_epoch = epoch;
    request.max_wait_ms = 0;
    let fetched = raw.call(FETCH_OF_LEADERS, &request).responses[0].partitions[0].error_code;
    let partition = ListOffsetsPartition::default()
        .with_partition_index(0)
        .with_current_leader_epoch(epoch)
        .with_timestamp(LATEST);
    let topic = ListOffsetsTopic::default().with_name(name("probe")).with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
    let listed = raw.call(LIST_OFFSETS, &request).topics[0].partitions[0].error_code;
    assert!(fetched != NONE && listed != NONE, "it serves as leader in epoch {epoch}");
    [fetched, listed].iter().all(|code| *code == 6)
}

/// What consumers are given that read near them.
fn read_as_follower(raw: &mut Raw) -> Vec<String> {
    let answer = raw.call(FETCH, &fetch("probe", &[(0, 0)]));
    let records = answer.responses[0].partitions[0].records.clone().unwrap_or_default();
    let values = super::harness::batch::read_all(&records).into_iter().flat_map(|batch| batch.values);
    values.flatten().map(|value| String::from_utf8_lossy(&value).into_owned()).collect()
}

#[test]
fn a_node_that_is_stopped_tells_its_producers_that_it_leads_no_more_before_it_hangs_up() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_with(&KILLS);
    cluster.await_brokers(&[1, 2, 3]);
    let controller = cluster.controller();
    let id = controller as i32 + 1;
    create(&cluster, TOPIC, &[&[id, id % 3 + 1]]);
    eventually("it leads", || (leaders(&cluster, TOPIC) == [id]).then_some(()));
    let mut raw = Raw::connect(&cluster.nodes[controller]);
    let mut next = Raw::connect(&cluster.nodes[id as usize % 3]);
    std::thread::scope(|scope| {
        let node = &mut cluster.nodes[controller];
        let stopped = scope.spawn(|| node.terminate().0);
        let send = |raw: &mut Raw| raw.produce(TOPIC, 0, 1, Batch::now(&["x"]).encode()).error_code;
        let mut taken = Instant::now();
        loop {
            match send(&mut raw) {
                NONE => taken = Instant::now(),
                code => break assert_eq!(code, NOT_LEADER_OR_FOLLOWER),
            }
        }
        while send(&mut next) != NONE {
            assert!(taken.elapsed() < PATIENCE, "nobody else leads");
        }
        println!("no broker took a record for {:?}", taken.elapsed());
        assert!(stopped.join().expect("it ends").success());
    });
}

/// Step by step what `docs/OPERATIONS.md` says of a rolling restart.
#[test]
fn all_are_restarted_one_after_the_other_under_load() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_with(&[TWO_IN_SYNC]);
    let (client, load) = load_on(&cluster);
    let (controller, first, second) = roles(&cluster);
    for id in [first, second, controller] {
        done(&cluster, &["cluster", "status", "--wait", "60"]);
        let since = Instant::now();
        let (status, took) = cluster.nodes[id as usize - 1].terminate();
        assert!(status.success(), "{status}");
        println!("broker {id} stopped in {took:?}");
        load.await_progress("while one is down");
        cluster.start_stopped();
        done(&cluster, &["cluster", "status", "--wait", "300"]);
        load.await_progress("when it is back");
        load.tell(&format!("broker {id} restarted"), since);
    }
    done(&cluster, &["partition", "elect", "--type", "preferred", "--all"]);
    eventually("each leads again", || (leaders(&cluster, TOPIC) == [1, 2, 3]).then_some(()));
    load.await_progress("in the end");
    load.finish(&client);
}
