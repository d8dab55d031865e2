//! Share groups (KIP-932) on the wire: members get records, acknowledge them, give them back, lose them by time; errors;
//! restarts; what administrators see and change. The values are Apache Kafka's.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kafka_protocol::messages::alter_share_group_offsets_request::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use kafka_protocol::messages::delete_share_group_offsets_request::DeleteShareGroupOffsetsRequestTopic;
use kafka_protocol::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::share_acknowledge_request::{
    AcknowledgePartition, AcknowledgeTopic, AcknowledgementBatch,
};
use kafka_protocol::messages::share_fetch_request::{self, FetchPartition, FetchTopic};
use kafka_protocol::messages::share_fetch_response::{PartitionData, ShareFetchResponse};
use kafka_protocol::messages::{
    AlterShareGroupOffsetsRequest, ApiVersionsRequest, DeleteGroupsRequest, DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest, GroupId, IncrementalAlterConfigsRequest, ListGroupsRequest,
    ShareAcknowledgeRequest, ShareFetchRequest, ShareGroupDescribeRequest, ShareGroupHeartbeatRequest,
    TopicName,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::admin::{limit_hits, metric};
use crate::group_rules::coordinator;
use crate::harness::batch::{Batch, read_all};
use crate::harness::client::Client;
use crate::harness::raw::{Answer, Raw};
use crate::harness::{Broker, eventually, shard_counts};

const OK: i16 = 0;
const INVALID_REQUEST: i16 = 42;
const UNKNOWN_TOPIC_ID: i16 = 100;
const INVALID_RECORD_STATE: i16 = 121;
const SHARE_SESSION_NOT_FOUND: i16 = 122;
const INVALID_SHARE_SESSION_EPOCH: i16 = 123;
const SHARE_SESSION_LIMIT_REACHED: i16 = 133;
const NON_EMPTY_GROUP: i16 = 68;
const GROUP_ID_NOT_FOUND: i16 = 69;

pub const ACCEPT: i8 = 1;
const RELEASE: i8 = 2;
const REJECT: i8 = 3;

/// Locks of a second, heartbeats and sessions as short as a test wants them.
const QUICK: &[(&str, &str)] = &[
    ("offsets.topic.replication.factor", "1"),
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
    ("share.coordinator.state.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.min.isr", "1"),
    ("group.share.min.heartbeat.interval.ms", "200"),
    ("group.share.heartbeat.interval.ms", "200"),
    ("group.share.min.session.timeout.ms", "3000"),
    ("group.share.session.timeout.ms", "30000"),
    ("group.share.min.record.lock.duration.ms", "1000"),
    ("group.share.record.lock.duration.ms", "2000"),
];

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_string())
}

fn group(id: &str) -> GroupId {
    GroupId(text(id))
}

/// Sets a config of a group.
pub fn configure(raw: &mut Raw, id: &str, configs: &[(&str, &str)]) {
    let configs = configs
        .iter()
        .map(|(name, value)| AlterableConfig::default().with_name(text(name)).with_value(Some(text(value))));
    let resource = AlterConfigsResource::default()
        .with_resource_type(32)
        .with_resource_name(text(id))
        .with_configs(configs.collect());
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let response = raw.call(1, &request);
    assert_eq!(response.responses[0].error_code, OK, "{:?}", response.responses[0].error_message);
}

/// One member with a connection of its own.
pub struct Member {
    raw: Raw,
    group: String,
    id: String,
    topic: Uuid,
    epoch: i32,
    session: i32,
    assigned: BTreeSet<i32>,
}

/// Records that a member got: their partition and their offsets with how often they were delivered.
pub type Got = Vec<(i32, i64, i16)>;

impl Member {
    pub fn join(broker: &Broker, id: &str, topic: &str) -> Self {
        let mut raw = coordinator(broker, id);
        let topic_id = raw.topic_id(topic);
        let mut member = Self {
            raw,
            group: id.to_owned(),
            id: Uuid::new_v4().to_string(),
            topic: topic_id,
            epoch: 0,
            session: 0,
            assigned: BTreeSet::new(),
        };
        let names = Some(vec![TopicName(text(topic))]);
        member.beat(names.clone());
        // Kafka assigns once the states are there, which it looks at with the next heartbeats.
        eventually("it has partitions", || {
            member.beat(None);
            (!member.assigned.is_empty()).then_some(())
        });
        member
    }

