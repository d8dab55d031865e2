//! The controller's logic: looks at the image, checks a command, proposes records.
//!
//! Commands run one at a time: the image passed to [`Controller::handle`] holds the effect of every
//! command before. Nothing changes until the records are applied.

mod alter_partition;
mod brokers;
mod configs;
mod directories;
mod elect;
mod features;
mod heartbeats;
mod partitions;
mod quotas;
mod reassign;
mod sessions;
mod timers;
mod topics;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use uuid::Uuid;

use super::codec;
use super::command::{Command, Refusal, Response};
use super::features::METADATA_VERSION;
use super::forms::{self, Missing};
use super::image::{ConfigResource, Image, Overrides};
use super::record::{Record, Stamp};
pub use sessions::Sessions;

use crate::base::clock::Monotonic;
use crate::base::random::Random;
use crate::base::{TopicId, Windows};
use crate::wire::ErrorCode;

/// A command that needs more records is refused: an entry must fit into a message between nodes. Kafka's
/// controller has the same bound.
const RECORDS_PER_COMMAND_MAX: usize = 10_000;

/// The same bound in bytes, for records with long values.
pub const ENTRY_BYTES_MAX: usize = 8 << 20;

/// What the controller asks about config values; implemented over `config`.
pub trait ConfigRules {
    /// One change by itself: is the name known and open to change, is the value one of its type?
    /// `None` takes the value away.
    fn check_change(&self, resource: &ConfigResource, name: &str, value: Option<&str>)
    -> Result<(), Refusal>;

    /// All that would be set on `resource` afterwards: values that contradict each other.
    fn check_all(&self, resource: &ConfigResource, overrides: &Overrides) -> Result<(), Refusal>;

    /// Whether the value is a comma-separated list, so that it can be appended to.
    fn is_list(&self, resource: &ConfigResource, name: &str) -> bool;

    /// What holds while nothing is set on `resource`: the base of the first append.
    fn default_value(&self, resource: &ConfigResource, name: &str) -> Option<String>;
}

/// The controller's own settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerSettings {
    /// `num.partitions`
    pub default_partitions: i32,
    /// `default.replication.factor`
    pub default_replication_factor: i16,
    /// `delete.topic.enable`
    pub delete_topic_enable: bool,
    /// `controller.quota.window.num`, `controller.quota.window.size.seconds`
    pub quota_windows: Windows,
    /// `None` for a node alone: its broker lives as long as its process.
    pub cluster: Option<ClusterSettings>,
}

/// What a cluster's controller goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClusterSettings {
    /// `broker.session.timeout.ms`
    pub session_timeout: Duration,
    /// `leader.imbalance.check.interval.seconds`; `None` without `auto.leader.rebalance.enable`.
    pub rebalance_interval: Option<Duration>,
    /// `unclean.leader.election.interval.ms`
    pub unclean_interval: Duration,
    pub stamp: Stamp,
}

/// By which a node alone decides.
const ALONE: Stamp = Stamp { elr: false, min_isr: 1, unclean_election: false };

impl Default for ControllerSettings {
    fn default() -> Self {
        Self {
            default_partitions: 1,
            default_replication_factor: 1,
            delete_topic_enable: true,
            quota_windows: Windows::new(11, 1),
            cluster: None,
        }
    }
}

/// Where topic ids come from.
#[derive(Clone, Debug)]
pub enum IdSource {
    /// The operating system's random source.
    Os,
    /// For the simulator.
    Seeded(Random),
}

/// What a command comes to: `records` make it so, `response` is sent once they are applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Empty: nothing changes, answer at once.
    pub records: Vec<Record>,
    /// What the records take when they are stored.
    pub bytes: usize,
    pub response: Response,
}

/// An [`Outcome`] before its size was checked.
struct Decision {
    records: Vec<Record>,
    response: Response,
}

/// Turns commands into records.
pub struct Controller {
    settings: ControllerSettings,
    rules: Rc<dyn ConfigRules>,
    ids: IdSource,
    random: Random,
    /// Shared with whoever sees heartbeats come.
    sessions: Rc<RefCell<Sessions>>,
    /// Only while this node leads.
    timers: timers::Timers,
    mutations: quotas::Mutations,
}

impl Controller {
    pub fn new(
        settings: ControllerSettings,
        rules: Rc<dyn ConfigRules>,
        ids: IdSource,
        random: Random,
    ) -> Self {
        let timeout = settings.cluster.map_or(Duration::ZERO, |cluster| cluster.session_timeout);
        let sessions = Rc::new(RefCell::new(Sessions::new(timeout)));
        let mutations = quotas::Mutations::new(settings.quota_windows);
        let timers = timers::Timers::default();
        Self { settings, rules, ids, random, sessions, timers, mutations }
    }

