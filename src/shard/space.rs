//! The room on the disk of a log directory. A write that the disk refuses for want of room makes the directory
//! full: its reserve is given up, so that the metadata log and the internal topics go on, and batches of other
//! topics are refused before they are written. Reads, deletions and administration do not notice. Once there is
//! room for the reserve and some more it is made again, and writes are accepted.

use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Shard;
use super::replica::Replica;
use crate::io::os::{OsFiles, volume_bytes};
use crate::io::runtime::{Queue, spawn};
use crate::log::Reserve;

/// How often a full directory is asked whether it has room again.
const ROOM_POLL: Duration = Duration::from_secs(1);

/// How often a directory that is not full is asked for room for its reserve.
const RESERVE_POLL: Duration = Duration::from_secs(10);

/// What is known about the room in one directory; shared by the shards.
pub struct Space {
    reserve: Reserve<OsFiles>,
    full: AtomicBool,
    has_reserve: AtomicBool,
    /// The last process had the reserve: if there is no room for it now, the disk is full.
    had_reserve: AtomicBool,
    /// A shard looks for room.
    watched: AtomicBool,
    times_full: AtomicU64,
    appends_refused: AtomicU64,
}

impl Space {
    /// `reserve_bytes` of 0: no reserve is kept. What the last process left of one is given up: a start writes
    /// before it knows how full the disk is. Blocks.
    pub fn new(directory: &Path, reserve_bytes: u64) -> Self {
        let reserve = Reserve::new(OsFiles, directory, reserve_bytes);
        let had_reserve = reserve.release().unwrap_or_else(|error| {
            tracing::warn!(directory = %directory.display(), "the old reserve is still there: {error}");
            false
        });
        let had_reserve = had_reserve && reserve_bytes > 0;
        let lacks_room =
            had_reserve && volume_bytes(directory).is_ok_and(|volume| volume.usable < reserve.needed_bytes());
        let space = Self {
            reserve,
            had_reserve: AtomicBool::new(had_reserve),
            full: AtomicBool::new(false),
            has_reserve: AtomicBool::new(reserve_bytes == 0),
            watched: AtomicBool::new(false),
            times_full: AtomicU64::new(0),
            appends_refused: AtomicU64::new(0),
        };
        if lacks_room {
            // The first batches come before anybody looks for room: what the reserve leaves is not for them.
            space.fill(directory);
        }
        space
    }

    fn fill(&self, directory: &Path) {
        if !self.full.swap(true, Ordering::SeqCst) {
            self.times_full.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                directory = %directory.display(),
                "the disk is full: writes are refused until there is room"
            );
        }
    }

    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }

    /// True for the one that is to look for room; nobody else does before [`Space::end_watch`].
    fn begin_watch(&self) -> bool {
        !self.watched.swap(true, Ordering::SeqCst)
    }

    /// True when somebody has to look again: it became full while this look ended, and whoever noticed found it watched.
    #[must_use]
    fn end_watch(&self) -> bool {
        self.watched.store(false, Ordering::SeqCst);
        self.is_full()
    }

    pub fn has_reserve(&self) -> bool {
        self.has_reserve.load(Ordering::Relaxed)
    }

    pub fn times_full(&self) -> u64 {
        self.times_full.load(Ordering::Relaxed)
    }

    pub fn appends_refused(&self) -> u64 {
        self.appends_refused.load(Ordering::Relaxed)
    }
}

