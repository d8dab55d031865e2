//! The rules of transactions, request by request: Kafka's error code for each. Every line was asked of a real
//! Kafka 4.4 (`KURING_TEST_BROKER=kafka`).

use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, ApiVersionsRequest, DescribeTransactionsRequest,
    EndTxnRequest, FindCoordinatorRequest, GroupId, InitProducerIdRequest, ListTransactionsRequest,
    OffsetFetchRequest, ProduceRequest, TransactionalId, TxnOffsetCommitRequest, WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::StrBytes;

use crate::admin::metric;
use crate::harness::batch::Batch;
use crate::harness::client::Client;
use crate::harness::raw::{FETCH, Raw, fetch, name, produce};
use crate::harness::{Broker, eventually};

const OK: i16 = 0;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const ILLEGAL_GENERATION: i16 = 22;
const INVALID_GROUP_ID: i16 = 24;
const UNKNOWN_MEMBER_ID: i16 = 25;
const INVALID_REQUEST: i16 = 42;
const INVALID_PRODUCER_EPOCH: i16 = 47;
const INVALID_TXN_STATE: i16 = 48;
const INVALID_PRODUCER_ID_MAPPING: i16 = 49;
const INVALID_TRANSACTION_TIMEOUT: i16 = 50;
const CONCURRENT_TRANSACTIONS: i16 = 51;
const TRANSACTION_COORDINATOR_FENCED: i16 = 52;
const TRANSACTIONAL_ID_AUTHORIZATION_FAILED: i16 = 53;
const OPERATION_NOT_ATTEMPTED: i16 = 55;
const UNSTABLE_OFFSET_COMMIT: i16 = 88;
const PRODUCER_FENCED: i16 = 90;
const TRANSACTIONAL_ID_NOT_FOUND: i16 = 105;
const TRANSACTION_ABORTABLE: i16 = 120;
const INVALID_REGULAR_EXPRESSION: i16 = 128;

const ONE_REPLICA: [(&str, &str); 3] = [
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
    ("offsets.topic.replication.factor", "1"),
];

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub fn id(id: &str) -> TransactionalId {
    TransactionalId(text(id))
}

#[derive(Clone, Copy, Debug)]
pub struct Who {
    pub id: i64,
    pub epoch: i16,
}

pub struct Rules {
    pub raw: Raw,
    pub broker: Broker,
}

impl Rules {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// With these broker properties beside.
    pub fn with(more: &[(&str, &str)]) -> Self {
        Self::after(more, |_| {})
    }

    /// The same; `prepare` comes before the start.
    pub fn after(more: &[(&str, &str)], prepare: impl FnOnce(&Broker)) -> Self {
        let settings: Vec<(&str, &str)> = ONE_REPLICA.into_iter().chain(more.iter().copied()).collect();
        let mut broker = Broker::stopped(2, &settings);
        prepare(&broker);
        broker.start_again(2);
        let client = Client::of(&broker);
        client.create_topic("t", 2, &[]);
        let mut raw = Raw::connect(&broker);
        for (key_type, key) in [(0, "g"), (1, "x")] {
            let find = FindCoordinatorRequest::default()
                .with_key_type(key_type)
                .with_coordinator_keys(vec![text(key)]);
            eventually("a coordinator", || {
                let found = raw.call(4, &find).coordinators[0].clone();
                (found.error_code == 0).then_some(())
            });
        }
        Self { raw, broker }
    }

    fn try_init(&mut self, version: i16, name: &str, timeout_ms: i32, expected: Option<Who>) -> (i16, Who) {
        let expected = expected.unwrap_or(Who { id: -1, epoch: -1 });
        let mut request = InitProducerIdRequest::default()
            .with_transactional_id(Some(id(name)))
            .with_transaction_timeout_ms(timeout_ms);
        if version >= 3 {
            request = request.with_producer_id(expected.id.into()).with_producer_epoch(expected.epoch);
        }
        let response = eventually("the coordinator is loaded", || {
            let response = self.raw.call(version, &request);
            // Not available, loading, not the coordinator.
            (!matches!(response.error_code, 14..=16)).then_some(response)
        });
        (response.error_code, Who { id: response.producer_id.0, epoch: response.producer_epoch })
    }

