//! The road to the controller, wherever it is: on this node at once, on another over its link. Lives on shard 0.
//!
//! What was not taken is asked again until somebody takes it or the time is over: a controller that is lost is replaced
//! soon. What may have been taken is never asked twice: its fate is not known, and whoever asked is told so.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::control::submit_here;
use crate::api::{assign_replicas, broker_heartbeat, broker_registration};
use crate::base::clock;
use crate::base::{BrokerEpoch, BrokerId};
use crate::io::runtime::sleep;
use crate::metadata::{
    BrokerState, Command, Heartbeat, Refusal, RegisterBroker, Response, decode_result, encode_command,
};
use crate::peer::{FRAME_BYTES_MAX, Failed, Lane, Links, PeerError, PeerKey};
use crate::raft::{self, Quorum, QuorumDescription, VoterChange};
use crate::shard::Shard;
use crate::wire::ErrorCode;

const REGISTRATION_CALL_MAX: Duration = Duration::from_secs(5);

/// Nothing is written for it.
const DESCRIPTION_CALL_MAX: Duration = Duration::from_secs(5);

/// A command's way there and back, with the commit between; Kafka's `request.timeout.ms`.
const COMMAND_CALL_MAX: Duration = Duration::from_secs(30);

const SEARCH_PAUSE: Duration = Duration::from_millis(20);

/// How long an answer waits for what it tells of to be here.
const ARRIVAL_TIME_MAX: Duration = Duration::from_secs(10);

/// Whoever is the controller no more and is not cut off has said within this what it knows of a command.
const LAST_WORD_TIME: Duration = Duration::from_secs(1);

/// Beside the body of a command's frame.
const FRAME_REST_BYTES: usize = 64;

/// The ways of one node.
pub(super) struct Road {
    node: BrokerId,
    shard: Rc<Shard>,
    quorum: Rc<Quorum>,
    links: Rc<Links>,
    /// A command looks so long for a controller that takes it.
    search_time: Duration,
    beat_time: Duration,
}

/// Where the controller is.
enum Place {
    Here,
    There(BrokerId),
    Unknown,
}

impl Road {
    /// `search_time`: how long a controller is looked for; `beat_time`: how long a heartbeat may take.
    pub(super) fn new(
        shard: Rc<Shard>,
        quorum: Rc<Quorum>,
        links: Rc<Links>,
        search_time: Duration,
        beat_time: Duration,
    ) -> Rc<Self> {
        let node = links.identity().node;
        Rc::new(Self { node, shard, quorum, links, search_time, beat_time })
    }

    pub(super) fn quorum(&self) -> &Rc<Quorum> {
        &self.quorum
    }

    fn place(&self) -> Place {
        let leadership = self.quorum.leadership();
        match leadership.leader.filter(|leader| *leader != self.node) {
            _ if leadership.is_own => Place::Here,
            Some(leader) => Place::There(leader),
            None => Place::Unknown,
        }
    }

    /// Has the controller carry out a command. Once it is answered this node has an image with what it did.
    pub(super) async fn submit(&self, command: Command) -> Result<Response, Refusal> {
        let Some((key, body)) = written(&command) else {
            return submit_here(&self.shard, &self.quorum, command).await;
        };
        let until = clock::monotonic().plus(self.search_time);
        loop {
            let not_taken = match self.place() {
                Place::Here => match submit_here(&self.shard, &self.quorum, command.clone()).await {
                    Err(refusal) if refusal.code == ErrorCode::NotController => refusal,
                    result => return result,
                },
                Place::There(controller) => match self.forward(controller, key, &body).await {
                    Err(NotTaken(refusal)) => refusal,
                    Ok(Err(refusal)) if refusal.code == ErrorCode::NotController => refusal,
                    Ok(result) => return result,
                },
                Place::Unknown => {
                    Refusal::new(ErrorCode::NotController, "There is no controller at the moment.")
                }
            };
            if clock::monotonic() >= until || self.quorum.is_closed() || self.shard.is_stopping() {
                return Err(not_taken);
            }
            sleep(SEARCH_PAUSE).await;
        }
    }

