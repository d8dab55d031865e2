//! The controller's logic: looks at the image, checks a command, proposes records.
//!
//! Commands run one at a time: the image passed to [`Controller::handle`] holds the effect of every
//! command before. Nothing changes until the records are applied.

mod brokers;
mod configs;
mod features;
mod topics;

use std::rc::Rc;

use uuid::Uuid;

use super::codec;
use super::command::{Command, Refusal, Response};
use super::image::{ConfigResource, Image, Overrides};
use super::record::Record;
use crate::base::TopicId;
use crate::base::random::Random;
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
}

impl Default for ControllerSettings {
    fn default() -> Self {
        Self { default_partitions: 1, default_replication_factor: 1, delete_topic_enable: true }
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
}

impl Controller {
    pub fn new(
        settings: ControllerSettings,
        rules: Rc<dyn ConfigRules>,
        ids: IdSource,
        random: Random,
    ) -> Self {
        Self { settings, rules, ids, random }
    }

    /// Decides on `command`, given the state as of all commands before. An error refuses the whole command.
    pub fn handle(&mut self, image: &Image, command: Command) -> Result<Outcome, Refusal> {
        let Decision { records, response } = match command {
            Command::RegisterBroker(request) => brokers::register(image, request)?,
            Command::FenceBroker { id, epoch } => brokers::set_fenced(image, id, epoch, true)?,
            Command::UnfenceBroker { id, epoch } => brokers::set_fenced(image, id, epoch, false)?,
            Command::CreateTopics(request) => self.create_topics(image, request)?,
            Command::DeleteTopics(request) => self.delete_topics(image, request),
            Command::CreatePartitions(request) => self.create_partitions(image, request)?,
            Command::AlterConfigs(request) => self.alter_configs(image, request),
            Command::UpdateFeatures(request) => features::update(image, request)?,
            Command::AllocateProducerIds { broker, epoch } => {
                brokers::allocate_producer_ids(image, broker, epoch)?
            }
            Command::ReplicasOffline { broker, epoch, partitions } => {
                brokers::replicas_offline(image, broker, epoch, &partitions)?
            }
        };
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

    use super::super::command::RegisterBroker;
    use super::super::state::State;
    use super::*;
    use crate::base::{BrokerEpoch, BrokerId};

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
                ("retention.ms" | "cleanup.policy", _) => Ok(()),
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

    pub struct Cluster {
        pub controller: Controller,
        pub state: State,
    }

    impl Cluster {
        pub fn of(brokers: i32) -> Self {
            let settings = ControllerSettings { default_partitions: 3, ..ControllerSettings::default() };
            let ids = IdSource::Seeded(Random::seeded(1));
            let controller = Controller::new(settings, Rc::new(FewRules), ids, Random::seeded(2));
            let mut cluster = Self { controller, state: State::default() };
            cluster.state.apply(1, &[Record::Cluster { id: "test".into() }]).unwrap();
            for id in 1..=brokers {
                cluster.register(id);
            }
            cluster
        }

        pub fn register(&mut self, id: i32) -> BrokerEpoch {
            let request = RegisterBroker {
                id: BrokerId(id),
                cluster_id: "test".into(),
                incarnation: Uuid::from_u128(id as u128),
                endpoints: Vec::new(),
                rack: None,
                log_dirs: Vec::new(),
                fenced: false,
            };
            self.run(Command::RegisterBroker(request)).unwrap().broker_epoch()
        }

        /// Handles and applies.
        pub fn run(&mut self, command: Command) -> Result<Response, Refusal> {
            let outcome = self.controller.handle(self.state.image(), command)?;
            self.state.apply(self.state.image().version() + 1, &outcome.records).unwrap();
            Ok(outcome.response)
        }
    }
}
