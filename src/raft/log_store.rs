//! openraft's log store: entries in memory since the last purge, and one task that brings every change to
//! the disk in the order it was asked for.
//!
//! The task takes whatever waits and writes neighbouring appends together with one fdatasync. After an error
//! nothing is written any more: what the disk holds is unknown.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::{mpsc, oneshot};

use super::log_files::{self, Loaded, LogFiles};
use super::types::{Entry, LogId, Types, Vote};
use super::vote_file::VoteFile;
use crate::io::Files;
use crate::io::runtime::{self, Queue, Task};
use crate::io::threads::FileThreads;

/// Changes that wait for the disk; openraft waits when there are more.
const JOBS_WAITING_MAX: usize = 256;

/// What an entry takes on disk beside its records.
const ENTRY_OVERHEAD_MAX: u64 = 64;

/// The store's handle; clones share it. Also the reader that openraft asks for.
#[derive(Clone)]
pub struct LogStore {
    cache: Rc<RefCell<Cache>>,
    jobs: mpsc::Sender<Job>,
}

/// What is on disk, or on its way there.
struct Cache {
    entries: VecDeque<Entry>,
    purged: Option<LogId>,
    vote: Option<Vote>,
    /// Bytes that can be appended without asking the disk for room.
    room: u64,
    /// What each of `entries` takes on disk; 0 for those that were there when the log was opened.
    sizes: VecDeque<usize>,
    /// Bytes since the log was opened.
    appended: u64,
}

/// What the log has behind an entry.
#[derive(Debug)]
pub enum Behind {
    Entries(Vec<Entry>),
    /// The entry is older than what is kept.
    Purged,
    /// The entry is none of this log's.
    OtherLog,
}

enum Job {
    Append { first: u64, before: Option<LogId>, frames: Vec<Vec<u8>>, flushed: IOFlushed<Types> },
    Truncate { index: u64, done: oneshot::Sender<io::Result<()>> },
    Purge { upto: LogId, done: oneshot::Sender<io::Result<()>> },
    SaveVote { vote: Vote, done: oneshot::Sender<io::Result<()>> },
    Reserve { bytes: u64, urgent: bool, done: oneshot::Sender<io::Result<Option<u64>>> },
}

impl LogStore {
    /// Starts the writing task, which ends when the last clone of the store is gone.
    pub fn start<F: Files>(
        threads: FileThreads,
        log: LogFiles<F>,
        loaded: Loaded,
        vote_file: VoteFile<F::File>,
        vote: Option<Vote>,
    ) -> (LogStore, Task<()>) {
        let (jobs, waiting) = mpsc::channel(JOBS_WAITING_MAX);
        let sizes = loaded.entries.iter().map(|_| 0).collect();
        let (entries, purged) = (loaded.entries.into(), loaded.purged);
        let cache = Cache { entries, purged, vote, room: 0, sizes, appended: 0 };
        let writer =
            Writer { threads, log: Arc::new(Mutex::new(log)), vote: Arc::new(Mutex::new(vote_file)) };
        let task = runtime::spawn(Queue::Control, "raft-log", writer.run(waiting));
        (LogStore { cache: Rc::new(RefCell::new(cache)), jobs }, task)
    }

    /// The last entry, or what was purged when there is none.
    pub fn last_log_id(&self) -> Option<LogId> {
        self.cache.borrow().last_log_id()
    }

    /// Sees to it that an entry with `bytes` of records can be appended even if the disk fills up meanwhile;
    /// false: there is no room. What is `urgent` may use the last of the reserve.
    pub async fn reserve(&self, bytes: u64, urgent: bool) -> io::Result<bool> {
        let bytes = bytes + ENTRY_OVERHEAD_MAX;
        if bytes <= self.cache.borrow().room {
            return Ok(true);
        }
        let (done, result) = oneshot::channel();
        self.jobs.send(Job::Reserve { bytes, urgent, done }).await.map_err(|_| stopped())?;
        let room = result.await.unwrap_or_else(|_| Err(stopped()))?;
        self.cache.borrow_mut().room = room.unwrap_or(0);
        Ok(room.is_some())
    }

    /// Bytes of entries since the log was opened.
    pub fn appended(&self) -> u64 {
        self.cache.borrow().appended
    }

