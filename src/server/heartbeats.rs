//! Drives a broker's [`Lifecycle`]: heartbeats to the controller, a new registration where the old one is gone. Lives on
//! shard 0, in a task of its own that nothing slow is before.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, select};

use super::publish::Publisher;
use super::road::Road;
use crate::base::BrokerEpoch;
use crate::base::clock::{self, Monotonic};
use crate::config::ClusterConfig;
use crate::io::runtime::{Notify, Queue, sleep, spawn};
use crate::metadata::RegisterBroker;
use crate::replica::{Effect, Lifecycle};

/// How often whoever waits for the controller's word looks whether it has come.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A stop waits no longer to be let go.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(30);
/// Nor, without any answer, longer than this, and than two controllers that are lost one after the other.
const SILENCE_MIN: Duration = Duration::from_secs(3);
/// So long a broker that was let go answers on: who sends to it hears who leads now. Of one that just hangs up librdkafka learns
/// it after a second.
const FAREWELL: Duration = Duration::from_millis(100);

/// The heartbeats of this broker.
pub(super) struct Heartbeats {
    road: Rc<Road>,
    publisher: Rc<Publisher>,
    registration: RegisterBroker,
    life: RefCell<Lifecycle>,
    wake: Notify,
    answered_at: Cell<Monotonic>,
    has_ended: Cell<bool>,
}

impl Heartbeats {
    pub(super) fn start(
        road: Rc<Road>,
        publisher: Rc<Publisher>,
        registration: RegisterBroker,
        epoch: BrokerEpoch,
        config: &ClusterConfig,
    ) -> Rc<Self> {
        let now = clock::monotonic();
        let life = Lifecycle::new(registration.id, epoch, config.heartbeat_interval, now);
        let heartbeats = Rc::new(Self {
            road,
            publisher,
            registration,
            life: RefCell::new(life),
            wake: Notify::new(),
            answered_at: Cell::new(now),
            has_ended: Cell::new(false),
        });
        let driver = heartbeats.clone();
        spawn(Queue::Control, "heartbeats", async move { driver.run().await }).detach();
        heartbeats
    }

    async fn run(&self) {
        while !self.has_ended.get() {
            let now = clock::monotonic();
            let due = self.life.borrow().due();
            if due > now {
                match select(pin!(sleep(due.since(now))), pin!(self.wake.notified())).await {
                    Either::Left(_) => {}
                    Either::Right(_) => continue,
                }
            }
            let beat = self.life.borrow().beat(self.publisher.published());
            let answer = self.road.beat(beat).await;
            let now = clock::monotonic();
            let code = match answer {
                Ok(Ok(state)) => {
                    self.answered_at.set(now);
                    self.life.borrow_mut().answered(state, now);
                    continue;
                }
                Ok(Err(code)) => Some(code),
                Err(error) => {
                    tracing::debug!("a heartbeat was not answered: {error}");
                    None
                }
            };
            let effect = self.life.borrow_mut().failed(code, now);
            if effect == Effect::RegisterAgain && !self.has_ended.get() {
                tracing::warn!(?code, "the controller does not know this broker as it is registered");
                if let Ok(Ok(epoch)) = self.road.register(&self.registration).await {
                    self.life.borrow_mut().registered(epoch, clock::monotonic());
                }
            }
        }
    }

    /// Something has changed that others wait to hear of.
    pub(super) fn hurry(&self) {
        self.life.borrow_mut().hurry(clock::monotonic());
        self.wake.notify();
    }

    pub(super) fn epoch(&self) -> BrokerEpoch {
        self.life.borrow().epoch()
    }

    /// The broker is ready to lead; returns when the controller has let it, and every shard knows.
    pub(super) async fn come_into_service(&self) {
        self.life.borrow_mut().ready(clock::monotonic());
        self.wake.notify();
        let version = loop {
            match self.unfenced_version() {
                Some(version) => break version,
                None => sleep(LOOK_EVERY).await,
            }
        };
        while self.publisher.published() < version {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Of the image here, if the broker is in service in it.
    fn unfenced_version(&self) -> Option<u64> {
        let image = self.road.quorum().image();
        let is_unfenced = image.broker(self.registration.id).is_some_and(|broker| broker.serves());
        (is_unfenced && self.life.borrow().is_unfenced()).then(|| image.version())
    }

    /// Has others lead what this broker leads, and tells the controller that it is gone. Gives up when nobody answers.
    pub(super) async fn shut_down(&self, failover: Duration) {
        let begun = clock::monotonic();
        let silence_max = SILENCE_MIN.max(failover.saturating_mul(2));
        self.answered_at.set(begun);
        self.life.borrow_mut().stop(begun);
        self.wake.notify();
        while !self.life.borrow().may_stop() {
            let now = clock::monotonic();
            if now.since(begun) > SHUTDOWN_TIME_MAX || now.since(self.answered_at.get()) > silence_max {
                tracing::warn!(
                    "stopping though the controller has not let this broker go: what it leads has no leader until its \
                     session is over"
                );
                break;
            }
            sleep(LOOK_EVERY).await;
        }
        if self.life.borrow().may_stop() {
            sleep(FAREWELL).await;
        }
        self.end();
    }

    /// No more heartbeats.
    pub(super) fn end(&self) {
        self.has_ended.set(true);
        self.wake.notify();
    }
}
