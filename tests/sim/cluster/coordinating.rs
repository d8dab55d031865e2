//! Transactions as a broker carries them: the production coordinator over the partitions of its topic that the broker
//! leads, the markers to whoever leads the partitions of a transaction, and the check of a batch before it is appended.
//! What drivers and connections do around it is the simulator's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use kuring::base::{LeaderEpoch, Offset, PartitionIndex, TopicPartition};
use kuring::config::TransactionSettings;
use kuring::coordinator::transactions::{
    Coordinator, Effect, Marker, Producer, Request, Response, TransactionVersion,
};
use kuring::coordinator::{KeyValue, ReplyToken, Ticket, partition_for};
use kuring::log::{Claim, Guard, Origin, VerificationQuery};
use kuring::metadata::Image;
use kuring::partition::{Acks, QueuedAppend};
use kuring::shard::PartitionKey;
use kuring::wire::ErrorCode;
use kuring::wire::record::{BatchBuilder, BatchHead, Batches, Compression, EndTxnMarker};

use super::broker::{Broker, Context};
use super::messages::{Attempt, Message, OfTransaction, Place, Purpose, Token};
use super::planted::Planted;
use super::replica::Answers;
use super::world::{STATE_TOPIC, key_of};

/// A record of the coordinator that is not committed for so long is told to have failed, though it may come to be.
const APPEND_TIME_US: u64 = 2_000_000;
/// Another broker's answer is waited for so long.
const ANSWER_TIME_US: u64 = 1_200_000;

/// What the broker of a coordinator has beside it.
pub struct Coordinating {
    machine: Coordinator,
    /// It knows how many partitions its topic has.
    is_sized: bool,
    /// In which leadership, and whether what is there is read.
    led: BTreeMap<PartitionIndex, (LeaderEpoch, bool)>,
    answers: BTreeMap<u64, (Place, Attempt)>,
    questions: u64,
    appends: Vec<(Ticket, u64)>,
    /// Appends that have ended, to be told.
    ended: Vec<(Ticket, Result<(), ErrorCode>)>,
    rounds: Vec<Round>,
    verifying: Vec<Verifying>,
}

/// A marker on its way to its partitions.
struct Round {
    ticket: Ticket,
    asked: BTreeMap<Attempt, TopicPartition>,
    results: Vec<(TopicPartition, Result<(), ErrorCode>)>,
    until: u64,
}

/// A batch whose coordinator is asked.
struct Verifying {
    attempt: Attempt,
    token: Token,
    records: Bytes,
    partition: TopicPartition,
    producer: Producer,
    guard: Guard,
    until: u64,
}

/// Whoever waits for a producer id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdFor {
    Client(Place),
    Coordinator(Ticket),
}

impl Coordinating {
    pub fn new(now: kuring::base::clock::Now) -> Self {
        let settings = TransactionSettings {
            timeout_ms_max: 900_000,
            id_expiration_ms: 7 * 24 * 3600 * 1000,
            abort_interval: Duration::from_millis(200),
            expiry_interval: Duration::from_secs(3600),
            topic_partitions: 1,
            topic_replication_factor: 3,
            topic_segment_bytes: 4000,
            topic_in_sync_replicas_min: 2,
            verifies_partitions: true,
            add_retry_pause: Duration::from_millis(20),
            add_retry_max: Duration::from_millis(100),
            bytes_max: 64 << 20,
        };
        let mut machine = Coordinator::new(settings, 1, now);
        machine.set_version(TransactionVersion::V2);
        Self {
            machine,
            is_sized: false,
            led: BTreeMap::new(),
            answers: BTreeMap::new(),
            questions: 0,
            appends: Vec::new(),
            ended: Vec::new(),
            rounds: Vec::new(),
            verifying: Vec::new(),
        }
    }
}

/// The node of the coordinator of a transactional id, as the image says.
pub fn coordinator_of(image: &Image, id: &str) -> Option<usize> {
    let topic = image.topic(STATE_TOPIC)?;
    let index = partition_for(id, topic.partitions.len() as i32);
    Some(topic.partition(index)?.leader?.0 as usize)
}

impl Broker {
    // --- The coordinator ---

    /// Before the replicas know of it: leaderships of the coordinator's topic come and go with the image.
    pub fn expect(&mut self, image: &Image, cx: &Context<'_>) {
        let Some(topic) = image.topic(STATE_TOPIC) else { return };
        let coordinating = &mut self.coordinating;
        if !std::mem::replace(&mut coordinating.is_sized, true) {
            coordinating.machine.set_partition_count(topic.partitions.len() as i32);
        }
        for (index, partition) in topic.numbered() {
            let leads = (partition.leader == Some(self.id)).then_some(partition.leader_epoch);
            let known = coordinating.led.get(&index).map(|(epoch, _)| *epoch);
            if leads == known {
                continue;
            }
            if let (Some(Planted::StateNotReloaded), Some(epoch)) = (cx.planted, leads)
                && coordinating.machine.owns(index)
            {
                coordinating.led.insert(index, (epoch, true));
                continue;
            }
            coordinating.led.remove(&index);
            if cx.planted != Some(Planted::StateNotReloaded) {
                coordinating.machine.unload(index);
            }
            if let Some(epoch) = leads {
                coordinating.machine.load(index, epoch.0);
                coordinating.led.insert(index, (epoch, false));
            }
        }
    }

