//! What is wrong, and the code for it: one table for the coordinators of groups and transactions. The values are Apache
//! Kafka's (`KURING_TEST_BROKER=kafka`).

use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, EndTxnRequest, FindCoordinatorRequest, GroupId, HeartbeatRequest,
    InitProducerIdRequest, JoinGroupRequest, LeaveGroupRequest, OffsetCommitRequest, SyncGroupRequest,
    TopicName, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;

use crate::group_rules::coordinator;
use crate::harness::batch::Batch;
use crate::harness::client::Client;
use crate::harness::raw::{Raw, produce};
use crate::harness::{Broker, eventually};

const OFFSET_METADATA_TOO_LARGE: i16 = 12;
const ILLEGAL_GENERATION: i16 = 22;
const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
const UNKNOWN_MEMBER_ID: i16 = 25;
const INVALID_SESSION_TIMEOUT: i16 = 26;
const INVALID_GROUP_ID: i16 = 24;
const INVALID_REQUEST: i16 = 42;
const INVALID_PRODUCER_EPOCH: i16 = 47;
const INVALID_PRODUCER_ID_MAPPING: i16 = 49;
const INVALID_TRANSACTION_TIMEOUT: i16 = 50;
const GROUP_ID_NOT_FOUND: i16 = 69;
const MEMBER_ID_REQUIRED: i16 = 79;
const FENCED_INSTANCE_ID: i16 = 82;
const PRODUCER_FENCED: i16 = 90;
const FENCED_MEMBER_EPOCH: i16 = 110;
const UNRELEASED_INSTANCE_ID: i16 = 111;
const UNSUPPORTED_ASSIGNOR: i16 = 112;
const STALE_MEMBER_EPOCH: i16 = 113;
const INVALID_REGULAR_EXPRESSION: i16 = 128;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn join(group: &str, member: &str) -> JoinGroupRequest {
    let metadata = Bytes::from_static(&[0, 0, 0, 0, 0, 1, 0, 1, b't', 0xff, 0xff, 0xff, 0xff]);
    let protocol = JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata(metadata);
    JoinGroupRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_session_timeout_ms(30_000)
        .with_rebalance_timeout_ms(30_000)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

fn sync(group: &str, member: &str, generation: i32) -> SyncGroupRequest {
    let assignment = SyncGroupRequestAssignment::default()
        .with_member_id(text(member))
        .with_assignment(Bytes::from_static(b"all"));
    SyncGroupRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(text(member))
        .with_generation_id(generation)
        .with_protocol_type(Some(text("consumer")))
        .with_protocol_name(Some(text("range")))
        .with_assignments(vec![assignment])
}

fn beat(group: &str, member: &str, generation: i32) -> HeartbeatRequest {
    HeartbeatRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(text(member))
        .with_generation_id(generation)
}

fn leave(group: &str, member: &str) -> LeaveGroupRequest {
    let leaver = MemberIdentity::default().with_member_id(text(member));
    LeaveGroupRequest::default().with_group_id(GroupId(text(group))).with_members(vec![leaver])
}

fn commit(group: &str, member: &str, generation: i32, metadata: &str) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(1)
        .with_committed_metadata(Some(text(metadata)));
    let topic =
        OffsetCommitRequestTopic::default().with_name(TopicName(text("t"))).with_partitions(vec![partition]);
    OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(text(member))
        .with_generation_id_or_member_epoch(generation)
        .with_topics(vec![topic])
}

fn heartbeat(group: &str, member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(-1)
}

fn joining(group: &str, member: &str) -> ConsumerGroupHeartbeatRequest {
    heartbeat(group, member, 0)
        .with_rebalance_timeout_ms(30_000)
        .with_subscribed_topic_names(Some(vec![TopicName(text("t"))]))
        .with_topic_partitions(Some(Vec::new()))
}

fn init(name: &str, timeout_ms: i32, producer: (i64, i16)) -> InitProducerIdRequest {
    InitProducerIdRequest::default()
        .with_transactional_id(Some(TransactionalId(text(name))))
        .with_transaction_timeout_ms(timeout_ms)
        .with_producer_id(producer.0.into())
        .with_producer_epoch(producer.1)
}

