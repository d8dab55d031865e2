//! Reads of what no file is open for, beside a disk that keeps everything else waiting.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{CreateTopicsRequest, FetchRequest, FetchResponse, ResponseHeader};
use kafka_protocol::protocol::{Decodable as _, HeaderVersion as _};

use crate::harness::batch::{Batch, read_all};
use crate::harness::client::Client;
use crate::harness::disk::JOURNAL;
use crate::harness::raw::{Answer, FETCH, Raw, fetch, name};
use crate::harness::{Broker, PATIENCE};

const OLD: &str = "old";
const CREATE_TOPICS: i16 = 7;
/// Making so many notes more in the journal than its pipe takes.
const PARTITIONS: i32 = 200;

/// A disk on which nothing that changes a file comes to its end while it is stuck. The journal of `src/io/journal.rs`, in
/// which each such operation is noted, is a pipe here; when nobody reads it and it is full, they wait. Reads are not noted.
struct StickyDisk {
    journals: PathBuf,
    is_stuck: Arc<AtomicBool>,
}

impl StickyDisk {
    fn new(journals: PathBuf) -> Self {
        std::fs::create_dir_all(&journals).expect("a folder for the journal");
        let path = journals.join("journal");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        // Open for both: reading never ends, and opening does not wait for the broker.
        let mut pipe = File::options().read(true).write(true).open(&path).expect("the pipe is there");
        let is_stuck = Arc::new(AtomicBool::new(false));
        let stuck = is_stuck.clone();
        std::thread::spawn(move || {
            let mut notes = [0; 4096];
            loop {
                while stuck.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let _ = pipe.read(&mut notes);
            }
        });
        Self { journals, is_stuck }
    }

    fn path(&self) -> &Path {
        &self.journals
    }

    fn stick(&self, is_stuck: bool) {
        self.is_stuck.store(is_stuck, Ordering::Relaxed);
    }
}

#[test]
fn a_cold_read_does_not_wait_for_a_disk_that_keeps_the_file_threads() {
    if Broker::is_kafka() {
        return;
    }
    let mut broker = Broker::stopped(1, &[("kuring.file.threads", "1")]);
    broker.start_again(1);
    Client::of(&broker).create_topic(OLD, 1, &[("segment.bytes", "1048576")]);
    let mut raw = Raw::connect(&broker);
    let value = "x".repeat(700_000);
    for _ in 0..3 {
        assert_eq!(raw.produce(OLD, 0, -1, Batch::now(&[&value]).encode()).error_code, 0);
    }
    // After a start nobody has the first segment open.
    broker.terminate();
    let disk = StickyDisk::new(broker.home().join("journals"));
    broker.set_environment(JOURNAL, &disk.path().to_string_lossy());
    broker.start_again(1);
    Client::of(&broker).await_partitions(OLD, 1);

    disk.stick(true);
    let topic = CreatableTopic::default()
        .with_name(name("many"))
        .with_num_partitions(PARTITIONS)
        .with_replication_factor(1);
    let create = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(60_000);
    let mut creator = Raw::connect(&broker);
    creator.send(CREATE_TOPICS, &create);
    assert_eq!(creator.answer(Duration::from_secs(2)), Answer::Silence, "the file thread waits for the disk");
    let mut reader = Raw::connect(&broker);
    reader.send::<FetchRequest>(FETCH, &fetch(OLD, &[(0, 0)]));
    let answer = reader.answer(PATIENCE / 3);
    disk.stick(false);

    let Answer::Frame(mut frame) = answer else { panic!("the fetch got {answer:?}") };
    ResponseHeader::decode(&mut frame, FetchResponse::header_version(FETCH)).expect("a header");
    let response = FetchResponse::decode(&mut frame, FETCH).expect("a response");
    let partition = &response.responses[0].partitions[0];
    let stored = read_all(partition.records.as_deref().unwrap_or_default());
    assert_eq!((partition.error_code, stored[0].base_offset), (0, 0));
    assert!(matches!(creator.answer(PATIENCE), Answer::Frame(_)), "it goes on when the disk does");
}
