use proptest::prelude::*;
use uuid::Uuid;

use super::super::command::{AlterClientQuotas, MutationQuota, QuotaChange, QuotaTarget};
use super::super::image::{ConfigResource, ControllerImage, Endpoint, FeatureRange};
use super::super::quotas::QuotaLimit;
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
    (index(), prop::option::of(some(broker()))).prop_map(|(index, replicas)| Reassignment { index, replicas })
}

fn target() -> impl Strategy<Value = QuotaTarget> {
    prop::collection::btree_map(text(), prop::option::of(text()), 0..3)
}

fn quota_change() -> impl Strategy<Value = QuotaChange> {
    let limit = prop::option::of(any::<f64>().prop_map(QuotaLimit::new));
    (target(), some((text(), limit))).prop_map(|(target, ops)| QuotaChange { target, ops })
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
        (some(quota_change()), any::<bool>()).prop_map(|(changes, validate_only)| {
            Command::AlterClientQuotas(AlterClientQuotas { changes, validate_only })
        }),
        (text(), text(), any::<bool>(), some(topic_ref())).prop_map(
            |(user, client_id, is_strict, topics)| {
                let command = Command::DeleteTopics(DeleteTopics { topics });
                Command::Limited(MutationQuota { user, client_id, is_strict }, Box::new(command))
            }
        ),
        (any::<bool>(), some((text(), some(index())))).prop_map(|(is_unclean, topics)| {
            let kind = if is_unclean { ElectionKind::Unclean } else { ElectionKind::Preferred };
            Command::ElectLeaders(ElectLeaders { kind, topics })
        }),
        (any::<bool>(), some((text(), some(reassignment())))).prop_map(|(may_change_factor, topics)| {
            Command::AlterReassignments(AlterReassignments { may_change_factor, topics })
        }),
        broker().prop_map(|id| Command::UnregisterBroker { id }),
        (broker(), epoch(), some((any::<u128>(), some((topic_id(), index()))))).prop_map(
            |(broker, epoch, directories)| {
                let directories = directories.into_iter();
                let directories = directories.map(|(id, replicas)| (Uuid::from_u128(id), replicas)).collect();
                Command::AssignDirectories(AssignDirectories { broker, epoch, directories })
            }
        ),
        (broker(), any::<u128>(), some((text(), any::<u16>(), any::<i16>()))).prop_map(
            |(id, number, names)| {
                let endpoint = |(text, port, number): &(String, u16, i16)| Endpoint {
                    listener: text.clone(),
                    host: text.clone(),
                    port: *port,
                    security_protocol: *number,
                };
                let feature = |(text, _, number): &(String, u16, i16)| FeatureRange {
                    name: text.clone(),
                    min: 0,
                    max: *number,
                };
                Command::RegisterController(ControllerImage {
                    id,
                    incarnation: Uuid::from_u128(number),
                    endpoints: names.iter().map(endpoint).collect(),
                    features: names.iter().map(feature).collect(),
                })
            }
        ),
        (broker(), epoch(), any::<u128>()).prop_map(|(broker, epoch, directory)| {
            Command::DirectoryFailed { broker, epoch, directory: Uuid::from_u128(directory) }
        }),
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
    let created = (topic_id(), any::<i32>(), any::<i16>())
        .prop_map(|(id, partitions, replication_factor)| CreatedTopic { id, partitions, replication_factor });
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
        some(prop_oneof![Just(Ok(())), Just(Err(ErrorCode::UnknownTopicId))])
            .prop_map(Response::DirectoriesAssigned),
        some(result(Just(()))).prop_map(Response::ReassignmentsAltered),
        some((target(), result(Just(())))).prop_map(Response::QuotasAltered),
        (any::<u32>(), some((text(), result(Just(()))))).prop_map(|(ms, results)| {
            let response = Response::PartitionsCreated(results);
            Response::Limited(Duration::from_millis(u64::from(ms)), Box::new(response))
        }),
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
    let quota = MutationQuota { user: "u".into(), client_id: "c".into(), is_strict: true };
    let limited = |command| Command::Limited(quota.clone(), Box::new(command));
    let twice = limited(limited(Command::DeleteTopics(DeleteTopics::default())));
    let Some(bytes) = encode_command(&twice) else { panic!("it is one that is sent") };
    assert!(decode_command(&bytes).is_err(), "one within another is none");
}
