//! The metadata log on a node that has no vote: fetched from whoever leads, applied in memory, kept nowhere. A start begins
//! with what the leader has. Lives on shard 0.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use tokio::sync::watch;

use super::feed_wire::{self, Fed, FetchLog, Part};
use super::leadership::Leadership;
use super::machine::Applied;
use super::types::{Entry, SnapshotMeta};
use super::word::Word;
use crate::base::{BrokerId, crc32c};
use crate::io::runtime::{self, Notify, Queue};
use crate::metadata::{DecodeError, Image};
use crate::peer::{Lane, Links, PeerKey};

/// Before the next controller is asked who leads.
const SEARCH_PAUSE: Duration = Duration::from_millis(20);

/// A part of a snapshot may have to be made first.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(10);

/// Follows the log.
pub struct Observer {
    links: Rc<Links>,
    /// How soon a lost leader is noticed.
    patience: Duration,
    applied: RefCell<Applied>,
    /// `None` when it has ended.
    images: RefCell<Option<watch::Sender<Arc<Image>>>>,
    leadership: RefCell<Option<watch::Sender<Leadership>>>,
    incoming: RefCell<Option<Incoming>>,
    on_failure: Rc<dyn Fn(&str)>,
    has_ended: Cell<bool>,
    end: Notify,
}

/// A snapshot that is being received.
struct Incoming {
    index: u64,
    meta: SnapshotMeta,
    length: usize,
    crc: u32,
    /// Grows with what has come, whatever length was said.
    bytes: Vec<u8>,
}

