//! A coordinator, its log in memory, a clock that the test moves, and short forms of the requests.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupId, HeartbeatRequest,
    HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, OffsetCommitRequest,
    SyncGroupRequest, SyncGroupResponse, TopicName,
};
use kafka_protocol::protocol::{Encodable as _, Request as _, StrBytes};

use crate::base::PartitionIndex;
use crate::base::clock::{Monotonic, Now, Timestamp};
use crate::base::random::Random;
use crate::config::{
    Assignor, ConsumerGroupBounds, ConsumerGroupSettings, ConsumerGroupTimes, GroupSettings, MigrationPolicy,
    ShareGroupSettings,
};
use crate::coordinator::{
    Client, Content, Coordinator, Effect, KeyValue, ReplyToken, Request, Response, Ticket,
};
use crate::metadata::Image;
use crate::wire::beat::Beat;
use crate::wire::header::{CorrelationId, RequestHeader};
use crate::wire::{ErrorCode, api};

pub(super) const GROUP: &str = "g";
pub(super) const OK: i16 = 0;
const CLIENT: &str = "client";
const HOST: &str = "/127.0.0.1";
/// The wall clock when the monotonic one is 0.
const WALL_START_MS: i64 = 1_700_000_000_000;
pub(super) const SESSION_MS: i32 = 10_000;
pub(super) const REBALANCE_MS: i32 = 60_000;

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub(super) fn settings() -> GroupSettings {
    GroupSettings {
        session_timeout_ms_min: 6_000,
        session_timeout_ms_max: 1_800_000,
        initial_rebalance_delay_ms: 3_000,
        members_max: i32::MAX,
        members_bytes_max: 256 << 20,
        offset_metadata_bytes_max: 4096,
        offsets_commit_timeout_ms: 5_000,
        append_linger: None,
        offsets_retention_ms: 7 * 24 * 60 * 60 * 1000,
        offsets_retention_check_interval_ms: 600_000,
        offsets_topic_partitions: 4,
        offsets_topic_replication_factor: 1,
        offsets_topic_segment_bytes: 100 << 20,
        consumer: ConsumerGroupSettings {
            members_max: i32::MAX,
            assignors: vec![Assignor::Uniform, Assignor::Range],
            migration_policy: MigrationPolicy::Bidirectional,
            times: ConsumerGroupTimes {
                session_timeout_ms: 45_000,
                heartbeat_interval_ms: 5_000,
                assignment_interval_ms: 0,
            },
            bounds: ConsumerGroupBounds::default(),
        },
        share: ShareGroupSettings::default(),
    }
}

pub(super) struct Harness {
    pub(super) coordinator: Coordinator,
    pub(super) settings: GroupSettings,
    pub(super) now_ms: u64,
    /// How far the wall clock was set back.
    pub(super) set_back_ms: i64,
    pub(super) version: i16,
    next_token: u64,
    pub(super) replies: HashMap<ReplyToken, Response>,
    /// Appends are answered at once unless a test holds them.
    pub(super) holds_appends: bool,
    pub(super) held: VecDeque<(PartitionIndex, Content, Ticket)>,
    /// The cluster as the coordinator was told of it last.
    pub(super) image: Arc<Image>,
    pub(super) logs: BTreeMap<PartitionIndex, Vec<Content>>,
    seed: u64,
}

impl Harness {
    pub(super) fn new() -> Self {
        Self::with(settings())
    }

    pub(super) fn with(settings: GroupSettings) -> Self {
        Self::seeded(settings, 7)
    }

    pub(super) fn seeded(settings: GroupSettings, seed: u64) -> Self {
        let now = Now { monotonic: Monotonic::ZERO, wall: Timestamp(WALL_START_MS) };
        let partitions = settings.offsets_topic_partitions;
        let coordinator = Coordinator::new(settings.clone(), partitions, Random::seeded(seed), now);
        let mut harness = Self {
            coordinator,
            settings,
            now_ms: 0,
            set_back_ms: 0,
            version: 9,
            next_token: 0,
            replies: HashMap::new(),
            holds_appends: false,
            held: VecDeque::new(),
            image: Arc::default(),
            logs: BTreeMap::new(),
            seed,
        };
        harness.load_all();
        harness
    }

    pub(super) fn now(&self) -> Now {
        Now {
            monotonic: Monotonic::from_millis(self.now_ms),
            wall: Timestamp(WALL_START_MS + self.now_ms as i64 - self.set_back_ms),
        }
    }

