//! Shard 0's driver of the share coordinator: hands requests, time and what became of its appends to [`Coordinator`] and
//! does what it asks for. The driver decides nothing about share partitions.
//!
//! Appends go through [`super::coordinator_appends`], partitions come by [`super::leaderships`].

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::coordinator_appends::{Appending, Appends, send_appends};
use super::coordinator_log::LoadError;
use super::internal_topics::SHARE_GROUP_STATE;
use super::leaderships::{self, Leaderships, Load, Loading};
use super::share_elsewhere::ShareElsewhere;
use crate::base::clock::{self, Now};
use crate::base::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use crate::coordinator::share_state::{Coordinator, Effect, Request};
use crate::coordinator::{Content, ReplyToken, Ticket};
use crate::io::runtime::{Queue, spawn};
use crate::metadata::Image;
use crate::shard::messages::{ControlReply, Reply, Request as ShardRequest};
use crate::shard::{Answer, PartitionKey, Shard};
use crate::wire::ErrorCode;
use crate::wire::record::BatchView;

/// How long replicas that are alive may take to delete what is of no use any more (Kafka's `request.timeout.ms`).
const PRUNE_TIME_MAX: Duration = Duration::from_secs(30);

/// A batch larger than this when decompressed is not one of a coordinator's.
const DECOMPRESSED_MAX: usize = 64 << 20;

pub struct Driver {
    shard: Rc<Shard>,
    coordinator: RefCell<Coordinator>,
    /// Who waits; a token is an index here.
    answers: RefCell<Slab<Answer>>,
    appends: Appends,
    image: RefCell<Arc<Image>>,
    leaderships: Leaderships<(Request, Answer)>,
    /// Where there are other brokers.
    elsewhere: Option<Rc<ShareElsewhere>>,
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
            leaderships: Leaderships::new(),
            elsewhere: ShareElsewhere::new(shard),
        });
        spawn(Queue::Control, "share state timer", driver.clone().keep_time()).detach();
        spawn(Queue::Control, "share state appends", send_appends(driver.clone())).detach();
        driver
    }

    /// Serves what leaders and group coordinators ask, at the coordinator of the share partition wherever that is.
    pub fn handle_anywhere(self: &Rc<Self>, request: Request, mut answer: Answer) {
        let partition = self.coordinator.borrow().partition_of(request.key());
        match self.elsewhere.clone().filter(|elsewhere| elsewhere.is_elsewhere(partition)) {
            None => self.handle(request, answer),
            Some(elsewhere) => {
                answer.park();
                let driver = self.clone();
                spawn(Queue::Control, "share state elsewhere", async move {
                    match elsewhere.ask(partition, &request).await {
                        Some(response) => {
                            answer.send(Reply::Control(ControlReply::ShareState(Box::new(response))));
                        }
                        None => driver.handle(request, answer),
                    }
                })
                .detach();
            }
        }
    }

    /// Serves a request; the answer is sent at once or when its record is durable.
    pub fn handle(self: &Rc<Self>, request: Request, mut answer: Answer) {
        let partition = self.coordinator.borrow().partition_of(request.key());
        if self.leaderships.may_wait(partition) {
            answer.park();
            return self.leaderships.wait(partition, (request, answer));
        }
        let key = self.answers.borrow_mut().insert(answer);
        self.drive(|coordinator, now| coordinator.handle(request, ReplyToken(key as u64), now));
        if let Some(answer) = self.answers.borrow_mut().get_mut(key) {
            // Others must not be held up by the credit it came with.
            answer.park();
        }
    }

    /// The cluster is about to change. To be called before the shards know it.
    pub fn expect(self: &Rc<Self>, image: &Image) {
        leaderships::expect(self, image.topic(SHARE_GROUP_STATE).map(|topic| &**topic));
    }

    /// The cluster has changed, on every shard: what was expected is loaded, states of deleted topics go.
    pub fn image_changed(self: &Rc<Self>, image: &Arc<Image>) {
        let before = self.image.replace(image.clone());
        leaderships::read(self);
        let gone = image.changes_since(&before).topics_removed;
        if !gone.is_empty() {
            self.drive(|coordinator, now| {
                coordinator.topics_deleted(|topic| gone.iter().any(|removed| removed.id == topic), now);
            });
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
                let Some(topic) = self.leaderships.topic() else { return };
                let key = PartitionKey { topic, partition };
                let shard = self.shard.clone();
                spawn(Queue::Control, "share state prune", async move {
                    let request = ShardRequest::DeleteRecords(vec![(key, below)], PRUNE_TIME_MAX);
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

    async fn keep_time(self: Rc<Self>) {
        while !self.shard.is_stopping() {
            let deadline = self.coordinator.borrow().next_deadline();
            self.shard.sleep_until(deadline).await;
            self.drive(|coordinator, now| coordinator.advance(now));
        }
    }
}

impl Appending for Driver {
    const TOPIC: &'static str = SHARE_GROUP_STATE;

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
        self.shard.config().share_states.append_linger
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

impl Loading for Driver {
    const AWAITS_COMMIT: bool = false;
    type Waiting = (Request, Answer);

    fn leaderships(&self) -> &Leaderships<Self::Waiting> {
        &self.leaderships
    }

    fn set_partition_count(&self, count: i32) {
        self.coordinator.borrow_mut().set_partition_count(count);
    }

    fn begin(self: &Rc<Self>, load: Load) {
        self.drive(|coordinator, _| coordinator.load(load.key.partition));
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

    fn loaded(self: &Rc<Self>, load: Load) {
        let image = self.image.borrow().clone();
        self.drive(|coordinator, now| {
            coordinator.loaded(load.key.partition);
            // Topics that were deleted while nobody looked.
            coordinator.topics_deleted(|topic| image.topic_by_id(topic).is_none(), now);
        });
    }

    fn end(self: &Rc<Self>, partition: PartitionIndex) {
        self.drive(|coordinator, _| coordinator.unload(partition));
    }

    fn serve(self: &Rc<Self>, (request, answer): Self::Waiting) {
        self.handle(request, answer);
    }
}
