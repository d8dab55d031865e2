//! Which brokers of a cluster have been heard of, and when: what the controller keeps in memory while it leads, and
//! forgets when it does not. Pure.
//!
//! A session lives for `broker.session.timeout.ms` after the last heartbeat *came*, however long that waits for its
//! turn. A controller that begins to lead knows nothing of the time before: every broker that is not fenced gets a whole
//! session.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::image::{BrokerImage, Image};
use crate::base::clock::Monotonic;
use crate::base::{BrokerEpoch, BrokerId};

/// A look at the sessions that comes so late says that this shard stood still, and with it what it should have heard.
const LATE: Duration = Duration::from_millis(100);

/// All of them.
pub struct Sessions {
    timeout: Duration,
    brokers: BTreeMap<BrokerId, Session>,
}

/// One registration's.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Session {
    epoch: BrokerEpoch,
    /// When it is over if nothing comes. `None`: a fenced broker that has not been heard of since this node leads.
    end: Option<Monotonic>,
    /// It was lengthened since the last heartbeat.
    is_forgiven: bool,
    /// Of the image that it said to have.
    metadata_version: u64,
    /// The broker is about to stop, and from this version of the image on others lead what it led.
    moved_at: Option<u64>,
}

impl Session {
    fn new(epoch: BrokerEpoch, end: Option<Monotonic>) -> Self {
        Self { epoch, end, is_forgiven: false, metadata_version: 0, moved_at: None }
    }
}

impl Sessions {
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, brokers: BTreeMap::new() }
    }

    /// This node has begun to lead.
    pub fn begin(&mut self, image: &Image, now: Monotonic) {
        let end = now.plus(self.timeout);
        self.brokers = image
            .brokers()
            .map(|broker| {
                let mut session = Session::new(broker.epoch, (!broker.fenced).then_some(end));
                session.moved_at = broker.shutting_down.then_some(image.version());
                (broker.id, session)
            })
            .collect();
    }

    /// A heartbeat has come. One of another registration says nothing.
    pub fn touch(&mut self, id: BrokerId, epoch: BrokerEpoch, now: Monotonic) {
        let end = now.plus(self.timeout);
        if let Some(session) = self.of(id, epoch) {
            session.end = session.end.max(Some(end));
            session.is_forgiven = false;
        }
    }

    pub(super) fn registered(&mut self, id: BrokerId, epoch: BrokerEpoch, now: Monotonic) {
        if self.of(id, epoch).is_none() {
            self.brokers.insert(id, Session::new(epoch, None));
        }
        self.touch(id, epoch, now);
    }

    /// What a heartbeat said, when its turn has come.
    pub(super) fn report(&mut self, id: BrokerId, epoch: BrokerEpoch, metadata_version: u64) {
        if let Some(session) = self.of(id, epoch) {
            session.metadata_version = session.metadata_version.max(metadata_version);
        }
    }

    /// The broker has been heard of within its session.
    pub(super) fn is_alive(&self, broker: &BrokerImage, now: Monotonic) -> bool {
        let session = self.brokers.get(&broker.id).filter(|session| session.epoch == broker.epoch);
        session.and_then(|session| session.end).is_some_and(|end| now < end)
    }

    /// From `version` of the image on others lead what the broker led.
    pub(super) fn moved(&mut self, id: BrokerId, epoch: BrokerEpoch, version: u64) {
        if let Some(session) = self.of(id, epoch) {
            session.moved_at = Some(version);
        }
    }

    /// Whether all that serve know that others lead what `broker` led.
    pub(super) fn is_moved_everywhere(&self, image: &Image, broker: &BrokerImage) -> bool {
        let moved_at = self.brokers.get(&broker.id).and_then(|session| session.moved_at).unwrap_or(0);
        let version = |other: &BrokerImage| {
            let session = self.brokers.get(&other.id).filter(|session| session.epoch == other.epoch);
            session.map_or(0, |session| session.metadata_version)
        };
        image.brokers().filter(|other| other.serves()).all(|other| version(other) >= moved_at)
    }

    /// When the next session ends if nothing comes.
    pub fn next_end(&self, image: &Image) -> Option<Monotonic> {
        self.living(image).map(|(_, end)| end).min()
    }

    /// The broker whose session is over the longest.
    pub fn ended<'a>(&self, image: &'a Image, now: Monotonic) -> Option<&'a BrokerImage> {
        let ended = self.living(image).filter(|(_, end)| *end <= now);
        ended.min_by_key(|(_, end)| *end).map(|(broker, _)| broker)
    }

    /// The look at the sessions that was due at `due` comes at `now`: what came meanwhile may lie unread. Once between two
    /// heartbeats of a broker it gets the time to be read.
    pub fn forgive(&mut self, due: Monotonic, now: Monotonic) {
        if now.since(due) < LATE {
            return;
        }
        let end_min = now.plus(self.timeout / 4);
        for session in self.brokers.values_mut().filter(|session| !session.is_forgiven) {
            session.end = session.end.map(|end| end.max(end_min));
            session.is_forgiven = true;
        }
    }

    /// The brokers that are not fenced, with the end of their sessions.
    fn living<'a>(&self, image: &'a Image) -> impl Iterator<Item = (&'a BrokerImage, Monotonic)> {
        image.brokers().filter(|broker| !broker.fenced).filter_map(|broker| {
            let session = self.brokers.get(&broker.id).filter(|session| session.epoch == broker.epoch)?;
            Some((&**broker, session.end?))
        })
    }

    fn of(&mut self, id: BrokerId, epoch: BrokerEpoch) -> Option<&mut Session> {
        self.brokers.get_mut(&id).filter(|session| session.epoch == epoch)
    }
}