    pub(super) fn cluster(&mut self, image: Arc<Image>) {
        self.image = image.clone();
        self.coordinator.cluster_changed(image);
    }

    fn load_all(&mut self) {
        for index in 0..self.settings.offsets_topic_partitions {
            self.load(PartitionIndex(index));
        }
    }

    pub(super) fn load(&mut self, partition: PartitionIndex) {
        let now = self.now();
        self.coordinator.load(partition, now);
        self.replay(partition);
        self.coordinator.loaded(partition, now);
        self.run_effects();
    }

    /// Reads the log of a partition that is being loaded.
    pub(super) fn replay(&mut self, partition: PartitionIndex) {
        let coordinator = &mut self.coordinator;
        for content in self.logs.entry(partition).or_default().iter() {
            match content {
                Content::Records(records) => {
                    for KeyValue { key, value } in records {
                        coordinator.replay(partition, key, value.as_deref());
                    }
                }
                Content::InTransaction { records, producer, .. } => {
                    for KeyValue { key, value } in records {
                        coordinator.replay_in_transaction(partition, producer.id, key, value.as_deref());
                    }
                }
                Content::Marker(marker) => {
                    coordinator.replay_marker(partition, marker.producer.id, marker.commit);
                }
            }
        }
    }

    /// The process is killed and starts again with what was written. Held appends are lost.
    pub(super) fn restart(&mut self) {
        self.held.clear();
        self.seed += 1;
        let partitions = self.settings.offsets_topic_partitions;
        let random = Random::seeded(self.seed);
        self.coordinator = Coordinator::new(self.settings.clone(), partitions, random, self.now());
        self.coordinator.cluster_changed(self.image.clone());
        self.load_all();
    }

