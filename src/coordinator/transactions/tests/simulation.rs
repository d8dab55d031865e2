//! Seeded random histories: producers of one transactional id come, add, commit, abort and go on as zombies;
//! appends and markers are slow or fail; the broker is killed and starts again. A small model of the partitions
//! watches: a transaction ends the same way everywhere, as its producer was told, and the state that a restart
//! finds is the one that was left.
//!
//! A failure prints its seed; `KURING_SIM_SEED=n cargo test -q --lib transactions::tests::simulation` repeats
//! it alone, `KURING_SIM_SEEDS=n` runs more of them.

use std::collections::{BTreeMap, BTreeSet};

use super::harness::{Harness, ID, TIMEOUT_MS, partitions, text};
use crate::base::random::Random;
use crate::coordinator::ReplyToken;
use crate::coordinator::transactions::{Producer, Request, Response, TransactionVersion};
use crate::wire::ErrorCode;

const SEEDS: u64 = 8;
const STEPS: usize = 1500;
const TOPICS: [&str; 4] = ["a", "b", "c", "d"];

/// What a producer believes.
#[derive(Clone, Debug)]
struct Client {
    me: Producer,
    added: BTreeSet<&'static str>,
    /// The end it asked for, and whether it was told that it is decided.
    ending: Option<bool>,
}

enum Asked {
    Init(usize),
    Add(usize, &'static str),
    End(usize),
}

struct Simulation {
    h: Harness,
    random: Random,
    clients: Vec<Option<Client>>,
    asked: BTreeMap<ReplyToken, Asked>,
    /// The transaction of each incarnation: how it ended, by what its producer was told.
    told: BTreeMap<(i64, i16), bool>,
    /// How many markers of each partition were looked at.
    seen: BTreeMap<String, usize>,
    /// (producer, epoch of the transaction, partition) → its end.
    ends: BTreeMap<(i64, i16), BTreeSet<bool>>,
}

impl Simulation {
    fn new(seed: u64, version: TransactionVersion) -> Self {
        let mut h = Harness::new(version);
        h.holds_appends = true;
        h.holds_markers = true;
        Self {
            h,
            random: Random::seeded(seed),
            clients: vec![None; 3],
            asked: BTreeMap::new(),
            told: BTreeMap::new(),
            seen: BTreeMap::new(),
            ends: BTreeMap::new(),
        }
    }

    fn step(&mut self) {
        let who = self.random.below(self.clients.len() as u64) as usize;
        let busy = self.asked.values().any(|asked| match asked {
            Asked::Init(client) | Asked::Add(client, _) | Asked::End(client) => *client == who,
        });
        match self.random.below(1000) {
            0..60 if !busy => {
                let expected = self.clients[who].as_ref().map(|client| client.me);
                let expected = expected.filter(|_| self.random.below(3) == 0);
                let request = Request::Init { id: text(ID), timeout_ms: TIMEOUT_MS, expected };
                let token = self.h.send(request);
                self.asked.insert(token, Asked::Init(who));
            }
            60..350 if !busy => {
                let topic = TOPICS[self.random.below(TOPICS.len() as u64) as usize];
                let Some(client) = &self.clients[who] else { return };
                if client.ending.is_none() {
                    let request = self.h.adding(client.me, &[topic]);
                    let token = self.h.send(request);
                    self.asked.insert(token, Asked::Add(who, topic));
                }
            }
            350..500 if !busy => {
                let commit = self.random.below(3) > 0;
                let Some(client) = &mut self.clients[who] else { return };
                if !client.added.is_empty() {
                    let commit = *client.ending.get_or_insert(commit);
                    let me = client.me;
                    let token = self.h.send(self.h.ending(me, commit));
                    self.asked.insert(token, Asked::End(who));
                }
            }
            500..760 if !self.h.appends.is_empty() => self.h.write_one(),
            760..790 if !self.h.appends.is_empty() => {
                let error = [ErrorCode::NotEnoughReplicas, ErrorCode::KafkaStorageError];
                self.h.fail_one(error[self.random.below(2) as usize]);
            }
            790..900 if !self.h.rounds.is_empty() => self.h.mark_one(),
            900..930 if !self.h.rounds.is_empty() => {
                let failing: Vec<&str> = TOPICS.into_iter().filter(|_| self.random.below(2) == 0).collect();
                self.h.fail_markers(&failing, ErrorCode::NotLeaderOrFollower);
            }
            930..980 => self.h.pass(self.random.below(3_000)),
            980..990 => self.h.pass(TIMEOUT_MS as u64),
            990..1000 => self.crash(),
            _ => {}
        }
        self.h.run_effects();
        self.read_answers();
        self.check_markers();
    }