    /// The last of the entries up to `index` that must go so that the others up to there take at most `bytes_max`.
    pub fn surplus(&self, index: u64, bytes_max: usize) -> Option<u64> {
        let cache = self.cache.borrow();
        let end = cache.position(index + 1);
        let mut kept: usize = cache.sizes.range(..end).sum();
        let mut last = None;
        for (entry, size) in cache.entries.iter().zip(&cache.sizes).take(end) {
            if kept <= bytes_max {
                break;
            }
            kept -= size;
            last = Some(entry.log_id.index);
        }
        last
    }

    /// The entries behind `have`, up to the one at `last`, and no more than `count_max` of them.
    pub fn behind(&self, have: Option<LogId>, last: u64, count_max: usize) -> Behind {
        let cache = self.cache.borrow();
        let first = have.map_or(0, |have| have.index.saturating_add(1));
        if let Some(purged) = cache.purged.filter(|purged| first <= purged.index + 1) {
            return match have {
                Some(have) if have == purged => Behind::Entries(cache.part(first, last, count_max)),
                Some(have) if have.index == purged.index => Behind::OtherLog,
                _ => Behind::Purged,
            };
        }
        let is_here = |have: LogId| {
            let found = cache.entries.get(cache.position(have.index));
            found.is_some_and(|found| found.log_id == have)
        };
        match have.is_none_or(is_here) {
            true => Behind::Entries(cache.part(first, last, count_max)),
            false => Behind::OtherLog,
        }
    }

    async fn do_job(&self, job: impl FnOnce(oneshot::Sender<io::Result<()>>) -> Job) -> io::Result<()> {
        let (done, result) = oneshot::channel();
        self.jobs.send(job(done)).await.map_err(|_| stopped())?;
        result.await.unwrap_or_else(|_| Err(stopped()))
    }
}

impl Cache {
    fn last_log_id(&self) -> Option<LogId> {
        self.entries.back().map(|entry| entry.log_id).or(self.purged)
    }

    fn part(&self, first: u64, last: u64, count_max: usize) -> Vec<Entry> {
        let (start, end) = (self.position(first), self.position(last.saturating_add(1)));
        self.entries.range(start..end.max(start)).take(count_max).cloned().collect()
    }

