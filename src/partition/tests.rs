//! Turns of partitions as their shard gives them: budgets, places for half decompressed batches, what jobs commit.

use bytes::Bytes;

use super::*;
use crate::base::clock::{Monotonic, Timestamp};
use crate::base::{PartitionIndex, TopicPartition};
use crate::io::mem::MemFiles;
use crate::log::{Claim, Gaps, LogContext, OpenOptions, Origin};
use crate::wire::record::{BatchBuilder, Codec, Compression};

const NOW: Now = Now { monotonic: Monotonic::ZERO, wall: Timestamp(1_700_000_000_000) };

/// What [`compressed`] is when it is decompressed, about.
const VALUE_BYTES: usize = 100_000;

fn partition(durability: Durability) -> Partition<MemFiles, u32> {
    let config = Arc::new(LogConfig::default());
    let options = OpenOptions {
        dir: "/t-0".into(),
        topic_partition: TopicPartition::new("t", PartitionIndex(0)),
        config: Arc::clone(&config),
        recovery_point: Offset::ZERO,
        log_start: Offset::ZERO,
        cleaned: None,
        gaps: Gaps::BelowRecoveryPoint,
        clean: false,
    };
    let log = Log::open(&Arc::new(LogContext::new(MemFiles::new(1))), options, NOW).unwrap();
    Partition::lead(log, TopicId(uuid::Uuid::from_u128(7)), LeaderEpoch(0), config, durability)
}

/// Small as it comes, and large when it is looked into.
fn compressed() -> Bytes {
    let mut builder = BatchBuilder::new(Offset::ZERO, Compression::of(Codec::Lz4));
    builder.append(NOW.wall, None, Some(&[7; VALUE_BYTES]), &[]);
    let bytes = builder.finish().unwrap();
    assert!(bytes.len() < VALUE_BYTES / 50);
    bytes
}

fn enqueue(partition: &mut Partition<MemFiles, u32>, token: u32) {
    partition.enqueue(QueuedAppend {
        records: compressed(),
        produce_version: 12,
        acks: Acks::All,
        origin: Origin::Client,
        claim: Claim::Unchecked,
        token,
    });
}

/// A turn, after what it needed was provided.
fn turn(partition: &mut Partition<MemFiles, u32>, budget_bytes: usize) -> (Turn, Vec<u32>) {
    let mut committed = Vec::new();
    loop {
        let turn = partition.turn(&mut budget_bytes.clone(), NOW, &mut committed);
        if !turn.prepare {
            assert!(committed.iter().all(|committed| committed.result.is_ok()));
            return (turn, committed.iter().map(|committed| committed.token).collect());
        }
        let job = partition.log_mut().prepare_job().unwrap();
        partition.finish_prepare(job.run(), NOW).unwrap();
    }
}

#[test]
fn a_turn_ends_when_it_has_decompressed_as_much_as_it_may() {
    let mut partition = partition(Durability::PageCache);
    turn(&mut partition, 1);
    (0..10).for_each(|token| enqueue(&mut partition, token));
    let mut tokens = Vec::new();
    for number in 1.. {
        let (turn, committed) = turn(&mut partition, 2 * VALUE_BYTES);
        // The last one may go beyond it.
        assert!(committed.len() <= 3, "{} batches of a turn", committed.len());
        tokens.extend(committed);
        if !turn.more {
            assert!(number >= 4);
            break;
        }
    }
    assert_eq!(tokens, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_batch_that_finds_no_place_to_lie_half_decompressed_begins_anew_when_there_is_one() {
    let slots = Slots::default();
    let mut partitions: Vec<_> = (0..=UNFINISHED_MAX).map(|_| partition(Durability::PageCache)).collect();
    for partition in &mut partitions {
        partition.share_slots(slots.clone());
        enqueue(partition, 1);
    }
    let little = VALUE_BYTES / 4;
    for (number, partition) in partitions.iter_mut().enumerate() {
        let (turn, committed) = turn(partition, little);
        assert_eq!((turn.more, turn.postponed), (true, number == UNFINISHED_MAX), "{number}");
        assert!(committed.is_empty());
    }
    let (last, others) = partitions.split_last_mut().unwrap();
    assert!(turn(last, little).0.postponed, "the others have their places still");
    assert_eq!(turn(&mut others[0], 4 * VALUE_BYTES).1, [1]);
    let (begun, _) = turn(last, little);
    assert!(begun.more && !begun.postponed, "one has become free");
    assert_eq!(turn(last, 4 * VALUE_BYTES).1, [1]);
    assert_eq!(turn(&mut others[1], 4 * VALUE_BYTES).1, [1]);
}

#[test]
fn what_a_job_of_the_log_has_made_durable_is_committed_by_it() {
    let mut partition = partition(Durability::Fsync);
    enqueue(&mut partition, 5);
    assert!(turn(&mut partition, 4 * VALUE_BYTES).1.is_empty(), "it is not on the disk");
    partition.log_mut().request_checkpoint();
    let mut committed = Vec::new();
    let mut has_moved = false;
    while let Some(job) = partition.log_mut().next_job(NOW) {
        has_moved |= partition.finish_job(job.run(), NOW, &mut committed).unwrap();
    }
    assert!(has_moved);
    assert_eq!(partition.high_watermark(), Offset(1));
    assert_eq!(committed.iter().map(|committed| committed.token).collect::<Vec<_>>(), [5]);
}

#[test]
fn one_flush_is_under_way_at_a_time_and_the_next_covers_what_came_meanwhile() {
    let mut partition = partition(Durability::Fsync);
    enqueue(&mut partition, 1);
    turn(&mut partition, 4 * VALUE_BYTES);
    let first = partition.flush_due(NOW).unwrap();
    enqueue(&mut partition, 2);
    turn(&mut partition, 4 * VALUE_BYTES);
    assert!(partition.flush_due(NOW).is_none() && partition.start_flush().is_none());
    let mut committed = Vec::new();
    assert!(partition.finish_flush(first.run(), NOW, &mut committed).unwrap());
    assert_eq!(partition.high_watermark(), Offset(1));
    let second = partition.flush_due(NOW).unwrap();
    assert!(partition.finish_flush(second.run(), NOW, &mut committed).unwrap());
    assert_eq!(committed.iter().map(|committed| committed.token).collect::<Vec<_>>(), [1, 2]);
    assert!(partition.flush_due(NOW).is_none());
}

#[test]
fn after_write_back_the_recovery_point_follows() {
    let mut partition = partition(Durability::PageCache);
    let mut committed = Vec::new();
    let mut settle = |partition: &mut Partition<MemFiles, u32>| {
        while let Some(job) = partition.log_mut().next_job(NOW) {
            partition.finish_job(job.run(), NOW, &mut committed).unwrap();
        }
        partition.log().recovery_point()
    };
    enqueue(&mut partition, 1);
    turn(&mut partition, 4 * VALUE_BYTES);
    settle(&mut partition);
    enqueue(&mut partition, 2);
    turn(&mut partition, 4 * VALUE_BYTES);
    let flush = partition.start_write_back().unwrap();
    partition.finish_flush(flush.run(), NOW, &mut Vec::new()).unwrap();
    assert_eq!(settle(&mut partition), partition.log().log_end());
}
