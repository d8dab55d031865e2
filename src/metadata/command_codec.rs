//! Commands on their way from the node that was asked to the controller, and what that answers: `version u8`, then
//! fields in the primitive forms of `codec`. A controller that does not know a version refuses the command: nothing is
//! guessed.

use super::codec::{DecodeError, Reader, Writer};
use super::command::{
    AlterConfigs, AlterIsr, AlterPartition, AlterReassignments, AlteredPartition, Command, ConfigChange,
    ConfigEdit, ConfigOp, CreatePartitions, CreateTopics, CreatedTopic, DeleteTopics, DeletedTopic,
    ElectLeaders, ElectionKind, FeatureUpdate, MorePartitions, NewTopic, ProducerIdBlock, Reassignment,
    Refusal, Response, TopicRef, UpdateFeatures, UpgradeType,
};
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, ProducerId, TopicId, TopicName};
use crate::wire::ErrorCode;

const VERSION: u8 = 1;

/// The sent form; `None` for what a broker says with a request of its own, and for what the controller asks of itself.
pub fn encode_command(command: &Command) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut writer = Writer(&mut bytes);
    writer.u8(VERSION);
    match command {
        Command::RegisterBroker(_)
        | Command::Heartbeat(_)
        | Command::FenceBroker { .. }
        | Command::UnfenceBroker { .. }
        | Command::BalanceLeaders
        | Command::ElectUnclean => return None,
        Command::CreateTopics(request) => {
            writer.u8(1);
            writer.list(&request.topics, Writer::new_topic);
            writer.bool(request.validate_only);
        }
        Command::DeleteTopics(request) => {
            writer.u8(2);
            writer.list(&request.topics, Writer::topic_ref);
        }
        Command::CreatePartitions(request) => {
            writer.u8(3);
            writer.list(&request.topics, |writer, topic| {
                writer.text(&topic.name);
                writer.signed(i64::from(topic.count));
                writer.option(&topic.assignment, |writer, assignment| {
                    writer.list(assignment, |writer, replicas| writer.brokers(replicas));
                });
            });
            writer.bool(request.validate_only);
        }
        Command::AlterConfigs(request) => {
            writer.u8(4);
            writer.list(&request.changes, Writer::config_change);
            writer.bool(request.validate_only);
        }
        Command::UpdateFeatures(request) => {
            writer.u8(5);
            writer.list(&request.updates, |writer, update| {
                writer.text(&update.name);
                writer.signed(i64::from(update.level));
                writer.u8(match update.upgrade {
                    UpgradeType::Upgrade => 1,
                    UpgradeType::SafeDowngrade => 2,
                    UpgradeType::UnsafeDowngrade => 3,
                    UpgradeType::Unknown => 0,
                });
            });
            writer.bool(request.validate_only);
        }
        Command::AllocateProducerIds { broker, epoch } => {
            writer.u8(6);
            writer.broker(broker);
            writer.signed(epoch.0);
        }
        Command::ReplicasOffline { broker, epoch, partitions } => {
            writer.u8(7);
            writer.broker(broker);
            writer.signed(epoch.0);
            writer.list(partitions, |writer, (topic, index)| {
                writer.uuid(&topic.0);
                writer.signed(i64::from(index.0));
            });
        }
        Command::AlterPartition(request) => {
            writer.u8(8);
            writer.broker(&request.broker);
            writer.signed(request.epoch.0);
            writer.list(&request.partitions, Writer::alter_isr);
        }
        Command::ElectLeaders(request) => {
            writer.u8(20);
            writer.bool(request.kind == ElectionKind::Unclean);
            writer.list(&request.topics, |writer, (topic, partitions)| {
                writer.text(topic);
                writer.list(partitions, |writer, index| writer.signed(i64::from(index.0)));
            });
        }
        Command::AlterReassignments(request) => {
            writer.u8(21);
            writer.bool(request.may_change_factor);
            writer.list(&request.topics, |writer, (topic, partitions)| {
                writer.text(topic);
                writer.list(partitions, |writer, wanted| {
                    writer.signed(i64::from(wanted.index.0));
                    writer.option(&wanted.replicas, |writer, replicas| writer.brokers(replicas));
                });
            });
        }
        Command::UnregisterBroker { id } => {
            writer.u8(22);
            writer.broker(id);
        }
    }
    Some(bytes)
}