    /// The same member on a connection to another broker, for partitions which that one leads.
    pub fn at(&self, broker: &Broker, partitions: impl IntoIterator<Item = i32>) -> Self {
        Self {
            raw: Raw::connect(broker),
            group: self.group.clone(),
            id: self.id.clone(),
            topic: self.topic,
            epoch: self.epoch,
            session: 0,
            assigned: partitions.into_iter().collect(),
        }
    }

    fn beat(&mut self, names: Option<Vec<TopicName>>) {
        let request = ShareGroupHeartbeatRequest::default()
            .with_group_id(group(&self.group))
            .with_member_id(text(&self.id))
            .with_member_epoch(self.epoch)
            .with_subscribed_topic_names(names);
        let response = self.raw.call(1, &request);
        assert_eq!(response.error_code, OK, "{:?}", response.error_message);
        self.epoch = response.member_epoch;
        if let Some(assignment) = response.assignment {
            self.assigned =
                assignment.topic_partitions.iter().flat_map(|topic| topic.partitions.clone()).collect();
        }
    }

    fn leave(&mut self) {
        self.epoch = -1;
        self.beat(None);
    }

    /// A fetch of the assigned partitions, with acknowledgements.
    fn request(&self, wait_ms: i32, acknowledged: &[(i32, i64, i64, i8)]) -> ShareFetchRequest {
        let partitions = self.assigned.iter().map(|index| {
            let of_partition = acknowledged.iter().filter(|(partition, ..)| partition == index);
            let batches = of_partition.map(|(_, first, last, kind)| {
                share_fetch_request::AcknowledgementBatch::default()
                    .with_first_offset(*first)
                    .with_last_offset(*last)
                    .with_acknowledge_types(vec![*kind])
            });
            FetchPartition::default()
                .with_partition_index(*index)
                .with_acknowledgement_batches(batches.collect())
        });
        let topic = FetchTopic::default().with_topic_id(self.topic).with_partitions(partitions.collect());
        ShareFetchRequest::default()
            .with_group_id(Some(group(&self.group)))
            .with_member_id(Some(text(&self.id)))
            .with_share_session_epoch(self.session)
            .with_max_wait_ms(wait_ms)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_max_records(500)
            .with_batch_size(500)
            .with_topics(vec![topic])
    }

    fn call(&mut self, request: &ShareFetchRequest) -> ShareFetchResponse {
        let response = self.raw.call(1, request);
        if response.error_code == OK {
            self.session += 1;
        }
        response
    }

    /// What one fetch gives; `None` when it, or one of its partitions, has an error.
    pub fn try_fetch(&mut self, wait_ms: i32, acknowledged: &[(i32, i64, i64, i8)]) -> Option<Got> {
        let request = self.request(wait_ms, acknowledged);
        let response = self.call(&request);
        let partitions: Vec<_> = response.responses.iter().flat_map(|topic| &topic.partitions).collect();
        let failed =
            |partition: &&PartitionData| (partition.error_code, partition.acknowledge_error_code) != (OK, OK);
        if response.error_code != OK || partitions.iter().any(failed) {
            return None;
        }
        Some(partitions.into_iter().flat_map(got).collect())
    }

    /// What one fetch gives; none of its partitions may have an error.
    fn fetch(&mut self, wait_ms: i32, acknowledged: &[(i32, i64, i64, i8)]) -> Got {
        let request = self.request(wait_ms, acknowledged);
        let response = self.call(&request);
        assert_eq!(response.error_code, OK, "{:?}", response.error_message);
        response.responses.iter().flat_map(|topic| &topic.partitions).flat_map(got).collect()
    }

    /// Fetches until `count` records have come.
    fn gather(&mut self, count: usize) -> Got {
        let mut all = Got::new();
        eventually("the records come", || {
            all.extend(self.fetch(500, &[]));
            (all.len() >= count).then_some(())
        });
        all.sort_unstable();
        all
    }

