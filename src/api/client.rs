//! What a handler knows of the connection it serves.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::fetch_session::SessionCache;
use super::leaning::Leaning;
use super::line::Line;
use super::share_elsewhere;
use super::share_session::ShareSessions;
use super::throttle::Throttle;
use crate::base::{BrokerId, Budget, PartitionIndex, ShardId};
use crate::config::ListenerName;
use crate::io::runtime::Notify;
use crate::metadata::{self, Image, PartitionImage, Refusal, TopicImage};
use crate::peer::{self, Answer, Ends, Greeter, Identity, PeerError, PeerKey};
use crate::shard::messages::{ControlReply, ControlRequest, Reply, Request};
use crate::shard::{PartitionKey, Shard};
use crate::wire::ErrorCode;
use crate::wire::api::Api;
use crate::wire::parts::TopicRef;

/// The fetch sessions of one shard's connections.
pub type FetchSessions = Rc<SessionCache>;

/// One connection as its requests see it.
pub struct Client {
    pub shard: Rc<Shard>,
    /// The listener that accepted it: Metadata tells the endpoints of the same one.
    pub listener: ListenerName,
    /// That listener is for controllers: it shows them instead of brokers, and serves fewer APIs.
    pub at_controller: bool,
    pub peer: SocketAddr,
    pub sessions: FetchSessions,
    pub(super) share_sessions: ShareSessions,
    /// Where it produces to.
    pub leaning: RefCell<Leaning>,
    /// Its produce requests that are not queued yet.
    pub(super) line: Rc<Line>,
    /// Its address as Java prints it, once a group wanted it.
    host: OnceCell<StrBytes>,
    waited: Cell<Duration>,
    beyond: RefCell<Option<Beyond>>,
    charged: Cell<usize>,
    pub(super) throttle: Throttle,
    /// What was heard of the broker at the other end, if it is one.
    greeter: RefCell<Option<Box<Greeter>>>,
    /// That broker has sent more while a request of its is in service.
    nudged: Notify,
}

/// The place beyond the shard's memory for what is in service; given back when it is dropped.
struct Beyond(Rc<Budget>);

impl Drop for Beyond {
    fn drop(&mut self) {
        self.0.give_back(1);
    }
}

impl Client {
    /// `moves` says how often the connection has changed its shard, `broker` who has proved before that to be at the
    /// other end.
    pub fn new(
        shard: Rc<Shard>,
        listener: ListenerName,
        peer: SocketAddr,
        sessions: FetchSessions,
        moves: u32,
        broker: Option<BrokerId>,
    ) -> Self {
        let leaning = RefCell::new(Leaning::new(shard.id(), moves));
        let (waited, charged) = (Cell::default(), Cell::default());
        let (line, beyond, host) = (Rc::default(), RefCell::default(), OnceCell::new());
        let greeter = RefCell::new(broker.map(|broker| Box::new(Greeter::of(broker))));
        let share_sessions = ShareSessions::new(shard.clone());
        let at_controller = shard.config().controller_listeners.iter().any(|it| it.name == listener);
        Self {
            shard,
            listener,
            at_controller,
            peer,
            sessions,
            share_sessions,
            leaning,
            line,
            host,
            waited,
            beyond,
            charged,
            throttle: Throttle::default(),
            greeter,
            nudged: Notify::new(),
        }
    }

    /// Whether its listener serves that API.
    pub fn may_ask(&self, api: &Api) -> bool {
        !self.at_controller || api.is_controllers()
    }

    /// The broker that has proved to be at the other end.
    pub fn broker(&self) -> Option<BrokerId> {
        self.greeter.borrow().as_ref()?.broker()
    }

    /// Whether there are no other brokers: then whoever asks what brokers ask each other may.
    pub(super) fn is_alone(&self) -> bool {
        self.shard.settings().greetings.is_none()
    }

    /// Answers a frame of a greeting; `None` where brokers do not greet, and the frame is none that is served.
    pub fn hear(&self, frame: &Bytes, ends: Ends) -> Option<Result<Answer, PeerError>> {
        let greetings = self.shard.settings().greetings.as_ref()?;
        let is_greeting = matches!(peer::own_key(frame), Some(PeerKey::Hello | PeerKey::Proof));
        if self.listener != self.shard.config().inter_broker_listener || !is_greeting {
            return None;
        }
        // Its later requests belong to partitions of several shards; a follower's first fetch may say otherwise.
        self.leaning.borrow_mut().stay();
        let image = self.shard.image();
        let knows = |identity: &Identity| {
            image.broker(identity.node).is_some_and(|broker| broker.log_dirs.contains(&identity.directory))
        };
        let mut greeter = self.greeter.borrow_mut();
        Some(greeter.get_or_insert_default().hear(greetings, frame.clone(), ends, knows))
    }

    /// Bytes have come while a request is in service: what a follower's fetch waits for it waits for no longer.
    pub fn note_more(&self) {
        if self.broker().is_some() {
            self.nudged.notify();
        }
    }

    pub(super) async fn nudged(&self) {
        self.nudged.notified().await;
    }

    /// Whether the frame is a broker's nudge, which came too late or has had its effect.
    pub fn is_nudge(&self, frame: &Bytes) -> bool {
        peer::own_key(frame) == Some(PeerKey::Nudge) && self.broker().is_some()
    }