/// Why the log cannot be followed.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("it is another log than the one that this node has followed")]
    OtherLog,
    #[error("an entry is missing before {0}")]
    Gap(u64),
    #[error("what a controller sent does not decode: {0}")]
    Unreadable(#[from] DecodeError),
    #[error("{0}")]
    Apply(#[from] io::Error),
}

/// What is to be done next.
enum Next {
    /// The same controller is asked for more.
    On,
    /// That one.
    Ask(BrokerId),
    /// Any other.
    Search,
}

impl Observer {
    /// Starts to follow. A leader that is silent for `patience` is looked for anew.
    pub fn start(
        links: Rc<Links>,
        patience: Duration,
        on_failure: Rc<dyn Fn(&str)>,
    ) -> (Rc<Self>, watch::Receiver<Arc<Image>>, watch::Receiver<Leadership>) {
        let applied = Applied::default();
        let (images, image) = watch::channel(Arc::new(applied.state.image().clone()));
        let nobody = Leadership { term: 0, leader: None, is_own: false };
        let (leadership, leader) = watch::channel(nobody);
        let observer = Rc::new(Self {
            links,
            patience,
            applied: RefCell::new(applied),
            images: RefCell::new(Some(images)),
            leadership: RefCell::new(Some(leadership)),
            incoming: RefCell::default(),
            on_failure,
            has_ended: Cell::new(false),
            end: Notify::new(),
        });
        let follower = observer.clone();
        runtime::spawn(Queue::Control, "metadata log", async move {
            follower.run().await;
            follower.images.take();
            follower.leadership.take();
        })
        .detach();
        (observer, image, leader)
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    pub fn end(&self) {
        self.has_ended.set(true);
        self.end.notify();
    }

    async fn run(&self) {
        let mut asked: Option<BrokerId> = None;
        let mut search = 0;
        while !self.has_ended.get() {
            let controller = match asked {
                Some(controller) => controller,
                None => match self.candidate(search) {
                    Some(controller) => controller,
                    None => return (self.on_failure)("no controller is known"),
                },
            };
            let next = match select(pin!(self.ask(controller)), pin!(self.end.notified())).await {
                Either::Left((next, _)) => next,
                Either::Right(_) => continue,
            };
            match next {
                Ok(Next::On) => asked = Some(controller),
                Ok(Next::Ask(leader)) if leader != controller => asked = Some(leader),
                Ok(Next::Ask(_) | Next::Search) => {
                    asked = None;
                    search += 1;
                    select(pin!(runtime::sleep(SEARCH_PAUSE)), pin!(self.end.notified())).await;
                }
                Err(broken) => {
                    return (self.on_failure)(&format!("the metadata log cannot be followed: {broken}"));
                }
            }
        }
    }

    /// Controllers and servers in turn.
    fn candidate(&self, number: usize) -> Option<BrokerId> {
        let roster = self.links.roster();
        let all: Vec<BrokerId> = roster.controllers().into_keys().chain(roster.servers()).collect();
        all.get(number.checked_rem(all.len())?).copied()
    }

    /// Asks once, and takes in what is answered.
    async fn ask(&self, controller: BrokerId) -> Result<Next, Broken> {
        let have = self.applied.borrow().last;
        let snapshot = self.incoming.borrow().as_ref().map(|it| (it.index, it.bytes.len()));
        let wait = self.patience / 2;
        let limit = if snapshot.is_some() || have.is_none() { SNAPSHOT_TIME_MAX } else { self.patience };
        let body = feed_wire::request(&FetchLog { have, snapshot, wait });
        let link = self.links.link(controller, Lane::Observe);
        let answer = match link.call(PeerKey::FetchLog, &body, limit).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(%controller, "the metadata log is not fetched: {error}");
                self.lose(controller);
                return Ok(Next::Search);
            }
        };
        let Fed { word: Word { term, leader, controllers }, part } = feed_wire::read_answer(&answer)?;
        let known = self.known();
        if term < known.term {
            // Whoever answers has not heard of the newest leader yet.
            return Ok(Next::Search);
        }
        // Those that the configuration names are where it says, until the voters change.
        if !controllers.is_empty() {
            self.links.roster().learn(controllers);
        }
        self.note(Leadership { term, leader, is_own: false });
        match part {
            Part::NotHere => Ok(leader.map_or(Next::Search, Next::Ask)),
            Part::OtherLog => Err(Broken::OtherLog),
            Part::Entries(entries) => self.apply(&entries).map(|()| Next::On),
            Part::Snapshot { meta, length, crc, offset, bytes } => {
                self.take_in(meta, length, crc, offset, bytes)?;
                Ok(Next::On)
            }
        }
    }

    fn apply(&self, entries: &[Entry]) -> Result<(), Broken> {
        *self.incoming.borrow_mut() = None;
        let mut changed = false;
        for entry in entries {
            let mut applied = self.applied.borrow_mut();
            let next = applied.last.map_or(0, |last| last.index + 1);
            if entry.log_id.index != next {
                return Err(Broken::Gap(entry.log_id.index));
            }
            changed |= applied.apply(entry)?;
        }
        if changed {
            self.publish();
        }
        if !entries.is_empty() {
            self.applied.borrow().pin(self.links.roster());
        }
        Ok(())
    }

    fn take_in(
        &self,
        meta: SnapshotMeta,
        length: usize,
        crc: u32,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Broken> {
        let index = meta.last_log_id.map_or(0, |log_id| log_id.index);
        let begun = self.incoming.take().filter(|incoming| {
            (incoming.index, incoming.length, incoming.crc, incoming.bytes.len())
                == (index, length, crc, offset)
        });
        let mut incoming = match begun {
            Some(incoming) => incoming,
            None if offset == 0 => Incoming { index, meta, length, crc, bytes: Vec::new() },
            // A part of one that is not on its way: from the beginning.
            None => return Ok(()),
        };
        incoming.bytes.extend_from_slice(bytes);
        if incoming.bytes.len() < incoming.length {
            *self.incoming.borrow_mut() = Some(incoming);
            return Ok(());
        }
        if crc32c::of(&incoming.bytes) != incoming.crc {
            return Err(io::Error::other("a snapshot's checksum differs").into());
        }
        let installed = Applied::from_snapshot(&incoming.meta, &incoming.bytes)?;
        // Never back: whoever asked before has seen what this node had.
        let index = |applied: &Applied| applied.last.map(|log_id| log_id.index);
        if index(&installed) <= index(&self.applied.borrow()) {
            return Err(Broken::OtherLog);
        }
        *self.applied.borrow_mut() = installed;
        self.applied.borrow().pin(self.links.roster());
        self.publish();
        Ok(())
    }

    fn publish(&self) {
        if let Some(images) = &*self.images.borrow() {
            images.send_replace(Arc::new(self.applied.borrow().state.image().clone()));
        }
    }

    fn known(&self) -> Leadership {
        let nobody = Leadership { term: 0, leader: None, is_own: false };
        self.leadership.borrow().as_ref().map_or(nobody, |sender| *sender.borrow())
    }

    fn note(&self, leadership: Leadership) {
        if let Some(sender) = &*self.leadership.borrow() {
            sender.send_if_modified(|known| {
                let differs = *known != leadership;
                if differs && let Some(leader) = leadership.leader {
                    tracing::info!(controller = %leader, term = leadership.term, "the controller");
                }
                *known = leadership;
                differs
            });
        }
    }

    /// It does not answer: if it led, somebody else may by now.
    fn lose(&self, controller: BrokerId) {
        let known = self.known();
        if known.leader == Some(controller) {
            self.note(Leadership { leader: None, ..known });
        }
    }
}