    fn state_key(&self, index: PartitionIndex) -> Option<PartitionKey> {
        Some(key_of(self.image.topic(STATE_TOPIC)?, index))
    }

    /// Reads the partitions that have come, once all that is there is committed.
    fn load(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let coming = self.coordinating.led.iter().filter(|(_, (_, is_loaded))| !is_loaded);
        for (index, epoch) in coming.map(|(index, (epoch, _))| (*index, *epoch)).collect::<Vec<_>>() {
            let key = self.state_key(index);
            let Some(replica) = key.and_then(|key| self.replicas.get_mut(&key)) else { continue };
            let (end, committed) = (replica.log().log_end(), replica.partition.high_watermark());
            if replica.partition.check_leader_epoch(epoch).is_err() || committed < end {
                continue;
            }
            let contents = replica.contents(end)?;
            for batch in Batches::new(&contents) {
                let batch = batch.map_err(|error| error.to_string())?;
                let mut scratch = Vec::new();
                for record in batch.records(&mut scratch, 1 << 20).map_err(|error| error.to_string())? {
                    let record = record.map_err(|error| error.to_string())?;
                    let key = record.key.unwrap_or_default();
                    self.coordinating.machine.replay(index, key, record.value);
                }
            }
            self.coordinating.led.insert(index, (epoch, true));
            self.coordinating.machine.loaded(index, cx.now);
        }
        Ok(())
    }

    pub fn coordinate(&mut self, from: Place, attempt: Attempt, request: Request, cx: &Context<'_>) {
        let coordinating = &mut self.coordinating;
        coordinating.questions += 1;
        let token = coordinating.questions;
        coordinating.answers.insert(token, (from, attempt));
        coordinating.machine.handle(request, ReplyToken(token), cx.now);
    }

    pub fn give_id_to(&mut self, ticket: Ticket, id: kuring::base::ProducerId, cx: &Context<'_>) {
        self.coordinating.machine.producer_id(ticket, Ok(id), cx.now);
    }

    /// Who came or went may lead what waits for a marker.
    pub fn hurry_markers(&mut self, cx: &Context<'_>) {
        self.coordinating.machine.hurry(cx.now);
    }

    /// What the time brings for transactions.
    pub fn transactions_tick(&mut self, cx: &mut Context<'_>) {
        let coordinating = &mut self.coordinating;
        let time = cx.time;
        let late = coordinating.appends.extract_if(.., |(_, until)| *until <= time);
        let late = late.map(|(ticket, _)| (ticket, Err(ErrorCode::RequestTimedOut)));
        coordinating.ended.extend(late);
        let late = coordinating.rounds.extract_if(.., |round| round.until <= time);
        for mut round in late.collect::<Vec<_>>() {
            let missing = round.asked.into_values().map(|it| (it, Err(ErrorCode::RequestTimedOut)));
            round.results.extend(missing);
            coordinating.machine.markers_written(round.ticket, round.results, cx.now);
        }
        let late = coordinating.verifying.extract_if(.., |it| it.until <= time);
        for verifying in late.collect::<Vec<_>>() {
            self.refuse_batch(verifying, ErrorCode::NetworkException, cx);
        }
        self.coordinating.machine.advance(cx.now);
    }

    /// Does what the coordinator asks for, until it asks for nothing more.
    pub fn settle(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        self.load(cx)?;
        loop {
            for (ticket, result) in std::mem::take(&mut self.coordinating.ended) {
                self.coordinating.machine.appended(ticket, result, cx.now);
            }
            let effects = self.coordinating.machine.drain_effects();
            if effects.is_empty() && self.coordinating.ended.is_empty() {
                return Ok(());
            }
            for effect in effects {
                self.perform(effect, cx)?;
            }
        }
    }

    fn perform(&mut self, effect: Effect, cx: &mut Context<'_>) -> Result<(), String> {
        match effect {
            Effect::Reply { token, response } => {
                if let Some((to, attempt)) = self.coordinating.answers.remove(&token.0) {
                    cx.send(to, Message::Coordinated { attempt, response: Box::new(response) });
                }
                Ok(())
            }
            Effect::Append { partition, record, ticket } => self.append_state(partition, &record, ticket, cx),
            Effect::NewProducerId { ticket } => {
                self.wait_for_ids.push(IdFor::Coordinator(ticket));
                self.give_ids(cx);
                Ok(())
            }
            Effect::WriteMarkers { marker, partitions, ticket } => {
                self.send_markers(marker, partitions, ticket, cx);
                Ok(())
            }
        }
    }

