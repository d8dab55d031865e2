//! One group of 1,000 members: how long until it is settled after all have started, and after ten of them were lost.

use std::collections::BTreeSet;
use std::io::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, GroupId, HeartbeatRequest, JoinGroupRequest, SyncGroupRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use crate::broker::{Broker, TOPIC};
use crate::wire::{Connection, frame, text};
use crate::{Options, Outcome};

pub const CONSUMER_HEARTBEAT: i16 = 1;
pub const HEARTBEAT: i16 = 4;
const JOIN: i16 = 9;
const SYNC: i16 = 5;

const MEMBERS: usize = 1_000;
const LOST: usize = 10;
const PARTITIONS: i32 = 1_000;
const SESSION_MS: i32 = 10_000;
const REBALANCE_MS: i32 = 300_000;
const INTERVAL: Duration = Duration::from_secs(3);
/// A member's thread needs little.
const STACK_BYTES: usize = 128 << 10;
const GIVEN_UP_AFTER: Duration = Duration::from_secs(120);

const MEMBER_ID_REQUIRED: i16 = 79;
const REBALANCE_IN_PROGRESS: i16 = 27;

/// A member of the new protocol, which does what a client does.
pub struct ConsumerMember {
    pub connection: Connection,
    group: StrBytes,
    id: StrBytes,
    pub epoch: i32,
    pub owned: BTreeSet<i32>,
    topic: uuid::Uuid,
    /// What it has is to be told.
    tells: bool,
}

impl ConsumerMember {
    pub fn open(broker: &Broker, group: &str, number: usize) -> Result<Self> {
        Ok(Self {
            connection: Connection::open(broker.address)?,
            group: text(group),
            id: text(&format!("member-{number:06}-of-{group}")),
            epoch: 0,
            owned: BTreeSet::new(),
            topic: uuid::Uuid::nil(),
            tells: false,
        })
    }

    /// The heartbeat that says nothing new.
    pub fn quiet(&self) -> ConsumerGroupHeartbeatRequest {
        ConsumerGroupHeartbeatRequest::default()
            .with_group_id(GroupId(self.group.clone()))
            .with_member_id(self.id.clone())
            .with_member_epoch(self.epoch)
            .with_rebalance_timeout_ms(-1)
    }

    /// Joins, or tells what it has when that has changed; takes over what it is to have.
    pub fn beat(&mut self) -> Result<()> {
        let mut request = self.quiet();
        if self.epoch == 0 {
            request = request
                .with_rebalance_timeout_ms(REBALANCE_MS)
                .with_subscribed_topic_names(Some(vec![TopicName(text(TOPIC))]))
                .with_topic_partitions(Some(Vec::new()));
        } else if self.tells {
            let owned = TopicPartitions::default()
                .with_topic_id(self.topic)
                .with_partitions(self.owned.iter().copied().collect());
            let owned = if self.owned.is_empty() { Vec::new() } else { vec![owned] };
            request = request.with_topic_partitions(Some(owned));
        }
        let response = self.connection.call(CONSUMER_HEARTBEAT, &request)?;
        if response.error_code != 0 {
            return Err(Error::other(format!("a heartbeat is refused with {}", response.error_code)));
        }
        self.epoch = response.member_epoch;
        self.tells = false;
        if let Some(assignment) = response.assignment {
            let mut owned = BTreeSet::new();
            for topic in assignment.topic_partitions {
                self.topic = topic.topic_id;
                owned.extend(topic.partitions);
            }
            self.tells = owned != self.owned;
            self.owned = owned;
        }
        Ok(())
    }
}

/// A member of the classic protocol; whoever leads gives each member one partition.
pub struct ClassicMember {
    pub connection: Connection,
    group: StrBytes,
    id: StrBytes,
    session_timeout_ms: i32,
    pub generation: i32,
    /// Of the generation, if it leads it.
    members: Vec<StrBytes>,
}

impl ClassicMember {
    /// With an id, which the first JoinGroup gives.
    pub fn open(broker: &Broker, group: &str, session_timeout_ms: i32) -> Result<Self> {
        let connection = Connection::open(broker.address)?;
        let mut member = Self {
            connection,
            group: text(group),
            id: StrBytes::new(),
            session_timeout_ms,
            generation: -1,
            members: Vec::new(),
        };
        let given = member.connection.call(JOIN, &member.join())?;
        if given.error_code != MEMBER_ID_REQUIRED {
            return Err(Error::other(format!("no member id but {}", given.error_code)));
        }
        member.id = text(&given.member_id);
        Ok(member)
    }

