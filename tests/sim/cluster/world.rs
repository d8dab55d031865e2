//! Nodes, network, clients and time: one event after the other, in an order that the seed decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafka_protocol::protocol::StrBytes;
use kuring::base::clock::{Monotonic, Now, Timestamp};
use kuring::base::random::Random;
use kuring::base::{BrokerId, Offset, PartitionIndex};
use kuring::config::Durability;
use kuring::coordinator::transactions::TransactionVersion;
use kuring::io::mem::{Crash, MemFiles};
use kuring::metadata::{Command, CreateTopics, NewTopic, Refusal, Response, State, TopicImage};
use kuring::shard::PartitionKey;
use kuring::wire::ErrorCode;

use super::broker::{Broker, Context};
use super::checker::Checker;
use super::clients::{Client, Consumer, Habits, Leader, Producer};
use super::coordinating::coordinator_of;
use super::messages::{Message, Place};
use super::network::Network;
use super::planted::Planted;
use super::quorum::Quorum;
use super::transactors::{self, Beliefs, Transactor};
use crate::home::{ensure, text};

pub const MS: u64 = 1_000;
pub const SECOND: u64 = 1_000 * MS;

pub const SESSION: std::time::Duration = std::time::Duration::from_millis(800);
pub const TOPIC: &str = "t";
/// The transaction coordinators'.
pub const STATE_TOPIC: &str = "__transaction_state";

const TICK_US: u64 = 20 * MS;
const QUORUM_TURN_US: u64 = 20 * MS;
/// Without a majority the metadata log gets another leader after this.
const ELECTION_US: u64 = 300 * MS;
/// A broker that nobody lets go stops all the same.
const STOP_TIME_US: u64 = 4 * SECOND;
/// How often it is looked whether those in sync have what was committed.
const EVENTS_PER_LOOK: u64 = 16;
const EVENTS_PER_READ: u64 = 3_000;

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub nodes: usize,
    pub durability: Durability,
    /// `unclean.leader.election.enable`
    pub is_unclean: bool,
    pub partitions: i32,
    pub replicas: i16,
    /// `min.insync.replicas`
    pub isr_min: u8,
    pub producers: usize,
    /// Transactional ids, each with two producers.
    pub transactional_ids: usize,
    /// Consumers read from followers, too.
    pub reads_followers: bool,
    /// Records are deleted, by operators and by the topic's settings.
    pub deletes: bool,
    pub planted: Option<Planted>,
}

pub struct Node {
    pub files: MemFiles,
    /// Of the metadata log as far as this node has it, which is durable.
    pub state: State,
    /// Counts its processes.
    pub life: u64,
    pub broker: Option<Broker>,
    pub wall_offset_ms: i64,
    pub paused_until: u64,
    pub is_slow: bool,
    pub stop_by: u64,
}

enum Event {
    Deliver { from: Place, to: Place, life: u64, message: Box<Message> },
    Tick { node: usize, life: u64 },
    Start(usize),
    Quorum,
    Client(usize),
}

pub struct World {
    pub plan: Plan,
    pub random: Random,
    pub time: u64,
    pub events: u64,
    queue: BTreeMap<(u64, u64), Event>,
    pub network: Network,
    pub nodes: Vec<Node>,
    pub quorum: Quorum,
    /// When the metadata log's leader last had a majority.
    heard: u64,
    pub clients: Vec<Client>,
    pub checker: Checker,
    /// Nodes that have crashed and are not in sync again everywhere.
    pub lost: BTreeMap<usize, Crash>,
}

/// What a right clock shows.
pub fn wall(time: u64) -> Timestamp {
    Timestamp(1_700_000_000_000 + (time / MS) as i64)
}

pub fn key_of(topic: &TopicImage, index: PartitionIndex) -> PartitionKey {
    PartitionKey { topic: topic.id, partition: index }
}

