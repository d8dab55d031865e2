//! Consumers of the new protocol join, leave, fall silent and change their minds, topics come and go, the
//! coordinator is killed and loses what was not written: at no time do two live consumers have the same partition, what is
//! read back is what was there, and when the troubles end all arrive at the target.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, TopicName};

use super::consumers::{Cluster, beat, join};
use super::harness::{Harness, settings, text};
use crate::base::TopicId;
use crate::base::random::Random;
use crate::coordinator::consumer::ConsumerGroup;
use crate::coordinator::{ReplyToken, Request, Response};
use crate::wire::ErrorCode;

const MEMBERS: usize = 6;
const STEPS: usize = 400;
const SEEDS: u64 = 60;
/// `settings()`'s.
const SESSION_MS: u64 = 45_000;
const TOPICS: [&str; 4] = ["a", "b", "ab", "c"];

type Owned = BTreeSet<(TopicId, i32)>;

/// A consumer as clients are.
struct Consumer {
    id: String,
    instance: Option<String>,
    epoch: i32,
    names: Vec<&'static str>,
    regex: Option<&'static str>,
    owned: Owned,
    /// What it last told the coordinator that it has.
    told: Option<Owned>,
    /// Whether an assignment came that it has not answered with what it has.
    has_news: bool,
    waiting: Option<ReplyToken>,
    sent_ms: u64,
    /// When it sent what was last answered; it lets go of everything when its session may be over.
    heard_ms: u64,
    lives: u64,
}

struct Simulation {
    h: Harness,
    cluster: Cluster,
    random: Random,
    consumers: Vec<Consumer>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let mut with = settings();
        with.consumer.times.assignment_interval_ms = [0, 1_000][random.below(2) as usize];
        with.offsets_topic_partitions = 1;
        let mut h = Harness::seeded(with, seed);
        h.version = 1;
        let cluster = Cluster::new(&[("a", 3), ("b", 2)]);
        h.cluster(cluster.image());
        let consumers = (0..MEMBERS).map(|number| Consumer {
            id: format!("m{number}"),
            instance: (number == 0).then(|| "i".to_owned()),
            epoch: 0,
            names: vec!["a", "b"],
            regex: None,
            owned: Owned::new(),
            told: None,
            has_news: false,
            waiting: None,
            sent_ms: 0,
            heard_ms: 0,
            lives: 0,
        });
        let consumers = consumers.collect();
        Self { h, cluster, random, consumers }
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
            self.check();
        }
        self.settle();
    }

    fn step(&mut self) {
        let at = self.random.below(MEMBERS as u64) as usize;
        match self.random.below(100) {
            0..70 => self.act(at),
            70..75 => self.h.pass(self.random.below(20_000)),
            75..78 => self.leave(at),
            78..80 => self.die(at),
            80..84 => self.change_mind(at),
            84..88 => self.change_topics(),
            88..92 => self.h.holds_appends = true,
            92..96 => self.h.release(),
            96..98 => self.fail_append(),
            _ => self.crash(),
        }
    }

    fn group(&self) -> Option<ConsumerGroup> {
        self.h.coordinator.partitions.values().flat_map(|it| it.consumers.values()).next().cloned()
    }

    /// Takes the answer it waits for, or sends a heartbeat.
    fn act(&mut self, at: usize) {
        if let Some(token) = self.consumers[at].waiting {
            match self.h.reply(token) {
                Some(Response::ConsumerHeartbeat(response)) => {
                    self.consumers[at].waiting = None;
                    self.take(at, response.error_code, response.member_epoch, response.assignment);
                }
                Some(other) => panic!("{other:?}"),
                None => return,
            }
        }
        let request = self.consumers[at].heartbeat();
        self.consumers[at].sent_ms = self.h.now_ms;
        self.consumers[at].waiting = Some(self.h.send(Request::ConsumerHeartbeat(request)));
    }

    fn take(
        &mut self,
        at: usize,
        code: i16,
        epoch: i32,
        assignment: Option<kafka_protocol::messages::consumer_group_heartbeat_response::Assignment>,
    ) {
        let consumer = &mut self.consumers[at];
        match ErrorCode::try_from_code(code) {
            None => {}
            Some(ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable) => {
                // It says everything again, for it does not know what was heard.
                consumer.told = None;
                return;
            }
            Some(ErrorCode::UnreleasedInstanceId) => return,
            Some(
                ErrorCode::FencedMemberEpoch
                | ErrorCode::UnknownMemberId
                | ErrorCode::GroupIdNotFound
                | ErrorCode::FencedInstanceId,
            ) => return consumer.start_over(),
            other => panic!("a consumer is never told {other:?} here"),
        }
        consumer.heard_ms = consumer.sent_ms;
        if epoch < 0 {
            return consumer.start_over();
        }
        consumer.epoch = epoch;
        if let Some(assignment) = assignment {
            consumer.has_news = true;
            let topics = assignment.topic_partitions.iter();
            consumer.owned = topics
                .flat_map(|topic| topic.partitions.iter().map(|index| (TopicId(topic.topic_id), *index)))
                .collect();
        }
    }

    fn leave(&mut self, at: usize) {
        let consumer = &mut self.consumers[at];
        if consumer.waiting.is_some() || consumer.epoch == 0 {
            return;
        }
        let epoch = if consumer.instance.is_some() && self.random.below(2) == 0 { -2 } else { -1 };
        let mut request = beat(&consumer.id, epoch);
        request.instance_id = consumer.instance.as_deref().map(text);
        consumer.owned.clear();
        self.h.send(Request::ConsumerHeartbeat(request));
        consumer.new_life();
    }

    /// Its process is gone, and another takes its place.
    fn die(&mut self, at: usize) {
        self.consumers[at].owned.clear();
        self.consumers[at].new_life();
    }

    fn change_mind(&mut self, at: usize) {
        let consumer = &mut self.consumers[at];
        let picks = self.random.below(16);
        consumer.names =
            TOPICS.into_iter().zip(0..).filter(|(_, bit)| picks & (1 << bit) != 0).map(|it| it.0).collect();
        consumer.regex = [None, None, Some("a.*"), Some("[abc]")][self.random.below(4) as usize];
        // Told with the next heartbeat, which is a full one.
        consumer.told = None;
    }

    fn change_topics(&mut self) {
        let name = TOPICS[self.random.below(4) as usize];
        match self.cluster.topics().get(name).map(|(_, count)| *count) {
            None => self.cluster.create(name, 1 + self.random.below(4) as i32),
            Some(count) if count < 8 && self.random.below(3) > 0 => self.cluster.grow(name, count + 1),
            Some(_) => self.cluster.delete(name),
        }
        self.h.cluster(self.cluster.image());
    }

    fn fail_append(&mut self) {
        if !self.h.held.is_empty() {
            self.h.fail_one(ErrorCode::NotEnoughReplicas);
        }
    }

    fn crash(&mut self) {
        let before = self.group();
        self.h.restart();
        assert_eq!(before, self.group(), "what is read back is what was there");
        for consumer in &mut self.consumers {
            // Whose request was lost hears nothing and asks again.
            if consumer.waiting.take().is_some() {
                consumer.told = None;
            }
        }
    }

    fn check(&mut self) {
        let now = self.h.now_ms;
        for consumer in &mut self.consumers {
            if now >= consumer.heard_ms + SESSION_MS {
                consumer.owned.clear();
            }
        }
        if let Some(group) = self.group() {
            assert_eq!(group.shared_partitions(), 0);
        }
        let mut owners: BTreeMap<(TopicId, i32), &str> = BTreeMap::new();
        for consumer in &self.consumers {
            for partition in &consumer.owned {
                let other = owners.insert(*partition, &consumer.id);
                assert_eq!(other, None, "{partition:?} is with {} too", consumer.id);
            }
        }
    }

    /// The troubles end: all that members read is shared among them.
    fn settle(&mut self) {
        self.h.release();
        for name in TOPICS {
            if !self.cluster.topics().contains_key(name) {
                self.cluster.create(name, 2);
            }
        }
        self.h.cluster(self.cluster.image());
        for at in 0..MEMBERS {
            self.consumers[at].names = vec!["a", "b"];
            self.consumers[at].regex = Some("ab|c");
            self.consumers[at].told = None;
        }
        for _ in 0..200 {
            for at in 0..MEMBERS {
                self.act(at);
                self.check();
            }
            self.h.pass(1_000);
        }
        let group = self.group().expect("a group");
        assert_eq!((group.state_name(), group.len()), ("Stable", MEMBERS));
        let all: usize = self.cluster.topics().values().map(|(_, count)| *count as usize).sum();
        let shares: Vec<usize> = self.consumers.iter().map(|consumer| consumer.owned.len()).collect();
        assert_eq!(shares.iter().sum::<usize>(), all, "{shares:?}");
        let (least, most) = (shares.iter().min().copied(), shares.iter().max().copied());
        assert!(most.unwrap_or(0) - least.unwrap_or(0) <= 1, "{shares:?}");
        self.crash();
    }
}

