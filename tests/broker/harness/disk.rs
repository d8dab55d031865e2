//! A broker's disk after a loss of power: what no completed sync covers is taken away or damaged at random, as the
//! journal of `src/io/journal.rs` tells it. As strict as the in-memory file system of the simulations: a name is
//! durable after a sync of its directory, of whose unsynced changes a prefix survives; contents are durable up to
//! the length at the start of a completed sync.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kafka_protocol::messages::CreateTopicsRequest;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kuring::base::random::Random;

use super::Broker;
use super::raw::{Answer, Raw, name};

const SECTOR_BYTES: u64 = 512;

const CREATE_TOPICS: i16 = 7;

/// Making so many notes more in the journal than its pipe takes.
const MANY_PARTITIONS: i32 = 200;

/// The environment variable that `src/io/journal.rs` looks for.
pub const JOURNAL: &str = "KURING_TEST_SYNC_JOURNAL";

pub struct Disk {
    data: PathBuf,
    /// A folder for the journal of each start.
    journals: PathBuf,
    starts: usize,
    /// Bytes of each inode that are durable when the process starts: all.
    durable: HashMap<u64, u64>,
}

/// What one loss of power took.
#[derive(Clone, Copy, Default, Debug)]
pub struct Loss {
    pub names: usize,
    pub files: usize,
    pub bytes: u64,
}

enum Change {
    Create(PathBuf),
    Rename { from: PathBuf, to: PathBuf, saved: Option<PathBuf> },
    Remove { path: PathBuf, saved: Option<PathBuf> },
}

impl Disk {
    /// `journals` must lie on the same file system as `data`.
    pub fn new(data: PathBuf, journals: PathBuf) -> Self {
        Self { data, journals, starts: 0, durable: HashMap::new() }
    }

    /// The broker is about to start: everything that is there is durable. Returns the folder of the journal.
    pub fn start(&mut self) -> PathBuf {
        self.starts += 1;
        let _ = fs::remove_dir_all(&self.journals);
        fs::create_dir_all(self.folder()).expect("a folder for the journal");
        self.durable = files_below(&self.data).into_iter().map(|(_, inode, len)| (inode, len)).collect();
        self.folder()
    }

    /// The process shall kill itself behind the line of the journal that contains `text` for the `count`-th time.
    pub fn kill_at(&self, count: u64, text: &str) {
        let temporary = self.folder().join("kill.tmp");
        fs::write(&temporary, format!("{count} {text}")).expect("the folder is ours");
        fs::rename(temporary, self.folder().join("kill")).expect("the folder is ours");
    }

    /// How often the broker was started.
    pub fn starts(&self) -> usize {
        self.starts
    }

    pub fn journal(&self) -> String {
        fs::read_to_string(self.folder().join("journal")).unwrap_or_default()
    }

    /// The process is dead: takes from the disk what it was never promised.
    pub fn lose_power(&mut self, random: &mut Random) -> Loss {
        let journal = self.journal();
        let mut durable = self.durable.clone();
        let mut unsynced: HashMap<PathBuf, Vec<(u64, Change)>> = HashMap::new();
        for (number, line) in (0..).zip(journal.lines()) {
            let words: Vec<&str> = line.split(' ').collect();
            let inode = || words[1].parse::<u64>().expect("an inode");
            let length = || words[2].parse::<u64>().expect("a length");
            let saved = |word: &str| (word != "-").then(|| PathBuf::from(word));
            let change = match words[0] {
                "create" => {
                    durable.insert(inode(), 0);
                    Change::Create(words[2].into())
                }
                "rename" => {
                    Change::Rename { from: words[1].into(), to: words[2].into(), saved: saved(words[3]) }
                }
                "remove" => Change::Remove { path: words[1].into(), saved: saved(words[2]) },
                "truncate" => {
                    let known = durable.entry(inode()).or_default();
                    *known = length().min(*known);
                    continue;
                }
                "sync" => {
                    let known = durable.entry(inode()).or_default();
                    *known = length().max(*known);
                    continue;
                }
                "syncdir" => {
                    let covered = inode();
                    if let Some(changes) = unsynced.get_mut(Path::new(words[2])) {
                        changes.retain(|(line, _)| *line >= covered);
                    }
                    continue;
                }
                other => panic!("{other} in the journal"),
            };
            let dir = change.path().parent().expect("no change is of the root").to_path_buf();
            unsynced.entry(dir).or_default().push((number, change));
        }
        let mut loss = Loss::default();
        for changes in unsynced.into_values() {
            let kept = match random.below(3) {
                0 => 0,
                1 => changes.len(),
                _ => random.below(changes.len() as u64 + 1) as usize,
            };
            loss.names += changes.len() - kept;
            changes.iter().skip(kept).rev().for_each(|(_, change)| change.undo());
        }
        for (path, inode, length) in files_below(&self.data) {
            let Some(durable) = durable.get(&inode).copied() else { continue };
            if length > durable {
                loss.files += 1;
                loss.bytes += damage(&path, durable, length, random);
            }
        }
        loss
    }

