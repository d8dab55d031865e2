//! What the controller is asked to do, and what it answers: plain data that may cross shards.
//!
//! One command becomes one entry of the metadata log, whole or not at all.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use super::image::{ConfigResource, ControllerImage, Endpoint, FeatureRange};
use super::quotas::QuotaLimit;
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, ProducerId, TopicId, TopicName};
use crate::wire::ErrorCode;

/// An error code of the protocol with the text that goes beside it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct Refusal {
    pub code: ErrorCode,
    pub message: String,
}

impl Refusal {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// A change that somebody wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    RegisterBroker(RegisterBroker),
    FenceBroker {
        id: BrokerId,
        epoch: BrokerEpoch,
    },
    UnfenceBroker {
        id: BrokerId,
        epoch: BrokerEpoch,
    },
    CreateTopics(CreateTopics),
    DeleteTopics(DeleteTopics),
    CreatePartitions(CreatePartitions),
    AlterConfigs(AlterConfigs),
    UpdateFeatures(UpdateFeatures),
    AllocateProducerIds {
        broker: BrokerId,
        epoch: BrokerEpoch,
    },
    /// The log directories of these replicas of the broker are offline (KIP-858).
    ReplicasOffline {
        broker: BrokerId,
        epoch: BrokerEpoch,
        partitions: Vec<(TopicId, PartitionIndex)>,
    },
    Heartbeat(Heartbeat),
    AlterPartition(AlterPartition),
    ElectLeaders(ElectLeaders),
    AlterReassignments(AlterReassignments),
    /// A broker is gone for good (UnregisterBroker, KIP-631).
    UnregisterBroker {
        id: BrokerId,
    },
    /// A controller process of a cluster is there (ControllerRegistration, KIP-919).
    RegisterController(ControllerImage),
    AssignDirectories(AssignDirectories),
    /// A log directory of the broker has failed (KIP-858).
    DirectoryFailed {
        broker: BrokerId,
        epoch: BrokerEpoch,
        directory: Uuid,
    },
    /// The first replicas lead again where they may: the controller asks it of itself.
    BalanceLeaders,
    /// Leaders for partitions that have none, where one that may lack records is better than none: of itself, too.
    ElectUnclean,
    AlterClientQuotas(AlterClientQuotas),
    /// One that makes or deletes partitions, for a client whose quota limits that.
    Limited(MutationQuota, Box<Command>),
}

/// The kinds of commands, for statistics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CommandKind {
    RegisterBroker,
    FenceBroker,
    UnfenceBroker,
    CreateTopics,
    DeleteTopics,
    CreatePartitions,
    AlterConfigs,
    UpdateFeatures,
    AllocateProducerIds,
    ReplicasOffline,
    Heartbeat,
    AlterPartition,
    ElectLeaders,
    AlterReassignments,
    UnregisterBroker,
    RegisterController,
    AssignDirectories,
    DirectoryFailed,
    BalanceLeaders,
    ElectUnclean,
    AlterClientQuotas,
}

impl CommandKind {
    /// As the label of the metric has it.
    pub fn name(self) -> &'static str {
        match self {
            CommandKind::RegisterBroker => "register_broker",
            CommandKind::FenceBroker => "fence_broker",
            CommandKind::UnfenceBroker => "unfence_broker",
            CommandKind::CreateTopics => "create_topics",
            CommandKind::DeleteTopics => "delete_topics",
            CommandKind::CreatePartitions => "create_partitions",
            CommandKind::AlterConfigs => "alter_configs",
            CommandKind::UpdateFeatures => "update_features",
            CommandKind::AllocateProducerIds => "allocate_producer_ids",
            CommandKind::ReplicasOffline => "replicas_offline",
            CommandKind::Heartbeat => "heartbeat",
            CommandKind::AlterPartition => "alter_partition",
            CommandKind::ElectLeaders => "elect_leaders",
            CommandKind::AlterReassignments => "alter_reassignments",
            CommandKind::UnregisterBroker => "unregister_broker",
            CommandKind::RegisterController => "register_controller",
            CommandKind::AssignDirectories => "assign_directories",
            CommandKind::DirectoryFailed => "directory_failed",
            CommandKind::BalanceLeaders => "balance_leaders",
            CommandKind::ElectUnclean => "elect_unclean",
            CommandKind::AlterClientQuotas => "alter_client_quotas",
        }
    }

    pub const ALL: [CommandKind; 21] = [
        CommandKind::RegisterBroker,
        CommandKind::FenceBroker,
        CommandKind::UnfenceBroker,
        CommandKind::CreateTopics,
        CommandKind::DeleteTopics,
        CommandKind::CreatePartitions,
        CommandKind::AlterConfigs,
        CommandKind::UpdateFeatures,
        CommandKind::AllocateProducerIds,
        CommandKind::ReplicasOffline,
        CommandKind::Heartbeat,
        CommandKind::AlterPartition,
        CommandKind::ElectLeaders,
        CommandKind::AlterReassignments,
        CommandKind::UnregisterBroker,
        CommandKind::RegisterController,
        CommandKind::AssignDirectories,
        CommandKind::DirectoryFailed,
        CommandKind::BalanceLeaders,
        CommandKind::ElectUnclean,
        CommandKind::AlterClientQuotas,
    ];
}

