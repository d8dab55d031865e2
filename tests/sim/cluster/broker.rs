//! A broker while it runs: what `shard`, `replica` and `server` do around the state machines, in virtual time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kuring::base::clock::Now;
use kuring::base::random::Random;
use kuring::base::{BrokerEpoch, BrokerId, Offset, TopicPartition};
use kuring::config::{CleanupPolicy, Durability, LogConfig};
use kuring::io::mem::MemFiles;
use kuring::log::{Checkpoint, FoundPartition, Gaps, Log, LogContext, LogDir, OpenOptions};
use kuring::metadata::{ConfigResource, Image, PartitionImage, RegisterBroker, TopicImage, own_features};
use kuring::partition::{AlteredIsr, AppendFailure, Brokers, IsrProposal, Partition};
use kuring::raft::ProducerIds;
use kuring::replica::Lifecycle;
use kuring::shard::{PartitionKey, roles};
use kuring::wire::ErrorCode;
use uuid::Uuid;

use super::asking::Pending;
use super::checker::Checker;
use super::coordinating::{Coordinating, IdFor};
use super::fetching::{Parked, Source};
use super::messages::{Attempt, Message, Place, Purpose};
use super::planted::Planted;
use super::quorum::CLUSTER;
use super::replica::{Answers, Replica};
use super::world::{STATE_TOPIC, key_of};
use crate::home::text;

pub const LAG_MAX: Duration = Duration::from_millis(700);
pub const HEARTBEAT: Duration = Duration::from_millis(200);

const SWEEP_US: u64 = 350_000;
const CHECKPOINT_US: u64 = 1_000_000;
/// An unwanted log goes after up to so long.
const LEAVING_US: u64 = 100_000;

/// What a broker has beside itself while something happens to it.
pub struct Context<'a> {
    pub time: u64,
    pub now: Now,
    pub random: &'a mut Random,
    pub checker: &'a mut Checker,
    pub controller: Option<usize>,
    pub planted: Option<Planted>,
    pub out: Vec<(Place, Message)>,
}

impl Context<'_> {
    pub fn send(&mut self, to: Place, message: Message) {
        self.out.push((to, message));
    }
}

pub struct Broker {
    pub id: BrokerId,
    dir: LogDir<MemFiles>,
    context: Arc<LogContext<MemFiles>>,
    pub durability: Durability,
    found: Vec<FoundPartition>,
    was_clean: bool,
    brokers: Brokers,
    pub(super) registration: RegisterBroker,
    /// As the controller has answered.
    pub(super) epoch: Option<BrokerEpoch>,
    pub life: Option<Lifecycle>,
    /// What was published here.
    pub image: Image,
    pub replicas: BTreeMap<PartitionKey, Replica>,
    pub sources: BTreeMap<BrokerId, Source>,
    pub parked: Vec<Parked>,
    pub proposals: Vec<(PartitionKey, IsrProposal)>,
    pub(super) registering: Pending,
    pub(super) beating: Pending,
    pub(super) proposing: Pending,
    pub(super) allocating: Pending,
    pub(super) ids: ProducerIds,
    pub(super) wait_for_ids: Vec<IdFor>,
    pub(super) coordinating: Coordinating,
    attempts: u64,
    sweep_at: u64,
    checkpoint_at: u64,
    pub stops: bool,
}

impl Broker {
    /// A process starts on what the one before it has left.
    pub fn start(
        files: &MemFiles,
        id: BrokerId,
        incarnation: u128,
        durability: Durability,
        now: Now,
    ) -> Result<Self, String> {
        let (dir, found) = LogDir::open(files.clone(), Path::new("/data"), CLUSTER, id).map_err(text)?;
        for deleted in &found.deleted {
            dir.remove_deleted(deleted).map_err(text)?;
        }
        let registration = RegisterBroker {
            id,
            cluster_id: CLUSTER.to_owned(),
            incarnation: Uuid::from_u128(incarnation),
            endpoints: Vec::new(),
            rack: None,
            log_dirs: vec![Uuid::from_u128(1000 + id.0 as u128)],
            features: own_features(),
            fenced: true,
            previous_epoch: found.clean_epoch.filter(|_| found.clean),
        };
        Ok(Self {
            id,
            dir,
            context: Arc::new(LogContext::new(files.clone())),
            durability,
            found: found.partitions,
            was_clean: found.clean,
            brokers: Brokers::new(id, LAG_MAX),
            registration,
            epoch: None,
            life: None,
            image: Image::default(),
            replicas: BTreeMap::new(),
            sources: BTreeMap::new(),
            parked: Vec::new(),
            proposals: Vec::new(),
            registering: Pending::default(),
            beating: Pending::default(),
            proposing: Pending::default(),
            allocating: Pending::default(),
            ids: ProducerIds::default(),
            wait_for_ids: Vec::new(),
            coordinating: Coordinating::new(now),
            attempts: 0,
            sweep_at: 0,
            checkpoint_at: 0,
            stops: false,
        })
    }

