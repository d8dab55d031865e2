//! The checkpoint files of the log directories. Every shard tells what has changed of its replicas' offsets since it
//! told last; a file thread keeps what all have told, and writes the files in which something has changed. Nothing is
//! written where nothing happens. Lines that the start found stay until their partition tells or is put aside; a log
//! that is made has one before it has a record.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Shard;
use super::directories::Directories;
use super::mesh::ReplyTo;
use super::messages::{CheckpointEntry, CheckpointOffsets, Reply, Request};
use super::moves::Move;
use super::placement::PartitionKey;
use super::replica::Replica;
use crate::base::{Offset, TopicPartition};
use crate::io::Files;
use crate::io::runtime::{Queue, spawn, yield_if_needed};
use crate::log::{Checkpoint, DirError, LogDir};

/// Which of an entry's offsets a checkpoint file holds. Of high watermarks and log starts, 0 is what no line says, too.
type OffsetOf = fn(&CheckpointOffsets) -> Option<Offset>;

const FILES: [(Checkpoint, OffsetOf); 4] = [
    (Checkpoint::RecoveryPoint, |offsets| offsets.recovery_point),
    (Checkpoint::HighWatermark, |offsets| {
        Some(offsets.high_watermark).filter(|offset| *offset > Offset::ZERO)
    }),
    (Checkpoint::LogStart, |offsets| Some(offsets.log_start).filter(|offset| *offset > Offset::ZERO)),
    (Checkpoint::Cleaner, |offsets| offsets.cleaned),
];

/// What the checkpoint files hold, and what is on its way there.
pub(super) struct Checkpoints {
    told: Mutex<ToldChanges>,
    /// Held while files are written: for file threads only.
    files: Mutex<CheckpointFiles>,
    /// By directory: what was told before this turn is in its files.
    saved: Vec<AtomicU64>,
    /// The next [`LineId`].
    lines: AtomicU64,
}

/// One line of a partition in a directory's files, from its first news to its end. The name may get others in the same
/// directory, and news of the end of an earlier one may come late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LineId(u64);

/// What the shards have told since a file thread took it last.
#[derive(Default)]
struct ToldChanges {
    /// How often it was taken.
    turn: u64,
    changes: Vec<Change>,
}

/// News of one partition in one directory.
struct Change {
    directory: usize,
    topic_partition: TopicPartition,
    /// `None`: what the start found.
    line: Option<LineId>,
    /// `None`: it is not there any more.
    offsets: Option<CheckpointOffsets>,
}

struct CheckpointFiles {
    /// They were written for the last time.
    is_final: bool,
    directories: Vec<DirectoryOffsets>,
}

/// The lines of a directory's files.
struct DirectoryOffsets {
    /// `None` for the line: the start found it.
    partitions: BTreeMap<TopicPartition, (Option<LineId>, CheckpointOffsets)>,
    /// In the order of [`FILES`]: the file lacks something, or was not written by this process.
    changed: [bool; FILES.len()],
}

impl Checkpoints {
    /// `found`: what the start found.
    pub fn new(directories: usize, found: impl IntoIterator<Item = CheckpointEntry>) -> Self {
        let lines = (0..directories).map(|_| DirectoryOffsets::new());
        let mut files = CheckpointFiles { is_final: false, directories: lines.collect() };
        files.insert(found);
        Self {
            told: Mutex::default(),
            files: Mutex::new(files),
            saved: (0..directories).map(|_| AtomicU64::new(0)).collect(),
            lines: AtomicU64::new(0),
        }
    }

    /// What the start found has been put aside: no line of it stays.
    pub fn forget_found(&self, directory: usize, topic_partition: &TopicPartition) {
        let topic_partition = topic_partition.clone();
        self.tell(Change { directory, topic_partition, line: None, offsets: None });
    }

    /// The turn that it was told in.
    fn tell(&self, change: Change) -> u64 {
        let mut told = lock(&self.told);
        told.changes.push(change);
        told.turn
    }