    fn acknowledge(
        &mut self,
        session: i32,
        partition: i32,
        first: i64,
        last: i64,
        kinds: &[i8],
    ) -> (i16, i16) {
        let batch = AcknowledgementBatch::default()
            .with_first_offset(first)
            .with_last_offset(last)
            .with_acknowledge_types(kinds.to_vec());
        let partition = AcknowledgePartition::default()
            .with_partition_index(partition)
            .with_acknowledgement_batches(vec![batch]);
        let topic = AcknowledgeTopic::default().with_topic_id(self.topic).with_partitions(vec![partition]);
        let request = ShareAcknowledgeRequest::default()
            .with_group_id(Some(group(&self.group)))
            .with_member_id(Some(text(&self.id)))
            .with_share_session_epoch(session)
            .with_topics(vec![topic]);
        let response = self.raw.call(1, &request);
        if response.error_code != OK {
            return (response.error_code, OK);
        }
        self.session += 1;
        (OK, response.responses[0].partitions[0].error_code)
    }

    /// Acknowledges what must be right.
    fn settle(&mut self, partition: i32, first: i64, last: i64, kind: i8) {
        let session = self.session;
        assert_eq!(self.acknowledge(session, partition, first, last, &[kind]), (OK, OK), "{first} to {last}");
    }

    /// Ends the session: what is held is free.
    fn end_session(&mut self) {
        let request = ShareAcknowledgeRequest::default()
            .with_group_id(Some(group(&self.group)))
            .with_member_id(Some(text(&self.id)))
            .with_share_session_epoch(-1);
        assert_eq!(self.raw.call(1, &request).error_code, OK);
        self.session = 0;
    }
}

fn got(partition: &PartitionData) -> Got {
    assert_eq!((partition.error_code, partition.acknowledge_error_code), (OK, OK));
    let records = partition.records.clone().unwrap_or_default();
    let stored: BTreeSet<i64> = read_all(&records).into_iter().flat_map(|batch| batch.offsets).collect();
    let mut got = Got::new();
    for range in &partition.acquired_records {
        for offset in range.first_offset..=range.last_offset {
            if stored.contains(&offset) {
                got.push((partition.partition_index, offset, range.delivery_count));
            }
        }
    }
    got
}

fn offsets(got: &Got) -> Vec<i64> {
    got.iter().map(|(_, offset, _)| *offset).collect()
}

/// A broker with a topic and a group that reads it from its beginning.
fn serve(shards: usize, partitions: i32, id: &str) -> (Broker, Raw) {
    let broker = Broker::with(shards, QUICK);
    Client::of(&broker).create_topic("t", partitions, &[]);
    let mut raw = coordinator(&broker, id);
    configure(&mut raw, id, &[("share.auto.offset.reset", "earliest")]);
    (broker, raw)
}

#[test]
fn members_share_the_records_of_one_partition() {
    for shards in shard_counts([1, 3]) {
        let (broker, mut raw) = serve(shards, 1, "g");
        for _ in 0..4 {
            raw.produce("t", 0, -1, Batch::now(&["a", "b", "c"]).encode());
        }
        let mut one = Member::join(&broker, "g", "t");
        let mut two = Member::join(&broker, "g", "t");
        let first = one.gather(12);
        assert_eq!(offsets(&first), (0..12).collect::<Vec<_>>());
        assert!(first.iter().all(|(_, _, count)| *count == 1));
        assert_eq!(two.fetch(100, &[]), [], "all are with the first member");

        // Accepted, rejected, given back: only the last comes again.
        one.settle(0, 0, 3, ACCEPT);
        one.settle(0, 4, 5, REJECT);
        one.settle(0, 6, 7, RELEASE);
        assert_eq!(two.gather(2), [(0, 6, 2), (0, 7, 2)]);
        // By another, that is an error, and nothing comes of it.
        assert_eq!(two.acknowledge(two.session, 0, 8, 8, &[ACCEPT]), (OK, INVALID_RECORD_STATE));
        assert_eq!(one.acknowledge(one.session, 0, 6, 8, &[ACCEPT]), (OK, INVALID_RECORD_STATE));
        assert_eq!(one.acknowledge(one.session, 0, 8, 99, &[ACCEPT]), (OK, INVALID_REQUEST));
        assert_eq!(one.acknowledge(one.session, 0, 8, 9, &[ACCEPT, 9]), (OK, INVALID_REQUEST));
        assert_eq!(one.acknowledge(one.session, 0, 8, 10, &[ACCEPT, RELEASE, ACCEPT]), (OK, OK));

        // With a fetch, which also waits for what comes.
        assert_eq!(offsets(&two.fetch(100, &[(0, 6, 7, ACCEPT)])), [9]);
        raw.produce("t", 0, -1, Batch::now(&["d"]).encode());
        assert_eq!(two.gather(1), [(0, 12, 1)]);
        // The end of a session frees what is held: 11 of the one, 9 and 12 of the other.
        one.end_session();
        two.end_session();
        assert_eq!(offsets(&one.gather(3)), [9, 11, 12]);
        if !Broker::is_kafka() {
            // Twelve, two again, one again, a new one, and three again.
            assert_eq!(metric(&broker, "kuring_share_acquired_records_total"), 19);
            assert!(metric(&broker, "kuring_share_acknowledgements_total") >= 5);
            assert_eq!(metric(&broker, "kuring_share_sessions"), 1);
            assert_eq!(metric(&broker, "kuring_share_partitions"), 1);
        }
    }
}