    fn folder(&self) -> PathBuf {
        self.journals.join(self.starts.to_string())
    }
}

impl Change {
    /// A name in the directory that the change is of.
    fn path(&self) -> &Path {
        match self {
            Change::Create(path) | Change::Rename { to: path, .. } | Change::Remove { path, .. } => path,
        }
    }

    /// What came after it in the same directory is undone. A change that the process had made but not noted when
    /// it died may have taken what is to be undone: then there is nothing to do.
    fn undo(&self) {
        match self {
            Change::Create(path) if path.is_dir() => drop(fs::remove_dir_all(path)),
            Change::Create(path) => drop(fs::remove_file(path)),
            Change::Rename { from, to, saved } => {
                let _ = fs::rename(to, from);
                if let Some(saved) = saved {
                    let _ = fs::hard_link(saved, to);
                }
            }
            Change::Remove { path, saved } => {
                if let Some(saved) = saved {
                    let _ = fs::hard_link(saved, path);
                }
            }
        }
    }
}

/// Of the bytes from `durable` to `length` all, none, some or rubbish is left; returns how many were touched.
fn damage(path: &Path, durable: u64, length: u64, random: &mut Random) -> u64 {
    let file = File::options().write(true).open(path).expect("it was listed");
    let kind = random.below(5);
    if kind == 0 {
        return 0;
    }
    let cut = match kind {
        1 => durable,
        2 => durable + random.below(length - durable + 1),
        _ => length,
    };
    file.set_len(cut).expect("the file is ours");
    let mut touched = length - cut;
    if kind < 3 {
        return touched;
    }
    // Sectors are written in any order, so some are as they were before: zeroes, or what the disk had there.
    let mut at = durable;
    while at < cut {
        let end = (at / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES).min(cut);
        if random.below(2) == 0 {
            let byte = if kind == 3 { 0 } else { random.next_u64() as u8 };
            file.write_all_at(&vec![byte; (end - at) as usize], at).expect("the file is ours");
            touched += end - at;
        }
        at = end;
    }
    touched
}

/// Path, inode and length of every file.
fn files_below(root: &Path) -> Vec<(PathBuf, u64, u64)> {
    let (mut found, mut dirs) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten() {
            let entry = entry.expect("the directory is ours");
            let metadata = entry.metadata().expect("nobody else removes it");
            match metadata.is_dir() {
                true => dirs.push(entry.path()),
                false => found.push((entry.path(), metadata.ino(), metadata.len())),
            }
        }
    }
    found.sort();
    found
}

/// A disk on which nothing that changes a file comes to its end while it is stuck. The journal of `src/io/journal.rs`, in
/// which each such operation is noted, is a pipe here; when nobody reads it and it is full, they wait. Reads are not noted.
pub struct StickyDisk {
    journals: PathBuf,
    is_stuck: Arc<AtomicBool>,
}

impl StickyDisk {
    pub fn new(journals: PathBuf) -> Self {
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

    /// The folder that [`JOURNAL`] is to name. Of one start: what another has noted is in the way.
    pub fn folder(&self) -> &Path {
        &self.journals
    }

    /// Sticks, and has the broker make so many topics' files that what it notes of them fills the pipe. The request is answered
    /// when the disk is free again.
    pub fn stick_under(&self, broker: &Broker) -> Raw {
        self.stick(true);
        let topic = CreatableTopic::default()
            .with_name(name("many"))
            .with_num_partitions(MANY_PARTITIONS)
            .with_replication_factor(1);
        let create = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(60_000);
        let mut creator = Raw::connect(broker);
        creator.send(CREATE_TOPICS, &create);
        let answer = creator.answer(Duration::from_secs(2));
        assert_eq!(answer, Answer::Silence, "the file threads wait for the disk");
        creator
    }

    /// Sticks for whatever comes next: the pipe is filled from here.
    pub fn stick_at_once(&self) {
        self.stick(true);
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let pipe = File::options().write(true).custom_flags(nonblocking).open(self.journals.join("journal"));
        let mut pipe = pipe.expect("the pipe is there");
        // Its reader may take out once more what it was waiting for.
        for _ in 0..5 {
            for length in [4096, 1] {
                while pipe.write(&vec![b' '; length]).is_ok() {}
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn stick(&self, is_stuck: bool) {
        self.is_stuck.store(is_stuck, Ordering::Relaxed);
    }
}
