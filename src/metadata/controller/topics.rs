//! CreateTopics, DeleteTopics and CreatePartitions (Kafka's `ReplicationControlManager`).

use std::collections::{BTreeMap, BTreeSet};

use super::super::assignment::{self, Candidate};
use super::super::command::{
    CreatePartitions, CreateTopics, CreatedTopic, DeleteTopics, DeletedTopic, MorePartitions, NewTopic,
    Refusal, Response, TopicRef,
};
use super::super::image::{ConfigResource, Image, PartitionImage, TopicImage};
use super::super::names;
use super::super::record::Record;
use super::configs::initial_overrides;
use super::{Controller, Decision};
use crate::base::{BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicName};
use crate::wire::ErrorCode;

/// All topics of a request together; the same bound as Kafka's.
const PARTITIONS_PER_COMMAND_MAX: i64 = 10_000;

/// Kafka's own metadata log, which clients may not make.
const CLUSTER_METADATA_TOPIC: &str = "__cluster_metadata";

impl Controller {
    pub(super) fn create_topics(
        &mut self,
        image: &Image,
        request: CreateTopics,
    ) -> Result<Decision, Refusal> {
        check_total(request.topics.iter().map(|topic| match topic.partitions {
            -1 if !topic.assignment.is_empty() => topic.assignment.len() as i64,
            -1 => i64::from(self.settings.default_partitions),
            partitions => i64::from(partitions),
        }))?;
        let repeated = repeated(request.topics.iter().map(|topic| topic.name.as_str()));
        let mut records = Vec::new();
        let mut results: Vec<(String, Result<CreatedTopic, Refusal>)> = Vec::new();
        let mut answered = BTreeSet::new();
        let mut collision_keys = BTreeSet::new();
        for topic in &request.topics {
            if !answered.insert(topic.name.as_str()) {
                continue;
            }
            let planned = if repeated.contains(topic.name.as_str()) {
                invalid_request("The request names the topic more than once.")
            } else {
                self.plan_topic(image, topic, &collision_keys)
            };
            let result = planned.map(|plan| {
                records.extend(plan.records);
                collision_keys.extend(names::collision_key(&topic.name));
                plan.created
            });
            results.push((topic.name.clone(), result));
        }
        if request.validate_only {
            records.clear();
            // An id that nobody will see again must not be shown.
            for created in results.iter_mut().filter_map(|(_, result)| result.as_mut().ok()) {
                created.id = TopicId::ZERO;
            }
        }
        Ok(Decision { records, response: Response::TopicsCreated(results) })
    }

    pub(super) fn delete_topics(&mut self, image: &Image, request: DeleteTopics) -> Decision {
        let find = |topic: &TopicRef| match topic {
            TopicRef::Name(name) => image.topic(name).ok_or_else(|| unknown_topic(name)),
            TopicRef::Id(id) => image.topic_by_id(*id).ok_or_else(|| {
                Refusal::new(ErrorCode::UnknownTopicId, format!("There is no topic of id {id}."))
            }),
        };
        // A topic asked for by its name and by its id is deleted by neither, as in Kafka.
        let mut times: BTreeMap<TopicId, usize> = BTreeMap::new();
        for topic in request.topics.iter().filter_map(|topic| find(topic).ok()) {
            *times.entry(topic.id).or_default() += 1;
        }
        let mut records = Vec::new();
        let mut results = Vec::new();
        let mut answered = BTreeSet::new();
        for topic in request.topics {
            if !answered.insert(topic.clone()) {
                continue;
            }
            let result = match find(&topic) {
                _ if !self.settings.delete_topic_enable => Err(Refusal::new(
                    ErrorCode::TopicDeletionDisabled,
                    "Topics cannot be deleted: delete.topic.enable is false.",
                )),
                Err(refusal) => Err(refusal),
                Ok(found) if times[&found.id] > 1 => {
                    invalid_request("The request names the topic more than once.")
                }
                Ok(found) => self.mutations.take(found.partitions.len()).map(|()| {
                    records.push(Record::TopicRemoved { id: found.id });
                    DeletedTopic { name: found.name.clone(), id: found.id }
                }),
            };
            results.push((topic, result));
        }
        Decision { records, response: Response::TopicsDeleted(results) }
    }

    pub(super) fn create_partitions(
        &mut self,
        image: &Image,
        request: CreatePartitions,
    ) -> Result<Decision, Refusal> {
        check_total(request.topics.iter().map(|topic| {
            let current = image.topic(&topic.name).map_or(0, |found| found.partitions.len());
            i64::from(topic.count) - current as i64
        }))?;
        let repeated = repeated(request.topics.iter().map(|topic| topic.name.as_str()));
        let mut records = Vec::new();
        let mut results = Vec::new();
        let mut answered = BTreeSet::new();
        for topic in &request.topics {
            if !answered.insert(topic.name.as_str()) {
                continue;
            }
            let result = if repeated.contains(topic.name.as_str()) {
                invalid_request("The request names the topic more than once.")
            } else {
                self.plan_partitions(image, topic)
            };
            results.push((topic.name.clone(), result.map(|new| records.extend(new))));
        }
        if request.validate_only {
            records.clear();
        }
        Ok(Decision { records, response: Response::PartitionsCreated(results) })
    }

