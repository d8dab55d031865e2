//! Shard 0's driver of the share coordinator: hands requests, time and what became of its appends to [`Coordinator`] and
//! does what it asks for. The driver decides nothing about share partitions.
//!
//! Appends go through [`super::coordinator_log`].

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::coordinator_log::{Appending, Appends, LoadError, read_log, send_appends};
use super::internal_topics::SHARE_GROUP_STATE;
use crate::base::clock::{self, Now};
use crate::base::{Offset, PartitionIndex, TopicId};
use crate::coordinator::share_state::{Coordinator, Effect, Request};
use crate::coordinator::{Content, ReplyToken, Ticket};
use crate::io::runtime::{Queue, spawn};
use crate::metadata::Image;
use crate::shard::messages::{ControlReply, Reply, Request as ShardRequest};
use crate::shard::{Answer, PartitionKey, Shard};
use crate::wire::ErrorCode;
use crate::wire::record::BatchView;

/// Partitions that are read at the same time.
const LOADERS_MAX: usize = 16;
/// A batch larger than this when decompressed is not one of a coordinator's.
const DECOMPRESSED_MAX: usize = 64 << 20;
/// Pauses between attempts to read a partition: the first, doubled each time, the longest.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// How long a request waits for its partition before it is told COORDINATOR_LOAD_IN_PROGRESS.
const PATIENCE: Duration = Duration::from_millis(500);
/// Requests that wait for one partition to be loaded; further ones are told to ask again.
const WAITING_MAX: usize = 4096;

/// One ownership of a partition, so that a loader sees that it is out of date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Load {
    key: PartitionKey,
    number: u64,
}

pub struct Driver {
    shard: Rc<Shard>,
    coordinator: RefCell<Coordinator>,
    /// Who waits; a token is an index here.
    answers: RefCell<Slab<Answer>>,
    appends: Appends,
    image: RefCell<Arc<Image>>,
    /// The topic whose partitions are in `led`.
    topic: Cell<Option<TopicId>>,
    led: RefCell<HashMap<PartitionIndex, Load>>,
    next_load: Cell<u64>,
    /// Requests for partitions whose loading has just begun: it takes milliseconds when the log is short.
    waiting: RefCell<HashMap<PartitionIndex, Vec<(Request, Answer)>>>,
    /// To be loaded once all shards know of it.
    coming: RefCell<Vec<Load>>,
    loads: RefCell<VecDeque<Load>>,
    loaders: Cell<usize>,
}

impl Driver {
    /// Makes the driver and starts its tasks; it owns nothing until [`Driver::expect`].
    pub fn start(shard: &Rc<Shard>) -> Rc<Self> {
        let settings = shard.config().share_states.clone();
        let partition_count = settings.topic_partitions;
        let driver = Rc::new(Self {
            shard: shard.clone(),
            coordinator: RefCell::new(Coordinator::new(settings, partition_count, clock::now())),
            answers: RefCell::default(),
            appends: Appends::new(),
            image: RefCell::new(Arc::new(Image::default())),
            topic: Cell::new(None),
            led: RefCell::default(),
            next_load: Cell::new(0),
            waiting: RefCell::default(),
            coming: RefCell::default(),
            loads: RefCell::default(),
            loaders: Cell::new(0),
        });
        spawn(Queue::Control, "share state timer", driver.clone().keep_time()).detach();
        spawn(Queue::Control, "share state appends", send_appends(driver.clone())).detach();
        driver
    }

    /// Serves a request; the answer is sent at once or when its record is durable.
    pub fn handle(self: &Rc<Self>, request: Request, mut answer: Answer) {
        let partition = self.coordinator.borrow().partition_of(request.key());
        let mut waiting = self.waiting.borrow_mut();
        if let Some(list) = waiting.get_mut(&partition).filter(|list| list.len() < WAITING_MAX) {
            answer.park();
            list.push((request, answer));
            return;
        }
        drop(waiting);
        let key = self.answers.borrow_mut().insert(answer);
        self.drive(|coordinator, now| coordinator.handle(request, ReplyToken(key as u64), now));
        if let Some(answer) = self.answers.borrow_mut().get_mut(key) {
            // Others must not be held up by the credit it came with.
            answer.park();
        }
    }