    pub fn init(&mut self, name: &str) -> Who {
        eventually("what was under way has ended", || {
            let (error, who) = self.try_init(5, name, 60_000, None);
            assert!(matches!(error, OK | CONCURRENT_TRANSACTIONS), "{error}");
            (error == OK).then_some(who)
        })
    }

    fn add(&mut self, version: i16, name: &str, who: Who, partitions: &[(&str, i32)]) -> Vec<i16> {
        let topics = partitions.iter().map(|(topic, index)| {
            AddPartitionsToTxnTopic::default()
                .with_name(crate::harness::raw::name(topic))
                .with_partitions(vec![*index])
        });
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(id(name))
            .with_v3_and_below_producer_id(who.id.into())
            .with_v3_and_below_producer_epoch(who.epoch)
            .with_v3_and_below_topics(topics.collect());
        let response = self.raw.call(version, &request);
        let results = response.results_by_topic_v3_and_below.iter();
        results.map(|topic| topic.results_by_partition[0].partition_error_code).collect()
    }

    fn verify(&mut self, name: &str, who: Who, index: i32) -> i16 {
        let topic = AddPartitionsToTxnTopic::default()
            .with_name(crate::harness::raw::name("t"))
            .with_partitions(vec![index]);
        let transaction = AddPartitionsToTxnTransaction::default()
            .with_transactional_id(id(name))
            .with_producer_id(who.id.into())
            .with_producer_epoch(who.epoch)
            .with_verify_only(true)
            .with_topics(vec![topic]);
        let request = AddPartitionsToTxnRequest::default().with_transactions(vec![transaction]);
        let response = self.raw.call(4, &request);
        response.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code
    }

    pub fn end(&mut self, version: i16, name: &str, who: Who, commit: bool) -> (i16, Who) {
        let request = EndTxnRequest::default()
            .with_transactional_id(id(name))
            .with_producer_id(who.id.into())
            .with_producer_epoch(who.epoch)
            .with_committed(commit);
        let response = self.raw.call(version, &request);
        (response.error_code, Who { id: response.producer_id.0, epoch: response.producer_epoch })
    }

    /// Until it is not told that something is under way.
    fn end_at_last(&mut self, version: i16, name: &str, who: Who, commit: bool) -> (i16, Who) {
        eventually("what is under way ends", || {
            let told = self.end(version, name, who, commit);
            (told.0 != CONCURRENT_TRANSACTIONS).then_some(told)
        })
    }

    pub fn produce(
        &mut self,
        version: i16,
        name: Option<&str>,
        who: Who,
        sequence: i32,
        index: i32,
    ) -> (i16, Option<String>) {
        let batch = Batch::now(&["v"]).with_producer(who.id, who.epoch, sequence).transactional();
        let request: ProduceRequest =
            produce("t", index, -1, batch.encode()).with_transactional_id(name.map(id));
        let response = eventually("the leader leads", || {
            let response = self.raw.call(version, &request).responses[0].partition_responses[0].clone();
            (response.error_code != 6).then_some(response)
        });
        (response.error_code, response.error_message.map(|message| message.to_string()))
    }

    fn add_offsets(&mut self, version: i16, name: &str, who: Who, group: &str) -> i16 {
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(id(name))
            .with_producer_id(who.id.into())
            .with_producer_epoch(who.epoch)
            .with_group_id(GroupId(text(group)));
        self.raw.call(version, &request).error_code
    }

    fn commit_offset(
        &mut self,
        version: i16,
        name: &str,
        who: Who,
        group: &str,
        member: (&str, i32),
        topic: &str,
    ) -> i16 {
        let partition = TxnOffsetCommitRequestPartition::default()
            .with_partition_index(0)
            .with_committed_offset(7)
            .with_committed_metadata(Some(text("note")));
        let topic = TxnOffsetCommitRequestTopic::default()
            .with_name(crate::harness::raw::name(topic))
            .with_partitions(vec![partition]);
        let mut request = TxnOffsetCommitRequest::default()
            .with_transactional_id(id(name))
            .with_group_id(GroupId(text(group)))
            .with_producer_id(who.id.into())
            .with_producer_epoch(who.epoch)
            .with_topics(vec![topic]);
        if version >= 3 {
            request = request.with_member_id(text(member.0)).with_generation_id(member.1);
        }
        eventually("the group coordinator is loaded", || {
            let response = self.raw.call(version, &request);
            let error = response.topics[0].partitions[0].error_code;
            (!matches!(error, 14..=16)).then_some(error)
        })
    }