    /// Whether what was told in the turn is in the directory's files.
    fn has_saved(&self, directory: usize, turn: u64) -> bool {
        self.saved.get(directory).is_some_and(|saved| turn < saved.load(Ordering::Acquire))
    }
}

/// What was last told of a replica, or of a copy of one on its way to another directory.
#[derive(Default)]
pub(super) struct Told(Cell<Option<LastTold>>);

#[derive(Clone, Copy)]
struct LastTold {
    directory: usize,
    line: LineId,
    offsets: CheckpointOffsets,
    turn: u64,
    /// The recovery point that the file had before.
    saved_before: Offset,
}

impl Told {
    /// Tells the offsets if they are others than the last time.
    fn tell(
        &self,
        checkpoints: &Checkpoints,
        topic_partition: &TopicPartition,
        directory: usize,
        offsets: CheckpointOffsets,
    ) {
        let last = self.0.get();
        if let Some(elsewhere) = last.filter(|last| last.directory != directory) {
            self.withdraw(checkpoints, topic_partition, elsewhere.directory);
        }
        let last = last.filter(|last| last.directory == directory);
        if last.is_some_and(|last| last.offsets == offsets) {
            return;
        }
        let new_line = || LineId(checkpoints.lines.fetch_add(1, Ordering::Relaxed));
        let line = last.map_or_else(new_line, |last| last.line);
        let turn = checkpoints.tell(Change {
            directory,
            topic_partition: topic_partition.clone(),
            line: Some(line),
            offsets: Some(offsets),
        });
        let saved_before = last.map_or(Offset::ZERO, |last| last.recovery_point(checkpoints));
        self.0.set(Some(LastTold { directory, line, offsets, turn, saved_before }));
    }

    /// There is nothing more to tell of. If nothing was told yet, what the start found in `directory` goes.
    pub fn withdraw(&self, checkpoints: &Checkpoints, topic_partition: &TopicPartition, directory: usize) {
        let last = self.0.take();
        checkpoints.tell(Change {
            directory: last.map_or(directory, |last| last.directory),
            topic_partition: topic_partition.clone(),
            line: last.map(|last| last.line),
            offsets: None,
        });
    }

    /// The copy that `copy` told of has taken the place of the replica that was in `from`.
    fn moved(
        &self,
        checkpoints: &Checkpoints,
        topic_partition: &TopicPartition,
        from: usize,
        (copy, to): (&Told, usize),
        offsets: Option<CheckpointOffsets>,
    ) {
        self.withdraw(checkpoints, topic_partition, from);
        if let Some(offsets) = offsets {
            self.tell(checkpoints, topic_partition, to, offsets);
        }
        copy.withdraw(checkpoints, topic_partition, to);
    }

    /// What was last told.
    pub fn offsets(&self) -> Option<CheckpointOffsets> {
        self.0.get().map(|last| last.offsets)
    }

    /// A recovery point that the directory's file has, or has passed; 0 while it has none.
    pub fn recovery_point(&self, checkpoints: &Checkpoints, directory: usize) -> Offset {
        let last = self.0.get().filter(|last| last.directory == directory);
        last.map_or(Offset::ZERO, |last| last.recovery_point(checkpoints))
    }

    /// What was last told is of this directory and in its files.
    pub fn is_saved(&self, checkpoints: &Checkpoints, directory: usize) -> bool {
        let last = self.0.get().filter(|last| last.directory == directory);
        last.is_some_and(|last| checkpoints.has_saved(directory, last.turn))
    }
}

impl LastTold {
    fn recovery_point(&self, checkpoints: &Checkpoints) -> Offset {
        match checkpoints.has_saved(self.directory, self.turn) {
            true => self.offsets.recovery_point.unwrap_or(Offset::ZERO),
            false => self.saved_before,
        }
    }
}

