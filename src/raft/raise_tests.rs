//! Clusters with fixed voters that are raised to voters that come and go, on one shard.

use super::*;
use crate::metadata::{ControllerImage, FeatureUpdate, UpdateFeatures, UpgradeType, own_features};

/// Three with fixed voters; more know where node `server` is.
async fn fixed(threads: FileThreads) -> Changing {
    let trio = Trio::started(threads).await;
    trio.create("one").await;
    trio.await_pinned().await;
    let silence_max = Duration::from_secs(300);
    Changing { trio, first: Vec::new(), server: 1, joins_by_itself: false, silence_max }
}

impl Changing {
    /// Whoever leads runs it.
    async fn run(&self, command: Command) -> Result<Response, Refusal> {
        let begun = Instant::now();
        loop {
            let leader = self.trio.leader().await;
            match self.trio.quorum(leader).submit(command.clone()).await {
                Err(Refusal { code: ErrorCode::NotController | ErrorCode::RequestTimedOut, .. })
                    if begun.elapsed() < PATIENCE =>
                {
                    runtime::sleep(Duration::from_millis(20)).await;
                }
                result => return result,
            }
        }
    }

    async fn register(&self, node: i32) {
        let controller = ControllerImage {
            id: BrokerId(node),
            incarnation: Uuid::from_u128(node as u128),
            endpoints: Vec::new(),
            features: own_features(),
        };
        self.run(Command::RegisterController(controller)).await.unwrap();
    }

    async fn update(
        &self,
        level: i16,
        upgrade: UpgradeType,
        validate_only: bool,
    ) -> Result<Response, Refusal> {
        let update = FeatureUpdate { name: KRAFT_VERSION.to_owned(), level, upgrade };
        self.run(Command::UpdateFeatures(UpdateFeatures { updates: vec![update], validate_only })).await
    }

    async fn raise(&self) {
        self.update(1, UpgradeType::Upgrade, false).await.unwrap();
    }

    async fn raised(threads: FileThreads) -> Self {
        let changing = fixed(threads).await;
        for node in NODES {
            changing.register(node).await;
        }
        changing.raise().await;
        changing
    }

    /// As the leader's log has them.
    async fn members(&self) -> BTreeMap<u64, Member> {
        let leader = self.trio.leader().await;
        let metrics = self.trio.quorum(leader).metrics().borrow_watched();
        metrics.membership_config.nodes().map(|(seat, member)| (seat.0, member.clone())).collect()
    }

    fn named_member(&self, node: i32) -> Member {
        let address = Some(self.address(node));
        Member { node: BrokerId(node), directory: directory(node), address }
    }
}