    /// Error and offset.
    pub fn fetch_offset(&mut self, group: &str, require_stable: bool) -> (i16, i64) {
        let topic = OffsetFetchRequestTopics::default().with_name(name("t")).with_partition_indexes(vec![0]);
        let group = OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(text(group)))
            .with_topics(Some(vec![topic]));
        let request =
            OffsetFetchRequest::default().with_groups(vec![group]).with_require_stable(require_stable);
        let response = self.raw.call(8, &request);
        let partition = &response.groups[0].topics[0].partitions[0];
        (partition.error_code, partition.committed_offset)
    }

    pub fn state(&mut self, name: &str) -> (i16, String) {
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id(name)]);
        let state = self.raw.call(0, &request).transaction_states[0].clone();
        (state.error_code, state.transaction_state.to_string())
    }

    pub fn await_state(&mut self, name: &str, wanted: &str) {
        eventually(wanted, || (self.state(name).1 == wanted).then_some(()));
    }
}

#[test]
fn a_producer_id_is_given_and_taken_by_the_rules() {
    let mut h = Rules::start();
    assert_eq!(h.try_init(5, "", 60_000, None).0, INVALID_REQUEST);
    assert_eq!(h.try_init(5, "i", 0, None).0, INVALID_TRANSACTION_TIMEOUT);
    assert_eq!(h.try_init(5, "i", 900_001, None).0, INVALID_TRANSACTION_TIMEOUT);
    assert_eq!(h.try_init(5, "i", 60_000, Some(Who { id: 5, epoch: -1 })).0, INVALID_REQUEST);
    let first = h.init("i");
    assert_eq!(first.epoch, 0);
    let second = h.init("i");
    assert_eq!((second.id, second.epoch), (first.id, 1));
    assert_eq!(h.try_init(5, "i", 60_000, Some(first)).0, PRODUCER_FENCED);
    assert_eq!(h.try_init(3, "i", 60_000, Some(first)).0, INVALID_PRODUCER_EPOCH);
    let (error, third) = h.try_init(5, "i", 60_000, Some(second));
    assert_eq!((error, third.id, third.epoch), (OK, first.id, 2));
    let (error, again) = h.try_init(5, "i", 60_000, Some(second));
    assert_eq!((error, again.epoch), (OK, 2), "asked again");
    let stranger = Who { id: first.id + 999, epoch: 2 };
    assert_eq!(h.try_init(5, "i", 60_000, Some(stranger)).0, PRODUCER_FENCED);
}

#[test]
fn partitions_are_added_by_the_rules() {
    let mut h = Rules::start();
    let me = h.init("p");
    let old = Who { epoch: me.epoch - 1, ..me };
    let stranger = Who { id: me.id + 999, ..me };
    assert_eq!(h.add(3, "nobody", me, &[("t", 0)]), [INVALID_PRODUCER_ID_MAPPING]);
    assert_eq!(h.add(3, "", me, &[("t", 0)]), [INVALID_REQUEST]);
    assert_eq!(h.add(3, "p", stranger, &[("t", 0)]), [INVALID_PRODUCER_ID_MAPPING]);
    assert_eq!(h.add(3, "p", old, &[("t", 0)]), [PRODUCER_FENCED]);
    assert_eq!(h.add(1, "p", old, &[("t", 0)]), [INVALID_PRODUCER_EPOCH]);
    let mut mixed = h.add(3, "p", me, &[("t", 0), ("gone", 0)]);
    mixed.sort_unstable();
    assert_eq!(mixed, [UNKNOWN_TOPIC_OR_PARTITION, OPERATION_NOT_ATTEMPTED]);
    assert_eq!(h.state("p"), (OK, "Empty".to_owned()));
    assert_eq!(h.add(0, "p", me, &[("t", 0)]), [OK]);
    assert_eq!(h.add(3, "p", me, &[("t", 0)]), [OK]);
    assert_eq!(h.state("p"), (OK, "Ongoing".to_owned()));
    assert_eq!(h.verify("p", me, 0), OK);
    assert_eq!(h.verify("p", me, 1), TRANSACTION_ABORTABLE);
    assert_eq!(h.verify("p", stranger, 0), INVALID_PRODUCER_ID_MAPPING);
    assert_eq!(h.verify("p", old, 0), PRODUCER_FENCED);
    assert_eq!(h.verify("nobody", me, 0), INVALID_PRODUCER_ID_MAPPING);
    assert_eq!(h.add_offsets(3, "p", me, "g"), OK);
    assert_eq!(h.add_offsets(3, "p", old, "g"), PRODUCER_FENCED);
    assert_eq!(h.add_offsets(1, "p", old, "g"), INVALID_PRODUCER_EPOCH);
    assert_eq!(h.add_offsets(3, "nobody", me, "g"), INVALID_PRODUCER_ID_MAPPING);
}

