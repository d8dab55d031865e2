//! A file system in memory that forgets what was not synced and fails on command, for tests and the simulator.
//!
//! It is stricter than ext4: only `sync_data`/`sync_all` make contents durable, only `sync_dir` of the parent
//! makes a name durable. At [`MemFiles::crash`] each 512-byte sector written since the last sync is kept or
//! lost by the toss of a seeded coin, the length is somewhere between the synced and the last one, and of each
//! directory's unsynced changes a prefix survives. Handles from before a crash fail.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::clock::Timestamp;
use crate::base::random::Random;

use super::{DirEntry, FileHandle, Files, OpenMode};

/// What a disk writes at once.
const SECTOR_BYTES: usize = 512;

/// The operations that a fault can hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Write,
    SyncData,
    SyncDir,
    /// Open, rename, remove, make a directory.
    Name,
    Read,
    Truncate,
    Preallocate,
}

/// An error to come.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// `None`: any operation.
    pub operation: Option<Operation>,
    /// Operations of that kind that still succeed.
    pub after: u64,
    pub error: rustix::io::Errno,
    /// All later ones fail too.
    pub sticky: bool,
}

/// What a crash takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// `kill -9`: the page cache survives.
    Process,
    /// Power loss: what was not synced is lost, torn or kept.
    Machine,
}

/// A planted bug: an operation that answers without having been done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lies {
    pub sync_data: bool,
    pub sync_dir: bool,
    pub truncate: bool,
}

/// The file system. Clones share it.
#[derive(Clone)]
pub struct MemFiles {
    disk: Arc<Mutex<Disk>>,
}

/// An open file.
pub struct MemFile {
    disk: Arc<Mutex<Disk>>,
    node: usize,
    generation: u64,
}

struct Disk {
    nodes: Vec<Node>,
    random: Random,
    /// Crashes so far: handles of an earlier generation fail.
    generation: u64,
    fault: Option<Fault>,
    lies: Lies,
    /// Of 100 cached reads so many find their page missing.
    cold_percent: u64,
    /// What the clock shows.
    time: Timestamp,
    operations: u64,
}

enum Node {
    File(Contents),
    Dir(Names),
}

#[derive(Default)]
struct Contents {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that differ from `durable` or may.
    dirty: BTreeSet<usize>,
    /// Sectors whose write-back failed: no later sync saves them, until they are written again.
    lost: BTreeSet<usize>,
    modified: Timestamp,
}

#[derive(Default)]
struct Names {
    now: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    /// Each survives whole or not at all.
    pending: Vec<Vec<(String, Option<usize>)>>,
}

const ROOT: usize = 0;

impl std::fmt::Debug for MemFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemFiles")
    }
}

impl MemFiles {
    pub fn new(seed: u64) -> Self {
        let disk = Disk {
            nodes: vec![Node::Dir(Names::default())],
            random: Random::seeded(seed),
            generation: 0,
            fault: None,
            lies: Lies::default(),
            cold_percent: 0,
            time: Timestamp(0),
            operations: 0,
        };
        Self { disk: Arc::new(Mutex::new(disk)) }
    }

    /// Ends the machine or the process: handles fail from now on, the names stay usable.
    pub fn crash(&self, crash: Crash) {
        self.disk().crash(crash);
    }

