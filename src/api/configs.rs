//! DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources: from the messages to
//! [`config`](crate::config) and the metadata, and back (Kafka's `ConfigHelper` and `ConfigAdminManager`).
//!
//! Runs on the connection's shard over its image. A change is checked here first, for an answer in Kafka's
//! words, and again by the controller, for which it is a command. Changes nothing itself.

use std::collections::HashMap;
use std::rc::Rc;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, DescribeConfigsRequest, DescribeConfigsResponse,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, ListConfigResourcesRequest,
    ListConfigResourcesResponse, alter_configs_response, incremental_alter_configs_response,
    list_config_resources_response,
};
use kafka_protocol::protocol::StrBytes;

use super::Client;
use super::answer_room::AnswerRoom;
use crate::base::BrokerId;
use crate::config::{
    AlterError, Alteration, BrokerConfig, ConfigSource, Kind, Levels, Operation, Overrides, Row, Scope,
    Settings,
};
use crate::metadata::{
    AlterConfigs, Command, ConfigChange, ConfigEdit, ConfigOp, ConfigResource, ConfigRules, Image, Refusal,
    Response, check_topic_name,
};
use crate::wire::ErrorCode;

/// The numbers of resource types on the wire (`ConfigResource.Type`).
mod resource_type {
    pub const TOPIC: i8 = 2;
    pub const BROKER: i8 = 4;
    pub const BROKER_LOGGER: i8 = 8;
    pub const CLIENT_METRICS: i8 = 16;
    pub const GROUP: i8 = 32;
}

/// Serves DescribeConfigs 1–4.
pub async fn handle_describe(client: &Client, request: DescribeConfigsRequest) -> DescribeConfigsResponse {
    let (image, config) = (client.shard.image(), client.shard.config());
    let levels = levels(&image, config);
    let (synonyms, documentation) = (request.include_synonyms, request.include_documentation);
    let mut room = AnswerRoom::new(client);
    let mut results = Vec::new();
    // One that is named again is answered again, as Kafka does.
    for resource in request.resources {
        if !room.is_cut() {
            let result = describe(&resource, &image, config, &levels, synonyms, documentation);
            if room.add(described_bytes(&result)).await {
                results.push(result);
                continue;
            }
        }
        results.push(beyond(resource));
    }
    DescribeConfigsResponse::default().with_results(results)
}

/// Serves ListConfigResources 0–1.
pub async fn handle_list(
    client: &Client,
    version: i16,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    list_resources(&request, version, &client.shard.image())
}

/// Serves AlterConfigs 0–2.
pub async fn handle_alter(client: &Client, request: AlterConfigsRequest) -> AlterConfigsResponse {
    let mut plan = AlterPlan::replace(request, &client.shard.image(), client.shard.config());
    plan.carry_out(client).await;
    plan.into_response()
}

/// Serves IncrementalAlterConfigs 0–1.
pub async fn handle_incremental_alter(
    client: &Client,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let mut plan = AlterPlan::incremental(request, &client.shard.image(), client.shard.config());
    plan.carry_out(client).await;
    plan.into_incremental_response()
}

fn describe(
    resource: &DescribeConfigsResource,
    image: &Image,
    config: &BrokerConfig,
    levels: &Levels<'_>,
    synonyms: bool,
    documentation: bool,
) -> DescribeConfigsResult {
    let result = DescribeConfigsResult::default()
        .with_resource_type(resource.resource_type)
        .with_resource_name(resource.resource_name.clone());
    match rows(resource, image, config, levels) {
        Ok(rows) => {
            let shown = |row| shown(row, synonyms, documentation);
            result.with_configs(rows.into_iter().map(shown).collect())
        }
        Err(Refusal { code, message }) => {
            result.with_error_code(code.code()).with_error_message(Some(text(&message)))
        }
    }
}

