//! AlterConfigs and IncrementalAlterConfigs: from edits to config records (Kafka's
//! `ConfigurationControlManager`).

use std::collections::{BTreeMap, BTreeSet};

use super::super::command::{AlterConfigs, ConfigEdit, ConfigOp, Refusal, Response};
use super::super::elections::{Change, Transit};
use super::super::image::{ConfigResource, Image, Overrides, TopicImage};
use super::super::record::Record;
use super::{ConfigRules, Controller, Decision, partitions};
use crate::wire::ErrorCode;

/// Kafka stores no longer value.
const CONFIG_VALUE_BYTES_MAX: usize = 32_767;

/// The setting by which replicas come to be eligible leaders.
const MIN_ISR: &str = "min.insync.replicas";

impl Controller {
    pub(super) fn alter_configs(&mut self, image: &Image, request: AlterConfigs) -> Decision {
        let mut times: BTreeMap<&ConfigResource, usize> = BTreeMap::new();
        for change in &request.changes {
            *times.entry(&change.resource).or_default() += 1;
        }
        let mut records = Vec::new();
        let mut results: Vec<(ConfigResource, Result<(), Refusal>)> = Vec::new();
        for change in &request.changes {
            let resource = &change.resource;
            if times[resource] > 1 {
                if !results.iter().any(|(other, _)| other == resource) {
                    let text = "The request names the resource more than once.";
                    results.push((resource.clone(), Err(Refusal::new(ErrorCode::InvalidRequest, text))));
                }
                continue;
            }
            let result = edit(&*self.rules, image, resource, &change.edit);
            results.push((resource.clone(), result.map(|new| records.extend(new))));
        }
        if request.validate_only {
            records.clear();
        }
        let others = forget_eligible(image, &records);
        records.extend(others);
        Decision { records, response: Response::ConfigsAltered(results) }
    }
}

/// Whoever is eligible by another `min.insync.replicas` may lack what is acknowledged by the new one: nobody is any more
/// (Kafka's `ClearElrRecord`).
fn forget_eligible(image: &Image, changes: &[Record]) -> Vec<Record> {
    let resources = changes.iter().filter_map(|record| match record {
        Record::Config { resource, name, .. } if name == MIN_ISR => Some(resource),
        _ => None,
    });
    let resources: BTreeSet<&ConfigResource> = resources.collect();
    let is_everywhere = resources.contains(&ConfigResource::BrokerDefault);
    let topics = image.topics().filter(|topic| {
        !resources.is_empty()
            && (is_everywhere || resources.contains(&ConfigResource::Topic(topic.name.clone())))
    });
    topics.flat_map(|topic| without_eligible(topic)).collect()
}

fn without_eligible(topic: &TopicImage) -> impl Iterator<Item = Record> {
    let partitions = topic.numbered().filter(|(_, partition)| !partition.transit().elr.is_empty());
    partitions.map(|(index, partition)| {
        let transit = Transit { elr: Vec::new(), ..partition.transit().clone() };
        partitions::changed(
            topic.id,
            index,
            partition,
            Change { transit: Some(transit), ..Change::default() },
        )
    })
}

/// The overrides of a topic that is being created.
pub(super) fn initial_overrides(
    rules: &dyn ConfigRules,
    resource: &ConfigResource,
    configs: &[(String, Option<String>)],
) -> Result<Overrides, Refusal> {
    let mut overrides = Overrides::new();
    for (name, value) in configs {
        let Some(value) = value else {
            return Err(Refusal::new(ErrorCode::InvalidConfig, format!("The value of {name} is null.")));
        };
        check_length(name, value)?;
        rules.check_change(resource, name, Some(value))?;
        overrides.insert(name.clone(), value.clone());
    }
    rules.check_all(resource, &overrides)?;
    Ok(overrides)
}

fn edit(
    rules: &dyn ConfigRules,
    image: &Image,
    resource: &ConfigResource,
    edit: &ConfigEdit,
) -> Result<Vec<Record>, Refusal> {
    check_exists(image, resource)?;
    let before = image.overrides(resource);
    let after = match edit {
        ConfigEdit::Replace(configs) => {
            for (name, value) in configs {
                rules.check_change(resource, name, Some(value))?;
            }
            for name in before.keys().filter(|name| !configs.iter().any(|(other, _)| other == *name)) {
                rules.check_change(resource, name, None)?;
            }
            configs.iter().cloned().collect()
        }
        ConfigEdit::Incremental(ops) => {
            let mut after = Overrides::clone(before);
            for (name, op) in ops {
                let value = incremental(rules, resource, name, after.get(name), op)?;
                rules.check_change(resource, name, value.as_deref())?;
                match value {
                    Some(value) => after.insert(name.clone(), value),
                    None => after.remove(name),
                };
            }
            after
        }
    };
    for (name, value) in &after {
        check_length(name, value)?;
    }
    rules.check_all(resource, &after)?;
    Ok(difference(resource, before, &after))
}