    /// Has whoever leads add a voter or remove one.
    pub(super) async fn change_voters(&self, change: VoterChange) -> Result<(), Refusal> {
        let (body, wait) = (
            raft::change_request(change),
            match change {
                VoterChange::Add(_, wait) => wait,
                VoterChange::Remove(_) | VoterChange::Replace(_) => Duration::ZERO,
            },
        );
        let until = clock::monotonic().plus(self.search_time);
        loop {
            let not_taken = match self.place() {
                Place::Here => match self.quorum.change_voters(change).await {
                    Err(refusal) if refusal.code == ErrorCode::NotController => refusal,
                    result => return result,
                },
                Place::There(controller) => {
                    let link = self.links.link(controller, Lane::Voters);
                    let limit = COMMAND_CALL_MAX + wait;
                    let replaced = self.replaced(controller);
                    let called = link.call_once(PeerKey::ChangeVoters, &body, limit, replaced).await;
                    match called.map(|answer| raft::read_changed(&answer)) {
                        Ok(Ok(Err(refusal))) if refusal.code == ErrorCode::NotController => refusal,
                        Ok(Ok(result)) => return result,
                        Ok(Err(_)) => return Err(unknown_fate(controller, &"its answer does not decode")),
                        Err(Failed { error, was_sent: true }) => {
                            return Err(unknown_fate(controller, &error));
                        }
                        Err(Failed { error, was_sent: false }) => unreachable_controller(controller, &error),
                    }
                }
                Place::Unknown => {
                    Refusal::new(ErrorCode::NotController, "There is no controller at the moment.")
                }
            };
            if clock::monotonic() >= until || self.quorum.is_closed() || self.shard.is_stopping() {
                return Err(not_taken);
            }
            sleep(SEARCH_PAUSE).await;
        }
    }

    async fn forward(
        &self,
        controller: BrokerId,
        key: PeerKey,
        body: &[u8],
    ) -> Result<Result<Response, Refusal>, NotTaken> {
        if body.len() > FRAME_BYTES_MAX - FRAME_REST_BYTES {
            let text = "The request is too large for one metadata change: split it.";
            return Ok(Err(Refusal::new(ErrorCode::PolicyViolation, text)));
        }
        let link = self.links.link(controller, Lane::Forward);
        let answer = match link.call_once(key, body, COMMAND_CALL_MAX, self.replaced(controller)).await {
            Ok(answer) => answer,
            Err(Failed { error, was_sent: true }) => return Ok(Err(unknown_fate(controller, &error))),
            Err(Failed { error, was_sent: false }) => {
                return Err(NotTaken(unreachable_controller(controller, &error)));
            }
        };
        let read = match key {
            PeerKey::AssignReplicasToDirs => read_assigned(&answer),
            _ => decode_result(&answer).ok(),
        };
        let Some((version, result)) = read else {
            let text = format!("The answer of controller {controller} does not decode.");
            return Ok(Err(Refusal::new(ErrorCode::UnknownServerError, text)));
        };
        self.await_version(version).await;
        Ok(result)
    }

    /// Ends when another node has been the controller for a while: one that is cut off would be waited for in vain.
    async fn replaced(&self, controller: BrokerId) {
        let is_replaced = || self.quorum.leadership().leader.is_some_and(|leader| leader != controller);
        loop {
            while !is_replaced() {
                sleep(SEARCH_PAUSE).await;
            }
            sleep(LAST_WORD_TIME).await;
            if is_replaced() {
                return;
            }
        }
    }

