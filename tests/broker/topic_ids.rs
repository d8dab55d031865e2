//! OffsetCommit and OffsetFetch of version 10, which name topics by id. The values are Apache Kafka's.

use bytes::{BufMut as _, BytesMut};
use kafka_protocol::messages::offset_fetch_response::OffsetFetchResponseGroup;
use kafka_protocol::messages::{ApiKey, OffsetCommitRequest, OffsetFetchRequest};
use uuid::Uuid;

use crate::group_rules::coordinator;
use crate::harness::client::Client;
use crate::harness::raw::{Answer, Raw};
use crate::harness::{Broker, PATIENCE, eventually, shard_counts};

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const GROUP_ID_NOT_FOUND: i16 = 69;
const UNKNOWN_TOPIC_ID: i16 = 100;

const NOBODYS: Uuid = Uuid::from_u128(0x1111_1111_1111_1111_1111_1111_1111_1111);

/// A version-10 message in the making: kafka-protocol has no encoder.
#[derive(Default)]
struct Body(BytesMut);

impl Body {
    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.put_slice(text.as_bytes());
    }

    fn count(&mut self, count: usize) {
        assert!(count < 127, "a length of one byte");
        self.0.put_u8(count as u8 + 1);
    }

    fn null(&mut self) {
        self.0.put_u8(0);
    }

    fn no_tagged_fields(&mut self) {
        self.0.put_u8(0);
    }
}

/// What one partition of a commit is answered: topic, partition, error.
type Committed = (Uuid, i32, i16);

/// Commits (partition, offset) pairs of topics and returns the answers, sorted.
fn commit(raw: &mut Raw, group: &str, generation: i32, topics: &[(Uuid, &[(i32, i64)])]) -> Vec<Committed> {
    let mut answers: Vec<Committed> = Vec::new();
    for (topic, partitions) in commit_by_topic(raw, group, generation, topics) {
        answers.extend(partitions.into_iter().map(|(index, error)| (topic, index, error)));
    }
    answers.sort_unstable();
    answers
}

/// The same, as it is answered: topics with their partitions and errors.
fn commit_by_topic(
    raw: &mut Raw,
    group: &str,
    generation: i32,
    topics: &[(Uuid, &[(i32, i64)])],
) -> Vec<(Uuid, Vec<(i32, i16)>)> {
    let mut body = Body::default();
    body.text(group);
    body.0.put_i32(generation);
    body.text("");
    body.null();
    body.count(topics.len());
    for (id, partitions) in topics {
        body.0.put_slice(id.as_bytes());
        body.count(partitions.len());
        for (index, offset) in *partitions {
            body.0.put_i32(*index);
            body.0.put_i64(*offset);
            body.0.put_i32(-1);
            body.text("note");
            body.no_tagged_fields();
        }
        body.no_tagged_fields();
    }
    body.no_tagged_fields();
    let response = raw.call_with_body::<OffsetCommitRequest>(10, &body.0);
    let topics = response.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter();
        (topic.topic_id, partitions.map(|p| (p.partition_index, p.error_code)).collect())
    });
    topics.collect()
}

