//! Quorums whose voters come and go, on one shard.

use std::pin::pin;

use futures::future::{Either, select};

use super::*;
use crate::metadata::KRAFT_VERSION;
use crate::raft::{ChangingVoters, FirstVoter, VoterChange, VoterKey};

const WAIT: Duration = Duration::from_secs(20);

fn key(node: i32, directory: Uuid) -> VoterKey {
    VoterKey { node: BrokerId(node), directory }
}

fn first_key(node: i32) -> VoterKey {
    key(node, directory(node))
}

/// Which begins with these voters; others know where node `server` is.
struct Changing {
    trio: Trio,
    first: Vec<i32>,
    server: i32,
    joins_by_itself: bool,
    silence_max: Duration,
}

impl Changing {
    async fn started(threads: FileThreads, first: &[i32]) -> Self {
        let trio = Trio::new(threads);
        let (first_ones, silence_max) = (first.to_vec(), Duration::from_secs(300));
        let mut changing =
            Self { trio, first: first_ones, server: first[0], joins_by_itself: false, silence_max };
        for node in first {
            changing.start(*node).await;
        }
        changing.trio.leader().await;
        changing
    }

    fn address(&self, node: i32) -> (String, u16) {
        ("127.0.0.1".to_owned(), self.trio.ports[&BrokerId(node)])
    }

    fn settings(&self, node: i32, directory: Uuid) -> Settings {
        let mut settings = self.trio.settings(node, directory, &[]);
        let roster = Rc::new(Roster::new(BTreeMap::new(), vec![self.address(self.server)]));
        let identity = settings.peers.as_ref().unwrap().identity().clone();
        let security = Security::Secret(Secret::new(vec![9; 32]).unwrap());
        settings.peers = Some(Links::new(identity, security, roster, self.trio.threads.clone()));
        let first =
            self.first.iter().map(|id| FirstVoter { key: first_key(*id), address: self.address(*id) });
        settings.changing = Some(ChangingVoters {
            are_named: false,
            address: self.address(node),
            first: first.collect(),
            joins_by_itself: self.joins_by_itself,
            silence_max: self.silence_max,
        });
        settings
    }

    async fn start(&mut self, node: i32) {
        self.start_in(node, directory(node)).await;
    }

    async fn start_in(&mut self, node: i32, directory: Uuid) {
        let settings = self.settings(node, directory);
        self.trio.start_with(node, settings).await;
    }

    /// Asks whoever leads, as a node does that has taken the request.
    async fn change(&self, change: VoterChange) -> Result<(), Refusal> {
        let begun = Instant::now();
        loop {
            let leader = self.trio.leader().await;
            match self.trio.quorum(leader).change_voters(change).await {
                Err(refusal) if refusal.code == ErrorCode::NotController && begun.elapsed() < PATIENCE => {
                    runtime::sleep(Duration::from_millis(20)).await;
                }
                result => return result,
            }
        }
    }

    async fn lose_disk(&mut self, node: i32) {
        self.trio.stop(node).await;
        let dir = self.trio.dir.path().join(format!("node-{node}"));
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::remove_file(dir.with_extension("identity")).unwrap();
    }

    async fn add(&self, node: i32) {
        self.change(VoterChange::Add(first_key(node), WAIT)).await.unwrap();
    }

    async fn await_voters(&self, expected: &[i32], observers: &[i32]) {
        eventually(&format!("voters {expected:?}, observers {observers:?}"), || {
            let leads = |node: &&i32| self.trio.quorum(**node).leadership().is_own;
            let leader = self.trio.running.keys().find(leads)?;
            let told = self.trio.quorum(*leader).describe()?;
            let ids = |of: &[crate::raft::ReplicaDescription]| {
                let mut ids: Vec<i32> = of.iter().map(|replica| replica.node.0).collect();
                ids.sort_unstable();
                ids
            };
            (ids(&told.voters) == expected && ids(&told.observers) == observers).then_some(())
        })
        .await;
    }

    fn seat(&self, node: i32) -> u64 {
        self.trio.quorum(node).metrics().borrow_watched().id.0
    }
}

fn code(result: Result<(), Refusal>) -> ErrorCode {
    result.unwrap_err().code
}