fn check_exists(image: &Image, resource: &ConfigResource) -> Result<(), Refusal> {
    match resource {
        ConfigResource::Topic(name) if image.topic(name).is_none() => {
            Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, format!("There is no topic '{name}'.")))
        }
        ConfigResource::Broker(id) if image.broker(*id).is_none() => {
            Err(Refusal::new(ErrorCode::BrokerIdNotRegistered, format!("There is no broker {id}.")))
        }
        _ => Ok(()),
    }
}

/// The value after one operation on `current`; `None`: no override.
fn incremental(
    rules: &dyn ConfigRules,
    resource: &ConfigResource,
    name: &str,
    current: Option<&String>,
    op: &ConfigOp,
) -> Result<Option<String>, Refusal> {
    let (elements, appends) = match op {
        ConfigOp::Set(value) => return Ok(Some(value.clone())),
        ConfigOp::Delete => return Ok(None),
        ConfigOp::Append(elements) => (elements, true),
        ConfigOp::Subtract(elements) => (elements, false),
    };
    if !rules.is_list(resource, name) {
        let text =
            format!("{name} is not a list: it can be set and deleted, not appended to or subtracted from.");
        return Err(Refusal::new(ErrorCode::InvalidConfig, text));
    }
    let current = current.cloned().or_else(|| rules.default_value(resource, name)).unwrap_or_default();
    let mut list: Vec<&str> = split(&current).collect();
    for element in split(elements) {
        let position = list.iter().position(|other| *other == element);
        match (appends, position) {
            (true, None) => list.push(element),
            (false, Some(position)) => {
                list.remove(position);
            }
            _ => {}
        }
    }
    Ok(Some(list.join(",")))
}

fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|element| !element.is_empty())
}

fn check_length(name: &str, value: &str) -> Result<(), Refusal> {
    if value.len() <= CONFIG_VALUE_BYTES_MAX {
        return Ok(());
    }
    let text =
        format!("The value of {name} has {} bytes, at most {CONFIG_VALUE_BYTES_MAX} are kept.", value.len());
    Err(Refusal::new(ErrorCode::InvalidConfig, text))
}

