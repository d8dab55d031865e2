//! Shard 0's driver of the group coordinator: hands requests and time to
//! [`crate::coordinator::Coordinator`] and does what it asks for. The driver decides nothing about groups.
//!
//! Appends go through [`super::coordinator_log`]; loading is in [`super::group_loader`].

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use slab::Slab;

use super::coordinator_log::{Appending, Appends, send_appends};
use super::internal_topics::CONSUMER_OFFSETS;
use crate::base::clock::{self, Monotonic, Now};
use crate::base::random::Random;
use crate::base::{Offset, PartitionIndex, TopicId, TopicName};
use crate::coordinator::{Client, Coordinator, Effect, ReplyToken, Request, Ticket};
use crate::io::runtime::{Notify, Queue, spawn};
use crate::metadata::Image;
use crate::shard::messages::{ControlReply, Reply};
use crate::shard::{Answer, PartitionKey, Shard};
use crate::wire::ErrorCode;

/// Requests that wait for one partition to be loaded; further ones are told to ask again.
const WAITING_MAX: usize = 1024;
/// How long the timer sleeps when the coordinator waits for nothing.
const IDLE_SLEEP: Duration = Duration::from_secs(3600);

/// One ownership of a partition, so that a loader sees that it is out of date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LoadId(u64);

pub struct Driver {
    pub(super) shard: Rc<Shard>,
    coordinator: RefCell<Coordinator>,
    /// Who waits; a token is an index here.
    answers: RefCell<Slab<Answer>>,
    appends: Appends,
    /// When the timer task will look next.
    armed_until: Cell<Monotonic>,
    rearm: Notify,
    image: RefCell<Arc<Image>>,
    /// The topic whose partitions are in `led`.
    topic: Cell<Option<TopicId>>,
    led: RefCell<HashMap<PartitionIndex, LoadId>>,
    next_load: Cell<u64>,
    /// Requests for partitions whose loading has just begun: it takes milliseconds when the log is short,
    /// and a client that is told COORDINATOR_LOAD_IN_PROGRESS waits for seconds.
    waiting: RefCell<HashMap<PartitionIndex, Vec<Waiting>>>,
    /// To be loaded once all shards know of it.
    coming: RefCell<Vec<(PartitionKey, LoadId)>>,
    pub(super) loads: RefCell<VecDeque<(PartitionKey, LoadId)>>,
    pub(super) loaders: Cell<usize>,
}

struct Waiting {
    request: Request,
    client: Client,
    answer: Answer,
}

impl Driver {
    /// Makes the driver and starts its tasks; it owns nothing until [`Driver::expect`].
    pub fn start(shard: &Rc<Shard>) -> Rc<Self> {
        let groups = shard.config().groups.clone();
        let partition_count = groups.offsets_topic_partitions;
        let coordinator = Coordinator::new(groups, partition_count, Random::from_os(), clock::now());
        let driver = Rc::new(Self {
            shard: shard.clone(),
            coordinator: RefCell::new(coordinator),
            answers: RefCell::default(),
            appends: Appends::new(),
            armed_until: Cell::new(Monotonic::ZERO),
            rearm: Notify::new(),
            image: RefCell::new(Arc::new(Image::default())),
            topic: Cell::new(None),
            led: RefCell::default(),
            next_load: Cell::new(0),
            waiting: RefCell::default(),
            coming: RefCell::default(),
            loads: RefCell::default(),
            loaders: Cell::new(0),
        });
        spawn(Queue::Control, "coordinator timer", driver.clone().keep_time()).detach();
        spawn(Queue::Control, "coordinator appends", send_appends(driver.clone())).detach();
        driver
    }

    /// Serves a request; the answer is sent at once or when its group is ready.
    pub fn handle(self: &Rc<Self>, request: Request, client: Client, mut answer: Answer) {
        if let Some(id) = request.group_id()
            && !matches!(request, Request::Heartbeat(_))
        {
            let partition = self.coordinator.borrow().partition_of(id);
            let mut waiting = self.waiting.borrow_mut();
            if let Some(list) = waiting.get_mut(&partition).filter(|list| list.len() < WAITING_MAX) {
                answer.park();
                list.push(Waiting { request, client, answer });
                return;
            }
        }
        let key = self.answers.borrow_mut().insert(answer);
        let token = ReplyToken(key as u64);
        self.drive(|coordinator, now| coordinator.handle(request, &client, token, now));
        if let Some(answer) = self.answers.borrow_mut().get_mut(key) {
            // It may wait for minutes: others must not be held up by the credit it came with.
            answer.park();
        }
    }

    /// The cluster is about to change: leaderships of the offsets topic come and go. To be called before the
    /// shards know it, so that a client which hears of it first finds its request waited for.
    pub fn expect(self: &Rc<Self>, image: &Image) {
        let topic = image.topic(CONSUMER_OFFSETS);
        let id = topic.map(|topic| topic.id);
        if self.topic.replace(id) != id {
            self.unload_all();
            if let Some(topic) = topic {
                let count = topic.partitions.len() as i32;
                self.coordinator.borrow_mut().set_partition_count(count);
            }
        }
        let Some(topic) = topic else { return };
        let me = Some(self.shard.settings().broker);
        for (index, partition) in topic.partitions.iter().enumerate() {
            let index = PartitionIndex(index as i32);
            let was_led = self.led.borrow().contains_key(&index);
            match (was_led, partition.leader == me) {
                (false, true) => self.load(PartitionKey { topic: topic.id, partition: index }),
                (true, false) => self.unload(index),
                _ => {}
            }
        }
    }