/// Reads back what [`encode_command`] wrote; `bytes` must hold nothing else.
pub fn decode_command(bytes: &[u8]) -> Result<Command, DecodeError> {
    let mut reader = Reader(bytes);
    let version = reader.u8()?;
    if version != VERSION {
        return Err(DecodeError::Kind { kind: 0, version });
    }
    let command = match reader.u8()? {
        1 => Command::CreateTopics(CreateTopics {
            topics: reader.list(5, Reader::new_topic)?,
            validate_only: reader.bool()?,
        }),
        2 => Command::DeleteTopics(DeleteTopics { topics: reader.list(2, Reader::topic_ref)? }),
        3 => Command::CreatePartitions(CreatePartitions {
            topics: reader.list(3, |reader| {
                Ok(MorePartitions {
                    name: reader.text()?.to_owned(),
                    count: reader.i32()?,
                    assignment: reader.option(|reader| {
                        reader.list(1, |reader| reader.brokers().map(<[BrokerId]>::into_vec))
                    })?,
                })
            })?,
            validate_only: reader.bool()?,
        }),
        4 => Command::AlterConfigs(AlterConfigs {
            changes: reader.list(3, Reader::config_change)?,
            validate_only: reader.bool()?,
        }),
        5 => Command::UpdateFeatures(UpdateFeatures {
            updates: reader.list(3, |reader| {
                Ok(FeatureUpdate {
                    name: reader.text()?.to_owned(),
                    level: reader.i16()?,
                    upgrade: match reader.u8()? {
                        1 => UpgradeType::Upgrade,
                        2 => UpgradeType::SafeDowngrade,
                        3 => UpgradeType::UnsafeDowngrade,
                        _ => UpgradeType::Unknown,
                    },
                })
            })?,
            validate_only: reader.bool()?,
        }),
        6 => Command::AllocateProducerIds { broker: reader.broker()?, epoch: reader.epoch()? },
        7 => Command::ReplicasOffline {
            broker: reader.broker()?,
            epoch: reader.epoch()?,
            partitions: reader.list(17, |reader| Ok((reader.topic_id()?, PartitionIndex(reader.i32()?))))?,
        },
        8 => Command::AlterPartition(AlterPartition {
            broker: reader.broker()?,
            epoch: reader.epoch()?,
            partitions: reader.list(21, Reader::alter_isr)?,
        }),
        20 => Command::ElectLeaders(ElectLeaders {
            kind: if reader.bool()? { ElectionKind::Unclean } else { ElectionKind::Preferred },
            topics: reader.list(2, |reader| {
                let topic = reader.text()?.to_owned();
                Ok((topic, reader.list(1, |reader| Ok(PartitionIndex(reader.i32()?)))?))
            })?,
        }),
        21 => Command::AlterReassignments(AlterReassignments {
            may_change_factor: reader.bool()?,
            topics: reader
                .list(2, |reader| Ok((reader.text()?.to_owned(), reader.list(2, Reader::reassignment)?)))?,
        }),
        22 => Command::UnregisterBroker { id: reader.broker()? },
        kind => return Err(DecodeError::Kind { kind, version }),
    };
    reader.end()?;
    Ok(command)
}

/// What the controller answers, with the version of its image at that time.
pub fn encode_result(version: u64, result: &Result<Response, Refusal>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer(&mut bytes);
    writer.u8(VERSION);
    writer.unsigned(version);
    writer.result(result, Writer::response);
    bytes
}