    fn read_answers(&mut self) {
        let replies: Vec<(ReplyToken, Response)> = self.h.replies.drain().collect();
        for (token, response) in replies {
            match (self.asked.remove(&token), response) {
                (Some(Asked::Init(who)), Response::Init(Ok(me))) => {
                    self.clients[who] = Some(Client { me, added: BTreeSet::new(), ending: None });
                }
                (Some(Asked::Add(who, topic)), Response::AddPartitions(result)) => match result {
                    Ok(()) => {
                        if let Some(client) = &mut self.clients[who] {
                            client.added.insert(topic);
                        }
                    }
                    Err(error) => self.maybe_gone(who, error),
                },
                (Some(Asked::End(who)), Response::End(result)) => match result {
                    Ok(next) => {
                        let client = self.clients[who].as_mut().expect("it asked");
                        let commit = client.ending.take().expect("it asked for an end");
                        if self.h.version.bumps_epoch() {
                            let key = (client.me.id.0, client.me.epoch.0);
                            let before = self.told.insert(key, commit);
                            assert!(before.is_none_or(|before| before == commit), "told two ends");
                        }
                        if next != Producer::NONE {
                            client.me = next;
                        }
                        client.added.clear();
                    }
                    Err(error) => self.maybe_gone(who, error),
                },
                (_, _) => {}
            }
        }
    }

    fn maybe_gone(&mut self, who: usize, error: ErrorCode) {
        let is_fatal = matches!(
            error,
            ErrorCode::ProducerFenced | ErrorCode::InvalidProducerIdMapping | ErrorCode::InvalidTxnState
        );
        if is_fatal {
            self.clients[who] = None;
        }
    }

    /// Every partition of a transaction hears the same end, and the one that its producer was told.
    fn check_markers(&mut self) {
        if !self.h.version.bumps_epoch() {
            return;
        }
        for (partition, markers) in &self.h.written {
            let seen = self.seen.entry(partition.to_string()).or_default();
            for marker in &markers[*seen..] {
                // The transaction had the epoch before that of its marker.
                let key = (marker.producer.id.0, marker.producer.epoch.0 - 1);
                let ends = self.ends.entry(key).or_default();
                ends.insert(marker.commit);
                assert_eq!(ends.len(), 1, "{key:?} ended in two ways");
                if let Some(told) = self.told.get(&key) {
                    assert_eq!(*told, marker.commit, "{key:?} ended otherwise than its producer was told");
                }
            }
            *seen = markers.len();
        }
    }

    /// The state after a restart is what was written.
    fn crash(&mut self) {
        let written = self.h.records();
        let before = (written > 0).then(|| self.durable_state());
        self.h.restart();
        self.asked.clear();
        self.h.replies.clear();
        if let Some(before) = before {
            assert_eq!(self.durable_state(), before, "the reloaded state is the live one");
        }
    }

    fn durable_state(&mut self) -> (String, Producer) {
        let state = self.h.state();
        self.h.replies.clear();
        state
    }

    /// Lets everything come to its end: no transaction is left undecided.
    fn settle(&mut self) {
        self.h.holds_appends = false;
        self.h.holds_markers = false;
        while !self.h.appends.is_empty() {
            self.h.write_one();
        }
        while !self.h.rounds.is_empty() {
            self.h.mark_one();
        }
        self.h.run_effects();
        self.h.pass(2 * TIMEOUT_MS as u64);
        self.check_markers();
        let state = self.h.state().0;
        assert!(["Empty", "CompleteCommit", "CompleteAbort", "error 105"].contains(&&*state), "{state}");
    }
}

fn run(seed: u64) {
    for version in [TransactionVersion::V0, TransactionVersion::V2] {
        let mut simulation = Simulation::new(seed, version);
        for _ in 0..STEPS {
            simulation.step();
        }
        simulation.settle();
    }
}

#[test]
fn whatever_happens_a_transaction_ends_the_same_way_everywhere() {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("KURING_SIM_SEED") {
        return run(seed);
    }
    for seed in 0..number("KURING_SIM_SEEDS").unwrap_or(SEEDS) {
        let result = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = result {
            eprintln!("KURING_SIM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    // Partitions of the harness's own making.
    assert_eq!(partitions(&TOPICS).len(), TOPICS.len());
}