    /// The cluster has changed, on every shard: what was expected is loaded, and the offsets of deleted
    /// topics go.
    pub fn image_changed(self: &Rc<Self>, image: &Arc<Image>) {
        let old = self.image.replace(image.clone());
        self.drive(|coordinator, _| coordinator.cluster_changed(image.clone()));
        let coming = std::mem::take(&mut *self.coming.borrow_mut());
        for load in coming {
            self.loads.borrow_mut().push_back(load);
            self.start_loader();
        }
        let removed = image.changes_since(&old).topics_removed;
        let names: Vec<TopicName> = removed.iter().map(|topic| topic.name.clone()).collect();
        if !names.is_empty() {
            self.drive(|coordinator, now| coordinator.topics_deleted(&names, now));
        }
    }

    /// Sends everybody who waits to look for another coordinator: the broker goes down.
    pub fn stop(self: &Rc<Self>) {
        self.loads.borrow_mut().clear();
        self.unload_all();
    }

    /// Looks at the coordinator without changing it.
    pub fn look<R>(&self, look: impl FnOnce(&Coordinator) -> R) -> R {
        look(&self.coordinator.borrow())
    }

    /// Runs `act` on the coordinator and does what it asks for.
    pub(super) fn drive<R>(self: &Rc<Self>, act: impl FnOnce(&mut Coordinator, Now) -> R) -> R {
        let (result, effects, deadline) = {
            let mut coordinator = self.coordinator.borrow_mut();
            let result = act(&mut coordinator, clock::now());
            (result, coordinator.drain_effects(), coordinator.next_deadline())
        };
        for effect in effects {
            self.perform(effect);
        }
        if deadline.is_some_and(|deadline| deadline < self.armed_until.get()) {
            self.rearm.notify();
        }
        result
    }

    /// Serves what has waited for a partition: it is loaded, or that takes longer.
    pub(super) fn release(self: &Rc<Self>, partition: PartitionIndex) {
        let waiting = self.waiting.borrow_mut().remove(&partition).unwrap_or_default();
        for Waiting { request, client, answer } in waiting {
            self.handle(request, client, answer);
        }
    }

    /// Whether this ownership of the partition still stands.
    pub(super) fn is_current(&self, partition: PartitionIndex, load: LoadId) -> bool {
        self.led.borrow().get(&partition) == Some(&load)
    }

    pub(super) fn image(&self) -> Arc<Image> {
        self.image.borrow().clone()
    }

    fn perform(&self, effect: Effect) {
        match effect {
            Effect::Reply { token, response } => {
                let answer = self.answers.borrow_mut().remove(token.0 as usize);
                answer.send(Reply::Control(ControlReply::Group(Box::new(response))));
            }
            Effect::Append { partition, content, ticket } => self.appends.push(partition, content, ticket),
        }
    }

    fn load(self: &Rc<Self>, key: PartitionKey) {
        let load = LoadId(self.next_load.get());
        self.next_load.set(load.0 + 1);
        self.led.borrow_mut().insert(key.partition, load);
        self.waiting.borrow_mut().entry(key.partition).or_default();
        self.drive(|coordinator, now| coordinator.load(key.partition, now));
        self.coming.borrow_mut().push((key, load));
    }

    fn unload(self: &Rc<Self>, partition: PartitionIndex) {
        self.led.borrow_mut().remove(&partition);
        self.drive(|coordinator, now| coordinator.unload(partition, now));
        self.release(partition);
    }

    fn unload_all(self: &Rc<Self>) {
        let led: Vec<PartitionIndex> = self.led.borrow().keys().copied().collect();
        led.into_iter().for_each(|partition| self.unload(partition));
    }

    async fn keep_time(self: Rc<Self>) {
        while !self.shard.is_stopping() {
            self.drive(|coordinator, now| coordinator.advance(now));
            let deadline = self.coordinator.borrow().next_deadline();
            let deadline = deadline.unwrap_or_else(|| clock::monotonic().plus(IDLE_SLEEP));
            self.armed_until.set(deadline);
            let mut sleep = pin!(self.shard.sleep_until(deadline));
            std::future::poll_fn(|context| {
                if self.rearm.poll_notified(context).is_ready() {
                    return Poll::Ready(());
                }
                sleep.as_mut().poll(context)
            })
            .await;
        }
    }
}

impl Appending for Driver {
    fn shard(&self) -> &Rc<Shard> {
        &self.shard
    }

    fn appends(&self) -> &Appends {
        &self.appends
    }

    fn topic(&self) -> Option<TopicId> {
        self.topic.get()
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.shard.config().groups.offsets_commit_timeout_ms.max(1) as u64)
    }

    fn appended(self: &Rc<Self>, tickets: &[Ticket], result: Result<Offset, ErrorCode>) {
        self.drive(|coordinator, now| {
            for ticket in tickets {
                coordinator.appended(*ticket, result.map(|_| ()), now);
            }
        });
    }
}
