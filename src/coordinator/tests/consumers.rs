//! Consumer groups of the new protocol: who is answered what, and what a rebalance does step by step. Codes and
//! messages are Apache Kafka's.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafka_protocol::messages::consumer_group_describe_response::DescribedGroup;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupId, ListGroupsRequest,
    OffsetDeleteRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::harness::{GROUP, Harness, OK, commit_request, settings, text};
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, TopicId};
use crate::config::{ConsumerGroupTimes, GroupSettings};
use crate::coordinator::consumer::ConsumerGroup;
use crate::coordinator::{Request, Response};
use crate::metadata::{BrokerImage, ConfigResource, Image, PartitionImage, Record, State};
use crate::wire::ErrorCode;

pub(super) const REBALANCE_MS: i32 = 30_000;

/// A cluster whose topics come and go.
pub(super) struct Cluster {
    state: State,
    version: u64,
    topics: BTreeMap<String, (TopicId, i32)>,
    next_id: u128,
}

impl Cluster {
    pub(super) fn new(topics: &[(&str, i32)]) -> Self {
        let mut cluster = Self { state: State::default(), version: 0, topics: BTreeMap::new(), next_id: 1 };
        let broker = BrokerImage {
            id: BrokerId(1),
            epoch: BrokerEpoch(1),
            incarnation: uuid::Uuid::from_u128(1),
            endpoints: Vec::new(),
            rack: Some("r1".to_owned()),
            fenced: false,
            shutting_down: false,
            log_dirs: Vec::new(),
            features: Vec::new(),
        };
        cluster.apply(vec![Record::Cluster { id: "c".into() }, Record::BrokerRegistered(broker)]);
        for (name, partitions) in topics {
            cluster.create(name, *partitions);
        }
        cluster
    }

    fn apply(&mut self, records: Vec<Record>) {
        self.version += 1;
        if let Err(error) = self.state.apply(self.version, &records) {
            panic!("{error}");
        }
    }

    pub(super) fn create(&mut self, name: &str, partitions: i32) {
        let id = TopicId(uuid::Uuid::from_u128(self.next_id));
        self.next_id += 1;
        self.apply(vec![Record::Topic { name: name.into(), id }]);
        self.topics.insert(name.to_owned(), (id, 0));
        self.grow(name, partitions);
    }

    pub(super) fn grow(&mut self, name: &str, partitions: i32) {
        let (topic, count) = self.topics.get_mut(name).expect("a topic");
        let (topic, from) = (*topic, std::mem::replace(count, partitions));
        let records = (from..partitions).map(|index| Record::Partition {
            topic,
            index: PartitionIndex(index),
            partition: PartitionImage {
                replicas: [BrokerId(1)].into(),
                isr: [BrokerId(1)].into(),
                leader: Some(BrokerId(1)),
                leader_epoch: LeaderEpoch(0),
                partition_epoch: 0,
                directories: Box::default(),
                transit: None,
            },
        });
        let records = records.collect();
        self.apply(records);
    }

    pub(super) fn delete(&mut self, name: &str) {
        let (id, _) = self.topics.remove(name).expect("a topic");
        self.apply(vec![Record::TopicRemoved { id }]);
    }

    pub(super) fn configure_group(&mut self, name: &str, value: Option<&str>) {
        let resource = ConfigResource::Group(GROUP.to_owned());
        let value = value.map(str::to_owned);
        self.apply(vec![Record::Config { resource, name: name.to_owned(), value }]);
    }

    pub(super) fn topics(&self) -> &BTreeMap<String, (TopicId, i32)> {
        &self.topics
    }

    pub(super) fn id(&self, name: &str) -> TopicId {
        self.topics[name].0
    }

    pub(super) fn image(&self) -> Arc<Image> {
        Arc::new(self.state.image().clone())
    }
}

pub(super) fn join(member: &str, topics: &[&str]) -> ConsumerGroupHeartbeatRequest {
    let names = topics.iter().map(|name| TopicName(text(name))).collect();
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_member_id(text(member))
        .with_member_epoch(0)
        .with_rebalance_timeout_ms(REBALANCE_MS)
        .with_subscribed_topic_names(Some(names))
        .with_topic_partitions(Some(Vec::new()))
}

pub(super) fn beat(member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(-1)
}