impl CommandKind {
    /// Whether the command keeps a broker with a full disk alive or gives space back: then it may use the
    /// last room of the metadata log.
    pub fn is_urgent(self) -> bool {
        match self {
            CommandKind::RegisterBroker
            | CommandKind::FenceBroker
            | CommandKind::UnfenceBroker
            | CommandKind::DeleteTopics
            | CommandKind::AlterConfigs
            | CommandKind::ReplicasOffline
            | CommandKind::Heartbeat
            | CommandKind::AlterPartition
            | CommandKind::ElectLeaders
            | CommandKind::UnregisterBroker
            | CommandKind::DirectoryFailed
            | CommandKind::ElectUnclean => true,
            CommandKind::CreateTopics
            | CommandKind::CreatePartitions
            | CommandKind::AlterReassignments
            | CommandKind::RegisterController
            | CommandKind::AssignDirectories
            | CommandKind::BalanceLeaders
            | CommandKind::UpdateFeatures
            | CommandKind::AllocateProducerIds
            | CommandKind::AlterClientQuotas => false,
        }
    }
}

impl Command {
    pub fn kind(&self) -> CommandKind {
        match self {
            Command::RegisterBroker(_) => CommandKind::RegisterBroker,
            Command::FenceBroker { .. } => CommandKind::FenceBroker,
            Command::UnfenceBroker { .. } => CommandKind::UnfenceBroker,
            Command::CreateTopics(_) => CommandKind::CreateTopics,
            Command::DeleteTopics(_) => CommandKind::DeleteTopics,
            Command::CreatePartitions(_) => CommandKind::CreatePartitions,
            Command::AlterConfigs(_) => CommandKind::AlterConfigs,
            Command::UpdateFeatures(_) => CommandKind::UpdateFeatures,
            Command::AllocateProducerIds { .. } => CommandKind::AllocateProducerIds,
            Command::ReplicasOffline { .. } => CommandKind::ReplicasOffline,
            Command::Heartbeat(_) => CommandKind::Heartbeat,
            Command::AlterPartition(_) => CommandKind::AlterPartition,
            Command::ElectLeaders(_) => CommandKind::ElectLeaders,
            Command::AlterReassignments(_) => CommandKind::AlterReassignments,
            Command::UnregisterBroker { .. } => CommandKind::UnregisterBroker,
            Command::RegisterController(_) => CommandKind::RegisterController,
            Command::AssignDirectories(_) => CommandKind::AssignDirectories,
            Command::DirectoryFailed { .. } => CommandKind::DirectoryFailed,
            Command::BalanceLeaders => CommandKind::BalanceLeaders,
            Command::ElectUnclean => CommandKind::ElectUnclean,
            Command::AlterClientQuotas(_) => CommandKind::AlterClientQuotas,
            Command::Limited(_, command) => command.kind(),
        }
    }
}

/// A broker process announces itself (BrokerRegistration, KIP-631).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegisterBroker {
    pub id: BrokerId,
    /// Of the cluster the broker believes to be in.
    pub cluster_id: String,
    /// Chosen by the process when it started.
    pub incarnation: Uuid,
    pub endpoints: Vec<Endpoint>,
    pub rack: Option<String>,
    pub log_dirs: Vec<Uuid>,
    /// The levels that it can work at.
    pub features: Vec<FeatureRange>,
    /// Whether it waits for [`Command::UnfenceBroker`] before it leads. In a cluster every broker does, until a
    /// heartbeat says that it is ready.
    pub fenced: bool,
    /// Of its last registration, if it was shut down cleanly after that: then it has all that it had.
    pub previous_epoch: Option<BrokerEpoch>,
}

/// A registered broker is there (BrokerHeartbeat, KIP-631).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    pub id: BrokerId,
    pub epoch: BrokerEpoch,
    /// The version of the image that it has.
    pub metadata_version: u64,
    /// It does not want to lead yet.
    pub wants_fence: bool,
    /// It wants to stop, and waits until it leads nothing.
    pub wants_shutdown: bool,
}

/// What becomes of a broker, in the answer to its heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrokerState {
    /// It has the image in which it is registered.
    pub is_caught_up: bool,
    pub is_fenced: bool,
    pub should_shut_down: bool,
}

