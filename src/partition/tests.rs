//! Turns of partitions as their shard gives them: budgets, places for half decompressed batches, what jobs commit.

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::base::clock::{Monotonic, Timestamp};
use crate::base::{BrokerEpoch, BrokerId, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition};
use crate::io::FileHandle as _;
use crate::io::mem::MemFiles;
use crate::log::{Claim, Gaps, LogContext, OpenOptions, Origin};
use crate::wire::ErrorCode;
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
    let topic_id = TopicId(uuid::Uuid::from_u128(7));
    let mut partition = Partition::resume(log, topic_id, Offset::ZERO, config, durability);
    assign(&mut partition, 0, &[ME]);
    partition
}

const ME: BrokerId = BrokerId(1);

/// This broker leads, in this epoch and with these replicas, all of them in sync.
fn assign(partition: &mut Partition<MemFiles, u32>, epoch: i32, replicas: &[BrokerId]) -> Vec<u32> {
    lead_by(partition, Some(ME), epoch, replicas)
}

fn lead_by(
    partition: &mut Partition<MemFiles, u32>,
    leader: Option<BrokerId>,
    epoch: i32,
    replicas: &[BrokerId],
) -> Vec<u32> {
    let assignment = Assignment {
        leader,
        leader_epoch: LeaderEpoch(epoch),
        partition_epoch: epoch,
        replicas,
        isr: replicas,
    };
    let mut committed = Vec::new();
    partition.assign(&assignment, &Brokers::new(ME, Duration::from_secs(30)), NOW, &mut committed);
    committed.iter().map(|committed| committed.token).collect()
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
    enqueue_for(partition, token, Acks::All);
}