/// The partitions of topics that are asked for; `None` for all there are.
type Asked<'a> = Option<&'a [(Uuid, &'a [i32])]>;

/// What one partition of a fetch is answered: topic, partition, offset, metadata, error.
type Fetched = (Uuid, i32, i64, String, i16);

/// The answers of each group, sorted.
fn fetch(raw: &mut Raw, groups: &[(&str, Asked<'_>)]) -> Vec<Vec<Fetched>> {
    let mut body = Body::default();
    body.count(groups.len());
    for (group, topics) in groups {
        body.text(group);
        body.null();
        body.0.put_i32(-1);
        match topics {
            None => body.null(),
            Some(topics) => body.count(topics.len()),
        }
        for (id, partitions) in topics.iter().copied().flatten() {
            body.0.put_slice(id.as_bytes());
            body.count(partitions.len());
            partitions.iter().for_each(|index| body.0.put_i32(*index));
            body.no_tagged_fields();
        }
        body.no_tagged_fields();
    }
    body.0.put_u8(1);
    body.no_tagged_fields();
    let response = raw.call_with_body::<OffsetFetchRequest>(10, &body.0);
    let asked: Vec<&str> = groups.iter().map(|(group, _)| *group).collect();
    let answered: Vec<&str> = response.groups.iter().map(|group| &*group.group_id.0).collect();
    assert_eq!(answered, asked);
    response.groups.iter().map(fetched).collect()
}

fn fetched(group: &OffsetFetchResponseGroup) -> Vec<Fetched> {
    assert_eq!(group.error_code, 0, "group {}", &*group.group_id.0);
    let mut answers: Vec<Fetched> = Vec::new();
    for topic in &group.topics {
        answers.extend(topic.partitions.iter().map(|p| {
            let metadata = p.metadata.as_ref().map(|metadata| metadata.to_string()).unwrap_or_default();
            (topic.topic_id, p.partition_index, p.committed_offset, metadata, p.error_code)
        }));
    }
    answers.sort_unstable();
    answers
}

#[test]
fn offsets_are_committed_and_fetched_by_topic_id() {
    for shards in shard_counts([1, 3]) {
        let mut broker = Broker::with(shards, &[]);
        let client = Client::of(&broker);
        client.create_topic("kept", 3, &[]);
        client.create_topic("other", 1, &[]);
        let mut raw = coordinator(&broker, "g");
        let (kept, other) = (raw.topic_id("kept"), raw.topic_id("other"));
        let asked: &[(Uuid, &[(i32, i64)])] = &[
            (NOBODYS, &[(0, 1), (1, 1)]),
            (kept, &[(0, 5), (9, 1), (2, 7)]),
            (Uuid::nil(), &[(0, 1)]),
            (other, &[(0, 3)]),
        ];
        let mut expected = vec![
            (NOBODYS, 0, UNKNOWN_TOPIC_ID),
            (NOBODYS, 1, UNKNOWN_TOPIC_ID),
            (kept, 0, 0),
            (kept, 2, 0),
            (kept, 9, UNKNOWN_TOPIC_OR_PARTITION),
            (Uuid::nil(), 0, UNKNOWN_TOPIC_ID),
            (other, 0, 0),
        ];
        expected.sort_unstable();
        assert_eq!(commit(&mut raw, "g", -1, asked), expected, "{shards} shards");
        assert_eq!(commit(&mut raw, "g", -1, &[(kept, &[(0, 6)])]), [(kept, 0, 0)]);

        let there = |id, index, offset| (id, index, offset, "note".to_string(), 0);
        let none = |id, index, error| (id, index, -1, String::new(), error);
        let check = |raw: &mut Raw| {
            let some: &[(Uuid, &[i32])] = &[(NOBODYS, &[0, 1]), (kept, &[0, 1, 9]), (Uuid::nil(), &[0])];
            let mut of_some = vec![
                none(NOBODYS, 0, UNKNOWN_TOPIC_ID),
                none(NOBODYS, 1, UNKNOWN_TOPIC_ID),
                there(kept, 0, 6),
                none(kept, 1, 0),
                none(kept, 9, 0),
                none(Uuid::nil(), 0, UNKNOWN_TOPIC_ID),
            ];
            of_some.sort_unstable();
            let mut of_all = vec![there(kept, 0, 6), there(kept, 2, 7), there(other, 0, 3)];
            of_all.sort_unstable();
            let answers = fetch(raw, &[("g", Some(some)), ("g", None), ("nobody", None)]);
            assert_eq!(answers, [of_some, of_all, Vec::new()], "{shards} shards");
        };
        check(&mut raw);
        broker.terminate();
        broker.start_again(4 - shards);
        check(&mut coordinator(&broker, "g"));
    }
}

#[test]
fn a_topic_without_partitions_is_in_no_answer_unless_nobody_has_its_id() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("kept", 1, &[]);
    client.create_topic("other", 1, &[]);
    let mut raw = coordinator(&broker, "g");
    let (kept, other) = (raw.topic_id("kept"), raw.topic_id("other"));
    let mut answers = commit_by_topic(&mut raw, "g", -1, &[(kept, &[]), (NOBODYS, &[]), (other, &[(0, 3)])]);
    answers.sort_unstable();
    let mut expected = vec![(NOBODYS, vec![]), (other, vec![(0, 0)])];
    expected.sort_unstable();
    assert_eq!(answers, expected);
    assert_eq!(commit_by_topic(&mut raw, "g", -1, &[(kept, &[])]), []);
    assert_eq!(commit_by_topic(&mut raw, "nobody", 1, &[(kept, &[])]), [], "the group is not asked");
    assert_eq!(commit_by_topic(&mut raw, "g", -1, &[]), []);
    assert_eq!(
        commit_by_topic(&mut raw, "g", -1, &[(kept, &[(7, 1)])]),
        [(kept, vec![(7, UNKNOWN_TOPIC_OR_PARTITION)])]
    );
}

#[test]
fn the_id_of_a_topic_that_was_deleted_and_made_again_is_unknown() {
    let broker = Broker::start();
    let client = Client::of(&broker);
    client.create_topic("reborn", 1, &[]);
    let mut raw = coordinator(&broker, "g");
    let old = raw.topic_id("reborn");
    assert_eq!(commit(&mut raw, "g", -1, &[(old, &[(0, 5)])]), [(old, 0, 0)]);
    client.delete_topic("reborn").expect("deleted");
    eventually("the topic is made again", || client.try_create_topic("reborn", 1, &[]).ok());
    client.await_partitions("reborn", 1);
    let new = raw.topic_id("reborn");
    assert_ne!(new, old);
    assert_eq!(commit(&mut raw, "g", -1, &[(old, &[(0, 6)])]), [(old, 0, UNKNOWN_TOPIC_ID)]);
    let none = |id, error| (id, 0, -1, String::new(), error);
    let mut expected = vec![none(old, UNKNOWN_TOPIC_ID), none(new, 0)];
    expected.sort_unstable();
    assert_eq!(fetch(&mut raw, &[("g", Some(&[(old, &[0]), (new, &[0])]))]), [expected]);
}

#[test]
fn an_error_of_the_group_is_told_for_each_topic_id() {
    let broker = Broker::start();
    Client::of(&broker).create_topic("topic", 2, &[]);
    let mut raw = coordinator(&broker, "g");
    let id = raw.topic_id("topic");
    let answers = commit(&mut raw, "nobody", 1, &[(id, &[(0, 1), (1, 1)])]);
    assert_eq!(answers, [(id, 0, GROUP_ID_NOT_FOUND), (id, 1, GROUP_ID_NOT_FOUND)]);
}

#[test]
fn a_count_of_topics_that_cannot_be_true_closes_the_connection() {
    let broker = Broker::start();
    for (key, body) in [
        (ApiKey::OffsetCommit, &b"\x02g\xff\xff\xff\xff\x01\0\xff\xff\xff\xff\x0f"[..]),
        (ApiKey::OffsetFetch, &b"\xff\xff\xff\xff\x0f\x02g\0\xff\xff\xff\xff\0\0\0\0"[..]),
    ] {
        let mut raw = Raw::connect(&broker);
        raw.send_as(key as i16, 10, 2, body);
        assert_eq!(raw.answer(PATIENCE), Answer::Closed, "{key:?}");
    }
}