    /// What is known of the brokers while this node leads.
    pub fn sessions(&self) -> Rc<RefCell<Sessions>> {
        self.sessions.clone()
    }

    /// This node has begun to lead: it knows nothing of the time before.
    pub fn activate(&mut self, image: &Image, now: Monotonic) {
        self.sessions.borrow_mut().begin(image, now);
        if let Some(cluster) = &self.settings.cluster {
            self.timers = timers::Timers::begin(cluster, now);
        }
    }

    fn stamp(&self) -> Stamp {
        self.settings.cluster.map_or(ALONE, |cluster| cluster.stamp)
    }

    /// Decides on `command`, given the state as of all commands before. An error refuses the whole command.
    pub fn handle(&mut self, image: &Image, command: Command, now: Monotonic) -> Result<Outcome, Refusal> {
        let Decision { records, response } = match command {
            Command::RegisterBroker(request) => match self.settings.cluster {
                Some(cluster) => self.register_among_others(image, request, &cluster.stamp, now)?,
                None => brokers::register(image, request)?,
            },
            Command::FenceBroker { id, epoch } => self.set_fenced(image, id, epoch, true)?,
            Command::UnfenceBroker { id, epoch } => self.set_fenced(image, id, epoch, false)?,
            Command::CreateTopics(request) => self.create_topics(image, request)?,
            Command::DeleteTopics(request) => self.delete_topics(image, request),
            Command::CreatePartitions(request) => self.create_partitions(image, request)?,
            Command::AlterConfigs(request) => {
                let decision = self.alter_configs(image, request);
                self.note_settings(&decision.records, now);
                decision
            }
            Command::UpdateFeatures(request) => features::update(image, request)?,
            Command::AllocateProducerIds { broker, epoch } => {
                brokers::allocate_producer_ids(image, broker, epoch)?
            }
            Command::ReplicasOffline { broker, epoch, partitions } => {
                directories::replicas_offline(image, broker, epoch, &partitions, &self.stamp())?
            }
            Command::Heartbeat(beat) => self.heartbeat(image, beat)?,
            Command::AlterPartition(request) => {
                alter_partition::alter_partitions(image, request, &self.stamp())?
            }
            Command::ElectLeaders(request) => elect::elect_leaders(image, &request, &self.stamp()),
            Command::AlterReassignments(request) => {
                reassign::alter_reassignments(image, &request, &self.stamp())
            }
            Command::UnregisterBroker { id } => self.unregister(image, id)?,
            Command::RegisterController(controller) => brokers::register_controller(image, controller),
            Command::AssignDirectories(request) => directories::assign(image, &request, &self.stamp())?,
            Command::DirectoryFailed { broker, epoch, directory } => {
                directories::fail(image, broker, epoch, directory, &self.stamp())?
            }
            Command::BalanceLeaders => {
                Decision { records: self.balance_leaders(image, now), response: Response::Done }
            }
            Command::ElectUnclean => {
                Decision { records: self.elect_unclean_leaders(image, now), response: Response::Done }
            }
            Command::AlterClientQuotas(request) => quotas::alter(image, request),
            Command::Limited(quota, command) => return self.limited(image, &quota, *command, now),
        };
        check_level(image, &records)?;
        let bytes = check_size(&records)?;
        Ok(Outcome { records, bytes, response })
    }

    fn new_topic_id(&mut self, image: &Image) -> TopicId {
        loop {
            let id = match &mut self.ids {
                IdSource::Os => Uuid::new_v4(),
                IdSource::Seeded(random) => {
                    let bits = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
                    uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
                }
            };
            let id = TopicId(id);
            // Kafka keeps ids that print with a leading '-' away from command lines.
            if image.topic_by_id(id).is_none() && !id.to_string().starts_with('-') {
                return id;
            }
        }
    }
}

/// Nothing is written that a node at the finalized level might not know.
fn check_level(image: &Image, records: &[Record]) -> Result<(), Refusal> {
    let Some(Missing { needed, finalized }) = forms::missing_level(image, records) else { return Ok(()) };
    let text = format!(
        "The change needs {METADATA_VERSION} {needed}, and {finalized} is finalized: raise it first."
    );
    Err(Refusal::new(ErrorCode::UnsupportedVersion, text))
}

