//! Takes over the metadata of a stopped Apache Kafka node: at the first start in its directories, when there is no
//! metadata of kuring's yet, the topics are read from `__cluster_metadata-0`. Kafka's files stay as they are.
//!
//! The new metadata log is made in a directory beside its own and renamed when it has all: a start that is cut off
//! before that begins again. From then on a file says that this was done: should kuring's metadata be lost, Kafka's old
//! state must not be taken for it.
//!
//! What reads and renames is blocking: file threads only.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Deserialize;

use crate::base::{BrokerId, Offset};
use crate::io::threads::FileThreads;
use crate::io::{DirEntry, Files};
use crate::metadata::{ConfigRules, KafkaMetadata, Record, State};
use crate::raft::{Begin, Quorum, Settings};

/// KRaft's log beside the partitions.
const KAFKA_METADATA_DIR: &str = "__cluster_metadata-0";
/// Where kuring's log is made before it is renamed.
const UNFINISHED_DIR: &str = "kuring-metadata.takeover";
/// Says that Kafka's metadata was taken over. Kafka leaves files in a log directory alone.
const MARK_FILE: &str = "kuring-takeover";
/// Segments and snapshots are read whole.
const FILE_BYTES_MAX: usize = 1 << 30;
const OFFSET_DIGITS: usize = 20;
/// What Raft notes beside the log: among other things who votes, where the log does not say it.
const QUORUM_STATE_FILE: &str = "quorum-state";
/// Where each leader's epoch begins, one a line behind a version and a count.
const EPOCHS_FILE: &str = "leader-epoch-checkpoint";
const EPOCHS_HEAD_LINES: usize = 2;
/// A file of a few lines.
const NOTE_BYTES_MAX: usize = 16 << 20;

/// Where all this happens.
#[derive(Clone, Debug)]
pub(super) struct Place<F: Files> {
    pub(super) files: F,
    /// The directory that has Kafka's log and kuring's.
    pub(super) dir: PathBuf,
    /// kuring's log.
    pub(super) own: PathBuf,
}

/// What is there at a start.
enum Found {
    /// No log of Kafka's: a new cluster may begin.
    NoKafka,
    /// There is metadata of kuring's.
    Own,
    /// Kafka's metadata, not taken over yet.
    Kafka(Vec<Record>),
}

/// Takes Kafka's metadata over where that is to be done, with settings that `settings` makes; returns how the log in
/// [`Place::own`] may begin.
pub(super) async fn take_over<F: Files>(
    place: Place<F>,
    threads: &FileThreads,
    rules: Rc<dyn ConfigRules>,
    settings: impl FnOnce(PathBuf) -> Settings,
    node: BrokerId,
) -> Result<Begin, String> {
    let look = place.clone();
    let records = match threads.run("takeover", move || look.find(node)).await? {
        Found::NoKafka => return Ok(Begin::With(Vec::new())),
        Found::Own => return Ok(Begin::Never(no_cluster(&place))),
        Found::Kafka(records) => records,
    };
    let unfinished = place.dir.join(UNFINISHED_DIR);
    let settings = Settings { begin: Begin::With(records), ..settings(unfinished) };
    let quorum = Quorum::open(place.files.clone(), threads.clone(), rules, settings)
        .await
        .map_err(|error| error.to_string())?;
    quorum.shutdown().await;
    let reason = no_cluster(&place);
    threads.run("takeover", move || place.finish()).await?;
    Ok(Begin::Never(reason))
}

/// Whether a Kafka node's metadata lies in the directory, taken over or not; also when that cannot be told.
pub(super) fn is_beside(files: &impl Files, dir: &Path) -> bool {
    files.exists(&dir.join(KAFKA_METADATA_DIR)).unwrap_or(true)
}

fn no_cluster<F: Files>(place: &Place<F>) -> String {
    format!(
        "the log of kuring's metadata has no cluster in it, and beside it lies the metadata of a Kafka node, \
         {KAFKA_METADATA_DIR}, whose topics it had; put back what is missing or, to begin with Kafka's topics as they \
         were, move this directory and {} away",
        place.dir.join(MARK_FILE).display()
    )
}