/// What a resource's answer takes, decoded and encoded, about.
fn described_bytes(result: &DescribeConfigsResult) -> usize {
    let row = |row: &DescribeConfigsResourceResult| {
        let texts = row.value.as_ref().map_or(0, |text| text.len())
            + row.documentation.as_ref().map_or(0, |text| text.len());
        let synonyms =
            row.synonyms.iter().map(|synonym| 128 + synonym.value.as_ref().map_or(0, |text| text.len()));
        256 + 2 * texts + synonyms.sum::<usize>()
    };
    256 + result.configs.iter().map(row).sum::<usize>()
}

/// The answer of a resource for which there is no room any more.
fn beyond(resource: DescribeConfigsResource) -> DescribeConfigsResult {
    DescribeConfigsResult::default()
        .with_resource_type(resource.resource_type)
        .with_resource_name(resource.resource_name)
        .with_error_code(ErrorCode::InvalidRequest.code())
        .with_error_message(Some(StrBytes::from_static_str(super::TOO_LONG)))
}

fn list_resources(
    request: &ListConfigResourcesRequest,
    version: i16,
    image: &Image,
) -> ListConfigResourcesResponse {
    use resource_type::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
    const KNOWN: [i8; 5] = [GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC];
    // Version 0 is ListClientMetricsResources, of which there are none.
    let types: &[i8] = match (version, request.resource_types.as_slice()) {
        (0, _) => &[CLIENT_METRICS],
        (_, []) => &KNOWN,
        (_, types) => types,
    };
    if types.iter().any(|wanted| !KNOWN.contains(wanted)) {
        return ListConfigResourcesResponse::default().with_error_code(ErrorCode::UnsupportedVersion.code());
    }
    let mut resources = Vec::new();
    let mut add = |resource_type, name: &str| {
        let resource = list_config_resources_response::ConfigResource::default()
            .with_resource_type(resource_type)
            .with_resource_name(text(name));
        resources.push(resource);
    };
    if types.contains(&BROKER) {
        image.brokers().for_each(|broker| add(BROKER, &broker.id.to_string()));
    }
    if types.contains(&TOPIC) {
        image.topics().for_each(|topic| add(TOPIC, &topic.name));
    }
    if types.contains(&GROUP) {
        for (resource, _) in image.configs() {
            if let ConfigResource::Group(name) = resource {
                add(GROUP, name);
            }
        }
    }
    ListConfigResourcesResponse::default().with_config_resources(resources)
}

/// What one resource of an alteration is answered.
struct Answer {
    resource_type: i8,
    resource_name: StrBytes,
    result: Result<(), Refusal>,
}

/// What the controller answers for one resource.
type Decision = (ConfigResource, Result<(), Refusal>);

/// An alteration after its first check: what is already refused, and the command for the rest.
struct AlterPlan {
    answers: Vec<Answer>,
    /// The answer that each change of the command decides.
    decided: Vec<usize>,
    command: AlterConfigs,
}

impl AlterPlan {
    /// Reads AlterConfigs.
    fn replace(request: AlterConfigsRequest, image: &Image, config: &BrokerConfig) -> Self {
        let edits = request.resources.into_iter().map(|resource| {
            let values: Vec<_> = resource
                .configs
                .into_iter()
                .map(|config| (config.name.to_string(), config.value.map(|value| value.to_string())))
                .collect();
            let target = target(resource.resource_type, &resource.resource_name, image, config);
            let change = target.and_then(|(resource, scope)| {
                scope.replace(&values).map_err(refusal)?;
                let edit = values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
                Ok(ConfigChange { resource, edit: ConfigEdit::Replace(edit) })
            });
            (resource.resource_type, resource.resource_name, change)
        });
        Self::of(edits.collect(), request.validate_only)
    }