#[test]
fn transactions_end_by_the_rules() {
    let mut h = Rules::start();
    // Without an epoch for each transaction.
    let me = h.init("e");
    let old = Who { epoch: me.epoch - 1, ..me };
    assert_eq!(h.end(3, "nobody", me, true).0, INVALID_PRODUCER_ID_MAPPING);
    assert_eq!(h.end(3, "", me, true).0, INVALID_REQUEST);
    assert_eq!(h.end(3, "e", me, true).0, INVALID_TXN_STATE);
    assert_eq!(h.end(3, "e", me, false).0, INVALID_TXN_STATE);
    assert_eq!(h.end(3, "e", old, true).0, PRODUCER_FENCED);
    assert_eq!(h.end(1, "e", old, true).0, INVALID_PRODUCER_EPOCH);
    assert_eq!(h.add(3, "e", me, &[("t", 0), ("t", 1)]), [OK, OK]);
    assert_eq!(h.end(3, "e", me, true).0, OK);
    assert_eq!(h.end_at_last(3, "e", me, true).0, OK, "asked again");
    assert_eq!(h.end_at_last(3, "e", me, false).0, INVALID_TXN_STATE);
    h.await_state("e", "CompleteCommit");
    // With one.
    let me = h.init("v2");
    assert_eq!(h.end(5, "v2", me, true).0, INVALID_TXN_STATE);
    let (error, me) = h.end(5, "v2", me, false);
    assert_eq!((error, me.epoch), (OK, 1), "nothing was added");
    h.await_state("v2", "CompleteAbort");
    assert_eq!(h.produce(12, Some("v2"), me, 0, 0).0, OK);
    assert_eq!(h.state("v2").1, "Ongoing");
    let before = me;
    let (error, me) = h.end(5, "v2", me, true);
    assert_eq!((error, me.epoch), (OK, 2));
    let (error, again) = h.end_at_last(5, "v2", before, true);
    assert_eq!((error, again.epoch), (OK, 2), "asked again");
    assert_eq!(h.end(5, "v2", before, false).0, INVALID_TXN_STATE);
    assert_eq!(h.end(5, "v2", me, true).0, INVALID_TXN_STATE, "the next one has nothing to commit");
    let older = Who { epoch: 0, ..me };
    assert_eq!(h.end(5, "v2", older, true).0, PRODUCER_FENCED);
    let (error, me) = h.end(5, "v2", me, false);
    assert_eq!((error, me.epoch), (OK, 3));
}