#[test]
fn a_waiting_fetch_is_answered_when_records_come_whichever_shard_has_them() {
    for shards in shard_counts([1, 3]) {
        let (broker, mut raw) = serve(shards, 6, "g");
        let mut member = Member::join(&broker, "g", "t");
        assert_eq!(member.assigned.len(), 6);
        member.fetch(10, &[]);
        for partition in 0..6 {
            let request = member.request(20_000, &[]);
            let sent = member.raw.send(1, &request);
            std::thread::sleep(Duration::from_millis(100));
            let started = Instant::now();
            raw.produce("t", partition, -1, Batch::now(&["v"]).encode());
            let (correlation, response) = member.raw.receive::<ShareFetchRequest>(1);
            assert_eq!((correlation, response.error_code), (sent, OK));
            member.session += 1;
            assert!(started.elapsed() < Duration::from_secs(10), "it waited for its time-out");
            let all: Got = response.responses.iter().flat_map(|it| &it.partitions).flat_map(got).collect();
            assert_eq!(all, [(partition, 0, 1)]);
        }
    }
}

#[test]
fn a_fetch_waits_for_as_many_bytes_as_it_wants_or_its_time() {
    for shards in shard_counts([1, 3]) {
        let (broker, mut raw) = serve(shards, 2, "g");
        configure(&mut raw, "g", &[("share.record.lock.duration.ms", "60000")]);
        let mut member = Member::join(&broker, "g", "t");
        member.fetch(10, &[]);
        raw.produce("t", 0, -1, Batch::now(&["little"]).encode());
        let request = member.request(20_000, &[]).with_min_bytes(3_000);
        let sent = member.raw.send(1, &request);
        assert_eq!(member.raw.answer(Duration::from_millis(500)), Answer::Silence);
        let started = Instant::now();
        raw.produce("t", 1, -1, Batch::now(&[&"x".repeat(3_000)]).encode());
        let (correlation, response) = member.raw.receive::<ShareFetchRequest>(1);
        assert_eq!((correlation, response.error_code), (sent, OK));
        assert!(started.elapsed() < Duration::from_secs(15), "it was not only the time");
        member.session += 1;
        let all = response.responses.iter().flat_map(|topic| &topic.partitions).flat_map(got);
        let mut all: Vec<_> = all.map(|(partition, offset, _)| (partition, offset)).collect();
        all.sort_unstable();
        assert_eq!(all, [(0, 0), (1, 0)]);

        raw.produce("t", 0, -1, Batch::now(&["little"]).encode());
        let started = Instant::now();
        let request = member.request(700, &[]).with_min_bytes(i32::MAX);
        let response = member.call(&request);
        assert!(started.elapsed() >= Duration::from_millis(700));
        assert_eq!(response.responses.iter().flat_map(|topic| &topic.partitions).flat_map(got).count(), 1);
    }
}