    /// Waits until this node has what the controller had when it answered: whoever asks this node next finds it.
    async fn await_version(&self, version: u64) {
        let until = clock::monotonic().plus(ARRIVAL_TIME_MAX);
        while self.quorum.image().version() < version {
            if clock::monotonic() >= until || self.quorum.is_closed() {
                tracing::warn!(version, "a change that the controller made has not arrived here");
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// What the leader of the metadata log tells of its voters. Nothing changes by it: it may be asked again.
    pub(super) async fn describe_quorum(&self) -> Option<QuorumDescription> {
        let until = clock::monotonic().plus(self.search_time);
        loop {
            let described = match self.place() {
                Place::Here => self.quorum.describe(),
                Place::There(controller) => self.ask_description(controller).await,
                Place::Unknown => None,
            };
            let is_over = clock::monotonic() >= until || self.quorum.is_closed() || self.shard.is_stopping();
            if described.is_some() || is_over {
                return described;
            }
            sleep(SEARCH_PAUSE).await;
        }
    }

    async fn ask_description(&self, controller: BrokerId) -> Option<QuorumDescription> {
        // Not behind commands, which wait for commits.
        let link = self.links.link(controller, Lane::Control);
        let answer = link.call(PeerKey::DescribeQuorum, &[], DESCRIPTION_CALL_MAX).await.ok()?;
        let decoded = QuorumDescription::decode(&answer);
        decoded.unwrap_or_else(|error| {
            tracing::warn!(%controller, "what the controller tells of the quorum does not decode: {error}");
            None
        })
    }

    /// Asks the controller once.
    pub(super) async fn register(
        &self,
        registration: &RegisterBroker,
    ) -> Result<Result<BrokerEpoch, ErrorCode>, PeerError> {
        let controller = match self.place() {
            Place::Here => {
                let command = Command::RegisterBroker(registration.clone());
                let result = self.quorum.submit(command).await;
                return Ok(result.map(Response::broker_epoch).map_err(|refusal| {
                    tracing::info!("the registration is refused: {refusal}");
                    refusal.code
                }));
            }
            Place::There(controller) => controller,
            Place::Unknown => return Ok(Err(ErrorCode::NotController)),
        };
        let request = broker_registration::request(registration)
            .map_err(|_| PeerError::Malformed("a registration that cannot be said"))?;
        let link = self.links.link(controller, Lane::Control);
        let answer = link.call(PeerKey::BrokerRegistration, &request, REGISTRATION_CALL_MAX).await?;
        broker_registration::read_answer(&answer)
            .map_err(|_| PeerError::Malformed("an answer to a registration that does not decode"))
    }

    /// Says once that this broker is there.
    pub(super) async fn beat(&self, beat: Heartbeat) -> Result<Result<BrokerState, ErrorCode>, PeerError> {
        let controller = match self.place() {
            Place::Here => {
                let result = self.quorum.submit(Command::Heartbeat(beat)).await;
                return Ok(result.map(Response::broker_state).map_err(|refusal| refusal.code));
            }
            Place::There(controller) => controller,
            Place::Unknown => return Ok(Err(ErrorCode::NotController)),
        };
        let request = broker_heartbeat::request(&beat)
            .map_err(|_| PeerError::Malformed("a heartbeat that cannot be said"))?;
        let link = self.links.link(controller, Lane::Session);
        let answer = link.call(PeerKey::BrokerHeartbeat, &request, self.beat_time).await?;
        broker_heartbeat::read_answer(&answer)
            .map_err(|_| PeerError::Malformed("an answer to a heartbeat that does not decode"))
    }
}

fn unknown_fate(controller: BrokerId, error: &dyn std::fmt::Display) -> Refusal {
    let text = format!(
        "Whether the change is made is not known: controller {controller} has not answered: {error}."
    );
    Refusal::new(ErrorCode::RequestTimedOut, text)
}

fn unreachable_controller(controller: BrokerId, error: &PeerError) -> Refusal {
    let text = format!("Controller {controller} cannot be reached: {error}.");
    Refusal::new(ErrorCode::NotController, text)
}

/// How a command is said to a controller that is not here; `None`: it is not.
fn written(command: &Command) -> Option<(PeerKey, Vec<u8>)> {
    match command {
        Command::AssignDirectories(assignment) => {
            let body = assign_replicas::request(assignment).ok()?;
            Some((PeerKey::AssignReplicasToDirs, body))
        }
        command => Some((PeerKey::Command, encode_command(command)?)),
    }
}

/// Kafka's answer tells no version: nothing is waited for.
fn read_assigned(answer: &Bytes) -> Option<(u64, Result<Response, Refusal>)> {
    let result = assign_replicas::read_answer(answer).ok()?;
    let refused =
        |code| Refusal::new(code, "The controller has not taken in which directories replicas are.");
    Some((0, result.map(Response::DirectoriesAssigned).map_err(refused)))
}

/// The controller has surely not carried it out.
struct NotTaken(Refusal);
