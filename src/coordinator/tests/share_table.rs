//! A share group's three states and what each event makes of them: every state × event → what is answered, the next
//! state, the kinds of records written, where the members are then. As Apache Kafka's `GroupMetadataManager` has it.

use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::{
    GroupId, HeartbeatRequest, OffsetDeleteRequest, ShareGroupHeartbeatRequest, TopicName,
};

use super::consumer_table::{kinds_written, records};
use super::consumers;
use super::harness::{GROUP, commit_request, join_request, text};
use super::shares::{World, beat, join};
use crate::base::PartitionIndex;
use crate::coordinator::{NamedPartitions, ReplyToken, Request, Response};
use crate::wire::ErrorCode;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum In {
    /// All have left.
    Empty,
    Stable,
    /// It was empty and is deleted.
    Dead,
    /// A group of the name and of another protocol; where an event leads to only.
    Consumer,
    Classic,
}
use In::{Classic, Consumer, Dead, Empty, Stable};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    NewMemberJoins,
    /// And that cannot be written.
    NewMemberJoinsInVain,
    AJoinsAgain,
    ASubscribesToMore,
    ABeats,
    AIsAhead,
    AIsBehind,
    AIsFarBehind,
    StrangerBeats,
    ALeaves,
    BothLeave,
    /// For longer than its session, while b is heard of.
    AIsSilent,
    BothAreSilent,
    TopicGrows,
    OtherTopicComes,
    TopicGoes,
    StatesAreMade,
    StatesAreForgotten,
    /// By an administrator, under a new epoch.
    PositionsAreSet,
    GroupIsDeleted,
    /// Longer than offsets are kept.
    WeekPasses,
    ConsumerMemberJoins,
    ClassicMemberJoins,
    ClassicMemberBeats,
    StrangerCommits,
    OffsetsAreDeleted,
}
use Event::*;

const EVENTS: [Event; 26] = [
    NewMemberJoins,
    NewMemberJoinsInVain,
    AJoinsAgain,
    ASubscribesToMore,
    ABeats,
    AIsAhead,
    AIsBehind,
    AIsFarBehind,
    StrangerBeats,
    ALeaves,
    BothLeave,
    AIsSilent,
    BothAreSilent,
    TopicGrows,
    OtherTopicComes,
    TopicGoes,
    StatesAreMade,
    StatesAreForgotten,
    PositionsAreSet,
    GroupIsDeleted,
    WeekPasses,
    ConsumerMemberJoins,
    ClassicMemberJoins,
    ClassicMemberBeats,
    StrangerCommits,
    OffsetsAreDeleted,
];

const OK: &str = "ok";
const WAITS: &str = "waits";
/// Nobody asks.
const NONE: &str = "-";
const UNKNOWN: &str = "UnknownMemberId";
const NOT_FOUND: &str = "GroupIdNotFound";
const FENCED: &str = "FencedMemberEpoch";
const NON_EMPTY: &str = "NonEmptyGroup";
const NOT_COORDINATOR: &str = "NotCoordinator";
const OTHER_PROTOCOL: &str = "InconsistentGroupProtocol";

