//! Share groups: who is answered what, who gets which partitions, and what is left after a restart. Codes and messages are
//! Apache Kafka's.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kafka_protocol::messages::share_group_describe_response::DescribedGroup;
use kafka_protocol::messages::{
    GroupId, ListGroupsRequest, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::consumers::{self, Cluster};
use super::harness::{GROUP, Harness, OK, commit_request, join_request, settings, text};
use crate::base::PartitionIndex;
use crate::base::random::Random;
use crate::config::GroupSettings;
use crate::coordinator::{Content, KeyValue, Record};
use crate::coordinator::{NamedPartitions, Request, Response, ShareHeartbeat, ShareRecord};
use crate::wire::ErrorCode;

fn group() -> GroupId {
    GroupId(text(GROUP))
}

pub(super) fn beat(member: &str, epoch: i32) -> ShareGroupHeartbeatRequest {
    ShareGroupHeartbeatRequest::default()
        .with_group_id(group())
        .with_member_id(text(member))
        .with_member_epoch(epoch)
}

pub(super) fn join(member: &str, topics: &[&str]) -> ShareGroupHeartbeatRequest {
    let names = topics.iter().map(|name| TopicName(text(name))).collect();
    beat(member, 0).with_subscribed_topic_names(Some(names))
}

/// A member of these tests: its epoch and what it was told last.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Told {
    pub(super) epoch: i32,
    partitions: BTreeSet<(String, i32)>,
}

pub(super) struct World {
    pub(super) harness: Harness,
    pub(super) cluster: Cluster,
    members: BTreeMap<String, Told>,
}

impl World {
    pub(super) fn new(topics: &[(&str, i32)]) -> Self {
        Self::with(settings(), topics)
    }

    fn with(settings: GroupSettings, topics: &[(&str, i32)]) -> Self {
        let mut harness = Harness::with(settings);
        let cluster = Cluster::new(topics);
        harness.cluster(cluster.image());
        Self { harness, cluster, members: BTreeMap::new() }
    }

    pub(super) fn ask(&mut self, request: ShareGroupHeartbeatRequest) -> ShareHeartbeat {
        match self.harness.call(Request::ShareHeartbeat(request)) {
            Response::ShareHeartbeat(heartbeat) => *heartbeat,
            other => panic!("{other:?}"),
        }
    }

    fn error(&mut self, request: ShareGroupHeartbeatRequest) -> (i16, String) {
        let response = self.ask(request).response;
        (response.error_code, response.error_message.map(|text| text.to_string()).unwrap_or_default())
    }