/// A leader tells who is in sync (AlterPartition, KIP-497).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlterPartition {
    /// The leader, and its registration.
    pub broker: BrokerId,
    pub epoch: BrokerEpoch,
    pub partitions: Vec<AlterIsr>,
}

/// What a leader wants of one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlterIsr {
    pub topic: TopicId,
    pub index: PartitionIndex,
    pub leader_epoch: LeaderEpoch,
    /// Of the state that it knows: another one in between, and the change is not made.
    pub partition_epoch: i32,
    /// In sync from now on, each with its registration; without one (-1) it is not looked at.
    pub isr: Vec<(BrokerId, BrokerEpoch)>,
    /// It was elected without being sure of all that was acknowledged, and is not done with that.
    pub recovering: bool,
}

/// A partition after an [`AlterIsr`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlteredPartition {
    pub leader: Option<BrokerId>,
    pub leader_epoch: LeaderEpoch,
    pub isr: Box<[BrokerId]>,
    pub partition_epoch: i32,
    pub recovering: bool,
}

/// Which leader somebody wants (`ElectionType`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ElectionKind {
    /// The first replica.
    Preferred,
    /// Any, for a partition that has none; it may lack what was acknowledged.
    Unclean,
}

/// Leaders are wanted (ElectLeaders, KIP-183 and KIP-460).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ElectLeaders {
    pub kind: ElectionKind,
    pub topics: Vec<(String, Vec<PartitionIndex>)>,
}

/// Other replicas are wanted (AlterPartitionReassignments, KIP-455).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlterReassignments {
    /// Whether a partition may get more or fewer of them (KIP-860).
    pub may_change_factor: bool,
    pub topics: Vec<(String, Vec<Reassignment>)>,
}

