//! Seeded random histories: members join, commit, leave, crash and come back; appends are slow or fail;
//! the broker is killed and starts again. A checker watches every answer.
//!
//! A failure prints its seed; `KURING_SIM_SEED=n cargo test -q --lib coordinator::tests::simulation`
//! repeats it alone, `KURING_SIM_SEEDS=n` runs more of them.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use kafka_protocol::messages::{JoinGroupResponse, SyncGroupResponse};

use super::harness::{Harness, OK, commit_request, join_request, settings, sync_request, text};
use crate::base::random::Random;
use crate::coordinator::{ReplyToken, Request, Response};
use crate::wire::ErrorCode;

const SEEDS: u64 = 16;
const STEPS: usize = 1500;
const MEMBERS: usize = 5;

/// Who a member is: a static member keeps its place under changing ids.
fn identity(member: &str) -> &str {
    match member.split_once('-') {
        Some((instance, _)) if instance != "client" => instance,
        _ => member,
    }
}

/// What must hold whatever happens.
#[derive(Default)]
struct Checker {
    /// (life of the group, generation) → its leader.
    leaders: HashMap<(u32, i32), String>,
    /// (assignment's own name without the member, member) → how it was given.
    given: HashMap<(String, String), Bytes>,
    /// Topic → the highest offset whose commit was acknowledged.
    acked: BTreeMap<String, i64>,
    sent: BTreeMap<String, i64>,
}

impl Checker {
    /// One leader per generation, and it alone learns the members, itself among them.
    fn joined(&mut self, life: u32, member: &str, response: &JoinGroupResponse) {
        let key = (life, response.generation_id);
        let leader = self.leaders.entry(key).or_insert_with(|| identity(&response.leader).to_owned());
        assert_eq!(*leader, *identity(&response.leader), "generation {key:?} has two leaders");
        let members: Vec<&str> = response.members.iter().map(|member| member.member_id.as_str()).collect();
        match identity(member) == leader && !response.members.is_empty() {
            true => assert!(members.contains(&member), "the leader is a member"),
            // A leader that came back on its own is not told again.
            false => assert!(members.is_empty(), "only the leader assigns"),
        }
    }

    /// What a member gets is what the leader of that generation gave to it, each time it asks.
    fn synced(&mut self, member: &str, generation: i32, response: &SyncGroupResponse) {
        let assignment =
            std::str::from_utf8(&response.assignment).expect("the simulation's leaders write text");
        let (origin, to) =
            assignment.rsplit_once('>').expect("every member of a generation is given something");
        assert_eq!(identity(to), identity(member), "an assignment for another member");
        let (_, written_for) = origin.split_once(':').expect("life:generation");
        assert_eq!(written_for, generation.to_string(), "an assignment of another generation");
        let key = (generation.to_string() + "/" + origin, identity(member).to_owned());
        let first = self.given.entry(key).or_insert_with(|| response.assignment.clone());
        assert_eq!(*first, response.assignment, "two assignments in one generation");
    }

    fn committing(&mut self, topic: &str, offset: i64) {
        self.sent.insert(topic.to_owned(), offset);
    }

    fn committed(&mut self, topic: &str, offset: i64) {
        let acked = self.acked.entry(topic.to_owned()).or_insert(-1);
        *acked = (*acked).max(offset);
    }