fn end(name: &str, producer: (i64, i16)) -> EndTxnRequest {
    EndTxnRequest::default()
        .with_transactional_id(TransactionalId(text(name)))
        .with_producer_id(producer.0.into())
        .with_producer_epoch(producer.1)
        .with_committed(true)
}

/// Groups and a producer to be wrong about.
struct Scene {
    raw: Raw,
    /// A member of the classic group `g`, which is stable at generation 1.
    member: String,
    /// The static member `i` of the classic group `s`.
    fixed: String,
    /// The producer of `x`.
    producer: (i64, i16),
    /// That of `late`, whose transaction timed out.
    late: (i64, i16),
    _broker: Broker,
}

impl Scene {
    fn new() -> Self {
        let broker = Broker::with(
            2,
            &[
                ("group.initial.rebalance.delay.ms", "0"),
                ("offsets.topic.replication.factor", "1"),
                ("transaction.state.log.replication.factor", "1"),
                ("transaction.state.log.min.isr", "1"),
                ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "100"),
            ],
        );
        Client::of(&broker).create_topic("t", 2, &[]);
        let mut raw = coordinator(&broker, "g");
        eventually("the coordinator of transactions", || {
            let find =
                FindCoordinatorRequest::default().with_key_type(1).with_coordinator_keys(vec![text("x")]);
            (raw.call(4, &find).coordinators[0].error_code == 0).then_some(())
        });
        let member = Self::stable(&mut raw, join("g", ""), None);
        let fixed =
            Self::stable(&mut raw, join("s", "").with_group_instance_id(Some(text("i"))), Some(text("i")));
        for (id, instance) in [("a", None), ("b", Some(text("i")))] {
            let joined = raw.call(1, &joining("n", id).with_instance_id(instance));
            assert_eq!(joined.error_code, 0);
        }
        let mut start = |name: &str, timeout_ms: i32| {
            eventually("a producer id", || {
                let given = raw.call(5, &init(name, timeout_ms, (-1, -1)));
                // Not available, loading, not the coordinator.
                (!matches!(given.error_code, 14..=16)).then(|| {
                    assert_eq!(given.error_code, 0);
                    (given.producer_id.0, given.producer_epoch)
                })
            })
        };
        let (producer, late) = (start("x", 60_000), start("late", 200));
        let batch = Batch::now(&["v"]).with_producer(late.0, late.1, 0).transactional();
        let request = produce("t", 0, -1, batch.encode());
        let request = request.with_transactional_id(Some(TransactionalId(text("late"))));
        let sent = raw.call(12, &request);
        assert_eq!(sent.responses[0].partition_responses[0].error_code, 0);
        Self { raw, member, fixed, producer, late, _broker: broker }
    }

    fn stable(raw: &mut Raw, request: JoinGroupRequest, instance: Option<StrBytes>) -> String {
        let group = request.group_id.to_string();
        let mut joined = raw.call(9, &request);
        if joined.error_code == MEMBER_ID_REQUIRED {
            joined = raw.call(9, &join(&group, &joined.member_id));
        }
        assert_eq!((joined.error_code, joined.generation_id), (0, 1));
        let request = sync(&group, &joined.member_id, 1).with_group_instance_id(instance);
        assert_eq!(raw.call(5, &request).error_code, 0);
        joined.member_id.to_string()
    }

    fn join(&mut self, request: &JoinGroupRequest) -> i16 {
        self.raw.call(9, request).error_code
    }

    fn sync(&mut self, request: &SyncGroupRequest) -> i16 {
        self.raw.call(5, request).error_code
    }

    fn beat(&mut self, request: &HeartbeatRequest) -> i16 {
        self.raw.call(4, request).error_code
    }

    fn leave(&mut self, request: &LeaveGroupRequest) -> i16 {
        self.raw.call(5, request).members[0].error_code
    }

    fn commit(&mut self, request: &OffsetCommitRequest) -> i16 {
        self.raw.call(9, request).topics[0].partitions[0].error_code
    }

    fn heartbeat(&mut self, request: &ConsumerGroupHeartbeatRequest) -> i16 {
        self.raw.call(1, request).error_code
    }

    fn init(&mut self, version: i16, request: &InitProducerIdRequest) -> i16 {
        self.raw.call(version, request).error_code
    }

    fn end(&mut self, version: i16, request: &EndTxnRequest) -> i16 {
        self.raw.call(version, request).error_code
    }
}