    /// The registration of this process, as far as this broker has an image of it.
    pub fn epoch(&self) -> Option<BrokerEpoch> {
        let known = self.image.broker(self.id)?;
        (self.epoch == Some(known.epoch)).then_some(known.epoch)
    }

    pub fn may_stop(&self) -> bool {
        self.life.as_ref().is_some_and(Lifecycle::may_stop)
    }

    pub fn attempt(&mut self) -> Attempt {
        self.attempts += 1;
        Attempt(self.attempts)
    }

    // --- What the time brings ---

    pub fn tick(&mut self, is_slow: bool, cx: &mut Context<'_>) -> Result<(), String> {
        self.ask_controller(cx);
        let mut answers = Answers::new();
        for replica in self.replicas.values_mut() {
            if !is_slow || cx.random.below(8) == 0 {
                let wants_flush = cx.random.below(60) == 0;
                replica.advance_jobs(cx.now, wants_flush, &mut answers)?;
                if replica.partition.config().cleanup_policy.compact {
                    cx.checker.cleaned += replica.advance_clean(cx.now)?;
                }
            }
        }
        self.answer(answers, cx);
        self.delete_leaving(cx)?;
        if self.sweep_at <= cx.time {
            self.sweep_at = cx.time + SWEEP_US;
            self.shrink(cx);
            for replica in self.replicas.values_mut() {
                let high_watermark = replica.partition.high_watermark();
                replica.partition.log_mut().enforce_retention(high_watermark, cx.now);
            }
        }
        self.transactions_tick(cx);
        if self.checkpoint_at <= cx.time {
            self.checkpoint_at = cx.time + CHECKPOINT_US;
            self.write_checkpoints(None)?;
        }
        self.wake_parked(cx)?;
        self.fetch_all(cx);
        Ok(())
    }

    fn shrink(&mut self, cx: &mut Context<'_>) {
        let mut answers = Answers::new();
        for (key, replica) in &mut self.replicas {
            let Some(proposal) = replica.partition.shrink_isr(cx.now) else { continue };
            if cx.planted == Some(Planted::ShrunkWithoutController) {
                let altered = AlteredIsr {
                    leader_epoch: proposal.leader_epoch,
                    partition_epoch: proposal.partition_epoch,
                    isr: proposal.isr.iter().map(|(member, _)| *member).collect(),
                };
                replica.partition.isr_altered(&proposal, Ok(altered), cx.now, &mut answers);
                continue;
            }
            self.proposals.push((*key, proposal));
        }
        self.answer(answers, cx);
    }

    // --- The image ---

    /// A newer image; nothing is made of it before this process is registered in it.
    pub fn publish(&mut self, image: &Image, cx: &mut Context<'_>) -> Result<(), String> {
        let Some(epoch) = self.epoch else { return Ok(()) };
        if image.broker(self.id).is_none_or(|known| known.epoch < epoch)
            || image.version() <= self.image.version()
        {
            return Ok(());
        }
        let is_first = self.image.version() == 0;
        self.expect(image, cx);
        self.hurry_markers(cx);
        self.image = image.clone();
        let alive = image.brokers().filter(|broker| broker.serves());
        self.brokers.set_alive(alive.map(|broker| (broker.id, broker.epoch)));
        let topics: Vec<Arc<TopicImage>> = image.topics().cloned().collect();
        for topic in &topics {
            for (index, partition) in topic.numbered() {
                self.take_up(topic, key_of(topic, index), partition, cx)?;
            }
        }
        if is_first {
            // What is left belongs to nobody any more.
            for found in std::mem::take(&mut self.found) {
                self.remove(&found.topic_partition)?;
            }
            self.write_checkpoints(None)?;
            if let Some(life) = &mut self.life {
                life.ready(cx.now.monotonic);
            }
        }
        self.wake_parked(cx)?;
        self.fetch_all(cx);
        Ok(())
    }

