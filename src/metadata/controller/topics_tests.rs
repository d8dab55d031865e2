use super::super::super::command::Command;
use super::super::testing::Cluster;
use super::*;

fn topic(name: &str) -> NewTopic {
    NewTopic {
        name: name.into(),
        partitions: -1,
        replication_factor: -1,
        assignment: Vec::new(),
        configs: Vec::new(),
    }
}

fn assigned(name: &str, assignment: &[(i32, &[i32])]) -> NewTopic {
    let replicas = |ids: &[i32]| ids.iter().copied().map(BrokerId).collect();
    let assignment = assignment.iter().map(|(index, ids)| (PartitionIndex(*index), replicas(ids))).collect();
    NewTopic { assignment, ..topic(name) }
}

fn create(cluster: &mut Cluster, topic: NewTopic) -> Result<CreatedTopic, ErrorCode> {
    let request = CreateTopics { topics: vec![topic], validate_only: false };
    let response = cluster.run(Command::CreateTopics(request)).map_err(|refusal| refusal.code)?;
    response.topics_created().remove(0).1.map_err(|refusal| refusal.code)
}

fn grow(cluster: &mut Cluster, topic: MorePartitions) -> Result<(), ErrorCode> {
    let request = CreatePartitions { topics: vec![topic], validate_only: false };
    let response = cluster.run(Command::CreatePartitions(request)).map_err(|refusal| refusal.code)?;
    response.partitions_created().remove(0).1.map_err(|refusal| refusal.code)
}

#[test]
fn a_topic_has_the_defaults_it_did_not_choose() {
    let mut cluster = Cluster::of(1);
    let created = create(&mut cluster, topic("a")).unwrap();
    assert_eq!((created.partitions, created.replication_factor), (3, 1));
    let image = cluster.state.image();
    assert_eq!(image.topic("a").unwrap().id, created.id);
    let partition = image.partition("a", PartitionIndex(2)).unwrap();
    assert_eq!(partition.leader, Some(BrokerId(1)));
    assert_eq!(partition.leader_epoch, LeaderEpoch(0));
    let wide = NewTopic { partitions: 7, replication_factor: 1, ..topic("b") };
    assert_eq!(create(&mut cluster, wide).unwrap().partitions, 7);
}

#[test]
fn wrong_numbers_and_names_are_refused_with_kafkas_codes() {
    let mut cluster = Cluster::of(2);
    create(&mut cluster, topic("taken.name")).unwrap();
    let mut code = |topic| create(&mut cluster, topic).unwrap_err();
    assert_eq!(code(topic("")), ErrorCode::InvalidTopicException);
    assert_eq!(code(topic("a/b")), ErrorCode::InvalidTopicException);
    assert_eq!(code(topic("taken_name")), ErrorCode::InvalidTopicException);
    assert_eq!(code(topic("taken.name")), ErrorCode::TopicAlreadyExists);
    assert_eq!(code(topic("__cluster_metadata")), ErrorCode::InvalidRequest);
    for partitions in [0, -2, i32::MIN] {
        assert_eq!(code(NewTopic { partitions, ..topic("t") }), ErrorCode::InvalidPartitions);
    }
    for replication_factor in [0, -2, 3] {
        assert_eq!(code(NewTopic { replication_factor, ..topic("t") }), ErrorCode::InvalidReplicationFactor);
    }
    assert_eq!(code(NewTopic { partitions: 10_001, ..topic("t") }), ErrorCode::PolicyViolation);
    assert_eq!(code(NewTopic { partitions: i32::MAX, ..topic("t") }), ErrorCode::PolicyViolation);
    let config = |value: Option<&str>| NewTopic {
        configs: vec![("retention.ms".into(), value.map(str::to_owned))],
        ..topic("t")
    };
    assert_eq!(code(config(Some("x"))), ErrorCode::InvalidConfig);
    assert_eq!(code(config(None)), ErrorCode::InvalidConfig);
}