    /// Reads IncrementalAlterConfigs.
    fn incremental(request: IncrementalAlterConfigsRequest, image: &Image, config: &BrokerConfig) -> Self {
        let edits = request.resources.into_iter().map(|resource| {
            let steps = resource.configs.into_iter().map(|config| {
                let Some(operation) = Operation::from_wire(config.config_operation) else {
                    let text = format!("Unknown operation {} on {}", config.config_operation, &*config.name);
                    return Err(Refusal::new(ErrorCode::InvalidRequest, text));
                };
                let value = config.value.map(|value| value.to_string());
                Ok(Alteration { name: config.name.to_string(), operation, value })
            });
            let steps = steps.collect::<Result<Vec<_>, _>>();
            let target = target(resource.resource_type, &resource.resource_name, image, config);
            let change = target.and_then(|(resource, scope)| {
                let steps = steps?;
                scope.alter(image.overrides(&resource), &steps).map_err(refusal)?;
                let edit = ConfigEdit::Incremental(steps.into_iter().map(controllers_step).collect());
                Ok(ConfigChange { resource, edit })
            });
            (resource.resource_type, resource.resource_name, change)
        });
        Self::of(edits.collect(), request.validate_only)
    }

    /// Has the controller make the changes that are left.
    async fn carry_out(&mut self, client: &Client) {
        if let Some(command) = self.command() {
            let response = client.command(Command::AlterConfigs(command)).await;
            self.decide(response.map(Response::configs_altered));
        }
    }

    /// What is left for the controller; `None` if everything is answered.
    fn command(&self) -> Option<AlterConfigs> {
        (!self.command.changes.is_empty()).then(|| self.command.clone())
    }

    /// Takes in what the controller said.
    fn decide(&mut self, decisions: Result<Vec<Decision>, Refusal>) {
        match decisions {
            Ok(decisions) => {
                for (resource, result) in decisions {
                    let asked = self.command.changes.iter().position(|change| change.resource == resource);
                    if let Some(position) = asked {
                        self.answers[self.decided[position]].result = result;
                    }
                }
            }
            Err(refusal) => {
                for answer in &self.decided {
                    self.answers[*answer].result = Err(refusal.clone());
                }
            }
        }
    }

    /// The answer to AlterConfigs.
    fn into_response(self) -> AlterConfigsResponse {
        let show = |answer: Answer| {
            let (code, message) = code_and_message(answer.result);
            alter_configs_response::AlterConfigsResourceResponse::default()
                .with_error_code(code)
                .with_error_message(message)
                .with_resource_type(answer.resource_type)
                .with_resource_name(answer.resource_name)
        };
        AlterConfigsResponse::default().with_responses(self.answers.into_iter().map(show).collect())
    }

    /// The answer to IncrementalAlterConfigs.
    fn into_incremental_response(self) -> IncrementalAlterConfigsResponse {
        let show = |answer: Answer| {
            let (code, message) = code_and_message(answer.result);
            incremental_alter_configs_response::AlterConfigsResourceResponse::default()
                .with_error_code(code)
                .with_error_message(message)
                .with_resource_type(answer.resource_type)
                .with_resource_name(answer.resource_name)
        };
        IncrementalAlterConfigsResponse::default()
            .with_responses(self.answers.into_iter().map(show).collect())
    }

    fn of(edits: Vec<(i8, StrBytes, Result<ConfigChange, Refusal>)>, validate_only: bool) -> Self {
        let mut times: HashMap<(i8, StrBytes), usize> = HashMap::new();
        for (resource_type, name, _) in &edits {
            *times.entry((*resource_type, name.clone())).or_default() += 1;
        }
        let (mut answers, mut decided, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        for (resource_type, resource_name, change) in edits {
            let result = match change {
                _ if times[&(resource_type, resource_name.clone())] > 1 => {
                    let text = "Each resource must appear at most once.";
                    Err(Refusal::new(ErrorCode::InvalidRequest, text))
                }
                Err(refusal) => Err(refusal),
                Ok(change) => {
                    decided.push(answers.len());
                    changes.push(change);
                    Ok(())
                }
            };
            answers.push(Answer { resource_type, resource_name, result });
        }
        Self { answers, decided, command: AlterConfigs { changes, validate_only } }
    }
}

/// What the controller asks about configs, answered by [`config`](crate::config).
#[derive(Clone, Debug)]
pub struct Rules {
    /// They bound the configs of groups.
    settings: Settings,
}

impl Rules {
    pub fn shared(config: &BrokerConfig) -> Rc<dyn ConfigRules> {
        Rc::new(Self { settings: config.settings.clone() })
    }
}

impl ConfigRules for Rules {
    fn check_change(
        &self,
        resource: &ConfigResource,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), Refusal> {
        let scope = scope(resource, &self.settings)?;
        match value {
            // Back to the default is right for every name, known or not.
            None => Ok(()),
            // They are held to each other: all are looked at in the end.
            Some(_) if matches!(scope, Scope::Group(_)) => Ok(()),
            Some(value) => {
                let one = Overrides::from([(name.to_owned(), value.to_owned())]);
                scope.validate(&one).map_err(refusal)
            }
        }
    }