impl Consumer {
    fn heartbeat(&mut self) -> ConsumerGroupHeartbeatRequest {
        let mut request = match self.epoch {
            0 => join(&self.id, &[]),
            epoch => beat(&self.id, epoch),
        };
        request.instance_id = self.instance.as_deref().map(text);
        let is_full = self.epoch == 0 || self.told.is_none();
        if is_full {
            request.rebalance_timeout_ms = super::consumers::REBALANCE_MS * 10;
            request.subscribed_topic_names =
                Some(self.names.iter().map(|name| TopicName(text(name))).collect());
            request.subscribed_topic_regex = Some(text(self.regex.unwrap_or("")));
        }
        if self.epoch > 0 && (self.has_news || self.told.as_ref() != Some(&self.owned)) {
            let mut topics: BTreeMap<TopicId, Vec<i32>> = BTreeMap::new();
            for (topic, index) in &self.owned {
                topics.entry(*topic).or_default().push(*index);
            }
            let topics = topics.into_iter().map(|(topic, partitions)| {
                TopicPartitions::default().with_topic_id(topic.0).with_partitions(partitions)
            });
            request.topic_partitions = Some(topics.collect());
        }
        self.has_news = false;
        self.told = Some(self.owned.clone());
        request
    }

    /// It is not a member any more, or does not know whether it is.
    fn start_over(&mut self) {
        self.epoch = 0;
        self.owned.clear();
        self.told = None;
    }

    fn new_life(&mut self) {
        self.start_over();
        self.waiting = None;
        self.lives += 1;
        self.id = format!("{}.{}", self.id.split('.').next().unwrap_or_default(), self.lives);
    }
}

/// Prints the seed when a run under it panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with KURING_SIM_SEED={}", self.0);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn consumer_groups_keep_their_promises_whatever_happens() {
    let seeds = match number("KURING_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KURING_SIM_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let _seed = Seed(seed);
        Simulation::new(seed).run();
    }
}