    fn append_state(
        &mut self,
        index: PartitionIndex,
        record: &KeyValue,
        ticket: Ticket,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let epoch = self.coordinating.led.get(&index).map(|(epoch, _)| *epoch);
        let key = self.state_key(index);
        let replica = key.and_then(|key| self.replicas.get_mut(&key));
        let led = replica.zip(epoch);
        let Some((replica, _)) =
            led.filter(|(replica, epoch)| replica.partition.check_leader_epoch(*epoch).is_ok())
        else {
            self.coordinating.ended.push((ticket, Err(ErrorCode::NotLeaderOrFollower)));
            return Ok(());
        };
        let mut batch = BatchBuilder::new(Offset::ZERO, Compression::NONE);
        batch.append(cx.now.wall, Some(&record.key), record.value.as_deref(), &[]);
        replica.partition.enqueue(QueuedAppend {
            records: batch.finish().expect("a batch without compression"),
            produce_version: 13,
            acks: if cx.planted == Some(Planted::StateNotAwaited) { Acks::Leader } else { Acks::All },
            origin: Origin::Coordinator,
            claim: Claim::Unchecked,
            token: Purpose::State(index, ticket),
        });
        let mut answers = Answers::new();
        replica.turn(cx.now, &mut answers)?;
        self.coordinating.appends.push((ticket, cx.time + APPEND_TIME_US));
        self.answer(answers, cx);
        Ok(())
    }

    /// A record of the coordinator is committed or has failed.
    pub fn state_appended(&mut self, ticket: Ticket, result: Result<(), ErrorCode>) {
        let known = self.coordinating.appends.extract_if(.., |(known, _)| *known == ticket);
        if known.count() > 0 {
            self.coordinating.ended.push((ticket, result));
        }
    }

    // --- Markers ---

    fn send_markers(
        &mut self,
        marker: Marker,
        mut partitions: BTreeSet<TopicPartition>,
        ticket: Ticket,
        cx: &mut Context<'_>,
    ) {
        let mut round =
            Round { ticket, asked: BTreeMap::new(), results: Vec::new(), until: cx.time + ANSWER_TIME_US };
        if cx.planted == Some(Planted::MarkerForgotten)
            && partitions.len() > 1
            && let Some(forgotten) = partitions.pop_last()
        {
            round.results.push((forgotten, Ok(())));
        }
        for partition in partitions {
            let found =
                self.image.topic(&partition.topic).and_then(|topic| topic.partition(partition.partition));
            match found.and_then(|image| image.leader) {
                Some(leader) => {
                    let attempt = self.attempt();
                    round.asked.insert(attempt, partition.clone());
                    let to = Place::Node(leader.0 as usize);
                    cx.send(to, Message::WriteMarker { attempt, marker, partition });
                }
                None => round.results.push((partition, Err(ErrorCode::LeaderNotAvailable))),
            }
        }
        match round.asked.is_empty() {
            true => self.coordinating.machine.markers_written(ticket, round.results, cx.now),
            false => self.coordinating.rounds.push(round),
        }
    }

    /// A coordinator's marker for a partition that is led here.
    pub fn write_marker(
        &mut self,
        to: Place,
        attempt: Attempt,
        (marker, partition): (Marker, TopicPartition),
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let topic = self.image.topic(&partition.topic);
        let key = topic.map(|topic| key_of(topic, partition.partition));
        let replica = key.and_then(|key| self.replicas.get_mut(&key));
        let leads = |replica: &&mut super::replica::Replica| {
            replica.partition.check_leader_epoch(LeaderEpoch::NONE).is_ok()
        };
        let Some(replica) = replica.filter(leads) else {
            let result = Err(ErrorCode::NotLeaderOrFollower);
            cx.send(to, Message::MarkerWritten { attempt, result });
            return Ok(());
        };
        let end = EndTxnMarker { commit: marker.commit, coordinator_epoch: marker.coordinator_epoch };
        let Producer { id, epoch } = marker.producer;
        let bumps_epoch = marker.version.bumps_epoch();
        replica.partition.enqueue(QueuedAppend {
            records: end.to_batch(id, epoch, cx.now.wall),
            produce_version: 13,
            acks: Acks::All,
            origin: Origin::Coordinator,
            claim: Claim::Marker { bumps_epoch, coordinator_epoch_max: i32::MAX },
            token: Purpose::Marker { to, attempt },
        });
        let mut answers = Answers::new();
        replica.turn(cx.now, &mut answers)?;
        self.answer(answers, cx);
        self.wake_parked(cx)
    }