    fn take_up(
        &mut self,
        topic: &TopicImage,
        key: PartitionKey,
        partition: &PartitionImage,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let is_mine = partition.replicas.contains(&self.id);
        if is_mine && !self.replicas.contains_key(&key) {
            let replica = self.open(topic, key, cx)?;
            self.replicas.insert(key, replica);
        }
        let config = log_config(&self.image, topic);
        if let Some(replica) = self.replicas.get_mut(&key)
            && *config != **replica.partition.config()
        {
            replica.partition.set_config(config);
        }
        self.take_role(key, partition, cx);
        if let (false, Some(replica)) = (is_mine, self.replicas.get_mut(&key)) {
            replica.leaves_at.get_or_insert(cx.time + cx.random.below(LEAVING_US));
        }
        Ok(())
    }

    /// As the shard's method of this name.
    pub fn take_role(&mut self, key: PartitionKey, image: &PartitionImage, cx: &mut Context<'_>) {
        let Some(replica) = self.replicas.get_mut(&key) else { return };
        if replica.leaves_at.is_some() {
            return;
        }
        let assignment = roles::assignment(image);
        let mut answers = Answers::new();
        replica.partition.assign(&assignment, &self.brokers, cx.now, &mut answers);
        let (leads, epoch) = (replica.partition.is_leader(), replica.partition.leader_epoch());
        let leader = roles::followed(image, self.id, leads);
        replica.follows = leader.map(|leader| (leader, epoch));
        self.answer(answers, cx);
    }

    /// Opens what is there of a partition, or makes it.
    fn open(&mut self, topic: &TopicImage, key: PartitionKey, cx: &Context<'_>) -> Result<Replica, String> {
        let topic_partition = TopicPartition { topic: topic.name.clone(), partition: key.partition };
        let place = self.found.iter().position(|found| found.topic_partition == topic_partition);
        let found = place.map(|place| self.found.remove(place));
        let config = log_config(&self.image, topic);
        let options = match &found {
            Some(found) => OpenOptions {
                dir: found.dir.clone(),
                topic_partition,
                config: Arc::clone(&config),
                recovery_point: found.durable_to(),
                log_start: found.first_offset(),
                cleaned: found.cleaned,
                gaps: found.gaps,
                clean: self.was_clean,
            },
            None => {
                // It has its line before its first record.
                self.write_checkpoints(Some(&topic_partition))?;
                let dir = self.dir.create_partition(&topic_partition, key.topic).map_err(text)?;
                OpenOptions {
                    dir,
                    topic_partition,
                    config: Arc::clone(&config),
                    recovery_point: Offset::ZERO,
                    log_start: Offset::ZERO,
                    cleaned: None,
                    gaps: Gaps::BelowRecoveryPoint,
                    clean: true,
                }
            }
        };
        let mut log = Log::open(&self.context, options, cx.now).map_err(text)?;
        if self.durability == Durability::Fsync
            && let Some(job) = log.flush_job()
        {
            log.finish_flush(job.run(), cx.now).map_err(text)?;
        }
        let high_watermark = found.map_or(log.log_start(), |found| found.high_watermark);
        Ok(Replica::new(Partition::resume(log, key.topic, high_watermark, config, self.durability)))
    }

    fn delete_leaving(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let is_due = |replica: &Replica| replica.leaves_at.is_some_and(|at| at <= cx.time);
        let due: Vec<PartitionKey> =
            self.replicas.iter().filter(|(_, replica)| is_due(replica)).map(|(key, _)| *key).collect();
        for key in due {
            let Some(mut replica) = self.replicas.remove(&key) else { continue };
            let mut answers = Answers::new();
            replica.finish_jobs(cx.now, &mut answers)?;
            replica.partition.fail_all(ErrorCode::UnknownTopicOrPartition, &mut answers);
            self.answer(answers, cx);
            let name = replica.log().topic_partition().clone();
            drop(replica);
            self.remove(&name)?;
            self.write_checkpoints(None)?;
            // It may be wanted again.
            let image = self.image.clone();
            let topic = image.topic_by_id(key.topic);
            if let Some((topic, partition)) =
                topic.and_then(|topic| Some((topic, topic.partition(key.partition)?)))
            {
                self.take_up(topic, key, partition, cx)?;
            }
        }
        Ok(())
    }