    /// As the handler does: states are made, then the member asks again.
    fn heartbeat(&mut self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse {
        let first = self.ask(request.clone());
        if first.lacks_states.is_empty() {
            return first.response;
        }
        assert!(first.state_epoch > 0);
        let initialized = Request::ShareInitialized { group: group(), partitions: first.lacks_states };
        assert!(matches!(self.harness.call(initialized), Response::ShareChanged(Ok(_))));
        let second = self.ask(request.with_member_epoch(first.response.member_epoch));
        assert!(second.lacks_states.is_empty());
        second.response
    }

    /// Sends a heartbeat that must be right, and keeps what the member is told.
    fn tell(&mut self, member: &str, request: ShareGroupHeartbeatRequest) -> Told {
        let response = self.heartbeat(request);
        assert_eq!(response.error_code, OK, "{member}: {:?}", response.error_message);
        let names: BTreeMap<uuid::Uuid, String> =
            self.cluster.topics().iter().map(|(name, (id, _))| (id.0, name.clone())).collect();
        let told = self.members.entry(member.to_owned()).or_default();
        told.epoch = response.member_epoch;
        if let Some(assignment) = response.assignment {
            let partitions = assignment.topic_partitions.iter().flat_map(|topic| {
                let name = names.get(&topic.topic_id).cloned().unwrap_or_default();
                topic.partitions.iter().map(move |index| (name.clone(), *index))
            });
            told.partitions = partitions.collect();
        }
        told.clone()
    }

    pub(super) fn join(&mut self, member: &str, topics: &[&str]) -> Told {
        self.tell(member, join(member, topics))
    }

    fn beat(&mut self, member: &str) -> Told {
        let epoch = self.members[member].epoch;
        self.tell(member, beat(member, epoch))
    }

    /// Everybody sends heartbeats until nothing changes; how many partitions each has.
    pub(super) fn settle(&mut self) -> Vec<usize> {
        let names: Vec<String> = self.members.keys().cloned().collect();
        for _ in 0..4 {
            names.iter().for_each(|name| drop(self.beat(name)));
        }
        self.members.values().map(|told| told.partitions.len()).collect()
    }

    pub(super) fn describe(&mut self) -> DescribedGroup {
        match self.harness.call(Request::DescribeShare(group())) {
            Response::DescribeShare(group) => group,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_member_gets_its_partitions_in_its_first_heartbeat_and_others_share_them() {
    let mut world = World::new(&[("t", 2)]);
    let one = world.join("a", &["t"]);
    assert_eq!(one.partitions.len(), 2);
    world.join("b", &["t"]);
    assert_eq!(world.settle(), [1, 1]);
    world.join("c", &["t"]);
    // More members than partitions: one of them is shared.
    assert_eq!(world.settle(), [1, 1, 1]);
    let described = world.describe();
    assert_eq!(
        (described.error_code, &*described.group_state, &*described.assignor_name),
        (OK, "Stable", "simple")
    );
    assert_eq!((described.members.len(), described.group_epoch), (3, described.assignment_epoch));
    assert_eq!(&*described.members[0].assignment.topic_partitions[0].topic_name, "t");
}

#[test]
fn a_quiet_heartbeat_writes_nothing() {
    let mut world = World::new(&[("t", 2)]);
    world.join("a", &["t"]);
    world.settle();
    let writes = |world: &World| world.harness.logs.values().map(Vec::len).sum::<usize>();
    let before = writes(&world);
    for _ in 0..10 {
        let response = world.heartbeat(beat("a", world.members["a"].epoch));
        assert_eq!((response.error_code, response.heartbeat_interval_ms), (OK, 5_000));
        assert_eq!(response.assignment, None);
    }
    assert_eq!(writes(&world), before);
}

#[test]
fn wrong_heartbeats_are_refused_with_kafkas_codes() {
    let mut world = World::new(&[("t", 1)]);
    let epoch = world.join("a", &["t"]).epoch;
    let invalid = ErrorCode::InvalidRequest.code();
    let fenced = ErrorCode::FencedMemberEpoch.code();
    for (request, code, message) in [
        (join("", &["t"]), invalid, "MemberId can't be empty."),
        (join("b", &["t"]).with_group_id(GroupId(StrBytes::new())), invalid, "GroupId can't be empty."),
        (join("b", &["t"]).with_rack_id(Some(text(" "))), invalid, "RackId can't be empty."),
        (beat("b", 0), invalid, "SubscribedTopicNames must be set in first request."),
        (join("b", &[]), invalid, "SubscribedTopicNames must be set in first request."),
        (beat("b", -2), invalid, "MemberEpoch is invalid."),
        (beat("b", 5), ErrorCode::UnknownMemberId.code(), "Member b is not a member of group g."),
        (beat("b", -1), ErrorCode::UnknownMemberId.code(), "Member b is not a member of group g."),
        (beat("a", epoch + 1), fenced, "The share group member has a greater member epoch"),
        (
            beat("a", 1).with_group_id(GroupId(text("none"))),
            ErrorCode::GroupIdNotFound.code(),
            "Share group none not found.",
        ),
    ] {
        let (found, words) = world.error(request.clone());
        assert_eq!(found, code, "{request:?}: {words}");
        assert!(words.starts_with(message), "{words}");
    }
    // The answer with the new epoch may have been lost: the epoch before it is taken, an older one is not.
    world.join("b", &["t"]);
    let next = world.beat("a").epoch;
    assert!(next > epoch);
    assert_eq!(world.error(beat("a", epoch)).0, OK);
    world.beat("a");
    world.members.remove("b");
    world.tell("b", beat("b", -1));
    let newest = world.beat("a").epoch;
    assert!(newest > next);
    let (code, words) = world.error(beat("a", epoch));
    assert_eq!(code, fenced);
    assert!(words.contains("does not match the previous member epoch"), "{words}");
}

#[test]
fn a_full_group_takes_nobody_in() {
    let mut world = World::new(&[("t", 1)]);
    for number in 0..200 {
        assert_eq!(world.heartbeat(join(&format!("m{number}"), &["t"])).error_code, OK);
    }
    let (code, message) = world.error(join("late", &["t"]));
    assert_eq!(code, ErrorCode::GroupMaxSizeReached.code());
    assert_eq!(message, "The share group has reached its maximum capacity of 200 members.");
}

#[test]
fn what_members_subscribe_to_is_bounded() {
    let mut world = World::with(GroupSettings { members_bytes_max: 100_000, ..settings() }, &[("t", 1)]);
    let names: Vec<String> = (0..80).map(|number| format!("{number:0>100}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(world.error(join("a", &names)).0, OK);
    // A group may have a quarter.
    assert_eq!(world.error(join("b", &names)).0, ErrorCode::GroupMaxSizeReached.code());
    assert_eq!(world.error(join("a", &names)).0, OK, "it joins anew with what it had");
    assert_eq!(world.error(join("b", &["t"])).0, OK);
    let in_group = |number: usize| {
        let request = join("a", &names);
        request.with_group_id(GroupId(text(&format!("g{number}"))))
    };
    let taken = (0..100).take_while(|number| world.error(in_group(*number)).0 == OK).count();
    assert!((3..=6).contains(&taken), "{taken} more groups of 16 kB");
}

#[test]
fn who_leaves_or_is_silent_gives_its_partitions_to_the_others() {
    let mut world = World::new(&[("t", 4)]);
    world.join("a", &["t"]);
    world.join("b", &["t"]);
    world.join("c", &["t"]);
    world.settle();
    let left = world.heartbeat(beat("b", -1));
    assert_eq!((left.error_code, left.member_epoch), (OK, -1));
    world.members.remove("b");
    assert_eq!(world.settle(), [2, 2]);
    // Half a session, then the other half of it for one of them.
    world.harness.pass(30_000);
    world.beat("a");
    world.harness.pass(20_000);
    world.members.remove("c");
    assert_eq!(world.settle(), [4]);
    assert_eq!(world.error(beat("c", 1)).0, ErrorCode::UnknownMemberId.code());
    world.harness.pass(60_000);
    assert_eq!(&*world.describe().group_state, "Empty");
}

#[test]
fn topics_that_come_grow_and_go_are_assigned_and_taken_away() {
    let mut world = World::new(&[("t", 1)]);
    assert_eq!(world.join("a", &["t", "later"]).partitions.len(), 1);
    world.cluster.create("later", 2);
    world.harness.cluster(world.cluster.image());
    assert_eq!(world.beat("a").partitions.len(), 3);
    world.cluster.grow("t", 3);
    world.harness.cluster(world.cluster.image());
    assert_eq!(world.beat("a").partitions.len(), 5);
    world.cluster.delete("later");
    world.harness.cluster(world.cluster.image());
    assert_eq!(world.beat("a").partitions.len(), 3);
}

#[test]
fn other_protocols_do_not_get_into_a_share_group_nor_it_into_theirs() {
    let mut world = World::new(&[("t", 1)]);
    world.join("a", &["t"]);
    let token = world.harness.send(Request::Join(join_request("")));
    let joined = world.harness.join_reply(token);
    assert_eq!(joined.error_code, ErrorCode::InconsistentGroupProtocol.code());
    let Response::Commit(commit) = world.harness.call(Request::Commit(commit_request(GROUP, "", -1, "t", 5)))
    else {
        panic!("not a commit")
    };
    assert_eq!(commit.topics[0].partitions[0].error_code, ErrorCode::GroupIdNotFound.code());
    assert_eq!(world.harness.heartbeat("a", 1), ErrorCode::UnknownMemberId.code());

    let mut world = World::new(&[("t", 1)]);
    world.harness.stable_group(1);
    let (code, message) = world.error(join("a", &["t"]));
    assert_eq!((code, &*message), (ErrorCode::GroupIdNotFound.code(), "Group g is not a share group."));
    let described = world.describe();
    assert_eq!(described.error_message.as_deref(), Some("Group g is not a share group."));

    let mut world = World::new(&[("t", 1)]);
    world.join("a", &["t"]);
    let described = world.harness.describe_consumer();
    assert_eq!(described.error_message.as_deref(), Some("Group g is not a consumer group."));
    let refusal = (ErrorCode::GroupIdNotFound, "Group g is not a consumer group.".to_owned());
    world.harness.version = 1;
    for heartbeat in [consumers::join("b", &["t"]), consumers::beat("b", 3), consumers::beat("b", -1)] {
        assert_eq!(world.harness.refused(heartbeat), refusal);
    }
    let (code, message) = world.harness.refused(consumers::join("", &["t"]));
    assert_eq!((code, &*message), (ErrorCode::InvalidRequest, "MemberId can't be empty."));
}

#[test]
fn a_share_group_is_listed_and_deleted_when_it_is_empty() {
    let mut world = World::new(&[("t", 1)]);
    world.join("a", &["t"]);
    let list = |world: &mut World| {
        let request = ListGroupsRequest::default().with_types_filter(vec![text("Share")]);
        let Response::List(list) = world.harness.call(Request::List(request)) else { panic!("not a list") };
        list.groups
            .iter()
            .map(|group| (group.group_state.to_string(), group.group_type.to_string()))
            .collect()
    };
    let stable: Vec<(String, String)> = list(&mut world);
    assert_eq!(stable, [("Stable".to_owned(), "share".to_owned())]);
    let delete = |world: &mut World| world.harness.call(Request::Delete(group()));
    assert_eq!(delete(&mut world), Response::Delete(Some(ErrorCode::NonEmptyGroup)));
    world.heartbeat(beat("a", -1));
    world.members.clear();
    // Nobody takes a share group away for its age.
    world.harness.pass(8 * 24 * 3_600_000);
    assert_eq!(list(&mut world).len(), 1);
    assert_eq!(delete(&mut world), Response::Delete(None));
    assert_eq!(list(&mut world), []);
    assert_eq!(delete(&mut world), Response::Delete(Some(ErrorCode::GroupIdNotFound)));
    world.harness.restart();
    assert_eq!(list(&mut world), []);
    assert_eq!(world.join("a", &["t"]).partitions.len(), 1);
}

#[test]
fn positions_are_set_anew_under_a_new_epoch_while_nobody_reads() {
    let mut world = World::new(&[("t", 1), ("u", 1)]);
    world.join("a", &["t", "u"]);
    let bump = |world: &mut World| world.harness.call(Request::ShareBump(group()));
    assert_eq!(bump(&mut world), Response::ShareChanged(Err(ErrorCode::NonEmptyGroup)));
    world.heartbeat(beat("a", -1));
    let before = world.describe().group_epoch;
    assert_eq!(bump(&mut world), Response::ShareChanged(Ok(before + 1)));
    let topics = |world: &mut World| match world.harness.call(Request::ShareState(group())) {
        Response::ShareState(Ok(state)) => {
            state.partitions.values().map(|named| named.name.to_string()).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(topics(&mut world), ["t", "u"]);
    let forgotten = Request::ShareForgotten { group: group(), topics: vec![world.cluster.id("t")] };
    assert_eq!(world.harness.call(forgotten), Response::ShareChanged(Ok(before + 1)));
    assert_eq!(topics(&mut world), ["u"]);
    world.harness.restart();
    assert_eq!(topics(&mut world), ["u"]);
}

#[test]
fn setting_positions_makes_a_group_unless_another_kind_has_the_id() {
    let mut world = World::new(&[("t", 1)]);
    assert_eq!(world.harness.call(Request::ShareBump(group())), Response::ShareChanged(Ok(1)));
    world.harness.restart();
    assert_eq!(&*world.describe().group_state, "Empty");
    assert_eq!(world.harness.call(Request::ShareBump(group())), Response::ShareChanged(Ok(2)));
    let nobody = Request::ShareBump(GroupId::default());
    let refused = |error| Response::ShareChanged(Err(error));
    assert_eq!(world.harness.call(nobody), refused(ErrorCode::InvalidGroupId));
    let mut world = World::new(&[("t", 1)]);
    world.harness.stable_group(1);
    assert_eq!(world.harness.call(Request::ShareBump(group())), refused(ErrorCode::GroupIdNotFound));
}

#[test]
fn a_failed_write_is_told_and_changes_nothing() {
    let mut world = World::new(&[("t", 1)]);
    world.harness.holds_appends = true;
    let token = world.harness.send(Request::ShareHeartbeat(join("a", &["t"])));
    world.harness.fail_one(ErrorCode::NotEnoughReplicas);
    let Some(Response::ShareHeartbeat(failed)) = world.harness.reply(token) else { panic!("not answered") };
    assert_eq!(failed.response.error_code, ErrorCode::CoordinatorNotAvailable.code());
    world.harness.release();
    assert_eq!(world.describe().error_code, ErrorCode::GroupIdNotFound.code());
    assert_eq!(world.join("a", &["t"]).partitions.len(), 1);
}

#[test]
fn topics_are_looked_at_again_when_what_came_of_a_look_could_not_be_written() {
    let mut world = World::new(&[("t", 1), ("u", 1)]);
    let epoch = world.join("a", &["t", "u"]).epoch;
    world.cluster.delete("u");
    world.harness.cluster(world.cluster.image());
    world.harness.holds_appends = true;
    let failing = world.harness.send(Request::ShareHeartbeat(beat("a", epoch)));
    world.harness.fail_one(ErrorCode::NotEnoughReplicas);
    let Some(Response::ShareHeartbeat(failed)) = world.harness.reply(failing) else { panic!("not answered") };
    assert_eq!(failed.response.error_code, ErrorCode::CoordinatorNotAvailable.code());
    world.harness.release();
    let told = world.beat("a").partitions;
    assert_eq!(told.len(), 1, "it is quiet until the topics change again");
}

#[test]
fn what_a_share_group_writes_is_one_batch_however_long_it_is() {
    // The member's target and what it is given have 400 kB each.
    let mut world = World::new(&[("t", 100_000)]);
    let first = world.ask(join("a", &["t"]));
    let initialized = Request::ShareInitialized { group: group(), partitions: first.lacks_states };
    assert!(matches!(world.harness.call(initialized), Response::ShareChanged(Ok(_))));
    world.harness.holds_appends = true;
    let again = join("a", &["t"]).with_member_epoch(first.response.member_epoch);
    world.harness.send(Request::ShareHeartbeat(again));
    let held: Vec<usize> = world
        .harness
        .held
        .iter()
        .map(|(_, content, _)| match content {
            Content::Records(records) => {
                records.iter().filter_map(|it| it.value.as_ref()).map(Bytes::len).sum()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(held.len() == 1 && held[0] > 600 << 10, "{held:?}");
}

/// Hex of keys and values as Kafka 4.4's generated classes write them.
#[test]
fn records_are_kafkas_byte_for_byte() {
    let id = uuid::Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    let topic = crate::base::TopicId(id);
    let named =
        NamedPartitions { name: text("t"), partitions: [PartitionIndex(0), PartitionIndex(2)].into() };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut world = World::new(&[]);
    world.cluster.create("t", 1);
    world.harness.cluster(world.cluster.image());
    world.join("m", &["t"]);
    let records: Vec<KeyValue> = world
        .harness
        .logs
        .values()
        .flatten()
        .flat_map(|content| match content {
            Content::Records(records) => records.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    let id_hex = "00000000000000000000000000000001";
    let shown: BTreeMap<String, String> = records
        .iter()
        .map(|record| (hex(&record.key), record.value.as_deref().map(hex).unwrap_or_default()))
        .collect();
    assert_eq!(shown["000a00016700016d"], "00000007636c69656e740b2f3132372e302e302e3102027400");
    assert_eq!(&shown["000b000167"][..12], "000000000002");
    // The epoch, and the time under tag 0.
    assert_eq!(&shown["000c000167"][..18], "000000000002010008");
    assert_eq!(shown["000d00016700016d"], format!("000002{id_hex}02000000000000"));
    assert_eq!(shown["000e00016700016d"], format!("000000000002000000010002{id_hex}02000000000000"));
    assert_eq!(shown["000f000167"], format!("00000102{id_hex}02740200000000000100"));
    for record in &records {
        let read = Record::decode(&record.key, record.value.as_deref()).expect("it reads its own");
        assert_eq!(read.encode(), *record);
    }
    let value = Some(Box::default());
    let states = Record::Share(ShareRecord::States { group: text("g"), value });
    assert_eq!(hex(&states.encode().value.expect("a value")), "000001010100");
    assert_eq!((named.partitions.len(), topic.0), (2, id));
}

#[test]
fn after_a_restart_the_group_is_as_it_was_written() {
    for seed in 0..60 {
        let mut random = Random::seeded(seed);
        let mut world = World::new(&[("t", 3), ("u", 2)]);
        for _ in 0..60 {
            let member = ["a", "b", "c", "d"][random.below(4) as usize];
            let is_known = world.members.contains_key(member);
            match random.below(10) {
                0..=2 => {
                    let topics: &[&str] = [&["t"][..], &["u"], &["t", "u"]][random.below(3) as usize];
                    world.join(member, topics);
                }
                3 if is_known => {
                    assert_eq!(world.heartbeat(beat(member, -1)).error_code, OK);
                    world.members.remove(member);
                }
                4 => {
                    world.harness.restart();
                    let before = world.describe();
                    world.harness.restart();
                    assert_eq!(world.describe(), before, "seed {seed}");
                }
                _ if is_known => drop(world.beat(member)),
                _ => {}
            }
            world.harness.pass(1_000);
            // Nobody of them is silent for long.
            let names: Vec<String> = world.members.keys().cloned().collect();
            names.iter().for_each(|name| drop(world.beat(name)));
        }
        if world.members.is_empty() {
            continue;
        }
        world.settle();
        let live = world.describe();
        assert_eq!(live.group_epoch, live.assignment_epoch, "seed {seed}");
        let everything: BTreeSet<(String, i32)> =
            world.members.values().flat_map(|told| told.partitions.clone()).collect();
        let wanted: usize = live
            .members
            .iter()
            .flat_map(|member| member.subscribed_topic_names.iter().map(|name| name.0.to_string()))
            .collect::<BTreeSet<_>>()
            .iter()
            .map(|name| world.cluster.topics()[name].1 as usize)
            .sum();
        assert_eq!(everything.len(), wanted, "seed {seed}: a partition has nobody");
        world.harness.restart();
        assert_eq!(world.describe(), live, "seed {seed}");
    }
}