fn enqueue_for(partition: &mut Partition<MemFiles, u32>, token: u32, acks: Acks) {
    partition.enqueue(QueuedAppend {
        records: compressed(),
        produce_version: 12,
        acks,
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
    let flush = partition.start_overdue_flush().unwrap();
    partition.finish_flush(flush.run(), NOW, &mut Vec::new()).unwrap();
    assert_eq!(settle(&mut partition), partition.log().log_end());
}

const OTHER: BrokerId = BrokerId(2);

/// The follower has everything below `end`; what is committed by that.
fn fetched(partition: &mut Partition<MemFiles, u32>, end: i64) -> Vec<u32> {
    let fetch = FollowerFetch {
        replica: OTHER,
        broker_epoch: BrokerEpoch(5),
        offset: Offset(end),
        log_start: Offset::ZERO,
    };
    let mut committed = Vec::new();
    partition.note_fetch(fetch, NOW, &mut committed).unwrap();
    committed
        .into_iter()
        .map(|committed| {
            assert!(committed.result.is_ok());
            committed.token
        })
        .collect()
}

#[test]
fn with_a_follower_in_sync_nothing_is_committed_before_it_has_it() {
    let mut partition = partition(Durability::PageCache);
    assign(&mut partition, 1, &[ME, OTHER]);
    enqueue(&mut partition, 1);
    enqueue(&mut partition, 2);
    let (done, committed) = turn(&mut partition, 4 * VALUE_BYTES);
    assert!(!done.high_watermark_moved && committed.is_empty());
    assert!(fetched(&mut partition, 0).is_empty());
    assert_eq!(fetched(&mut partition, 1), [1]);
    assert_eq!(partition.high_watermark(), Offset(1));
    assert_eq!(fetched(&mut partition, 2), [2]);
}

/// A payload, and who else holds it.
struct Payload(Arc<Bytes>);

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn what_waits_for_a_follower_keeps_no_payload() {
    let mut partition = partition(Durability::PageCache);
    assign(&mut partition, 1, &[ME, OTHER]);
    turn(&mut partition, 1);
    let payload = Arc::new(compressed());
    for token in [1, 2] {
        partition.enqueue(QueuedAppend {
            records: Bytes::from_owner(Payload(payload.clone())),
            produce_version: 12,
            acks: Acks::All,
            origin: Origin::Client,
            claim: Claim::Unchecked,
            token,
        });
    }
    assert_eq!(Arc::strong_count(&payload), 3);
    assert!(turn(&mut partition, 4 * VALUE_BYTES).1.is_empty());
    assert_eq!(Arc::strong_count(&payload), 1, "both are written");
    assert_eq!(fetched(&mut partition, 2), [1, 2]);
}

#[test]
fn under_fsync_a_follower_does_not_stand_for_this_disk() {
    let mut partition = partition(Durability::Fsync);
    assign(&mut partition, 1, &[ME, OTHER]);
    enqueue(&mut partition, 1);
    turn(&mut partition, 4 * VALUE_BYTES);
    assert!(fetched(&mut partition, 1).is_empty());
    let flush = partition.flush_due(NOW).unwrap();
    let mut committed = Vec::new();
    assert!(partition.finish_flush(flush.run(), NOW, &mut committed).unwrap());
    assert_eq!(committed.len(), 1);
    // Producers that wait for the leader alone do not wait for the follower, nor stand behind one that does.
    enqueue(&mut partition, 2);
    enqueue_for(&mut partition, 3, Acks::Leader);
    turn(&mut partition, 4 * VALUE_BYTES);
    let flush = partition.flush_due(NOW).unwrap();
    enqueue_for(&mut partition, 4, Acks::Leader);
    assert!(turn(&mut partition, 4 * VALUE_BYTES).1.is_empty(), "it is not on the disk");
    let mut committed = Vec::new();
    assert!(!partition.finish_flush(flush.run(), NOW, &mut committed).unwrap());
    assert_eq!(committed.iter().map(|committed| committed.token).collect::<Vec<_>>(), [3]);
    assert_eq!(fetched(&mut partition, 4), [2], "the disk has no more than three");
    let flush = partition.flush_due(NOW).unwrap();
    let mut committed = Vec::new();
    assert!(partition.finish_flush(flush.run(), NOW, &mut committed).unwrap());
    assert_eq!(committed.iter().map(|committed| committed.token).collect::<Vec<_>>(), [4]);
}

#[test]
fn whoever_leads_no_more_refuses_what_waits_and_takes_it_up_again_by_following() {
    let mut partition = partition(Durability::PageCache);
    assign(&mut partition, 1, &[ME, OTHER]);
    enqueue(&mut partition, 1);
    turn(&mut partition, 4 * VALUE_BYTES);
    assert_eq!(lead_by(&mut partition, Some(OTHER), 2, &[ME, OTHER]), [1]);
    assert!(!partition.is_leader());
    assert_eq!(partition.check_leader_epoch(LeaderEpoch::NONE), Err(ErrorCode::NotLeaderOrFollower));
    assert_eq!(partition.check_leader_epoch(LeaderEpoch(1)), Err(ErrorCode::FencedLeaderEpoch));
    // Whoever may read from any replica may from this one, in the right epoch.
    assert_eq!(partition.check_epoch(LeaderEpoch(2)), Ok(()));
    assert_eq!(partition.check_epoch(LeaderEpoch(1)), Err(ErrorCode::FencedLeaderEpoch));
    assert_eq!(partition.check_epoch(LeaderEpoch(3)), Err(ErrorCode::UnknownLeaderEpoch));
    assert!(lead_by(&mut partition, Some(ME), 1, &[ME, OTHER]).is_empty(), "that is old");
    assert!(!partition.is_leader());
    let position = partition.position(LeaderEpoch(2)).unwrap().unwrap();
    assert_eq!((position.end, position.last_epoch), (Offset(1), LeaderEpoch(1)));
    assert!(partition.position(LeaderEpoch(1)).is_err());
    // Its leader has other records from offset 0 on.
    assert_eq!(partition.cut_for(LeaderEpoch(0), Offset(0)), Offset(0));
    // A leadership without a record leaves no epoch behind.
    assign(&mut partition, 3, &[ME, OTHER]);
    lead_by(&mut partition, Some(OTHER), 4, &[ME, OTHER]);
    assert_eq!(partition.position(LeaderEpoch(4)).unwrap().unwrap().last_epoch, LeaderEpoch(1));
}

#[test]
fn a_transaction_begins_at_the_leader_alone() {
    let mut partition = partition(Durability::PageCache);
    let (id, epoch) = (ProducerId(7), ProducerEpoch(0));
    let query = VerificationQuery { id, epoch, sequence: 0, bumps_epoch: true };
    assign(&mut partition, 1, &[ME, OTHER]);
    assert!(partition.begin_verification(query, NOW).is_ok_and(|guard| guard.is_some()));
    lead_by(&mut partition, Some(OTHER), 2, &[ME, OTHER]);
    assert_eq!(partition.begin_verification(query, NOW), Err(ErrorCode::NotLeaderOrFollower));
}

/// Another leader may have committed more than this one has heard of.
#[test]
fn a_new_leader_knows_the_end_once_all_it_has_is_committed() {
    let mut partition = partition(Durability::PageCache);
    assign(&mut partition, 1, &[ME, OTHER]);
    assert!(!partition.lags_behind_leadership(), "there is nothing to lag behind");
    enqueue(&mut partition, 1);
    turn(&mut partition, 4 * VALUE_BYTES);
    assert!(!partition.lags_behind_leadership(), "these are its own records");
    assign(&mut partition, 2, &[ME, OTHER]);
    assert!(partition.lags_behind_leadership());
    fetched(&mut partition, 1);
    assert!(!partition.lags_behind_leadership());
    lead_by(&mut partition, Some(OTHER), 3, &[ME, OTHER]);
    assert!(!partition.lags_behind_leadership(), "it leads no more");
}

/// Others may have led between two images: the coordinator reads the log anew, and what it then does not know of must
/// not come after that.
#[test]
fn what_was_queued_for_one_leadership_is_not_written_in_the_next() {
    let mut partition = partition(Durability::PageCache);
    turn(&mut partition, 1);
    assign(&mut partition, 3, &[ME, OTHER]);
    enqueue(&mut partition, 1);
    turn(&mut partition, 4 * VALUE_BYTES);
    enqueue(&mut partition, 2);
    assert!(assign(&mut partition, 3, &[ME, OTHER]).is_empty(), "the same leadership");
    assert_eq!(assign(&mut partition, 5, &[ME, OTHER]), [2]);
    turn(&mut partition, 4 * VALUE_BYTES);
    assert_eq!(partition.log().log_end(), Offset(1));
    assert_eq!(fetched(&mut partition, 1), [1], "what was written stays, and is committed");
}

fn log_of(leader: &mut Partition<MemFiles, u32>) -> Vec<u8> {
    let end = leader.log().log_end();
    let mut bytes = Vec::new();
    let mut at = Offset::ZERO;
    while at < end {
        let read = leader.read(at, LeaderEpoch::NONE, u32::MAX, true, Waterline::LogEnd).unwrap();
        let ReadOutcome::Read(crate::log::Read::Plan(plan)) = read else { panic!("it is in memory") };
        let range = plan.range.unwrap();
        let mut part = vec![0; range.length as usize];
        assert_eq!(range.file.read_at(&mut part, range.position).unwrap(), part.len());
        at = crate::wire::record::BatchHead::of_entry(&part).unwrap().next_offset();
        let first = crate::wire::record::BatchHead::of_entry(&part).unwrap().total_len();
        bytes.extend_from_slice(&part[..first]);
    }
    bytes
}

#[test]
fn a_follower_has_its_leaders_bytes_and_its_high_watermark() {
    let mut leader = partition(Durability::PageCache);
    assign(&mut leader, 1, &[ME, OTHER]);
    (0..5).for_each(|token| enqueue(&mut leader, token));
    turn(&mut leader, 20 * VALUE_BYTES);
    let bytes = log_of(&mut leader);
    let mut follower = partition(Durability::PageCache);
    lead_by(&mut follower, Some(OTHER), 1, &[ME, OTHER]);
    let records = FollowedRecords { epoch: LeaderEpoch(1), at: Offset::ZERO, bytes: &bytes };
    let first = follower.append_following(&records, NOW).unwrap();
    assert_eq!(first, Followed { taken: 0, prepare: true }, "its file is not open");
    let job = follower.log_mut().prepare_job().unwrap();
    follower.finish_prepare(job.run(), NOW).unwrap();
    let taken = follower.append_following(&records, NOW).unwrap();
    assert_eq!(taken, Followed { taken: bytes.len(), prepare: false });
    assert_eq!(log_of(&mut follower), bytes);
    assert!(matches!(follower.append_following(&records, NOW), Err(NotFollowed::Stale)), "twice");
    assert_eq!(follower.high_watermark(), Offset::ZERO);
    let mut told = |leaders, log_start| {
        let mut committed: Vec<Committed<u32>> = Vec::new();
        let moved =
            follower.follow_leader(LeaderEpoch(1), Offset(leaders), Offset(log_start), NOW, &mut committed);
        (moved.unwrap(), follower.high_watermark().0, follower.log().log_start().0)
    };
    assert_eq!(told(3, 0), (true, 3, 0));
    assert_eq!(told(2, 0), (false, 3, 0), "never back");
    assert_eq!(told(9, 4), (true, 5, 4), "not beyond its own end");
    let position = follower.position(LeaderEpoch(1)).unwrap().unwrap();
    assert_eq!((position.end, position.last_epoch), (Offset(5), LeaderEpoch(1)));
}

#[test]
fn a_damaged_batch_is_not_followed() {
    let mut leader = partition(Durability::PageCache);
    enqueue(&mut leader, 1);
    turn(&mut leader, 4 * VALUE_BYTES);
    let mut bytes = log_of(&mut leader);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let mut follower = partition(Durability::PageCache);
    turn(&mut follower, 1);
    lead_by(&mut follower, Some(OTHER), 1, &[ME, OTHER]);
    let job = follower.log_mut().prepare_job().unwrap();
    follower.finish_prepare(job.run(), NOW).unwrap();
    let records = FollowedRecords { epoch: LeaderEpoch(1), at: Offset::ZERO, bytes: &bytes };
    assert!(matches!(follower.append_following(&records, NOW), Err(NotFollowed::Log(_))));
    assert_eq!(follower.log().log_end(), Offset::ZERO);
    let half = FollowedRecords { bytes: &bytes[..30], ..records };
    assert_eq!(follower.append_following(&half, NOW).unwrap(), Followed { taken: 0, prepare: false });
}

/// What an append of the only batch was answered.
fn outcome(committed: &[Committed<u32>]) -> Option<ErrorCode> {
    let [Committed { result, .. }] = committed else { panic!("{} answers", committed.len()) };
    match result {
        Ok(_) => None,
        Err(AppendFailure::Code(code)) => Some(*code),
        Err(AppendFailure::Records(error)) => panic!("{error:?}"),
    }
}

fn of_at_least(min_insync_replicas: i32) -> Arc<LogConfig> {
    Arc::new(LogConfig { min_insync_replicas, ..LogConfig::default() })
}

/// This broker leads this one and the other; those in `isr` are in sync.
fn with_in_sync(
    partition: &mut Partition<MemFiles, u32>,
    partition_epoch: i32,
    isr: &[BrokerId],
) -> Vec<Committed<u32>> {
    let assignment = Assignment {
        leader: Some(ME),
        leader_epoch: LeaderEpoch(1),
        partition_epoch,
        replicas: &[ME, OTHER],
        isr,
    };
    let mut committed = Vec::new();
    partition.assign(&assignment, &Brokers::new(ME, Duration::from_secs(30)), NOW, &mut committed);
    committed
}

#[test]
fn no_more_must_be_in_sync_than_there_are_replicas() {
    let mut partition = partition(Durability::PageCache);
    turn(&mut partition, 1);
    partition.set_config(of_at_least(3));
    enqueue(&mut partition, 1);
    assert_eq!(turn(&mut partition, 4 * VALUE_BYTES).1, [1], "of one none is missing");
    assert_eq!(partition.high_watermark(), Offset(1));
    assert!(with_in_sync(&mut partition, 1, &[ME, OTHER]).is_empty());
    enqueue(&mut partition, 2);
    assert!(turn(&mut partition, 4 * VALUE_BYTES).1.is_empty());
    assert_eq!(fetched(&mut partition, 2), [2], "both are in sync");
}

#[test]
fn a_producer_that_waits_for_all_is_refused_while_too_few_are_in_sync() {
    let mut partition = partition(Durability::PageCache);
    turn(&mut partition, 1);
    partition.set_config(of_at_least(2));
    assign(&mut partition, 1, &[ME, OTHER]);
    let mut committed = with_in_sync(&mut partition, 2, &[ME]);
    enqueue(&mut partition, 1);
    partition.turn(&mut (4 * VALUE_BYTES), NOW, &mut committed);
    assert_eq!(outcome(&committed), Some(ErrorCode::NotEnoughReplicas));
    assert_eq!(partition.log().log_end(), Offset::ZERO, "nothing was appended");
    enqueue_for(&mut partition, 2, Acks::Leader);
    assert_eq!(turn(&mut partition, 4 * VALUE_BYTES).1, [2], "one that waits for the leader is not");
    assert_eq!(partition.high_watermark(), Offset::ZERO, "and it is not committed");
}

#[test]
fn what_was_written_before_too_few_were_left_waits_until_there_are_enough() {
    let mut partition = partition(Durability::PageCache);
    partition.set_config(of_at_least(2));
    assign(&mut partition, 1, &[ME, OTHER]);
    enqueue(&mut partition, 1);
    assert!(turn(&mut partition, 4 * VALUE_BYTES).1.is_empty());
    assert!(with_in_sync(&mut partition, 2, &[ME]).is_empty());
    assert!(fetched(&mut partition, 1).is_empty(), "one has it, and is not in sync");
    assert_eq!(partition.high_watermark(), Offset::ZERO);
    let committed = with_in_sync(&mut partition, 3, &[ME, OTHER]);
    assert_eq!(outcome(&committed), None);
    assert_eq!(partition.high_watermark(), Offset(1));
}