fn difference(resource: &ConfigResource, before: &Overrides, after: &Overrides) -> Vec<Record> {
    let record = |name: &String, value: Option<&String>| Record::Config {
        resource: resource.clone(),
        name: name.clone(),
        value: value.cloned(),
    };
    let set = after.iter().filter(|(name, value)| before.get(*name) != Some(value));
    let taken = before.keys().filter(|name| !after.contains_key(*name));
    set.map(|(name, value)| record(name, Some(value))).chain(taken.map(|name| record(name, None))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::command::{Command, ConfigChange, CreateTopics, NewTopic};
    use super::super::testing::Cluster;
    use super::*;
    use crate::base::BrokerId;

    fn cluster() -> Cluster {
        let mut cluster = Cluster::of(1);
        let topic = NewTopic {
            name: "t".into(),
            partitions: -1,
            replication_factor: -1,
            assignment: Vec::new(),
            configs: Vec::new(),
        };
        cluster
            .run(Command::CreateTopics(CreateTopics { topics: vec![topic], validate_only: false }))
            .unwrap();
        cluster
    }

    fn topic(name: &str) -> ConfigResource {
        ConfigResource::Topic(name.into())
    }

    fn alter(cluster: &mut Cluster, resource: ConfigResource, edit: ConfigEdit) -> Result<(), Refusal> {
        let changes = vec![ConfigChange { resource, edit }];
        let request = AlterConfigs { changes, validate_only: false };
        cluster.run(Command::AlterConfigs(request)).unwrap().configs_altered().remove(0).1
    }

    fn ops(ops: &[(&str, ConfigOp)]) -> ConfigEdit {
        ConfigEdit::Incremental(ops.iter().map(|(name, op)| (name.to_string(), op.clone())).collect())
    }

    fn value(cluster: &Cluster, name: &str) -> Option<String> {
        cluster.state.image().overrides(&topic("t")).get(name).cloned()
    }

    #[test]
    fn append_starts_from_the_default_and_subtract_leaves_the_rest() {
        let mut cluster = cluster();
        let append = |text: &str| ops(&[("cleanup.policy", ConfigOp::Append(text.into()))]);
        alter(&mut cluster, topic("t"), append("compact")).unwrap();
        assert_eq!(value(&cluster, "cleanup.policy").as_deref(), Some("delete,compact"));
        alter(&mut cluster, topic("t"), append("compact, delete")).unwrap();
        assert_eq!(value(&cluster, "cleanup.policy").as_deref(), Some("delete,compact"));
        let subtract = ops(&[("cleanup.policy", ConfigOp::Subtract("delete".into()))]);
        alter(&mut cluster, topic("t"), subtract).unwrap();
        assert_eq!(value(&cluster, "cleanup.policy").as_deref(), Some("compact"));
        // The whole result is checked, not only the operation.
        let subtract = ops(&[("cleanup.policy", ConfigOp::Subtract("compact".into()))]);
        assert_eq!(alter(&mut cluster, topic("t"), subtract).unwrap_err().code, ErrorCode::InvalidConfig);
        let append = ops(&[("retention.ms", ConfigOp::Append("1".into()))]);
        assert_eq!(alter(&mut cluster, topic("t"), append).unwrap_err().code, ErrorCode::InvalidConfig);
    }

    #[test]
    fn replace_takes_away_what_it_does_not_name() {
        let mut cluster = cluster();
        let both = ops(&[
            ("cleanup.policy", ConfigOp::Set("compact".into())),
            ("retention.ms", ConfigOp::Set("5".into())),
        ]);
        alter(&mut cluster, topic("t"), both).unwrap();
        let replace = ConfigEdit::Replace(vec![("retention.ms".into(), "6".into())]);
        alter(&mut cluster, topic("t"), replace).unwrap();
        assert_eq!(value(&cluster, "cleanup.policy"), None);
        assert_eq!(value(&cluster, "retention.ms").as_deref(), Some("6"));
        let delete = ops(&[("retention.ms", ConfigOp::Delete)]);
        alter(&mut cluster, topic("t"), delete).unwrap();
        assert!(cluster.state.image().overrides(&topic("t")).is_empty());
    }

    #[test]
    fn nobody_stays_eligible_by_another_least_number_in_sync() {
        let set = |value: &str| ops(&[(MIN_ISR, ConfigOp::Set(value.into()))]);
        for resource in [topic("t"), ConfigResource::BrokerDefault] {
            let mut cluster = Cluster::of_many(3);
            cluster.put("t", &[1, 2, 3], &[1, 2, 3], 1);
            cluster.put("other", &[1, 2, 3], &[1, 2, 3], 1);
            for name in ["t", "other"] {
                alter(&mut cluster, topic(name), set("3")).unwrap();
                cluster.alter_isr(name, &[1, 2]).unwrap();
                assert_eq!(cluster.state_of(name), (Some(1), vec![1, 2], vec![3]));
            }
            // What 1 and 2 acknowledge from here on 3 does not have.
            let is_default = resource == ConfigResource::BrokerDefault;
            alter(&mut cluster, resource, set("2")).unwrap();
            assert_eq!(cluster.state_of("t"), (Some(1), vec![1, 2], vec![]));
            assert_eq!(cluster.state_of("other").2.is_empty(), is_default);
        }
    }

    #[test]
    fn what_does_not_exist_or_cannot_change_is_refused() {
        let mut cluster = cluster();
        let set = |name: &str| ops(&[(name, ConfigOp::Set("5".into()))]);
        let mut code = |resource, edit| alter(&mut cluster, resource, edit).map_err(|refusal| refusal.code);
        assert_eq!(code(topic("u"), set("retention.ms")), Err(ErrorCode::UnknownTopicOrPartition));
        let broker = ConfigResource::Broker(BrokerId(9));
        assert_eq!(code(broker, set("retention.ms")), Err(ErrorCode::BrokerIdNotRegistered));
        assert_eq!(code(topic("t"), set("nonsense")), Err(ErrorCode::InvalidConfig));
        assert_eq!(code(ConfigResource::BrokerDefault, set("node.id")), Err(ErrorCode::InvalidRequest));
        let long = ops(&[("cleanup.policy", ConfigOp::Set("x".repeat(40_000)))]);
        assert_eq!(code(topic("t"), long), Err(ErrorCode::InvalidConfig));
    }

    #[test]
    fn one_refused_resource_does_not_stop_the_others_and_validate_only_changes_nothing() {
        let mut cluster = cluster();
        let set = ops(&[("retention.ms", ConfigOp::Set("5".into()))]);
        let changes = vec![
            ConfigChange { resource: topic("u"), edit: set.clone() },
            ConfigChange { resource: topic("t"), edit: set.clone() },
            ConfigChange { resource: ConfigResource::BrokerDefault, edit: set.clone() },
            ConfigChange { resource: ConfigResource::BrokerDefault, edit: set },
        ];
        let request =
            |validate_only| Command::AlterConfigs(AlterConfigs { changes: changes.clone(), validate_only });
        let codes = |response: Response| -> Vec<Option<ErrorCode>> {
            response.configs_altered().into_iter().map(|(_, result)| result.err().map(|r| r.code)).collect()
        };
        let expected = [Some(ErrorCode::UnknownTopicOrPartition), None, Some(ErrorCode::InvalidRequest)];
        assert_eq!(codes(cluster.run(request(true)).unwrap()), expected);
        assert_eq!(value(&cluster, "retention.ms"), None);
        assert_eq!(codes(cluster.run(request(false)).unwrap()), expected);
        assert_eq!(value(&cluster, "retention.ms").as_deref(), Some("5"));
    }
}
