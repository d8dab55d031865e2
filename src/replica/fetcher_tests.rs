//! Requests and answers, without a broker.

use super::*;
use crate::base::PartitionIndex;
use crate::wire::fetch::DivergingEpoch;

const ME: BrokerId = BrokerId(1);
const EPOCH: BrokerEpoch = BrokerEpoch(30);

fn at(ms: u64) -> Monotonic {
    Monotonic::from_millis(ms)
}

fn key(topic: u128, partition: i32) -> PartitionKey {
    PartitionKey { topic: TopicId(uuid::Uuid::from_u128(topic)), partition: PartitionIndex(partition) }
}

fn position(end: i64) -> Position {
    Position {
        end: Offset(end),
        last_epoch: LeaderEpoch(if end > 0 { 3 } else { -1 }),
        log_start: Offset(0),
        high_watermark: Offset(end),
    }
}

fn free(_: PartitionKey) -> bool {
    false
}

fn slice(key: PartitionKey, error: Option<ErrorCode>) -> FetchedSlice {
    FetchedSlice {
        topic: key.topic,
        index: key.partition,
        error,
        high_watermark: Offset(5),
        log_start: Offset(if error.is_some() { -1 } else { 0 }),
        diverging: None,
        records: Bytes::from_static(b"records"),
    }
}

fn answer(session: i32, partitions: Vec<FetchedSlice>) -> FetchAnswer {
    FetchAnswer { error: None, session_id: SessionId(session), partitions }
}

/// Follows partitions 0 and 1 of one topic and 0 of another, in epoch 7, each at offset 10.
fn fetcher() -> Fetcher {
    let mut fetcher = Fetcher::new(ME, Duration::from_millis(500));
    fetcher.follow([key(1, 0), key(1, 1), key(2, 0)].map(|key| (key, LeaderEpoch(7))));
    for (key, epoch) in fetcher.unplaced(at(0)) {
        assert_eq!(epoch, LeaderEpoch(7));
        fetcher.place(key, position(10));
    }
    fetcher
}

fn asked(request: &FetchRequest) -> Vec<(TopicRef, Vec<(i32, i64)>)> {
    let topics = request.topics.iter().map(|topic| {
        let parts = topic.partitions.iter().map(|part| (part.index.0, part.fetch_offset.0));
        (topic.topic.clone(), parts.collect())
    });
    topics.collect()
}

fn topic(number: u128) -> TopicRef {
    TopicRef::Id(key(number, 0).topic)
}

#[test]
fn the_first_request_names_all_and_the_next_ones_what_has_changed() {
    let mut fetcher = fetcher();
    let request = fetcher.request(EPOCH, at(0), free).unwrap();
    assert_eq!((request.replica_id, request.replica_epoch), (ME, EPOCH));
    assert_eq!((request.session_id, request.session_epoch), (SessionId::NONE, SessionEpoch::INITIAL));
    assert_eq!(asked(&request), [(topic(1), vec![(0, 10), (1, 10)]), (topic(2), vec![(0, 10)])]);
    let part = request.topics[0].partitions[0];
    assert_eq!((part.current_leader_epoch, part.last_fetched_epoch), (LeaderEpoch(7), LeaderEpoch(3)));
    let tasks = fetcher.answered(answer(9, vec![slice(key(1, 1), None)]), at(1));
    let [Task { key: of, epoch, at: offset, step: Step::Append { records, .. } }] = &tasks[..] else {
        panic!("{tasks:?}")
    };
    assert_eq!((*of, *epoch, *offset), (key(1, 1), LeaderEpoch(7), Offset(10)));
    assert_eq!(&records[..], b"records");
    fetcher.displace(key(1, 1));
    assert_eq!(fetcher.unplaced(at(1)), [(key(1, 1), LeaderEpoch(7))]);
    fetcher.place(key(1, 1), position(15));
    let request = fetcher.request(EPOCH, at(1), free).unwrap();
    assert_eq!((request.session_id, request.session_epoch), (SessionId(9), SessionEpoch(1)));
    assert_eq!(asked(&request), [(topic(1), vec![(1, 15)])]);
    assert_eq!(request.forgotten, []);
    assert!(fetcher.answered(answer(9, vec![]), at(2)).is_empty());
    let request = fetcher.request(EPOCH, at(2), free).unwrap();
    assert_eq!((request.session_epoch, asked(&request)), (SessionEpoch(2), vec![]), "nothing has");
}