    /// The position of `index` in `entries`, whether it is there or not.
    fn position(&self, index: u64) -> usize {
        let first = self.entries.front().map_or(0, |entry| entry.log_id.index);
        usize::try_from(index.saturating_sub(first)).unwrap_or(usize::MAX).min(self.entries.len())
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let cache = self.cache.borrow();
        let start = match range.start_bound() {
            Bound::Included(index) => cache.position(*index),
            Bound::Excluded(index) => cache.position(index.saturating_add(1)),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => cache.position(index.saturating_add(1)),
            Bound::Excluded(index) => cache.position(*index),
            Bound::Unbounded => cache.entries.len(),
        };
        Ok(cache.entries.range(start..end.max(start)).cloned().collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.cache.borrow().vote)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let cache = self.cache.borrow();
        Ok(LogState { last_purged_log_id: cache.purged, last_log_id: cache.last_log_id() })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = *vote;
        self.do_job(|done| Job::SaveVote { vote, done }).await?;
        self.cache.borrow_mut().vote = Some(vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let job = {
            let mut cache = self.cache.borrow_mut();
            let before = cache.last_log_id();
            let start = cache.entries.len();
            cache.entries.extend(entries);
            let frames: Vec<Vec<u8>> = cache.entries.range(start..).map(log_files::frame).collect();
            cache.sizes.extend(frames.iter().map(Vec::len));
            let bytes: usize = frames.iter().map(Vec::len).sum();
            cache.appended += bytes as u64;
            cache.room = cache.room.saturating_sub(bytes as u64);
            let Some(first) = cache.entries.get(start).map(|entry| entry.log_id.index) else {
                flushed.io_completed(Ok(()));
                return Ok(());
            };
            Job::Append { first, before, frames, flushed }
        };
        self.jobs.send(job).await.map_err(|_| stopped())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let index = last.map_or(0, |log_id| log_id.index + 1);
        {
            let mut cache = self.cache.borrow_mut();
            let kept = cache.position(index);
            cache.entries.truncate(kept);
            cache.sizes.truncate(kept);
            cache.room = 0;
        }
        self.do_job(|done| Job::Truncate { index, done }).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        {
            let mut cache = self.cache.borrow_mut();
            let gone = cache.position(upto.index + 1);
            cache.entries.drain(..gone);
            cache.sizes.drain(..gone);
            cache.purged = cache.purged.max(Some(upto));
        }
        self.do_job(|done| Job::Purge { upto, done }).await
    }
}

/// The writing task.
struct Writer<F: Files> {
    threads: FileThreads,
    /// Only one job at a time locks it; the lock is what lets it go to the file threads and back.
    log: Arc<Mutex<LogFiles<F>>>,
    vote: Arc<Mutex<VoteFile<F::File>>>,
}

impl<F: Files> Writer<F> {
    async fn run(self, mut waiting: mpsc::Receiver<Job>) {
        let mut jobs: Vec<Job> = Vec::new();
        let mut failed: Option<String> = None;
        while waiting.recv_many(&mut jobs, JOBS_WAITING_MAX).await > 0 {
            let mut batch = jobs.drain(..).peekable();
            while let Some(job) = batch.next() {
                let (work, answers) = match job {
                    Job::Append { first, before, mut frames, flushed } => {
                        let mut answers = vec![Answer::Flushed(flushed)];
                        while let Some(Job::Append { frames: more, flushed, .. }) =
                            batch.next_if(|job| matches!(job, Job::Append { .. }))
                        {
                            frames.extend(more);
                            answers.push(Answer::Flushed(flushed));
                        }
                        (Work::Append { first, before, frames }, answers)
                    }
                    Job::Truncate { index, done } => (Work::Truncate(index), vec![Answer::Done(done)]),
                    Job::Purge { upto, done } => (Work::Purge(upto), vec![Answer::Done(done)]),
                    Job::SaveVote { vote, done } => (Work::SaveVote(vote), vec![Answer::Done(done)]),
                    Job::Reserve { bytes, urgent, done } => {
                        let _ = done.send(self.reserve(bytes, urgent).await.map_err(io::Error::other));
                        continue;
                    }
                };
                let result = match &failed {
                    Some(reason) => Err(reason.clone()),
                    None => self.perform(work).await,
                };
                if let Err(reason) = &result {
                    failed.get_or_insert_with(|| reason.clone());
                }
                for answer in answers {
                    answer.send(&result);
                }
            }
        }
    }

    async fn reserve(&self, bytes: u64, urgent: bool) -> Result<Option<u64>, String> {
        let log = self.log.clone();
        let job = move || {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.reserve(bytes, urgent).map_err(|error| error.to_string())
        };
        self.threads.run("raft-log", job).await
    }

    async fn perform(&self, work: Work) -> Result<(), String> {
        let (log, vote_file) = (self.log.clone(), self.vote.clone());
        let job = move || {
            // A job that panicked ended the process: a poisoned lock cannot be seen.
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            match work {
                Work::Append { first, before, frames } => {
                    log.append(first, before, &frames).map_err(|error| error.to_string())
                }
                Work::Truncate(index) => log.truncate_from(index).map_err(|error| error.to_string()),
                Work::Purge(upto) => log.purge(upto).map_err(|error| error.to_string()),
                Work::SaveVote(vote) => vote_file
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .save(&vote)
                    .map_err(|error| format!("metadata vote: {error}")),
            }
        };
        self.threads.run("raft-log", job).await
    }
}

enum Work {
    Append { first: u64, before: Option<LogId>, frames: Vec<Vec<u8>> },
    Truncate(u64),
    Purge(LogId),
    SaveVote(Vote),
}

enum Answer {
    Flushed(IOFlushed<Types>),
    Done(oneshot::Sender<io::Result<()>>),
}

impl Answer {
    fn send(self, result: &Result<(), String>) {
        let result = result.clone().map_err(io::Error::other);
        match self {
            Answer::Flushed(flushed) => flushed.io_completed(result),
            Answer::Done(done) => {
                // openraft may have been shut down meanwhile.
                let _ = done.send(result);
            }
        }
    }
}

fn stopped() -> io::Error {
    io::Error::other("the metadata log was closed")
}