impl World {
    /// A cluster with its topic and clients, in service.
    pub fn new(plan: Plan) -> Result<Self, String> {
        let mut random = Random::seeded(plan.seed);
        let quorum = Quorum::new(SESSION, Random::seeded(random.next_u64()), plan.planted);
        let mut world = Self {
            plan,
            time: SECOND,
            events: 0,
            queue: BTreeMap::new(),
            network: Network::new(),
            nodes: Vec::new(),
            quorum,
            heard: 0,
            clients: Vec::new(),
            checker: Checker::default(),
            lost: BTreeMap::new(),
            random,
        };
        for node in 0..plan.nodes {
            let files = MemFiles::new(world.random.next_u64());
            world.nodes.push(Node {
                files,
                state: State::default(),
                life: 0,
                broker: None,
                wall_offset_ms: 0,
                paused_until: 0,
                is_slow: false,
                stop_by: 0,
            });
            world.schedule(0, Event::Start(node));
        }
        world.schedule(0, Event::Quorum);
        let all_serve = |world: &World| {
            let serving = world.quorum.image().brokers().filter(|broker| broker.serves());
            serving.count() == world.plan.nodes
        };
        ensure!(world.run_until(10 * SECOND, all_serve)?, "the cluster does not come into service");
        world.create_topics()?;
        Ok(world)
    }

    fn create_topics(&mut self) -> Result<(), String> {
        let is_unclean = self.plan.is_unclean;
        let topic = self.create_topic(TOPIC, self.plan.partitions, is_unclean)?;
        for (index, _) in topic.numbered() {
            let key = key_of(&topic, index);
            (0..self.plan.producers).for_each(|_| self.add_producer(key));
            for is_committed in [false, true].into_iter().take(1 + self.plan.transactional_ids.min(1)) {
                let near = self.random.below(self.plan.nodes as u64) as usize;
                let near = self.plan.reads_followers.then_some(near);
                // Whoever reads from followers speaks a version with epochs.
                let knows_epochs = near.is_some() || self.random.below(2) == 0;
                let habits = Habits { is_committed, near, knows_epochs };
                self.add_client(|number| Client::Consumer(Consumer::new(number, key, habits)));
            }
        }
        if self.plan.transactional_ids > 0 {
            let count = 1 + self.random.below(2) as i32;
            self.create_topic(STATE_TOPIC, count, false)?;
        }
        for id in 0..self.plan.transactional_ids {
            let id = StrBytes::from_string(format!("id-{id}"));
            let version = [TransactionVersion::V0, TransactionVersion::V2][self.random.below(2) as usize];
            for _ in 0..2 {
                let (id, keys) = (id.clone(), transactors::keys(topic.id, self.plan.partitions));
                self.add_client(|number| Client::Transactor(Transactor::new(number, id, version, keys)));
            }
        }
        Ok(())
    }

    fn create_topic(
        &mut self,
        name: &str,
        partitions: i32,
        is_unclean: bool,
    ) -> Result<Arc<TopicImage>, String> {
        let configs = [
            ("min.insync.replicas", self.plan.isr_min.to_string()),
            ("unclean.leader.election.enable", is_unclean.to_string()),
        ];
        let topic = NewTopic {
            name: name.to_owned(),
            partitions,
            replication_factor: self.plan.replicas,
            assignment: Vec::new(),
            configs: configs.map(|(name, value)| (name.to_owned(), Some(value))).to_vec(),
        };
        let command = Command::CreateTopics(CreateTopics { topics: vec![topic], validate_only: false });
        self.admin(command).map_err(text)?;
        Ok(self.quorum.image().topic(name).cloned().ok_or("the topic is not there")?)
    }

    pub fn add_producer(&mut self, key: PartitionKey) {
        self.add_client(|number| Client::Producer(Producer::new(number, key)));
    }

    fn add_client(&mut self, make: impl FnOnce(usize) -> Client) {
        let number = self.clients.len();
        self.clients.push(make(number));
        self.schedule(0, Event::Client(number));
    }

    fn schedule(&mut self, after: u64, event: Event) {
        self.schedule_at(self.time + after, event);
    }