/// Reads back what [`encode_result`] wrote.
pub fn decode_result(bytes: &[u8]) -> Result<(u64, Result<Response, Refusal>), DecodeError> {
    let mut reader = Reader(bytes);
    match reader.u8()? {
        VERSION => {}
        version => return Err(DecodeError::Kind { kind: 0, version }),
    }
    let version = reader.unsigned()?;
    let result = reader.result(Reader::response)?;
    reader.end()?;
    Ok((version, result))
}

impl Writer<'_> {
    fn new_topic(&mut self, topic: &NewTopic) {
        self.text(&topic.name);
        self.signed(i64::from(topic.partitions));
        self.signed(i64::from(topic.replication_factor));
        self.list(&topic.assignment, |writer, (index, replicas)| {
            writer.signed(i64::from(index.0));
            writer.brokers(replicas);
        });
        self.list(&topic.configs, |writer, (name, value)| {
            writer.text(name);
            writer.option(value, |writer, value| writer.text(value));
        });
    }

    fn topic_ref(&mut self, topic: &TopicRef) {
        match topic {
            TopicRef::Name(name) => {
                self.u8(0);
                self.text(name);
            }
            TopicRef::Id(id) => {
                self.u8(1);
                self.uuid(&id.0);
            }
        }
    }

    fn config_change(&mut self, change: &ConfigChange) {
        self.resource(&change.resource);
        match &change.edit {
            ConfigEdit::Replace(values) => {
                self.u8(0);
                self.list(values, |writer, (name, value)| {
                    writer.text(name);
                    writer.text(value);
                });
            }
            ConfigEdit::Incremental(steps) => {
                self.u8(1);
                self.list(steps, |writer, (name, step)| {
                    writer.text(name);
                    let (kind, value) = match step {
                        ConfigOp::Set(value) => (0, value.as_str()),
                        ConfigOp::Delete => (1, ""),
                        ConfigOp::Append(value) => (2, value.as_str()),
                        ConfigOp::Subtract(value) => (3, value.as_str()),
                    };
                    writer.u8(kind);
                    writer.text(value);
                });
            }
        }
    }

    fn alter_isr(&mut self, wanted: &AlterIsr) {
        self.uuid(&wanted.topic.0);
        self.signed(i64::from(wanted.index.0));
        self.signed(i64::from(wanted.leader_epoch.0));
        self.signed(i64::from(wanted.partition_epoch));
        self.list(&wanted.isr, |writer, (member, epoch)| {
            writer.broker(member);
            writer.signed(epoch.0);
        });
        self.bool(wanted.recovering);
    }

    fn code(&mut self, code: ErrorCode) {
        self.signed(i64::from(code.code()));
    }

    fn result<T>(&mut self, result: &Result<T, Refusal>, write: impl FnOnce(&mut Self, &T)) {
        self.bool(result.is_ok());
        match result {
            Ok(value) => write(self, value),
            Err(refusal) => {
                self.code(refusal.code);
                self.text(&refusal.message);
            }
        }
    }

    fn response(&mut self, response: &Response) {
        match response {
            // Both are answered with a response of their own.
            Response::Done | Response::BrokerRegistered { .. } | Response::Heartbeat(_) => self.u8(0),
            Response::TopicsCreated(results) => {
                self.u8(1);
                self.list(results, |writer, (name, result)| {
                    writer.text(name);
                    writer.result(result, |writer, created| {
                        writer.uuid(&created.id.0);
                        writer.signed(i64::from(created.partitions));
                        writer.signed(i64::from(created.replication_factor));
                    });
                });
            }
            Response::TopicsDeleted(results) => {
                self.u8(2);
                self.list(results, |writer, (topic, result)| {
                    writer.topic_ref(topic);
                    writer.result(result, |writer, deleted| {
                        writer.text(&deleted.name);
                        writer.uuid(&deleted.id.0);
                    });
                });
            }
            Response::PartitionsCreated(results) => {
                self.u8(3);
                self.list(results, |writer, (name, result)| {
                    writer.text(name);
                    writer.result(result, |_, ()| {});
                });
            }
            Response::ConfigsAltered(results) => {
                self.u8(4);
                self.list(results, |writer, (resource, result)| {
                    writer.resource(resource);
                    writer.result(result, |_, ()| {});
                });
            }
            Response::ProducerIds(block) => {
                self.u8(5);
                self.signed(block.first.0);
                self.unsigned(u64::from(block.count));
            }
            Response::PartitionsAltered(results) => {
                self.u8(6);
                self.list(results, |writer, result| {
                    writer.bool(result.is_ok());
                    match result {
                        Ok(altered) => writer.altered(altered),
                        Err(code) => writer.code(*code),
                    }
                });
            }
            Response::LeadersElected(results) => {
                self.u8(20);
                self.list(results, |writer, result| {
                    writer.bool(result.is_ok());
                    if let Err(code) = result {
                        writer.code(*code);
                    }
                });
            }
            Response::ReassignmentsAltered(results) => {
                self.u8(21);
                self.list(results, |writer, result| writer.result(result, |_, ()| {}));
            }
        }
    }

    fn altered(&mut self, altered: &AlteredPartition) {
        self.option(&altered.leader, Self::broker);
        self.signed(i64::from(altered.leader_epoch.0));
        self.brokers(&altered.isr);
        self.signed(i64::from(altered.partition_epoch));
        self.bool(altered.recovering);
    }
}