    /// Replaces the fault to come.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.disk().fault = fault;
    }

    /// What the clock shows from now on, for the times of changes.
    pub fn set_time(&self, time: Timestamp) {
        self.disk().time = time;
    }

    pub fn set_lies(&self, lies: Lies) {
        self.disk().lies = lies;
    }

    pub fn set_cold_percent(&self, percent: u64) {
        self.disk().cold_percent = percent;
    }

    /// Calls so far, those that failed included.
    pub fn operations(&self) -> u64 {
        self.disk().operations
    }

    /// Whether all of the file's contents up to `length` is durable.
    pub fn is_synced(&self, path: &Path, length: u64) -> io::Result<bool> {
        let disk = self.disk();
        let node = disk.find(path)?;
        match &disk.nodes[node] {
            Node::File(contents) => {
                let sectors = (length as usize).div_ceil(SECTOR_BYTES);
                Ok(contents.dirty.range(..sectors).next().is_none()
                    && contents.durable.len() as u64 >= length)
            }
            Node::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    /// Counts the operation and fails it if a fault is due.
    fn enter(&mut self, operation: Operation) -> io::Result<()> {
        self.operations += 1;
        let Some(fault) = &mut self.fault else { return Ok(()) };
        if fault.operation.is_some_and(|wanted| wanted != operation) {
            return Ok(());
        }
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        let error = fault.error;
        if !fault.sticky {
            self.fault = None;
        }
        Err(error.into())
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut node = ROOT;
        for component in path.components() {
            if let Component::Normal(name) = component {
                let name = name.to_str().ok_or(io::ErrorKind::InvalidInput)?;
                node = *self.names(node)?.now.get(name).ok_or(io::ErrorKind::NotFound)?;
            }
        }
        Ok(node)
    }

    /// The directory that holds `path`, and its last component.
    fn parent(&self, path: &Path) -> io::Result<(usize, String)> {
        let parent = self.find(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok((parent, name.to_owned()))
    }

    fn names(&self, node: usize) -> io::Result<&Names> {
        match &self.nodes[node] {
            Node::Dir(names) => Ok(names),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn change(&mut self, dir: usize, changes: Vec<(String, Option<usize>)>) -> io::Result<()> {
        match &mut self.nodes[dir] {
            Node::Dir(names) => {
                apply(&mut names.now, &changes);
                names.pending.push(changes);
                Ok(())
            }
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn add(&mut self, dir: usize, name: String, node: Node) -> io::Result<usize> {
        let id = self.nodes.len();
        self.nodes.push(node);
        self.change(dir, vec![(name, Some(id))])?;
        Ok(id)
    }

    fn contents(&mut self, node: usize) -> io::Result<&mut Contents> {
        match &mut self.nodes[node] {
            Node::File(contents) => Ok(contents),
            Node::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn crash(&mut self, crash: Crash) {
        self.generation += 1;
        self.fault = None;
        if crash == Crash::Process {
            return;
        }
        let random = &mut self.random;
        for node in &mut self.nodes {
            match node {
                Node::File(contents) => contents.crash(random),
                Node::Dir(names) => names.crash(random),
            }
        }
    }
}

fn apply(names: &mut BTreeMap<String, usize>, changes: &[(String, Option<usize>)]) {
    for (name, node) in changes {
        match node {
            Some(node) => names.insert(name.clone(), *node),
            None => names.remove(name),
        };
    }
}

impl Names {
    fn sync(&mut self) {
        self.durable.clone_from(&self.now);
        self.pending.clear();
    }

    fn crash(&mut self, random: &mut Random) {
        let surviving = random.below(self.pending.len() as u64 + 1) as usize;
        for changes in &self.pending[..surviving] {
            apply(&mut self.durable, changes);
        }
        self.now.clone_from(&self.durable);
        self.pending.clear();
    }
}

impl Contents {
    fn write(&mut self, bytes: &[u8], position: usize) {
        if bytes.is_empty() {
            return;
        }
        let end = position + bytes.len();
        if self.now.len() < end {
            // The gap is new too: it reads as zeroes.
            self.touch(self.now.len(), end);
            self.now.resize(end, 0);
        }
        self.now[position..end].copy_from_slice(bytes);
        self.touch(position, end);
    }

    fn touch(&mut self, from: usize, to: usize) {
        for sector in from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES) {
            self.dirty.insert(sector);
            self.lost.remove(&sector);
        }
    }

    fn truncate(&mut self, length: usize) {
        let before = self.now.len();
        self.now.resize(length, 0);
        let (low, high) = (before.min(length), before.max(length));
        if low < high {
            self.touch(low, high);
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.now.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            let from = (sector * SECTOR_BYTES).min(self.now.len());
            let to = (from + SECTOR_BYTES).min(self.now.len());
            if self.lost.contains(&sector) {
                self.dirty.insert(sector);
            } else {
                self.durable[from..to].copy_from_slice(&self.now[from..to]);
            }
        }
    }

    /// A failed sync: the kernel drops its knowledge that these pages need writing.
    fn lose(&mut self) {
        self.lost.extend(&self.dirty);
    }

    fn crash(&mut self, random: &mut Random) {
        if self.dirty.is_empty() && self.now.len() == self.durable.len() {
            return;
        }
        // Often all or nothing of what was not synced survives, the rest of the time anything between.
        let keep_of_4 = [0, 4, 1, 2, 3][random.below(5) as usize];
        let (low, high) = (self.now.len().min(self.durable.len()), self.now.len().max(self.durable.len()));
        let length = match keep_of_4 {
            0 => self.durable.len(),
            4 => self.now.len(),
            _ => low + random.below((high - low) as u64 + 1) as usize,
        };
        let mut after = self.durable.clone();
        after.resize(length, 0);
        for sector in &self.dirty {
            let from = (sector * SECTOR_BYTES).min(length);
            let to = (from + SECTOR_BYTES).min(length).min(self.now.len());
            let kept = random.below(4) < keep_of_4 && !self.lost.contains(sector);
            if kept && from < to {
                after[from..to].copy_from_slice(&self.now[from..to]);
            }
        }
        self.now.clone_from(&after);
        self.durable = after;
        self.dirty.clear();
        self.lost.clear();
    }
}

impl Files for MemFiles {
    type File = MemFile;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<MemFile> {
        let mut disk = self.disk();
        disk.enter(Operation::Name)?;
        let (parent, name) = disk.parent(path)?;
        let known = disk.names(parent)?.now.get(&name).copied();
        let node = match (known, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(node), _) => node,
            (None, OpenMode::Create | OpenMode::CreateNew) => {
                disk.add(parent, name, Node::File(Contents::default()))?
            }
            (None, OpenMode::Read | OpenMode::Write) => return Err(io::ErrorKind::NotFound.into()),
        };
        disk.contents(node)?;
        Ok(MemFile { disk: Arc::clone(&self.disk), node, generation: disk.generation })
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.enter(Operation::Name)?;
        let mut node = ROOT;
        for component in path.components() {
            if let Component::Normal(name) = component {
                let name = name.to_str().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
                let known = disk.names(node)?.now.get(&name).copied();
                node = match known {
                    Some(known) => known,
                    None => disk.add(node, name, Node::Dir(Names::default()))?,
                };
            }
        }
        disk.names(node).map(|_| ())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut disk = self.disk();
        disk.enter(Operation::Read)?;
        let dir = disk.find(path)?;
        let is_dir = |node: &usize| matches!(disk.nodes[*node], Node::Dir(_));
        let names = disk.names(dir)?.now.iter();
        Ok(names.map(|(name, node)| DirEntry { name: name.clone(), is_dir: is_dir(node) }).collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let mut disk = self.disk();
        disk.enter(Operation::Read)?;
        match disk.find(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.enter(Operation::Name)?;
        let (from_dir, from_name) = disk.parent(from)?;
        let (to_dir, to_name) = disk.parent(to)?;
        let node = *disk.names(from_dir)?.now.get(&from_name).ok_or(io::ErrorKind::NotFound)?;
        if from_dir == to_dir {
            return disk.change(to_dir, vec![(from_name, None), (to_name, Some(node))]);
        }
        disk.change(to_dir, vec![(to_name, Some(node))])?;
        disk.change(from_dir, vec![(from_name, None)])
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.enter(Operation::Name)?;
        let node = disk.find(path)?;
        disk.contents(node)?;
        let (dir, name) = disk.parent(path)?;
        disk.change(dir, vec![(name, None)])
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.enter(Operation::Name)?;
        let node = disk.find(path)?;
        disk.names(node)?;
        let (dir, name) = disk.parent(path)?;
        disk.change(dir, vec![(name, None)])
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.enter(Operation::SyncDir)?;
        let dir = disk.find(path)?;
        let lie = disk.lies.sync_dir;
        match &mut disk.nodes[dir] {
            Node::Dir(names) if !lie => names.sync(),
            Node::Dir(_) => {}
            Node::File(_) => return Err(io::ErrorKind::NotADirectory.into()),
        }
        Ok(())
    }
}

impl MemFile {
    fn disk(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        if disk.generation == self.generation {
            Ok(disk)
        } else {
            Err(io::Error::other("the handle is from before a crash"))
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.disk()?;
        let entered = disk.enter(Operation::SyncData);
        let lie = disk.lies.sync_data;
        let contents = disk.contents(self.node)?;
        match entered {
            Ok(()) if lie => {}
            Ok(()) => contents.sync(),
            Err(_) => contents.lose(),
        }
        entered
    }
}

impl FileHandle for MemFile {
    fn write_all_at(&self, buffers: &mut [IoSlice<'_>], position: u64) -> io::Result<()> {
        let mut disk = self.disk()?;
        let entered = disk.enter(Operation::Write);
        let mut bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        if entered.is_err() {
            // A disk that fills up takes some of it.
            let taken = disk.random.below(bytes.len() as u64 + 1) as usize;
            bytes.truncate(taken);
        }
        let time = disk.time;
        let contents = disk.contents(self.node)?;
        contents.write(&bytes, position as usize);
        contents.modified = time;
        entered
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut disk = self.disk()?;
        disk.enter(Operation::Read)?;
        let contents = disk.contents(self.node)?;
        let from = (position as usize).min(contents.now.len());
        let read = buffer.len().min(contents.now.len() - from);
        buffer[..read].copy_from_slice(&contents.now[from..from + read]);
        Ok(read)
    }

    fn read_cached_at(&self, buffer: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        {
            let mut disk = self.disk()?;
            if disk.cold_percent > 0 && disk.random.below(100) < disk.cold_percent {
                return Ok(None);
            }
        }
        self.read_at(buffer, position).map(Some)
    }

    fn len(&self) -> io::Result<u64> {
        let mut disk = self.disk()?;
        disk.enter(Operation::Read)?;
        Ok(disk.contents(self.node)?.now.len() as u64)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut disk = self.disk()?;
        disk.enter(Operation::Truncate)?;
        if !disk.lies.truncate {
            let time = disk.time;
            let contents = disk.contents(self.node)?;
            contents.truncate(length as usize);
            contents.modified = time;
        }
        Ok(())
    }

    fn modified(&self) -> io::Result<Timestamp> {
        let mut disk = self.disk()?;
        disk.enter(Operation::Read)?;
        Ok(disk.contents(self.node)?.modified)
    }

    fn set_modified(&self, time: Timestamp) -> io::Result<()> {
        let mut disk = self.disk()?;
        disk.contents(self.node)?.modified = time;
        Ok(())
    }

    fn preallocate(&self, _position: u64, _length: u64) -> io::Result<()> {
        self.disk()?.enter(Operation::Preallocate)
    }

    fn begin_write_back(&self) -> io::Result<()> {
        // A crash keeps as much of what is not synced as it likes anyway.
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "/d/a";

    fn setup(seed: u64) -> (MemFiles, MemFile) {
        let files = MemFiles::new(seed);
        files.create_dir_all(Path::new("/d")).unwrap();
        files.sync_dir(Path::new("/")).unwrap();
        let file = files.open(Path::new(A), OpenMode::CreateNew).unwrap();
        files.sync_dir(Path::new("/d")).unwrap();
        (files, file)
    }

    fn write(file: &MemFile, bytes: &[u8], position: u64) {
        file.write_all_at(&mut [IoSlice::new(bytes)], position).unwrap();
    }

    #[test]
    fn what_was_synced_survives_a_crash_and_the_rest_is_somewhere_between() {
        let mut lengths = BTreeSet::new();
        for seed in 0..200 {
            let (files, file) = setup(seed);
            write(&file, &[1; 3000], 0);
            file.sync_data().unwrap();
            assert!(files.is_synced(Path::new(A), 3000).unwrap());
            write(&file, &[2; 3000], 3000);
            assert!(!files.is_synced(Path::new(A), 3001).unwrap());
            files.crash(Crash::Machine);
            assert!(file.len().is_err(), "a handle does not survive");
            let after = files.read_small(Path::new(A), 6000).unwrap();
            assert_eq!(after[..3000], [1; 3000]);
            assert!(after[3000..].iter().all(|byte| matches!(byte, 0 | 2)));
            lengths.insert(after.len());
        }
        assert!(lengths.len() > 20 && lengths.contains(&3000) && lengths.contains(&6000));
    }

    #[test]
    fn unsynced_names_may_go_and_a_rename_is_whole() {
        let (mut renamed, mut not) = (0, 0);
        for seed in 0..50 {
            let (files, _) = setup(seed);
            files.rename(Path::new(A), Path::new("/d/b")).unwrap();
            files.crash(Crash::Machine);
            match (files.exists(Path::new(A)).unwrap(), files.exists(Path::new("/d/b")).unwrap()) {
                (true, false) => not += 1,
                (false, true) => renamed += 1,
                both => panic!("{both:?}"),
            }
        }
        assert!(renamed > 5 && not > 5);
    }

    #[test]
    fn a_failed_sync_loses_the_pages_for_good() {
        let (files, file) = setup(1);
        write(&file, &[1; 1000], 0);
        let error = rustix::io::Errno::IO;
        let operation = Some(Operation::SyncData);
        files.set_fault(Some(Fault { operation, after: 0, error, sticky: false }));
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        files.crash(Crash::Machine);
        assert!(files.read_small(Path::new(A), 1000).unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_lying_sync_is_not_one() {
        let lost = (0..50).any(|seed| {
            let (files, file) = setup(seed);
            files.set_lies(Lies { sync_data: true, ..Lies::default() });
            write(&file, &[1; 1000], 0);
            file.sync_data().unwrap();
            files.crash(Crash::Machine);
            files.read_small(Path::new(A), 1000).unwrap() != [1; 1000]
        });
        assert!(lost);
    }
}