    /// The cluster is about to change: leaderships of the topic come and go. To be called before the shards know
    /// it, so that a client which hears of it first finds its request waited for.
    pub fn expect(self: &Rc<Self>, image: &Image) {
        let topic = image.topic(SHARE_GROUP_STATE);
        let id = topic.map(|topic| topic.id);
        if self.topic.replace(id) != id {
            self.unload_all();
            if let Some(topic) = topic {
                self.coordinator.borrow_mut().set_partition_count(topic.partitions.len() as i32);
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

    /// The cluster has changed, on every shard: what was expected is loaded, states of deleted topics go.
    pub fn image_changed(self: &Rc<Self>, image: &Arc<Image>) {
        let before = self.image.replace(image.clone());
        let coming = std::mem::take(&mut *self.coming.borrow_mut());
        for load in coming {
            self.loads.borrow_mut().push_back(load);
            self.start_loader();
        }
        let gone = image.changes_since(&before).topics_removed;
        if !gone.is_empty() {
            self.drive(|coordinator, now| {
                coordinator.topics_deleted(|topic| gone.iter().any(|removed| removed.id == topic), now);
            });
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
    fn drive<R>(self: &Rc<Self>, act: impl FnOnce(&mut Coordinator, Now) -> R) -> R {
        let (result, effects) = {
            let mut coordinator = self.coordinator.borrow_mut();
            let result = act(&mut coordinator, clock::now());
            (result, coordinator.drain_effects())
        };
        effects.into_iter().for_each(|effect| self.perform(effect));
        result
    }

    fn perform(self: &Rc<Self>, effect: Effect) {
        match effect {
            Effect::Reply { token, response } => {
                let answer = self.answers.borrow_mut().remove(token.0 as usize);
                answer.send(Reply::Control(ControlReply::ShareState(Box::new(response))));
            }
            Effect::Append { partition, record, ticket } => {
                self.appends.push(partition, Content::Records(vec![record]), ticket);
            }
            Effect::Prune { partition, below } => {
                let Some(topic) = self.topic.get() else { return };
                let key = PartitionKey { topic, partition };
                let shard = self.shard.clone();
                spawn(Queue::Control, "share state prune", async move {
                    let request = ShardRequest::DeleteRecords(vec![(key, below)]);
                    let Reply::DeleteRecords(results) = shard.ask(shard.owner(key), request).await else {
                        crate::base::fatal("a deletion of records got another request's answer");
                    };
                    if let Some(Err(error)) = results.first() {
                        tracing::warn!(%partition, %error, "__share_group_state could not be cut off");
                    }
                })
                .detach();
            }
        }
    }

    fn load(self: &Rc<Self>, key: PartitionKey) {
        let load = Load { key, number: self.next_load.get() };
        self.next_load.set(load.number + 1);
        self.led.borrow_mut().insert(key.partition, load);
        self.waiting.borrow_mut().entry(key.partition).or_default();
        self.drive(|coordinator, _| coordinator.load(key.partition));
        self.coming.borrow_mut().push(load);
    }

    fn unload(self: &Rc<Self>, partition: PartitionIndex) {
        self.led.borrow_mut().remove(&partition);
        self.drive(|coordinator, _| coordinator.unload(partition));
        self.release(partition);
    }

    fn unload_all(self: &Rc<Self>) {
        let led: Vec<PartitionIndex> = self.led.borrow().keys().copied().collect();
        led.into_iter().for_each(|partition| self.unload(partition));
    }

    /// Serves what has waited for a partition: it is loaded, or that takes longer.
    fn release(self: &Rc<Self>, partition: PartitionIndex) {
        let waiting = self.waiting.borrow_mut().remove(&partition).unwrap_or_default();
        waiting.into_iter().for_each(|(request, answer)| self.handle(request, answer));
    }

    fn is_current(&self, load: Load) -> bool {
        self.led.borrow().get(&load.key.partition) == Some(&load)
    }

    /// Starts another loader unless enough are at work.
    fn start_loader(self: &Rc<Self>) {
        if self.loaders.get() < LOADERS_MAX {
            self.loaders.set(self.loaders.get() + 1);
            spawn(Queue::Control, "share state load", self.clone().load_queued()).detach();
        }
    }

    async fn load_queued(self: Rc<Self>) {
        loop {
            let next = self.loads.borrow_mut().pop_front();
            let Some(load) = next else { break };
            self.load_partition(load).await;
        }
        self.loaders.set(self.loaders.get() - 1);
    }

    /// Reads one partition until its end; tries again as long as this node is to lead it.
    async fn load_partition(self: &Rc<Self>, load: Load) {
        let partition = load.key.partition;
        let mut pause = RETRY_AFTER;
        loop {
            let started = clock::monotonic();
            let goes_on = || {
                if clock::monotonic().since(started) > PATIENCE {
                    self.release(partition);
                }
                self.is_current(load)
            };
            match read_log(&self.shard, load.key, goes_on, |batch| self.replay(partition, batch)).await {
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(%partition, %error, "__share_group_state cannot be loaded yet");
                }
            }
            self.release(partition);
            self.shard.sleep(pause).await;
            pause = RETRY_AFTER_MAX.min(pause * 2);
            if self.shard.is_stopping() || !self.is_current(load) {
                return;
            }
            self.drive(|coordinator, _| coordinator.load(partition));
        }
        if !self.is_current(load) {
            return;
        }
        let image = self.image.borrow().clone();
        self.drive(|coordinator, now| {
            coordinator.loaded(partition);
            // Topics that were deleted while nobody looked.
            coordinator.topics_deleted(|topic| image.topic_by_id(topic).is_none(), now);
        });
        self.release(partition);
    }

    fn replay(self: &Rc<Self>, partition: PartitionIndex, batch: &BatchView<'_>) -> Result<(), LoadError> {
        if batch.head().attributes().is_control() {
            return Ok(());
        }
        let mut scratch = Vec::new();
        let records = batch
            .records(&mut scratch, DECOMPRESSED_MAX)
            .map_err(|error| LoadError::broken(batch, &error))?;
        // Where its batch begins will do.
        let at = batch.head().base_offset();
        let mut coordinator = self.coordinator.borrow_mut();
        for record in records {
            let record = record.map_err(|error| LoadError::broken(batch, &error))?;
            if let Some(key) = record.key {
                coordinator.replay(partition, at, key, record.value);
            }
        }
        Ok(())
    }

    async fn keep_time(self: Rc<Self>) {
        while !self.shard.is_stopping() {
            let deadline = self.coordinator.borrow().next_deadline();
            self.shard.sleep_until(deadline).await;
            self.drive(|coordinator, now| coordinator.advance(now));
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
        self.shard.config().share_states.write_timeout
    }

    fn appended(self: &Rc<Self>, tickets: &[Ticket], result: Result<Offset, ErrorCode>) {
        self.drive(|coordinator, now| {
            for ticket in tickets {
                coordinator.appended(*ticket, result, now);
            }
        });
    }
}
