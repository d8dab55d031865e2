//! The share coordinator: its records byte for byte, the answers to each request, and random sequences with failed
//! appends and reloads against the log alone.

use std::sync::Arc;
use std::time::Duration;

use super::machine::{Coordinator, Effect, Request, Response, StateWrite};
use super::records::{Record, RecordError, Snapshot, Update};
use crate::base::clock::{Monotonic, Now, Timestamp};
use crate::base::random::Random;
use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use crate::config::ShareStateSettings;
use crate::coordinator::{KeyValue, ReplyToken, Ticket};
use crate::share::{DeliveryState, Persisted, ShareKey, StateBatch};
use crate::wire::ErrorCode;

pub(super) fn key(group: &str) -> ShareKey {
    let topic = TopicId(uuid::Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10));
    ShareKey { group: Arc::from(group), topic, partition: PartitionIndex(3) }
}

pub(super) fn batch(first: i64, last: i64, state: DeliveryState, delivery_count: u16) -> StateBatch {
    StateBatch { first: Offset(first), last: Offset(last), state, delivery_count }
}

fn settings() -> ShareStateSettings {
    ShareStateSettings {
        topic_partitions: 4,
        topic_replication_factor: 1,
        topic_segment_bytes: 1 << 20,
        topic_in_sync_replicas_min: 1,
        updates_per_snapshot: 5,
        write_timeout: Duration::from_secs(5),
        append_linger: None,
        prune_interval: Duration::from_secs(300),
        cold_interval: Duration::from_secs(300),
    }
}

/// The machine over a log in memory.
pub(super) struct World {
    pub(super) coordinator: Coordinator,
    pub(super) log: Vec<(PartitionIndex, KeyValue)>,
    /// Appends that have not been answered.
    pub(super) pending: Vec<(PartitionIndex, KeyValue, Ticket)>,
    pub(super) replies: Vec<(ReplyToken, Response)>,
    pruned: Vec<(PartitionIndex, Offset)>,
    pub(super) now: Now,
    next_token: u64,
}

impl World {
    pub(super) fn new() -> Self {
        let now = Now { monotonic: Monotonic::ZERO, wall: Timestamp(1_000) };
        let mut world = Self {
            coordinator: Coordinator::new(settings(), 4, now),
            log: Vec::new(),
            pending: Vec::new(),
            replies: Vec::new(),
            pruned: Vec::new(),
            now,
            next_token: 0,
        };
        world.reload();
        world
    }

    pub(super) fn reload(&mut self) {
        self.pending.clear();
        self.coordinator = Coordinator::new(settings(), 4, self.now);
        for index in (0..4).map(PartitionIndex) {
            self.coordinator.load(index);
            for (at, (partition, record)) in self.log.iter().enumerate() {
                if *partition == index {
                    let value = record.value.as_deref();
                    self.coordinator.replay(index, Offset(at as i64), &record.key, value);
                }
            }
            self.coordinator.loaded(index);
        }
    }

    pub(super) fn perform(&mut self) {
        for effect in self.coordinator.drain_effects() {
            match effect {
                Effect::Reply { token, response } => self.replies.push((token, response)),
                Effect::Append { partition, record, ticket } => {
                    self.pending.push((partition, record, ticket));
                }
                Effect::Prune { partition, below } => self.pruned.push((partition, below)),
            }
        }
    }

    pub(super) fn send(&mut self, request: Request) -> ReplyToken {
        let token = ReplyToken(self.next_token);
        self.next_token += 1;
        self.coordinator.handle(request, token, self.now);
        self.perform();
        token
    }

    pub(super) fn finish(&mut self, at: usize, result: Result<(), ErrorCode>) {
        let (partition, record, ticket) = self.pending.remove(at);
        let result = result.map(|()| {
            self.log.push((partition, record));
            Offset(self.log.len() as i64 - 1)
        });
        self.coordinator.appended(ticket, result, self.now);
        self.perform();
    }

    pub(super) fn ask(&mut self, request: Request) -> Response {
        let token = self.send(request);
        while !self.pending.is_empty() {
            self.finish(0, Ok(()));
        }
        let at = self.replies.iter().position(|(replied, _)| *replied == token).expect("a reply");
        self.replies.remove(at).1
    }

