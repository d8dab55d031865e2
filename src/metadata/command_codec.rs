//! Commands on their way from the node that was asked to the controller, and what that answers: `version u8`, then
//! fields in the primitive forms of `codec`. A controller that does not know a version refuses the command: nothing is
//! guessed.

use std::time::Duration;

use super::codec::{DecodeError, Reader, Writer};
use super::command::{
    AlterConfigs, AlterIsr, AlterPartition, AlterReassignments, AlteredPartition, AssignDirectories, Command,
    ConfigChange, ConfigEdit, ConfigOp, CreatePartitions, CreateTopics, CreatedTopic, DeleteTopics,
    DeletedTopic, ElectLeaders, ElectionKind, FeatureUpdate, MorePartitions, NewTopic, ProducerIdBlock,
    Reassignment, Refusal, Response, TopicRef, UpdateFeatures, UpgradeType,
};
use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, ProducerId, TopicId, TopicName};
use crate::wire::ErrorCode;

const VERSION: u8 = 1;

/// The kind of a command within which there is another one.
const LIMITED: u8 = 10;
const LIMITED_RESPONSE: u8 = 8;

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
            writer.replicas(partitions);
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
        Command::AssignDirectories(request) => {
            writer.u8(23);
            writer.broker(&request.broker);
            writer.signed(request.epoch.0);
            writer.list(&request.directories, |writer, (directory, replicas)| {
                writer.uuid(directory);
                writer.replicas(replicas);
            });
        }
        Command::DirectoryFailed { broker, epoch, directory } => {
            writer.u8(24);
            writer.broker(broker);
            writer.signed(epoch.0);
            writer.uuid(directory);
        }
        Command::RegisterController(controller) => {
            writer.u8(25);
            writer.controller(controller);
        }
        Command::AlterClientQuotas(request) => {
            writer.u8(9);
            writer.alter_client_quotas(request);
        }
        Command::Limited(quota, command) => {
            writer.u8(LIMITED);
            writer.mutation_quota(quota);
            bytes.extend(encode_command(command)?);
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
    let kind = reader.u8()?;
    if kind == LIMITED {
        let quota = reader.mutation_quota()?;
        return match decode_command(reader.0)? {
            Command::Limited(..) => Err(DecodeError::Value("command under a quota")),
            command => Ok(Command::Limited(quota, Box::new(command))),
        };
    }
    let command = match kind {
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
            partitions: reader.replicas()?,
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
        23 => Command::AssignDirectories(AssignDirectories {
            broker: reader.broker()?,
            epoch: reader.epoch()?,
            directories: reader.list(17, |reader| Ok((reader.uuid()?, reader.replicas()?)))?,
        }),
        24 => Command::DirectoryFailed {
            broker: reader.broker()?,
            epoch: reader.epoch()?,
            directory: reader.uuid()?,
        },
        25 => Command::RegisterController(reader.controller()?),
        9 => Command::AlterClientQuotas(reader.alter_client_quotas()?),
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

    fn replicas(&mut self, replicas: &[(TopicId, PartitionIndex)]) {
        self.list(replicas, |writer, (topic, index)| {
            writer.uuid(&topic.0);
            writer.signed(i64::from(index.0));
        });
    }

    fn code_or_done(&mut self, result: &Result<(), ErrorCode>) {
        self.bool(result.is_ok());
        if let Err(code) = result {
            self.code(*code);
        }
    }

    fn code(&mut self, code: ErrorCode) {
        self.signed(i64::from(code.code()));
    }

    pub(super) fn result<T>(&mut self, result: &Result<T, Refusal>, write: impl FnOnce(&mut Self, &T)) {
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
                self.list(results, Self::code_or_done);
            }
            Response::DirectoriesAssigned(results) => {
                self.u8(22);
                self.list(results, Self::code_or_done);
            }
            Response::ReassignmentsAltered(results) => {
                self.u8(21);
                self.list(results, |writer, result| writer.result(result, |_, ()| {}));
            }
            Response::QuotasAltered(results) => {
                self.u8(7);
                self.quotas_altered(results);
            }
            Response::Limited(throttle, response) => {
                self.u8(LIMITED_RESPONSE);
                self.unsigned(u64::try_from(throttle.as_millis()).unwrap_or(u64::MAX));
                self.response(response);
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

    fn replicas(&mut self) -> Result<Vec<(TopicId, PartitionIndex)>, DecodeError> {
        self.list(17, |reader| Ok((reader.topic_id()?, PartitionIndex(reader.i32()?))))
    }

    fn code_or_done(&mut self) -> Result<Result<(), ErrorCode>, DecodeError> {
        Ok(if self.bool()? { Ok(()) } else { Err(self.code()?) })
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

    pub(super) fn result<T>(
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
            20 => Response::LeadersElected(self.list(1, Self::code_or_done)?),
            22 => Response::DirectoriesAssigned(self.list(1, Self::code_or_done)?),
            21 => Response::ReassignmentsAltered(self.list(1, |reader| reader.result(|_| Ok(())))?),
            7 => Response::QuotasAltered(self.quotas_altered()?),
            LIMITED_RESPONSE => {
                let throttle = Duration::from_millis(self.unsigned()?);
                // One within another is none: no input takes the reader deeper than that.
                if self.0.first() == Some(&LIMITED_RESPONSE) {
                    return Err(DecodeError::Value("response"));
                }
                Response::Limited(throttle, Box::new(self.response()?))
            }
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
#[path = "command_codec_tests.rs"]
mod tests;