    /// Whether a broker that has said who it is asks something in a form of kuring's own.
    pub fn is_asked_by_broker(&self, frame: &Bytes) -> bool {
        peer::own_key(frame) == Some(PeerKey::ShareState) && self.broker().is_some()
    }

    /// The whole frame that answers it.
    ///
    /// # Errors
    /// What does not decode; the connection is to be closed.
    pub async fn answer_broker(&self, frame: &Bytes) -> Result<Bytes, PeerError> {
        let request = peer::read_own(frame)?;
        let asked = share_elsewhere::read_request(&request.body)
            .map_err(|_| PeerError::Malformed("a question for a share state that does not decode"))?;
        let asked = Request::Control(ControlRequest::ShareStateHere(Box::new(asked)));
        match self.shard.ask(ShardId::CONTROL, asked).await {
            Reply::Control(ControlReply::ShareState(response)) => {
                Ok(peer::own_answer(&request, &share_elsewhere::write_response(&response)))
            }
            _ => crate::base::fatal("a share state request got another request's answer"),
        }
    }

    /// The connection has ended: what waits for it alone is dropped.
    pub fn end(&self) {
        self.line.end();
    }

    /// Its address as group metadata has it: `/127.0.0.1`.
    pub(super) fn host(&self) -> &StrBytes {
        self.host.get_or_init(|| StrBytes::from_string(format!("/{}", self.peer.ip().to_canonical())))
    }

    /// Notes what the request in service holds of the shard's memory by its length.
    pub fn note_charged(&self, bytes: usize) {
        self.charged.set(bytes);
    }

    pub fn charged(&self) -> usize {
        self.charged.get()
    }

    /// Waits until this connection is the one of its shard whose request or answer may be beyond what the shard has
    /// for all of them, which it is until [`Client::come_back`].
    pub async fn go_beyond(&self) {
        if self.is_beyond() {
            return;
        }
        let place = self.shard.serve_beyond().clone();
        place.take(1).await;
        *self.beyond.borrow_mut() = Some(Beyond(place));
    }

    pub fn is_beyond(&self) -> bool {
        self.beyond.borrow().is_some()
    }

    /// The answer has been sent.
    pub fn come_back(&self) {
        drop(self.beyond.take());
    }

    /// Notes how long the request in service was parked at owners. Those of Produce, which overlap, note it in
    /// the poll that makes them ready.
    pub fn note_waited(&self, waited: Duration) {
        self.waited.set(self.waited.get() + waited);
    }

    /// What was noted since the last call.
    pub fn take_waited(&self) -> Duration {
        self.waited.take()
    }

    /// Has the controller carry out `command`; durable and applied on every shard when it returns.
    pub async fn command(&self, command: metadata::Command) -> Result<metadata::Response, Refusal> {
        let request = ControlRequest::Command(command);
        match self.shard.ask(ShardId::CONTROL, Request::Control(request)).await {
            Reply::Control(ControlReply::Command(result)) => result,
            _ => crate::base::fatal("a metadata command got another request's answer"),
        }
    }
}

/// A partition that a request names and this broker leads.
pub(super) struct Target {
    pub(super) key: PartitionKey,
    pub(super) owner: ShardId,
}

/// Finds a topic as a request names it. The error is UNKNOWN_TOPIC_OR_PARTITION for a name and
/// UNKNOWN_TOPIC_ID for an id (KIP-516).
pub(super) fn find_topic<'a>(image: &'a Image, topic: &TopicRef) -> Result<&'a Arc<TopicImage>, ErrorCode> {
    match topic {
        TopicRef::Name(name) => image.topic(name).ok_or(ErrorCode::UnknownTopicOrPartition),
        TopicRef::Id(id) => image.topic_by_id(*id).ok_or(ErrorCode::UnknownTopicId),
    }
}

/// Finds a partition of `topic` and its owner shard.
pub(super) fn find_partition(
    shard: &Shard,
    topic: &TopicImage,
    partition: PartitionIndex,
) -> Result<Target, ErrorCode> {
    let image = partition_image(topic, partition).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let broker = shard.settings().broker;
    // A replica on a failed disk has no leader, and its owner says why.
    if image.leader != Some(broker) && !image.is_lost_on(broker) {
        return Err(ErrorCode::NotLeaderOrFollower);
    }
    let key = PartitionKey { topic: topic.id, partition };
    Ok(Target { key, owner: shard.owner(key) })
}

/// Finds a partition of `topic` that has a replica here, whoever leads, and its owner shard.
pub(super) fn find_replica(
    shard: &Shard,
    topic: &TopicImage,
    partition: PartitionIndex,
) -> Result<Target, ErrorCode> {
    let image = partition_image(topic, partition).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if !image.replicas.contains(&shard.settings().broker) {
        return Err(ErrorCode::NotLeaderOrFollower);
    }
    let key = PartitionKey { topic: topic.id, partition };
    Ok(Target { key, owner: shard.owner(key) })
}

pub(super) fn partition_image(topic: &TopicImage, partition: PartitionIndex) -> Option<&Arc<PartitionImage>> {
    topic.partitions.get(usize::try_from(partition.0).ok()?)
}