#[test]
fn batches_are_taken_into_a_transaction_by_the_rules() {
    let mut h = Rules::start();
    let me = h.init("b");
    let (error, message) = h.produce(9, Some("b"), me, 0, 0);
    assert_eq!(
        (error, message.as_deref()),
        (INVALID_TXN_STATE, Some("Partition was not added to the transaction"))
    );
    assert_eq!(h.produce(11, Some("b"), me, 0, 0).0, TRANSACTION_ABORTABLE);
    assert_eq!(h.produce(9, None, me, 0, 0).0, TRANSACTIONAL_ID_AUTHORIZATION_FAILED);
    assert_eq!(h.produce(9, Some("nobody"), me, 0, 0).0, INVALID_PRODUCER_ID_MAPPING);
    assert_eq!(h.add(3, "b", me, &[("t", 0)]), [OK]);
    assert_eq!(h.produce(9, Some("b"), me, 0, 0).0, OK);
    assert_eq!(h.produce(9, Some("b"), me, 1, 0).0, OK);
    assert_eq!(h.produce(9, Some("b"), me, 1, 0).0, OK, "a duplicate");
    assert_eq!(h.produce(9, Some("b"), me, 0, 1).0, INVALID_TXN_STATE);
    let successor = h.init("b");
    assert_eq!(successor.epoch, me.epoch + 2);
    assert_eq!(h.produce(9, Some("b"), me, 2, 0).0, INVALID_PRODUCER_EPOCH);
    assert_eq!(h.produce(12, Some("b"), me, 2, 0).0, INVALID_PRODUCER_EPOCH);
    // Transactions v2 add the partition themselves.
    assert_eq!(h.produce(12, Some("b"), successor, 0, 1).0, OK);
    assert_eq!(h.state("b").1, "Ongoing");
    assert_eq!(h.end(5, "b", successor, true).0, OK);
    let read = |raw: &mut Raw| {
        let mut request = fetch("t", &[(1, 0)]);
        request.isolation_level = 1;
        let partition = raw.call(FETCH, &request).responses[0].partitions[0].clone();
        (partition.last_stable_offset, partition.high_watermark)
    };
    eventually("the marker is there", || (read(&mut h.raw) == (2, 2)).then_some(()));
    if !Broker::is_kafka() {
        let refused = metric(&h.broker, "kuring_transaction_verifications_failed_total");
        let all = metric(&h.broker, "kuring_transaction_verifications_total");
        assert!(refused > 0 && all > refused, "{refused} of {all}");
    }
}