#[test]
fn voters_are_added_when_they_have_all_and_are_removed_again() {
    on_a_shard(|threads| async move {
        let mut changing = Changing::started(threads, &[1]).await;
        changing.trio.create("one").await;
        assert_eq!(changing.trio.quorum(1).image().feature(KRAFT_VERSION), Some(1));
        let short = Duration::from_millis(100);
        let early = changing.change(VoterChange::Add(first_key(2), short)).await.unwrap_err();
        assert_eq!(early.code, ErrorCode::RequestTimedOut);
        assert!(early.message.contains("is not ready to receive requests"), "{}", early.message);
        changing.start(2).await;
        changing.trio.await_topics(1).await;
        changing.await_voters(&[1], &[2]).await;
        assert!(changing.seat(2) > u64::from(u32::MAX));
        changing.add(2).await;
        changing.await_voters(&[1, 2], &[]).await;
        let twice = changing.change(VoterChange::Add(first_key(2), WAIT)).await.unwrap_err();
        assert_eq!(twice.code, ErrorCode::DuplicateVoter);
        assert!(
            twice.message.starts_with("The voter id for ReplicaKey(id=2, directoryId="),
            "{}",
            twice.message
        );
        changing.start(3).await;
        changing.add(3).await;
        changing.trio.create("two").await;
        changing.trio.await_topics(2).await;
        changing.await_voters(&[1, 2, 3], &[]).await;
        let strange = VoterChange::Remove(key(3, Uuid::from_u128(5)));
        assert_eq!(code(changing.change(strange).await), ErrorCode::VoterNotFound);
        // Whoever leads goes: another one takes it out, and it goes on following.
        let leader = changing.trio.leader().await;
        changing.change(VoterChange::Remove(first_key(leader))).await.unwrap();
        let left: Vec<i32> = NODES.into_iter().filter(|node| *node != leader).collect();
        changing.await_voters(&left, &[leader]).await;
        changing.trio.create("three").await;
        changing.trio.await_topics(3).await;
        // From their own disks, all of them.
        for node in NODES {
            changing.trio.stop(node).await;
        }
        for node in NODES {
            changing.start(node).await;
        }
        changing.trio.create("four").await;
        changing.trio.await_topics(4).await;
        changing.await_voters(&left, &[leader]).await;
        changing.change(VoterChange::Remove(first_key(left[0]))).await.unwrap();
        let mut gone = [left[0], leader];
        gone.sort_unstable();
        changing.await_voters(&left[1..], &gone).await;
        let last = changing.change(VoterChange::Remove(first_key(left[1]))).await;
        assert_eq!(code(last), ErrorCode::VoterNotFound, "the last one stays");
        changing.trio.create("five").await;
        changing.trio.await_topics(5).await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn a_voter_with_a_new_disk_has_its_old_self_removed_first() {
    on_a_shard(|threads| async move {
        let mut changing = Changing::started(threads, &NODES).await;
        changing.trio.create("one").await;
        let lost = NODES.into_iter().find(|node| !changing.trio.quorum(*node).leadership().is_own).unwrap();
        changing.server = NODES.into_iter().find(|node| *node != lost).unwrap();
        changing.lose_disk(lost).await;
        let fresh = Uuid::from_u128(77);
        {
            let opening = pin!(changing.trio.open(changing.settings(lost, fresh)));
            let time = pin!(runtime::sleep(Duration::from_millis(1500)));
            assert!(matches!(select(opening, time).await, Either::Right(_)), "it is given no log");
        }
        changing.change(VoterChange::Remove(first_key(lost))).await.unwrap();
        changing.start_in(lost, fresh).await;
        changing.trio.await_topics(1).await;
        assert!(changing.seat(lost) > u64::from(u32::MAX));
        changing.change(VoterChange::Add(key(lost, fresh), WAIT)).await.unwrap();
        changing.await_voters(&NODES, &[]).await;
        // It counts: without another one of the three the log goes on.
        changing.trio.stop(changing.server).await;
        changing.trio.create("two").await;
        changing.trio.await_topics(2).await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn a_voter_with_a_new_disk_that_joins_by_itself_has_its_old_self_removed() {
    on_a_shard(|threads| async move {
        let mut changing = Changing::started(threads, &NODES).await;
        changing.trio.create("one").await;
        let lost = NODES.into_iter().find(|node| !changing.trio.quorum(*node).leadership().is_own).unwrap();
        changing.server = NODES.into_iter().find(|node| *node != lost).unwrap();
        changing.lose_disk(lost).await;
        changing.joins_by_itself = true;
        changing.start_in(lost, Uuid::from_u128(77)).await;
        changing.await_voters(&NODES, &[]).await;
        assert!(changing.seat(lost) > u64::from(u32::MAX));
        // It counts: without another one of the three the log goes on.
        changing.trio.stop(changing.server).await;
        changing.trio.create("two").await;
        changing.trio.await_topics(2).await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn whoever_is_lost_while_a_voter_is_added_the_next_leader_adds_it() {
    on_a_shard(|threads| async move {
        let mut changing = Changing::started(threads, &NODES).await;
        changing.trio.create("one").await;
        let leader = changing.trio.leader().await;
        changing.server = NODES.into_iter().find(|node| *node != leader).unwrap();
        changing.start(4).await;
        changing.trio.await_topics(1).await;
        // The candidate is away, so the leader waits for it; and is lost.
        changing.trio.stop(4).await;
        changing.trio.create("two").await;
        let quorum = changing.trio.running[&leader].quorum.clone();
        {
            let waiting = pin!(quorum.change_voters(VoterChange::Add(first_key(4), WAIT)));
            let time = pin!(runtime::sleep(Duration::from_millis(300)));
            if let Either::Left((result, _)) = select(waiting, time).await {
                panic!("it lacks an entry, and the change is answered: {result:?}");
            }
        }
        drop(quorum);
        changing.trio.stop(leader).await;
        changing.start(4).await;
        changing.add(4).await;
        let left: Vec<i32> = [1, 2, 3, 4].into_iter().filter(|node| *node != leader).collect();
        changing.trio.create("three").await;
        changing.trio.await_topics(3).await;
        changing.change(VoterChange::Remove(first_key(leader))).await.unwrap();
        changing.await_voters(&left, &[leader]).await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn a_controller_that_moves_is_found_where_it_is_and_one_that_may_joins_by_itself() {
    on_a_shard(|threads| async move {
        let mut changing = Changing::started(threads, &[1]).await;
        changing.joins_by_itself = true;
        changing.start(2).await;
        changing.start(3).await;
        changing.await_voters(&[1, 2, 3], &[]).await;
        changing.trio.create("one").await;
        changing.trio.await_topics(1).await;
        let moved = NODES.into_iter().find(|node| !changing.trio.quorum(*node).leadership().is_own).unwrap();
        changing.server = NODES.into_iter().find(|node| *node != moved).unwrap();
        changing.trio.stop(moved).await;
        let port = changing.trio.ports[&BrokerId(5)];
        changing.trio.ports.insert(BrokerId(moved), port);
        changing.start(moved).await;
        changing.trio.create("two").await;
        changing.trio.await_topics(2).await;
        eventually("the log says where it is", || {
            let leads = |node: &&i32| changing.trio.quorum(**node).leadership().is_own;
            let leader = changing.trio.running.keys().find(leads)?;
            let metrics = changing.trio.quorum(*leader).metrics().borrow_watched();
            let mut nodes = metrics.membership_config.nodes();
            let (_, member) = nodes.find(|(_, member)| member.node.0 == moved)?;
            (member.address.as_ref()?.1 == port).then_some(())
        })
        .await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn a_member_without_a_vote_that_is_gone_is_forgotten_and_comes_back_to_its_log() {
    on_a_shard(|threads| async move {
        let mut changing = Changing::started(threads, &[1]).await;
        changing.trio.stop(1).await;
        changing.silence_max = Duration::from_secs(2);
        changing.start(1).await;
        changing.start(2).await;
        changing.trio.create("one").await;
        changing.trio.await_topics(1).await;
        let seat = changing.seat(2);
        changing.await_voters(&[1], &[2]).await;
        let changed_last = |changing: &Changing| {
            *changing.trio.quorum(1).metrics().borrow_watched().membership_config.log_id()
        };
        let before = changed_last(&changing);
        runtime::sleep(changing.silence_max * 5 / 4).await;
        assert_eq!(changed_last(&changing), before, "one that is heard of stays");
        changing.trio.stop(2).await;
        changing.trio.create("two").await;
        changing.await_voters(&[1], &[]).await;
        changing.start(2).await;
        changing.trio.await_topics(2).await;
        assert_eq!(changing.seat(2), seat);
        changing.add(2).await;
        changing.await_voters(&[1, 2], &[]).await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn who_votes_alone_is_a_majority_when_nobody_answers_it() {
    on_a_shard(|threads| async move {
        let changing = Changing::started(threads, &[1]).await;
        changing.trio.create("one").await;
        // Longer than its lease.
        runtime::sleep(changing.trio.failover * 2).await;
        assert!(changing.trio.quorum(1).describe().is_some());
        changing.trio.create("two").await;
        changing.trio.stop_all().await;
    });
}

#[path = "raise_tests.rs"]
mod raise_tests;
