//! The config calls as a client makes them, over a real controller. Codes and texts are those of a real
//! Apache Kafka 4.4.0.

use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::{alter_configs_request, incremental_alter_configs_request};
use uuid::Uuid;

use super::*;
use crate::base::clock::Monotonic;
use crate::base::random::Random;
use crate::config::Source;
use crate::metadata::{
    Controller, ControllerSettings, CreateTopics, IdSource, NewTopic, RegisterBroker, State,
};

const TOPIC: i8 = resource_type::TOPIC;
const BROKER: i8 = resource_type::BROKER;
const GROUP: i8 = resource_type::GROUP;

/// Name, operation, value.
type Step<'a> = (&'a str, i8, Option<&'a str>);

/// A broker 1 with a topic `t`.
struct Node {
    state: State,
    controller: Controller,
    config: BrokerConfig,
    index: u64,
}

impl Node {
    fn new() -> Self {
        let source = Source { path: "f", text: "node.id=1\nlog.dirs=/d\n" };
        let random = Random::seeded(1);
        let config = BrokerConfig::load(Some(source), &[]).unwrap().config;
        let controller = Controller::new(
            ControllerSettings::default(),
            Rules::shared(&config),
            IdSource::Seeded(random.clone()),
            random,
        );
        let mut node = Self { state: State::default(), controller, config, index: 0 };
        node.run(Command::RegisterBroker(RegisterBroker {
            id: BrokerId(1),
            cluster_id: String::new(),
            incarnation: Uuid::nil(),
            endpoints: Vec::new(),
            rack: None,
            log_dirs: Vec::new(),
            features: Vec::new(),
            fenced: false,
            previous_epoch: None,
        }))
        .unwrap();
        let topic = NewTopic {
            name: "t".into(),
            partitions: 1,
            replication_factor: 1,
            assignment: Vec::new(),
            configs: Vec::new(),
        };
        let created = node
            .run(Command::CreateTopics(CreateTopics { topics: vec![topic], validate_only: false }))
            .unwrap()
            .topics_created();
        created[0].1.as_ref().unwrap();
        node
    }

    fn run(&mut self, command: Command) -> Result<Response, Refusal> {
        let outcome = self.controller.handle(self.state.image(), command, Monotonic::ZERO)?;
        self.index += 1;
        self.state.apply(self.index, &outcome.records).unwrap();
        Ok(outcome.response)
    }

    fn finish(&mut self, mut plan: AlterPlan) -> Vec<String> {
        if let Some(command) = plan.command() {
            let decisions =
                self.run(Command::AlterConfigs(command)).map(|response| response.configs_altered());
            plan.decide(decisions);
        }
        plan.into_incremental_response()
            .responses
            .into_iter()
            .map(|answer| said(answer.error_code, answer.error_message))
            .collect()
    }

