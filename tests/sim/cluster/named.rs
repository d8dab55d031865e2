//! Failures in an order that is known to have cost other systems records, and every crash point of a reassignment.

use kuring::base::{BrokerId, PartitionIndex};
use kuring::config::Durability;
use kuring::io::mem::Crash;
use kuring::metadata::{AlterReassignments, Command, Reassignment};

use super::planted::Planted;
use super::world::{MS, Plan, SECOND, TOPIC, World};
use crate::home::ensure;

const SEEDS: u64 = 4;
/// Crashes along the way of one reassignment.
const POINTS: usize = 10;

fn plan(seed: u64, replicas: i16) -> Plan {
    Plan {
        seed,
        // Two may be gone, and a majority is left.
        nodes: 5,
        durability: Durability::PageCache,
        is_unclean: false,
        partitions: 1,
        replicas,
        isr_min: 2,
        producers: 1,
        transactional_ids: 0,
        reads_followers: false,
        deletes: false,
        planted: None,
    }
}

/// A cluster that has worked for a while: the nodes that lead and follow, in the order of the replicas.
fn begin(plan: Plan) -> Result<(World, Vec<usize>), String> {
    let mut world = World::new(plan)?;
    let works = |world: &World| world.checker.records > 20;
    ensure!(world.run_until(5 * SECOND, works)?, "nothing is acknowledged");
    let partition = world.partition();
    ensure!(partition.leader == partition.replicas.first().copied(), "another one leads: {partition:?}");
    let nodes = partition.replicas.iter().map(|id| id.0 as usize).collect();
    Ok((world, nodes))
}