#[test]
fn what_is_not_followed_any_more_is_forgotten() {
    let mut fetcher = fetcher();
    fetcher.request(EPOCH, at(0), free).unwrap();
    fetcher.answered(answer(9, vec![]), at(0));
    fetcher.follow([(key(1, 0), LeaderEpoch(7)), (key(2, 0), LeaderEpoch(8))]);
    assert_eq!(fetcher.unplaced(at(0)), [(key(2, 0), LeaderEpoch(8))], "another leadership");
    let request = fetcher.request(EPOCH, at(0), free).unwrap();
    let forgotten: Vec<_> = request.forgotten.iter().map(|topic| topic.partitions.clone()).collect();
    assert_eq!(forgotten, [vec![PartitionIndex(1)], vec![PartitionIndex(0)]], "it has no place yet");
    assert_eq!(fetcher.answered(answer(9, vec![slice(key(1, 1), None)]), at(0)), [], "it came too late");
    fetcher.follow([]);
    assert!(fetcher.is_idle() && fetcher.request(EPOCH, at(0), free).is_none());
}

#[test]
fn a_lost_session_begins_anew() {
    for lost in [ErrorCode::FetchSessionIdNotFound, ErrorCode::InvalidFetchSessionEpoch] {
        let mut fetcher = fetcher();
        fetcher.request(EPOCH, at(0), free).unwrap();
        fetcher.answered(answer(9, vec![]), at(0));
        fetcher.request(EPOCH, at(0), free).unwrap();
        let refused = FetchAnswer { error: Some(lost), session_id: SessionId::NONE, partitions: vec![] };
        assert_eq!(fetcher.answered(refused, at(0)), []);
        let request = fetcher.request(EPOCH, at(0), free).unwrap();
        assert_eq!(request.session_epoch, SessionEpoch::INITIAL);
        assert_eq!(asked(&request).len(), 2);
    }
    // A leader without room for one.
    let mut fetcher = fetcher();
    fetcher.request(EPOCH, at(0), free).unwrap();
    fetcher.answered(answer(0, vec![]), at(0));
    assert_eq!(asked(&fetcher.request(EPOCH, at(0), free).unwrap()).len(), 2);
    fetcher.disconnected();
    assert_eq!(fetcher.request(EPOCH, at(0), free).unwrap().session_epoch, SessionEpoch::INITIAL);
}

#[test]
fn a_partition_with_an_error_is_let_alone_until_its_leader_changes_or_a_while_has_passed() {
    let mut fetcher = fetcher();
    fetcher.request(EPOCH, at(0), free).unwrap();
    let refused = slice(key(1, 0), Some(ErrorCode::KafkaStorageError));
    assert_eq!(fetcher.answered(answer(9, vec![refused.clone()]), at(0)), []);
    assert_eq!(fetcher.next_due(), Some(at(1000)));
    assert_eq!(fetcher.unplaced(at(999)), []);
    let request = fetcher.request(EPOCH, at(999), free).unwrap();
    assert_eq!(request.forgotten[0].partitions, [PartitionIndex(0)]);
    assert_eq!(fetcher.unplaced(at(1000)), [(key(1, 0), LeaderEpoch(7))]);
    fetcher.place(key(1, 0), position(10));
    assert_eq!(fetcher.next_due(), None);
    fetcher.answered(answer(9, vec![refused]), at(1000));
    fetcher.follow([(key(1, 0), LeaderEpoch(8))]);
    assert_eq!(fetcher.unplaced(at(1000)), [(key(1, 0), LeaderEpoch(8))]);
    fetcher.place(key(1, 0), position(10));
    fetcher.answered(answer(9, vec![slice(key(1, 0), Some(ErrorCode::NotLeaderOrFollower))]), at(1000));
    assert_eq!(fetcher.next_due(), Some(at(1050)), "it will hear of it in a moment");
    // The broker as a whole refuses: all of them are let alone.
    fetcher.place(key(1, 0), position(10));
    let error = Some(ErrorCode::ClusterAuthorizationFailed);
    fetcher.answered(FetchAnswer { error, session_id: SessionId::NONE, partitions: vec![] }, at(1000));
    assert!(fetcher.request(EPOCH, at(1500), free).is_none());
}