    /// The last acknowledged commit is there, or a later one that was never answered.
    fn fetched(&self, topic: &str, offset: i64) {
        let acked = self.acked.get(topic).copied().unwrap_or(-1);
        assert!(offset >= acked, "commit {acked} of {topic} was acknowledged, {offset} is there");
        assert!(offset <= self.sent.get(topic).copied().unwrap_or(-1), "{offset} was never committed");
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Out,
    Joining(ReplyToken),
    Syncing(ReplyToken),
    In,
}

/// A consumer, with the reactions of Kafka's to each error.
struct Consumer {
    id: String,
    instance: Option<String>,
    topic: String,
    generation: i32,
    phase: Phase,
    commits: Vec<(ReplyToken, i64)>,
}

struct Simulation {
    h: Harness,
    random: Random,
    checker: Checker,
    consumers: Vec<Consumer>,
    /// Counts the lives of the group: a restart, or its loss before it was written, begins a new one.
    life: u32,
    next_offset: i64,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let statics = random.below(3) as usize;
        let consumers = (0..MEMBERS).map(|at| Consumer {
            id: String::new(),
            instance: (at < statics).then(|| format!("i{at}")),
            topic: format!("t{at}"),
            generation: -1,
            phase: Phase::Out,
            commits: Vec::new(),
        });
        let mut h = Harness::seeded(settings(), seed);
        h.holds_appends = true;
        Self {
            consumers: consumers.collect(),
            h,
            checker: Checker::default(),
            life: 0,
            next_offset: 0,
            random,
        }
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.random.below(bound) == 0
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
            if self.h.state() == "Dead" {
                self.life += 1;
            }
        }
        self.settle();
    }

    fn step(&mut self) {
        let at = self.random.below(MEMBERS as u64) as usize;
        match self.random.below(1000) {
            0..650 => self.act(at),
            650..800 => {
                let ms = self.random.below(1500);
                self.h.pass(ms);
            }
            800..960 if !self.h.held.is_empty() => {
                if self.one_in(20) {
                    self.h.fail_one(ErrorCode::NotEnoughReplicas);
                } else {
                    self.h.write_one();
                    self.h.run_effects();
                }
            }
            960..970 => self.crash(at),
            970..980 => {
                let id = self.consumers[at].id.clone();
                if self.consumers[at].phase == Phase::In && self.consumers[at].instance.is_none() {
                    // Its answer may wait for an append: nobody looks at it.
                    self.h.send(leave_request(&id));
                    self.crash(at);
                }
            }
            980..985 => self.restart(),
            // A long silence: sessions end.
            985..988 => self.h.pass(15_000),
            _ => {}
        }
    }

    /// The consumer's process is gone with what it knew.
    fn crash(&mut self, at: usize) {
        let consumer = &mut self.consumers[at];
        consumer.id.clear();
        consumer.phase = Phase::Out;
        consumer.generation = -1;
        consumer.commits.clear();
    }

    fn restart(&mut self) {
        // What was handed to the disk may or may not be there.
        let written = self.random.below(self.h.held.len() as u64 + 1);
        for _ in 0..written {
            self.h.write_one();
        }
        self.h.restart();
        self.life += 1;
        for consumer in &mut self.consumers {
            consumer.commits.clear();
            if consumer.phase != Phase::In {
                consumer.phase = Phase::Out;
            }
        }
        self.h.replies.clear();
        self.check_offsets();
    }

    fn check_offsets(&mut self) {
        for topic in self.consumers.iter().map(|consumer| consumer.topic.clone()).collect::<Vec<_>>() {
            let offset = self.h.committed(super::harness::GROUP, &topic);
            self.checker.fetched(&topic, offset);
        }
    }

    /// One thing that this consumer does next.
    fn act(&mut self, at: usize) {
        self.collect_commits(at);
        let phase = self.consumers[at].phase;
        match phase {
            Phase::Out => {
                let consumer = &self.consumers[at];
                let mut request = join_request(&consumer.id);
                request.group_instance_id = consumer.instance.as_deref().map(text);
                let token = self.h.send(Request::Join(request));
                self.consumers[at].phase = Phase::Joining(token);
            }
            Phase::Joining(token) => {
                if let Some(Response::Join(response)) = self.h.reply(token) {
                    self.joined(at, &response);
                }
            }
            Phase::Syncing(token) => {
                if let Some(Response::Sync(response)) = self.h.reply(token) {
                    let consumer = &mut self.consumers[at];
                    if response.error_code == OK {
                        self.checker.synced(&consumer.id, consumer.generation, &response);
                        consumer.phase = Phase::In;
                    } else {
                        self.react(at, response.error_code);
                    }
                }
            }
            Phase::In if self.one_in(2) => {
                let (id, generation) = (self.consumers[at].id.clone(), self.consumers[at].generation);
                let code = self.h.heartbeat(&id, generation);
                if code != OK {
                    self.react(at, code);
                }
            }
            Phase::In => {
                self.next_offset += 1;
                let consumer = &self.consumers[at];
                let request = commit_request(
                    super::harness::GROUP,
                    &consumer.id,
                    consumer.generation,
                    &consumer.topic,
                    self.next_offset,
                );
                self.checker.committing(&consumer.topic, self.next_offset);
                let token = self.h.send(Request::Commit(request));
                self.consumers[at].commits.push((token, self.next_offset));
            }
        }
    }

    fn collect_commits(&mut self, at: usize) {
        for (token, offset) in std::mem::take(&mut self.consumers[at].commits) {
            match self.h.reply(token) {
                None => self.consumers[at].commits.push((token, offset)),
                Some(Response::Commit(response)) => match response.topics[0].partitions[0].error_code {
                    OK => self.checker.committed(&self.consumers[at].topic, offset),
                    // A failed append is tried again later by the next commit.
                    code if code == ErrorCode::CoordinatorNotAvailable.code() => {}
                    code => self.react(at, code),
                },
                Some(other) => panic!("{other:?}"),
            }
        }
    }

    fn joined(&mut self, at: usize, response: &JoinGroupResponse) {
        if response.error_code == ErrorCode::MemberIdRequired.code() {
            self.consumers[at].id = response.member_id.to_string();
            self.consumers[at].phase = Phase::Out;
            return;
        }
        if response.error_code != OK {
            return self.react(at, response.error_code);
        }
        self.checker.joined(self.life, &response.member_id, response);
        let generation = response.generation_id;
        let consumer = &mut self.consumers[at];
        consumer.id = response.member_id.to_string();
        consumer.generation = generation;
        let assignments: Vec<(String, String)> = match response.skip_assignment {
            true => Vec::new(),
            false => response
                .members
                .iter()
                .map(|member| {
                    let given = format!("{}:{generation}>{}", self.life, member.member_id);
                    (member.member_id.to_string(), given)
                })
                .collect(),
        };
        let assignments: Vec<(&str, &str)> =
            assignments.iter().map(|(id, given)| (id.as_str(), given.as_str())).collect();
        let mut request = sync_request(&consumer.id, generation, &assignments);
        request.group_instance_id = consumer.instance.as_deref().map(text);
        let token = self.h.send(Request::Sync(request));
        self.consumers[at].phase = Phase::Syncing(token);
    }

    fn react(&mut self, at: usize, code: i16) {
        let consumer = &mut self.consumers[at];
        consumer.phase = Phase::Out;
        match ErrorCode::try_from_code(code) {
            Some(ErrorCode::RebalanceInProgress | ErrorCode::CoordinatorNotAvailable) => {}
            Some(
                ErrorCode::UnknownMemberId
                | ErrorCode::IllegalGeneration
                | ErrorCode::FencedInstanceId
                | ErrorCode::GroupIdNotFound,
            ) => consumer.id.clear(),
            other => panic!("a consumer is never told {other:?} here"),
        }
    }

    /// The troubles end: within minutes all are members of one generation, and nothing is lost.
    fn settle(&mut self) {
        self.h.release();
        for _ in 0..3000 {
            for at in 0..MEMBERS {
                self.act(at);
            }
            self.h.pass(100);
        }
        self.check_offsets();
        let generation = self.consumers[0].generation;
        for consumer in &self.consumers {
            assert_eq!((consumer.phase, consumer.generation), (Phase::In, generation), "{}", consumer.topic);
        }
        assert_eq!(self.h.state(), "Stable");
    }
}