/// The heartbeat of a member that says what it has.
pub(super) fn owning(member: &str, epoch: i32, owned: &[(TopicId, &[i32])]) -> ConsumerGroupHeartbeatRequest {
    let topics = owned.iter().map(|(topic, partitions)| {
        TopicPartitions::default().with_topic_id(topic.0).with_partitions(partitions.to_vec())
    });
    beat(member, epoch).with_topic_partitions(Some(topics.collect()))
}

/// The epoch and, if told, the partitions.
type Told = (i32, Option<Vec<(TopicId, Vec<i32>)>>);

impl Harness {
    pub(super) fn consumers(topics: &[(&str, i32)]) -> (Self, Cluster) {
        Self::consumers_with(settings(), topics)
    }

    pub(super) fn consumers_with(settings: GroupSettings, topics: &[(&str, i32)]) -> (Self, Cluster) {
        let mut h = Harness::with(settings);
        let cluster = Cluster::new(topics);
        h.version = 1;
        h.cluster(cluster.image());
        (h, cluster)
    }

    pub(super) fn answer(
        &mut self,
        request: ConsumerGroupHeartbeatRequest,
    ) -> ConsumerGroupHeartbeatResponse {
        match self.call(Request::ConsumerHeartbeat(request)) {
            Response::ConsumerHeartbeat(response) => response,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn beats(&mut self, request: ConsumerGroupHeartbeatRequest) -> Told {
        let response = self.answer(request);
        assert_eq!(response.error_code, OK, "{:?}", response.error_message);
        told(&response)
    }

    pub(super) fn refused(&mut self, request: ConsumerGroupHeartbeatRequest) -> (ErrorCode, String) {
        let response = self.answer(request);
        let code = ErrorCode::try_from_code(response.error_code).expect("it is refused");
        (code, response.error_message.expect("a message").to_string())
    }

    pub(super) fn group(&self) -> &ConsumerGroup {
        let partition = self.coordinator.partition_of(GROUP);
        &self.coordinator.partitions[&partition].consumers[&text(GROUP)]
    }

    pub(super) fn describe_consumer(&mut self) -> DescribedGroup {
        match self.call(Request::DescribeConsumer(GroupId(text(GROUP)))) {
            Response::DescribeConsumer(group) => group,
            other => panic!("{other:?}"),
        }
    }

    fn listed(&mut self, states: &[&str], types: &[&str]) -> Vec<(String, String, String)> {
        let request = ListGroupsRequest::default()
            .with_states_filter(states.iter().map(|state| text(state)).collect())
            .with_types_filter(types.iter().map(|kind| text(kind)).collect());
        let Response::List(response) = self.call(Request::List(request)) else { panic!("a list") };
        let each = response.groups.iter().map(|group| {
            (group.group_state.to_string(), group.group_type.to_string(), group.protocol_type.to_string())
        });
        each.collect()
    }

    fn fetch_as(&mut self, member: Option<&str>, epoch: i32) -> i16 {
        let topic = OffsetFetchRequestTopics::default()
            .with_name(TopicName(text("t")))
            .with_partition_indexes(vec![0]);
        let group = OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(text(GROUP)))
            .with_member_id(member.map(text))
            .with_member_epoch(epoch)
            .with_topics(Some(vec![topic]));
        match self.call(Request::FetchOffsets { group, require_stable: false }) {
            Response::FetchOffsets(group) => group.error_code,
            other => panic!("{other:?}"),
        }
    }

    /// Restarts and checks that what is read back is what was there.
    pub(super) fn restart_same(&mut self) {
        let before: Vec<ConsumerGroup> =
            self.coordinator.partitions.values().flat_map(|it| it.consumers.values().cloned()).collect();
        self.restart();
        let after: Vec<ConsumerGroup> =
            self.coordinator.partitions.values().flat_map(|it| it.consumers.values().cloned()).collect();
        assert_eq!(before, after);
    }
}

fn told(response: &ConsumerGroupHeartbeatResponse) -> Told {
    let assignment = response.assignment.as_ref().map(|assignment| {
        let topics = assignment.topic_partitions.iter();
        topics.map(|topic| (TopicId(topic.topic_id), topic.partitions.clone())).collect()
    });
    (response.member_epoch, assignment)
}

#[test]
fn a_lone_member_gets_everything_with_its_first_heartbeat() {
    let (mut h, cluster) = Harness::consumers(&[("t", 3)]);
    let t = cluster.id("t");
    let response = h.answer(join("a", &["t"]));
    assert_eq!((response.member_id.as_deref(), response.heartbeat_interval_ms), (Some("a"), 5_000));
    assert_eq!(told(&response), (2, Some(vec![(t, vec![0, 1, 2])])));
    assert_eq!(h.beats(beat("a", 2)), (2, None));
    assert_eq!(h.group().state_name(), "Stable");
    h.restart_same();
    assert_eq!(h.beats(beat("a", 2)), (2, None));
}

#[test]
fn partitions_change_hands_without_stopping_the_others() {
    let (mut h, cluster) = Harness::consumers(&[("t", 4)]);
    let t = cluster.id("t");
    h.beats(join("a", &["t"]));
    // b has to wait for what a has.
    assert_eq!(h.beats(join("b", &["t"])), (3, Some(vec![])));
    assert_eq!(h.group().state_name(), "Reconciling");
    assert_eq!(h.beats(beat("b", 3)), (3, None));
    // a is told to give two back, and keeps its epoch until it has.
    assert_eq!(h.beats(beat("a", 2)), (2, Some(vec![(t, vec![0, 1])])));
    h.restart_same();
    assert_eq!(h.beats(beat("a", 2)), (2, None));
    assert_eq!(h.beats(beat("b", 3)), (3, None));
    assert_eq!(h.beats(owning("a", 2, &[(t, &[0, 1])])), (3, None));
    assert_eq!(h.beats(beat("b", 3)), (3, Some(vec![(t, vec![2, 3])])));
    assert_eq!(h.group().state_name(), "Stable");
    h.restart_same();
}

#[test]
fn what_a_leaver_had_goes_to_those_who_stay() {
    let (mut h, cluster) = Harness::consumers(&[("t", 2)]);
    let t = cluster.id("t");
    h.beats(join("a", &["t"]));
    h.beats(join("b", &["t"]));
    let (epoch, assignment) = h.beats(beat("a", -1));
    assert_eq!((epoch, assignment), (-1, None));
    assert_eq!(h.beats(beat("b", 3)), (4, Some(vec![(t, vec![0, 1])])));
    h.beats(beat("b", -1));
    assert_eq!(h.group().state_name(), "Empty");
    let group = h.describe_consumer();
    assert_eq!((group.group_epoch, group.assignment_epoch), (5, 5));
    h.restart_same();
}

#[test]
fn every_bad_heartbeat_is_told_what_is_wrong() {
    use ErrorCode::{
        FencedMemberEpoch, GroupIdNotFound, InvalidRegularExpression, InvalidRequest, UnknownMemberId,
        UnsupportedAssignor,
    };
    let (mut h, cluster) = Harness::consumers(&[("t", 1)]);
    let t = cluster.id("t");
    let refused = |h: &mut Harness, request| h.refused(request);
    let first = join("a", &["t"]);
    let cases = [
        (join("", &["t"]), InvalidRequest, "MemberId can't be empty."),
        (first.clone().with_group_id(GroupId(text(" "))), InvalidRequest, "GroupId can't be empty."),
        (first.clone().with_instance_id(Some(text(""))), InvalidRequest, "InstanceId can't be empty."),
        (first.clone().with_rack_id(Some(text(""))), InvalidRequest, "RackId can't be empty."),
        (
            first.clone().with_rebalance_timeout_ms(-1),
            InvalidRequest,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            first.clone().with_topic_partitions(None),
            InvalidRequest,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            first.clone().with_subscribed_topic_names(None),
            InvalidRequest,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (beat("a", -2), InvalidRequest, "InstanceId can't be null."),
        (beat("a", -3), InvalidRequest, "MemberEpoch is invalid."),
        (
            first.clone().with_server_assignor(Some(text("sticky"))),
            UnsupportedAssignor,
            "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
        ),
        (beat("a", 2), GroupIdNotFound, "Consumer group g not found."),
        (beat("a", -1), GroupIdNotFound, "Group g not found."),
    ];
    for (request, code, message) in cases {
        assert_eq!(refused(&mut h, request), (code, message.to_owned()));
    }
    let bad_regex = first.clone().with_subscribed_topic_regex(Some(text("(")));
    let (code, message) = h.refused(bad_regex);
    assert_eq!(code, InvalidRegularExpression);
    assert!(message.starts_with("SubscribedTopicRegex `(` is not a valid regular expression: "), "{message}");
    assert!(h.logs.values().all(Vec::is_empty), "nothing was written");

    h.beats(first);
    let cases = [
        (beat("b", 2), UnknownMemberId, "Member b is not a member of group g."),
        (beat("b", -1), UnknownMemberId, "Member b is not a member of group g."),
        (
            beat("a", 3),
            FencedMemberEpoch,
            "The consumer group member has a greater member epoch (3) than the one known by the group coordinator \
             (2). The member must abandon all its partitions and rejoin.",
        ),
        (beat("a", 2).with_instance_id(Some(text("i"))), UnknownMemberId, "Instance id i is unknown."),
    ];
    for (request, code, message) in cases {
        assert_eq!(refused(&mut h, request), (code, message.to_owned()));
    }
    // A member that did not hear of its last step comes with the epoch before it, and what it may have.
    h.beats(join("b", &["t"]));
    assert_eq!(h.beats(beat("a", 2)).0, 3);
    assert_eq!(h.beats(owning("a", 2, &[(t, &[0])])).0, 3);
    let smaller = "The consumer group member has a smaller member epoch (2) than the one known by the group \
                   coordinator (3). The member must abandon all its partitions and rejoin.";
    assert_eq!(h.refused(owning("a", 2, &[(t, &[0, 7])])), (FencedMemberEpoch, smaller.to_owned()));
    assert_eq!(h.refused(beat("a", 2)), (FencedMemberEpoch, smaller.to_owned()));
}

#[test]
fn members_that_are_silent_are_out_when_their_session_ends() {
    let (mut h, cluster) = Harness::consumers(&[("t", 2)]);
    let t = cluster.id("t");
    h.beats(join("a", &["t"]));
    h.beats(join("b", &["t"]));
    for _ in 0..5 {
        h.pass(10_000);
        let epoch = h.group().member(&text("b")).expect("b").position.epoch.0;
        h.beats(beat("b", epoch));
    }
    assert_eq!(h.group().len(), 1);
    assert_eq!(h.beats(beat("b", 4)), (4, None));
    let (code, _) = h.refused(beat("a", 2));
    assert_eq!(code, ErrorCode::UnknownMemberId);
    assert_eq!(h.describe_consumer().members[0].assignment.topic_partitions[0].topic_id, t.0);
    h.pass(50_000);
    assert!(h.group().is_empty());
    assert_eq!(h.coordinator.timers_armed(), 1, "the sweep alone");
}

#[test]
fn a_member_that_does_not_give_back_in_time_is_out() {
    let (mut h, _) = Harness::consumers(&[("t", 2)]);
    h.beats(join("a", &["t"]));
    h.beats(join("b", &["t"]));
    h.beats(beat("a", 2));
    for _ in 0..4 {
        h.pass(10_000);
        h.answer(beat("a", 2));
        h.answer(beat("b", 3));
    }
    assert_eq!(h.group().len(), 1);
    assert!(h.group().member(&text("a")).is_none());
}

#[test]
fn a_rebalance_time_out_goes_on_after_a_restart() {
    let (mut h, _) = Harness::consumers(&[("t", 2)]);
    h.beats(join("a", &["t"]));
    h.beats(join("b", &["t"]));
    h.beats(beat("a", 2));
    h.restart_same();
    h.pass(REBALANCE_MS as u64 + 10);
    assert!(h.group().member(&text("a")).is_none());
}

#[test]
fn static_members_come_back_into_their_place() {
    let (mut h, cluster) = Harness::consumers(&[("t", 2)]);
    let t = cluster.id("t");
    let of = |request: ConsumerGroupHeartbeatRequest, id: &str| request.with_instance_id(Some(text(id)));
    h.beats(of(join("a", &["t"]), "i"));
    h.beats(join("b", &["t"]));
    h.beats(of(beat("a", 2), "i"));
    h.beats(of(owning("a", 2, &[(t, &[0])]), "i"));
    // Before it has left nobody may take its place.
    let (code, message) = h.refused(of(join("c", &["t"]), "i"));
    assert_eq!(code, ErrorCode::UnreleasedInstanceId);
    assert_eq!(
        message,
        "Static member c with instance id i cannot join the group because the instance id is owned by a member."
    );
    assert_eq!(h.beats(of(beat("a", -2), "i")), (-2, None));
    let epoch = h.group().describe(crate::config::Assignor::Uniform, &Default::default()).group_epoch;
    h.restart_same();
    assert_eq!(h.beats(of(join("c", &["t"]), "i")), (3, Some(vec![(t, vec![0])])));
    assert_eq!(h.describe_consumer().group_epoch, epoch, "nothing changed for the others");
    let (code, message) = h.refused(of(beat("a", 3), "i"));
    assert_eq!(code, ErrorCode::FencedInstanceId);
    assert_eq!(message, "Static member a with instance id i was fenced by member c.");
    h.beats(of(beat("c", 3), "i"));
    // One that stays away longer than its session loses its place.
    h.beats(of(beat("c", -2), "i"));
    h.pass(50_000);
    assert!(h.group().member(&text("c")).is_none());
}

#[test]
fn new_partitions_and_topics_are_shared_with_the_next_heartbeat() {
    let (mut h, mut cluster) = Harness::consumers(&[("t", 1)]);
    let t = cluster.id("t");
    assert_eq!(h.beats(join("a", &["t", "u"])), (2, Some(vec![(t, vec![0])])));
    cluster.grow("t", 2);
    h.cluster(cluster.image());
    assert_eq!(h.beats(beat("a", 2)), (3, Some(vec![(t, vec![0, 1])])));
    cluster.create("u", 1);
    cluster.create("other", 1);
    h.cluster(cluster.image());
    let u = cluster.id("u");
    assert_eq!(h.beats(beat("a", 3)), (4, Some(vec![(t, vec![0, 1]), (u, vec![0])])));
    cluster.delete("t");
    h.cluster(cluster.image());
    // It still has to say that it gave them up.
    assert_eq!(h.beats(beat("a", 4)), (4, Some(vec![(u, vec![0])])));
    assert_eq!(h.beats(owning("a", 4, &[(u, &[0])])), (5, None));
    cluster.create("another", 3);
    h.cluster(cluster.image());
    assert_eq!(h.beats(beat("a", 5)), (5, None));
    h.restart_same();
}

#[test]
fn changes_of_topics_while_the_coordinator_was_away_are_noticed() {
    let (mut h, mut cluster) = Harness::consumers(&[("t", 1)]);
    h.beats(join("a", &["t"]));
    cluster.grow("t", 2);
    h.image = cluster.image();
    h.restart_same();
    assert_eq!(h.beats(beat("a", 2)).0, 3);
}

#[test]
fn commits_and_fetches_are_held_to_the_members_epoch() {
    let (mut h, cluster) = Harness::consumers(&[("t", 2)]);
    let t = cluster.id("t");
    h.version = 9;
    let commit = |h: &mut Harness, member: &str, epoch: i32, partition: i32| {
        let mut request = commit_request(GROUP, member, epoch, "t", 7);
        request.topics[0].topic_id = t.0;
        request.topics[0].partitions[0].partition_index = partition;
        match h.call(Request::Commit(request)) {
            Response::Commit(response) => response.topics[0].partitions[0].error_code,
            other => panic!("{other:?}"),
        }
    };
    h.beats(join("a", &["t"]));
    h.beats(join("b", &["t"]));
    assert_eq!(commit(&mut h, "a", 2, 0), OK);
    h.beats(beat("a", 2));
    h.beats(owning("a", 2, &[(t, &[0])]));
    let stale = ErrorCode::StaleMemberEpoch.code();
    assert_eq!(commit(&mut h, "a", 4, 0), stale, "ahead");
    assert_eq!(commit(&mut h, "a", 2, 0), OK, "it has had it since");
    assert_eq!(commit(&mut h, "a", 2, 1), stale, "it has given it back");
    assert_eq!(commit(&mut h, "x", 2, 0), ErrorCode::UnknownMemberId.code());
    assert_eq!(commit(&mut h, "", -1, 0), ErrorCode::UnknownMemberId.code(), "the group is in use");
    h.version = 8;
    assert_eq!(commit(&mut h, "a", 3, 0), ErrorCode::UnsupportedVersion.code());
    assert_eq!(h.fetch_as(None, -1), OK);
    assert_eq!(h.fetch_as(Some("a"), 3), OK);
    assert_eq!(h.fetch_as(Some("a"), 2), stale);
    assert_eq!(h.fetch_as(Some("x"), 2), ErrorCode::UnknownMemberId.code());
    h.version = 1;
    h.beats(beat("a", -1));
    h.beats(beat("b", -1));
    assert_eq!(commit(&mut h, "", -1, 0), OK, "an administrator's");
}

#[test]
fn offsets_of_read_topics_stay_and_those_of_a_left_group_expire() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.beats(join("a", &["t"]));
    h.version = 9;
    for topic in ["t", "u"] {
        let request = commit_request(GROUP, "a", 2, topic, 7);
        h.call(Request::Commit(request));
    }
    let delete = |h: &mut Harness, topic: &str| {
        use kafka_protocol::messages::offset_delete_request::{
            OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
        };
        let topic = OffsetDeleteRequestTopic::default()
            .with_name(TopicName(text(topic)))
            .with_partitions(vec![OffsetDeleteRequestPartition::default()]);
        let request =
            OffsetDeleteRequest::default().with_group_id(GroupId(text(GROUP))).with_topics(vec![topic]);
        match h.call(Request::DeleteOffsets(request)) {
            Response::DeleteOffsets(response) => response.topics[0].partitions[0].error_code,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(delete(&mut h, "t"), ErrorCode::GroupSubscribedToTopic.code());
    assert_eq!(delete(&mut h, "u"), OK);
    assert_eq!((h.committed(GROUP, "t"), h.committed(GROUP, "u")), (7, -1));
    let delete_group = |h: &mut Harness| match h.call(Request::Delete(GroupId(text(GROUP)))) {
        Response::Delete(error) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(delete_group(&mut h), Some(ErrorCode::NonEmptyGroup));
    h.version = 1;
    h.beats(beat("a", -1));
    h.pass(8 * 24 * 3_600_000);
    assert_eq!(h.committed(GROUP, "t"), -1);
    assert!(h.listed(&[], &[]).is_empty(), "the group goes with its last offset");
    h.restart_same();

    h.beats(join("a", &["t"]));
    h.beats(beat("a", -1));
    assert_eq!(delete_group(&mut h), None);
    assert_eq!(delete_group(&mut h), Some(ErrorCode::GroupIdNotFound));
    h.restart_same();
    assert!(h.listed(&[], &[]).is_empty());
}

#[test]
fn groups_are_listed_by_state_and_type() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.beats(join("a", &["t"]));
    let row = |state: &str| (state.to_owned(), "consumer".to_owned(), "consumer".to_owned());
    assert_eq!(h.listed(&[], &[]), [row("Stable")]);
    assert_eq!(h.listed(&["stable"], &["Consumer"]), [row("Stable")]);
    assert_eq!(h.listed(&["Empty"], &[]), []);
    assert_eq!(h.listed(&[], &["classic"]), []);
    h.beats(beat("a", -1));
    assert_eq!(h.listed(&["Empty"], &[]), [row("Empty")]);
}

#[test]
fn a_group_is_described_with_its_members() {
    let (mut h, cluster) = Harness::consumers(&[("t", 2)]);
    h.beats(join("a", &["t"]).with_rack_id(Some(text("r1"))).with_server_assignor(Some(text("range"))));
    h.beats(join("b", &["t"]));
    let group = h.describe_consumer();
    assert_eq!((group.error_code, &*group.group_state, &*group.assignor_name), (OK, "Reconciling", "range"));
    assert_eq!((group.group_epoch, group.assignment_epoch, group.members.len()), (3, 3, 2));
    let a = &group.members[0];
    assert_eq!((&*a.member_id, a.member_epoch, a.rack_id.as_deref()), ("a", 2, Some("r1")));
    assert_eq!((&*a.client_id, &*a.client_host, a.member_type), ("client", "/127.0.0.1", 1));
    assert_eq!(a.subscribed_topic_names, [TopicName(text("t"))]);
    assert_eq!(a.assignment.topic_partitions[0].partitions, [0, 1]);
    assert_eq!(a.target_assignment.topic_partitions[0].partitions, [0]);
    assert_eq!(a.assignment.topic_partitions[0].topic_id, cluster.id("t").0);
    let unknown = h.call(Request::DescribeConsumer(GroupId(text("nobody"))));
    let Response::DescribeConsumer(unknown) = unknown else { panic!("{unknown:?}") };
    assert_eq!(unknown.error_code, ErrorCode::GroupIdNotFound.code());
    assert_eq!(unknown.error_message.as_deref(), Some("Group nobody not found."));
    // DescribeGroups is for classic groups.
    h.version = 6;
    let Response::Describe(group) = h.call(Request::Describe(GroupId(text(GROUP)))) else { panic!() };
    assert_eq!(group.error_message.as_deref(), Some("Group g is not a classic group."));
}

#[test]
fn a_full_group_takes_nobody_else() {
    let mut limited = settings();
    limited.consumer.members_max = 1;
    let (mut h, _) = Harness::consumers_with(limited, &[("t", 1)]);
    h.beats(join("a", &["t"]));
    assert_eq!(
        h.refused(join("b", &["t"])),
        (
            ErrorCode::GroupMaxSizeReached,
            "The consumer group has reached its maximum capacity of 1 members.".to_owned()
        )
    );
    h.beats(join("a", &["t"]));
}

#[test]
fn many_members_that_join_together_cost_one_assignment() {
    let mut batched = settings();
    batched.consumer.times = ConsumerGroupTimes { assignment_interval_ms: 1_000, ..batched.consumer.times };
    let (mut h, _) = Harness::consumers_with(batched, &[("t", 20)]);
    for member in 0..10 {
        h.beats(join(&member.to_string(), &["t"]));
    }
    let group = h.describe_consumer();
    assert_eq!((group.group_epoch, group.assignment_epoch), (11, 2));
    assert_eq!(h.group().state_name(), "Assigning");
    h.pass(1_000);
    h.beats(beat("5", 2));
    let group = h.describe_consumer();
    assert_eq!((group.group_epoch, group.assignment_epoch), (11, 11));
}

#[test]
fn a_clock_that_is_set_back_puts_no_target_off() {
    let mut batched = settings();
    batched.consumer.times = ConsumerGroupTimes { assignment_interval_ms: 1_000, ..batched.consumer.times };
    let (mut h, _) = Harness::consumers_with(batched, &[("t", 2)]);
    h.beats(join("a", &["t"]));
    h.set_back_ms = 3_600_000;
    h.beats(join("b", &["t"]));
    let group = h.describe_consumer();
    assert_eq!((group.group_epoch, group.assignment_epoch), (3, 3));
}

#[test]
fn a_static_member_that_left_for_now_has_nothing_to_give_back() {
    let (mut h, cluster) = Harness::consumers(&[("t", 2)]);
    let t = cluster.id("t");
    let of = |request: ConsumerGroupHeartbeatRequest| request.with_instance_id(Some(text("i")));
    h.beats(of(join("a", &["t"])));
    h.beats(join("b", &["t"]));
    assert_eq!(h.beats(of(beat("a", 2))), (2, Some(vec![(t, vec![0])])), "it has to give one back");
    h.beats(of(beat("a", -2)));
    for restarts in [false, true] {
        if restarts {
            h.restart_same();
        }
        // The rebalance time-out passes, the session does not.
        for _ in 0..4 {
            h.pass(10_000);
            h.answer(beat("b", 3));
        }
        assert!(h.group().member(&text("a")).is_some(), "its place is kept");
    }
    assert_eq!(h.beats(of(join("c", &["t"]))), (3, Some(vec![(t, vec![0])])));
}

#[test]
fn requests_wait_for_the_write_before_them_and_are_served_in_order() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.holds_appends = true;
    let a = h.send(Request::ConsumerHeartbeat(join("a", &["t"])));
    let b = h.send(Request::ConsumerHeartbeat(join("b", &["t"])));
    let again = h.send(Request::ConsumerHeartbeat(beat("a", 2)));
    assert_eq!(h.held.len(), 1, "b waits for a");
    h.write_one();
    h.run_effects();
    assert!(h.reply(a).is_some());
    assert_eq!(h.held.len(), 1);
    assert!(h.reply(b).is_none() && h.reply(again).is_none());
    h.release();
    assert!(h.reply(b).is_some() && h.reply(again).is_some());
    assert_eq!(h.group().len(), 2);
}

#[test]
fn a_failed_write_changes_nothing_and_is_told() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.beats(join("a", &["t"]));
    let before = h.group().clone();
    h.holds_appends = true;
    let b = h.send(Request::ConsumerHeartbeat(join("b", &["t"])));
    let waits = h.send(Request::ConsumerHeartbeat(beat("a", 2)));
    h.fail_one(ErrorCode::NotLeaderOrFollower);
    let Some(Response::ConsumerHeartbeat(response)) = h.reply(b) else { panic!("it is told") };
    assert_eq!(response.error_code, ErrorCode::NotCoordinator.code());
    assert_eq!(*h.group(), before);
    assert!(h.reply(waits).is_some());
    h.release();
    h.beats(join("b", &["t"]));
}

/// What a partition of `__consumer_offsets` does with a batch above its max.message.bytes.
#[test]
fn a_heartbeat_that_is_too_long_to_write_leaves_nothing_behind() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.beats(join("a", &["t"]));
    let before = h.group().clone();
    h.holds_appends = true;
    let names: Vec<String> = (0..5000).map(|index| format!("{index:0>240}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).chain(["t"]).collect();
    let long = h.send(Request::ConsumerHeartbeat(join("b", &names)));
    assert_eq!(h.held.len(), 1, "one batch");
    h.fail_one(ErrorCode::MessageTooLarge);
    let Some(Response::ConsumerHeartbeat(response)) = h.reply(long) else { panic!("it is told") };
    assert_eq!(response.error_code, ErrorCode::UnknownServerError.code());
    h.release();
    assert_eq!(*h.group(), before);
    h.restart_same();
}

#[test]
fn a_deleted_group_is_gone_in_memory_and_in_the_log_though_some_of_its_offsets_stay() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    for index in 0..6 {
        let topic = format!("{index:0>240}");
        let mut request = super::harness::commit_request(GROUP, "", -1, &topic, 1);
        let partition = request.topics[0].partitions[0].clone();
        request.topics[0].partitions =
            (0..1000).map(|index| partition.clone().with_partition_index(index)).collect();
        h.call(Request::Commit(request));
    }
    h.beats(join("a", &["t"]));
    h.beats(beat("a", -1));
    h.holds_appends = true;
    let deletion = h.send(Request::Delete(GroupId(text(GROUP))));
    assert!(h.held.len() > 2, "offsets in parts, then the group");
    h.fail_one(ErrorCode::NotEnoughReplicas);
    h.release();
    let Some(Response::Delete(Some(_))) = h.reply(deletion) else { panic!("it is told") };
    h.restart_same();
}

#[test]
fn a_member_whose_end_could_not_be_written_is_out_a_little_later() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.beats(join("a", &["t"]));
    h.holds_appends = true;
    h.pass(46_000);
    h.fail_one(ErrorCode::NotEnoughReplicas);
    assert_eq!(h.group().len(), 1);
    h.release();
    h.pass(1_000);
    assert!(h.group().is_empty());
}