    /// The answers to the steps on each resource, given by type and name.
    fn incremental(&mut self, resources: &[(i8, &str, &[Step<'_>])]) -> Vec<String> {
        let of = |(resource_type, name, steps): &(i8, &str, &[Step<'_>])| {
            let step = |(name, operation, value): &Step<'_>| {
                AlterableConfig::default()
                    .with_name(text(name))
                    .with_config_operation(*operation)
                    .with_value(value.map(text))
            };
            AlterConfigsResource::default()
                .with_resource_type(*resource_type)
                .with_resource_name(text(name))
                .with_configs(steps.iter().map(step).collect())
        };
        let request = incremental_alter_configs_request::IncrementalAlterConfigsRequest::default()
            .with_resources(resources.iter().map(of).collect());
        let plan = AlterPlan::incremental(request, self.state.image(), &self.config);
        self.finish(plan)
    }

    fn set(&mut self, resource_type: i8, resource: &str, name: &str, value: &str) -> String {
        self.incremental(&[(resource_type, resource, &[(name, 0, Some(value))])]).remove(0)
    }

    fn replace(
        &mut self,
        resource_type: i8,
        name: &str,
        values: &[(&str, &str)],
        validate_only: bool,
    ) -> String {
        let value = |(name, value): &(&str, &str)| {
            alter_configs_request::AlterableConfig::default()
                .with_name(text(name))
                .with_value(Some(text(value)))
        };
        let resource = alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(resource_type)
            .with_resource_name(text(name))
            .with_configs(values.iter().map(value).collect());
        let request =
            AlterConfigsRequest::default().with_resources(vec![resource]).with_validate_only(validate_only);
        let plan = AlterPlan::replace(request, self.state.image(), &self.config);
        self.finish(plan).remove(0)
    }

    fn describe(&self, resource_type: i8, name: &str, keys: Option<&[&str]>) -> DescribeConfigsResult {
        let keys = keys.map(|keys| keys.iter().map(|key| text(key)).collect());
        let resource = DescribeConfigsResource::default()
            .with_resource_type(resource_type)
            .with_resource_name(text(name))
            .with_configuration_keys(keys);
        let image = self.state.image();
        describe(&resource, image, &self.config, &levels(image, &self.config), true, true)
    }

    /// `value source` of one config.
    fn value(&self, resource_type: i8, name: &str, key: &str) -> String {
        let row = &self.describe(resource_type, name, Some(&[key])).configs[0];
        format!("{} {}", row.value.as_deref().unwrap_or("null"), row.config_source)
    }
}

fn said(code: i16, message: Option<StrBytes>) -> String {
    match (ErrorCode::try_from_code(code), message) {
        (None, None) => "ok".to_owned(),
        (Some(error), Some(message)) => format!("{error:?}: {}", &*message),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_topics_config_is_set_seen_and_deleted() {
    let mut node = Node::new();
    assert_eq!(node.value(TOPIC, "t", "retention.ms"), "604800000 5");
    assert_eq!(node.set(TOPIC, "t", "retention.ms", " 77 "), "ok");
    assert_eq!(node.value(TOPIC, "t", "retention.ms"), "77 1");
    assert_eq!(node.incremental(&[(TOPIC, "t", &[("retention.ms", 1, None)])]), ["ok"]);
    assert_eq!(node.value(TOPIC, "t", "retention.ms"), "604800000 5");
}

#[test]
fn dynamic_broker_values_show_in_topics_by_level() {
    let mut node = Node::new();
    assert_eq!(node.set(BROKER, "", "log.retention.ms", "50"), "ok");
    assert_eq!(node.value(TOPIC, "t", "retention.ms"), "50 3");
    assert_eq!(node.value(BROKER, "1", "log.retention.ms"), "50 3");
    assert_eq!(node.value(BROKER, "", "log.retention.ms"), "50 3");
    assert_eq!(node.set(BROKER, "1", "log.retention.ms", "60"), "ok");
    assert_eq!(node.value(TOPIC, "t", "retention.ms"), "60 2");
    let levels = levels(node.state.image(), &node.config);
    assert_eq!(levels.log_config(&Overrides::new()).retention_ms, 60);
}

#[test]
fn what_cannot_be_changed_is_refused_in_kafkas_words() {
    let mut node = Node::new();
    let mut refused = |resource_type, resource, name| node.set(resource_type, resource, name, "5");
    assert_eq!(
        refused(TOPIC, "nosuch", "retention.ms"),
        "UnknownTopicOrPartition: The topic 'nosuch' does not exist."
    );
    assert!(refused(TOPIC, "bad/name", "retention.ms").starts_with("InvalidTopicException: "));
    assert_eq!(
        refused(TOPIC, "", "retention.ms"),
        "InvalidRequest: Default topic resources are not allowed."
    );
    assert_eq!(refused(TOPIC, "t", "nope"), "InvalidConfig: Unknown topic config name: nope");
    assert_eq!(
        refused(BROKER, "1", "num.partitions"),
        "InvalidRequest: Cannot update these configs dynamically: [num.partitions]"
    );
    assert_eq!(
        refused(BROKER, "2", "log.retention.ms"),
        "InvalidRequest: Unexpected broker id, expected 1, but received 2"
    );
    assert_eq!(
        refused(BROKER, "x", "log.retention.ms"),
        "InvalidRequest: Node id must be an integer, but it is: x"
    );
    assert_eq!(refused(77, "g", "a"), "InvalidRequest: Unknown resource type 77");
}

#[test]
fn a_resource_named_twice_is_refused_each_time_and_the_others_are_changed() {
    let mut node = Node::new();
    let answers = node.incremental(&[
        (TOPIC, "t", &[("retention.ms", 0, Some("5"))]),
        (BROKER, "1", &[("log.retention.ms", 0, Some("5"))]),
        (TOPIC, "t", &[("segment.ms", 0, Some("5"))]),
    ]);
    let twice = "InvalidRequest: Each resource must appear at most once.";
    assert_eq!(answers, [twice, "ok", twice]);
    assert_eq!(node.value(BROKER, "1", "log.retention.ms"), "5 2");
    assert_eq!(node.value(TOPIC, "t", "segment.ms"), "604800000 5");
}

#[test]
fn an_unknown_operation_is_refused() {
    let answers = Node::new().incremental(&[(TOPIC, "t", &[("retention.ms", 9, Some("1"))])]);
    assert!(answers[0].starts_with("InvalidRequest: "));
}

#[test]
fn append_and_subtract_go_through_the_controller() {
    let mut node = Node::new();
    let mut step =
        |operation, value| node.incremental(&[(TOPIC, "t", &[("cleanup.policy", operation, Some(value))])]);
    assert_eq!(step(2, "compact"), ["ok"]);
    assert_eq!(step(3, "delete"), ["ok"]);
    assert_eq!(node.value(TOPIC, "t", "cleanup.policy"), "compact 1");
}

#[test]
fn alter_configs_replaces_and_validate_only_changes_nothing() {
    let mut node = Node::new();
    assert_eq!(node.replace(TOPIC, "t", &[("retention.ms", "9"), ("segment.ms", "8")], false), "ok");
    assert_eq!(node.replace(TOPIC, "t", &[], true), "ok");
    assert_eq!(node.value(TOPIC, "t", "retention.ms"), "9 1");
    assert_eq!(node.replace(TOPIC, "t", &[("retention.ms", "7")], false), "ok");
    assert_eq!(node.value(TOPIC, "t", "retention.ms"), "7 1");
    assert_eq!(node.value(TOPIC, "t", "segment.ms"), "604800000 5");
    assert!(node.replace(BROKER, "1", &[("num.partitions", "3")], true).starts_with("InvalidRequest"));
}

#[test]
fn describe_gives_all_configs_or_those_asked_for() {
    let node = Node::new();
    assert_eq!(node.describe(TOPIC, "t", None).configs.len(), 37);
    assert_eq!(node.describe(TOPIC, "t", Some(&[])).configs.len(), 37);
    let asked = node.describe(TOPIC, "t", Some(&["max.message.bytes", "nope"]));
    assert_eq!(asked.configs.len(), 1);
    let row = &asked.configs[0];
    assert_eq!((row.config_type, row.read_only, row.is_sensitive), (3, false, false));
    assert_eq!(&*row.synonyms[0].name, "message.max.bytes");
    assert!(row.documentation.is_some());
    assert!(node.describe(BROKER, "1", None).configs.iter().any(|row| row.read_only));
    assert!(node.describe(BROKER, "", None).configs.is_empty());
}

#[test]
fn describe_refuses_what_is_not_there_in_kafkas_words() {
    let node = Node::new();
    let refused = |resource_type, name| {
        let result = node.describe(resource_type, name, None);
        said(result.error_code, result.error_message)
    };
    assert_eq!(refused(TOPIC, "nosuch"), "UnknownTopicOrPartition: ");
    assert!(refused(TOPIC, "bad/name").starts_with("InvalidTopicException: "));
    assert_eq!(
        refused(BROKER, "2"),
        "InvalidRequest: Unexpected broker id, expected 1 or empty string, but received 2"
    );
    assert_eq!(refused(BROKER, "x"), "InvalidRequest: Broker id must be an integer, but it is: x");
    assert!(refused(77, "x").starts_with("InvalidRequest: "));
}

#[test]
fn resources_with_configs_are_listed_by_type() {
    let node = Node::new();
    let list = |version, types: &[i8]| {
        let request = ListConfigResourcesRequest::default().with_resource_types(types.to_vec());
        let response = list_resources(&request, version, node.state.image());
        let names = response
            .config_resources
            .iter()
            .map(|one| format!("{}/{}", one.resource_type, &*one.resource_name));
        (response.error_code, names.collect::<Vec<_>>())
    };
    assert_eq!(list(1, &[]), (0, vec!["4/1".to_owned(), "2/t".to_owned()]));
    assert_eq!(list(1, &[TOPIC]), (0, vec!["2/t".to_owned()]));
    assert_eq!(list(0, &[]), (0, Vec::new()));
    assert_eq!(list(1, &[TOPIC, 77]).0, ErrorCode::UnsupportedVersion.code());
}

#[test]
fn the_controller_refuses_a_topic_with_a_config_that_is_wrong() {
    let mut node = Node::new();
    let topic = NewTopic {
        name: "u".into(),
        partitions: 1,
        replication_factor: 1,
        assignment: Vec::new(),
        configs: vec![("remote.storage.enable".into(), Some("true".into()))],
    };
    let command = Command::CreateTopics(CreateTopics { topics: vec![topic], validate_only: false });
    let created = node.run(command).unwrap().topics_created();
    assert_eq!(created[0].1.as_ref().unwrap_err().code, ErrorCode::InvalidConfig);
}

#[test]
fn a_groups_config_is_set_seen_and_deleted() {
    let mut node = Node::new();
    assert_eq!(node.value(GROUP, "g", "consumer.session.timeout.ms"), "45000 5");
    assert_eq!(node.set(GROUP, "g", "consumer.session.timeout.ms", " 46000 "), "ok");
    assert_eq!(node.value(GROUP, "g", "consumer.session.timeout.ms"), "46000 8");
    assert_eq!(node.value(GROUP, "other", "consumer.session.timeout.ms"), "45000 5");
    let list = |node: &Node| {
        let request = ListConfigResourcesRequest::default().with_resource_types(vec![GROUP]);
        let response = list_resources(&request, 1, node.state.image());
        response.config_resources.iter().map(|one| one.resource_name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(&node), ["g"]);
    assert_eq!(node.incremental(&[(GROUP, "g", &[("consumer.session.timeout.ms", 1, None)])]), ["ok"]);
    assert_eq!(node.value(GROUP, "g", "consumer.session.timeout.ms"), "45000 5");
    assert!(list(&node).is_empty());
    assert_eq!(node.replace(GROUP, "g", &[("consumer.heartbeat.interval.ms", "6000")], false), "ok");
    assert_eq!(node.value(GROUP, "g", "consumer.heartbeat.interval.ms"), "6000 8");
    assert_eq!(node.replace(GROUP, "g", &[], false), "ok");
    assert!(list(&node).is_empty());
}

#[test]
fn what_a_group_cannot_have_is_refused_in_kafkas_words() {
    let mut node = Node::new();
    let mut refused = |group: &str, name: &str, value: &str| node.set(GROUP, group, name, value);
    assert_eq!(
        refused("", "consumer.session.timeout.ms", "46000"),
        "InvalidRequest: Default group resources are not allowed."
    );
    assert_eq!(refused("g", "nope", "1"), "InvalidConfig: Unknown group config name: nope");
    assert_eq!(
        refused("g", "consumer.session.timeout.ms", "x"),
        "InvalidConfig: Invalid value x for configuration consumer.session.timeout.ms: Not a number of type INT"
    );
    assert_eq!(
        refused("g", "consumer.session.timeout.ms", "60001"),
        "InvalidConfig: consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive."
    );
    assert_eq!(
        node.incremental(&[(GROUP, "g", &[("consumer.heartbeat.interval.ms", 2, Some("6000"))])]),
        ["InvalidConfig: Can't APPEND to key consumer.heartbeat.interval.ms because its type is not LIST."]
    );
    let described = node.describe(GROUP, "", None);
    assert_eq!(
        said(described.error_code, described.error_message),
        "InvalidRequest: Group name must not be empty"
    );
}
