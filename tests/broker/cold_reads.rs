//! Reads of what no file is open for, beside a disk that keeps everything else waiting.

use kafka_protocol::messages::{FetchRequest, FetchResponse, ResponseHeader};
use kafka_protocol::protocol::{Decodable as _, HeaderVersion as _};

use crate::harness::batch::{Batch, read_all};
use crate::harness::client::Client;
use crate::harness::disk::{JOURNAL, StickyDisk};
use crate::harness::raw::{Answer, FETCH, Raw, fetch};
use crate::harness::{Broker, PATIENCE};

const OLD: &str = "old";

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
    broker.set_environment(JOURNAL, &disk.folder().to_string_lossy());
    broker.start_again(1);
    Client::of(&broker).await_partitions(OLD, 1);

    let mut creator = disk.stick_under(&broker);
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