impl Shard {
    /// Tells what has changed of the offsets of this shard's replicas, then answers.
    pub(super) fn tell_checkpoints(self: &Rc<Self>, reply_to: ReplyTo) {
        let shard = self.clone();
        spawn(Queue::Control, "tell offsets", async move {
            let keys: Vec<PartitionKey> = shard.replicas.borrow().keys().copied().collect();
            for key in keys {
                if let Some(replica) = shard.replica(key) {
                    shard.tell_offsets(&replica);
                }
                yield_if_needed().await;
            }
            shard.mesh.push_reply(reply_to, Reply::Done);
        })
        .detach();
    }

    fn tell_offsets(&self, replica: &Replica) {
        let checkpoints = &self.settings.directories.checkpoints;
        if let Some(offsets) = offsets_of(replica) {
            replica.told.tell(checkpoints, &replica.topic_partition, replica.directory(), offsets);
        }
        if let Some(moving) = replica.moving() {
            moving.told.tell(checkpoints, &replica.topic_partition, moving.directory, moving.offsets());
        }
    }

    /// The replica's log is to be made: it gets its line now, for [`Shard::save_lines`].
    pub(super) fn tell_new(&self, replica: &Replica) {
        let checkpoints = &self.settings.directories.checkpoints;
        let offsets = CheckpointOffsets {
            recovery_point: Some(Offset::ZERO),
            high_watermark: Offset::ZERO,
            log_start: Offset::ZERO,
            cleaned: None,
        };
        replica.told.tell(checkpoints, &replica.topic_partition, replica.directory(), offsets);
    }

    /// The replica's log was cut: what it has now.
    pub(super) fn tell_cut(&self, replica: &Replica, offsets: CheckpointOffsets) {
        let checkpoints = &self.settings.directories.checkpoints;
        replica.told.tell(checkpoints, &replica.topic_partition, replica.directory(), offsets);
    }

    /// The copy has taken the place of the replica that was in `from`, and so does its line. Told at once: the replica
    /// may be back in `from` before all are asked again.
    pub(super) fn tell_moved(&self, replica: &Replica, from: usize, moved: &Move) {
        let checkpoints = &self.settings.directories.checkpoints;
        let copy = (&moved.told, moved.directory);
        replica.told.moved(checkpoints, &replica.topic_partition, from, copy, offsets_of(replica));
    }

    /// The partition has gone from this shard: so do its lines.
    pub(super) fn withdraw_offsets(&self, replica: &Replica) {
        let checkpoints = &self.settings.directories.checkpoints;
        replica.told.withdraw(checkpoints, &replica.topic_partition, replica.directory());
        if let Some(moving) = replica.moving() {
            moving.told.withdraw(checkpoints, &replica.topic_partition, moving.directory);
        }
    }

    /// Has all shards tell what has changed and a file thread write it; false when a file could not be written.
    pub async fn write_checkpoints(self: &Rc<Self>) -> bool {
        self.ask_all(|| Request::Checkpoint).await;
        self.save_lines().await.is_ok()
    }

    /// Has a file thread write what was told.
    pub(super) async fn save_lines(&self) -> Result<(), DirError> {
        let directories = self.settings.directories.clone();
        let threads = directories.threads.clone();
        let written = threads.run("checkpoints", move || write_checkpoints(&directories)).await;
        if let Err(error) = &written {
            tracing::error!("the checkpoint files were not written: {error}");
        }
        written
    }
}

fn offsets_of(replica: &Replica) -> Option<CheckpointOffsets> {
    let live = replica.with(|partition| CheckpointOffsets {
        recovery_point: partition.log().recovery_point_to_save(),
        high_watermark: partition.high_watermark(),
        log_start: partition.log().log_start(),
        cleaned: partition.log().cleaned(),
    });
    live.ok().or_else(|| replica.found_offsets())
}

/// Writes the checkpoint files of a stopping broker. What was told before is not written over them any more. Blocks:
/// for a file thread.
///
/// # Errors
/// The first directory's whose files could not be written; the others are written all the same.
pub fn write_last_checkpoints(
    directories: &Directories,
    entries: &[CheckpointEntry],
) -> Result<(), DirError> {
    let mut files = lock(&directories.checkpoints.files);
    files.is_final = true;
    files.directories.iter_mut().for_each(|lines| *lines = DirectoryOffsets::new());
    files.insert(entries.iter().cloned());
    write_all(directories, &mut files, None)
}