    pub(super) fn read(&mut self, group: &str) -> Result<Persisted, ErrorCode> {
        match self.ask(read(group, LeaderEpoch::NONE)) {
            Response::Read(result) => result,
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn initialize(group: &str, state_epoch: i32, start: i64) -> Request {
    Request::Initialize { key: key(group), state_epoch, start: Offset(start) }
}

pub(super) fn read(group: &str, leader_epoch: LeaderEpoch) -> Request {
    Request::Read { key: key(group), leader_epoch }
}

fn write(group: &str, start: i64, batches: &[StateBatch]) -> Request {
    Request::Write(Box::new(StateWrite {
        key: key(group),
        state_epoch: 1,
        leader_epoch: LeaderEpoch(7),
        start: Offset(start),
        delivery_complete: 2,
        batches: batches.to_vec(),
    }))
}

#[test]
fn records_are_kafkas_byte_for_byte() {
    let snapshot = Snapshot {
        snapshot_epoch: 2,
        state_epoch: 1,
        leader_epoch: LeaderEpoch(7),
        start: Offset(10),
        delivery_complete: 3,
        created_at: Timestamp(5),
        written_at: Timestamp(6),
        batches: vec![batch(10, 11, DeliveryState::Archived, 2)],
    };
    let record = Record::Snapshot { key: key("g"), value: Some(snapshot) };
    let KeyValue { key: bytes, value } = record.encode();
    #[rustfmt::skip]
    let expected_key: &[u8] = &[
        0, 0,  0, 1, b'g',  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,  0, 0, 0, 3,
    ];
    assert_eq!(&bytes[..], expected_key);
    #[rustfmt::skip]
    let expected: &[u8] = &[
        0, 0,  0, 0, 0, 2,  0, 0, 0, 1,  0, 0, 0, 7,  0, 0, 0, 0, 0, 0, 0, 10,
        0, 0, 0, 0, 0, 0, 0, 5,  0, 0, 0, 0, 0, 0, 0, 6,
        2,  0, 0, 0, 0, 0, 0, 0, 10,  0, 0, 0, 0, 0, 0, 0, 11,  4,  0, 2,  0,
        1, 0, 4, 0, 0, 0, 3,
    ];
    assert_eq!(value.as_deref(), Some(expected));
    assert_eq!(Record::decode(&bytes, value.as_deref()), Ok(record));
    let value = Update {
        snapshot_epoch: 2,
        leader_epoch: LeaderEpoch(7),
        start: Offset(10),
        delivery_complete: -1,
        batches: Vec::new(),
    };
    let record = Record::Update { key: key("g"), value };
    let KeyValue { key: bytes, value } = record.encode();
    assert_eq!(bytes[..2], [0, 1]);
    let expected: &[u8] = &[0, 0, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 10, 1, 0];
    assert_eq!(value.as_deref(), Some(expected));
    assert_eq!(Record::decode(&bytes, value.as_deref()), Ok(record));
}

#[test]
fn broken_records_are_refused() {
    let snapshot = Record::Snapshot { key: key("g"), value: None }.encode();
    let update = Record::Update {
        key: key("g"),
        value: Update {
            snapshot_epoch: 0,
            leader_epoch: LeaderEpoch(0),
            start: Offset(0),
            delivery_complete: -1,
            batches: vec![batch(0, 1, DeliveryState::Acknowledged, 1)],
        },
    }
    .encode();
    let value = update.value.expect("an update has a value");
    assert_eq!(Record::decode(&[0, 9, 0, 0], None), Err(RecordError::UnknownKey(9)));
    assert_eq!(Record::decode(&update.key, None), Err(RecordError::NoUpdate));
    assert_eq!(Record::decode(&snapshot.key, Some(&[0, 5])), Err(RecordError::UnknownValue(5)));
    for len in 0..value.len() {
        assert!(Record::decode(&update.key, Some(&value[..len])).is_err(), "{len}");
    }
    for len in 0..update.key.len() {
        assert!(Record::decode(&update.key[..len], Some(&value)).is_err(), "{len}");
    }
}

#[test]
fn each_request_is_answered_by_what_is_kept() {
    let mut world = World::new();
    let error = |code| Response::Changed(Err(code));
    assert_eq!(world.read("g"), Err(ErrorCode::UnknownTopicOrPartition));
    assert_eq!(world.ask(write("g", 0, &[])), error(ErrorCode::InvalidRequest));
    assert_eq!(world.ask(Request::Delete { key: key("g") }), Response::Changed(Ok(())));
    assert_eq!(world.ask(initialize("g", 1, -1)), Response::Changed(Ok(())));
    let kept = world.read("g").expect("it is there");
    assert_eq!((kept.state_epoch, kept.start, kept.batches.len()), (1, Offset(-1), 0));

    let accepted = batch(3, 4, DeliveryState::Acknowledged, 1);
    assert_eq!(world.ask(write("g", 2, &[accepted])), Response::Changed(Ok(())));
    let kept = world.read("g").expect("it is there");
    assert_eq!((kept.start, kept.delivery_complete, &kept.batches[..]), (Offset(2), 2, &[accepted][..]));
    let mut old = write("g", 2, &[]);
    if let Request::Write(write) = &mut old {
        write.leader_epoch = LeaderEpoch(6);
    }
    assert_eq!(world.ask(old.clone()), error(ErrorCode::FencedLeaderEpoch));
    if let Request::Write(write) = &mut old {
        (write.leader_epoch, write.state_epoch) = (LeaderEpoch(7), 0);
    }
    assert_eq!(world.ask(old), error(ErrorCode::FencedStateEpoch));

    // A new position fences whoever writes by the old one.
    assert_eq!(world.ask(initialize("g", 2, 50)), Response::Changed(Ok(())));
    assert_eq!(world.ask(write("g", 2, &[])), error(ErrorCode::FencedStateEpoch));
    assert_eq!(world.ask(initialize("g", 1, 0)), error(ErrorCode::FencedStateEpoch));
    assert_eq!(world.read("g").map(|kept| (kept.start, kept.batches.len())), Ok((Offset(50), 0)));
    assert_eq!(world.ask(Request::Delete { key: key("g") }), Response::Changed(Ok(())));
    assert_eq!(world.read("g"), Err(ErrorCode::UnknownTopicOrPartition));
}

#[test]
fn a_partition_that_is_not_here_or_not_loaded_says_so() {
    let mut world = World::new();
    let index = world.coordinator.partition_of(&key("g"));
    world.coordinator.load(index);
    assert_eq!(world.read("g"), Err(ErrorCode::CoordinatorLoadInProgress));
    world.coordinator.unload(index);
    assert_eq!(world.read("g"), Err(ErrorCode::NotCoordinator));
}

#[test]
fn who_waits_when_the_partition_goes_is_answered_once() {
    let mut world = World::new();
    assert_eq!(world.ask(initialize("g", 1, 0)), Response::Changed(Ok(())));
    let tokens = [world.send(write("g", 0, &[])), world.send(read("g", LeaderEpoch::NONE))];
    world.coordinator.unload(world.coordinator.partition_of(&key("g")));
    world.perform();
    assert_eq!(
        world.replies,
        [
            (tokens[0], Response::Changed(Err(ErrorCode::NotCoordinator))),
            (tokens[1], Response::Read(Err(ErrorCode::NotCoordinator))),
        ]
    );
    // The append comes back late.
    world.finish(0, Ok(()));
    assert_eq!(world.replies.len(), 2);
}

#[test]
fn a_failed_append_changes_nothing_and_who_waits_goes_on() {
    let mut world = World::new();
    assert_eq!(world.ask(initialize("g", 1, 0)), Response::Changed(Ok(())));
    let first = world.send(write("g", 0, &[batch(0, 0, DeliveryState::Acknowledged, 1)]));
    let second = world.send(write("g", 0, &[batch(1, 1, DeliveryState::Archived, 1)]));
    let third = world.send(read("g", LeaderEpoch::NONE));
    assert_eq!(world.pending.len(), 1, "one at a time");
    world.finish(0, Err(ErrorCode::RequestTimedOut));
    world.finish(0, Ok(()));
    let of =
        |token| world.replies.iter().find(|(replied, _)| *replied == token).map(|(_, reply)| reply.clone());
    assert_eq!(of(first), Some(Response::Changed(Err(ErrorCode::CoordinatorNotAvailable))));
    assert_eq!(of(second), Some(Response::Changed(Ok(()))));
    let Some(Response::Read(Ok(kept))) = of(third) else { panic!("{:?}", of(third)) };
    assert_eq!(kept.batches, [batch(1, 1, DeliveryState::Archived, 1)]);
}

#[test]
fn a_snapshot_comes_after_so_many_updates() {
    let mut world = World::new();
    assert_eq!(world.ask(initialize("g", 1, 0)), Response::Changed(Ok(())));
    for offset in 0..12 {
        let accepted = batch(2 * offset, 2 * offset, DeliveryState::Acknowledged, 1);
        assert_eq!(world.ask(write("g", 0, &[accepted])), Response::Changed(Ok(())));
    }
    let kinds: Vec<u8> = world.log.iter().map(|(_, record)| record.key[1]).collect();
    assert_eq!(kinds, [0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0]);
    let live = world.read("g");
    world.reload();
    assert_eq!(world.read("g"), live);
}

#[test]
fn the_log_is_cut_off_below_the_oldest_snapshot() {
    let mut world = World::new();
    assert_eq!(world.ask(initialize("g", 1, 0)), Response::Changed(Ok(())));
    for _ in 0..3 {
        assert_eq!(world.ask(write("g", 0, &[])), Response::Changed(Ok(())));
    }
    let look = |world: &mut World| {
        let deadline = world.coordinator.next_deadline();
        world.now = Now { monotonic: deadline, wall: Timestamp(world.now.wall.0 + 300_000) };
        world.coordinator.advance(world.now);
        world.perform();
        while !world.pending.is_empty() {
            world.finish(0, Ok(()));
        }
        std::mem::take(&mut world.pruned)
    };
    // The only snapshot is the first record; one is made for the next time.
    assert_eq!(look(&mut world), []);
    let index = world.coordinator.partition_of(&key("g"));
    assert_eq!(look(&mut world), [(index, Offset(4))]);
    // Nothing has come since: nothing is written.
    assert_eq!((look(&mut world).len(), world.log.len()), (0, 5));
    let live = world.read("g");
    let kept = world.log.split_off(4);
    world.log = kept;
    world.reload();
    assert_eq!(world.read("g"), live);
}

#[test]
fn deleted_topics_take_their_states_along() {
    let mut world = World::new();
    assert_eq!(world.ask(initialize("g", 1, 0)), Response::Changed(Ok(())));
    world.coordinator.topics_deleted(|topic| topic == TopicId::ZERO, world.now);
    world.perform();
    assert_eq!((world.pending.len(), world.coordinator.key_count()), (0, 1));
    world.coordinator.topics_deleted(|topic| topic == key("g").topic, world.now);
    world.perform();
    world.finish(0, Ok(()));
    assert_eq!(world.coordinator.key_count(), 0);
}

#[test]
fn after_a_reload_all_is_as_it_was_written() {
    for seed in 0..200 {
        let mut random = Random::seeded(seed);
        let mut world = World::new();
        for _ in 0..200 {
            let group = ["a", "b", "c"][random.below(3) as usize];
            match random.below(12) {
                0 => drop(world.send(initialize(group, random.below(3) as i32, random.below(20) as i64 - 1))),
                1 => drop(world.send(Request::Delete { key: key(group) })),
                2..=6 => {
                    let first = random.below(40) as i64;
                    let last = first + random.below(5) as i64;
                    let state =
                        [DeliveryState::Available, DeliveryState::Acknowledged, DeliveryState::Archived]
                            [random.below(3) as usize];
                    let batches = [batch(first, last, state, random.below(4) as u16)];
                    world.send(write(group, random.below(20) as i64, &batches));
                }
                _ if !world.pending.is_empty() => {
                    let at = random.below(world.pending.len() as u64) as usize;
                    let result = match random.below(5) {
                        0 => Err(ErrorCode::NotEnoughReplicas),
                        _ => Ok(()),
                    };
                    world.finish(at, result);
                }
                _ => {}
            }
        }
        while !world.pending.is_empty() {
            world.finish(0, Ok(()));
        }
        assert_eq!(world.replies.len() as u64, world.next_token, "seed {seed}: one answer to each");
        let live: Vec<_> = ["a", "b", "c"].map(|group| world.read(group)).into();
        world.reload();
        let loaded: Vec<_> = ["a", "b", "c"].map(|group| world.read(group)).into();
        assert_eq!(live, loaded, "seed {seed}");
    }
}