/// The stored size of the records.
fn check_size(records: &[Record]) -> Result<usize, Refusal> {
    let too_large = || {
        Refusal::new(
            ErrorCode::PolicyViolation,
            "The request is too large for one metadata change: split it.",
        )
    };
    if records.len() > RECORDS_PER_COMMAND_MAX {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    codec::encode_records(records, &mut bytes);
    if bytes.len() > ENTRY_BYTES_MAX { Err(too_large()) } else { Ok(bytes.len()) }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A controller with its state, as the driver would run it.

    use super::super::command::{AlterIsr, AlterPartition, AlteredPartition, Heartbeat, RegisterBroker};
    use super::super::features::own_features;
    use super::super::image::FeatureRange;
    use super::super::state::State;
    use super::*;
    use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex};

    /// Knows `retention.ms` (a number), `cleanup.policy` (a list) and `node.id` (read-only).
    pub struct FewRules;

    impl ConfigRules for FewRules {
        fn check_change(
            &self,
            _resource: &ConfigResource,
            name: &str,
            value: Option<&str>,
        ) -> Result<(), Refusal> {
            let invalid = |text: &str| Err(Refusal::new(ErrorCode::InvalidConfig, text));
            match (name, value) {
                ("retention.ms", Some(value)) if value.parse::<i64>().is_err() => invalid("not a number"),
                (
                    "retention.ms"
                    | "cleanup.policy"
                    | "min.insync.replicas"
                    | "unclean.leader.election.enable",
                    _,
                ) => Ok(()),
                ("node.id", _) => Err(Refusal::new(ErrorCode::InvalidRequest, "read-only")),
                _ => invalid("unknown config"),
            }
        }

        fn check_all(&self, _resource: &ConfigResource, overrides: &Overrides) -> Result<(), Refusal> {
            match overrides.get("cleanup.policy").map(String::as_str) {
                Some("") => Err(Refusal::new(ErrorCode::InvalidConfig, "no policy")),
                _ => Ok(()),
            }
        }

        fn is_list(&self, _resource: &ConfigResource, name: &str) -> bool {
            name == "cleanup.policy"
        }

        fn default_value(&self, _resource: &ConfigResource, name: &str) -> Option<String> {
            (name == "cleanup.policy").then(|| "delete".to_owned())
        }
    }

    /// Of a feature that is there.
    pub fn range_of<'a>(features: &'a mut [FeatureRange], name: &str) -> &'a mut FeatureRange {
        features.iter_mut().find(|range| range.name == name).unwrap()
    }

    pub struct Cluster {
        pub controller: Controller,
        pub state: State,
        pub now: Monotonic,
    }

    impl Cluster {
        pub fn of(brokers: i32) -> Self {
            let settings = ControllerSettings { default_partitions: 3, ..ControllerSettings::default() };
            let ids = IdSource::Seeded(Random::seeded(1));
            let controller = Controller::new(settings, Rc::new(FewRules), ids, Random::seeded(2));
            let mut cluster = Self { controller, state: State::default(), now: Monotonic::ZERO };
            cluster.state.apply(1, &[Record::Cluster { id: "test".into() }]).unwrap();
            for id in 1..=brokers {
                cluster.register(id);
            }
            cluster
        }

        /// Brokers 1 to `brokers` among each other, all unfenced; sessions of ten seconds.
        pub fn of_many(brokers: i32) -> Self {
            let stamp = Stamp { elr: true, min_isr: 1, unclean_election: false };
            let settings = ControllerSettings {
                cluster: Some(ClusterSettings {
                    session_timeout: Duration::from_secs(10),
                    rebalance_interval: Some(Duration::from_secs(300)),
                    unclean_interval: Duration::from_secs(60),
                    stamp,
                }),
                ..ControllerSettings::default()
            };
            let ids = IdSource::Seeded(Random::seeded(1));
            let controller = Controller::new(settings, Rc::new(FewRules), ids, Random::seeded(2));
            let mut cluster = Self { controller, state: State::default(), now: Monotonic::ZERO };
            cluster.state.apply(1, &[Record::Cluster { id: "test".into() }]).unwrap();
            cluster.controller.sessions().borrow_mut().begin(cluster.state.image(), cluster.now);
            for id in 1..=brokers {
                let epoch = cluster.start(id, None).unwrap();
                let state = cluster.beat(id, epoch, |_| {}).unwrap();
                assert!(!state.is_fenced, "it has caught up");
            }
            cluster
        }

        /// The request of one process among several: each call is another process.
        pub fn registration(&mut self, id: i32, previous: Option<BrokerEpoch>) -> RegisterBroker {
            let incarnation = u128::from(self.state.image().version()) << 64 | id as u128;
            RegisterBroker {
                incarnation: Uuid::from_u128(incarnation),
                log_dirs: vec![Uuid::from_u128(1000 + id as u128)],
                features: own_features(),
                fenced: true,
                previous_epoch: previous,
                ..Self::request(id)
            }
        }

        pub fn start(&mut self, id: i32, previous: Option<BrokerEpoch>) -> Result<BrokerEpoch, Refusal> {
            let request = self.registration(id, previous);
            self.run(Command::RegisterBroker(request)).map(Response::broker_epoch)
        }

        /// A heartbeat of a broker that has the newest image, unless `with` says otherwise.
        pub fn beat(
            &mut self,
            id: i32,
            epoch: BrokerEpoch,
            with: impl FnOnce(&mut Heartbeat),
        ) -> Result<super::super::command::BrokerState, Refusal> {
            let mut beat = Heartbeat {
                id: BrokerId(id),
                epoch,
                metadata_version: self.state.image().version(),
                wants_fence: false,
                wants_shutdown: false,
            };
            with(&mut beat);
            self.controller.sessions().borrow_mut().touch(beat.id, beat.epoch, self.now);
            self.run(Command::Heartbeat(beat)).map(Response::broker_state)
        }

        /// The leader of partition 0 says who is in sync with it.
        pub fn alter_isr(&mut self, name: &str, isr: &[i32]) -> Result<AlteredPartition, ErrorCode> {
            let image = self.state.image();
            let topic = image.topic(name).unwrap();
            let partition = topic.partitions[0].clone();
            let leader = partition.leader.unwrap();
            let epoch = |id: BrokerId| image.broker(id).map_or(BrokerEpoch(-1), |broker| broker.epoch);
            let wanted = AlterIsr {
                topic: topic.id,
                index: PartitionIndex(0),
                leader_epoch: partition.leader_epoch,
                partition_epoch: partition.partition_epoch,
                isr: isr.iter().map(|id| (BrokerId(*id), epoch(BrokerId(*id)))).collect(),
                recovering: false,
            };
            let request = AlterPartition { broker: leader, epoch: epoch(leader), partitions: vec![wanted] };
            self.run(Command::AlterPartition(request))
                .map_err(|refusal| refusal.code)?
                .partitions_altered()
                .remove(0)
        }

        /// Runs what the controller asks of itself now; how many commands that were.
        pub fn run_due(&mut self) -> usize {
            let mut count = 0;
            while let Some(command) = self.controller.due(self.state.image(), self.now) {
                self.run(command).unwrap();
                count += 1;
            }
            count
        }

        pub fn pass(&mut self, seconds: u64) {
            self.now = self.now.plus(Duration::from_secs(seconds));
        }

        /// Adds a topic of one partition as it stands.
        pub fn put(&mut self, name: &str, replicas: &[i32], isr: &[i32], leader: i32) -> TopicId {
            let ids = |ids: &[i32]| ids.iter().copied().map(BrokerId).collect::<Box<[BrokerId]>>();
            let topic = TopicId(Uuid::from_u128(name.len() as u128 + 77));
            let partition = super::super::image::PartitionImage {
                replicas: ids(replicas),
                isr: ids(isr),
                leader: Some(BrokerId(leader)),
                leader_epoch: LeaderEpoch(4),
                partition_epoch: 7,
                directories: Box::default(),
                transit: None,
            };
            let records = [
                Record::Topic { name: name.into(), id: topic },
                Record::Partition { topic, index: PartitionIndex(0), partition },
            ];
            self.state.apply(self.state.image().version() + 1, &records).unwrap();
            topic
        }

        /// Leader, those in sync, those that are eligible.
        pub fn state_of(&self, name: &str) -> (Option<i32>, Vec<i32>, Vec<i32>) {
            let topic = self.state.image().topic(name).unwrap();
            let partition = &topic.partitions[0];
            let numbers = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
            let leader = partition.leader.map(|id| id.0);
            (leader, numbers(&partition.isr), numbers(&partition.transit().elr))
        }

        fn request(id: i32) -> RegisterBroker {
            RegisterBroker {
                id: BrokerId(id),
                cluster_id: "test".into(),
                incarnation: Uuid::from_u128(id as u128),
                endpoints: Vec::new(),
                rack: None,
                log_dirs: Vec::new(),
                features: Vec::new(),
                fenced: false,
                previous_epoch: None,
            }
        }

        pub fn register(&mut self, id: i32) -> BrokerEpoch {
            self.run(Command::RegisterBroker(Self::request(id))).unwrap().broker_epoch()
        }

        /// Handles and applies.
        pub fn run(&mut self, command: Command) -> Result<Response, Refusal> {
            let outcome = self.controller.handle(self.state.image(), command, self.now)?;
            self.state.apply(self.state.image().version() + 1, &outcome.records).unwrap();
            Ok(outcome.response)
        }
    }
}