#[test]
fn manual_assignments_are_checked_and_kept() {
    let mut cluster = Cluster::of(3);
    let mut code = |topic| create(&mut cluster, topic).unwrap_err();
    let bad = ErrorCode::InvalidReplicaAssignment;
    assert_eq!(code(assigned("t", &[(0, &[])])), bad);
    assert_eq!(code(assigned("t", &[(0, &[1, 1])])), bad);
    assert_eq!(code(assigned("t", &[(0, &[4])])), bad);
    assert_eq!(code(assigned("t", &[(0, &[1, 2]), (1, &[2])])), bad);
    assert_eq!(code(assigned("t", &[(0, &[1]), (0, &[2])])), bad);
    assert_eq!(code(assigned("t", &[(1, &[1])])), bad);
    assert_eq!(code(assigned("t", &[(0, &[1]), (2, &[1])])), bad);
    let numbers = NewTopic { partitions: 1, ..assigned("t", &[(0, &[1])]) };
    assert_eq!(code(numbers), ErrorCode::InvalidRequest);
    let factor = NewTopic { replication_factor: 1, ..assigned("t", &[(0, &[1])]) };
    assert_eq!(code(factor), ErrorCode::InvalidRequest);
    let created = create(&mut cluster, assigned("t", &[(1, &[3, 1]), (0, &[2, 3])])).unwrap();
    assert_eq!((created.partitions, created.replication_factor), (2, 2));
    let replicas = &cluster.state.image().partition("t", PartitionIndex(1)).unwrap().replicas;
    assert_eq!(**replicas, [BrokerId(3), BrokerId(1)]);
}

#[test]
fn one_refused_topic_does_not_stop_the_others() {
    let mut cluster = Cluster::of(1);
    let names = ["good", "twice", "bad name", "twice", "a.b", "a_b"];
    let topics: Vec<NewTopic> = names.map(topic).into();
    let request =
        |validate_only| Command::CreateTopics(CreateTopics { topics: topics.clone(), validate_only });
    let codes = |response: Response| -> Vec<(String, Option<ErrorCode>)> {
        let results = response.topics_created().into_iter();
        results.map(|(name, result)| (name, result.err().map(|refusal| refusal.code))).collect()
    };
    let expected = [
        ("good", None),
        ("twice", Some(ErrorCode::InvalidRequest)),
        ("bad name", Some(ErrorCode::InvalidTopicException)),
        ("a.b", None),
        ("a_b", Some(ErrorCode::InvalidTopicException)),
    ]
    .map(|(name, code)| (name.to_owned(), code));
    assert_eq!(codes(cluster.run(request(true)).unwrap()), expected);
    assert_eq!(cluster.state.image().topic_count(), 0);
    assert_eq!(codes(cluster.run(request(false)).unwrap()), expected);
    assert_eq!(cluster.state.image().topic_count(), 2);
}

#[test]
fn too_many_partitions_refuse_the_whole_request() {
    let mut cluster = Cluster::of(1);
    let topics = vec![topic("small"), NewTopic { partitions: 9_998, ..topic("large") }];
    let request = CreateTopics { topics, validate_only: false };
    let refusal = cluster.run(Command::CreateTopics(request)).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::PolicyViolation);
    assert_eq!(
        create(&mut cluster, NewTopic { partitions: 9_997, ..topic("large") }).unwrap().partitions,
        9_997
    );
}

#[test]
fn configs_of_a_new_topic_are_set_on_it() {
    let mut cluster = Cluster::of(1);
    let configs = vec![("retention.ms".into(), Some("77".into()))];
    create(&mut cluster, NewTopic { configs, ..topic("t") }).unwrap();
    let overrides = cluster.state.image().overrides(&ConfigResource::Topic("t".into()));
    assert_eq!(overrides.get("retention.ms").map(String::as_str), Some("77"));
}

