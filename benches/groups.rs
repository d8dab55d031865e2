//! What consumer groups cost shard 0, without the log: `cargo bench --bench groups`.

use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, GroupId, TopicName};
use kafka_protocol::protocol::StrBytes;
use kuring::base::clock::{Monotonic, Now, Timestamp};
use kuring::base::random::Random;
use kuring::base::{LeaderEpoch, PartitionIndex, TopicId};
use kuring::config::{
    Assignor, ConsumerGroupBounds, ConsumerGroupSettings, ConsumerGroupTimes, GroupSettings, MigrationPolicy,
    ShareGroupSettings,
};
use kuring::coordinator::{Client, Coordinator, Effect, ReplyToken, Request, Response};
use kuring::metadata::{Image, PartitionImage, Record, State};

const TOPIC: &str = "t";
const PARTITIONS: i32 = 1_000;
/// Members of the group whose heartbeats are measured.
const QUIET_MEMBERS: usize = 10_000;
/// Members of the group that starts.
const STARTING_MEMBERS: usize = 1_000;

fn settings() -> GroupSettings {
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
        offsets_topic_partitions: 1,
        offsets_topic_replication_factor: 1,
        offsets_topic_segment_bytes: 100 << 20,
        consumer: ConsumerGroupSettings {
            members_max: i32::MAX,
            assignors: vec![Assignor::Uniform, Assignor::Range],
            migration_policy: MigrationPolicy::Bidirectional,
            times: ConsumerGroupTimes {
                session_timeout_ms: 45_000,
                heartbeat_interval_ms: 5_000,
                assignment_interval_ms: 1_000,
            },
            bounds: ConsumerGroupBounds::default(),
        },
        share: ShareGroupSettings::default(),
    }
}

fn image() -> Arc<Image> {
    let topic = TopicId(uuid::Uuid::from_u128(1));
    let mut records =
        vec![Record::Cluster { id: "c".into() }, Record::Topic { name: TOPIC.into(), id: topic }];
    records.extend((0..PARTITIONS).map(|index| Record::Partition {
        topic,
        index: PartitionIndex(index),
        partition: PartitionImage {
            replicas: Box::default(),
            isr: Box::default(),
            leader: None,
            leader_epoch: LeaderEpoch(0),
            partition_epoch: 0,
            directories: Box::default(),
            transit: None,
        },
    }));
    let mut state = State::default();
    state.apply(1, &records).expect("they follow each other");
    Arc::new(state.image().clone())
}

/// A coordinator whose appends succeed at once.
struct Bench {
    coordinator: Coordinator,
    now_ms: u64,
    client: Client,
    tokens: u64,
}

impl Bench {
    fn new() -> Self {
        let now = Now { monotonic: Monotonic::ZERO, wall: Timestamp(1) };
        let mut coordinator = Coordinator::new(settings(), 1, Random::seeded(1), now);
        coordinator.cluster_changed(image());
        coordinator.load(PartitionIndex(0), now);
        coordinator.loaded(PartitionIndex(0), now);
        let text = StrBytes::from_static_str;
        let client = Client { api_version: 1, id: text("client"), host: text("/127.0.0.1") };
        Self { coordinator, now_ms: 1, client, tokens: 0 }
    }

    fn now(&self) -> Now {
        Now { monotonic: Monotonic::from_millis(self.now_ms), wall: Timestamp(self.now_ms as i64) }
    }

    /// The member's epoch as the answer has it.
    fn beat(&mut self, request: ConsumerGroupHeartbeatRequest) -> i32 {
        self.tokens += 1;
        let (token, now) = (ReplyToken(self.tokens), self.now());
        self.coordinator.handle(Request::ConsumerHeartbeat(request), &self.client, token, now);
        let mut epoch = None;
        loop {
            let effects = self.coordinator.drain_effects();
            if effects.is_empty() {
                return epoch.expect("it is answered");
            }
            for effect in effects {
                match effect {
                    Effect::Append { ticket, .. } => self.coordinator.appended(ticket, Ok(()), now),
                    Effect::Reply { response: Response::ConsumerHeartbeat(response), .. } => {
                        assert_eq!(response.error_code, 0, "{:?}", response.error_message);
                        epoch = Some(response.member_epoch);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// Members join and send heartbeats until all are at the same epoch, which is returned.
    fn settle(&mut self, ids: &[StrBytes]) -> i32 {
        let mut epochs: Vec<i32> = ids.iter().map(|id| self.beat(joining(id))).collect();
        loop {
            self.now_ms += 5_000;
            for (id, epoch) in ids.iter().zip(&mut epochs) {
                let owned = heartbeat(id, *epoch).with_topic_partitions(Some(Vec::new()));
                *epoch = self.beat(owned);
            }
            if epochs.iter().all(|epoch| *epoch == epochs[0]) {
                return epochs[0];
            }
        }
    }
}

fn ids(count: usize) -> Vec<StrBytes> {
    (0..count).map(|number| StrBytes::from_string(format!("member-{number:016}"))).collect()
}

fn heartbeat(id: &StrBytes, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str("g")))
        .with_member_id(id.clone())
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(-1)
}

fn joining(id: &StrBytes) -> ConsumerGroupHeartbeatRequest {
    heartbeat(id, 0)
        .with_rebalance_timeout_ms(300_000)
        .with_subscribed_topic_names(Some(vec![TopicName(StrBytes::from_static_str(TOPIC))]))
        .with_topic_partitions(Some(Vec::new()))
}

fn quiet(criterion: &mut Criterion) {
    let ids = ids(QUIET_MEMBERS);
    let mut bench = Bench::new();
    let epoch = bench.settle(&ids);
    let mut next = (0..QUIET_MEMBERS).cycle();
    criterion.bench_function("a heartbeat of one of 10,000 members that says nothing new", |bencher| {
        bencher.iter(|| {
            let at = next.next().unwrap_or_default();
            bench.beat(heartbeat(&ids[at], epoch))
        });
    });
}

fn start(criterion: &mut Criterion) {
    let ids = ids(STARTING_MEMBERS);
    let mut group = criterion.benchmark_group("start");
    group.sample_size(10);
    group.bench_function("1,000 members join and share 1,000 partitions", |bencher| {
        bencher.iter_batched(Bench::new, |mut bench| bench.settle(&ids), BatchSize::LargeInput);
    });
}

criterion_group!(benches, quiet, start);
criterion_main!(benches);
