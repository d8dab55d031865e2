//! openraft's state machine: applies entries to [`State`], publishes images, writes and installs snapshots.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use openraft::type_config::alias::SnapshotOf;
use openraft::{EntryPayload, OptionalSend};
use tokio::sync::watch;

use super::leadership;
use super::snapshots::{SnapshotError, Snapshots};
use super::types::{Entry, LogId, SnapshotMeta, StoredMembership, Types};
use crate::io::Files;
use crate::io::threads::FileThreads;
use crate::metadata::{Image, State};
use crate::peer::Roster;

/// A stored state on its way.
#[derive(Clone, Debug)]
pub struct SnapshotBytes(pub Vec<u8>);

/// What was applied so far. The machine writes it, the controller's driver reads it; both live on shard 0.
#[derive(Default)]
pub struct Applied {
    pub state: State,
    pub last: Option<LogId>,
    pub membership: StoredMembership,
}

impl Applied {
    /// The state as of a snapshot.
    pub fn from_snapshot(meta: &SnapshotMeta, bytes: &[u8]) -> io::Result<Self> {
        let index = meta.last_log_id.as_ref().map_or(0, |log_id| log_id.index);
        let state = State::decode(index, bytes).map_err(io::Error::other)?;
        Ok(Self { state, last: meta.last_log_id, membership: meta.last_membership.clone() })
    }

    pub fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.last, last_membership: self.membership.clone() }
    }

    /// Whoever checks hellos and dials goes by what the log says.
    pub fn pin(&self, roster: &Roster) {
        leadership::pin(roster, &self.membership, self.state.image().voters_change());
    }

    /// Whether the state has changed by it.
    pub fn apply(&mut self, entry: &Entry) -> io::Result<bool> {
        self.last = Some(entry.log_id);
        match &entry.payload {
            EntryPayload::Blank => Ok(false),
            EntryPayload::Normal(proposal) => {
                let applied = self.state.apply(entry.log_id.index, &proposal.records);
                applied.map(|()| true).map_err(io::Error::other)
            }
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership.clone());
                Ok(false)
            }
        }
    }
}

/// The state machine.
pub struct Machine<F> {
    applied: Rc<RefCell<Applied>>,
    images: watch::Sender<Arc<Image>>,
    snapshots: Snapshots<F>,
    threads: FileThreads,
    /// Whoever checks hellos goes by the members' directories as they are in the log.
    roster: Option<Rc<Roster>>,
}

impl<F: Files> Machine<F> {
    pub fn new(
        applied: Rc<RefCell<Applied>>,
        images: watch::Sender<Arc<Image>>,
        snapshots: Snapshots<F>,
        threads: FileThreads,
        roster: Option<Rc<Roster>>,
    ) -> Self {
        let machine = Self { applied, images, snapshots, threads, roster };
        machine.pin();
        machine
    }

    fn pin(&self) {
        if let Some(roster) = &self.roster {
            self.applied.borrow().pin(roster);
        }
    }

    fn publish(&self) {
        self.images.send_replace(Arc::new(self.applied.borrow().state.image().clone()));
    }
}

impl<F: Files> RaftStateMachine<Types> for Machine<F> {
    type SnapshotData = SnapshotBytes;
    type SnapshotBuilder = Builder<F>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let applied = self.applied.borrow();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        let mut responders = Vec::new();
        let mut changed = false;
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            changed |= self.applied.borrow_mut().apply(&entry)?;
            responders.extend(responder);
        }
        self.pin();
        // Whoever learns that its change is applied finds it in the published image.
        if changed {
            self.publish();
        }
        for responder in responders {
            responder.send(());
        }
        Ok(())
    }

    /// Writes the snapshot already here, because openraft gives up on a builder that fails, and a full disk
    /// must not end the broker: the log goes on until there is room.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder<F>> {
        let mut builder = self.get_snapshot_builder().await;
        let written = builder.write().await;
        match written {
            Err(error) if error.is_full() && !force => {
                tracing::warn!("no metadata snapshot: {error}");
                return None;
            }
            written => builder.written = Some(written),
        }
        Some(builder)
    }

    async fn get_snapshot_builder(&mut self) -> Builder<F> {
        let applied = self.applied.borrow();
        Builder {
            state: applied.state.clone(),
            meta: applied.meta(),
            snapshots: self.snapshots.clone(),
            threads: self.threads.clone(),
            written: None,
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotBytes) -> io::Result<()> {
        let installed = Applied::from_snapshot(meta, &snapshot.0)?;
        let (snapshots, head) = (self.snapshots.clone(), meta.clone());
        let write = move || snapshots.write(&head, &snapshot.0).map_err(io::Error::other);
        self.threads.run("raft-snapshot", write).await?;
        *self.applied.borrow_mut() = installed;
        self.pin();
        self.publish();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, SnapshotBytes>>> {
        let snapshots = self.snapshots.clone();
        let newest = self.threads.run("raft-snapshot", move || snapshots.newest()).await;
        let newest = newest.map_err(io::Error::other)?;
        Ok(newest.map(|(meta, bytes)| Snapshot { meta, snapshot: SnapshotBytes(bytes) }))
    }
}

/// Writes the state as it was when the builder was made.
pub struct Builder<F> {
    state: State,
    meta: SnapshotMeta,
    snapshots: Snapshots<F>,
    threads: FileThreads,
    /// What came of writing it.
    written: Option<Result<Vec<u8>, SnapshotError>>,
}

impl<F: Files> Builder<F> {
    async fn write(&self) -> Result<Vec<u8>, SnapshotError> {
        let (state, meta, snapshots) = (self.state.clone(), self.meta.clone(), self.snapshots.clone());
        let write = move || {
            let bytes = state.encode();
            snapshots.write(&meta, &bytes)?;
            Ok(bytes)
        };
        self.threads.run("raft-snapshot", write).await
    }
}

impl<F: Files> RaftSnapshotBuilder<Types> for Builder<F> {
    type SnapshotData = SnapshotBytes;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, SnapshotBytes>> {
        let written = match self.written.take() {
            Some(written) => written,
            None => self.write().await,
        };
        let bytes = written.map_err(io::Error::other)?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: SnapshotBytes(bytes) })
    }
}
