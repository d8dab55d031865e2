//! Takes over the metadata of a stopped Apache Kafka node: at the first start in its directories, when there is no
//! metadata of kuring's yet, the topics are read from `__cluster_metadata-0`. Kafka's files stay as they are.
//!
//! Blocking: a file thread only.

use std::path::{Path, PathBuf};

use crate::base::{BrokerId, Offset};
use crate::io::Files;
use crate::io::os::OsFiles;
use crate::metadata::{KafkaMetadata, KafkaMetadataError, Record};

/// KRaft's log beside the partitions.
const KAFKA_METADATA_DIR: &str = "__cluster_metadata-0";
/// Segments and snapshots are read whole.
const FILE_BYTES_MAX: usize = 1 << 30;

/// Whether a Kafka node's metadata lies there, taken over or not; also when that cannot be told.
pub(super) fn is_beside(metadata_log_dir: &Path) -> bool {
    OsFiles.exists(&metadata_log_dir.join(KAFKA_METADATA_DIR)).unwrap_or(true)
}

/// The records to begin with; none where there is no log of Kafka's.
pub(super) fn read(metadata_log_dir: &Path, node: BrokerId) -> Result<Vec<Record>, String> {
    let dir = metadata_log_dir.join(KAFKA_METADATA_DIR);
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    if !OsFiles.exists(&dir).map_err(failed)? {
        return Ok(Vec::new());
    }
    let refused = |error: KafkaMetadataError| error.to_string();
    let whole = |path: &Path| OsFiles.read_small(path, FILE_BYTES_MAX).map_err(failed);
    let mut metadata = KafkaMetadata::default();
    let mut from = Offset::ZERO;
    if let Some((offset, snapshot)) = by_offset(&dir, ".checkpoint").map_err(failed)?.pop() {
        metadata.apply(&whole(&snapshot)?, Offset::ZERO).map_err(refused)?;
        from = offset;
    }
    for (_, segment) in by_offset(&dir, ".log").map_err(failed)? {
        metadata.apply(&whole(&segment)?, from).map_err(refused)?;
    }
    tracing::warn!(
        from = %dir.display(),
        topics = metadata.topic_count(),
        "the topics of a Kafka node are taken over: from here on its own metadata log is not written any more"
    );
    for (what, count) in metadata.left_out() {
        tracing::warn!(count, "not taken over: {what}");
    }
    metadata.into_records(node).map_err(refused)
}

/// Files whose name begins with an offset of 20 digits and ends so, oldest first.
fn by_offset(dir: &Path, suffix: &str) -> std::io::Result<Vec<(Offset, PathBuf)>> {
    let mut found: Vec<(Offset, PathBuf)> = OsFiles
        .list(dir)?
        .into_iter()
        .filter(|entry| entry.name.ends_with(suffix))
        .filter_map(|entry| Some((Offset(entry.name.get(..20)?.parse().ok()?), dir.join(&entry.name))))
        .collect();
    found.sort();
    Ok(found)
}