#[test]
fn who_waits_for_a_partition_that_goes_away_is_sent_on() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.holds_appends = true;
    let a = h.send(Request::ConsumerHeartbeat(join("a", &["t"])));
    let b = h.send(Request::ConsumerHeartbeat(join("b", &["t"])));
    let (partition, now) = (h.coordinator.partition_of(GROUP), h.now());
    h.coordinator.unload(partition, now);
    h.run_effects();
    for token in [a, b] {
        let Some(Response::ConsumerHeartbeat(response)) = h.reply(token) else { panic!("it is told") };
        assert_eq!(response.error_code, ErrorCode::NotCoordinator.code());
    }
    assert_eq!(h.coordinator.timers_armed(), 1, "the sweep alone");
}

#[test]
fn a_quiet_heartbeat_costs_no_timer_and_no_record() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.beats(join("a", &["t"]));
    let written: usize = h.logs.values().map(Vec::len).sum();
    let deadline = h.coordinator.next_deadline();
    for _ in 0..100 {
        assert_eq!(h.beats(beat("a", 2)), (2, None));
    }
    assert_eq!(h.logs.values().map(Vec::len).sum::<usize>(), written);
    assert_eq!(h.coordinator.next_deadline(), deadline);
    assert_eq!(h.coordinator.timers_armed(), 2, "the session and the sweep");
}

#[test]
fn the_first_version_is_given_an_id() {
    let (mut h, _) = Harness::consumers(&[("t", 1)]);
    h.version = 0;
    let id: StrBytes = h.answer(join("", &["t"])).member_id.expect("an id");
    assert_eq!(id.len(), 22, "as Kafka's Uuid prints");
    h.beats(beat(&id, 2));
}
