//! Observers of three quorums on one shard.

use super::*;

const OBSERVER: i32 = 7;

/// How the observer knows where the controllers are.
enum Knows {
    Ids,
    /// The address of one of them.
    One(i32),
}

fn observe(trio: &Trio, knows: &Knows) -> Rc<Quorum> {
    let address = |node: i32| ("127.0.0.1".to_owned(), trio.ports[&BrokerId(node)]);
    let roster = match knows {
        Knows::Ids => Roster::new(NODES.iter().map(|id| (BrokerId(*id), address(*id))).collect(), Vec::new()),
        Knows::One(node) => Roster::new(BTreeMap::new(), vec![address(*node)]),
    };
    let identity = Identity {
        cluster_id: "cluster".to_owned(),
        node: BrokerId(OBSERVER),
        directory: directory(OBSERVER),
        incarnation: Uuid::new_v4(),
    };
    let security = Security::Secret(Secret::new(vec![9; 32]).unwrap());
    let links = Links::new(identity, security, Rc::new(roster), trio.threads.clone());
    Quorum::observe(links, Timing::of(trio.failover), Rc::new(|reason| panic!("{reason}")))
}

async fn await_topics(observer: &Quorum, count: usize) {
    let has_all = || (observer.image().topic_count() == count).then_some(());
    eventually(&format!("the observer has {count} topics"), has_all).await;
}

#[test]
fn an_observer_follows_whoever_leads_and_decides_nothing() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::started(threads).await;
        trio.create("before").await;
        let observer = observe(&trio, &Knows::Ids);
        await_topics(&observer, 1).await;
        let refusal = observer.submit(create("no")).await.unwrap_err();
        assert_eq!(refusal.code, ErrorCode::NotController);
        for topics in [2, 3] {
            let leader = trio.leader().await;
            trio.stop(leader).await;
            trio.leader().await;
            trio.create(&format!("without-{leader}-{topics}")).await;
            await_topics(&observer, topics).await;
            eventually("it knows who leads", || {
                let known = observer.leadership();
                let leads = |node: &i32| {
                    let leadership = trio.quorum(*node).leadership();
                    leadership.is_own
                        && known.term == leadership.term
                        && known.leader == Some(BrokerId(*node))
                };
                (!known.is_own && trio.running.keys().any(leads)).then_some(())
            })
            .await;
            trio.start(leader).await;
        }
        assert_eq!(observer.image().cluster_id(), "cluster");
        observer.shutdown().await;
        assert!(observer.is_closed());
        eventually("its images end", || observer.images.has_changed().is_err().then_some(())).await;
        trio.create("after").await;
        trio.stop_all().await;
    });
}

#[test]
fn the_leader_tells_of_an_observer_and_how_far_it_is() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::new(threads);
        trio.failover = SLOW_FAILOVER;
        trio.start_all().await;
        trio.create("t").await;
        let observer = observe(&trio, &Knows::One(2));
        await_topics(&observer, 1).await;
        let leader = trio.leader().await;
        eventually("it is told of, with all of the log", || {
            let told = trio.quorum(leader).describe()?;
            let [one] = &told.observers[..] else { return None };
            assert_eq!((one.node, one.directory), (BrokerId(OBSERVER), directory(OBSERVER)));
            let own = told.voters.iter().find(|voter| voter.node.0 == leader)?;
            (one.log_end == own.log_end && one.last_caught_up >= one.last_fetch).then_some(())
        })
        .await;
        observer.shutdown().await;
        trio.stop_all().await;
    });
}

#[test]
fn an_observer_that_is_far_behind_gets_a_snapshot_in_parts() {
    on_a_shard(|threads| async move {
        let mut trio = Trio::new(threads);
        (trio.snapshot_entries, trio.entries_kept) = (20, 0);
        trio.start_all().await;
        for number in 0..60 {
            trio.create(&format!("a-topic-with-a-rather-long-name-{number}")).await;
        }
        let observers = [observe(&trio, &Knows::One(1)), observe(&trio, &Knows::Ids)];
        for observer in &observers {
            await_topics(observer, 60).await;
        }
        trio.create("last").await;
        for observer in &observers {
            await_topics(observer, 61).await;
            let leader = trio.leader().await;
            assert!(observer.image().topics().eq(trio.quorum(leader).image().topics()));
            observer.shutdown().await;
        }
        trio.stop_all().await;
    });
}
