//! 1,000 groups of ten members, each member with its connection and a heartbeat every three seconds.

use std::io::{Error, Result};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, HeartbeatRequest};

use crate::broker::Broker;
use crate::settle::{self, ClassicMember, ConsumerMember};
use crate::wire::{Connection, frame};
use crate::{Options, Outcome};

const GROUPS: usize = 1_000;
const MEMBERS_OF_GROUP: usize = 10;
const INTERVAL: Duration = Duration::from_secs(3);
/// The first wait for long until all are there.
const SESSION_MS: i32 = 300_000;
/// What is due within one of these is sent together.
const TICK: Duration = Duration::from_millis(1);

pub fn consumer(options: &Options) -> Outcome {
    let settings = [
        ("group.consumer.min.heartbeat.interval.ms", "3000"),
        ("group.consumer.heartbeat.interval.ms", "3000"),
        ("group.consumer.assignment.interval.ms", "0"),
        // The first wait for long until all are there.
        ("group.consumer.max.session.timeout.ms", "300000"),
        ("group.consumer.session.timeout.ms", "300000"),
    ];
    let broker = Broker::start(options, MEMBERS_OF_GROUP as i32, &settings)?;
    let mut members = Vec::new();
    for group in 0..GROUPS {
        let mut new: Vec<ConsumerMember> = (0..MEMBERS_OF_GROUP)
            .map(|member| ConsumerMember::open(&broker, &format!("g{group}"), member))
            .collect::<Result<_>>()?;
        settle_consumers(&mut new)?;
        members.extend(new);
    }
    let beats = members.into_iter().map(|member| {
        let beat = frame(settle::CONSUMER_HEARTBEAT, &member.quiet());
        (member.connection, beat)
    });
    measure("heartbeats", &broker, beats.collect(), options.time, |connection| {
        Ok(connection.receive::<ConsumerGroupHeartbeatRequest>(settle::CONSUMER_HEARTBEAT)?.error_code)
    })
}

/// Heartbeats until all members are at one epoch and share all partitions.
fn settle_consumers(members: &mut [ConsumerMember]) -> Result<()> {
    for member in &mut *members {
        member.beat()?;
    }
    for _ in 0..100 {
        let is_settled = members.iter().all(|member| member.epoch == members[0].epoch);
        let owned: usize = members.iter().map(|member| member.owned.len()).sum();
        if is_settled && owned == members.len() {
            return Ok(());
        }
        for member in &mut *members {
            member.beat()?;
        }
    }
    Err(Error::other("a group does not settle"))
}

pub fn classic(options: &Options) -> Outcome {
    let broker = Broker::start(options, MEMBERS_OF_GROUP as i32, &[])?;
    let mut members = Vec::new();
    for number in 0..GROUPS * MEMBERS_OF_GROUP {
        let group = format!("g{}", number / MEMBERS_OF_GROUP);
        members.push(ClassicMember::open(&broker, &group, SESSION_MS)?);
    }
    // All of a group wait until the last has joined: nobody is waited for before all have asked.
    for member in &mut members {
        member.send_join()?;
    }
    for member in &mut members {
        member.receive_join()?;
    }
    for member in &mut members {
        member.send_sync()?;
    }
    for member in &mut members {
        if !member.receive_sync()? {
            return Err(Error::other("a group rebalances again"));
        }
    }
    let beats = members.into_iter().map(|member| {
        let beat = frame(settle::HEARTBEAT, &member.heartbeat());
        (member.connection, beat)
    });
    measure("heartbeats-classic", &broker, beats.collect(), options.time, |connection| {
        Ok(connection.receive::<HeartbeatRequest>(settle::HEARTBEAT)?.error_code)
    })
}

fn measure(
    name: &str,
    broker: &Broker,
    mut members: Vec<(Connection, Vec<u8>)>,
    time: Duration,
    receive: impl Fn(&mut Connection) -> Result<i16>,
) -> Outcome {
    // Idle connections first: what the heartbeats cost is the difference.
    let (idle_from, start) = (broker.cpu_time()?, Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let idle = share(broker.cpu_time()? - idle_from, start.elapsed());

    eprintln!("{name}: all are there, measuring for {} s", time.as_secs());
    let mut latency = Histogram::<u64>::new(3).map_err(Error::other)?;
    let count = members.len();
    let period = INTERVAL.div_f64(count as f64);
    let (from, start) = (broker.cpu_time()?, Instant::now());
    let mut sent = 0usize;
    while start.elapsed() < time {
        let due = (start.elapsed().as_secs_f64() / period.as_secs_f64()) as usize;
        // A stride spreads the members of a group over the interval.
        let batch: Vec<usize> = (sent..due).map(|at| (at * 7919) % count).collect();
        for at in &batch {
            let (connection, beat) = &mut members[*at];
            connection.send(beat)?;
        }
        for (place, at) in batch.iter().enumerate() {
            match receive(&mut members[*at].0)? {
                0 => {}
                code => return Err(Error::other(format!("a heartbeat is refused with {code}"))),
            }
            let since = start.elapsed().saturating_sub(period * (sent + place) as u32);
            latency.record(since.as_micros() as u64).map_err(Error::other)?;
        }
        sent += batch.len();
        std::thread::sleep(TICK);
    }
    let (used, elapsed) = (broker.cpu_time()? - from, start.elapsed());
    println!(
        "{name}: {GROUPS} groups of {MEMBERS_OF_GROUP}, {:.0} heartbeats/s: {:.1}% of a core ({:.1} µs each; \
         idle with the connections {idle:.1}%); answered after p50 {:.2} ms, p99 {:.2} ms (with up to 1 ms of \
         this program's own)",
        sent as f64 / elapsed.as_secs_f64(),
        share(used, elapsed),
        used.as_secs_f64() * 1e6 / sent as f64,
        latency.value_at_quantile(0.5) as f64 / 1000.0,
        latency.value_at_quantile(0.99) as f64 / 1000.0,
    );
    Ok(())
}

fn share(used: Duration, elapsed: Duration) -> f64 {
    100.0 * used.as_secs_f64() / elapsed.as_secs_f64()
}