    fn join(&self) -> JoinGroupRequest {
        let mut subscription = BytesMut::new();
        subscription.put_i16(0);
        subscription.put_i32(1);
        subscription.put_i16(TOPIC.len() as i16);
        subscription.put_slice(TOPIC.as_bytes());
        subscription.put_i32(-1);
        let protocol = JoinGroupRequestProtocol::default()
            .with_name(StrBytes::from_static_str("range"))
            .with_metadata(subscription.freeze());
        JoinGroupRequest::default()
            .with_group_id(GroupId(self.group.clone()))
            .with_member_id(self.id.clone())
            .with_session_timeout_ms(self.session_timeout_ms)
            .with_rebalance_timeout_ms(REBALANCE_MS)
            .with_protocol_type(StrBytes::from_static_str("consumer"))
            .with_protocols(vec![protocol])
    }

    pub fn heartbeat(&self) -> HeartbeatRequest {
        HeartbeatRequest::default()
            .with_group_id(GroupId(self.group.clone()))
            .with_member_id(self.id.clone())
            .with_generation_id(self.generation)
    }

    pub fn send_join(&mut self) -> Result<()> {
        let request = frame(JOIN, &self.join());
        self.connection.send(&request)
    }

    pub fn receive_join(&mut self) -> Result<()> {
        let joined = self.connection.receive::<JoinGroupRequest>(JOIN)?;
        if joined.error_code != 0 {
            return Err(Error::other(format!("a join is refused with {}", joined.error_code)));
        }
        self.generation = joined.generation_id;
        self.members = joined.members.into_iter().map(|member| member.member_id).collect();
        Ok(())
    }

    pub fn send_sync(&mut self) -> Result<()> {
        let assignments = std::mem::take(&mut self.members).into_iter().zip(0..).map(|(id, partition)| {
            SyncGroupRequestAssignment::default().with_member_id(id).with_assignment(assignment(partition))
        });
        let request = SyncGroupRequest::default()
            .with_group_id(GroupId(self.group.clone()))
            .with_member_id(self.id.clone())
            .with_generation_id(self.generation)
            .with_protocol_type(Some(StrBytes::from_static_str("consumer")))
            .with_protocol_name(Some(StrBytes::from_static_str("range")))
            .with_assignments(assignments.collect());
        let request = frame(SYNC, &request);
        self.connection.send(&request)
    }

    /// Whether the generation stands.
    pub fn receive_sync(&mut self) -> Result<bool> {
        match self.connection.receive::<SyncGroupRequest>(SYNC)?.error_code {
            0 => Ok(true),
            REBALANCE_IN_PROGRESS => Ok(false),
            code => Err(Error::other(format!("a sync is refused with {code}"))),
        }
    }
}

fn assignment(partition: i32) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(0);
    bytes.put_i32(1);
    bytes.put_i16(TOPIC.len() as i16);
    bytes.put_slice(TOPIC.as_bytes());
    bytes.put_i32(1);
    bytes.put_i32(partition);
    bytes.put_i32(-1);
    bytes.freeze()
}

/// What a member's thread shows.
#[derive(Default)]
struct Shown {
    /// Its epoch or generation; 0 while it is between two.
    epoch: AtomicI32,
    owned: AtomicUsize,
    /// It ends without a word.
    is_lost: AtomicBool,
}

impl Shown {
    fn show(&self, epoch: i32, owned: usize) {
        self.owned.store(owned, Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Release);
    }

    /// Whether it goes on when the pause is over.
    fn pause(&self, until: Instant) -> bool {
        while !self.is_lost.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
        false
    }
}

pub fn consumer(options: &Options) -> Outcome {
    let settings = [
        ("group.consumer.min.heartbeat.interval.ms", "3000"),
        ("group.consumer.heartbeat.interval.ms", "3000"),
        ("group.consumer.min.session.timeout.ms", "10000"),
        ("group.consumer.session.timeout.ms", "10000"),
    ];
    let broker = Broker::start(options, PARTITIONS, &settings)?;
    let members = (0..MEMBERS).map(|number| ConsumerMember::open(&broker, "g", number));
    let members = members.collect::<Result<Vec<_>>>()?;
    measure(
        "settle",
        &broker,
        members,
        |_| PARTITIONS as usize,
        |mut member, shown| {
            let mut next = Instant::now();
            while shown.pause(next) {
                let start = Instant::now();
                member.beat()?;
                shown.show(member.epoch, member.owned.len());
                // What has changed is told at once.
                next = if member.tells { start } else { start + INTERVAL };
            }
            Ok(())
        },
    )
}

