//! The quorum of one on real files: start, restart, snapshots, refusals.

use std::collections::BTreeSet;
use std::path::Path;

use futures::future::join_all;

use super::*;
use crate::base::BrokerEpoch;
use crate::io::os::OsFiles;
use crate::io::runtime::run_shard;
use crate::metadata::CommandKind;
use crate::metadata::testing::FewRules;
use crate::metadata::{AlterConfigs, ConfigChange, ConfigEdit, ConfigOp, ConfigResource};
use crate::metadata::{CreateTopics, DeleteTopics, NewTopic, RegisterBroker, TopicRef};
use crate::metadata::{FeatureUpdate, UpdateFeatures, UpgradeType};

const NODE: BrokerId = BrokerId(4);

async fn open(dir: &Path, threads: &FileThreads) -> Rc<Quorum> {
    let settings = Settings::new(NODE, "cluster", dir.join("kuring-metadata"));
    Quorum::open(OsFiles, threads.clone(), Rc::new(FewRules), settings).await.unwrap()
}

async fn register(quorum: &Quorum) -> BrokerEpoch {
    let request = RegisterBroker {
        id: NODE,
        cluster_id: "cluster".into(),
        incarnation: uuid::Uuid::new_v4(),
        endpoints: Vec::new(),
        rack: None,
        log_dirs: Vec::new(),
        features: Vec::new(),
        fenced: false,
        previous_epoch: None,
    };
    quorum.submit(Command::RegisterBroker(request)).await.unwrap().broker_epoch()
}

async fn producer_id(quorum: &Quorum) -> Result<ProducerId, Refusal> {
    quorum.allocate_producer_id(async |command| quorum.submit(command).await).await
}

fn create(name: &str) -> Command {
    let topic = NewTopic {
        name: name.into(),
        partitions: 2,
        replication_factor: 1,
        assignment: Vec::new(),
        configs: Vec::new(),
    };
    Command::CreateTopics(CreateTopics { topics: vec![topic], validate_only: false })
}