    fn schedule_at(&mut self, at: u64, event: Event) {
        self.events += 1;
        self.queue.insert((at, self.events), event);
    }

    pub fn start_after(&mut self, node: usize, after: u64) {
        self.schedule(after, Event::Start(node));
    }

    // --- Time ---

    pub fn run_for(&mut self, us: u64) -> Result<(), String> {
        let end = self.time + us;
        while self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= end) {
            self.step()?;
        }
        self.time = end;
        Ok(())
    }

    /// Whether it came so within `us`.
    pub fn run_until(&mut self, us: u64, mut is_so: impl FnMut(&World) -> bool) -> Result<bool, String> {
        let end = self.time + us;
        while self.time < end {
            if is_so(self) {
                return Ok(true);
            }
            for _ in 0..10 {
                self.step()?;
            }
        }
        Ok(is_so(self))
    }

    /// The next event.
    pub fn step(&mut self) -> Result<(), String> {
        let Some(((at, number), event)) = self.queue.pop_first() else {
            return Err("nothing is to come".into());
        };
        self.time = self.time.max(at);
        self.handle(event, number)?;
        if number.is_multiple_of(EVENTS_PER_LOOK) {
            self.look_at_isr();
        }
        if number.is_multiple_of(EVENTS_PER_READ) {
            self.read_committed()?;
        }
        match self.checker.failure.take() {
            Some(failure) => Err(format!("at {} ms: {failure}", self.time / MS)),
            None => Ok(()),
        }
    }

    fn now(&self, node: usize) -> Now {
        let wall = wall(self.time).0 + self.nodes[node].wall_offset_ms;
        Now { monotonic: self.monotonic(), wall: Timestamp(wall) }
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic::from_nanos(self.time * 1_000)
    }

    fn handle(&mut self, event: Event, number: u64) -> Result<(), String> {
        match event {
            Event::Deliver { to: Place::Node(node), .. } | Event::Tick { node, .. }
                if self.nodes[node].paused_until > self.time =>
            {
                let at = self.nodes[node].paused_until;
                self.queue.insert((at, number), event);
                Ok(())
            }
            Event::Deliver { from, to: Place::Node(node), life, message } => {
                self.deliver(from, node, life, *message)
            }
            Event::Deliver { to: Place::Client(client), message, .. } => {
                self.tell_client(client, *message);
                Ok(())
            }
            Event::Tick { node, life } => self.tick(node, life),
            Event::Start(node) => self.start(node),
            Event::Quorum => {
                self.quorum_turn();
                Ok(())
            }
            Event::Client(client) => {
                self.client_turn(client);
                Ok(())
            }
        }
    }

    // --- Nodes ---

    fn start(&mut self, node: usize) -> Result<(), String> {
        if self.nodes[node].broker.is_some() {
            return Ok(());
        }
        let cold = self.random.below(2) * 30;
        let now = self.now(node);
        let planted = self.plan.planted;
        let durability = self.plan.durability;
        let Node { files, life, broker, .. } = &mut self.nodes[node];
        *life += 1;
        files.set_cold_percent(cold);
        let process = if planted == Some(Planted::UncleanRestartKept) { 1 } else { *life };
        let incarnation = (node as u128) << 64 | u128::from(process);
        *broker = Some(Broker::start(files, BrokerId(node as i32), incarnation, durability, now)?);
        let life = *life;
        self.schedule(0, Event::Tick { node, life });
        Ok(())
    }

    /// Has the node's broker do something, and sends what it says.
    fn with_broker(
        &mut self,
        node: usize,
        act: impl FnOnce(&mut Broker, &mut Context<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let now = self.now(node);
        let mut cx = Context {
            time: self.time,
            now,
            random: &mut self.random,
            checker: &mut self.checker,
            controller: self.quorum.leader(),
            planted: self.plan.planted,
            out: Vec::new(),
        };
        let Node { broker, state, .. } = &mut self.nodes[node];
        let Some(broker) = broker else { return Ok(()) };
        act(broker, &mut cx)?;
        broker.publish(state.image(), &mut cx)?;
        broker.settle(&mut cx)?;
        broker.tell_known(&mut cx);
        let out = cx.out;
        self.dispatch(Place::Node(node), out);
        Ok(())
    }

    fn dispatch(&mut self, from: Place, out: Vec<(Place, Message)>) {
        for (to, message) in out {
            let Some(at) = self.network.arrival(from, to, self.time, &mut self.random) else { continue };
            let life = match to {
                Place::Node(node) => self.nodes[node].life,
                Place::Client(_) => 0,
            };
            let message = Box::new(message);
            self.schedule_at(at, Event::Deliver { from, to, life, message });
        }
    }

    fn tick(&mut self, node: usize, life: u64) -> Result<(), String> {
        if self.nodes[node].life != life || self.nodes[node].broker.is_none() {
            return Ok(());
        }
        let is_slow = self.nodes[node].is_slow;
        self.with_broker(node, |broker, cx| broker.tick(is_slow, cx))?;
        let stop_by = self.nodes[node].stop_by;
        let stops = |broker: &Broker| broker.stops && (broker.may_stop() || stop_by <= self.time);
        if self.nodes[node].broker.as_ref().is_some_and(stops) {
            return self.close(node);
        }
        let after = TICK_US / 2 + self.random.below(TICK_US);
        self.schedule(after, Event::Tick { node, life });
        Ok(())
    }

    /// Has others lead, then ends.
    pub fn stop(&mut self, node: usize) {
        let now = self.monotonic();
        self.nodes[node].stop_by = self.time + STOP_TIME_US;
        let Some(broker) = &mut self.nodes[node].broker else { return };
        if let Some(life) = &mut broker.life {
            broker.stops = true;
            life.stop(now);
        }
    }

    fn close(&mut self, node: usize) -> Result<(), String> {
        let now = self.now(node);
        let Some(broker) = self.nodes[node].broker.take() else { return Ok(()) };
        let mut cx = Context {
            time: self.time,
            now,
            random: &mut self.random,
            checker: &mut self.checker,
            controller: None,
            planted: self.plan.planted,
            out: Vec::new(),
        };
        broker.close(&mut cx)?;
        let out = cx.out;
        self.dispatch(Place::Node(node), out);
        self.nodes[node].life += 1;
        if self.random.below(2) == 0 {
            self.nodes[node].files.crash(Crash::Machine);
        }
        let after = self.random.below(SECOND);
        self.start_after(node, after);
        Ok(())
    }

    pub fn crash(&mut self, node: usize, crash: Crash) {
        let Node { files, life, broker, paused_until, .. } = &mut self.nodes[node];
        (*broker, *paused_until) = (None, 0);
        *life += 1;
        files.crash(crash);
        let known = self.lost.entry(node).or_insert(crash);
        if crash == Crash::Machine {
            *known = crash;
        }
    }

    /// Nothing comes from or to the node any more.
    pub fn isolate(&mut self, node: usize) {
        self.network.isolate(node, self.nodes.len());
    }

    pub fn is_up(&self, node: usize) -> bool {
        self.nodes[node].broker.is_some() && self.nodes[node].paused_until <= self.time
    }

    fn deliver(&mut self, from: Place, node: usize, life: u64, message: Message) -> Result<(), String> {
        if self.nodes[node].life != life || self.nodes[node].broker.is_none() {
            return Ok(());
        }
        match message {
            Message::Command { attempt, command } => {
                let result = self.decide(node, command);
                self.dispatch(Place::Node(node), vec![(from, Message::Decided { attempt, result })]);
                Ok(())
            }
            Message::Metadata { entries } => {
                let state = &mut self.nodes[node].state;
                while state.image().version() < entries {
                    let index = state.image().version() + 1;
                    state.apply(index, &self.quorum.log[index as usize - 1]).map_err(text)?;
                }
                self.with_broker(node, |_, _| Ok(()))
            }
            Message::Decided { attempt, result } => self.with_broker(node, |broker, cx| {
                broker.decided(attempt, result, cx);
                Ok(())
            }),
            Message::Fetch { attempt, request } => {
                self.with_broker(node, |broker, cx| broker.fetch(from, attempt, request, cx))
            }
            Message::Fetched { attempt, answer } => {
                let Place::Node(leader) = from else { return Ok(()) };
                self.with_broker(node, |broker, cx| broker.fetched(leader, attempt, answer, cx))
            }
            Message::Produce { token, records, transaction } => {
                self.with_broker(node, |broker, cx| broker.produce(token, (records, transaction), cx))
            }
            Message::Consume { attempt, key, part, reading } => {
                self.with_broker(node, |broker, cx| broker.consume((from, attempt), (key, part, reading), cx))
            }
            Message::AskEnd { attempt, key, epoch } => self.with_broker(node, |broker, cx| {
                broker.tell_end((from, attempt), (key, epoch), cx);
                Ok(())
            }),
            Message::InitProducer => self.with_broker(node, |broker, cx| {
                broker.init_producer(from, cx);
                Ok(())
            }),
            Message::Coordinate { attempt, request } => self.with_broker(node, |broker, cx| {
                broker.coordinate(from, attempt, request, cx);
                Ok(())
            }),
            Message::Coordinated { attempt, response } => {
                self.with_broker(node, |broker, cx| broker.coordinated(attempt, *response, cx))
            }
            Message::WriteMarker { attempt, marker, partition } => self
                .with_broker(node, |broker, cx| broker.write_marker(from, attempt, (marker, partition), cx)),
            Message::MarkerWritten { attempt, result } => self.with_broker(node, |broker, cx| {
                broker.marker_written(attempt, result, cx);
                Ok(())
            }),
            Message::DeleteRecords { key, offset } => self.with_broker(node, |broker, cx| {
                broker.delete_records(key, offset, cx);
                Ok(())
            }),
            Message::ProducerIs(_)
            | Message::Produced { .. }
            | Message::Consumed { .. }
            | Message::EndIs { .. } => Ok(()),
        }
    }

    /// Has whoever leads the partition delete records.
    pub fn delete_records(&mut self, key: PartitionKey, leader: usize, offset: Offset) {
        let life = self.nodes[leader].life;
        let message = Box::new(Message::DeleteRecords { key, offset });
        let (from, to) = (Place::Client(0), Place::Node(leader));
        self.schedule(MS, Event::Deliver { from, to, life, message });
    }

    // --- The metadata log ---

    pub fn has_majority(&self, node: usize) -> bool {
        let hears = |other: &usize| self.is_up(*other) && self.network.connects(node, *other);
        self.is_up(node) && (0..self.nodes.len()).filter(hears).count() > self.nodes.len() / 2
    }

    /// The leader of the metadata log, if it can commit.
    pub fn controller(&self) -> Option<usize> {
        self.quorum.leader().filter(|leader| self.has_majority(*leader))
    }

    fn decide(&mut self, node: usize, command: Command) -> Result<Response, Refusal> {
        if self.controller() != Some(node) {
            return Err(Refusal::new(ErrorCode::NotController, ""));
        }
        let now = self.monotonic();
        self.quorum.touch(&command, now);
        let result = self.quorum.submit(command, now, &mut self.checker);
        self.broadcast(node);
        result
    }

    /// What an operator asks for.
    pub fn admin(&mut self, command: Command) -> Result<Response, Refusal> {
        match self.controller() {
            Some(controller) => self.decide(controller, command),
            None => Err(Refusal::new(ErrorCode::NotController, "")),
        }
    }

    fn broadcast(&mut self, leader: usize) {
        let entries = self.quorum.log.len() as u64;
        let lags = |node: &usize| self.nodes[*node].state.image().version() < entries;
        let out = (0..self.nodes.len()).filter(lags);
        let out = out.map(|node| (Place::Node(node), Message::Metadata { entries })).collect();
        self.dispatch(Place::Node(leader), out);
    }

    fn quorum_turn(&mut self) {
        self.schedule(QUORUM_TURN_US, Event::Quorum);
        if let Some(leader) = self.controller() {
            self.heard = self.time;
            let now = self.monotonic();
            self.quorum.run_due(now, &mut self.checker);
            self.broadcast(leader);
        } else if self.time >= self.heard + ELECTION_US {
            let may_lead: Vec<usize> =
                (0..self.nodes.len()).filter(|node| self.has_majority(*node)).collect();
            self.quorum.depose();
            if !may_lead.is_empty() {
                let leader = may_lead[self.random.below(may_lead.len() as u64) as usize];
                let now = self.monotonic();
                self.quorum.elect(leader, now);
                self.heard = self.time;
            }
        }
    }

    // --- Clients ---

    fn leader_of(&mut self, key: PartitionKey) -> (Leader, usize) {
        let any = self.random.below(self.nodes.len() as u64) as usize;
        let image = self.nodes[any].broker.as_ref().map(|broker| &broker.image);
        let partition = image.and_then(|image| image.topic_by_id(key.topic)?.partition(key.partition));
        let leader =
            partition.and_then(|partition| Some((partition.leader?.0 as usize, partition.leader_epoch)));
        (leader, any)
    }

    fn beliefs_of(&mut self, transactor: usize) -> Beliefs {
        let any = self.random.below(self.nodes.len() as u64) as usize;
        let mut beliefs = Beliefs { leaders: BTreeMap::new(), coordinator: None };
        let Some(broker) = &self.nodes[any].broker else { return beliefs };
        if let Some(topic) = broker.image.topic(TOPIC) {
            for (index, partition) in topic.numbered() {
                let leader = partition.leader.map(|leader| (key_of(topic, index), leader.0 as usize));
                beliefs.leaders.extend(leader);
            }
        }
        if let Client::Transactor(transactor) = &self.clients[transactor] {
            beliefs.coordinator = coordinator_of(&broker.image, transactor.id());
        }
        beliefs
    }

    fn client_turn(&mut self, number: usize) {
        let after = 2 * MS + self.random.below(25 * MS);
        self.schedule(after, Event::Client(number));
        let mut out = Vec::new();
        let key = match &self.clients[number] {
            Client::Producer(producer) => producer.key,
            Client::Consumer(consumer) => consumer.key,
            Client::Transactor(_) => {
                let beliefs = self.beliefs_of(number);
                let by = (self.time, &mut self.random);
                if let Client::Transactor(transactor) = &mut self.clients[number] {
                    transactor.turn(&beliefs, by, &mut self.checker, &mut out);
                }
                return self.dispatch(Place::Client(number), out);
            }
        };
        let (leader, any) = self.leader_of(key);
        let (time, random) = (self.time, &mut self.random);
        match &mut self.clients[number] {
            Client::Producer(producer) => producer.turn((leader, any), time, random, &mut out),
            Client::Consumer(consumer) => consumer.turn(leader, time, random, &mut out),
            Client::Transactor(_) => {}
        }
        self.dispatch(Place::Client(number), out);
    }

    fn tell_client(&mut self, number: usize, message: Message) {
        let (time, checker) = (self.time, &mut self.checker);
        let by = (time, &mut self.random);
        match (&mut self.clients[number], message) {
            (Client::Producer(producer), Message::Produced { token, result }) => {
                producer.answered(token, result, time, checker);
            }
            (Client::Producer(producer), Message::ProducerIs(id)) => producer.identified(id),
            (Client::Consumer(consumer), Message::Consumed { attempt, consumed }) => {
                consumer.answered(attempt, *consumed, time, checker);
            }
            (Client::Consumer(consumer), Message::EndIs { attempt, result }) => {
                consumer.end_is(attempt, result, checker);
            }
            (Client::Transactor(transactor), Message::Produced { token, result }) => {
                transactor.answered(token, result, by, checker);
            }
            (Client::Transactor(transactor), Message::Coordinated { attempt, response }) => {
                transactor.coordinated(attempt, *response, by, checker);
            }
            _ => {}
        }
    }
}