    fn plan_topic(
        &mut self,
        image: &Image,
        topic: &NewTopic,
        new_collision_keys: &BTreeSet<String>,
    ) -> Result<PlannedTopic, Refusal> {
        check_name(image, &topic.name, new_collision_keys)?;
        let name = TopicName::new(&topic.name);
        let resource = ConfigResource::Topic(name.clone());
        let overrides = initial_overrides(&*self.rules, &resource, &topic.configs)?;
        let assignment = if topic.assignment.is_empty() {
            self.choose_replicas(image, topic)?
        } else {
            manual_replicas(image, topic)?
        };
        self.mutations.take(assignment.len())?;
        let id = self.new_topic_id(image);
        let created = CreatedTopic {
            id,
            partitions: assignment.len() as i32,
            replication_factor: assignment[0].len() as i16,
        };
        let mut records = vec![Record::Topic { name, id }];
        records.extend(partition_records(image, id, 0, assignment));
        records.extend(overrides.into_iter().map(|(name, value)| Record::Config {
            resource: resource.clone(),
            name,
            value: Some(value),
        }));
        Ok(PlannedTopic { created, records })
    }

    fn choose_replicas(&mut self, image: &Image, topic: &NewTopic) -> Result<Vec<Vec<BrokerId>>, Refusal> {
        let factor = match topic.replication_factor {
            -1 => self.settings.default_replication_factor,
            factor => factor,
        };
        let partitions = match topic.partitions {
            -1 => self.settings.default_partitions,
            partitions => partitions,
        };
        if factor < 1 {
            return Err(Refusal::new(
                ErrorCode::InvalidReplicationFactor,
                format!("The replication factor must be 1 or more, or -1 for the default, not {factor}."),
            ));
        }
        if partitions < 1 {
            return Err(Refusal::new(
                ErrorCode::InvalidPartitions,
                format!(
                    "The number of partitions must be 1 or more, or -1 for the default, not {partitions}."
                ),
            ));
        }
        self.place(image, 0..partitions as usize, factor as usize, None)
    }

    /// Replicas on unfenced brokers; fenced ones only fill up what those cannot give. One that is about to stop gets none.
    fn place(
        &mut self,
        image: &Image,
        partitions: std::ops::Range<usize>,
        factor: usize,
        first_leader: Option<BrokerId>,
    ) -> Result<Vec<Vec<BrokerId>>, Refusal> {
        let refuse = |why: String| Err(Refusal::new(ErrorCode::InvalidReplicationFactor, why));
        let alive: Vec<Candidate<'_>> = image
            .brokers()
            .filter(|broker| broker.serves())
            .map(|broker| Candidate { id: broker.id, rack: broker.rack.as_deref() })
            .collect();
        let fenced: Vec<BrokerId> = image.brokers().filter(|b| b.fenced).map(|b| b.id).collect();
        let registered = alive.len() + fenced.len();
        if factor > registered {
            return refuse(format!(
                "Replication factor {factor} is more than the {registered} brokers that are registered."
            ));
        }
        if alive.is_empty() {
            return refuse("All brokers are fenced.".to_owned());
        }
        let mut assignment =
            assignment::assign(partitions, factor.min(alive.len()), &alive, first_leader, &mut self.random);
        for (position, replicas) in assignment.iter_mut().enumerate() {
            let missing = factor - replicas.len();
            replicas.extend((0..missing).map(|further| fenced[(position + further) % fenced.len()]));
        }
        Ok(assignment)
    }

    fn plan_partitions(&mut self, image: &Image, topic: &MorePartitions) -> Result<Vec<Record>, Refusal> {
        let found = image.topic(&topic.name).ok_or_else(|| unknown_topic(&topic.name))?;
        let current = found.partitions.len();
        let wanted = usize::try_from(topic.count).unwrap_or(0);
        if wanted <= current {
            let text = if wanted == current {
                format!("The topic has {current} partitions already.")
            } else {
                format!("The topic has {current} partitions: {} would be fewer.", topic.count)
            };
            return Err(Refusal::new(ErrorCode::InvalidPartitions, text));
        }
        let added = wanted - current;
        let assignment = match &topic.assignment {
            Some(assignment) => {
                if assignment.len() != added {
                    return Err(invalid_assignment(format!(
                        "{added} partitions are to be added, the assignment has {}.",
                        assignment.len()
                    )));
                }
                for replicas in assignment {
                    check_replicas(image, replicas, replication_factor(found))?;
                }
                assignment.clone()
            }
            None => {
                let first_leader = found.partitions.first().and_then(|p| p.replicas.first()).copied();
                let factor = replication_factor(found).unwrap_or(1);
                self.place(image, current..wanted, factor, first_leader)?
            }
        };
        self.mutations.take(added)?;
        Ok(partition_records(image, found.id, current, assignment).collect())
    }
}

struct PlannedTopic {
    created: CreatedTopic,
    records: Vec<Record>,
}

