//! The small text files of a log directory and of a partition.

use std::io::IoSlice;
use std::path::Path;

use kuring::base::{BrokerId, Offset, PartitionIndex, TopicId, TopicPartition};
use kuring::io::mem::MemFiles;
use kuring::io::{FileHandle, Files, OpenMode};
use kuring::log::{Checkpoint, LogDir, MetaProperties};

use super::input::Input;
use super::log;

const DATA: &str = "/data";

/// One of the files is the input; the directory opens or says why not.
pub fn checkpoints(data: &[u8]) {
    let mut input = Input::new(data);
    let files = MemFiles::new(1);
    let topic_partition = TopicPartition::new("t", PartitionIndex(0));
    let (dir, _) = open(&files).expect("an empty directory opens");
    let partition = dir
        .create_partition(&topic_partition, TopicId(uuid::Uuid::from_u128(7)))
        .expect("nothing is in the way");
    let entries = [(topic_partition.clone(), Offset(1))];
    dir.write_checkpoint(Checkpoint::LogStart, &entries).expect("memory takes everything");
    let names = [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "meta.properties",
        "t-0/partition.metadata",
        "t-0/leader-epoch-checkpoint",
        ".kafka_cleanshutdown",
    ];
    let name = names[input.below(names.len())];
    write(&files, &Path::new(DATA).join(name), input.rest());
    let _ = MetaProperties::read(&files, Path::new(DATA));
    let Ok((_, found)) = open(&files) else { return };
    for partition in &found.partitions {
        let offsets = [partition.recovery_point, partition.high_watermark, partition.log_start];
        assert!(offsets.iter().all(|offset| *offset >= Offset::ZERO));
    }
    // Epochs are read when the log is.
    log::open_and_check(&files, &partition, found.clean);
}

fn open(files: &MemFiles) -> Result<(LogDir<MemFiles>, kuring::log::Found), kuring::log::DirError> {
    LogDir::open(files.clone(), Path::new(DATA), "fuzz", BrokerId(1))
}

/// Makes `contents` all that the file holds.
pub fn write(files: &MemFiles, path: &Path, contents: &[u8]) {
    let file = files.open(path, OpenMode::Create).expect("its directory is there");
    file.truncate(0).expect("memory takes everything");
    file.write_all_at(&mut [IoSlice::new(contents)], 0).expect("memory takes everything");
}
