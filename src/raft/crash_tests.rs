//! The quorum on a disk that fails and forgets: what was acknowledged is there after every crash, and no
//! producer id is given out twice. A failure prints its seed; `CRASH_SEED=n` runs that one alone.

use std::cell::Cell;
use std::collections::BTreeSet;

use super::*;
use crate::io::mem::{Crash, Fault, Lies, MemFiles, Operation};
use crate::io::runtime::run_shard;
use crate::metadata::testing::FewRules;
use crate::metadata::{CreateTopics, DeleteTopics, NewTopic, RegisterBroker, TopicRef};

const NODE: BrokerId = BrokerId(1);
const ROUNDS: u64 = 6;

/// What the quorum promised.
#[derive(Default)]
struct Promised {
    topics: BTreeSet<String>,
    /// Asked for and not answered: either way is right.
    uncertain: BTreeSet<String>,
    last_producer_id: i64,
}

/// Runs `ROUNDS` lives of one disk, each ended by a failing disk and a crash. Returns what was broken.
async fn lives(seed: u64, lies: Lies, threads: &FileThreads) -> Result<(), String> {
    let mut random = Random::seeded(seed);
    let files = MemFiles::new(random.next_u64());
    let made = files.create_dir_all(Path::new("/data")).and_then(|()| files.sync_dir(Path::new("/")));
    made.map_err(|error| error.to_string())?;
    let mut promised = Promised { last_producer_id: -1, ..Promised::default() };
    for round in 0..ROUNDS {
        let after = random.below(120);
        files.set_lies(lies);
        files.set_fault(Some(Fault { operation: None, after, error: rustix::io::Errno::IO, sticky: true }));
        live(&files, threads, &mut promised, &mut random, true)
            .await
            .map_err(|what| format!("seed {seed} round {round}: {what}"))?;
        files.set_fault(None);
        files.crash(if random.below(3) == 0 { Crash::Process } else { Crash::Machine });
    }
    files.set_lies(Lies::default());
    live(&files, threads, &mut promised, &mut random, false)
        .await
        .map_err(|what| format!("seed {seed} at the end: {what}"))
}

/// One life: opens, checks the promises, makes new ones until the disk fails or enough was done.
async fn live(
    files: &MemFiles,
    threads: &FileThreads,
    promised: &mut Promised,
    random: &mut Random,
    may_fail: bool,
) -> Result<(), String> {
    let failed = Rc::new(Cell::new(false));
    let flag = failed.clone();
    let settings = Settings {
        ids: IdSource::Seeded(Random::seeded(random.next_u64())),
        random: Random::seeded(random.next_u64()),
        snapshot_entries: 7,
        leader_wait: Duration::from_millis(if may_fail { 500 } else { 10_000 }),
        on_failure: Rc::new(move |_| flag.set(true)),
        ..Settings::new(NODE, "cluster", PathBuf::from("/data/kuring-metadata"))
    };
    let quorum = match Quorum::open(files.clone(), threads.clone(), Rc::new(FewRules), settings).await {
        Ok(quorum) => quorum,
        Err(_) if may_fail => return Ok(()),
        Err(error) => return Err(format!("it does not open: {error}")),
    };
    let result = check(&quorum.image(), promised);
    if result.is_ok() {
        work(&quorum, promised, random).await;
    }
    quorum.shutdown().await;
    if failed.get() && !may_fail {
        return Err("a sound disk failed".to_owned());
    }
    result
}

fn check(image: &Image, promised: &mut Promised) -> Result<(), String> {
    let found: BTreeSet<String> = image.topics().map(|topic| topic.name.to_string()).collect();
    for topic in image.topics() {
        if topic.partitions.len() != 2 {
            return Err(format!("topic {} is half there", topic.name));
        }
    }
    let uncertain = std::mem::take(&mut promised.uncertain);
    let differs = |name: &&String| !uncertain.contains(*name);
    if let Some(name) = promised.topics.symmetric_difference(&found).find(differs) {
        return Err(format!("topic {name}: promised {}", promised.topics.contains(name)));
    }
    promised.topics = found;
    if image.next_producer_id().0 <= promised.last_producer_id {
        return Err(format!("producer id {} would come again", promised.last_producer_id));
    }
    Ok(())
}

async fn producer_id(quorum: &Quorum) -> Result<ProducerId, Refusal> {
    quorum.allocate_producer_id(async |command| quorum.submit(command).await).await
}