    fn remove(&self, name: &TopicPartition) -> Result<(), String> {
        let path = self.dir.rename_deleted(name).map_err(text)?;
        self.dir.remove_deleted(&path).map_err(text)
    }

    /// `made`: a partition that is about to be.
    pub fn write_checkpoints(&mut self, made: Option<&TopicPartition>) -> Result<(), String> {
        let (mut points, mut waters, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        let mut cleaned = Vec::new();
        for replica in self.replicas.values_mut() {
            let point = replica.log().recovery_point_to_save();
            replica.saved = point.unwrap_or(Offset::ZERO);
            let log = replica.log();
            let name = || log.topic_partition().clone();
            points.extend(point.map(|point| (name(), point)));
            waters.push((name(), replica.partition.high_watermark()));
            starts.push((name(), log.log_start()));
            cleaned.extend(log.cleaned().map(|cleaned| (name(), cleaned)));
        }
        for found in &self.found {
            let name = || found.topic_partition.clone();
            points.extend((found.gaps == Gaps::BelowRecoveryPoint).then(|| (name(), found.recovery_point)));
            waters.push((name(), found.high_watermark));
            starts.push((name(), found.log_start));
            cleaned.extend(found.cleaned.map(|cleaned| (name(), cleaned)));
        }
        points.extend(made.map(|name| (name.clone(), Offset::ZERO)));
        let all = [
            (Checkpoint::RecoveryPoint, points),
            (Checkpoint::HighWatermark, waters),
            (Checkpoint::LogStart, starts),
            (Checkpoint::Cleaner, cleaned),
        ];
        all.iter().try_for_each(|(kind, entries)| self.dir.write_checkpoint(*kind, entries).map_err(text))
    }

    /// A clean end: everything is on the disk afterwards.
    pub fn close(mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let mut answers = Answers::new();
        for replica in self.replicas.values_mut() {
            replica.finish_jobs(cx.now, &mut answers)?;
            replica.partition.fail_all(ErrorCode::NotLeaderOrFollower, &mut answers);
            replica.partition.log_mut().close(cx.now).map_err(text)?;
        }
        self.answer(answers, cx);
        self.write_checkpoints(None)?;
        match self.epoch {
            Some(epoch) => self.dir.mark_clean_shutdown(epoch).map_err(text),
            None => Ok(()),
        }
    }

    /// Tells whoever waits what has become of their batches.
    pub fn answer(&mut self, answers: Answers, cx: &mut Context<'_>) {
        for answer in answers {
            let result = answer.result.map_err(|failure| match failure {
                AppendFailure::Code(code) => code,
                AppendFailure::Records(_) => ErrorCode::CorruptMessage,
            });
            match answer.token {
                Purpose::Batch(token) => {
                    cx.send(Place::Client(token.client), Message::Produced { token, result });
                }
                Purpose::State(index, ticket) => {
                    if let (Ok(appended), Some(topic)) = (&result, self.image.topic(STATE_TOPIC))
                        && cx.planted != Some(Planted::StateNotAwaited)
                    {
                        cx.checker.state_written(key_of(topic, index), appended.last);
                    }
                    self.state_appended(ticket, result.map(|_| ()));
                }
                Purpose::Marker { to, attempt } => {
                    cx.send(to, Message::MarkerWritten { attempt, result: result.map(|_| ()) });
                }
            }
        }
    }
}

fn log_config(image: &Image, topic: &TopicImage) -> Arc<LogConfig> {
    let settings = image.overrides(&ConfigResource::Topic(topic.name.clone()));
    let number =
        |name: &str, default: i64| settings.get(name).and_then(|value| value.parse().ok()).unwrap_or(default);
    // The coordinators' topic is compacted; its segments are short, so that there is something to do.
    let is_state = *topic.name == *STATE_TOPIC;
    let segment_bytes = if is_state { 900 } else { number("segment.bytes", 4000) };
    Arc::new(LogConfig {
        segment_bytes: segment_bytes as u32,
        cleanup_policy: CleanupPolicy { compact: is_state, delete: !is_state },
        min_cleanable_dirty_ratio: 0.01,
        index_interval_bytes: 300,
        retention_bytes: number("retention.bytes", -1),
        min_insync_replicas: number("min.insync.replicas", 2) as i32,
        ..LogConfig::default()
    })
}