    pub fn marker_written(&mut self, attempt: Attempt, result: Result<(), ErrorCode>, cx: &Context<'_>) {
        let rounds = &mut self.coordinating.rounds;
        let Some(at) = rounds.iter().position(|round| round.asked.contains_key(&attempt)) else { return };
        let round = &mut rounds[at];
        round.results.extend(round.asked.remove(&attempt).map(|partition| (partition, result)));
        if round.asked.is_empty() {
            let Round { ticket, results, .. } = rounds.swap_remove(at);
            self.coordinating.machine.markers_written(ticket, results, cx.now);
        }
    }

    // --- Batches of transactions ---

    /// Has a batch appended if its transaction is under way in the partition, or its coordinator says that it may begin
    /// here (as `api::verification`).
    pub fn produce_in_transaction(
        &mut self,
        (token, records): (Token, Bytes),
        transaction: OfTransaction,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let OfTransaction { id, version } = transaction;
        if cx.planted == Some(Planted::TransactionNotVerified) {
            return self.append_batch(token, records, Claim::Unchecked, cx);
        }
        let Some(replica) = self.replicas.get_mut(&token.key) else {
            return self.refuse(token, ErrorCode::UnknownTopicOrPartition, cx);
        };
        let Ok(head) = BatchHead::of_entry(&records) else {
            return self.refuse(token, ErrorCode::CorruptMessage, cx);
        };
        let producer = Producer { id: head.producer_id(), epoch: head.producer_epoch() };
        let query = VerificationQuery {
            id: producer.id,
            epoch: producer.epoch,
            sequence: head.base_sequence(),
            bumps_epoch: version.bumps_epoch(),
        };
        let partition = replica.log().topic_partition().clone();
        let guard = match replica.partition.log_mut().begin_verification(query, cx.now) {
            Ok(None) => return self.append_batch(token, records, Claim::Open, cx),
            Ok(Some(guard)) => guard,
            Err(code) => return self.refuse(token, code, cx),
        };
        let attempt = self.attempt();
        let until = cx.time + ANSWER_TIME_US;
        let verifying = Verifying { attempt, token, records, partition, producer, guard, until };
        let Some(coordinator) = coordinator_of(&self.image, &id) else {
            self.refuse_batch(verifying, ErrorCode::CoordinatorNotAvailable, cx);
            return Ok(());
        };
        let partitions = [verifying.partition.clone()].into();
        let request = match version.bumps_epoch() {
            true => Request::AddPartitions { id, producer, partitions, version },
            false => Request::VerifyPartitions { id, producer, partitions },
        };
        self.coordinating.verifying.push(verifying);
        cx.send(Place::Node(coordinator), Message::Coordinate { attempt, request });
        Ok(())
    }

    /// The coordinator's word on a batch.
    pub fn coordinated(
        &mut self,
        attempt: Attempt,
        response: Response,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let waiting = &mut self.coordinating.verifying;
        let Some(at) = waiting.iter().position(|it| it.attempt == attempt) else { return Ok(()) };
        let verifying = waiting.swap_remove(at);
        let result = match response {
            Response::AddPartitions(result) => result,
            Response::VerifyPartitions(Ok(missing)) if missing.contains(&verifying.partition) => {
                Err(ErrorCode::TransactionAbortable)
            }
            Response::VerifyPartitions(result) => result.map(|_| ()),
            other => return Err(format!("a broker is told {other:?}")),
        };
        match result {
            Ok(()) => {
                let Verifying { token, records, guard, .. } = verifying;
                self.append_batch(token, records, Claim::Begins(guard), cx)
            }
            Err(code) => {
                self.refuse_batch(verifying, code, cx);
                Ok(())
            }
        }
    }

    fn refuse_batch(&mut self, verifying: Verifying, code: ErrorCode, cx: &mut Context<'_>) {
        let is_asked_again = matches!(
            code,
            ErrorCode::ConcurrentTransactions
                | ErrorCode::CoordinatorLoadInProgress
                | ErrorCode::CoordinatorNotAvailable
                | ErrorCode::NotCoordinator
                | ErrorCode::NetworkException
        );
        let Verifying { token, producer, guard, .. } = verifying;
        if let Some(replica) = self.replicas.get_mut(&token.key) {
            replica.partition.log_mut().refuse_verification(producer.id, guard, !is_asked_again);
        }
        let code = match code {
            ErrorCode::ProducerFenced => ErrorCode::InvalidProducerEpoch,
            _ if is_asked_again => ErrorCode::NotEnoughReplicas,
            code => code,
        };
        cx.send(Place::Client(token.client), Message::Produced { token, result: Err(code) });
    }
}
