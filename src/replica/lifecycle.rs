//! What a broker tells the controller of itself, and when (`BrokerLifecycleManager`). Pure.
//!
//! It says that it is there every `broker.heartbeat.interval.ms`; more often while it waits for something: to be
//! unfenced when it is ready, to be let go when it wants to stop.

use std::time::Duration;

use crate::base::clock::Monotonic;
use crate::base::{BrokerEpoch, BrokerId};
use crate::metadata::{BrokerState, Heartbeat};
use crate::wire::ErrorCode;

/// While it waits for something.
const EAGER_INTERVAL: Duration = Duration::from_millis(50);
/// After an attempt that failed; twice that after the next, and so on.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);

/// One registration's life.
pub struct Lifecycle {
    id: BrokerId,
    epoch: BrokerEpoch,
    interval: Duration,
    is_ready: bool,
    is_stopping: bool,
    /// What the controller said last.
    state: BrokerState,
    failures: u32,
    due: Monotonic,
}

/// What an answer asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    None,
    /// The controller does not know this registration any more.
    RegisterAgain,
}

impl Lifecycle {
    /// Begins fenced, with a first heartbeat at once.
    pub fn new(id: BrokerId, epoch: BrokerEpoch, interval: Duration, now: Monotonic) -> Self {
        let state = BrokerState { is_caught_up: false, is_fenced: true, should_shut_down: false };
        Self { id, epoch, interval, is_ready: false, is_stopping: false, state, failures: 0, due: now }
    }

    pub fn epoch(&self) -> BrokerEpoch {
        self.epoch
    }

    /// The logs are open and clients are let in.
    pub fn ready(&mut self, now: Monotonic) {
        self.is_ready = true;
        self.hurry(now);
    }

    /// From here on it wants to be let go.
    pub fn stop(&mut self, now: Monotonic) {
        self.is_stopping = true;
        self.failures = 0;
        self.hurry(now);
    }

    /// The next heartbeat is due now: there is something that others wait to hear.
    pub fn hurry(&mut self, now: Monotonic) {
        if self.failures == 0 {
            self.due = self.due.min(now);
        }
    }

    pub fn due(&self) -> Monotonic {
        self.due
    }

    /// In service, as the controller said last.
    pub fn is_unfenced(&self) -> bool {
        !self.state.is_fenced
    }

    /// Nobody needs it any more.
    pub fn may_stop(&self) -> bool {
        self.is_stopping && self.state.should_shut_down
    }

    /// What to say now, with the version of the image that all shards have.
    pub fn beat(&self, metadata_version: u64) -> Heartbeat {
        Heartbeat {
            id: self.id,
            epoch: self.epoch,
            metadata_version,
            wants_fence: !self.is_ready,
            wants_shutdown: self.is_stopping,
        }
    }

    pub fn answered(&mut self, state: BrokerState, now: Monotonic) {
        self.failures = 0;
        self.state = state;
        let is_waiting = match self.is_stopping {
            true => !state.should_shut_down,
            false => self.is_ready && state.is_fenced,
        };
        self.due = now.plus(if is_waiting { EAGER_INTERVAL.min(self.interval) } else { self.interval });
    }

    /// Refused with a code, or not answered at all.
    pub fn failed(&mut self, code: Option<ErrorCode>, now: Monotonic) -> Effect {
        let pause = RETRY_PAUSE_MIN.saturating_mul(1 << self.failures.min(16)).min(self.interval);
        self.failures = self.failures.saturating_add(1);
        self.due = now.plus(pause);
        match code {
            Some(ErrorCode::StaleBrokerEpoch | ErrorCode::BrokerIdNotRegistered) => Effect::RegisterAgain,
            _ => Effect::None,
        }
    }

    /// Under another epoch, and fenced again.
    pub fn registered(&mut self, epoch: BrokerEpoch, now: Monotonic) {
        self.epoch = epoch;
        self.state = BrokerState { is_caught_up: false, is_fenced: true, should_shut_down: false };
        self.failures = 0;
        self.due = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(2000);

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_millis(ms)
    }

    fn life() -> Lifecycle {
        Lifecycle::new(BrokerId(1), BrokerEpoch(7), INTERVAL, at(0))
    }

    fn state(is_fenced: bool, should_shut_down: bool) -> BrokerState {
        BrokerState { is_caught_up: true, is_fenced, should_shut_down }
    }

    #[test]
    fn it_wants_to_be_fenced_until_it_is_ready_and_then_waits_eagerly() {
        let mut life = life();
        assert_eq!(life.due(), at(0));
        assert!(life.beat(9).wants_fence && !life.beat(9).wants_shutdown);
        life.answered(state(true, false), at(10));
        assert_eq!(life.due(), at(2010), "there is nothing to wait for");
        life.ready(at(500));
        assert_eq!(life.due(), at(500));
        assert!(!life.beat(9).wants_fence);
        life.answered(state(true, false), at(510));
        assert_eq!(life.due(), at(560));
        assert!(!life.is_unfenced());
        life.answered(state(false, false), at(570));
        assert_eq!(life.due(), at(2570));
        assert!(life.is_unfenced());
    }

    #[test]
    fn it_stops_when_it_is_let_go() {
        let mut life = life();
        life.ready(at(0));
        life.answered(state(false, false), at(0));
        life.stop(at(100));
        assert!(life.beat(9).wants_shutdown && life.due() == at(100));
        life.answered(state(false, false), at(110));
        assert_eq!((life.may_stop(), life.due()), (false, at(160)));
        life.answered(state(true, true), at(170));
        assert!(life.may_stop());
    }

    #[test]
    fn failures_are_tried_again_sooner_than_the_next_heartbeat_would_come() {
        let mut life = life();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert_eq!(life.failed(None, at(0)), Effect::None);
            pauses.push(life.due().as_millis());
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        life.hurry(at(5));
        assert_eq!(life.due(), at(2000), "a controller that is not there is not asked all the time");
        life.answered(state(true, false), at(100));
        life.failed(Some(ErrorCode::NotController), at(200));
        assert_eq!(life.due(), at(250));
    }

    #[test]
    fn a_registration_that_is_gone_is_made_anew() {
        let mut life = life();
        life.ready(at(0));
        life.answered(state(false, false), at(0));
        assert_eq!(life.failed(Some(ErrorCode::StaleBrokerEpoch), at(10)), Effect::RegisterAgain);
        life.registered(BrokerEpoch(9), at(20));
        assert_eq!((life.beat(1).epoch, life.due(), life.is_unfenced()), (BrokerEpoch(9), at(20), false));
        assert_eq!(life.failed(Some(ErrorCode::BrokerIdNotRegistered), at(10)), Effect::RegisterAgain);
    }
}