fn leave_request(id: &str) -> Request {
    use kafka_protocol::messages::leave_group_request::MemberIdentity;
    use kafka_protocol::messages::{GroupId, LeaveGroupRequest};
    Request::Leave(
        LeaveGroupRequest::default()
            .with_group_id(GroupId(text(super::harness::GROUP)))
            .with_members(vec![MemberIdentity::default().with_member_id(text(id))]),
    )
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
fn groups_keep_their_promises_whatever_happens() {
    let seeds = match number("KURING_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KURING_SIM_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let _seed = Seed(seed);
        Simulation::new(seed).run();
    }
}

#[test]
#[should_panic(expected = "two leaders")]
fn the_checker_sees_two_leaders() {
    let mut checker = Checker::default();
    let follower = JoinGroupResponse::default().with_generation_id(1);
    checker.joined(0, "c", &follower.clone().with_leader(text("a")));
    checker.joined(0, "c", &follower.with_leader(text("b")));
}

#[test]
#[should_panic(expected = "of another generation")]
fn the_checker_sees_a_stale_assignment() {
    let stale = SyncGroupResponse::default().with_assignment(Bytes::from_static(b"0:1>m"));
    Checker::default().synced("m", 2, &stale);
}

#[test]
#[should_panic(expected = "was acknowledged")]
fn the_checker_sees_a_lost_commit() {
    let mut checker = Checker::default();
    checker.committing("t", 2);
    checker.committed("t", 2);
    checker.fetched("t", 1);
}