type Case = (&'static str, i16, fn(&mut Scene) -> i16);

const TABLE: &[Case] = &[
    ("heartbeat of an unknown member", UNKNOWN_MEMBER_ID, |s| s.beat(&beat("g", "nobody", 1))),
    ("heartbeat to an unknown group", UNKNOWN_MEMBER_ID, |s| s.beat(&beat("none", "nobody", 1))),
    ("heartbeat of a stale generation", ILLEGAL_GENERATION, |s| s.beat(&beat("g", &s.member.clone(), 0))),
    ("heartbeat of a generation to come", ILLEGAL_GENERATION, |s| s.beat(&beat("g", &s.member.clone(), 2))),
    ("heartbeat without a group", INVALID_GROUP_ID, |s| s.beat(&beat("", "nobody", 1))),
    ("heartbeat of a fenced instance", FENCED_INSTANCE_ID, |s| {
        s.beat(&beat("s", "former", 1).with_group_instance_id(Some(text("i"))))
    }),
    ("heartbeat of an unknown instance", UNKNOWN_MEMBER_ID, |s| {
        s.beat(&beat("s", &s.fixed.clone(), 1).with_group_instance_id(Some(text("j"))))
    }),
    ("join of an unknown member", UNKNOWN_MEMBER_ID, |s| s.join(&join("g", "nobody"))),
    ("join of a fenced instance", FENCED_INSTANCE_ID, |s| {
        s.join(&join("s", "former").with_group_instance_id(Some(text("i"))))
    }),
    ("join without a common protocol", INCONSISTENT_GROUP_PROTOCOL, |s| {
        let mut request = join("g", "");
        request.protocols[0].name = text("other");
        s.join(&request)
    }),
    ("join without any protocol", INCONSISTENT_GROUP_PROTOCOL, |s| {
        s.join(&join("g", "").with_protocols(Vec::new()))
    }),
    ("join with another protocol type", INCONSISTENT_GROUP_PROTOCOL, |s| {
        s.join(&join("g", "").with_protocol_type(text("connect")))
    }),
    ("join with too short a session", INVALID_SESSION_TIMEOUT, |s| {
        s.join(&join("g", "").with_session_timeout_ms(1))
    }),
    ("join with too long a session", INVALID_SESSION_TIMEOUT, |s| {
        s.join(&join("g", "").with_session_timeout_ms(i32::MAX))
    }),
    ("sync of an unknown member", UNKNOWN_MEMBER_ID, |s| s.sync(&sync("g", "nobody", 1))),
    ("sync of an illegal generation", ILLEGAL_GENERATION, |s| s.sync(&sync("g", &s.member.clone(), 7))),
    ("sync with another protocol type", INCONSISTENT_GROUP_PROTOCOL, |s| {
        s.sync(&sync("g", &s.member.clone(), 1).with_protocol_type(Some(text("connect"))))
    }),
    ("sync with another protocol", INCONSISTENT_GROUP_PROTOCOL, |s| {
        s.sync(&sync("g", &s.member.clone(), 1).with_protocol_name(Some(text("other"))))
    }),
    ("sync of a fenced instance", FENCED_INSTANCE_ID, |s| {
        s.sync(&sync("s", "former", 1).with_group_instance_id(Some(text("i"))))
    }),
    ("leave of an unknown member", UNKNOWN_MEMBER_ID, |s| s.leave(&leave("g", "nobody"))),
    ("commit of an unknown member", UNKNOWN_MEMBER_ID, |s| s.commit(&commit("g", "nobody", 1, ""))),
    ("commit of nobody to a group in use", UNKNOWN_MEMBER_ID, |s| s.commit(&commit("g", "", -1, ""))),
    ("commit of an illegal generation", ILLEGAL_GENERATION, |s| {
        s.commit(&commit("g", &s.member.clone(), 2, ""))
    }),
    ("commit of a member to an unknown group", GROUP_ID_NOT_FOUND, |s| s.commit(&commit("none", "m", 1, ""))),
    ("commit of a fenced instance", FENCED_INSTANCE_ID, |s| {
        s.commit(&commit("s", "former", 1, "").with_group_instance_id(Some(text("i"))))
    }),
    ("commit with oversized metadata", OFFSET_METADATA_TOO_LARGE, |s| {
        s.commit(&commit("g", &s.member.clone(), 1, &"x".repeat(4097)))
    }),
    ("new protocol: an unknown member", UNKNOWN_MEMBER_ID, |s| s.heartbeat(&heartbeat("n", "nobody", 1))),
    ("new protocol: an unknown group", GROUP_ID_NOT_FOUND, |s| s.heartbeat(&heartbeat("none", "a", 1))),
    ("new protocol: no member id", INVALID_REQUEST, |s| s.heartbeat(&joining("n", ""))),
    ("new protocol: an epoch ahead", FENCED_MEMBER_EPOCH, |s| s.heartbeat(&heartbeat("n", "a", 99))),
    ("new protocol: an instance in use", UNRELEASED_INSTANCE_ID, |s| {
        s.heartbeat(&joining("n", "c").with_instance_id(Some(text("i"))))
    }),
    ("new protocol: a fenced instance", FENCED_INSTANCE_ID, |s| {
        s.heartbeat(&heartbeat("n", "former", 1).with_instance_id(Some(text("i"))))
    }),
    ("new protocol: an unknown assignor", UNSUPPORTED_ASSIGNOR, |s| {
        s.heartbeat(&joining("n", "c").with_server_assignor(Some(text("other"))))
    }),
    ("new protocol: a wrong expression", INVALID_REGULAR_EXPRESSION, |s| {
        s.heartbeat(&joining("n", "c").with_subscribed_topic_regex(Some(text("("))))
    }),
    ("new protocol: commit of a stale epoch", STALE_MEMBER_EPOCH, |s| s.commit(&commit("n", "a", 1, ""))),
    ("new protocol: commit of an unknown member", UNKNOWN_MEMBER_ID, |s| {
        s.commit(&commit("n", "nobody", 1, ""))
    }),
    ("new protocol: heartbeat of the classic one", UNKNOWN_MEMBER_ID, |s| s.beat(&beat("n", "a", 2))),
    ("producer: too long a time-out", INVALID_TRANSACTION_TIMEOUT, |s| {
        s.init(5, &init("x", i32::MAX, (-1, -1)))
    }),
    ("producer: no time-out", INVALID_TRANSACTION_TIMEOUT, |s| s.init(5, &init("x", 0, (-1, -1)))),
    ("producer: a wrong epoch", PRODUCER_FENCED, |s| {
        s.init(5, &init("x", 60_000, (s.producer.0, s.producer.1 + 5)))
    }),
    ("producer: a wrong epoch, as old clients know it", INVALID_PRODUCER_EPOCH, |s| {
        s.init(3, &init("x", 60_000, (s.producer.0, s.producer.1 + 5)))
    }),
    ("end: another producer's id", INVALID_PRODUCER_ID_MAPPING, |s| {
        s.end(3, &end("x", (s.producer.0 + 999, 0)))
    }),
    ("end: an unknown transactional id", INVALID_PRODUCER_ID_MAPPING, |s| s.end(3, &end("none", s.producer))),
    ("end: a wrong epoch", PRODUCER_FENCED, |s| s.end(3, &end("x", (s.producer.0, s.producer.1 + 5)))),
    ("end: a wrong epoch, as old clients know it", INVALID_PRODUCER_EPOCH, |s| {
        s.end(1, &end("x", (s.producer.0, s.producer.1 + 5)))
    }),
    ("end: an expired transaction", PRODUCER_FENCED, |s| {
        let request = end("late", s.late);
        eventually("its time is over", || Some(s.end(3, &request)).filter(|code| *code != CONCURRENT))
    }),
];

/// While a transaction is being ended.
const CONCURRENT: i16 = 51;

#[test]
fn every_bad_input_is_told_in_kafkas_code() {
    let mut scene = Scene::new();
    // Its transaction of 200 ms is over by then, and aborted.
    std::thread::sleep(std::time::Duration::from_secs(2));
    for (what, code, ask) in TABLE {
        assert_eq!(ask(&mut scene), *code, "{what}");
    }
    // And nothing of it has done any harm.
    let (member, fixed) = (scene.member.clone(), scene.fixed.clone());
    assert_eq!(scene.beat(&beat("g", &member, 1)), 0);
    assert_eq!(scene.beat(&beat("s", &fixed, 1).with_group_instance_id(Some(text("i")))), 0);
    assert_eq!(scene.commit(&commit("g", &member, 1, "")), 0);
}