fn write_checkpoints(directories: &Directories) -> Result<(), DirError> {
    let mut files = lock(&directories.checkpoints.files);
    if files.is_final {
        return Ok(());
    }
    let (turn, changes) = {
        let mut told = lock(&directories.checkpoints.told);
        told.turn += 1;
        (told.turn, std::mem::take(&mut told.changes))
    };
    for change in changes {
        // One that was never opened has no files.
        if let Some(lines) = files.directories.get_mut(change.directory) {
            lines.apply(change);
        }
    }
    write_all(directories, &mut files, Some(turn))
}

/// Writes what has changed in the directories that serve; then what was told before `turn` is saved there.
fn write_all(
    directories: &Directories,
    files: &mut CheckpointFiles,
    turn: Option<u64>,
) -> Result<(), DirError> {
    let mut result = Ok(());
    for (number, lines) in files.directories.iter_mut().enumerate() {
        if directories.has_failed(number) {
            continue;
        }
        match (lines.write(&directories.list[number].log_dir), turn) {
            (Ok(()), Some(turn)) => directories.checkpoints.saved[number].store(turn, Ordering::Release),
            (Ok(()), None) => {}
            (Err(error), _) => result = result.and(Err(error)),
        }
    }
    result
}

impl CheckpointFiles {
    /// Lines that are no replica's any more, or not yet.
    fn insert(&mut self, entries: impl IntoIterator<Item = CheckpointEntry>) {
        for CheckpointEntry { directory, topic_partition, offsets } in entries {
            if let Some(lines) = self.directories.get_mut(directory) {
                lines.partitions.insert(topic_partition, (None, offsets));
            }
        }
    }
}

impl DirectoryOffsets {
    fn new() -> Self {
        Self { partitions: BTreeMap::new(), changed: [true; FILES.len()] }
    }

    fn apply(&mut self, change: Change) {
        let Change { topic_partition, line, offsets, .. } = change;
        let known = self.partitions.get(&topic_partition).copied();
        match offsets {
            Some(offsets) => {
                self.partitions.insert(topic_partition, (line, offsets));
            }
            // A later line of the name has come before the news of the earlier one's end.
            None if known.is_none_or(|(known, _)| known.is_some() && known != line) => return,
            None => {
                self.partitions.remove(&topic_partition);
            }
        }
        for (changed, (_, offset)) in self.changed.iter_mut().zip(FILES) {
            *changed |= known.and_then(|(_, known)| offset(&known)) != offsets.and_then(|new| offset(&new));
        }
    }