fn for_seeds(run: impl Fn(u64) -> Result<(), String>) {
    for seed in 0..SEEDS {
        run(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

fn wait_for_leader(world: &mut World, leader: Option<usize>) -> Result<(), String> {
    let leads = world.run_until(10 * SECOND, |world| world.leader() == leader)?;
    ensure!(leads, "{leader:?} is to lead: {:?}", world.partition());
    Ok(())
}

#[test]
fn of_two_in_sync_that_fail_one_after_the_other_only_the_last_may_lead() {
    for_seeds(|seed| {
        let (mut world, nodes) = begin(plan(seed, 2))?;
        let [first, last] = nodes[..] else { return Err("two replicas".into()) };
        world.crash(first, [Crash::Process, Crash::Machine][seed as usize % 2]);
        wait_for_leader(&mut world, Some(last))?;
        world.run_for(200 * MS)?;
        world.crash(last, Crash::Process);
        wait_for_leader(&mut world, None)?;
        world.start_after(first, 0);
        let leads = world.run_until(4 * SECOND, |world| world.leader().is_some())?;
        ensure!(!leads, "it leads without the last one's records: {:?}", world.partition());
        world.start_after(last, 0);
        wait_for_leader(&mut world, Some(last))?;
        world.converge()
    });
}

#[test]
fn of_two_in_sync_that_fail_together_either_may_lead() {
    for_seeds(|seed| {
        let (mut world, nodes) = begin(plan(seed, 2))?;
        nodes.iter().for_each(|node| world.isolate(*node));
        wait_for_leader(&mut world, None)?;
        let back = nodes[seed as usize % 2];
        world.network.mend(back);
        wait_for_leader(&mut world, Some(back))?;
        world.run_for(500 * MS)?;
        world.converge()
    });
}

/// Whether the follower's high watermark was behind what was acknowledged when it came back.
fn follower_restarts_and_its_leader_dies(seed: u64) -> Result<bool, String> {
    let (mut world, nodes) = begin(plan(seed, 2))?;
    let [leader, follower] = nodes[..] else { return Err("two replicas".into()) };
    world.stop(follower);
    let has_stopped = world.run_until(5 * SECOND, |world| world.nodes[follower].broker.is_none())?;
    ensure!(has_stopped, "the follower does not stop");
    // It comes back, and does not hear of its leader any more, but of the controller.
    while world.controller().is_none_or(|controller| controller == leader) {
        world.quorum.depose();
        world.run_for(100 * MS)?;
    }
    world.network.cut_both(leader, follower);
    let serves = |world: &World| {
        let broker = world.quorum.image().broker(BrokerId(follower as i32));
        broker.is_some_and(|broker| broker.serves()) && world.nodes[follower].broker.is_some()
    };
    ensure!(world.run_until(10 * SECOND, serves)?, "the follower does not come back");
    let (key, _) = world.partitions()[0].clone();
    let committed = world.checker.history(key).committed_end();
    let replica = world.nodes[follower].broker.as_ref().and_then(|broker| broker.replicas.get(&key));
    let is_behind = replica.is_some_and(|replica| replica.partition.high_watermark().0 < committed);
    world.crash(leader, Crash::Process);
    wait_for_leader(&mut world, Some(follower))?;
    world.start_after(leader, 300 * MS);
    world.converge()?;
    Ok(is_behind)
}

#[test]
fn a_follower_that_restarts_does_not_cut_to_its_high_watermark() {
    let behind = (0..3 * SEEDS).filter(|seed| {
        follower_restarts_and_its_leader_dies(*seed)
            .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
    });
    assert!(behind.count() > 0, "no high watermark was behind: there was nothing to lose");
}

/// Each of two leads once without the other's records (KIP-279).
fn leaders_take_turns(plan: Plan) -> Result<(), String> {
    let (mut world, nodes) = begin(plan)?;
    let [first, second] = nodes[..] else { return Err("two replicas".into()) };
    let (key, _) = world.partitions()[0].clone();
    world.network.cut_both(first, second);
    let is_alone = |world: &World| world.partition().isr.len() == 1;
    ensure!(world.run_until(5 * SECOND, is_alone)?, "the follower stays in sync");
    world.run_for(300 * MS)?;
    world.crash(first, Crash::Process);
    wait_for_leader(&mut world, Some(second))?;
    // One that none of what is gone waits for.
    world.add_producer(key);
    world.run_for(400 * MS)?;
    world.crash(second, Crash::Process);
    world.start_after(first, 0);
    wait_for_leader(&mut world, Some(first))?;
    world.start_after(second, 0);
    world.run_for(300 * MS)?;
    world.converge()
}

#[test]
fn logs_that_part_twice_are_cut_where_they_part() {
    let unclean = |seed| Plan { is_unclean: true, isr_min: 1, ..plan(seed, 2) };
    for_seeds(|seed| leaders_take_turns(unclean(seed)));
    let planted = |seed| Plan { planted: Some(Planted::CutNotRechecked), ..unclean(seed) };
    assert!((0..SEEDS).any(|seed| leaders_take_turns(planted(seed)).is_err()), "there was nothing to cut");
}

#[test]
fn nobody_is_eligible_by_a_least_number_in_sync_that_was_lowered() {
    for_seeds(|seed| {
        let (mut world, nodes) = begin(Plan { nodes: 7, isr_min: 3, ..plan(seed, 3) })?;
        let left_out = nodes[2];
        world.isolate(left_out);
        let is_out = |world: &World| world.partition().transit().elr.len() == 1;
        ensure!(
            world.run_until(5 * SECOND, is_out)?,
            "it does not come to be eligible: {:?}",
            world.partition()
        );
        let before = world.checker.records;
        world.set_config("min.insync.replicas", "2");
        world.run_for(SECOND)?;
        ensure!(world.checker.records > before, "two are not enough");
        nodes[..2].iter().for_each(|node| world.isolate(*node));
        wait_for_leader(&mut world, None)?;
        world.network.mend(left_out);
        let leads = world.run_until(4 * SECOND, |world| world.leader().is_some())?;
        ensure!(!leads, "it leads without what was acknowledged since: {:?}", world.partition());
        world.converge()
    });
}

/// The replicas that the reassignment goes to: one that is new instead of the leader.
fn reassign(world: &mut World, nodes: &[usize]) -> Result<Vec<BrokerId>, String> {
    let new = (0..5).find(|node| !nodes.contains(node)).ok_or("all have it")?;
    let target: Vec<BrokerId> = [new].iter().chain(&nodes[1..]).map(|node| BrokerId(*node as i32)).collect();
    let wanted = Reassignment { index: PartitionIndex(0), replicas: Some(target.clone()) };
    let topics = vec![(TOPIC.to_owned(), vec![wanted])];
    let command = Command::AlterReassignments(AlterReassignments { may_change_factor: false, topics });
    let results = world.admin(command).map_err(|refusal| refusal.to_string())?.reassignments_altered();
    ensure!(results.iter().all(Result::is_ok), "{results:?}");
    Ok(target)
}

fn is_done(world: &World, target: &[BrokerId]) -> bool {
    let partition = world.partition();
    *partition.replicas == *target && partition.transit().adding.is_empty()
}

/// Events from the beginning of a reassignment to its end.
fn way(seed: u64) -> Result<usize, String> {
    let (mut world, nodes) = begin(plan(seed, 3))?;
    let target = reassign(&mut world, &nodes)?;
    let mut events = 0;
    while !is_done(&world, &target) {
        world.step()?;
        events += 1;
        ensure!(events < 100_000, "the reassignment does not end");
    }
    Ok(events)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Controller,
    Leader,
    New,
}

fn crash_on_the_way(seed: u64, events: usize, victim: Victim) -> Result<(), String> {
    let (mut world, nodes) = begin(plan(seed, 3))?;
    let target = reassign(&mut world, &nodes)?;
    for _ in 0..events {
        world.step()?;
    }
    let node = match victim {
        Victim::Controller => world.quorum.leader(),
        Victim::Leader => world.leader(),
        Victim::New => target.first().map(|id| id.0 as usize),
    };
    let node = node.ok_or("there is no such node")?;
    let crash = [Crash::Process, Crash::Machine][events % 2];
    world.crash(node, crash);
    world.start_after(node, 100 * MS + (events as u64 % 7) * 200 * MS);
    world.run_for(SECOND)?;
    world.converge()?;
    ensure!(is_done(&world, &target), "it has not come to {target:?}: {:?}", world.partition());
    let (key, _) = world.partitions()[0].clone();
    let left = world.nodes[nodes[0]].broker.as_ref().is_some_and(|broker| broker.replicas.contains_key(&key));
    ensure!(!left, "the old replica is still there");
    Ok(())
}

#[test]
fn a_reassignment_survives_a_crash_at_each_of_its_points() {
    let events = way(1).unwrap_or_else(|failure| panic!("{failure}"));
    for point in 0..=POINTS {
        for victim in [Victim::Controller, Victim::Leader, Victim::New] {
            let at = events * point / POINTS;
            crash_on_the_way(1, at, victim)
                .unwrap_or_else(|failure| panic!("{victim:?} after {at} of {events} events: {failure}"));
        }
    }
}
