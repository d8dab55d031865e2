//! Directories of replicas on their way between log directories (KIP-113): `topic-N.<unique>-future`. *File thread.*
//!
//! A future replica becomes the current one by two renames, in two log directories. A note in it says that it is
//! whole: after a crash between them the start goes by the note ([`FoundPartition::moved`]), without it the copying
//! goes on. The note has the log start and the end too, which the checkpoint files may not know yet.

use std::io;
use std::path::{Path, PathBuf};

use crate::base::{Offset, TopicId, TopicPartition};
use crate::io::Files;

use super::dir::{DirError, LogDir, Moved};
use super::error::Context;
use super::{LogError, names};

const NOTE_FILE: &str = "kuring-moved";

/// Two lines.
const NOTE_BYTES_MAX: usize = 128;

impl<F: Files> LogDir<F> {
    /// Makes the directory of a future replica, durably.
    pub fn create_future(
        &self,
        topic_partition: &TopicPartition,
        topic_id: TopicId,
    ) -> Result<PathBuf, DirError> {
        let dir = self.path().join(names::marked_dir(topic_partition, "-future"));
        self.create_in(&dir, topic_id)?;
        Ok(dir)
    }

    /// Notes that the future replica in `dir` has all that the current one has, on the disk.
    pub fn note_moved(&self, dir: &Path, moved: Moved) -> Result<(), DirError> {
        let path = dir.join(NOTE_FILE);
        let Moved { log_start, log_end } = moved;
        let text = format!("log.start.offset={log_start}\nlog.end.offset={log_end}\n");
        Ok(self.files().write_atomically(&path, text.as_bytes()).context("write", &path)?)
    }

    /// Takes the note back.
    pub fn forget_moved(&self, dir: &Path) -> Result<(), DirError> {
        let path = dir.join(NOTE_FILE);
        match self.files().remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed.context("remove", &path)?,
        }
        Ok(self.files().sync_dir(dir).context("sync", dir)?)
    }

    /// The future replica in `dir` is the current one from here on; its directory is now called so.
    pub fn promote(&self, dir: &Path, topic_partition: &TopicPartition) -> Result<PathBuf, DirError> {
        self.rename_to(dir, self.partition_dir(topic_partition))
    }

    /// Undoes [`LogDir::rename_deleted`].
    pub fn restore(&self, dir: &Path, topic_partition: &TopicPartition) -> Result<PathBuf, DirError> {
        self.rename_to(dir, self.partition_dir(topic_partition))
    }

    /// A future replica that nobody wants: first it loses its name, so that no start goes on with half of it.
    pub fn discard_future(&self, dir: &Path, topic_partition: &TopicPartition) -> Result<PathBuf, DirError> {
        self.rename_to(dir, self.path().join(names::marked_dir(topic_partition, "-delete")))
    }

    /// Puts a copy aside that belongs to no current replica.
    pub fn mark_future_stray(
        &self,
        dir: &Path,
        topic_partition: &TopicPartition,
    ) -> Result<PathBuf, DirError> {
        self.rename_to(dir, self.path().join(names::marked_dir(topic_partition, "-stray")))
    }

    pub(super) fn read_note(&self, dir: &Path) -> Result<Option<Moved>, DirError> {
        let path = dir.join(NOTE_FILE);
        let bytes = match self.files().read_small(&path, NOTE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LogError { what: "read", path, source }.into()),
        };
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines();
        let mut offset = |name: &str| lines.next()?.strip_prefix(name)?.parse().ok().map(Offset);
        let moved = offset("log.start.offset=")
            .and_then(|log_start| Some(Moved { log_start, log_end: offset("log.end.offset=")? }));
        // It was written whole or not at all.
        moved.map(Some).ok_or_else(|| DirError::Properties {
            path,
            problem: format!("`{}` is no log start and end", text.trim()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{BrokerId, PartitionIndex};
    use crate::io::mem::{Crash, MemFiles};

    #[test]
    fn a_future_replica_is_found_and_takes_its_place() {
        let files = MemFiles::new(1);
        let open = || LogDir::open(files.clone(), Path::new("/data"), "c", BrokerId(1)).unwrap();
        let (dir, _) = open();
        let name = TopicPartition::new("t", PartitionIndex(3));
        let topic_id = TopicId(uuid::Uuid::from_u128(9));
        let future = dir.create_future(&name, topic_id).unwrap();
        files.crash(Crash::Machine);
        let found = open().1;
        assert!(found.partitions.is_empty());
        assert_eq!(found.futures.len(), 1);
        assert_eq!((&found.futures[0].dir, found.futures[0].topic_id), (&future, Some(topic_id)));
        assert_eq!(found.futures[0].moved, None);

        let moved = Moved { log_start: Offset(7), log_end: Offset(9) };
        dir.note_moved(&future, moved).unwrap();
        files.crash(Crash::Machine);
        assert_eq!(open().1.futures[0].moved, Some(moved));
        let live = dir.promote(&future, &name).unwrap();
        files.crash(Crash::Machine);
        let found = open().1;
        assert!(found.futures.is_empty());
        assert_eq!((&found.partitions[0].dir, found.partitions[0].moved), (&live, Some(moved)));
        assert_eq!(
            (found.partitions[0].first_offset(), found.partitions[0].durable_to()),
            (Offset(7), Offset(9))
        );
        dir.forget_moved(&live).unwrap();
        dir.forget_moved(&live).unwrap();
        files.crash(Crash::Machine);
        assert_eq!(open().1.partitions[0].moved, None);

        let future = dir.create_future(&name, topic_id).unwrap();
        let gone = dir.discard_future(&future, &name).unwrap();
        files.crash(Crash::Machine);
        let found = open().1;
        assert!(found.futures.is_empty());
        assert_eq!(found.deleted, [gone]);
    }
}