#[test]
fn offsets_are_committed_within_a_transaction_by_the_rules() {
    let mut h = Rules::start();
    let nobody = ("", -1);
    let me = h.init("o");
    assert_eq!(h.commit_offset(3, "o", me, "g", nobody, "t"), INVALID_TXN_STATE);
    assert_eq!(h.commit_offset(4, "o", me, "g", nobody, "t"), TRANSACTION_ABORTABLE);
    assert_eq!(h.commit_offset(3, "o", me, "", nobody, "t"), INVALID_GROUP_ID);
    assert_eq!(h.commit_offset(3, "o", me, "g", nobody, "gone"), UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(h.add_offsets(3, "o", me, "g"), OK);
    assert_eq!(h.commit_offset(3, "o", me, "g", ("m", 3), "t"), ILLEGAL_GENERATION);
    assert_eq!(h.commit_offset(3, "o", me, "g", nobody, "t"), OK);
    assert_eq!(h.commit_offset(3, "o", me, "g", ("m", 3), "t"), UNKNOWN_MEMBER_ID);
    assert_eq!(h.commit_offset(0, "o", me, "g", nobody, "t"), OK);
    assert_eq!(h.fetch_offset("g", true), (UNSTABLE_OFFSET_COMMIT, -1));
    assert_eq!(h.fetch_offset("g", false), (OK, -1));
    assert_eq!(h.end(3, "o", me, true).0, OK);
    eventually("the offset counts", || (h.fetch_offset("g", true) == (OK, 7)).then_some(()));
    // An aborted one does not.
    let me = h.init("o");
    assert_eq!(h.commit_offset(5, "o", me, "h", nobody, "t"), OK, "the partition is added by it");
    assert_eq!(h.fetch_offset("h", true), (UNSTABLE_OFFSET_COMMIT, -1));
    assert_eq!(h.end(5, "o", me, false).0, OK);
    eventually("nothing is open", || (h.fetch_offset("h", true) == (OK, -1)).then_some(()));
    let old = Who { epoch: me.epoch - 1, ..me };
    assert_eq!(h.commit_offset(5, "o", old, "h", nobody, "t"), INVALID_PRODUCER_EPOCH);
}

#[test]
fn transactions_are_listed_described_and_ended_by_hand() {
    let mut h = Rules::start();
    h.init("l");
    // Not the first epoch: Kafka stumbles over a marker of epoch -1.
    let me = h.init("l");
    assert_eq!(h.add(3, "l", me, &[("t", 0)]), [OK]);
    assert_eq!(h.produce(9, Some("l"), me, 0, 0).0, OK);
    let list = |raw: &mut Raw, states: &[&str]| {
        let request = ListTransactionsRequest::default()
            .with_duration_filter(-1)
            .with_state_filters(states.iter().map(|state| text(state)).collect());
        let response = raw.call(1, &request);
        let states = response.transaction_states.iter();
        let listed: Vec<String> = states
            .map(|state| format!("{} {}", &*state.transactional_id.0, state.transaction_state))
            .collect();
        (response.error_code, listed, response.unknown_state_filters.len())
    };
    assert_eq!(list(&mut h.raw, &[]), (OK, vec!["l Ongoing".to_owned()], 0));
    assert_eq!(list(&mut h.raw, &["Empty", "nonsense"]), (OK, vec![], 1));
    assert_eq!(h.state("nobody").0, TRANSACTIONAL_ID_NOT_FOUND);
    assert_eq!(h.state("").0, INVALID_REQUEST);
    let mark = |h: &mut Rules, topic: &str, epoch: i16, coordinator_epoch: i32| {
        let topic = WritableTxnMarkerTopic::default().with_name(name(topic)).with_partition_indexes(vec![0]);
        let marker = WritableTxnMarker::default()
            .with_producer_id(me.id.into())
            .with_producer_epoch(epoch)
            .with_transaction_result(false)
            .with_coordinator_epoch(coordinator_epoch)
            .with_topics(vec![topic]);
        let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
        let response = h.raw.call(1, &request);
        response.markers[0].topics[0].partitions[0].error_code
    };
    assert_eq!(mark(&mut h, "gone", me.epoch, 0), UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(mark(&mut h, "t", me.epoch - 1, 0), INVALID_PRODUCER_EPOCH);
    if !Broker::is_kafka() {
        // Kafka obeys it, and no transaction of the producer ends in the partition any more.
        assert_eq!(mark(&mut h, "t", me.epoch, i32::MAX), TRANSACTION_COORDINATOR_FENCED);
    }
    assert_eq!(mark(&mut h, "t", me.epoch, 0), OK);
    assert_eq!(mark(&mut h, "t", me.epoch, -1), TRANSACTION_COORDINATOR_FENCED, "a coordinator before it");
    let committed = h.raw.list_offset_committed(7, "t", -1);
    assert_eq!(committed.offset, 2, "the record and its marker are stable");
    assert_eq!(h.end(3, "l", me, false).0, OK);
    h.await_state("l", "CompleteAbort");
    // Version 2 looks for ids by an expression.
    h.init("other");
    let matching = |raw: &mut Raw, pattern: &str| {
        let request = ListTransactionsRequest::default()
            .with_duration_filter(-1)
            .with_transactional_id_pattern(Some(text(pattern)));
        let response = raw.call(2, &request);
        let mut ids: Vec<String> =
            response.transaction_states.iter().map(|state| state.transactional_id.to_string()).collect();
        ids.sort_unstable();
        (response.error_code, ids)
    };
    assert_eq!(matching(&mut h.raw, "o.*"), (OK, vec!["other".to_owned()]));
    assert_eq!(matching(&mut h.raw, "the"), (OK, vec![]), "the whole id");
    assert_eq!(matching(&mut h.raw, ""), (OK, vec!["l".to_owned(), "other".to_owned()]));
    assert_eq!(matching(&mut h.raw, "("), (INVALID_REGULAR_EXPRESSION, vec![]));
}

#[test]
fn the_feature_of_transactions_is_told() {
    let mut h = Rules::start();
    let request = ApiVersionsRequest::default()
        .with_client_software_name(text("raw"))
        .with_client_software_version(text("1"));
    let response = h.raw.call(4, &request);
    let finalized =
        response.finalized_features.iter().find(|feature| &*feature.name == "transaction.version");
    let finalized = finalized.expect("it is finalized");
    assert_eq!((finalized.min_version_level, finalized.max_version_level), (2, 2));
    let supported =
        response.supported_features.iter().find(|feature| &*feature.name == "transaction.version");
    let supported = supported.expect("it is supported");
    assert_eq!((supported.min_version, supported.max_version), (0, 2));
    assert!(response.finalized_features_epoch >= 0);
    let old = h.raw.call(3, &request);
    assert!(old.supported_features.iter().all(|feature| &*feature.name != "transaction.version"));
    drop(h.broker);
}