impl<F: Files> Place<F> {
    fn find(&self, node: BrokerId) -> Result<Found, String> {
        let io = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        let kafka = self.dir.join(KAFKA_METADATA_DIR);
        if !self.files.exists(&kafka).map_err(|error| io(&kafka, error))? {
            return Ok(Found::NoKafka);
        }
        let is_empty = |path: &Path| match self.files.list(path) {
            Ok(entries) => Ok(entries.is_empty()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(io(path, error)),
        };
        let mark = self.dir.join(MARK_FILE);
        let is_marked = self.files.exists(&mark).map_err(|error| io(&mark, error))?;
        if !is_empty(&self.own)? {
            if !is_marked {
                self.mark()?;
            }
            return Ok(Found::Own);
        }
        if is_marked {
            return Err(format!(
                "{} is missing: the topics of the Kafka node in {} were taken over once, and what has become of them \
                 since is lost with it; put it back or, to begin with Kafka's topics as they are in its metadata \
                 now, remove {}",
                self.own.display(),
                self.dir.display(),
                mark.display()
            ));
        }
        let unfinished = self.dir.join(UNFINISHED_DIR);
        if !is_empty(&unfinished)? {
            tracing::warn!(path = %unfinished.display(), "a takeover that was cut off begins again");
            self.files.remove_dir_all(&unfinished).map_err(|error| io(&unfinished, error))?;
        }
        read(&self.files, &kafka, node).map(Found::Kafka)
    }

    fn finish(&self) -> Result<(), String> {
        let unfinished = self.dir.join(UNFINISHED_DIR);
        let renamed = self.files.rename(&unfinished, &self.own).and_then(|()| self.files.sync_dir(&self.dir));
        renamed.map_err(|error| format!("{}: {error}", unfinished.display()))?;
        self.mark()
    }

    fn mark(&self) -> Result<(), String> {
        let path = self.dir.join(MARK_FILE);
        let text = format!("# The topics of {KAFKA_METADATA_DIR} were taken over.\nversion=0\n");
        self.files
            .write_atomically(&path, text.as_bytes())
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The records to begin with.
fn read<F: Files>(files: &F, dir: &Path, node: BrokerId) -> Result<Vec<Record>, String> {
    let metadata = read_log(files, dir)?;
    let at = |what: String| format!("{}: {what}", dir.display());
    check_voters(files, dir, &metadata, node)?;
    let (topics, left_out) = (metadata.topic_count(), metadata.left_out());
    let records = metadata.into_records(node).map_err(|error| at(error.to_string()))?;
    // What is written must apply, now and at each start after.
    State::default().apply(1, &records).map_err(|error| at(error.to_string()))?;
    tracing::warn!(
        from = %dir.display(),
        topics,
        "the topics of a Kafka node are taken over: from here on its own metadata log is not written any more"
    );
    for (what, count) in left_out {
        tracing::warn!(count, "not taken over: {what}");
    }
    Ok(records)
}

/// The newest whole snapshot and, without a gap, the log behind it.
fn read_log<F: Files>(files: &F, dir: &Path) -> Result<KafkaMetadata, String> {
    let whole = |path: &Path| {
        files.read_small(path, FILE_BYTES_MAX).map_err(|error| format!("{}: {error}", path.display()))
    };
    let names = files.list(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let named = |parse: fn(&str) -> Option<Offset>| {
        let mut found: Vec<(Offset, PathBuf)> =
            names.iter().filter_map(|entry| Some((parse(&entry.name)?, dir.join(&entry.name)))).collect();
        found.sort();
        found
    };
    let (mut metadata, mut from) = (KafkaMetadata::default(), Offset::ZERO);
    for (offset, path) in named(snapshot_offset).into_iter().rev() {
        match KafkaMetadata::of_snapshot(&whole(&path)?) {
            Ok(snapshot) => {
                (metadata, from) = (snapshot, offset);
                break;
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), "a snapshot is not whole and passed over: {error}")
            }
        }
    }
    let segments = named(segment_offset);
    let mut next = match segments.first() {
        Some((first, path)) if *first > from => {
            return Err(format!(
                "{}: the log begins at offset {first}, and no whole snapshot reaches beyond {from}: what is between \
                 them is missing",
                path.display()
            ));
        }
        Some((first, _)) => *first,
        None => return Err(format!("{}: there is no segment of the log", dir.display())),
    };
    let last = segments.len() - 1;
    for (number, (first, path)) in segments.iter().enumerate() {
        if *first != next {
            let at = path.display();
            return Err(format!(
                "{at}: the segment begins at offset {first}, and the one before it ends at {next}"
            ));
        }
        let end = metadata
            .segment(&whole(path)?, *first, from, number == last)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        if let Some(position) = end.torn {
            let next = end.next;
            tracing::warn!(path = %path.display(), position, %next, "the log ends in half a batch, which is left out");
        }
        next = end.next;
    }
    if let Some((reached, witness)) = reached(files, dir, &names)?
        && next < reached
        && from < reached
    {
        return Err(format!(
            "{}: the log ends at offset {next}, and by {witness} it reached {reached}: what is between them is missing",
            dir.display()
        ));
    }
    Ok(metadata)
}

/// How far the log has been by what lies beside it, and which file says so: a snapshot, one of its producers (a clean stop
/// leaves one at the log's end), the index of a segment that is gone, the beginning of a leader's epoch.
fn reached<F: Files>(files: &F, dir: &Path, names: &[DirEntry]) -> Result<Option<(Offset, String)>, String> {
    let is_there = |name: &str| names.iter().any(|entry| entry.name == name);
    let by_name = names.iter().filter_map(|entry| {
        let name = entry.name.as_str();
        let of_snapshot = snapshot_offset(name).or_else(|| digits(name.strip_suffix(".snapshot")?));
        let of_lost_segment = || {
            let number = name.strip_suffix(".index").or_else(|| name.strip_suffix(".timeindex"))?;
            let base = digits(number)?;
            // It had a record at least.
            (!is_there(&format!("{number}.log"))).then_some(Offset(base.0 + 1))
        };
        Some((of_snapshot.or_else(of_lost_segment)?, entry.name.clone()))
    });
    let mut all: Vec<(Offset, String)> = by_name.collect();
    if is_there(EPOCHS_FILE) {
        let text = note(files, &dir.join(EPOCHS_FILE))?;
        let text = String::from_utf8_lossy(&text);
        let starts = text.lines().skip(EPOCHS_HEAD_LINES).filter_map(|line| line.split_whitespace().nth(1));
        let last = starts.filter_map(|start| start.parse().ok()).max();
        all.extend(last.map(|start| (Offset(start), EPOCHS_FILE.to_owned())));
    }
    Ok(all.into_iter().max())
}

/// What Raft notes in a file of Kafka's `FileQuorumStateStore`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct QuorumState {
    current_voters: Option<Vec<Voter>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Voter {
    voter_id: i32,
}

/// Refuses a log that several controllers keep: this copy may lack what the others have, and have what they never
/// agreed to.
fn check_voters<F: Files>(
    files: &F,
    dir: &Path,
    metadata: &KafkaMetadata,
    node: BrokerId,
) -> Result<(), String> {
    let voters = match metadata.voters() {
        Some(voters) => voters.to_vec(),
        None => noted_voters(files, &dir.join(QUORUM_STATE_FILE))?,
    };
    match voters.as_slice() {
        [] => Ok(()),
        [voter] if *voter == node => Ok(()),
        [voter] => {
            tracing::warn!(
                from = %dir.display(),
                controller = voter.0,
                "this is a broker's copy of another node's log: what only that node has is not taken over"
            );
            Ok(())
        }
        several => {
            let ids: Vec<String> = several.iter().map(|voter| voter.0.to_string()).collect();
            Err(format!(
                "{}: the controllers {} keep this log together: this copy may lack what the others have, and have what \
                 they never agreed to; kuring takes over the log of a single controller",
                dir.display(),
                ids.join(", ")
            ))
        }
    }
}

fn noted_voters<F: Files>(files: &F, path: &Path) -> Result<Vec<BrokerId>, String> {
    if !files.exists(path).map_err(|error| format!("{}: {error}", path.display()))? {
        return Ok(Vec::new());
    }
    let state: QuorumState = serde_json::from_slice(&note(files, path)?)
        .map_err(|error| format!("{}: who votes cannot be read: {error}", path.display()))?;
    let voters = state.current_voters.unwrap_or_default();
    Ok(voters.into_iter().map(|voter| BrokerId(voter.voter_id)).collect())
}

fn note<F: Files>(files: &F, path: &Path) -> Result<Vec<u8>, String> {
    files.read_small(path, NOTE_BYTES_MAX).map_err(|error| format!("{}: {error}", path.display()))
}

/// `<offset>.log`
fn segment_offset(name: &str) -> Option<Offset> {
    digits(name.strip_suffix(".log")?)
}

/// `<offset>-<epoch>.checkpoint`
fn snapshot_offset(name: &str) -> Option<Offset> {
    let (offset, epoch) = name.strip_suffix(".checkpoint")?.split_once('-')?;
    epoch.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits(offset)).flatten()
}

fn digits(text: &str) -> Option<Offset> {
    let is_offset = text.len() == OFFSET_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    is_offset.then(|| text.parse().ok().map(Offset)).flatten()
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
