//! The metadata log for nodes that have no vote: they fetch what is committed from whoever leads. Lives on shard 0.
//!
//! Only what this node has applied is given away, so nothing that an observer has is ever taken back.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use openraft::async_runtime::WatchReceiver as _;

use super::describe::Followers;
use super::feed_wire::{self, Fed, FetchLog, PART_BYTES_MAX, Part};
use super::leadership::{Leadership, Metrics};
use super::log_store::{Behind, LogStore};
use super::machine::Applied;
use super::types::SnapshotMeta;
use super::word::Word;
use crate::base::clock::{self, Monotonic};
use crate::base::crc32c;
use crate::io::runtime::{self, Queue};
use crate::io::threads::FileThreads;
use crate::peer::{Identity, PeerError, Roster};

/// However long an observer wants to wait.
const WAIT_MAX: Duration = Duration::from_secs(5);

const ENTRIES_MAX: usize = 1000;

/// A snapshot for observers stays in memory so long after the last part of it was asked for.
const SNAPSHOT_KEPT: Duration = Duration::from_secs(30);

/// What a member of the quorum has for observers.
pub struct Feed {
    pub log: LogStore,
    pub applied: Rc<RefCell<Applied>>,
    pub metrics: Metrics,
    pub roster: Rc<Roster>,
    pub threads: FileThreads,
    pub followers: Rc<RefCell<Followers>>,
    /// The same for all who need one.
    pub snapshot: RefCell<Option<Snapshot>>,
}

/// The state as of an entry, encoded.
#[derive(Clone)]
pub struct Snapshot {
    meta: SnapshotMeta,
    crc: u32,
    bytes: Arc<Vec<u8>>,
    used_at: Monotonic,
}

impl Snapshot {
    fn index(&self) -> u64 {
        self.meta.last_log_id.map_or(0, |log_id| log_id.index)
    }
}

impl Feed {
    /// The body of the answer to what `from` wants.
    pub async fn answer(self: &Rc<Self>, from: &Identity, body: &[u8]) -> Result<Vec<u8>, PeerError> {
        let wanted = feed_wire::read_request(body).map_err(|error| {
            tracing::warn!(node = %from.node, "a request for the metadata log does not decode: {error}");
            PeerError::Malformed("a body that does not decode")
        })?;
        let until = clock::monotonic().plus(wanted.wait.min(WAIT_MAX));
        let mut metrics = self.metrics.clone();
        let have = wanted.have.map(|have| have.index);
        let mut is_noted = false;
        loop {
            // What changes from here on is noticed.
            drop(metrics.borrow_and_update());
            let leadership = Leadership::of(&self.metrics);
            if !leadership.is_own {
                return Ok(self.say(leadership, Part::NotHere));
            }
            let last = self.applied.borrow().last.map(|log_id| log_id.index);
            let now = clock::monotonic();
            if !std::mem::replace(&mut is_noted, true) {
                self.followers.borrow_mut().note_observer(from, have, last.map_or(0, |last| last + 1), now);
            }
            let is_behind = last.is_some_and(|last| have.is_none_or(|have| have < last));
            if is_behind || have > last || now >= until {
                return self.part(leadership, &wanted, last).await;
            }
            match select(pin!(metrics.changed()), pin!(runtime::sleep(until.since(now)))).await {
                Either::Left((Err(_), _)) => return Err(PeerError::Closed),
                Either::Left((Ok(()), _)) | Either::Right(_) => {}
            }
        }
    }

    async fn part(
        self: &Rc<Self>,
        leadership: Leadership,
        wanted: &FetchLog,
        last: Option<u64>,
    ) -> Result<Vec<u8>, PeerError> {
        if wanted.have.map(|have| have.index) > last {
            return Ok(self.say(leadership, Part::OtherLog));
        }
        let behind = self.log.behind(wanted.have, last.unwrap_or(0), ENTRIES_MAX);
        let part = match behind {
            Behind::OtherLog => Part::OtherLog,
            Behind::Entries(entries) => Part::Entries(entries),
            Behind::Purged => return self.snapshot_part(leadership, wanted.snapshot).await,
        };
        Ok(self.say(leadership, part))
    }

    async fn snapshot_part(
        self: &Rc<Self>,
        leadership: Leadership,
        wanted: Option<(u64, usize)>,
    ) -> Result<Vec<u8>, PeerError> {
        let kept = self.kept();
        let (snapshot, offset) = match (kept, wanted) {
            (Some(kept), Some((index, offset))) if index == kept.index() && offset <= kept.bytes.len() => {
                (kept, offset)
            }
            (Some(kept), _) if self.leads_on(&kept) => (kept, 0),
            _ => (self.make().await, 0),
        };
        let end = snapshot.bytes.len().min(offset + PART_BYTES_MAX);
        let bytes = &snapshot.bytes[offset..end];
        let length = snapshot.bytes.len();
        let (meta, crc) = (snapshot.meta.clone(), snapshot.crc);
        Ok(self.say(leadership, Part::Snapshot { meta, length, crc, offset, bytes }))
    }

    fn kept(&self) -> Option<Snapshot> {
        let mut kept = self.snapshot.borrow_mut();
        if let Some(kept) = &mut *kept {
            kept.used_at = clock::monotonic();
        }
        kept.clone()
    }

    /// Whether the log has what comes behind that snapshot.
    fn leads_on(&self, snapshot: &Snapshot) -> bool {
        matches!(self.log.behind(snapshot.meta.last_log_id, 0, 0), Behind::Entries(_))
    }

    async fn make(self: &Rc<Self>) -> Snapshot {
        let (state, meta) = {
            let applied = self.applied.borrow();
            (applied.state.clone(), applied.meta())
        };
        let bytes = Arc::new(self.threads.run("raft-snapshot", move || state.encode()).await);
        let (crc, used_at) = (crc32c::of(&bytes), clock::monotonic());
        let made = Snapshot { meta, crc, bytes, used_at };
        if self.snapshot.replace(Some(made.clone())).is_none() {
            let feed = self.clone();
            runtime::spawn(Queue::Control, "snapshot for observers", async move { feed.forget().await })
                .detach();
        }
        made
    }

    /// Lets the snapshot go when nobody has asked for it for a while.
    async fn forget(&self) {
        loop {
            let until = match &*self.snapshot.borrow() {
                Some(snapshot) => snapshot.used_at.plus(SNAPSHOT_KEPT),
                None => return,
            };
            let now = clock::monotonic();
            if now >= until {
                *self.snapshot.borrow_mut() = None;
                return;
            }
            runtime::sleep(until.since(now)).await;
        }
    }

    fn say(&self, leadership: Leadership, part: Part<'_>) -> Vec<u8> {
        feed_wire::answer(&Fed { word: Word::of(leadership, &self.roster), part })
    }
}