#[test]
fn fixed_voters_are_raised_when_all_have_told_what_they_can_and_change_from_there_on() {
    on_a_shard(|threads| async move {
        let mut changing = fixed(threads).await;
        let refusal = changing.update(1, UpgradeType::Upgrade, true).await.unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidUpdateVersion);
        assert!(refusal.message.contains("controller 1 has not registered"), "{}", refusal.message);
        for node in NODES {
            changing.register(node).await;
        }
        let early = changing.change(VoterChange::Add(first_key(4), WAIT)).await;
        assert_eq!(code(early), ErrorCode::UnsupportedVersion);
        changing.update(1, UpgradeType::Upgrade, true).await.unwrap();
        assert!(!changing.trio.quorum(1).image().voters_change(), "validated only");
        assert!(changing.members().await.values().all(|member| member.address.is_none()));
        changing.raise().await;
        changing.raise().await;
        for level in [UpgradeType::SafeDowngrade, UpgradeType::UnsafeDowngrade] {
            let refusal = changing.update(0, level, false).await.unwrap_err();
            let words = "Invalid update version 0 for feature kraft.version. Can't downgrade the version of this feature.";
            assert_eq!((refusal.code, &*refusal.message), (ErrorCode::InvalidUpdateVersion, words));
        }
        let expected = NODES.map(|node| (node as u64, changing.named_member(node)));
        assert_eq!(changing.members().await, BTreeMap::from(expected), "seats stay");
        changing.start(4).await;
        changing.add(4).await;
        changing.await_voters(&[1, 2, 3, 4], &[]).await;
        let leader = changing.trio.leader().await;
        let gone = NODES.into_iter().find(|node| *node != leader).unwrap();
        changing.server = leader;
        changing.change(VoterChange::Remove(first_key(gone))).await.unwrap();
        let left: Vec<i32> = [1, 2, 3, 4].into_iter().filter(|node| *node != gone).collect();
        changing.await_voters(&left, &[gone]).await;
        changing.trio.create("two").await;
        changing.trio.await_topics(2).await;
        // One after the other: the file as it was, and the other one.
        for node in [1, 2, 3] {
            for is_old in [true, false] {
                changing.trio.stop(node).await;
                match is_old {
                    true => changing.trio.start(node).await,
                    false => changing.start(node).await,
                }
                changing.trio.create(&format!("{node}-{is_old}")).await;
            }
        }
        changing.trio.await_topics(8).await;
        changing.await_voters(&left, &[gone]).await;
        // All at once, with the old file where there was one.
        for node in [1, 2, 3, 4] {
            changing.trio.stop(node).await;
        }
        for node in NODES {
            changing.trio.start(node).await;
        }
        changing.start(4).await;
        changing.trio.create("three").await;
        changing.trio.await_topics(9).await;
        changing.await_voters(&left, &[gone]).await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn a_raise_that_was_not_finished_leaves_the_file_in_force_and_is_done_again() {
    on_a_shard(|threads| async move {
        let mut changing = fixed(threads).await;
        for node in NODES {
            changing.register(node).await;
        }
        let leader = changing.trio.leader().await;
        let Part::Votes(Voting { voters: Some(voters), .. }) = &changing.trio.quorum(leader).part else {
            panic!("it votes");
        };
        // The leader is lost after the first of the two entries.
        voters.raise(false).await.unwrap();
        assert_eq!(changing.members().await[&1], changing.named_member(1));
        for node in NODES {
            changing.trio.stop(node).await;
        }
        // Their operator moves them.
        let ports = changing.trio.ports.clone();
        for (node, other) in [(1, 2), (2, 3), (3, 1)] {
            changing.trio.ports.insert(BrokerId(node), ports[&BrokerId(other)]);
        }
        changing.trio.start_all().await;
        changing.trio.create("two").await;
        changing.trio.await_topics(2).await;
        assert!(!changing.trio.quorum(1).image().voters_change());
        changing.raise().await;
        let expected = NODES.map(|node| (node as u64, changing.named_member(node)));
        assert_eq!(changing.members().await, BTreeMap::from(expected));
        changing.trio.create("three").await;
        changing.trio.await_topics(3).await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn a_voter_that_was_away_while_the_others_were_raised_and_replaced_comes_back_with_its_old_file() {
    on_a_shard(|threads| async move {
        let mut changing = fixed(threads).await;
        for node in NODES {
            changing.register(node).await;
        }
        let leader = changing.trio.leader().await;
        let away = NODES.into_iter().find(|node| *node != leader).unwrap();
        changing.trio.stop(away).await;
        changing.server = leader;
        changing.raise().await;
        changing.start(4).await;
        changing.add(4).await;
        for node in NODES {
            changing.change(VoterChange::Remove(first_key(node))).await.unwrap();
        }
        changing.await_voters(&[4], &NODES).await;
        changing.trio.create("two").await;
        changing.trio.await_topics(2).await;
        // What it has says that it votes, and nothing of the one that does.
        changing.trio.start(away).await;
        changing.trio.await_topics(2).await;
        changing.await_voters(&[4], &NODES).await;
        changing.add(away).await;
        changing
            .await_voters(&[away, 4], &NODES.into_iter().filter(|node| *node != away).collect::<Vec<_>>())
            .await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn a_new_disk_with_the_old_file_has_no_claim_to_the_seat_and_joins_with_the_other_one() {
    on_a_shard(|threads| async move {
        let mut changing = Changing::raised(threads).await;
        let leader = changing.trio.leader().await;
        let lost = NODES.into_iter().find(|node| *node != leader).unwrap();
        changing.server = leader;
        changing.lose_disk(lost).await;
        changing.change(VoterChange::Remove(first_key(lost))).await.unwrap();
        let fresh = Uuid::from_u128(77);
        let settings = changing.trio.settings(lost, fresh, &NODES);
        changing.trio.start_with(lost, settings).await;
        runtime::sleep(changing.trio.failover * 3).await;
        assert_eq!(changing.trio.quorum(lost).image().topic_count(), 0, "it is sent nothing");
        assert_eq!(changing.members().await[&(lost as u64)], changing.named_member(lost));
        changing.lose_disk(lost).await;
        changing.start_in(lost, fresh).await;
        changing.trio.create("two").await;
        changing.trio.await_topics(2).await;
        assert!(changing.seat(lost) > u64::from(u32::MAX));
        changing.change(VoterChange::Add(key(lost, fresh), WAIT)).await.unwrap();
        changing.await_voters(&NODES, &[]).await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn two_of_three_are_raised_to_have_the_lost_disk_of_the_third_replaced() {
    on_a_shard(|threads| async move {
        let mut changing = fixed(threads).await;
        for node in NODES {
            changing.register(node).await;
        }
        let leader = changing.trio.leader().await;
        let lost = NODES.into_iter().find(|node| *node != leader).unwrap();
        changing.lose_disk(lost).await;
        changing.server = leader;
        changing.raise().await;
        changing.change(VoterChange::Remove(first_key(lost))).await.unwrap();
        let fresh = Uuid::from_u128(77);
        changing.start_in(lost, fresh).await;
        changing.change(VoterChange::Add(key(lost, fresh), WAIT)).await.unwrap();
        changing.await_voters(&NODES, &[]).await;
        // It counts: without another one of the three the log goes on.
        let other = NODES.into_iter().find(|node| ![leader, lost].contains(node)).unwrap();
        changing.trio.stop(other).await;
        changing.trio.create("two").await;
        changing.trio.await_topics(2).await;
        changing.trio.stop_all().await;
    });
}

#[test]
fn leaders_that_are_lost_while_they_raise_leave_it_done_or_not_done() {
    on_a_shard(|threads| async move {
        let mut changing = fixed(threads).await;
        for node in NODES {
            changing.register(node).await;
        }
        for round in 0..3 {
            let leader = changing.trio.leader().await;
            let quorum = changing.trio.running[&leader].quorum.clone();
            let update =
                FeatureUpdate { name: KRAFT_VERSION.to_owned(), level: 1, upgrade: UpgradeType::Upgrade };
            let command =
                Command::UpdateFeatures(UpdateFeatures { updates: vec![update], validate_only: false });
            let raising = Box::pin(async move { quorum.submit(command).await });
            let time = pin!(runtime::sleep(Duration::from_millis(round * 2)));
            drop(select(raising, time).await);
            changing.trio.stop(leader).await;
            changing.trio.create(&format!("without-{leader}")).await;
            let is_raised = changing.trio.quorum(changing.trio.leader().await).image().voters_change();
            let members = changing.members().await;
            assert!(!is_raised || members.values().all(|member| member.address.is_some()), "{members:?}");
            changing.trio.start(leader).await;
        }
        changing.raise().await;
        changing.trio.await_topics(4).await;
        changing.await_voters(&NODES, &[]).await;
        changing.trio.stop_all().await;
    });
}
