//! Tells the crash test what a loss of power would have left. `SIGKILL` keeps the page cache, so the test has to take
//! away itself what no completed sync covers, and must know what that is.
//!
//! Off, one load of a pointer per call, unless `KURING_TEST_SYNC_JOURNAL` names a directory on the same file system.
//! Then each creation, rename, removal, truncation and completed sync through [`super::os`] appends a line to its file
//! `journal`, and what a rename or a removal takes away is linked into the directory first. A file `kill` in it with
//! `<count> <text>` ends the process by `SIGKILL` right behind the count-th further line that contains the text.
//! Never for production: it adds a write to every such call. Any thread.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const VARIABLE: &str = "KURING_TEST_SYNC_JOURNAL";

pub(super) struct Journal {
    dir: PathBuf,
    state: Mutex<State>,
}

struct State {
    file: File,
    /// Lines written: a sync covers those before its start.
    lines: u64,
    saved: u64,
    /// May come at any time.
    kill_file: PathBuf,
    kill: Option<(u64, String)>,
}

/// What a sync of one file covers, taken before it starts.
pub(super) struct Covered {
    inode: u64,
    length: u64,
}

/// The process' journal, if there is to be one.
pub(super) fn journal() -> Option<&'static Journal> {
    static JOURNAL: OnceLock<Option<Journal>> = OnceLock::new();
    JOURNAL.get_or_init(|| std::env::var_os(VARIABLE).map(|dir| Journal::open(dir.into()))).as_ref()
}

impl Journal {
    /// # Panics
    /// When the directory is not usable: a test that goes on without it would prove nothing.
    fn open(dir: PathBuf) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(dir.join("journal"));
        let file = file.unwrap_or_else(|error| panic!("{VARIABLE}={}: {error}", dir.display()));
        let kill_file = dir.join("kill");
        Self { dir, state: Mutex::new(State { file, lines: 0, saved: 0, kill_file, kill: None }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files and directories that were not there.
    pub fn created(&self, path: &Path) -> io::Result<()> {
        let inode = std::fs::metadata(path)?.ino();
        self.state().note(&format!("create {inode} {}", path.display()))
    }

    pub fn truncated(&self, file: &File, length: u64) -> io::Result<()> {
        let inode = file.metadata()?.ino();
        self.state().note(&format!("truncate {inode} {length}"))
    }

    /// Carries out a rename or a removal with a link kept to what it takes away, if it is a file.
    pub fn changing(
        &self,
        what: &str,
        lost: &Path,
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        // One at a time: the order of the lines is the order of the changes.
        let mut state = self.state();
        let mut saved = "-".to_owned();
        if lost.is_file() {
            state.saved += 1;
            let link = self.dir.join(format!("saved-{}", state.saved));
            std::fs::hard_link(lost, &link)?;
            saved = link.display().to_string();
        }
        change()?;
        state.note(&format!("{what} {saved}"))
    }

    pub fn covered(&self, file: &File) -> io::Result<Covered> {
        let metadata = file.metadata()?;
        Ok(Covered { inode: metadata.ino(), length: metadata.len() })
    }

    pub fn synced(&self, covered: &Covered) -> io::Result<()> {
        self.state().note(&format!("sync {} {}", covered.inode, covered.length))
    }

    /// How many lines a sync that starts now covers.
    pub fn lines(&self) -> u64 {
        self.state().lines
    }

    pub fn synced_dir(&self, path: &Path, lines: u64) -> io::Result<()> {
        self.state().note(&format!("syncdir {lines} {}", path.display()))
    }

    /// Syncs a whole file system: notes every file and directory below the open directory `file`.
    pub fn sync_file_system(&self, file: &File, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let root = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let lines = self.lines();
        let (mut files, mut dirs) = (Vec::new(), vec![root]);
        let mut next = 0;
        while next < dirs.len() {
            // What is renamed or removed meanwhile counts as not covered.
            for entry in std::fs::read_dir(&dirs[next]).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => dirs.push(entry.path()),
                    Ok(metadata) => files.push(Covered { inode: metadata.ino(), length: metadata.len() }),
                    Err(_) => {}
                }
            }
            next += 1;
        }
        sync()?;
        files.iter().try_for_each(|covered| self.synced(covered))?;
        dirs.iter().try_for_each(|dir| self.synced_dir(dir, lines))
    }
}

impl State {
    fn note(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(format!("{line}\n").as_bytes())?;
        self.lines += 1;
        if self.kill.is_none() {
            self.kill = std::fs::read_to_string(&self.kill_file).ok().and_then(|text| {
                let (count, text) = text.split_once(' ')?;
                Some((count.parse().ok()?, text.to_owned()))
            });
        }
        if let Some((count, text)) = &mut self.kill
            && line.contains(text.as_str())
        {
            *count -= 1;
            if *count == 0 {
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
            }
        }
        Ok(())
    }
}