async fn work(quorum: &Quorum, promised: &mut Promised, random: &mut Random) {
    let request = RegisterBroker {
        id: NODE,
        cluster_id: "cluster".into(),
        incarnation: uuid::Uuid::nil(),
        endpoints: Vec::new(),
        rack: None,
        log_dirs: Vec::new(),
        features: Vec::new(),
        fenced: false,
        previous_epoch: None,
    };
    if quorum.submit(Command::RegisterBroker(request)).await.is_err() {
        return;
    }
    for _ in 0..25 {
        let name = format!("t{}", random.below(12));
        match random.below(4) {
            0 => match producer_id(quorum).await {
                Ok(id) => {
                    assert!(id.0 > promised.last_producer_id, "producer id {id} came again");
                    promised.last_producer_id = id.0;
                }
                Err(_) => return,
            },
            1 => {
                let topics = vec![TopicRef::Name(name.clone())];
                match quorum.submit(Command::DeleteTopics(DeleteTopics { topics })).await {
                    Ok(_) => {
                        promised.topics.remove(&name);
                    }
                    Err(_) => {
                        promised.uncertain.insert(name);
                        return;
                    }
                }
            }
            _ => {
                let topic = NewTopic {
                    name: name.clone(),
                    partitions: 2,
                    replication_factor: 1,
                    assignment: Vec::new(),
                    configs: Vec::new(),
                };
                let request = CreateTopics { topics: vec![topic], validate_only: false };
                match quorum.submit(Command::CreateTopics(request)).await {
                    Ok(_) => {
                        promised.topics.insert(name);
                    }
                    Err(_) => {
                        promised.uncertain.insert(name);
                        return;
                    }
                }
            }
        }
    }
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("CRASH_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

fn run(seeds: std::ops::Range<u64>, lies: Lies) -> Vec<String> {
    let threads = match FileThreads::start("crash-files", 1, 64) {
        Ok(threads) => threads,
        Err(error) => panic!("{error}"),
    };
    let pool = threads.clone();
    let broken = run_shard("crash-test", move || async move {
        let mut broken = Vec::new();
        for seed in seeds {
            broken.extend(lives(seed, lies, &pool).await.err());
        }
        broken
    });
    threads.stop();
    broken
}

#[test]
fn no_promise_is_broken_by_a_failing_disk_and_a_crash() {
    assert_eq!(run(seeds(60), Lies::default()), [""; 0]);
}

/// Writes are refused, deletes and the broker live on.
#[test]
fn on_a_full_disk_topics_can_be_deleted_and_none_created() {
    let threads = match FileThreads::start("full-disk", 1, 64) {
        Ok(threads) => threads,
        Err(error) => panic!("{error}"),
    };
    let pool = threads.clone();
    run_shard("full-disk", move || async move {
        let files = MemFiles::new(1);
        let settings = Settings {
            snapshot_entries: 50,
            on_failure: Rc::new(|reason| panic!("{reason}")),
            ..Settings::new(NODE, "cluster", PathBuf::from("/data/kuring-metadata"))
        };
        let quorum = Quorum::open(files.clone(), pool, Rc::new(FewRules), settings).await.unwrap();
        let mut promised = Promised { last_producer_id: -1, ..Promised::default() };
        work(&quorum, &mut promised, &mut Random::seeded(1)).await;
        let full = |operation| {
            Some(Fault {
                operation: Some(operation),
                after: 0,
                error: rustix::io::Errno::NOSPC,
                sticky: true,
            })
        };
        files.set_fault(full(Operation::Preallocate));
        let create = |number: usize| {
            let topic = NewTopic {
                name: format!("more{number}"),
                partitions: 500,
                replication_factor: 1,
                assignment: Vec::new(),
                configs: Vec::new(),
            };
            Command::CreateTopics(CreateTopics { topics: vec![topic], validate_only: false })
        };
        // What was reserved is used up first, but for the last.
        let mut number = 0;
        let refusal = loop {
            match quorum.submit(create(number)).await {
                Ok(_) => number += 1,
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(refusal.code, ErrorCode::KafkaStorageError);
        assert!(number > 10, "{number}");
        for topic in 0..number {
            let topics = vec![TopicRef::Name(format!("more{topic}"))];
            quorum.submit(Command::DeleteTopics(DeleteTopics { topics })).await.unwrap();
        }
        files.set_fault(None);
        quorum.submit(create(0)).await.unwrap();
        quorum.shutdown().await;
    });
    threads.stop();
}

/// The check is checked: a disk that only says it synced must be caught.
#[test]
fn a_lying_disk_is_found_out() {
    let lies = Lies { sync_data: true, ..Lies::default() };
    assert!(!run(seeds(30), lies).is_empty());
}