impl Reader<'_> {
    fn new_topic(&mut self) -> Result<NewTopic, DecodeError> {
        Ok(NewTopic {
            name: self.text()?.to_owned(),
            partitions: self.i32()?,
            replication_factor: self.i16()?,
            assignment: self
                .list(2, |reader| Ok((PartitionIndex(reader.i32()?), reader.brokers()?.into_vec())))?,
            configs: self.list(2, |reader| {
                Ok((reader.text()?.to_owned(), reader.option(|reader| reader.text().map(str::to_owned))?))
            })?,
        })
    }

    fn topic_ref(&mut self) -> Result<TopicRef, DecodeError> {
        Ok(match self.u8()? {
            0 => TopicRef::Name(self.text()?.to_owned()),
            1 => TopicRef::Id(self.topic_id()?),
            _ => return Err(DecodeError::Value("topic")),
        })
    }

    fn config_change(&mut self) -> Result<ConfigChange, DecodeError> {
        let resource = self.resource()?;
        let edit = match self.u8()? {
            0 => ConfigEdit::Replace(
                self.list(2, |reader| Ok((reader.text()?.to_owned(), reader.text()?.to_owned())))?,
            ),
            1 => ConfigEdit::Incremental(self.list(3, |reader| {
                let name = reader.text()?.to_owned();
                let (kind, value) = (reader.u8()?, reader.text()?.to_owned());
                Ok((
                    name,
                    match kind {
                        0 => ConfigOp::Set(value),
                        1 => ConfigOp::Delete,
                        2 => ConfigOp::Append(value),
                        3 => ConfigOp::Subtract(value),
                        _ => return Err(DecodeError::Value("config step")),
                    },
                ))
            })?),
            _ => return Err(DecodeError::Value("config edit")),
        };
        Ok(ConfigChange { resource, edit })
    }

    fn alter_isr(&mut self) -> Result<AlterIsr, DecodeError> {
        Ok(AlterIsr {
            topic: self.topic_id()?,
            index: PartitionIndex(self.i32()?),
            leader_epoch: LeaderEpoch(self.i32()?),
            partition_epoch: self.i32()?,
            isr: self.list(2, |reader| Ok((reader.broker()?, BrokerEpoch(reader.signed()?))))?,
            recovering: self.bool()?,
        })
    }

    fn reassignment(&mut self) -> Result<Reassignment, DecodeError> {
        let index = PartitionIndex(self.i32()?);
        let replicas = self.option(|reader| reader.brokers().map(<[BrokerId]>::into_vec))?;
        Ok(Reassignment { index, replicas })
    }

    fn code(&mut self) -> Result<ErrorCode, DecodeError> {
        // One that only a newer controller has.
        Ok(ErrorCode::try_from_code(self.i16()?).unwrap_or(ErrorCode::UnknownServerError))
    }

    fn result<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Result<T, Refusal>, DecodeError> {
        Ok(match self.bool()? {
            true => Ok(read(self)?),
            false => Err(Refusal { code: self.code()?, message: self.text()?.to_owned() }),
        })
    }

    fn response(&mut self) -> Result<Response, DecodeError> {
        Ok(match self.u8()? {
            0 => Response::Done,
            1 => Response::TopicsCreated(self.list(3, |reader| {
                let name = reader.text()?.to_owned();
                let created = reader.result(|reader| {
                    Ok(CreatedTopic {
                        id: reader.topic_id()?,
                        partitions: reader.i32()?,
                        replication_factor: reader.i16()?,
                    })
                })?;
                Ok((name, created))
            })?),
            2 => Response::TopicsDeleted(self.list(4, |reader| {
                let topic = reader.topic_ref()?;
                let deleted = reader.result(|reader| {
                    Ok(DeletedTopic { name: TopicName::new(reader.text()?), id: TopicId(reader.uuid()?) })
                })?;
                Ok((topic, deleted))
            })?),
            3 => Response::PartitionsCreated(
                self.list(2, |reader| Ok((reader.text()?.to_owned(), reader.result(|_| Ok(()))?)))?,
            ),
            4 => Response::ConfigsAltered(
                self.list(2, |reader| Ok((reader.resource()?, reader.result(|_| Ok(()))?)))?,
            ),
            5 => Response::ProducerIds(ProducerIdBlock {
                first: ProducerId(self.signed()?),
                count: u32::try_from(self.unsigned()?).map_err(|_| DecodeError::Value("number"))?,
            }),
            6 => Response::PartitionsAltered(self.list(2, |reader| {
                Ok(match reader.bool()? {
                    true => Ok(reader.altered()?),
                    false => Err(reader.code()?),
                })
            })?),
            20 => Response::LeadersElected(
                self.list(1, |reader| Ok(if reader.bool()? { Ok(()) } else { Err(reader.code()?) }))?,
            ),
            21 => Response::ReassignmentsAltered(self.list(1, |reader| reader.result(|_| Ok(())))?),
            _ => return Err(DecodeError::Value("response")),
        })
    }

    fn altered(&mut self) -> Result<AlteredPartition, DecodeError> {
        Ok(AlteredPartition {
            leader: self.option(Self::broker)?,
            leader_epoch: LeaderEpoch(self.i32()?),
            isr: self.brokers()?,
            partition_epoch: self.i32()?,
            recovering: self.bool()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::super::image::ConfigResource;
    use super::*;

    fn topic_id() -> impl Strategy<Value = TopicId> {
        any::<u128>().prop_map(|number| TopicId(Uuid::from_u128(number)))
    }

    fn broker() -> impl Strategy<Value = BrokerId> {
        any::<i32>().prop_map(BrokerId)
    }

    fn index() -> impl Strategy<Value = PartitionIndex> {
        any::<i32>().prop_map(PartitionIndex)
    }

    fn epoch() -> impl Strategy<Value = BrokerEpoch> {
        any::<i64>().prop_map(BrokerEpoch)
    }

    fn some<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
        prop::collection::vec(of, 0..4)
    }

    fn text() -> impl Strategy<Value = String> {
        ".{0,9}"
    }

    fn topic_ref() -> impl Strategy<Value = TopicRef> {
        prop_oneof![text().prop_map(TopicRef::Name), topic_id().prop_map(TopicRef::Id)]
    }

    fn new_topic() -> impl Strategy<Value = NewTopic> {
        let assignment = some((index(), some(broker())));
        (text(), any::<i32>(), any::<i16>(), assignment, some((text(), prop::option::of(text())))).prop_map(
            |(name, partitions, replication_factor, assignment, configs)| NewTopic {
                name,
                partitions,
                replication_factor,
                assignment,
                configs,
            },
        )
    }

    fn resource() -> impl Strategy<Value = ConfigResource> {
        prop_oneof![
            text().prop_map(|name| ConfigResource::Topic(TopicName::new(&name))),
            broker().prop_map(ConfigResource::Broker),
            Just(ConfigResource::BrokerDefault),
            text().prop_map(ConfigResource::Group),
            text().prop_map(ConfigResource::ClientMetrics),
        ]
    }

    fn config_change() -> impl Strategy<Value = ConfigChange> {
        let step = prop_oneof![
            text().prop_map(ConfigOp::Set),
            Just(ConfigOp::Delete),
            text().prop_map(ConfigOp::Append),
            text().prop_map(ConfigOp::Subtract),
        ];
        let edit = prop_oneof![
            some((text(), text())).prop_map(ConfigEdit::Replace),
            some((text(), step)).prop_map(ConfigEdit::Incremental),
        ];
        (resource(), edit).prop_map(|(resource, edit)| ConfigChange { resource, edit })
    }

    fn alter_isr() -> impl Strategy<Value = AlterIsr> {
        let epochs = (any::<i32>().prop_map(LeaderEpoch), any::<i32>());
        (topic_id(), index(), epochs, some((broker(), epoch())), any::<bool>()).prop_map(
            |(topic, index, (leader_epoch, partition_epoch), isr, recovering)| AlterIsr {
                topic,
                index,
                leader_epoch,
                partition_epoch,
                isr,
                recovering,
            },
        )
    }

    fn reassignment() -> impl Strategy<Value = Reassignment> {
        (index(), prop::option::of(some(broker())))
            .prop_map(|(index, replicas)| Reassignment { index, replicas })
    }

    fn command() -> impl Strategy<Value = Command> {
        let more = (text(), any::<i32>(), prop::option::of(some(some(broker()))))
            .prop_map(|(name, count, assignment)| MorePartitions { name, count, assignment });
        let upgrade = prop::sample::select(vec![
            UpgradeType::Upgrade,
            UpgradeType::SafeDowngrade,
            UpgradeType::UnsafeDowngrade,
            UpgradeType::Unknown,
        ]);
        let update = (text(), any::<i16>(), upgrade).prop_map(|(name, level, upgrade)| FeatureUpdate {
            name,
            level,
            upgrade,
        });
        prop_oneof![
            (some(new_topic()), any::<bool>()).prop_map(|(topics, validate_only)| {
                Command::CreateTopics(CreateTopics { topics, validate_only })
            }),
            some(topic_ref()).prop_map(|topics| Command::DeleteTopics(DeleteTopics { topics })),
            (some(more), any::<bool>()).prop_map(|(topics, validate_only)| {
                Command::CreatePartitions(CreatePartitions { topics, validate_only })
            }),
            (some(config_change()), any::<bool>()).prop_map(|(changes, validate_only)| {
                Command::AlterConfigs(AlterConfigs { changes, validate_only })
            }),
            (some(update), any::<bool>()).prop_map(|(updates, validate_only)| {
                Command::UpdateFeatures(UpdateFeatures { updates, validate_only })
            }),
            (broker(), epoch()).prop_map(|(broker, epoch)| Command::AllocateProducerIds { broker, epoch }),
            (broker(), epoch(), some((topic_id(), index()))).prop_map(|(broker, epoch, partitions)| {
                Command::ReplicasOffline { broker, epoch, partitions }
            }),
            (broker(), epoch(), some(alter_isr())).prop_map(|(broker, epoch, partitions)| {
                Command::AlterPartition(AlterPartition { broker, epoch, partitions })
            }),
            (any::<bool>(), some((text(), some(index())))).prop_map(|(is_unclean, topics)| {
                let kind = if is_unclean { ElectionKind::Unclean } else { ElectionKind::Preferred };
                Command::ElectLeaders(ElectLeaders { kind, topics })
            }),
            (any::<bool>(), some((text(), some(reassignment())))).prop_map(|(may_change_factor, topics)| {
                Command::AlterReassignments(AlterReassignments { may_change_factor, topics })
            }),
            broker().prop_map(|id| Command::UnregisterBroker { id }),
        ]
    }

    fn refusal() -> impl Strategy<Value = Refusal> {
        let codes = vec![ErrorCode::UnknownServerError, ErrorCode::NotController, ErrorCode::InvalidConfig];
        (prop::sample::select(codes), text()).prop_map(|(code, message)| Refusal { code, message })
    }

    fn result<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Result<T, Refusal>> {
        prop_oneof![of.prop_map(Ok), refusal().prop_map(Err)]
    }

    fn response() -> impl Strategy<Value = Response> {
        let created =
            (topic_id(), any::<i32>(), any::<i16>()).prop_map(|(id, partitions, replication_factor)| {
                CreatedTopic { id, partitions, replication_factor }
            });
        let deleted =
            (text(), topic_id()).prop_map(|(name, id)| DeletedTopic { name: TopicName::new(&name), id });
        let altered = (prop::option::of(broker()), any::<i32>(), some(broker()), any::<i32>(), any::<bool>())
            .prop_map(|(leader, leader_epoch, isr, partition_epoch, recovering)| AlteredPartition {
                leader,
                leader_epoch: LeaderEpoch(leader_epoch),
                isr: isr.into(),
                partition_epoch,
                recovering,
            });
        let altered = prop_oneof![altered.prop_map(Ok), Just(Err(ErrorCode::IneligibleReplica))];
        prop_oneof![
            Just(Response::Done),
            some((text(), result(created))).prop_map(Response::TopicsCreated),
            some((topic_ref(), result(deleted))).prop_map(Response::TopicsDeleted),
            some((text(), result(Just(())))).prop_map(Response::PartitionsCreated),
            some((resource(), result(Just(())))).prop_map(Response::ConfigsAltered),
            (any::<i64>(), any::<u32>()).prop_map(|(first, count)| {
                Response::ProducerIds(ProducerIdBlock { first: ProducerId(first), count })
            }),
            some(altered).prop_map(Response::PartitionsAltered),
            some(prop_oneof![Just(Ok(())), Just(Err(ErrorCode::ElectionNotNeeded))])
                .prop_map(Response::LeadersElected),
            some(result(Just(()))).prop_map(Response::ReassignmentsAltered),
        ]
    }

    proptest! {
        #[test]
        fn commands_come_back_as_they_were_and_no_part_of_one_passes(command in command()) {
            let Some(bytes) = encode_command(&command) else { panic!("it is one that is sent") };
            prop_assert_eq!(decode_command(&bytes), Ok(command));
            for end in 0..bytes.len() {
                prop_assert!(decode_command(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn answers_come_back_as_they_were_and_no_part_of_one_passes(
            version: u64,
            result in result(response()),
        ) {
            let bytes = encode_result(version, &result);
            prop_assert_eq!(decode_result(&bytes), Ok((version, result)));
            for end in 0..bytes.len() {
                prop_assert!(decode_result(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn damaged_commands_never_panic(
            command in command(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let Some(mut bytes) = encode_command(&command) else { panic!("it is one that is sent") };
            for (position, value) in damage {
                let position = position.index(bytes.len());
                bytes[position] = value;
            }
            let _ = decode_command(&bytes);
            let _ = decode_result(&bytes);
        }
    }

    #[test]
    fn unknown_versions_and_kinds_are_refused() {
        assert_eq!(decode_command(&[9, 1]), Err(DecodeError::Kind { kind: 0, version: 9 }));
        assert_eq!(decode_command(&[1, 99]), Err(DecodeError::Kind { kind: 99, version: 1 }));
        assert!(decode_result(&[9]).is_err());
        let own = Command::FenceBroker { id: BrokerId(1), epoch: BrokerEpoch(1) };
        assert_eq!(encode_command(&own), None);
    }
}