    pub(super) fn run_effects(&mut self) {
        loop {
            let effects = self.coordinator.drain_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Reply { token, response } => {
                        let old = self.replies.insert(token, response);
                        assert_eq!(old, None, "a request is answered once");
                    }
                    Effect::Append { partition, content, ticket } => {
                        let is_empty = match &content {
                            Content::Records(records) | Content::InTransaction { records, .. } => {
                                records.is_empty()
                            }
                            Content::Marker(_) => false,
                        };
                        assert!(!is_empty, "an append has records");
                        self.held.push_back((partition, content, ticket));
                    }
                }
            }
            if !self.holds_appends {
                self.write_held();
            }
        }
    }

    /// Writes and acknowledges the oldest held append.
    pub(super) fn write_one(&mut self) {
        let (partition, content, ticket) = self.held.pop_front().expect("an append is held");
        self.logs.entry(partition).or_default().push(content);
        let now = self.now();
        self.coordinator.appended(ticket, Ok(()), now);
    }

    pub(super) fn write_held(&mut self) {
        while !self.held.is_empty() {
            self.write_one();
        }
    }

    /// Writes the held appends and lets appends through from now on.
    pub(super) fn release(&mut self) {
        self.holds_appends = false;
        self.write_held();
        self.run_effects();
    }

    /// Fails the oldest held append.
    pub(super) fn fail_one(&mut self, error: ErrorCode) {
        let (_, _, ticket) = self.held.pop_front().expect("an append is held");
        let now = self.now();
        self.coordinator.appended(ticket, Err(error), now);
        self.run_effects();
    }

    /// Lets time pass, stopping at every deadline on the way.
    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while let Some(deadline) = self.coordinator.next_deadline().filter(|at| at.as_millis() <= end) {
            self.now_ms = self.now_ms.max(deadline.as_millis());
            let now = self.now();
            self.coordinator.advance(now);
            self.run_effects();
        }
        self.now_ms = end;
    }

    /// Lets time pass until a request is answered.
    pub(super) fn wait_for(&mut self, token: ReplyToken) {
        let start = self.now_ms;
        while !self.replies.contains_key(&token) {
            assert!(self.now_ms < start + 600_000, "it is never answered");
            self.pass(10);
        }
    }

    pub(super) fn send(&mut self, request: Request) -> ReplyToken {
        let token = ReplyToken(self.next_token);
        self.next_token += 1;
        let client = Client { api_version: self.version, id: text(CLIENT), host: text(HOST) };
        let now = self.now();
        let on_short_way = self.beat(&request);
        self.coordinator.handle(request, &client, token, now);
        self.run_effects();
        if on_short_way.is_some() {
            assert_eq!(self.replies.get(&token), on_short_way.as_ref(), "both ways answer the same");
        }
        token
    }

    /// The answer to a heartbeat that is answered at once and in place.
    pub(super) fn beat(&mut self, request: &Request) -> Option<Response> {
        let now = self.now();
        match request {
            Request::Heartbeat(request) => {
                let beat = Beat {
                    group: request.group_id.0.clone(),
                    member: request.member_id.clone(),
                    instance: request.group_instance_id.clone(),
                    epoch: request.generation_id,
                };
                let is_served = self.coordinator.classic_beat(&beat, now);
                is_served.then(|| Response::Heartbeat(HeartbeatResponse::default()))
            }
            Request::ConsumerHeartbeat(request) => {
                let beat = read_beat(request)?;
                let interval_ms = self.coordinator.consumer_beat(&beat, CLIENT.as_bytes(), HOST, now)?;
                let response = ConsumerGroupHeartbeatResponse::default()
                    .with_member_id(Some(beat.member))
                    .with_member_epoch(beat.epoch)
                    .with_heartbeat_interval_ms(interval_ms);
                Some(Response::ConsumerHeartbeat(response))
            }
            _ => None,
        }
    }

    pub(super) fn reply(&mut self, token: ReplyToken) -> Option<Response> {
        self.replies.remove(&token)
    }

    pub(super) fn call(&mut self, request: Request) -> Response {
        let token = self.send(request);
        self.reply(token).expect("it is answered at once")
    }

    pub(super) fn join_reply(&mut self, token: ReplyToken) -> JoinGroupResponse {
        match self.reply(token) {
            Some(Response::Join(response)) => response,
            other => panic!("not an answer to JoinGroup: {other:?}"),
        }
    }

    pub(super) fn sync_reply(&mut self, token: ReplyToken) -> SyncGroupResponse {
        match self.reply(token) {
            Some(Response::Sync(response)) => response,
            other => panic!("not an answer to SyncGroup: {other:?}"),
        }
    }

    /// Gets a member id as clients from version 4 on do.
    pub(super) fn new_member_id(&mut self) -> StrBytes {
        let token = self.send(Request::Join(join_request("")));
        let response = self.join_reply(token);
        assert_eq!(response.error_code, ErrorCode::MemberIdRequired.code());
        response.member_id
    }

    pub(super) fn join(&mut self, member: &str) -> ReplyToken {
        self.send(Request::Join(join_request(member)))
    }

    pub(super) fn sync(&mut self, member: &str, generation: i32, assignments: &[(&str, &str)]) -> ReplyToken {
        self.send(Request::Sync(sync_request(member, generation, assignments)))
    }

    pub(super) fn heartbeat(&mut self, member: &str, generation: i32) -> i16 {
        let request = HeartbeatRequest::default()
            .with_group_id(GroupId(text(GROUP)))
            .with_generation_id(generation)
            .with_member_id(text(member));
        match self.call(Request::Heartbeat(request)) {
            Response::Heartbeat(response) => response.error_code,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn leave(&mut self, member: &str) -> i16 {
        let leaver = MemberIdentity::default().with_member_id(text(member));
        let request =
            LeaveGroupRequest::default().with_group_id(GroupId(text(GROUP))).with_members(vec![leaver]);
        match self.call(Request::Leave(request)) {
            Response::Leave(response) if response.error_code == OK => response.members[0].error_code,
            Response::Leave(response) => response.error_code,
            other => panic!("{other:?}"),
        }
    }

    /// A stable group of `count` dynamic members; their ids, the leader's first, and the generation.
    pub(super) fn stable_group(&mut self, count: usize) -> (Vec<String>, i32) {
        let ids: Vec<String> = (0..count).map(|_| self.new_member_id().to_string()).collect();
        let joins: Vec<ReplyToken> = ids.iter().map(|id| self.join(id)).collect();
        self.wait_for(joins[0]);
        let generation = self.settle_generation(&ids, &joins);
        (ids, generation)
    }

    /// Takes the answers to JoinGroup and syncs everybody; each is assigned its own name.
    pub(super) fn settle_generation(&mut self, ids: &[String], joins: &[ReplyToken]) -> i32 {
        let mut generation = 0;
        let mut leader = String::new();
        for (id, token) in ids.iter().zip(joins) {
            let response = self.join_reply(*token);
            assert_eq!(response.error_code, OK, "{id}");
            generation = response.generation_id;
            leader = response.leader.to_string();
        }
        let assignments: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), id.as_str())).collect();
        let mut syncs = Vec::new();
        for id in ids {
            let given: &[(&str, &str)] = if *id == leader { &assignments } else { &[] };
            syncs.push((id, self.sync(id, generation, given)));
        }
        for (id, token) in syncs {
            let response = self.sync_reply(token);
            assert_eq!(response.error_code, OK);
            assert_eq!(response.assignment, id.as_bytes());
        }
        generation
    }

    /// Keeps these members alive for a while, far beyond their sessions.
    pub(super) fn pass_with_heartbeats(&mut self, ids: &[String], generation: i32, ms: u64) {
        let step = Duration::from_millis(SESSION_MS as u64 / 3).as_millis() as u64;
        for _ in 0..ms / step {
            self.pass(step);
            for id in ids {
                self.heartbeat(id, generation);
            }
        }
    }

    pub(super) fn commit(&mut self, member: &str, generation: i32, offset: i64) -> i16 {
        match self.call(Request::Commit(commit_request(GROUP, member, generation, "t", offset))) {
            Response::Commit(response) => response.topics[0].partitions[0].error_code,
            other => panic!("{other:?}"),
        }
    }

    /// The committed offset of partition 0 of a topic.
    pub(super) fn committed(&mut self, group: &str, topic: &str) -> i64 {
        let topics = vec![
            OffsetFetchRequestTopics::default()
                .with_name(TopicName(text(topic)))
                .with_partition_indexes(vec![0]),
        ];
        let group =
            OffsetFetchRequestGroup::default().with_group_id(GroupId(text(group))).with_topics(Some(topics));
        match self.call(Request::FetchOffsets { group, require_stable: false }) {
            Response::FetchOffsets(response) if response.error_code == OK => {
                response.topics[0].partitions[0].committed_offset
            }
            other => panic!("{other:?}"),
        }
    }

    /// The state that DescribeGroups shows.
    pub(super) fn state(&mut self) -> String {
        match self.call(Request::Describe(GroupId(text(GROUP)))) {
            Response::Describe(group) => group.group_state.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

/// A heartbeat as it comes over the wire.
pub(super) fn read_beat(request: &ConsumerGroupHeartbeatRequest) -> Option<Beat> {
    const VERSION: i16 = 1;
    let api = api::find(ConsumerGroupHeartbeatRequest::KEY)?;
    let header = RequestHeader { api, version: VERSION, correlation_id: CorrelationId(1), client_id: None };
    let mut body = BytesMut::new();
    request.encode(&mut body, VERSION).ok()?;
    Beat::of_consumer(&header, &body.freeze())
}

/// A consumer's subscription to topic "t", version 0.
pub(super) fn subscription() -> Bytes {
    Bytes::from_static(&[0, 0, 0, 0, 0, 1, 0, 1, b't', 0xff, 0xff, 0xff, 0xff])
}

pub(super) fn protocol(name: &str) -> JoinGroupRequestProtocol {
    JoinGroupRequestProtocol::default().with_name(text(name)).with_metadata(subscription())
}

pub(super) fn join_request(member: &str) -> JoinGroupRequest {
    JoinGroupRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_session_timeout_ms(SESSION_MS)
        .with_rebalance_timeout_ms(REBALANCE_MS)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol("range")])
}

pub(super) fn sync_request(member: &str, generation: i32, assignments: &[(&str, &str)]) -> SyncGroupRequest {
    let assignments = assignments.iter().map(|(id, assignment)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(id))
            .with_assignment(Bytes::copy_from_slice(assignment.as_bytes()))
    });
    SyncGroupRequest::default()
        .with_group_id(GroupId(text(GROUP)))
        .with_generation_id(generation)
        .with_member_id(text(member))
        .with_assignments(assignments.collect())
}

pub(super) fn commit_request(
    group: &str,
    member: &str,
    generation: i32,
    topic: &str,
    offset: i64,
) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text("note")));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(TopicName(text(topic)))
        .with_partitions(vec![partition]);
    OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id_or_member_epoch(generation)
        .with_member_id(text(member))
        .with_topics(vec![topic])
}