#[test]
fn the_leader_waits_no_longer_than_a_partition_is_let_alone() {
    let mut fetcher = fetcher();
    let wait = |fetcher: &mut Fetcher, ms| fetcher.request(EPOCH, at(ms), free).unwrap().max_wait_ms;
    assert_eq!(wait(&mut fetcher, 0), 500);
    fetcher.pause(key(1, 1), at(0));
    assert_eq!(wait(&mut fetcher, 100), 500);
    assert_eq!(wait(&mut fetcher, 800), 200);
    assert_eq!(wait(&mut fetcher, 1000), 500, "nobody knows yet where it stands");
}

#[test]
fn a_log_that_parts_from_the_leaders_is_cut_and_one_before_it_begins_anew() {
    let mut fetcher = fetcher();
    fetcher.request(EPOCH, at(0), free).unwrap();
    let diverging = DivergingEpoch { epoch: LeaderEpoch(2), end_offset: Offset(6) };
    let parts = FetchedSlice { diverging: Some(diverging), ..slice(key(1, 0), None) };
    let out_of_range = Some(ErrorCode::OffsetOutOfRange);
    let behind = FetchedSlice { log_start: Offset(50), ..slice(key(1, 1), out_of_range) };
    let strange = FetchedSlice { log_start: Offset(3), ..slice(key(2, 0), out_of_range) };
    let steps: Vec<_> = fetcher
        .answered(answer(9, vec![parts, behind, strange]), at(0))
        .into_iter()
        .map(|task| (task.key, task.step))
        .collect();
    assert_eq!(
        steps,
        [
            (key(1, 0), Step::Cut { epoch: LeaderEpoch(2), end: Offset(6) }),
            (key(1, 1), Step::Anew(Offset(50))),
        ],
        "the third is ahead of its leader, and has records: nobody throws those away here"
    );
    assert_eq!(fetcher.unplaced(at(0)), []);
}

#[test]
fn what_is_held_back_is_left_out_unless_it_lacks_nothing_that_is_committed() {
    let mut fetcher = fetcher();
    let held = |wanted: PartitionKey| wanted == key(1, 1) || wanted == key(2, 0);
    let request = fetcher.request(EPOCH, at(0), held).unwrap();
    assert_eq!(asked(&request), [(topic(1), vec![(0, 10)])], "nobody knows whether the others are in sync");
    fetcher.answered(answer(9, vec![]), at(1));
    let request = fetcher.request(EPOCH, at(1), free).unwrap();
    assert_eq!(asked(&request), [(topic(1), vec![(1, 10)]), (topic(2), vec![(0, 10)])]);
    let behind = FetchedSlice { high_watermark: Offset(11), ..slice(key(1, 1), None) };
    let in_sync = FetchedSlice { high_watermark: Offset(10), ..slice(key(2, 0), None) };
    fetcher.answered(answer(9, vec![behind, in_sync]), at(2));
    let request = fetcher.request(EPOCH, at(2), held).unwrap();
    assert_eq!(asked(&request), []);
    assert_eq!(request.forgotten, [ForgottenTopic { topic: topic(1), partitions: vec![PartitionIndex(1)] }]);
    fetcher.answered(answer(9, vec![]), at(3));
    assert_eq!(asked(&fetcher.request(EPOCH, at(3), free).unwrap()), [(topic(1), vec![(1, 10)])]);
    assert!(fetcher.request(EPOCH, at(3), |_| true).is_some(), "one is in sync");
    // In another leadership nobody knows again.
    fetcher.follow([(key(2, 0), LeaderEpoch(8))]);
    fetcher.place(key(2, 0), position(10));
    assert_eq!(fetcher.request(EPOCH, at(4), |_| true), None);
}