#[test]
fn deletion_by_name_and_by_id() {
    let mut cluster = Cluster::of(1);
    let ids: Vec<TopicId> =
        ["a", "b", "c"].iter().map(|name| create(&mut cluster, topic(name)).unwrap().id).collect();
    let name = |name: &str| TopicRef::Name(name.into());
    let topics = vec![
        name("a"),
        TopicRef::Id(ids[1]),
        name("nothing"),
        TopicRef::Id(TopicId(uuid::Uuid::from_u128(5))),
        name("c"),
        TopicRef::Id(ids[2]),
    ];
    let response = cluster.run(Command::DeleteTopics(DeleteTopics { topics })).unwrap();
    let results: Vec<Result<TopicId, ErrorCode>> = response
        .topics_deleted()
        .into_iter()
        .map(|(_, result)| result.map(|topic| topic.id).map_err(|refusal| refusal.code))
        .collect();
    let twice = Err(ErrorCode::InvalidRequest);
    assert_eq!(
        results,
        [
            Ok(ids[0]),
            Ok(ids[1]),
            Err(ErrorCode::UnknownTopicOrPartition),
            Err(ErrorCode::UnknownTopicId),
            twice,
            twice
        ]
    );
    let left: Vec<&str> = cluster.state.image().topics().map(|topic| &*topic.name).collect();
    assert_eq!(left, ["c"]);
    assert_ne!(create(&mut cluster, topic("a")).unwrap().id, ids[0]);
}

#[test]
fn more_partitions_only_ever_more() {
    let mut cluster = Cluster::of(2);
    create(&mut cluster, assigned("t", &[(0, &[2]), (1, &[1])])).unwrap();
    let more = |count, assignment: Option<&[&[i32]]>| MorePartitions {
        name: "t".into(),
        count,
        assignment: assignment.map(|partitions| {
            partitions.iter().map(|ids| ids.iter().copied().map(BrokerId).collect()).collect()
        }),
    };
    for count in [2, 1, 0, -1] {
        assert_eq!(grow(&mut cluster, more(count, None)), Err(ErrorCode::InvalidPartitions), "{count}");
    }
    assert_eq!(grow(&mut cluster, more(20_000, None)), Err(ErrorCode::PolicyViolation));
    let unknown = MorePartitions { name: "u".into(), ..more(5, None) };
    assert_eq!(grow(&mut cluster, unknown), Err(ErrorCode::UnknownTopicOrPartition));
    let bad = Err(ErrorCode::InvalidReplicaAssignment);
    assert_eq!(grow(&mut cluster, more(4, Some(&[&[1]]))), bad);
    assert_eq!(grow(&mut cluster, more(3, Some(&[&[1, 2]]))), bad);
    assert_eq!(grow(&mut cluster, more(3, Some(&[&[7]]))), bad);
    grow(&mut cluster, more(3, Some(&[&[1]]))).unwrap();
    grow(&mut cluster, more(5, None)).unwrap();
    let found = cluster.state.image().topic("t").unwrap();
    let leaders: Vec<i32> = found.partitions.iter().map(|p| p.leader.unwrap().0).collect();
    // The round goes on from the first partition's broker.
    assert_eq!(leaders, [2, 1, 1, 1, 2]);
}

#[test]
fn fenced_brokers_get_replicas_only_when_the_others_do_not_suffice() {
    let mut cluster = Cluster::of(3);
    let epoch = cluster.register(3);
    cluster.run(Command::FenceBroker { id: BrokerId(3), epoch }).unwrap();
    create(&mut cluster, NewTopic { partitions: 8, replication_factor: 2, ..topic("two") }).unwrap();
    create(&mut cluster, NewTopic { partitions: 8, replication_factor: 3, ..topic("three") }).unwrap();
    let image = cluster.state.image();
    for partition in &image.topic("two").unwrap().partitions {
        assert!(!partition.replicas.contains(&BrokerId(3)));
    }
    for partition in &image.topic("three").unwrap().partitions {
        assert_eq!((partition.replicas.len(), partition.isr.len()), (3, 2));
        assert!(partition.leader.is_some() && partition.leader != Some(BrokerId(3)));
    }
}

#[test]
fn without_an_unfenced_broker_no_topic_is_made() {
    let mut cluster = Cluster::of(1);
    let epoch = cluster.register(1);
    cluster.run(Command::FenceBroker { id: BrokerId(1), epoch }).unwrap();
    assert_eq!(create(&mut cluster, topic("t")), Err(ErrorCode::InvalidReplicationFactor));
    assert_eq!(create(&mut cluster, assigned("t", &[(0, &[1])])), Err(ErrorCode::InvalidReplicaAssignment));
}
