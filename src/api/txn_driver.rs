//! Shard 0's driver of the transaction coordinator: hands requests, time and what became of its wishes to
//! [`Coordinator`] and does what it asks for. The driver decides nothing about transactions.
//!
//! Appends go through [`super::coordinator_appends`], partitions come by [`super::leaderships`], markers go through
//! [`super::markers`].

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
use super::elsewhere::Elsewhere;
use super::internal_topics::TRANSACTION_STATE;
use super::leaderships::{self, Leaderships, Load, Loading};
use super::markers::{self, Round, Writer};
use crate::base::clock::{self, Monotonic, Now};
use crate::base::{BrokerId, LeaderEpoch, Offset, PartitionIndex, ShardId, TopicId};
use crate::coordinator::transactions::{Coordinator, Effect, Request, TransactionVersion};
use crate::coordinator::{Content, ReplyToken, Ticket};
use crate::io::runtime::{Notify, Queue, spawn, yield_if_needed};
use crate::metadata::{Image, TRANSACTION_VERSION};
use crate::shard::messages::{ControlReply, ControlRequest, Reply, Request as ShardRequest};
use crate::shard::{Answer, Shard};
use crate::wire::ErrorCode;
use crate::wire::record::BatchView;

/// A batch larger than this when decompressed is not one of a coordinator's.
const DECOMPRESSED_MAX: usize = 64 << 20;
/// How long the timer sleeps when the coordinator waits for nothing.
const IDLE_SLEEP: Duration = Duration::from_secs(3600);
/// How long an append may wait until it is committed.
const APPEND_TIMEOUT: Duration = Duration::from_secs(30);

pub struct Driver {
    shard: Rc<Shard>,
    coordinator: RefCell<Coordinator>,
    /// Who waits; a token is an index here.
    answers: RefCell<Slab<Answer>>,
    appends: Appends,
    /// When the timer task will look next.
    armed_until: Cell<Monotonic>,
    rearm: Notify,
    leaderships: Leaderships<(Request, Answer)>,
    /// Where there are other brokers.
    elsewhere: Option<Rc<Elsewhere>>,
    /// The last one that every shard knows.
    image: RefCell<Arc<Image>>,
}

impl Driver {
    /// Makes the driver and starts its tasks; it owns nothing until [`Driver::expect`].
    pub fn start(shard: &Rc<Shard>) -> Rc<Self> {
        let settings = shard.config().transactions.clone();
        let partition_count = settings.topic_partitions;
        let driver = Rc::new(Self {
            shard: shard.clone(),
            coordinator: RefCell::new(Coordinator::new(settings, partition_count, clock::now())),
            answers: RefCell::default(),
            appends: Appends::new(),
            armed_until: Cell::new(Monotonic::ZERO),
            rearm: Notify::new(),
            leaderships: Leaderships::new(),
            elsewhere: Elsewhere::new(shard).map(Rc::new),
            image: RefCell::default(),
        });
        spawn(Queue::Control, "transaction timer", driver.clone().keep_time()).detach();
        spawn(Queue::Control, "transaction appends", send_appends(driver.clone())).detach();
        driver
    }

    /// Serves a request; the answer is sent at once or when its record is durable.
    pub fn handle(self: &Rc<Self>, request: Request, mut answer: Answer) {
        if let Some(id) = request.transactional_id() {
            let partition = self.coordinator.borrow().partition_of(id);
            if self.leaderships.may_wait(partition) {
                answer.park();
                return self.leaderships.wait(partition, (request, answer));
            }
        }
        let key = self.answers.borrow_mut().insert(answer);
        self.drive(|coordinator, now| coordinator.handle(request, ReplyToken(key as u64), now));
        if let Some(answer) = self.answers.borrow_mut().get_mut(key) {
            // Others must not be held up by the credit it came with.
            answer.park();
        }
    }

    /// Serves what brokers ask of the partitions of a transaction, at its coordinator wherever that is.
    pub fn handle_anywhere(self: &Rc<Self>, request: Request, mut answer: Answer) {
        let Some((elsewhere, coordinator)) = self.elsewhere_of(&request) else {
            return self.handle(request, answer);
        };
        answer.park();
        spawn(Queue::Control, "transaction elsewhere", async move {
            let response = elsewhere.ask(coordinator, request).await;
            answer.send(Reply::Control(ControlReply::Transaction(Box::new(response))));
        })
        .detach();
    }

    fn elsewhere_of(&self, request: &Request) -> Option<(Rc<Elsewhere>, BrokerId)> {
        let elsewhere = self.elsewhere.clone()?;
        let partition = self.coordinator.borrow().partition_of(request.transactional_id()?);
        let coordinator = elsewhere.coordinator(partition)?;
        Some((elsewhere, coordinator))
    }

    /// The cluster is about to change. To be called before the shards know it.
    pub fn expect(self: &Rc<Self>, image: &Image) {
        let level = image.feature(TRANSACTION_VERSION).unwrap_or(0);
        self.coordinator.borrow_mut().set_version(TransactionVersion::from_level(level));
        leaderships::expect(self, image.topic(TRANSACTION_STATE).map(|topic| &**topic));
    }

