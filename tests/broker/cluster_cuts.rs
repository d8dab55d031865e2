//! Three processes under load, one of which the others do not hear, or it not them, or two of which do not hear each
//! other: what is acknowledged is there, once, in its order. Clients reach all of them all the time.

use std::time::{Duration, Instant};

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{CreateTopicsRequest, ProduceRequest};

use super::cluster::{Cluster, KILLS};
use super::cluster_elections::{NONE, await_all_in_sync, create, described, roles};
use super::cluster_faults::{TWO_IN_SYNC, load_on};
use super::harness::batch::Batch;
use super::harness::client::Client;
use super::harness::raw::{PRODUCE, Raw, name, produce};
use super::harness::wires::Wires;
use super::harness::{Broker, eventually};

/// Followers that are not heard of are soon out of sync.
const LAG: (&str, &str) = ("replica.lag.time.max.ms", "3000");

#[derive(Clone, Copy, Debug)]
enum Cut {
    /// It neither hears the others nor they it.
    Whole,
    /// It does not hear them.
    In,
    /// They do not hear it.
    Out,
}

fn start() -> (Cluster, Wires) {
    Cluster::start_wired(&[&KILLS[..], &[TWO_IN_SYNC, LAG]].concat())
}

fn cut_off(wires: &Wires, node: usize, how: Cut) {
    for other in (0..3).filter(|other| *other != node) {
        match how {
            Cut::Whole => wires.cut_both_ways(node, other),
            Cut::In => wires.cut(other, node),
            Cut::Out => wires.cut(node, other),
        }
    }
}

/// Waits until these nodes say that one of them leads the partition, and has all others in sync but `gone`.
fn await_led_without(cluster: &Cluster, topic: &str, gone: i32) {
    eventually(&format!("others than {gone} lead {topic}"), || {
        let (_, asked) = cluster.running().find(|(index, _)| *index as i32 + 1 != gone)?;
        let found = super::cluster::partitions(&mut Raw::connect(asked), topic).ok()?;
        let is_led = |partition: &kafka_protocol::messages::metadata_response::MetadataResponsePartition| {
            let leader = partition.leader_id.0;
            leader != gone && leader != -1 && !partition.isr_nodes.contains(&gone.into())
        };
        found.iter().all(is_led).then_some(())
    });
}

/// A leader is cut off, and clients still reach it. `how` in turn.
fn cut_off_in_turn(which: impl Fn(&Cluster) -> i32) {
    let (cluster, wires) = start();
    let (client, load) = load_on(&cluster);
    for (round, how) in [Cut::Whole, Cut::In, Cut::Out].into_iter().enumerate() {
        let victim = which(&cluster);
        let others: Vec<i32> = (1..=3).filter(|id| *id != victim).collect();
        let topic = format!("probe-{round}");
        create(&cluster, &topic, &[&[victim, others[0], others[1]]]);
        client.await_partitions(&topic, 1);
        await_all_in_sync(&cluster, &topic);
        let mut asked = Raw::connect(&cluster.nodes[victim as usize - 1]);

        let since = Instant::now();
        cut_off(&wires, victim as usize - 1, how);
        await_led_without(&cluster, "load", victim);
        await_led_without(&cluster, &topic, victim);
        // The one that is cut off believes itself the leader for longer.
        asked.send(PRODUCE, &produce(&topic, 0, -1, Batch::now(&["never"]).encode()));
        load.await_progress(&format!("while {victim} is cut off ({how:?})"));
        load.tell(&format!("{victim} cut off ({how:?})"), since);
        wires.mend();
        let (_, answer) = asked.receive::<ProduceRequest>(PRODUCE);
        let code = answer.responses[0].partition_responses[0].error_code;
        println!("cut off, it answered with {code}");
        assert_ne!(code, NONE, "what one alone has is not acknowledged");
        cluster.await_brokers(&[1, 2, 3]);
        await_all_in_sync(&cluster, "load");
        await_all_in_sync(&cluster, &topic);
        load.await_progress("when the cut is over");
        load.tell("the cut is over", since);
        assert_eq!(end_of(&client, &topic), 0, "nor does anybody keep it");
    }
    load.finish(&client);
}

fn end_of(client: &Client, topic: &str) -> i64 {
    // The one that was cut off may not have learnt yet who leads.
    eventually("the leader tells it", || client.try_offsets(topic, 0)).1
}

#[test]
fn a_leader_that_is_cut_off_acknowledges_nothing_and_loses_nothing() {
    if Broker::is_kafka() {
        return;
    }
    cut_off_in_turn(|cluster| roles(cluster).1);
}

#[test]
fn a_controller_that_is_cut_off_is_replaced_and_loses_nothing() {
    if Broker::is_kafka() {
        return;
    }
    cut_off_in_turn(|cluster| roles(cluster).0);
}

#[test]
fn two_that_do_not_hear_each_other_lose_nothing_while_the_third_hears_both() {
    if Broker::is_kafka() {
        return;
    }
    let (cluster, wires) = start();
    let (client, load) = load_on(&cluster);
    let (controller, one, other) = roles(&cluster);
    let since = Instant::now();
    wires.cut_both_ways(one as usize - 1, other as usize - 1);
    load.await_progress("while two do not hear each other");
    eventually("each leader goes on with those that it hears", || {
        let found = described(&cluster, "load");
        let has_both = |isr: &[kafka_protocol::messages::BrokerId]| {
            isr.contains(&one.into()) && isr.contains(&other.into())
        };
        let of_cut = found.iter().filter(|partition| partition.leader_id.0 != controller);
        of_cut.clone().all(|partition| !has_both(&partition.isr_nodes)).then_some(())
    });
    load.await_progress("without those that are not heard");
    load.tell("two do not hear each other", since);
    wires.mend();
    cluster.await_brokers(&[1, 2, 3]);
    await_all_in_sync(&cluster, "load");
    load.await_progress("when the cut is over");
    load.finish(&client);
}

/// The code that the node answers with.
fn make(raw: &mut Raw, topic: &str) -> i16 {
    let wanted =
        CreatableTopic::default().with_name(name(topic)).with_num_partitions(1).with_replication_factor(1);
    let request = CreateTopicsRequest::default().with_topics(vec![wanted]).with_timeout_ms(60_000);
    raw.call(7, &request).topics[0].error_code
}

#[test]
fn a_command_is_not_waited_for_at_a_controller_that_is_cut_off_and_replaced() {
    const REQUEST_TIMED_OUT: i16 = 7;
    const TOPIC_ALREADY_EXISTS: i16 = 36;
    /// What a controller may take for a command.
    const CALL_MAX: Duration = Duration::from_secs(30);
    if Broker::is_kafka() {
        return;
    }
    let (cluster, wires) = start();
    cluster.await_brokers(&[1, 2, 3]);
    let controller = cluster.controller();
    let mut asked = Raw::connect(&cluster.nodes[(controller + 1) % 3]);
    assert_eq!(make(&mut asked, "before"), NONE);
    cut_off(&wires, controller, Cut::Whole);
    let since = Instant::now();
    // It was on its way; whether it has come nobody knows.
    let code = make(&mut asked, "meanwhile");
    let waited = since.elapsed();
    println!("answered with {code} after {waited:?}");
    assert!([NONE, REQUEST_TIMED_OUT].contains(&code) && waited < CALL_MAX, "{code} after {waited:?}");
    eventually("the next controller takes it", || {
        [NONE, TOPIC_ALREADY_EXISTS].contains(&make(&mut asked, "meanwhile")).then_some(())
    });
    wires.mend();
    cluster.await_brokers(&[1, 2, 3]);
}