    fn check_all(&self, resource: &ConfigResource, overrides: &Overrides) -> Result<(), Refusal> {
        scope(resource, &self.settings)?.validate(overrides).map_err(refusal)
    }

    fn is_list(&self, resource: &ConfigResource, name: &str) -> bool {
        let definition = scope(resource, &self.settings).ok().and_then(|scope| scope.definition(name));
        definition.is_some_and(|definition| definition.kind == Kind::List)
    }

    fn default_value(&self, resource: &ConfigResource, name: &str) -> Option<String> {
        scope(resource, &self.settings).ok()?.definition(name)?.default.map(str::to_owned)
    }
}

/// The levels of this broker's configs as the image has them.
pub fn levels<'a>(image: &'a Image, config: &'a BrokerConfig) -> Levels<'a> {
    let broker = image.overrides(&ConfigResource::Broker(config.node_id));
    config.levels(broker, image.overrides(&ConfigResource::BrokerDefault))
}

fn rows(
    resource: &DescribeConfigsResource,
    image: &Image,
    config: &BrokerConfig,
    levels: &Levels<'_>,
) -> Result<Vec<Row>, Refusal> {
    // No keys and an empty list of keys both ask for all.
    let keys = resource.configuration_keys.as_deref().unwrap_or_default();
    let wanted = |name: &str| keys.is_empty() || keys.iter().any(|key| &**key == name);
    let name: &str = &resource.resource_name;
    match resource.resource_type {
        resource_type::TOPIC => {
            valid_topic_name(name)?;
            if image.topic(name).is_none() {
                return Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, ""));
            }
            let overrides = image.overrides(&ConfigResource::Topic(name.into()));
            Ok(levels.describe_topic(overrides, wanted))
        }
        resource_type::BROKER if name.is_empty() => Ok(levels.describe_cluster(wanted)),
        resource_type::BROKER => match name.parse() {
            Ok(id) if BrokerId(id) == config.node_id => Ok(levels.describe_broker(wanted)),
            Ok(_) => Err(invalid(format!(
                "Unexpected broker id, expected {} or empty string, but received {name}",
                config.node_id
            ))),
            Err(_) => Err(invalid(format!("Broker id must be an integer, but it is: {name}"))),
        },
        resource_type::GROUP if name.is_empty() => Err(invalid("Group name must not be empty".to_owned())),
        resource_type::GROUP => {
            let overrides = image.overrides(&ConfigResource::Group(name.to_owned()));
            Ok(levels.describe_group(overrides, wanted))
        }
        other => Err(unsupported(other)),
    }
}