/// A broker tells in which of its log directories replicas are (AssignReplicasToDirs, KIP-858).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssignDirectories {
    pub broker: BrokerId,
    pub epoch: BrokerEpoch,
    pub directories: Vec<(Uuid, Vec<(TopicId, PartitionIndex)>)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reassignment {
    pub index: PartitionIndex,
    /// `None`: the one that is under way is given up.
    pub replicas: Option<Vec<BrokerId>>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CreateTopics {
    pub topics: Vec<NewTopic>,
    /// Answers as if, changes nothing.
    pub validate_only: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTopic {
    pub name: String,
    /// -1: the controller's default, or `assignment` says it.
    pub partitions: i32,
    /// -1: the controller's default, or `assignment` says it.
    pub replication_factor: i16,
    /// Replicas by partition; empty: the controller chooses.
    pub assignment: Vec<(PartitionIndex, Vec<BrokerId>)>,
    pub configs: Vec<(String, Option<String>)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreatedTopic {
    pub id: TopicId,
    pub partitions: i32,
    pub replication_factor: i16,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeleteTopics {
    pub topics: Vec<TopicRef>,
}

/// A topic, named one way or the other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TopicRef {
    Name(String),
    Id(TopicId),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeletedTopic {
    pub name: TopicName,
    pub id: TopicId,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CreatePartitions {
    pub topics: Vec<MorePartitions>,
    /// Answers as if, changes nothing.
    pub validate_only: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MorePartitions {
    pub name: String,
    /// How many partitions the topic is to have in all.
    pub count: i32,
    /// Replicas of each new partition; `None`: the controller chooses.
    pub assignment: Option<Vec<Vec<BrokerId>>>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AlterConfigs {
    pub changes: Vec<ConfigChange>,
    /// Answers as if, changes nothing.
    pub validate_only: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigChange {
    pub resource: ConfigResource,
    pub edit: ConfigEdit,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigEdit {
    /// These and no others (AlterConfigs).
    Replace(Vec<(String, String)>),
    /// One after the other on what is set now (IncrementalAlterConfigs, KIP-339).
    Incremental(Vec<(String, ConfigOp)>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigOp {
    Set(String),
    Delete,
    /// Adds the elements of a comma-separated list that are not there yet.
    Append(String),
    /// Takes the elements of a comma-separated list away.
    Subtract(String),
}

/// Levels to finalize, all or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UpdateFeatures {
    pub updates: Vec<FeatureUpdate>,
    pub validate_only: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeatureUpdate {
    pub name: String,
    /// 0 takes the feature away.
    pub level: i16,
    pub upgrade: UpgradeType,
}

/// Which way the asker means to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpgradeType {
    Upgrade,
    SafeDowngrade,
    UnsafeDowngrade,
    Unknown,
}

/// Quotas that are to be other ones (AlterClientQuotas, KIP-546).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AlterClientQuotas {
    pub changes: Vec<QuotaChange>,
    /// Answers as if, changes nothing.
    pub validate_only: bool,
}

/// Whom a client names: types with names, `None` the default. It may be nobody that there is.
pub type QuotaTarget = BTreeMap<String, Option<String>>;

/// What became of each.
pub type QuotaResults = Vec<(QuotaTarget, Result<(), Refusal>)>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuotaChange {
    pub target: QuotaTarget,
    /// Keys with their limits; `None` takes one away.
    pub ops: Vec<(String, Option<QuotaLimit>)>,
}

/// Whose quota for making and deleting partitions a command is under (KIP-599).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MutationQuota {
    pub user: String,
    pub client_id: String,
    /// What is over the quota is refused; else it is done, and the client has to wait afterwards.
    pub is_strict: bool,
}

/// A range of producer ids that nobody else was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerIdBlock {
    pub first: ProducerId,
    pub count: u32,
}

/// The answers, in the order of the request; a thing asked for twice is answered once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    BrokerRegistered {
        epoch: BrokerEpoch,
    },
    Done,
    TopicsCreated(Vec<(String, Result<CreatedTopic, Refusal>)>),
    TopicsDeleted(Vec<(TopicRef, Result<DeletedTopic, Refusal>)>),
    PartitionsCreated(Vec<(String, Result<(), Refusal>)>),
    ConfigsAltered(Vec<(ConfigResource, Result<(), Refusal>)>),
    ProducerIds(ProducerIdBlock),
    Heartbeat(BrokerState),
    /// In the order of the request.
    PartitionsAltered(Vec<Result<AlteredPartition, ErrorCode>>),
    /// Of each partition, in the order of the request.
    LeadersElected(Vec<Result<(), ErrorCode>>),
    /// Of each partition, in the order of the request. That one is not there is told without words: whoever asked knows
    /// its name, which can be long.
    ReassignmentsAltered(Vec<Result<(), Refusal>>),
    /// Of each replica, in the order of the request.
    DirectoriesAssigned(Vec<Result<(), ErrorCode>>),
    /// Each target once.
    QuotasAltered(QuotaResults),
    /// How long the client has to wait, and what its command is answered.
    Limited(Duration, Box<Response>),
}

/// Each takes the one variant that the command's kind is answered with.
impl Response {
    pub fn topics_created(self) -> Vec<(String, Result<CreatedTopic, Refusal>)> {
        match self {
            Response::TopicsCreated(results) => results,
            other => other.of_another_command(),
        }
    }

    pub fn topics_deleted(self) -> Vec<(TopicRef, Result<DeletedTopic, Refusal>)> {
        match self {
            Response::TopicsDeleted(results) => results,
            other => other.of_another_command(),
        }
    }

    pub fn partitions_created(self) -> Vec<(String, Result<(), Refusal>)> {
        match self {
            Response::PartitionsCreated(results) => results,
            other => other.of_another_command(),
        }
    }

    pub fn configs_altered(self) -> Vec<(ConfigResource, Result<(), Refusal>)> {
        match self {
            Response::ConfigsAltered(results) => results,
            other => other.of_another_command(),
        }
    }

    pub fn producer_ids(self) -> ProducerIdBlock {
        match self {
            Response::ProducerIds(block) => block,
            other => other.of_another_command(),
        }
    }

    pub fn broker_state(self) -> BrokerState {
        match self {
            Response::Heartbeat(state) => state,
            other => other.of_another_command(),
        }
    }

    pub fn partitions_altered(self) -> Vec<Result<AlteredPartition, ErrorCode>> {
        match self {
            Response::PartitionsAltered(results) => results,
            other => other.of_another_command(),
        }
    }

    pub fn leaders_elected(self) -> Vec<Result<(), ErrorCode>> {
        match self {
            Response::LeadersElected(results) => results,
            other => other.of_another_command(),
        }
    }

    pub fn quotas_altered(self) -> QuotaResults {
        match self {
            Response::QuotasAltered(results) => results,
            other => other.of_another_command(),
        }
    }

    pub fn reassignments_altered(self) -> Vec<Result<(), Refusal>> {
        match self {
            Response::ReassignmentsAltered(results) => results,
            other => other.of_another_command(),
        }
    }

    pub fn directories_assigned(self) -> Vec<Result<(), ErrorCode>> {
        match self {
            Response::DirectoriesAssigned(results) => results,
            other => other.of_another_command(),
        }
    }

    pub fn limited(self) -> (Duration, Response) {
        match self {
            Response::Limited(throttle, response) => (throttle, *response),
            other => other.of_another_command(),
        }
    }

    pub fn broker_epoch(self) -> BrokerEpoch {
        match self {
            Response::BrokerRegistered { epoch } => epoch,
            other => other.of_another_command(),
        }
    }

    #[track_caller]
    fn of_another_command(self) -> ! {
        panic!("the controller answered another command: {self:?}")
    }
}
