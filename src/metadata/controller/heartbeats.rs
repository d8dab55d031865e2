//! What becomes of a broker with its heartbeat (`BrokerHeartbeatManager.calculateNextBrokerState`): a cluster's brokers
//! begin fenced, are unfenced when they have caught up and are ready, and stop when others lead what they led.

use super::super::command::{BrokerState, Command, Heartbeat, Refusal, Response};
use super::super::image::{BrokerImage, Image};
use super::super::record::{BrokerChange, Record, Stamp};
use super::brokers::check_epoch;
use super::{Controller, Decision};
use crate::base::BrokerId;
use crate::base::clock::Monotonic;
use crate::wire::ErrorCode;

/// What a heartbeat leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Nothing changes.
    Stay,
    Unfence,
    Fence,
    /// Others shall lead what it leads.
    BeginShutdown,
    /// It leads nothing, and everybody knows.
    ShutDown,
}

impl Controller {
    pub(super) fn heartbeat(&mut self, image: &Image, beat: Heartbeat) -> Result<Decision, Refusal> {
        let Some(stamp) = self.settings.cluster.as_ref().map(|cluster| cluster.stamp) else {
            return Err(Refusal::new(ErrorCode::InvalidRequest, "This is the cluster's only node."));
        };
        let broker = check_epoch(image, beat.id, beat.epoch)?;
        let mut sessions = self.sessions.borrow_mut();
        sessions.report(beat.id, beat.epoch, beat.metadata_version);
        let is_caught_up = i64::try_from(beat.metadata_version).is_ok_and(|version| version >= beat.epoch.0);
        let next = next(
            broker,
            beat,
            is_caught_up,
            || leads_something(image, beat.id),
            || sessions.is_moved_everywhere(image, broker),
        );
        let change = |fenced, shutting_down| {
            let (id, epoch, rules) = (beat.id, beat.epoch, stamp);
            Record::BrokerChanged(BrokerChange { id, epoch, fenced, shutting_down, is_unclean: false, rules })
        };
        let record = match next {
            Next::Stay => None,
            Next::Unfence => Some(change(Some(false), broker.shutting_down.then_some(false))),
            Next::Fence => Some(change(Some(true), None)),
            Next::BeginShutdown => {
                // The entry's own index is at least this.
                sessions.moved(beat.id, beat.epoch, image.version() + 1);
                Some(change(None, Some(true)))
            }
            Next::ShutDown => (!broker.fenced).then(|| change(Some(true), None)),
        };
        let is_fenced = match next {
            Next::Unfence => false,
            Next::Fence | Next::ShutDown => true,
            Next::Stay | Next::BeginShutdown => broker.fenced,
        };
        let state = BrokerState { is_caught_up, is_fenced, should_shut_down: next == Next::ShutDown };
        Ok(Decision { records: record.into_iter().collect(), response: Response::Heartbeat(state) })
    }

    /// When the controller has to look by itself.
    pub fn next_due(&self, image: &Image) -> Option<Monotonic> {
        self.settings.cluster.as_ref()?;
        self.sessions.borrow().next_end(image).into_iter().chain(self.timers.next()).min()
    }

    /// What the controller asks of itself: a broker whose session is over is fenced, and what the time has come for.
    pub fn due(&mut self, image: &Image, now: Monotonic) -> Option<Command> {
        if let Some(broker) = self.sessions.borrow().ended(image, now) {
            return Some(Command::FenceBroker { id: broker.id, epoch: broker.epoch });
        }
        self.periodic(image, now)
    }
}

/// Fences or unfences by the rule of clusters.
pub(super) fn fence(broker: &BrokerImage, fenced: bool, rules: Stamp) -> Record {
    let (id, epoch) = (broker.id, broker.epoch);
    let fenced = Some(fenced);
    Record::BrokerChanged(BrokerChange { id, epoch, fenced, shutting_down: None, is_unclean: false, rules })
}

fn next(
    broker: &BrokerImage,
    beat: Heartbeat,
    is_caught_up: bool,
    leads: impl FnOnce() -> bool,
    is_moved_everywhere: impl FnOnce() -> bool,
) -> Next {
    match (broker.fenced, broker.shutting_down) {
        (true, _) if beat.wants_shutdown => Next::ShutDown,
        (true, _) if !beat.wants_fence && is_caught_up => Next::Unfence,
        (true, _) => Next::Stay,
        (false, true) if is_moved_everywhere() => Next::ShutDown,
        (false, true) => Next::Stay,
        (false, false) if beat.wants_shutdown => {
            if leads() {
                Next::BeginShutdown
            } else {
                Next::ShutDown
            }
        }
        (false, false) if beat.wants_fence => Next::Fence,
        (false, false) => Next::Stay,
    }
}

fn leads_something(image: &Image, id: BrokerId) -> bool {
    let mut partitions = image.topics().flat_map(|topic| &topic.partitions);
    partitions.any(|partition| partition.leader == Some(id))
}

#[cfg(test)]
#[path = "heartbeats_tests.rs"]
mod tests;
