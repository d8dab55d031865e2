//! Shard 0's driver of the group coordinator: hands requests and time to
//! [`crate::coordinator::Coordinator`] and does what it asks for. The driver decides nothing about groups.
//!
//! Appends go through [`super::coordinator_appends`], partitions come by [`super::leaderships`].

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use slab::Slab;

use super::coordinator_appends::{Appending, Appends, send_appends};
use super::coordinator_log::LoadError;
use super::internal_topics::CONSUMER_OFFSETS;
use super::leaderships::{self, Leaderships, Load, Loading};
use crate::base::clock::{self, Monotonic, Now};
use crate::base::random::Random;
use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicName};
use crate::coordinator::{Client, Coordinator, Effect, ReplyToken, Request, Ticket};
use crate::io::runtime::{Notify, Queue, spawn};
use crate::metadata::Image;
use crate::shard::messages::{ControlReply, Reply};
use crate::shard::{Answer, Shard};
use crate::wire::ErrorCode;
use crate::wire::beat::Beat;
use crate::wire::record::{BatchView, EndTxnMarker};

/// A batch larger than this when decompressed is not one of a coordinator's.
const DECOMPRESSED_MAX: usize = 256 << 20;
/// How long the timer sleeps when the coordinator waits for nothing.
const IDLE_SLEEP: Duration = Duration::from_secs(3600);

pub struct Driver {
    shard: Rc<Shard>,
    coordinator: RefCell<Coordinator>,
    /// Who waits; a token is an index here.
    answers: RefCell<Slab<Answer>>,
    appends: Appends,
    /// When the timer task will look next.
    armed_until: Cell<Monotonic>,
    rearm: Notify,
    image: RefCell<Arc<Image>>,
    leaderships: Leaderships<Waiting>,
}