#[test]
fn a_record_comes_again_when_its_lock_ends_and_at_last_no_more() {
    let (broker, mut raw) = serve(2, 1, "g");
    configure(
        &mut raw,
        "g",
        &[("share.delivery.count.limit", "2"), ("share.record.lock.duration.ms", "1000")],
    );
    raw.produce("t", 0, -1, Batch::now(&["a"]).encode());
    let mut one = Member::join(&broker, "g", "t");
    let mut two = Member::join(&broker, "g", "t");
    assert_eq!(one.gather(1), [(0, 0, 1)]);
    // It is not told when: the other just gets it.
    assert_eq!(two.gather(1), [(0, 0, 2)]);
    assert_eq!(one.acknowledge(one.session, 0, 0, 0, &[ACCEPT]), (OK, INVALID_RECORD_STATE));
    std::thread::sleep(Duration::from_millis(1500));
    raw.produce("t", 0, -1, Batch::now(&["b"]).encode());
    assert_eq!(one.gather(1), [(0, 1, 1)], "the first was delivered twice");
    assert!(Broker::is_kafka() || metric(&broker, "kuring_share_locks_expired_total") >= 2);
}

#[test]
fn no_more_sessions_are_opened_than_there_may_be() {
    let broker = Broker::with(1, &[QUICK, &[("group.share.max.share.sessions", "1")]].concat());
    Client::of(&broker).create_topic("t", 1, &[]);
    let mut one = Member::join(&broker, "g", "t");
    let mut two = Member::join(&broker, "g", "t");
    assert_eq!(one.fetch(10, &[]), []);
    let request = two.request(10, &[]);
    assert_eq!(two.call(&request).error_code, SHARE_SESSION_LIMIT_REACHED);
    assert!(Broker::is_kafka() || limit_hits(&broker, "share_sessions") == 1.0);
    one.end_session();
    assert_eq!(two.fetch(10, &[]), []);
}

#[test]
fn a_lost_connection_frees_what_its_member_had() {
    let (broker, mut raw) = serve(2, 1, "g");
    configure(&mut raw, "g", &[("share.record.lock.duration.ms", "60000")]);
    raw.produce("t", 0, -1, Batch::now(&["a", "b"]).encode());
    let mut one = Member::join(&broker, "g", "t");
    let mut two = Member::join(&broker, "g", "t");
    assert_eq!(one.gather(2).len(), 2);
    drop(one);
    assert_eq!(offsets(&two.gather(2)), [0, 1]);
}

#[test]
fn sessions_are_checked() {
    let (broker, _raw) = serve(2, 1, "g");
    let mut member = Member::join(&broker, "g", "t");
    let error = |member: &mut Member, session: i32| {
        let request = member.request(10, &[]).with_share_session_epoch(session);
        member.raw.call(1, &request).error_code
    };
    assert_eq!(error(&mut member, 1), SHARE_SESSION_NOT_FOUND);
    assert_eq!(error(&mut member, -1), SHARE_SESSION_NOT_FOUND);
    assert_eq!(member.acknowledge(1, 0, 0, 0, &[ACCEPT]).0, SHARE_SESSION_NOT_FOUND);
    assert_eq!(member.acknowledge(0, 0, 0, 0, &[ACCEPT]).0, INVALID_SHARE_SESSION_EPOCH);
    let early = member.request(10, &[(0, 0, 0, ACCEPT)]);
    assert_eq!(member.call(&early).error_code, INVALID_REQUEST, "nothing was fetched yet");
    assert_eq!(member.fetch(10, &[]), []);
    assert_eq!(error(&mut member, 5), INVALID_SHARE_SESSION_EPOCH);
    assert_eq!(member.acknowledge(7, 0, 0, 0, &[ACCEPT]).0, INVALID_SHARE_SESSION_EPOCH);
    assert_eq!(member.fetch(10, &[]), []);
    member.topic = Uuid::from_u128(77);
    let request = member.request(10, &[]);
    let response = member.call(&request);
    assert_eq!(response.error_code, OK);
    let codes = response.responses.iter().flat_map(|topic| &topic.partitions).map(|it| it.error_code);
    assert_eq!(codes.filter(|code| *code != OK).collect::<Vec<_>>(), [UNKNOWN_TOPIC_ID]);
}

