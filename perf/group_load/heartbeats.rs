//! 1,000 groups of ten members, each member with its connection and a heartbeat every three seconds.

use std::io::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use kafka_protocol::messages::{ApiVersionsRequest, ConsumerGroupHeartbeatRequest, HeartbeatRequest};
use rustix::event::epoll;

use crate::broker::Broker;
use crate::settle::{self, ClassicMember, ConsumerMember};
use crate::wire::{Connection, frame, text};
use crate::{Options, Outcome};

const GROUPS: usize = 1_000;
const MEMBERS_OF_GROUP: usize = 10;
const INTERVAL: Duration = Duration::from_secs(3);
const WHAT: &str = "1,000 groups of 10 members";
const SMALL_CONNECTIONS: usize = 1_000;
const SMALL_INTERVAL: Duration = Duration::from_millis(300);
const SMALL_VERSION: i16 = 3;
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
    let load = Load { name: "heartbeats", what: WHAT, interval: INTERVAL, members: beats.collect() };
    measure(load, &broker, options.time, |connection| {
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
    let load = Load { name: "heartbeats-classic", what: WHAT, interval: INTERVAL, members: beats.collect() };
    measure(load, &broker, options.time, |connection| {
        Ok(connection.receive::<HeartbeatRequest>(settle::HEARTBEAT)?.error_code)
    })
}

/// The same with as little as a request can be, to tell what connections cost from what groups do.
pub fn small(options: &Options) -> Outcome {
    let broker = Broker::start(options, 1, &[])?;
    let request = ApiVersionsRequest::default()
        .with_client_software_name(text("group-load"))
        .with_client_software_version(text("1"));
    let members = (0..SMALL_CONNECTIONS)
        .map(|_| Ok((Connection::open(broker.address)?, frame(SMALL_VERSION, &request))));
    let members = members.collect::<Result<Vec<_>>>()?;
    let load = Load { name: "small", what: "ApiVersions", interval: SMALL_INTERVAL, members };
    measure(load, &broker, options.time, |connection| {
        Ok(connection.receive::<ApiVersionsRequest>(SMALL_VERSION)?.error_code)
    })
}

/// Connections, each with what it sends every so often.
struct Load {
    name: &'static str,
    what: &'static str,
    interval: Duration,
    members: Vec<(Connection, Vec<u8>)>,
}

fn measure(
    load: Load,
    broker: &Broker,
    time: Duration,
    receive: impl Fn(&Connection) -> Result<i16>,
) -> Outcome {
    let Load { name, what, interval, members } = load;
    // Idle connections first: what the heartbeats cost is the difference.
    let (idle_from, start) = (broker.cpu_time()?, Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let idle = share(broker.cpu_time()? - idle_from, start.elapsed());

    eprintln!("{name}: all are there, measuring for {} s", time.as_secs());
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (at, (connection, _)) in members.iter().enumerate() {
        epoll::add(&epoll, connection, epoll::EventData::new_u64(at as u64), epoll::EventFlags::IN)?;
    }
    let mut latency = Histogram::<u64>::new(3).map_err(Error::other)?;
    let period = interval.div_f64(members.len() as f64);
    // When the heartbeat that is under way was due, in µs.
    let due: Vec<AtomicU64> = members.iter().map(|_| AtomicU64::new(0)).collect();
    // A few times around before the figures begin: the broker gets to know whose connections these are.
    let warm = 6 * interval;
    let start = Instant::now();
    let (mut answered, mut used, mut measured) = (0u64, Duration::ZERO, Duration::ZERO);
    std::thread::scope(|scope| -> Result<()> {
        // Each member keeps its times, whatever the broker does: the others do not wait for its answer.
        let sender = scope.spawn(|| send_due(&members, &due, period, start, warm + time));
        let mut events = Vec::with_capacity(1024);
        let mut from = None;
        while start.elapsed() < warm + time && !sender.is_finished() {
            events.clear();
            let patience = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience))?;
            let now = start.elapsed();
            if from.is_none() && now >= warm {
                from = Some((broker.cpu_time()?, now));
            }
            for event in &events {
                let at = event.data.u64() as usize;
                match receive(&members[at].0)? {
                    0 => {}
                    code => return Err(Error::other(format!("a heartbeat is refused with {code}"))),
                }
                if from.is_some() {
                    let since = start.elapsed().as_micros() as u64 - due[at].load(Ordering::Acquire);
                    latency.record(since).map_err(Error::other)?;
                    answered += 1;
                }
            }
        }
        let end = (broker.cpu_time()?, start.elapsed());
        sender.join().map_err(|_| Error::other("the sender failed"))??;
        let (cpu, at) = from.ok_or_else(|| Error::other("the time was too short"))?;
        (used, measured) = (end.0 - cpu, end.1 - at);
        Ok(())
    })?;
    println!(
        "{name}: {} connections, {:.0}/s ({what}): {:.1}% of a core ({:.1} µs each; idle with the connections \
         {idle:.1}%); answered after p50 {:.2} ms, p99 {:.2} ms (with up to 1 ms of this program's own)",
        members.len(),
        answered as f64 / measured.as_secs_f64(),
        share(used, measured),
        used.as_secs_f64() * 1e6 / answered as f64,
        latency.value_at_quantile(0.5) as f64 / 1000.0,
        latency.value_at_quantile(0.99) as f64 / 1000.0,
    );
    Ok(())
}

/// Sends each member's heartbeat at its time, for `time` from `start` on.
fn send_due(
    members: &[(Connection, Vec<u8>)],
    due: &[AtomicU64],
    period: Duration,
    start: Instant,
    time: Duration,
) -> Result<()> {
    let mut sent = 0u64;
    while start.elapsed() < time {
        let until = (start.elapsed().as_secs_f64() / period.as_secs_f64()) as u64;
        for beat in sent..until {
            // A stride spreads the members of a group over the interval.
            let at = (beat * 7919) as usize % members.len();
            due[at].store((period.as_nanos() as u64 * beat) / 1000, Ordering::Release);
            let (connection, frame) = &members[at];
            connection.send(frame)?;
        }
        sent = sent.max(until);
        std::thread::sleep(TICK);
    }
    Ok(())
}

fn share(used: Duration, elapsed: Duration) -> f64 {
    100.0 * used.as_secs_f64() / elapsed.as_secs_f64()
}