/// A request for a partition that is being read.
pub(super) struct Waiting {
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
            leaderships: Leaderships::new(),
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
            if self.leaderships.may_wait(partition) {
                answer.park();
                return self.leaderships.wait(partition, Waiting { request, client, answer });
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

    /// Serves a Heartbeat if its answer is no error.
    pub fn classic_beat(&self, beat: &Beat) -> bool {
        self.beat(|coordinator, now| coordinator.classic_beat(beat, now))
    }

    /// Serves a ConsumerGroupHeartbeat if nothing has to be told or written; the interval that it is answered.
    pub fn consumer_beat(&self, beat: &Beat, client_id: &[u8], client_host: &str) -> Option<i32> {
        self.beat(|coordinator, now| coordinator.consumer_beat(beat, client_id, client_host, now))
    }

    /// Runs `act` on the coordinator, which asks for nothing but time.
    fn beat<R>(&self, act: impl FnOnce(&mut Coordinator, Now) -> R) -> R {
        let mut coordinator = self.coordinator.borrow_mut();
        let result = act(&mut coordinator, clock::now());
        self.look_at_deadline(coordinator.next_deadline());
        result
    }

    fn look_at_deadline(&self, deadline: Option<Monotonic>) {
        if deadline.is_some_and(|deadline| deadline < self.armed_until.get()) {
            self.rearm.notify();
        }
    }

    /// The cluster is about to change. To be called before the shards know it.
    pub fn expect(self: &Rc<Self>, image: &Image) {
        leaderships::expect(self, image.topic(CONSUMER_OFFSETS).map(|topic| &**topic));
    }

    /// The cluster has changed, on every shard: what was expected is loaded, and the offsets of deleted
    /// topics go.
    pub fn image_changed(self: &Rc<Self>, image: &Arc<Image>) {
        let old = self.image.replace(image.clone());
        self.drive(|coordinator, _| coordinator.cluster_changed(image.clone()));
        leaderships::read(self);
        let removed = image.changes_since(&old).topics_removed;
        let names: Vec<TopicName> = removed.iter().map(|topic| topic.name.clone()).collect();
        if !names.is_empty() {
            self.drive(|coordinator, now| coordinator.topics_deleted(&names, now));
        }
    }

    /// Sends everybody who waits to look for another coordinator: the broker goes down.
    pub fn stop(self: &Rc<Self>) {
        leaderships::stop(self);
    }

    /// Looks at the coordinator without changing it.
    pub fn look<R>(&self, look: impl FnOnce(&Coordinator) -> R) -> R {
        look(&self.coordinator.borrow())
    }

    /// Runs `act` on the coordinator and does what it asks for.
    fn drive<R>(self: &Rc<Self>, act: impl FnOnce(&mut Coordinator, Now) -> R) -> R {
        let (result, effects, deadline) = {
            let mut coordinator = self.coordinator.borrow_mut();
            let result = act(&mut coordinator, clock::now());
            (result, coordinator.drain_effects(), coordinator.next_deadline())
        };
        for effect in effects {
            self.perform(effect);
        }
        self.look_at_deadline(deadline);
        result
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
    const TOPIC: &'static str = CONSUMER_OFFSETS;

    fn shard(&self) -> &Rc<Shard> {
        &self.shard
    }

    fn appends(&self) -> &Appends {
        &self.appends
    }

    fn topic(&self) -> Option<TopicId> {
        self.leaderships.topic()
    }

    fn epoch(&self, partition: PartitionIndex) -> Option<LeaderEpoch> {
        self.leaderships.epoch(partition)
    }

    fn linger(&self) -> Option<Duration> {
        self.shard.config().groups.append_linger
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

impl Loading for Driver {
    const AWAITS_COMMIT: bool = false;
    type Waiting = Waiting;

    fn leaderships(&self) -> &Leaderships<Waiting> {
        &self.leaderships
    }

    fn set_partition_count(&self, count: i32) {
        self.coordinator.borrow_mut().set_partition_count(count);
    }

    fn begin(self: &Rc<Self>, load: Load) {
        self.drive(|coordinator, now| coordinator.load(load.key.partition, now));
    }

    fn replay(self: &Rc<Self>, partition: PartitionIndex, batch: &BatchView<'_>) -> Result<(), LoadError> {
        let (attributes, producer) = (batch.head().attributes(), batch.head().producer_id());
        let mut scratch = Vec::new();
        let records = batch
            .records(&mut scratch, DECOMPRESSED_MAX)
            .map_err(|error| LoadError::broken(batch, &error))?;
        let mut coordinator = self.coordinator.borrow_mut();
        for record in records {
            let record = record.map_err(|error| LoadError::broken(batch, &error))?;
            let Some(key) = record.key else { continue };
            if attributes.is_control() {
                let marker = record.value.and_then(|value| EndTxnMarker::from_record(key, value));
                if let Some(marker) = marker {
                    coordinator.replay_marker(partition, producer, marker.commit);
                }
            } else if attributes.is_transactional() {
                coordinator.replay_in_transaction(partition, producer, key, record.value);
            } else {
                coordinator.replay(partition, key, record.value);
            }
        }
        Ok(())
    }

    fn loaded(self: &Rc<Self>, load: Load) {
        let partition = load.key.partition;
        let image = self.image.borrow().clone();
        self.drive(|coordinator, now| {
            coordinator.loaded(partition, now);
            // Topics that were deleted while nobody looked.
            let mut gone: Vec<TopicName> = coordinator.committed_topics(partition);
            gone.retain(|topic| image.topic(topic).is_none());
            if !gone.is_empty() {
                coordinator.topics_deleted(&gone, now);
            }
        });
    }

    fn end(self: &Rc<Self>, partition: PartitionIndex) {
        self.drive(|coordinator, now| coordinator.unload(partition, now));
    }

    fn serve(self: &Rc<Self>, waiting: Waiting) {
        self.handle(waiting.request, waiting.client, waiting.answer);
    }
}