impl Shard {
    /// Whether a batch for `replica` is refused before it is written; counts it.
    pub(super) fn refuses_for_space(&self, replica: &Replica) -> bool {
        let Some(directory) = self.settings.directories.list.get(replica.directory()) else { return false };
        if replica.uses_reserve || !directory.space.is_full() {
            return false;
        }
        directory.space.appends_refused.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Looks whether the replica's log has met a full disk since it was last asked.
    pub(super) fn look_for_full_disk(self: &Rc<Self>, replica: &Replica) {
        if replica.with(|partition| partition.log_mut().take_met_full_disk()) == Ok(true) {
            self.note_full(replica.directory());
        }
    }

    /// The disk of the directory has refused a write for want of room.
    pub(super) fn note_full(self: &Rc<Self>, directory: usize) {
        let shard = self.clone();
        spawn(Queue::Control, "disk full", async move { shard.give_up_reserve(directory).await }).detach();
    }

    /// Marks the directory full and gives its reserve to whoever may write still; true when there was one.
    pub async fn give_up_reserve(self: &Rc<Self>, directory: usize) -> bool {
        let directories = self.settings.directories.clone();
        let Some(space) = directories.list.get(directory).map(|directory| &directory.space) else {
            return false;
        };
        space.fill(directories.path(directory));
        let had_reserve = space.has_reserve.swap(false, Ordering::Relaxed);
        if had_reserve {
            let released = directories.threads.run("release reserve", {
                let directories = directories.clone();
                move || directories.list[directory].space.reserve.release()
            });
            if let Err(error) = released.await {
                tracing::warn!("the reserve of a full disk is still there: {error}");
            }
        }
        self.watch_room(directory);
        had_reserve
    }

    /// Makes the reserves; called once, on one shard, when the broker serves.
    pub fn make_reserves(self: &Rc<Self>) {
        for (index, directory) in self.settings.directories.list.iter().enumerate() {
            if !directory.space.has_reserve() {
                self.watch_room(index);
            }
        }
    }

    /// Tries to make the reserve of a directory until it is there; one shard does it at a time.
    fn watch_room(self: &Rc<Self>, directory: usize) {
        if !self.settings.directories.list[directory].space.begin_watch() {
            return;
        }
        let shard = self.clone();
        spawn(Queue::Back, "room on disk", async move {
            let directories = shard.settings.directories.clone();
            let space = &directories.list[directory].space;
            let mut told = false;
            loop {
                if directories.has_failed(directory) || shard.is_stopping() {
                    break;
                }
                let was_full = space.is_full();
                if was_full {
                    shard.sleep(ROOM_POLL).await;
                }
                let taken = directories.threads.run("take reserve", {
                    let directories = directories.clone();
                    move || {
                        let free_bytes =
                            volume_bytes(directories.path(directory)).map(|volume| volume.usable);
                        directories.list[directory].space.reserve.take(free_bytes.ok())
                    }
                });
                match taken.await {
                    // It may have become full, and the reserve been given up, while it was made.
                    Ok(true) if space.is_full() && !was_full => {}
                    Ok(true) => {
                        space.has_reserve.store(true, Ordering::Relaxed);
                        if space.full.swap(false, Ordering::SeqCst) {
                            tracing::warn!(
                                directory = %directories.path(directory).display(),
                                "the disk has room again: writes are accepted"
                            );
                        }
                        break;
                    }
                    Ok(false) if !was_full && space.had_reserve.swap(false, Ordering::Relaxed) => {
                        space.fill(directories.path(directory));
                    }
                    Ok(false) if !was_full => {
                        if !std::mem::replace(&mut told, true) {
                            tracing::warn!(
                                directory = %directories.path(directory).display(),
                                "the disk has no room for kuring.reserve.bytes"
                            );
                        }
                        shard.sleep(RESERVE_POLL).await;
                    }
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(
                            directory = %directories.path(directory).display(),
                            "the reserve could not be made: {error}"
                        );
                        shard.sleep(RESERVE_POLL).await;
                    }
                }
            }
            if space.end_watch() && !directories.has_failed(directory) && !shard.is_stopping() {
                shard.watch_room(directory);
            }
        })
        .detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_for_the_reserve_that_it_had_is_full_from_the_start() {
        const MORE_THAN_A_DISK_HAS: u64 = 1 << 60;
        let dir = tempfile::tempdir().unwrap();
        let reserve = dir.path().join(".kuring-reserve");
        assert!(!Space::new(dir.path(), MORE_THAN_A_DISK_HAS).is_full(), "it had none");
        std::fs::write(&reserve, "").unwrap();
        let space = Space::new(dir.path(), MORE_THAN_A_DISK_HAS);
        assert_eq!((space.is_full(), space.times_full(), space.has_reserve()), (true, 1, false));
        assert!(!reserve.exists(), "the start has room to write");
        std::fs::write(&reserve, "").unwrap();
        assert!(!Space::new(dir.path(), 0).is_full(), "none is kept any more");
    }

    #[test]
    fn a_disk_that_becomes_full_while_the_look_for_room_ends_is_looked_at_again() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space::new(folder.path(), 1 << 20);
        assert!(space.begin_watch());
        assert!(!space.begin_watch(), "one looks at a time");
        assert!(!space.end_watch(), "there is room");
        assert!(space.begin_watch());
        space.fill(folder.path());
        assert!(!space.begin_watch(), "whoever noticed leaves it to the one that is there");
        assert!(space.end_watch(), "and that one begins anew");
        assert!(space.begin_watch());
    }
}