    /// The cluster has changed, on every shard.
    pub fn image_changed(self: &Rc<Self>, image: &Arc<Image>) {
        let before = self.image.replace(image.clone());
        leaderships::read(self);
        // Who came or went may lead, or have led, what waits for a marker.
        if self.elsewhere.is_some() && image.changes_since(&before).brokers_changed {
            self.drive(|coordinator, now| coordinator.hurry(now));
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
        let (result, effects) = self.act(act);
        for effect in effects {
            self.perform(effect);
        }
        result
    }

    /// Runs `act` on the coordinator; with what it asks for.
    fn act<R>(&self, act: impl FnOnce(&mut Coordinator, Now) -> R) -> (R, Vec<Effect>) {
        let (result, effects, deadline) = {
            let mut coordinator = self.coordinator.borrow_mut();
            let result = act(&mut coordinator, clock::now());
            (result, coordinator.drain_effects(), coordinator.next_deadline())
        };
        if deadline.is_some_and(|deadline| deadline < self.armed_until.get()) {
            self.rearm.notify();
        }
        (result, effects)
    }

    /// Does what has come due. Rounds of markers that failed before are gathered, for they may be many.
    fn advance(self: &Rc<Self>) {
        let ((), effects) = self.act(|coordinator, now| coordinator.advance(now));
        let mut rounds = Vec::new();
        for effect in effects {
            match effect {
                Effect::WriteMarkers { marker, partitions, ticket } => {
                    rounds.push((ticket, Round { marker, partitions }));
                }
                effect => self.perform(effect),
            }
        }
        for rounds in markers::gather(rounds) {
            self.start_markers(rounds);
        }
    }

    fn perform(self: &Rc<Self>, effect: Effect) {
        match effect {
            Effect::Reply { token, response } => {
                let answer = self.answers.borrow_mut().remove(token.0 as usize);
                answer.send(Reply::Control(ControlReply::Transaction(Box::new(response))));
            }
            Effect::Append { partition, record, ticket } => {
                self.appends.push(partition, Content::Records(vec![record]), ticket);
            }
            Effect::NewProducerId { ticket } => {
                spawn(Queue::Control, "producer id", self.clone().find_producer_id(ticket)).detach();
            }
            Effect::WriteMarkers { marker, partitions, ticket } => {
                self.start_markers(vec![(ticket, Round { marker, partitions })]);
            }
        }
    }

    async fn find_producer_id(self: Rc<Self>, ticket: Ticket) {
        let request = ShardRequest::Control(ControlRequest::ProducerId);
        let Reply::Control(ControlReply::ProducerId(result)) =
            self.shard.ask(ShardId::CONTROL, request).await
        else {
            crate::base::fatal("a producer id request got another request's answer");
        };
        let result = result.map_err(|refusal| match refusal.code {
            // What a client understands as "ask again".
            ErrorCode::NotController => ErrorCode::CoordinatorLoadInProgress,
            code => code,
        });
        self.drive(|coordinator, now| coordinator.producer_id(ticket, result, now));
    }

    fn start_markers(self: &Rc<Self>, rounds: Vec<(Ticket, Round)>) {
        spawn(Queue::Control, "transaction markers", self.clone().write_markers(rounds)).detach();
    }

    async fn write_markers(self: Rc<Self>, rounds: Vec<(Ticket, Round)>) {
        let (tickets, rounds): (Vec<Ticket>, Vec<Round>) = rounds.into_iter().unzip();
        // The shard's, not the driver's, which is of the time before a new topic's logs were opened: its partitions may
        // have been written already.
        let image = self.shard.image();
        let mut results = match &self.elsewhere {
            None => markers::write(&self.shard, &image, Writer::Own, rounds).await,
            Some(elsewhere) => elsewhere.write(&image, rounds).await,
        };
        for (partition, result) in results.iter_mut().flatten() {
            // Deleted meanwhile: there is nothing to end.
            if *result == Err(ErrorCode::UnknownTopicOrPartition)
                && markers::find(&self.shard.image(), partition).is_none()
            {
                *result = Ok(());
            }
        }
        self.drive(|coordinator, now| {
            for (ticket, results) in tickets.into_iter().zip(results) {
                coordinator.markers_written(ticket, results, now);
            }
        });
    }

    async fn keep_time(self: Rc<Self>) {
        while !self.shard.is_stopping() {
            self.advance();
            // What is due may be more than one turn does.
            yield_if_needed().await;
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
    const TOPIC: &'static str = TRANSACTION_STATE;

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

    fn timeout(&self) -> Duration {
        APPEND_TIMEOUT
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
    /// The end of a transaction that is decided goes to its partitions as soon as it is read.
    const AWAITS_COMMIT: bool = true;
    type Waiting = (Request, Answer);

    fn leaderships(&self) -> &Leaderships<Self::Waiting> {
        &self.leaderships
    }

    fn set_partition_count(&self, count: i32) {
        self.coordinator.borrow_mut().set_partition_count(count);
    }

    fn begin(self: &Rc<Self>, load: Load) {
        self.drive(|coordinator, _| coordinator.load(load.key.partition, load.epoch.0));
    }

    fn replay(self: &Rc<Self>, partition: PartitionIndex, batch: &BatchView<'_>) -> Result<(), LoadError> {
        if batch.head().attributes().is_control() {
            return Ok(());
        }
        let mut scratch = Vec::new();
        let records = batch
            .records(&mut scratch, DECOMPRESSED_MAX)
            .map_err(|error| LoadError::broken(batch, &error))?;
        let mut coordinator = self.coordinator.borrow_mut();
        for record in records {
            let record = record.map_err(|error| LoadError::broken(batch, &error))?;
            if let Some(key) = record.key {
                coordinator.replay(partition, key, record.value);
            }
        }
        Ok(())
    }

    fn loaded(self: &Rc<Self>, load: Load) {
        self.drive(|coordinator, now| coordinator.loaded(load.key.partition, now));
    }

    fn end(self: &Rc<Self>, partition: PartitionIndex) {
        self.drive(|coordinator, _| coordinator.unload(partition));
    }

    fn serve(self: &Rc<Self>, (request, answer): Self::Waiting) {
        self.handle(request, answer);
    }
}