pub fn classic(options: &Options) -> Outcome {
    let broker = Broker::start(options, PARTITIONS, &[])?;
    let members = (0..MEMBERS).map(|_| ClassicMember::open(&broker, "g", SESSION_MS));
    let members = members.collect::<Result<Vec<_>>>()?;
    measure(
        "settle-classic",
        &broker,
        members,
        |members| members,
        |mut member, shown| {
            while !shown.is_lost.load(Ordering::Relaxed) {
                shown.show(0, 0);
                member.send_join()?;
                member.receive_join()?;
                member.send_sync()?;
                if !member.receive_sync()? {
                    continue;
                }
                shown.show(member.generation, 1);
                let mut next = Instant::now() + INTERVAL;
                while shown.pause(next) {
                    next = Instant::now() + INTERVAL;
                    match member.connection.call(HEARTBEAT, &member.heartbeat())?.error_code {
                        0 => {}
                        REBALANCE_IN_PROGRESS => break,
                        code => return Err(Error::other(format!("a heartbeat is refused with {code}"))),
                    }
                }
            }
            Ok(())
        },
    )
}

/// `shared` is how many partitions so many members have between them.
fn measure<M: Send + 'static>(
    name: &str,
    broker: &Broker,
    members: Vec<M>,
    shared: impl Fn(usize) -> usize,
    live: impl Fn(M, &Shown) -> Result<()> + Clone + Send + 'static,
) -> Outcome {
    let shown: Vec<Arc<Shown>> = members.iter().map(|_| Arc::default()).collect();
    let start = Arc::new(Barrier::new(members.len() + 1));
    let failed = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::with_capacity(members.len());
    for (member, shown) in members.into_iter().zip(&shown) {
        let (shown, start, failed, live) = (shown.clone(), start.clone(), failed.clone(), live.clone());
        let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
        threads.push(builder.spawn(move || {
            start.wait();
            if let Err(error) = live(member, &shown)
                && !shown.is_lost.load(Ordering::Relaxed)
                && !failed.swap(true, Ordering::Relaxed)
            {
                eprintln!("group-load: {error}");
            }
        })?);
    }
    let cpu = broker.cpu_time()?;
    start.wait();
    let begun = Instant::now();
    let (first, started) = await_settled(&shown, 0, shared(MEMBERS), &failed, begun)?;
    let cpu_of_start = broker.cpu_time()? - cpu;
    // Steady for a while, so that everybody has sent a heartbeat.
    std::thread::sleep(2 * INTERVAL);

    let (lost, rest) = shown.split_at(LOST);
    let cpu = broker.cpu_time()?;
    let killed = Instant::now();
    lost.iter().for_each(|shown| shown.is_lost.store(true, Ordering::Relaxed));
    let (_, recovered) = await_settled(rest, first, shared(MEMBERS - LOST), &failed, killed)?;
    let cpu_of_loss = broker.cpu_time()? - cpu;
    println!(
        "{name}: {MEMBERS} members of one group and {PARTITIONS} partitions settle {:.2} s after they start \
         ({:.2} s of CPU); after the loss of {LOST}: session time-out + {:.2} s ({:.2} s of CPU in {:.1} s)",
        started.as_secs_f64(),
        cpu_of_start.as_secs_f64(),
        recovered.as_secs_f64() - f64::from(SESSION_MS) / 1000.0,
        cpu_of_loss.as_secs_f64(),
        recovered.as_secs_f64(),
    );
    shown.iter().for_each(|shown| shown.is_lost.store(true, Ordering::Relaxed));
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

/// Waits until all are at one epoch later than `after` and share so many partitions evenly.
fn await_settled(
    shown: &[Arc<Shown>],
    after: i32,
    wanted: usize,
    failed: &AtomicBool,
    since: Instant,
) -> Result<(i32, Duration)> {
    loop {
        let epoch = shown[0].epoch.load(Ordering::Acquire);
        let is_settled = epoch > after && shown.iter().all(|it| it.epoch.load(Ordering::Acquire) == epoch);
        let owned = || shown.iter().map(|it| it.owned.load(Ordering::Relaxed));
        // While a target is put off all are at the epoch of the first member, which has everything: each must have
        // its share.
        let is_even = owned().max().unwrap_or(0) <= owned().min().unwrap_or(0) + 1;
        if is_settled && is_even && owned().sum::<usize>() == wanted {
            return Ok((epoch, since.elapsed()));
        }
        if failed.load(Ordering::Relaxed) {
            return Err(Error::other("a member failed"));
        }
        if since.elapsed() > GIVEN_UP_AFTER {
            return Err(Error::other("the group does not settle"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