/// The resource that is to be changed, if it is there and this broker may change it.
fn target<'a>(
    resource_type: i8,
    name: &str,
    image: &Image,
    config: &'a BrokerConfig,
) -> Result<(ConfigResource, Scope<'a>), Refusal> {
    match resource_type {
        resource_type::TOPIC if name.is_empty() => {
            Err(invalid("Default topic resources are not allowed.".to_owned()))
        }
        resource_type::TOPIC => {
            valid_topic_name(name)?;
            match image.topic(name) {
                Some(topic) => Ok((ConfigResource::Topic(topic.name.clone()), Scope::Topic)),
                None => {
                    let text = format!("The topic '{name}' does not exist.");
                    Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, text))
                }
            }
        }
        resource_type::BROKER if name.is_empty() => Ok((ConfigResource::BrokerDefault, Scope::Broker)),
        resource_type::BROKER => match name.parse() {
            Ok(id) if BrokerId(id) == config.node_id => {
                Ok((ConfigResource::Broker(config.node_id), Scope::Broker))
            }
            Ok(id) => {
                let text = format!("Unexpected broker id, expected {}, but received {id}", config.node_id);
                Err(invalid(text))
            }
            Err(_) => Err(invalid(format!("Node id must be an integer, but it is: {name}"))),
        },
        resource_type::GROUP if name.is_empty() => {
            Err(invalid("Default group resources are not allowed.".to_owned()))
        }
        // There need be no such group yet.
        resource_type::GROUP => Ok((ConfigResource::Group(name.to_owned()), Scope::Group(&config.settings))),
        other => Err(unsupported(other)),
    }
}

fn valid_topic_name(name: &str) -> Result<(), Refusal> {
    check_topic_name(name).map_err(|error| Refusal::new(ErrorCode::InvalidTopicException, error.to_string()))
}

fn unsupported(resource_type: i8) -> Refusal {
    invalid(match resource_type {
        resource_type::BROKER_LOGGER => "This broker's loggers cannot be read or set by clients".to_owned(),
        resource_type::CLIENT_METRICS => "This broker has no client metrics subscriptions".to_owned(),
        other => format!("Unknown resource type {other}"),
    })
}

fn invalid(text: String) -> Refusal {
    Refusal::new(ErrorCode::InvalidRequest, text)
}

fn scope<'a>(resource: &ConfigResource, settings: &'a Settings) -> Result<Scope<'a>, Refusal> {
    match resource {
        ConfigResource::Topic(_) => Ok(Scope::Topic),
        ConfigResource::Broker(_) | ConfigResource::BrokerDefault => Ok(Scope::Broker),
        ConfigResource::Group(_) => Ok(Scope::Group(settings)),
        ConfigResource::ClientMetrics(_) => Err(unsupported(resource_type::CLIENT_METRICS)),
    }
}

fn refusal(error: AlterError) -> Refusal {
    let code = match error {
        AlterError::InvalidConfig(_) => ErrorCode::InvalidConfig,
        AlterError::InvalidRequest(_) => ErrorCode::InvalidRequest,
    };
    Refusal::new(code, error.to_string())
}

/// A step as the controller's command has it. A value is there: [`Scope::alter`] has seen to it.
fn controllers_step(step: Alteration) -> (String, ConfigOp) {
    let value = step.value.unwrap_or_default();
    let op = match step.operation {
        Operation::Set => ConfigOp::Set(value),
        Operation::Delete => ConfigOp::Delete,
        Operation::Append => ConfigOp::Append(value),
        Operation::Subtract => ConfigOp::Subtract(value),
    };
    (step.name, op)
}

fn shown(row: Row, with_synonyms: bool, with_documentation: bool) -> DescribeConfigsResourceResult {
    let synonym = |name, value: &str, source: ConfigSource| {
        DescribeConfigsSynonym::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(Some(text(value)))
            .with_source(source.wire_id())
    };
    let synonyms = match with_synonyms {
        true => row.synonyms.iter().map(|one| synonym(one.name, &one.value, one.source)).collect(),
        false => Vec::new(),
    };
    DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str(row.name))
        .with_value(row.value.map(StrBytes::from_string))
        .with_read_only(row.read_only)
        .with_config_source(row.source.wire_id())
        .with_is_sensitive(false)
        .with_synonyms(synonyms)
        .with_config_type(row.kind.wire_id())
        .with_documentation(with_documentation.then(|| StrBytes::from_static_str(row.documentation)))
}

fn code_and_message(result: Result<(), Refusal>) -> (i16, Option<StrBytes>) {
    match result {
        Ok(()) => (0, None),
        Err(refusal) => (refusal.code.code(), Some(StrBytes::from_string(refusal.message))),
    }
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

#[cfg(test)]
#[path = "configs_tests.rs"]
mod tests;