#[test]
fn after_a_crash_what_was_accepted_stays_so_and_the_rest_comes_again() {
    let (mut broker, mut raw) = serve(2, 1, "g");
    raw.produce("t", 0, -1, Batch::now(&["a", "b", "c", "d", "e", "f"]).encode());
    let mut member = Member::join(&broker, "g", "t");
    assert_eq!(member.gather(6).len(), 6);
    member.settle(0, 0, 1, ACCEPT);
    member.settle(0, 3, 3, REJECT);
    member.settle(0, 4, 4, RELEASE);
    for clean in [false, true] {
        match clean {
            true => drop(broker.terminate()),
            false => broker.kill(),
        }
        broker.start_again(2);
        let mut member = Member::join(&broker, "g", "t");
        let again = member.gather(3);
        assert_eq!(offsets(&again), [2, 4, 5], "clean: {clean}");
        member.end_session();
    }
}

#[test]
fn aborted_records_are_delivered_only_where_the_group_wants_them() {
    let (broker, mut raw) = serve(2, 1, "committed");
    configure(&mut raw, "committed", &[("share.isolation.level", "read_committed")]);
    let mut other = coordinator(&broker, "all");
    configure(&mut other, "all", &[("share.auto.offset.reset", "earliest")]);
    let client = Client::of(&broker);
    let producer: rdkafka::producer::BaseProducer =
        client.config(&[("transactional.id", "x")]).create().expect("a producer");
    use rdkafka::producer::{BaseRecord, Producer as _};
    let patience = Duration::from_secs(20);
    producer.init_transactions(patience).expect("a transactional id");
    for (value, commit) in [("no", false), ("yes", true)] {
        producer.begin_transaction().expect("begun");
        producer
            .send(BaseRecord::<(), str>::to("t").partition(0).payload(value))
            .map_err(|(error, _)| error)
            .expect("sent");
        match commit {
            true => producer.commit_transaction(patience).expect("committed"),
            false => {
                producer.flush(patience).expect("flushed");
                producer.abort_transaction(patience).expect("aborted");
            }
        }
    }
    let mut committed = Member::join(&broker, "committed", "t");
    let mut all = Member::join(&broker, "all", "t");
    // 0 was aborted, 1 is its marker; 2 was committed, 3 is its marker.
    let wanted = |got: Got| offsets(&got).into_iter().filter(|offset| offset % 2 == 0).collect::<Vec<_>>();
    assert_eq!(wanted(committed.gather(3)), [2]);
    assert_eq!(wanted(all.gather(4)), [0, 2]);
}

fn positions(raw: &mut Raw, id: &str) -> (i16, Vec<(i32, i64)>) {
    let asked = DescribeShareGroupOffsetsRequestGroup::default().with_group_id(group(id)).with_topics(None);
    let request = DescribeShareGroupOffsetsRequest::default().with_groups(vec![asked]);
    let response = raw.call(0, &request);
    let found = &response.groups[0];
    let partitions = found.topics.iter().flat_map(|topic| &topic.partitions);
    (found.error_code, partitions.map(|it| (it.partition_index, it.start_offset)).collect())
}