fn check_name(image: &Image, name: &str, new_collision_keys: &BTreeSet<String>) -> Result<(), Refusal> {
    if name == CLUSTER_METADATA_TOPIC {
        return invalid_request("The name is reserved for the cluster's metadata log.");
    }
    if let Err(error) = names::check_topic_name(name) {
        return Err(Refusal::new(ErrorCode::InvalidTopicException, error.to_string()));
    }
    if image.topic(name).is_some() {
        return Err(Refusal::new(ErrorCode::TopicAlreadyExists, format!("Topic '{name}' already exists.")));
    }
    let collides = |with: &str| {
        let text = format!("The name collides with that of topic '{with}': '.' and '_' count as one letter.");
        Err(Refusal::new(ErrorCode::InvalidTopicException, text))
    };
    if let Some(other) = image.colliding_topic(name) {
        return collides(other);
    }
    match names::collision_key(name) {
        Some(key) if new_collision_keys.contains(&key) => collides("another of this request"),
        _ => Ok(()),
    }
}

fn manual_replicas(image: &Image, topic: &NewTopic) -> Result<Vec<Vec<BrokerId>>, Refusal> {
    if topic.replication_factor != -1 {
        return invalid_request("With a manual assignment the replication factor must be -1.");
    }
    if topic.partitions != -1 {
        return invalid_request("With a manual assignment the number of partitions must be -1.");
    }
    let mut by_partition: BTreeMap<PartitionIndex, &Vec<BrokerId>> = BTreeMap::new();
    let mut factor = None;
    for (partition, replicas) in &topic.assignment {
        check_replicas(image, replicas, factor)?;
        factor = Some(replicas.len());
        if by_partition.insert(*partition, replicas).is_some() {
            return Err(invalid_assignment(format!("Partition {partition} is assigned more than once.")));
        }
    }
    let numbers = (0..).map(PartitionIndex);
    if !by_partition.keys().copied().zip(numbers).all(|(partition, number)| partition == number) {
        return Err(invalid_assignment("Partitions must be numbered from 0 without gaps.".to_owned()));
    }
    Ok(by_partition.into_values().cloned().collect())
}

fn check_replicas(image: &Image, replicas: &[BrokerId], factor: Option<usize>) -> Result<(), Refusal> {
    if replicas.is_empty() {
        return Err(invalid_assignment("A partition must have a replica.".to_owned()));
    }
    let mut seen = BTreeSet::new();
    for id in replicas {
        if !seen.insert(*id) {
            return Err(invalid_assignment(format!("Broker {id} is assigned twice to one partition.")));
        }
        if image.broker(*id).is_none() {
            return Err(invalid_assignment(format!("Broker {id} is not registered.")));
        }
    }
    if let Some(factor) = factor.filter(|factor| *factor != replicas.len()) {
        return Err(invalid_assignment(format!(
            "A partition has {} replicas, the others have {factor}.",
            replicas.len()
        )));
    }
    if !replicas.iter().any(|id| is_alive(image, *id)) {
        return Err(invalid_assignment("All replicas of a partition are on fenced brokers.".to_owned()));
    }
    Ok(())
}

fn partition_records(
    image: &Image,
    topic: TopicId,
    first: usize,
    assignment: Vec<Vec<BrokerId>>,
) -> impl Iterator<Item = Record> {
    assignment.into_iter().zip(first..).map(move |(replicas, number)| {
        let isr: Box<[BrokerId]> = replicas.iter().copied().filter(|id| is_alive(image, *id)).collect();
        let partition = PartitionImage {
            leader: isr.first().copied(),
            isr,
            replicas: replicas.into_boxed_slice(),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: 0,
            directories: Box::default(),
            transit: None,
        };
        Record::Partition { topic, index: PartitionIndex(number as i32), partition }
    })
}

fn is_alive(image: &Image, id: BrokerId) -> bool {
    image.broker(id).is_some_and(|broker| broker.serves())
}

fn replication_factor(topic: &TopicImage) -> Option<usize> {
    topic.partitions.first().map(|partition| partition.replicas.len())
}

/// The names that occur more than once.
fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}

fn invalid_request<T>(message: &str) -> Result<T, Refusal> {
    Err(Refusal::new(ErrorCode::InvalidRequest, message))
}

fn invalid_assignment(message: String) -> Refusal {
    Refusal::new(ErrorCode::InvalidReplicaAssignment, message)
}

fn unknown_topic(name: &str) -> Refusal {
    Refusal::new(ErrorCode::UnknownTopicOrPartition, format!("There is no topic '{name}'."))
}

/// Refuses a request that asks for too many new partitions, all its topics together. Topics that will be
/// refused anyway count too, as in Kafka.
fn check_total(partitions: impl Iterator<Item = i64>) -> Result<(), Refusal> {
    let total: i64 = partitions.map(|count| count.max(0)).sum();
    if total <= PARTITIONS_PER_COMMAND_MAX {
        return Ok(());
    }
    let text = format!("One request makes at most {PARTITIONS_PER_COMMAND_MAX} partitions, not {total}.");
    Err(Refusal::new(ErrorCode::PolicyViolation, text))
}

#[cfg(test)]
#[path = "topics_tests.rs"]
mod tests;