/// What is answered: the member's epoch and how many partitions it is told, the group's epoch, or an error; the next
/// state; the kinds of records, small letters for those that take away: the group's epoch, Member, Target and its Epoch,
/// Position, States of partitions, Offset, Classic group; each member's epoch.
type Row = (Event, &'static str, In, &'static str, &'static str);

const TABLE: &[(In, &[Row])] = &[
    (
        Empty,
        &[
            (NewMemberJoins, "6:2", Stable, "MGTEP", "c6"),
            (NewMemberJoinsInVain, NOT_COORDINATOR, Empty, "", ""),
            (AJoinsAgain, "6:2", Stable, "MGTEP", "a6"),
            (ASubscribesToMore, UNKNOWN, Empty, "", ""),
            (ABeats, UNKNOWN, Empty, "", ""),
            (AIsAhead, UNKNOWN, Empty, "", ""),
            (AIsBehind, UNKNOWN, Empty, "", ""),
            (AIsFarBehind, UNKNOWN, Empty, "", ""),
            (StrangerBeats, UNKNOWN, Empty, "", ""),
            (ALeaves, UNKNOWN, Empty, "", ""),
            (BothLeave, UNKNOWN, Empty, "", ""),
            (AIsSilent, NONE, Empty, "", ""),
            (BothAreSilent, NONE, Empty, "", ""),
            (TopicGrows, UNKNOWN, Empty, "", ""),
            (OtherTopicComes, UNKNOWN, Empty, "", ""),
            (TopicGoes, UNKNOWN, Empty, "", ""),
            (StatesAreMade, "5", Empty, "S", ""),
            (StatesAreForgotten, "5", Empty, "S", ""),
            (PositionsAreSet, "6", Empty, "G", ""),
            (GroupIsDeleted, OK, Dead, "seg", ""),
            (WeekPasses, NONE, Empty, "", ""),
            (ConsumerMemberJoins, NOT_FOUND, Empty, "", ""),
            (ClassicMemberJoins, OTHER_PROTOCOL, Empty, "", ""),
            (ClassicMemberBeats, UNKNOWN, Empty, "", ""),
            (StrangerCommits, NOT_FOUND, Empty, "", ""),
            (OffsetsAreDeleted, NOT_FOUND, Empty, "", ""),
        ],
    ),
    (
        Stable,
        &[
            (NewMemberJoins, "4:1", Stable, "MGTEP", "a3 b3 c4"),
            (NewMemberJoinsInVain, NOT_COORDINATOR, Stable, "", "a3 b3"),
            (AJoinsAgain, "3:1", Stable, "", "a3 b3"),
            (ASubscribesToMore, "4:1", Stable, "MGEP", "a4 b3"),
            (ABeats, "3:-", Stable, "", "a3 b3"),
            (AIsAhead, FENCED, Stable, "", "a3 b3"),
            // It may not have heard of its last step.
            (AIsBehind, "3:-", Stable, "", "a3 b3"),
            (AIsFarBehind, FENCED, Stable, "", "a3 b3"),
            (StrangerBeats, UNKNOWN, Stable, "", "a3 b3"),
            (ALeaves, "-1:-", Stable, "ptmG", "b3"),
            (BothLeave, "-1:-", Empty, "ptmGptmG", ""),
            (AIsSilent, NONE, Stable, "ptmGTEP", "b5"),
            (BothAreSilent, NONE, Empty, "ptmGptmG", ""),
            (TopicGrows, "4:-", Stable, "GEP", "a4 b3"),
            (OtherTopicComes, "3:-", Stable, "", "a3 b3"),
            (TopicGoes, "4:0", Stable, "GTEP", "a4 b3"),
            (StatesAreMade, "3", Stable, "S", "a3 b3"),
            (StatesAreForgotten, "3", Stable, "S", "a3 b3"),
            (PositionsAreSet, NON_EMPTY, Stable, "", "a3 b3"),
            (GroupIsDeleted, NON_EMPTY, Stable, "", "a3 b3"),
            (WeekPasses, NONE, Empty, "ptmGptmG", ""),
            (ConsumerMemberJoins, NOT_FOUND, Stable, "", "a3 b3"),
            (ClassicMemberJoins, OTHER_PROTOCOL, Stable, "", "a3 b3"),
            (ClassicMemberBeats, UNKNOWN, Stable, "", "a3 b3"),
            (StrangerCommits, NOT_FOUND, Stable, "", "a3 b3"),
            (OffsetsAreDeleted, NOT_FOUND, Stable, "", "a3 b3"),
        ],
    ),
    (
        Dead,
        &[
            // What it is to have has no state yet.
            (NewMemberJoins, "1:0", Stable, "MGTEP", "c1"),
            (NewMemberJoinsInVain, NOT_COORDINATOR, Dead, "", ""),
            (AJoinsAgain, "1:0", Stable, "MGTEP", "a1"),
            (ASubscribesToMore, NOT_FOUND, Dead, "", ""),
            (ABeats, NOT_FOUND, Dead, "", ""),
            (AIsAhead, NOT_FOUND, Dead, "", ""),
            (AIsBehind, NOT_FOUND, Dead, "", ""),
            (AIsFarBehind, NOT_FOUND, Dead, "", ""),
            (StrangerBeats, NOT_FOUND, Dead, "", ""),
            (ALeaves, NOT_FOUND, Dead, "", ""),
            (BothLeave, NOT_FOUND, Dead, "", ""),
            (AIsSilent, NONE, Dead, "", ""),
            (BothAreSilent, NONE, Dead, "", ""),
            (TopicGrows, NOT_FOUND, Dead, "", ""),
            (OtherTopicComes, NOT_FOUND, Dead, "", ""),
            (TopicGoes, NOT_FOUND, Dead, "", ""),
            (StatesAreMade, NOT_FOUND, Dead, "", ""),
            (StatesAreForgotten, NOT_FOUND, Dead, "", ""),
            (PositionsAreSet, "1", Empty, "G", ""),
            (GroupIsDeleted, NOT_FOUND, Dead, "", ""),
            (WeekPasses, NONE, Dead, "", ""),
            (ConsumerMemberJoins, OK, Consumer, "MGTEP", ""),
            (ClassicMemberJoins, WAITS, Classic, "C", ""),
            (ClassicMemberBeats, UNKNOWN, Dead, "", ""),
            (StrangerCommits, OK, Classic, "O", ""),
            (OffsetsAreDeleted, NOT_FOUND, Dead, "", ""),
        ],
    ),
];

const HEARTBEAT_MS: u64 = 5_000;

/// A group of a and b, who share the two partitions of "t".
struct Scene {
    world: World,
    /// Where the members are, or were when there were some.
    epoch: i32,
}

impl Scene {
    fn new(state: In) -> Self {
        let mut world = World::new(&[("t", 2), ("u", 1)]);
        world.join("a", &["t"]);
        let epoch = world.join("b", &["t"]).epoch;
        assert_eq!(world.settle(), [1, 1]);
        if matches!(state, Empty | Dead) {
            world.ask(beat("a", -1));
            world.ask(beat("b", -1));
        }
        if state == Dead {
            assert_eq!(world.harness.call(Request::Delete(group())), Response::Delete(None));
        }
        let mut scene = Self { world, epoch };
        assert_eq!(scene.state(), state);
        scene
    }

    fn state(&mut self) -> In {
        let coordinator = &self.world.harness.coordinator;
        let partition = &coordinator.partitions[&coordinator.partition_of(GROUP)];
        let id = text(GROUP);
        match partition.shares.get(&id) {
            None if partition.consumers.contains_key(&id) => Consumer,
            None if partition.groups.contains_key(&id) => Classic,
            None => Dead,
            Some(group) if group.state_name() == "Empty" => Empty,
            Some(group) => {
                assert_eq!(group.state_name(), "Stable");
                Stable
            }
        }
    }

    fn members(&mut self) -> String {
        let members = self.world.describe().members;
        let each = members.iter().map(|member| format!("{}{}", &*member.member_id, member.member_epoch));
        each.collect::<Vec<_>>().join(" ")
    }

    /// What the request that the event is is answered.
    fn run(&mut self, event: Event) -> String {
        let epoch = self.epoch;
        let heartbeat = match event {
            NewMemberJoins => join("c", &["t"]),
            AJoinsAgain => join("a", &["t"]),
            ASubscribesToMore => join("a", &["t", "u"]).with_member_epoch(epoch),
            ABeats => beat("a", epoch),
            AIsAhead => beat("a", epoch + 1),
            AIsBehind => beat("a", epoch - 1),
            AIsFarBehind => beat("a", epoch - 2),
            StrangerBeats => beat("x", epoch),
            ALeaves => beat("a", -1),
            BothLeave => {
                self.world.ask(beat("a", -1));
                beat("b", -1)
            }
            TopicGrows | OtherTopicComes | TopicGoes => {
                self.change_topics(event);
                beat("a", epoch)
            }
            other => return self.run_other(other),
        };
        self.heartbeat(heartbeat)
    }

    fn heartbeat(&mut self, heartbeat: ShareGroupHeartbeatRequest) -> String {
        let response = self.world.ask(heartbeat).response;
        if let Some(error) = ErrorCode::try_from_code(response.error_code) {
            assert!(response.error_message.is_some(), "an error has words");
            return format!("{error:?}");
        }
        let topics = response.assignment.map(|assignment| assignment.topic_partitions);
        let told = topics.map(|topics| topics.iter().map(|topic| topic.partitions.len()).sum::<usize>());
        format!("{}:{}", response.member_epoch, told.map_or(NONE.to_owned(), |count| count.to_string()))
    }

    fn run_other(&mut self, event: Event) -> String {
        match event {
            NewMemberJoinsInVain => {
                let h = &mut self.world.harness;
                h.holds_appends = true;
                let token = h.send(Request::ShareHeartbeat(join("c", &["t"])));
                h.fail_one(ErrorCode::NotLeaderOrFollower);
                h.release();
                self.answer(token)
            }
            AIsSilent => self.pass(46_000, &["b"]),
            BothAreSilent => self.pass(46_000, &[]),
            WeekPasses => self.pass(8 * 24 * 3_600_000, &[]),
            StatesAreMade => {
                let named = NamedPartitions { name: text("u"), partitions: [PartitionIndex(0)].into() };
                let partitions = [(self.world.cluster.id("u"), named)].into();
                self.call(Request::ShareInitialized { group: group(), partitions })
            }
            StatesAreForgotten => {
                let topics = vec![self.world.cluster.id("t")];
                self.call(Request::ShareForgotten { group: group(), topics })
            }
            PositionsAreSet => self.call(Request::ShareBump(group())),
            GroupIsDeleted => self.call(Request::Delete(group())),
            ConsumerMemberJoins => {
                self.world.harness.version = 1;
                self.call(Request::ConsumerHeartbeat(consumers::join("c", &["t"])))
            }
            ClassicMemberJoins => {
                // This version needs no id first.
                self.world.harness.version = 3;
                self.call(Request::Join(join_request("")))
            }
            ClassicMemberBeats => {
                let request = HeartbeatRequest::default()
                    .with_group_id(group())
                    .with_generation_id(self.epoch)
                    .with_member_id(text("a"));
                self.call(Request::Heartbeat(request))
            }
            StrangerCommits => self.call(Request::Commit(commit_request(GROUP, "", -1, "t", 1))),
            OffsetsAreDeleted => {
                let topic = OffsetDeleteRequestTopic::default()
                    .with_name(TopicName(text("t")))
                    .with_partitions(vec![OffsetDeleteRequestPartition::default()]);
                let request = OffsetDeleteRequest::default().with_group_id(group()).with_topics(vec![topic]);
                self.call(Request::DeleteOffsets(request))
            }
            other => panic!("{other:?} is a heartbeat"),
        }
    }

    fn change_topics(&mut self, event: Event) {
        let World { harness, cluster, .. } = &mut self.world;
        match event {
            TopicGrows => cluster.grow("t", 3),
            OtherTopicComes => cluster.create("x", 1),
            _ => cluster.delete("t"),
        }
        harness.cluster(cluster.image());
    }

    fn call(&mut self, request: Request) -> String {
        let token = self.world.harness.send(request);
        self.answer(token)
    }

    fn answer(&mut self, token: ReplyToken) -> String {
        let code = match self.world.harness.reply(token) {
            None => return WAITS.to_owned(),
            Some(Response::ShareChanged(Ok(epoch))) => return epoch.to_string(),
            Some(Response::ShareChanged(Err(error))) => error.code(),
            Some(Response::ShareHeartbeat(heartbeat)) => heartbeat.response.error_code,
            Some(Response::ConsumerHeartbeat(response)) => {
                assert_eq!(response.error_code == 0, response.error_message.is_none(), "an error has words");
                response.error_code
            }
            Some(Response::Join(response)) => response.error_code,
            Some(Response::Heartbeat(response)) => response.error_code,
            Some(Response::Commit(response)) => response.topics[0].partitions[0].error_code,
            Some(Response::DeleteOffsets(response)) => response.error_code,
            Some(Response::Delete(error)) => error.map_or(0, |error| error.code()),
            other => panic!("{other:?}"),
        };
        ErrorCode::try_from_code(code).map_or(OK.to_owned(), |error| format!("{error:?}"))
    }

    /// Lets time pass in which these are heard of.
    fn pass(&mut self, ms: u64, alive: &[&str]) -> String {
        let beats = if alive.is_empty() { 0 } else { ms / HEARTBEAT_MS };
        for _ in 0..beats {
            self.world.harness.pass(HEARTBEAT_MS);
            let members = self.world.describe().members;
            for member in members.iter().filter(|member| alive.contains(&&*member.member_id)) {
                self.world.ask(beat(&member.member_id, member.member_epoch));
            }
        }
        self.world.harness.pass(ms - beats * HEARTBEAT_MS);
        NONE.to_owned()
    }
}

fn group() -> GroupId {
    GroupId(text(GROUP))
}

/// What is wrong with a row, if anything.
fn check(state: In, (event, answer, next, kinds, members): Row) -> Result<(), String> {
    let mut scene = Scene::new(state);
    let before = records(&scene.world.harness).len();
    let answered = scene.run(event);
    let written = kinds_written(&scene.world.harness, before);
    let found = (answered, scene.state(), written, scene.members());
    let expected = (answer.to_owned(), next, kinds.to_owned(), members.to_owned());
    // What a classic group's members wait for is not in the log.
    if found.1 != Classic {
        scene.world.harness.restart();
        let after = (scene.state(), scene.members());
        assert_eq!(after, (found.1, found.3.clone()), "{state:?} × {event:?}: the log says the same");
    }
    match found == expected {
        true => Ok(()),
        false => Err(format!("{state:?} × {event:?}: {found:?}, not {expected:?}")),
    }
}

#[test]
fn every_event_in_every_state_has_its_answer_and_leads_where_it_should() {
    let mut wrong = Vec::new();
    for (state, rows) in TABLE {
        assert!(rows.iter().map(|row| row.0).eq(EVENTS), "{state:?}: each event, once");
        wrong.extend(rows.iter().filter_map(|row| check(*state, *row).err()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The transitions by name.
macro_rules! transitions {
    ($($name:ident: $state:ident, $event:ident => $next:ident;)+) => {
        $(
            #[test]
            fn $name() {
                let rows = TABLE.iter().find(|(state, _)| *state == $state).expect("a state of the table").1;
                let row = *rows.iter().find(|row| row.0 == $event).expect("an event of the table");
                assert_eq!(row.2, $next);
                check($state, row).expect("as in the table");
            }
        )+
    };
}

transitions! {
    empty_becomes_stable_when_a_member_joins: Empty, NewMemberJoins => Stable;
    empty_becomes_dead_when_it_is_deleted: Empty, GroupIsDeleted => Dead;
    empty_stays_empty_however_old_it_is: Empty, WeekPasses => Empty;
    empty_stays_empty_when_positions_are_set: Empty, PositionsAreSet => Empty;
    stable_stays_stable_when_a_member_joins: Stable, NewMemberJoins => Stable;
    stable_stays_stable_while_a_member_is_left: Stable, ALeaves => Stable;
    stable_becomes_empty_when_the_last_member_leaves: Stable, BothLeave => Empty;
    stable_becomes_empty_when_the_last_session_ends: Stable, BothAreSilent => Empty;
    stable_is_not_deleted: Stable, GroupIsDeleted => Stable;
    dead_becomes_stable_when_a_member_joins: Dead, NewMemberJoins => Stable;
    dead_becomes_empty_when_positions_are_set: Dead, PositionsAreSet => Empty;
}