    fn write<F: Files>(&mut self, log_dir: &LogDir<F>) -> Result<(), DirError> {
        let mut result = Ok(());
        for (changed, (kind, offset)) in self.changed.iter_mut().zip(FILES) {
            if !*changed {
                continue;
            }
            let lines = self.partitions.iter();
            let lines: Vec<(TopicPartition, Offset)> =
                lines.filter_map(|(name, (_, offsets))| Some((name.clone(), offset(offsets)?))).collect();
            // Where nothing was ever cleaned there is no file to be written.
            let is_needed = kind != Checkpoint::Cleaner || !lines.is_empty() || log_dir.has_checkpoint(kind);
            let written = if is_needed { log_dir.write_checkpoint(kind, &lines) } else { Ok(()) };
            *changed = written.is_err();
            result = result.and(written);
        }
        result
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::base::{BrokerId, PartitionIndex, TopicId};
    use crate::io::mem::{Fault, MemFiles, Operation};
    use crate::log::{FoundPartition, Gaps};

    fn name() -> TopicPartition {
        TopicPartition::new("t", PartitionIndex(0))
    }

    fn offsets(recovery_point: i64, log_start: i64) -> CheckpointOffsets {
        CheckpointOffsets {
            recovery_point: Some(Offset(recovery_point)),
            high_watermark: Offset(9),
            log_start: Offset(log_start),
            cleaned: None,
        }
    }

    fn change(line: u64, recovery_point: Option<i64>, log_start: i64) -> Change {
        Change {
            directory: 0,
            topic_partition: name(),
            line: Some(LineId(line)),
            offsets: recovery_point.map(|recovery_point| offsets(recovery_point, log_start)),
        }
    }

    fn entry(directory: usize, recovery_point: i64) -> CheckpointEntry {
        CheckpointEntry { directory, topic_partition: name(), offsets: offsets(recovery_point, 0) }
    }

    /// The recovery point in each directory's files once they are written.
    fn lines(checkpoints: &Checkpoints) -> Vec<Option<i64>> {
        let changes = std::mem::take(&mut lock(&checkpoints.told).changes);
        let mut files = lock(&checkpoints.files);
        for change in changes {
            let directory = change.directory;
            files.directories[directory].apply(change);
        }
        let line = |lines: &DirectoryOffsets| Some(lines.partitions.get(&name())?.1.recovery_point?.0);
        files.directories.iter().map(line).collect()
    }

    fn open(files: &MemFiles) -> (LogDir<MemFiles>, Vec<FoundPartition>) {
        let (dir, found) = LogDir::open(files.clone(), Path::new("/data"), "c", BrokerId(1)).unwrap();
        (dir, found.partitions)
    }

    #[test]
    fn only_files_in_which_something_changed_are_written() {
        let files = MemFiles::new(1);
        let (dir, _) = open(&files);
        dir.create_partition(&name(), TopicId(uuid::Uuid::from_u128(1))).unwrap();
        let mut lines = DirectoryOffsets::new();
        let operations = |lines: &mut DirectoryOffsets| {
            let before = files.operations();
            lines.write(&dir).unwrap();
            files.operations() - before
        };
        lines.apply(change(1, Some(5), 2));
        let three = operations(&mut lines);
        assert!(three > 0);
        assert_eq!(operations(&mut lines), 0);
        lines.apply(change(1, Some(5), 2));
        assert_eq!(operations(&mut lines), 0, "the same again");
        lines.apply(change(1, Some(6), 2));
        let one = operations(&mut lines);
        assert!(0 < one && one < three / 2, "{one} of {three}");
        let found = open(&files).1.remove(0);
        assert_eq!(
            (found.recovery_point, found.log_start, found.high_watermark),
            (Offset(6), Offset(2), Offset(9))
        );
        lines.apply(change(2, None, 0));
        assert_eq!(operations(&mut lines), 0, "the end of an earlier partition of the name");
        lines.apply(change(1, None, 0));
        assert!(operations(&mut lines) > one);
        assert_eq!(open(&files).1[0].recovery_point, Offset::ZERO);
    }

    #[test]
    fn a_line_that_was_found_stays_until_its_partition_tells_or_is_put_aside() {
        let checkpoints = Checkpoints::new(3, [entry(0, 5), entry(1, 6), entry(2, 7)]);
        assert_eq!(lines(&checkpoints), [Some(5), Some(6), Some(7)], "no topic has them");
        let replica = Told::default();
        replica.tell(&checkpoints, &name(), 0, offsets(8, 0));
        checkpoints.forget_found(0, &name());
        checkpoints.forget_found(1, &name());
        assert_eq!(lines(&checkpoints), [Some(8), None, Some(7)]);
        Told::default().withdraw(&checkpoints, &name(), 2);
        assert_eq!(lines(&checkpoints), [Some(8), None, None], "deleted before it told anything");
    }

    #[test]
    fn a_partition_without_a_recovery_point_has_no_line_for_the_next_start_to_go_by() {
        let files = MemFiles::new(1);
        let (dir, _) = open(&files);
        dir.create_partition(&name(), TopicId(uuid::Uuid::from_u128(1))).unwrap();
        for _ in 0..2 {
            let found = open(&files).1.remove(0);
            assert_eq!(found.gaps, Gaps::Anywhere);
            let entry = CheckpointEntry {
                directory: 0,
                topic_partition: name(),
                offsets: CheckpointOffsets::from(&found),
            };
            let checkpoints = Checkpoints::new(1, [entry]);
            lock(&checkpoints.files).directories[0].write(&dir).unwrap();
        }
    }

    #[test]
    fn the_end_of_an_older_move_leaves_the_lines_of_a_later_one() {
        let checkpoints = Checkpoints::new(2, []);
        let (replica, older) = (Told::default(), Told::default());
        older.tell(&checkpoints, &name(), 1, offsets(3, 0));
        replica.tell(&checkpoints, &name(), 0, offsets(8, 0));
        replica.tell(&checkpoints, &name(), 1, offsets(9, 0));
        older.withdraw(&checkpoints, &name(), 1);
        assert_eq!(lines(&checkpoints), [None, Some(9)]);
    }

    #[test]
    fn a_move_there_and_back_leaves_no_line_behind() {
        let checkpoints = Checkpoints::new(2, []);
        let replica = Told::default();
        replica.tell(&checkpoints, &name(), 0, offsets(8, 0));
        let there = Told::default();
        there.tell(&checkpoints, &name(), 1, offsets(3, 0));
        replica.moved(&checkpoints, &name(), 0, (&there, 1), Some(offsets(8, 0)));
        assert!(!replica.is_saved(&checkpoints, 1), "what the copy told was of less");
        replica.moved(&checkpoints, &name(), 1, (&Told::default(), 0), Some(offsets(8, 0)));
        assert_eq!(lines(&checkpoints), [Some(8), None]);
    }

    #[test]
    fn a_replica_that_went_offline_while_its_copy_took_its_place_leaves_no_line() {
        let checkpoints = Checkpoints::new(2, []);
        let (replica, copy) = (Told::default(), Told::default());
        replica.tell(&checkpoints, &name(), 0, offsets(8, 0));
        copy.tell(&checkpoints, &name(), 1, offsets(3, 0));
        replica.moved(&checkpoints, &name(), 0, (&copy, 1), None);
        assert_eq!(lines(&checkpoints), [None, None]);
    }

    #[test]
    fn a_file_that_could_not_be_written_is_written_the_next_time() {
        let files = MemFiles::new(1);
        let (dir, _) = open(&files);
        let mut lines = DirectoryOffsets::new();
        lines.write(&dir).unwrap();
        lines.apply(change(1, Some(5), 2));
        let error = rustix::io::Errno::NOSPC;
        files.set_fault(Some(Fault { operation: Some(Operation::Write), after: 1, error, sticky: true }));
        assert!(lines.write(&dir).is_err());
        files.set_fault(None);
        let before = files.operations();
        lines.write(&dir).unwrap();
        assert!(files.operations() > before);
        assert_eq!(lines.changed, [false; FILES.len()]);
    }

    #[test]
    fn a_recovery_point_counts_once_it_is_saved() {
        let checkpoints = Checkpoints::new(1, []);
        let take = || {
            let mut told = lock(&checkpoints.told);
            told.turn += 1;
            told.turn
        };
        let first = checkpoints.tell(change(1, Some(5), 0));
        let turn = take();
        assert!(!checkpoints.has_saved(0, first));
        let second = checkpoints.tell(change(1, Some(6), 0));
        checkpoints.saved[0].store(turn, Ordering::Release);
        assert!(checkpoints.has_saved(0, first) && !checkpoints.has_saved(0, second));
        let last = |turn| LastTold {
            directory: 0,
            line: LineId(1),
            offsets: offsets(6, 0),
            turn,
            saved_before: Offset(5),
        };
        assert_eq!(last(first).recovery_point(&checkpoints), Offset(6));
        assert_eq!(last(second).recovery_point(&checkpoints), Offset(5));
    }
}