fn on_a_shard<Fut>(test: impl FnOnce(tempfile::TempDir, FileThreads) -> Fut + Send + 'static)
where
    Fut: Future<Output = ()> + 'static,
{
    let dir = tempfile::tempdir().unwrap();
    let threads = FileThreads::start("test-files", 2, 64).unwrap();
    let pool = threads.clone();
    run_shard("quorum-test", move || test(dir, pool));
    threads.stop();
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart_under_higher_leader_epochs() {
    on_a_shard(|dir, threads| async move {
        let quorum = open(dir.path(), &threads).await;
        assert_eq!(quorum.image().cluster_id(), "cluster");
        let first_epoch = register(&quorum).await;
        let mut images = quorum.subscribe();
        quorum.submit(create("a")).await.unwrap();
        assert_eq!(images.changed().await.unwrap().topic_count(), 1);
        let id = quorum.image().topic("a").unwrap().id;
        quorum.shutdown().await;
        assert!(images.changed().await.is_none());
        assert_eq!(quorum.submit(create("b")).await.unwrap_err().code, ErrorCode::NotController);

        for restart in 1..4 {
            let quorum = open(dir.path(), &threads).await;
            let topic = quorum.image().topic("a").unwrap().clone();
            assert_eq!((topic.id, topic.partitions.len()), (id, 2));
            assert_eq!(topic.partitions[0].leader_epoch.0, restart - 1);
            assert!(register(&quorum).await > first_epoch);
            let topic = quorum.image().topic("a").unwrap().clone();
            assert_eq!(topic.partitions[0].leader_epoch.0, restart);
            quorum.shutdown().await;
        }
    });
}

#[test]
fn snapshots_take_the_place_of_the_log() {
    on_a_shard(|dir, threads| async move {
        let settings = || Settings {
            snapshot_entries: 20,
            ..Settings::new(NODE, "cluster", dir.path().join("kuring-metadata"))
        };
        let open =
            || async { Quorum::open(OsFiles, threads.clone(), Rc::new(FewRules), settings()).await.unwrap() };
        let quorum = open().await;
        register(&quorum).await;
        for number in 0..90 {
            quorum.submit(create(&format!("t{number}"))).await.unwrap();
            if number % 3 == 0 {
                let topics = vec![TopicRef::Name(format!("t{number}"))];
                quorum.submit(Command::DeleteTopics(DeleteTopics { topics })).await.unwrap();
            }
        }
        let before = quorum.image();
        quorum.shutdown().await;
        let names: Vec<String> =
            OsFiles.list(&settings().dir).unwrap().into_iter().map(|entry| entry.name).collect();
        let snapshots = names.iter().filter(|name| name.ends_with(".snapshot")).count();
        assert_eq!(snapshots, 2, "{names:?}");
        let quorum = open().await;
        let after = quorum.image();
        assert_eq!(after.topic_count(), 60);
        assert!(before.topics().eq(after.topics()));
        register(&quorum).await;
        quorum.submit(create("more")).await.unwrap();
        quorum.shutdown().await;
    });
}

#[test]
fn producer_ids_never_repeat_over_restarts() {
    on_a_shard(|dir, threads| async move {
        let mut last = -1;
        for _ in 0..3 {
            let quorum = open(dir.path(), &threads).await;
            let early = producer_id(&quorum).await;
            assert!(early.is_err() || last >= 0);
            register(&quorum).await;
            for _ in 0..2500 {
                let id = producer_id(&quorum).await.unwrap().0;
                assert!(id > last);
                last = id;
            }
            quorum.shutdown().await;
        }
        assert!(last >= 7499);
    });
}

#[test]
fn producers_that_wait_for_an_id_are_bounded() {
    on_a_shard(|dir, threads| async move {
        let quorum = open(dir.path(), &threads).await;
        register(&quorum).await;
        // All of them ask before the first block can come.
        let answers = join_all((0..PRODUCER_ID_WAITS_MAX + 2).map(|_| producer_id(&quorum))).await;
        let given: BTreeSet<_> = answers.iter().flatten().copied().collect();
        assert_eq!(given.len(), PRODUCER_ID_WAITS_MAX);
        let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        assert!(refused.iter().all(|refusal| refusal.code == ErrorCode::CoordinatorLoadInProgress));
        assert_eq!(refused.len(), 2);
        assert!(producer_id(&quorum).await.is_ok(), "there is room again");
        quorum.shutdown().await;
    });
}

#[test]
fn the_log_of_another_cluster_is_refused() {
    on_a_shard(|dir, threads| async move {
        open(dir.path(), &threads).await.shutdown().await;
        let settings = Settings::new(NODE, "other", dir.path().join("kuring-metadata"));
        let error = Quorum::open(OsFiles, threads, Rc::new(FewRules), settings).await.err().unwrap();
        assert!(matches!(error, OpenError::OtherCluster { .. }), "{error}");
    });
}

#[test]
fn commands_are_timed_and_refusals_change_nothing() {
    on_a_shard(|dir, threads| async move {
        let quorum = open(dir.path(), &threads).await;
        register(&quorum).await;
        let version = quorum.image().version();
        let ops = vec![("retention.ms".to_owned(), ConfigOp::Set("1".into()))];
        let resource = ConfigResource::Topic("nothing".into());
        let changes = vec![ConfigChange { resource, edit: ConfigEdit::Incremental(ops) }];
        let command = Command::AlterConfigs(AlterConfigs { changes, validate_only: false });
        let results = quorum.submit(command).await.unwrap().configs_altered();
        assert_eq!(results[0].1.as_ref().unwrap_err().code, ErrorCode::UnknownTopicOrPartition);
        assert_eq!(quorum.image().version(), version);
        let kinds: Vec<(CommandKind, u64)> =
            quorum.command_times().iter().map(|times| (times.kind, times.run_us.len())).collect();
        assert_eq!(kinds, [(CommandKind::RegisterBroker, 1), (CommandKind::AlterConfigs, 1)]);
        quorum.shutdown().await;
    });
}

#[test]
fn a_node_alone_has_no_voters_that_could_change() {
    on_a_shard(|dir, threads| async move {
        let quorum = open(dir.path(), &threads).await;
        register(&quorum).await;
        let name = crate::metadata::KRAFT_VERSION.to_owned();
        let update = FeatureUpdate { name, level: 1, upgrade: UpgradeType::Upgrade };
        for validate_only in [true, false] {
            let updates = vec![update.clone()];
            let command = Command::UpdateFeatures(UpdateFeatures { updates, validate_only });
            let refusal = quorum.submit(command).await.unwrap_err();
            assert_eq!(refusal.code, ErrorCode::InvalidUpdateVersion);
            assert!(refusal.message.contains("This node is alone"), "{}", refusal.message);
        }
        assert!(!quorum.image().voters_change());
        quorum.shutdown().await;
    });
}

#[test]
fn many_commands_at_once_run_one_after_the_other() {
    on_a_shard(|dir, threads| async move {
        let quorum = open(dir.path(), &threads).await;
        register(&quorum).await;
        // The same name from many sides: one wins.
        let attempts = (0..40).map(|number| quorum.submit(create(&format!("t{}", number % 10))));
        let results = futures::future::join_all(attempts).await;
        let created = results
            .into_iter()
            .filter(|result| result.clone().unwrap().topics_created()[0].1.is_ok())
            .count();
        assert_eq!((created, quorum.image().topic_count()), (10, 10));
        quorum.shutdown().await;
    });
}

#[test]
fn a_lone_node_leads_on_without_heartbeats_when_its_lease_has_passed() {
    on_a_shard(|dir, threads| async move {
        let mut settings = Settings::new(NODE, "cluster", dir.path().join("kuring-metadata"));
        settings.timing.heartbeat = Duration::from_millis(5);
        settings.timing.election_min = Duration::from_millis(15);
        settings.timing.election_max = Duration::from_millis(30);
        let quorum = Quorum::open(OsFiles, threads, Rc::new(FewRules), settings).await.unwrap();
        register(&quorum).await;
        for round in 0..3 {
            runtime::sleep(Duration::from_millis(200)).await;
            quorum.submit(create(&format!("t{round}"))).await.unwrap();
        }
        assert_eq!(quorum.image().topic_count(), 3);
        quorum.shutdown().await;
    });
}