#[test]
fn administrators_see_and_move_the_positions_of_a_group_that_nobody_reads() {
    let (broker, mut raw) = serve(2, 1, "g");
    raw.produce("t", 0, -1, Batch::now(&["a", "b", "c", "d"]).encode());
    let mut member = Member::join(&broker, "g", "t");
    assert_eq!(member.gather(4).len(), 4);
    member.settle(0, 0, 2, ACCEPT);
    // What is done with is told with the next write.
    member.settle(0, 3, 3, ACCEPT);
    assert_eq!(positions(&mut raw, "g"), (OK, vec![(0, 3)]));
    assert_eq!(positions(&mut raw, "none"), (OK, vec![]));

    let list = ListGroupsRequest::default().with_types_filter(vec![text("share")]);
    let listed = raw.call(5, &list);
    let shown: Vec<(&str, &str, &str)> = listed
        .groups
        .iter()
        .map(|group| (&*group.group_id.0, &*group.group_state, &*group.protocol_type))
        .collect();
    assert_eq!(
        shown.iter().map(|(id, state, kind)| (*id, *state, *kind)).collect::<Vec<_>>(),
        [("g", "Stable", "share")]
    );
    let describe = ShareGroupDescribeRequest::default().with_group_ids(vec![group("g"), group("none")]);
    let described = raw.call(1, &describe);
    assert_eq!((described.groups[0].error_code, described.groups[0].members.len()), (OK, 1));
    assert_eq!(&*described.groups[0].assignor_name, "simple");
    assert_eq!(described.groups[1].error_code, GROUP_ID_NOT_FOUND);

    let alter = |raw: &mut Raw, id, start| {
        let partition = AlterShareGroupOffsetsRequestPartition::default()
            .with_partition_index(0)
            .with_start_offset(start);
        let topic = AlterShareGroupOffsetsRequestTopic::default()
            .with_topic_name(TopicName(text("t")))
            .with_partitions(vec![partition]);
        let request =
            AlterShareGroupOffsetsRequest::default().with_group_id(group(id)).with_topics(vec![topic]);
        let response = raw.call(0, &request);
        let of_partition = response.responses.first().map(|topic| topic.partitions[0].error_code);
        (response.error_code, of_partition)
    };
    assert_eq!(alter(&mut raw, "g", 1).0, NON_EMPTY_GROUP);
    member.end_session();
    member.leave();
    assert_eq!(alter(&mut raw, "g", 1), (OK, Some(OK)));
    assert_eq!(positions(&mut raw, "g"), (OK, vec![(0, 1)]));
    let mut member = Member::join(&broker, "g", "t");
    assert_eq!(offsets(&member.gather(3)), [1, 2, 3]);
    member.settle(0, 1, 1, ACCEPT);
    member.end_session();
    member.leave();
    // A group that is not there yet is made.
    assert_eq!(alter(&mut raw, "new", 2), (OK, Some(OK)));
    assert_eq!(positions(&mut raw, "new"), (OK, vec![(0, 2)]));
    assert_eq!(offsets(&Member::join(&broker, "new", "t").gather(2)), [2, 3]);

    let delete = |raw: &mut Raw| {
        let topic = DeleteShareGroupOffsetsRequestTopic::default().with_topic_name(TopicName(text("t")));
        let request =
            DeleteShareGroupOffsetsRequest::default().with_group_id(group("g")).with_topics(vec![topic]);
        let response = raw.call(0, &request);
        (response.error_code, response.responses[0].error_code)
    };
    assert_eq!(delete(&mut raw), (OK, OK));
    assert_eq!(delete(&mut raw).1, 3, "there is nothing left to delete");
    assert_eq!(positions(&mut raw, "g"), (OK, vec![]));
    let delete = DeleteGroupsRequest::default().with_groups_names(vec![group("g")]);
    assert_eq!(raw.call(2, &delete).results[0].error_code, OK);
    assert_eq!(positions(&mut raw, "g"), (OK, vec![]));
    let mut member = Member::join(&broker, "g", "t");
    assert_eq!(offsets(&member.gather(4)), [0, 1, 2, 3]);
}

#[test]
fn what_share_groups_need_is_advertised() {
    let broker = Broker::with(1, QUICK);
    let request = ApiVersionsRequest::default()
        .with_client_software_name(text("test"))
        .with_client_software_version(text("1"));
    let response = Raw::connect(&broker).call(4, &request);
    let range = |key| {
        let api = response.api_keys.iter().find(|api| api.api_key == key);
        api.map(|api| (api.min_version, api.max_version))
    };
    for (key, expected) in
        [(76, (1, 1)), (77, (1, 1)), (78, (1, 2)), (79, (1, 2)), (90, (0, 1)), (91, (0, 0)), (92, (0, 0))]
    {
        assert_eq!(range(key), Some(expected), "{key}");
    }
    let finalized = response.finalized_features.iter().find(|feature| &*feature.name == "share.version");
    assert!(finalized.is_some_and(|feature| feature.max_version_level >= 1));
}
