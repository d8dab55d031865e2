//! A consumer group's states, its members' states, and what each event makes of them: every state × event → what is
//! answered, the next state, the kinds of records written, where the members are then. As Apache Kafka's
//! `GroupMetadataManager` has it, except that expressions are matched at once.

use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, GroupId, LeaveGroupRequest, OffsetDeleteRequest, TopicName,
};

use super::consumers::{Cluster, beat, join, owning};
use super::harness::{GROUP, Harness, commit_request, join_request, settings, text};
use crate::base::TopicId;
use crate::coordinator::{ConsumerRecord, Content, Record, ReplyToken, Request, Response, ShareRecord};
use crate::wire::ErrorCode;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum In {
    /// All have left.
    Empty,
    /// b has joined sooner than another target may be made.
    Assigning,
    /// a has to give back what b is to have.
    Reconciling,
    Stable,
    /// It was empty and is deleted.
    Dead,
    /// A group of the name that is of the classic protocol; where an event leads to only.
    Classic,
}
use In::{Assigning, Classic, Dead, Empty, Reconciling, Stable};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    NewMemberJoins,
    /// And that cannot be written.
    NewMemberJoinsInVain,
    ClassicMemberJoins,
    AJoinsAgain,
    BJoinsAgain,
    BSubscribesToMore,
    ASubscribesByExpression,
    ASubscribesByABadExpression,
    ABeats,
    BBeats,
    AHasGivenBack,
    AHasGivenNothingBack,
    AIsAhead,
    AIsBehind,
    AIsBehindAndHasNoMore,
    StrangerBeats,
    ALeaves,
    BLeaves,
    /// b is a static member.
    BLeavesForNow,
    BComesBackAsC,
    CClaimsBsInstance,
    CBeatsWithBsInstance,
    AdministratorRemovesB,
    /// For longer than its session, while the other does what it is told.
    AIsSilent,
    BIsSilent,
    /// The rebalance time-out passes while both are heard of and give nothing back.
    NothingIsGivenBack,
    TopicGrows,
    OtherTopicComes,
    TopicGoes,
    BCommits,
    BCommitsAhead,
    /// In the epoch before, a partition that a has had for longer or not.
    ACommitsBehind,
    StrangerCommits,
    OffsetsAreDeleted,
    GroupIsDeleted,
    /// Longer than offsets are kept, and nobody is heard of.
    WeekPasses,
}
use Event::*;

const EVENTS: [Event; 36] = [
    NewMemberJoins,
    NewMemberJoinsInVain,
    ClassicMemberJoins,
    AJoinsAgain,
    BJoinsAgain,
    BSubscribesToMore,
    ASubscribesByExpression,
    ASubscribesByABadExpression,
    ABeats,
    BBeats,
    AHasGivenBack,
    AHasGivenNothingBack,
    AIsAhead,
    AIsBehind,
    AIsBehindAndHasNoMore,
    StrangerBeats,
    ALeaves,
    BLeaves,
    BLeavesForNow,
    BComesBackAsC,
    CClaimsBsInstance,
    CBeatsWithBsInstance,
    AdministratorRemovesB,
    AIsSilent,
    BIsSilent,
    NothingIsGivenBack,
    TopicGrows,
    OtherTopicComes,
    TopicGoes,
    BCommits,
    BCommitsAhead,
    ACommitsBehind,
    StrangerCommits,
    OffsetsAreDeleted,
    GroupIsDeleted,
    WeekPasses,
];

const OK: &str = "ok";
const WAITS: &str = "waits";
/// Nobody asks.
const NONE: &str = "-";
const UNKNOWN: &str = "UnknownMemberId";
const NOT_FOUND: &str = "GroupIdNotFound";
const FENCED: &str = "FencedMemberEpoch";
const STALE: &str = "StaleMemberEpoch";
const TAKEN: &str = "UnreleasedInstanceId";
const INSTANCE: &str = "FencedInstanceId";
const READ: &str = "GroupSubscribedToTopic";
const BAD_EXPRESSION: &str = "InvalidRegularExpression";
const NOT_COORDINATOR: &str = "NotCoordinator";
const NON_EMPTY: &str = "NonEmptyGroup";

/// What is answered: the member's epoch and how many partitions it is told, or an error; the next state; the kinds of
/// records, small letters for those that take away: the group's epoch, Member, Target and its Epoch, Position, Regular
/// expression, Offset, Classic group; each member's epoch and state: stable (s), unrevoked (r) or unreleased (l)
/// partitions.
type Row = (Event, &'static str, In, &'static str, &'static str);

const TABLE: &[(In, &[Row])] = &[
    (
        Empty,
        &[
            (NewMemberJoins, "6:4", Stable, "MGTEP", "c6s"),
            (NewMemberJoinsInVain, NOT_COORDINATOR, Empty, "", ""),
            (ClassicMemberJoins, WAITS, Classic, "egC", ""),
            (AJoinsAgain, "6:4", Stable, "MGTEP", "a6s"),
            (BJoinsAgain, "6:4", Stable, "MGTEP", "b6s"),
            (BSubscribesToMore, UNKNOWN, Empty, "", ""),
            (ASubscribesByExpression, UNKNOWN, Empty, "", ""),
            (ASubscribesByABadExpression, UNKNOWN, Empty, "", ""),
            (ABeats, UNKNOWN, Empty, "", ""),
            (BBeats, UNKNOWN, Empty, "", ""),
            (AHasGivenBack, UNKNOWN, Empty, "", ""),
            (AHasGivenNothingBack, UNKNOWN, Empty, "", ""),
            (AIsAhead, UNKNOWN, Empty, "", ""),
            (AIsBehind, UNKNOWN, Empty, "", ""),
            (AIsBehindAndHasNoMore, UNKNOWN, Empty, "", ""),
            (StrangerBeats, UNKNOWN, Empty, "", ""),
            (ALeaves, UNKNOWN, Empty, "", ""),
            (BLeaves, UNKNOWN, Empty, "", ""),
            (BLeavesForNow, UNKNOWN, Empty, "", ""),
            (BComesBackAsC, "6:4", Stable, "MGTEP", "c6s"),
            (CClaimsBsInstance, "6:4", Stable, "MGTEP", "c6s"),
            (CBeatsWithBsInstance, UNKNOWN, Empty, "", ""),
            (AdministratorRemovesB, UNKNOWN, Empty, "", ""),
            (AIsSilent, NONE, Empty, "", ""),
            (BIsSilent, NONE, Empty, "", ""),
            (NothingIsGivenBack, NONE, Empty, "", ""),
            (TopicGrows, UNKNOWN, Empty, "", ""),
            (OtherTopicComes, UNKNOWN, Empty, "", ""),
            (TopicGoes, UNKNOWN, Empty, "", ""),
            (BCommits, UNKNOWN, Empty, "", ""),
            (BCommitsAhead, UNKNOWN, Empty, "", ""),
            (ACommitsBehind, UNKNOWN, Empty, "", ""),
            (StrangerCommits, OK, Empty, "O", ""),
            (OffsetsAreDeleted, OK, Empty, "", ""),
            (GroupIsDeleted, OK, Dead, "eg", ""),
            (WeekPasses, NONE, Dead, "eg", ""),
        ],
    ),
    (
        Assigning,
        &[
            (NewMemberJoins, "2:0", Assigning, "MGP", "a2s b2s c2s"),
            (NewMemberJoinsInVain, NOT_COORDINATOR, Assigning, "", "a2s b2s"),
            (ClassicMemberJoins, "2", Assigning, "MGP", "a2s b2s ?2s"),
            (AJoinsAgain, "2:4", Assigning, "", "a2s b2s"),
            (BJoinsAgain, TAKEN, Assigning, "", "a2s b2s"),
            (BSubscribesToMore, "2:-", Assigning, "MG", "a2s b2s"),
            (ASubscribesByExpression, "2:-", Assigning, "MRG", "a2s b2s"),
            (ASubscribesByABadExpression, BAD_EXPRESSION, Assigning, "", "a2s b2s"),
            (ABeats, "2:-", Assigning, "", "a2s b2s"),
            (BBeats, "2:-", Assigning, "", "a2s b2s"),
            (AHasGivenBack, "2:-", Assigning, "", "a2s b2s"),
            (AHasGivenNothingBack, "2:-", Assigning, "", "a2s b2s"),
            (AIsAhead, FENCED, Assigning, "", "a2s b2s"),
            (AIsBehind, FENCED, Assigning, "", "a2s b2s"),
            (AIsBehindAndHasNoMore, FENCED, Assigning, "", "a2s b2s"),
            (StrangerBeats, UNKNOWN, Assigning, "", "a2s b2s"),
            (ALeaves, "-1:-", Assigning, "ptmG", "b2s"),
            (BLeaves, "-1:-", Assigning, "ptmG", "a2s"),
            (BLeavesForNow, "-2:-", Assigning, "P", "a2s b-2s"),
            (BComesBackAsC, "2:0", Assigning, "PptmMTP", "a2s c2s"),
            (CClaimsBsInstance, TAKEN, Assigning, "", "a2s b2s"),
            (CBeatsWithBsInstance, INSTANCE, Assigning, "", "a2s b2s"),
            (AdministratorRemovesB, OK, Assigning, "ptmG", "a2s"),
            (AIsSilent, NONE, Stable, "TEPptmGTEP", "b4s"),
            (BIsSilent, NONE, Stable, "TEPptmGTEP", "a4s"),
            (NothingIsGivenBack, NONE, Reconciling, "TEP", "a2r b3l"),
            (TopicGrows, "2:-", Assigning, "G", "a2s b2s"),
            (OtherTopicComes, "2:-", Assigning, "", "a2s b2s"),
            (TopicGoes, "2:0", Assigning, "GP", "a2r b2s"),
            (BCommits, OK, Assigning, "O", "a2s b2s"),
            (BCommitsAhead, STALE, Assigning, "", "a2s b2s"),
            (ACommitsBehind, STALE, Assigning, "", "a2s b2s"),
            (StrangerCommits, UNKNOWN, Assigning, "", "a2s b2s"),
            (OffsetsAreDeleted, READ, Assigning, "", "a2s b2s"),
            (GroupIsDeleted, NON_EMPTY, Assigning, "", "a2s b2s"),
            (WeekPasses, NONE, Dead, "ptmGptmGEeg", ""),
        ],
    ),
    (
        Reconciling,
        &[
            (NewMemberJoins, "4:0", Reconciling, "MGTEP", "a2r b3l c4l"),
            (NewMemberJoinsInVain, NOT_COORDINATOR, Reconciling, "", "a2r b3l"),
            (ClassicMemberJoins, "4", Reconciling, "MGTEP", "a2r b3l ?4l"),
            (AJoinsAgain, "3:2", Reconciling, "P", "a3s b3l"),
            (BJoinsAgain, TAKEN, Reconciling, "", "a2r b3l"),
            (BSubscribesToMore, "4:1", Reconciling, "MGTEP", "a2r b4l"),
            (ASubscribesByExpression, "2:-", Reconciling, "MRGTE", "a2r b3l"),
            (ASubscribesByABadExpression, BAD_EXPRESSION, Reconciling, "", "a2r b3l"),
            (ABeats, "2:-", Reconciling, "", "a2r b3l"),
            // The epoch before its last step is kept with it.
            (BBeats, "3:-", Reconciling, "P", "a2r b3l"),
            (AHasGivenBack, "3:-", Reconciling, "P", "a3s b3l"),
            (AHasGivenNothingBack, "2:-", Reconciling, "", "a2r b3l"),
            (AIsAhead, FENCED, Reconciling, "", "a2r b3l"),
            (AIsBehind, FENCED, Reconciling, "", "a2r b3l"),
            (AIsBehindAndHasNoMore, FENCED, Reconciling, "", "a2r b3l"),
            (StrangerBeats, UNKNOWN, Reconciling, "", "a2r b3l"),
            (ALeaves, "-1:-", Assigning, "ptmG", "b3l"),
            (BLeaves, "-1:-", Assigning, "ptmG", "a2r"),
            (BLeavesForNow, "-2:-", Reconciling, "P", "a2r b-2l"),
            (BComesBackAsC, "3:0", Reconciling, "PptmMTP", "a2r c3l"),
            (CClaimsBsInstance, TAKEN, Reconciling, "", "a2r b3l"),
            (CBeatsWithBsInstance, INSTANCE, Reconciling, "", "a2r b3l"),
            (AdministratorRemovesB, OK, Assigning, "ptmG", "a2r"),
            (AIsSilent, NONE, Stable, "PptmGTEP", "b4s"),
            (BIsSilent, NONE, Stable, "PptmGTEP", "a4s"),
            (NothingIsGivenBack, NONE, Stable, "PptmGTEP", "b4s"),
            (TopicGrows, "2:-", Reconciling, "GTE", "a2r b3l"),
            (OtherTopicComes, "2:-", Reconciling, "", "a2r b3l"),
            (TopicGoes, "2:0", Reconciling, "GTEP", "a2r b3l"),
            (BCommits, OK, Reconciling, "O", "a2r b3l"),
            (BCommitsAhead, STALE, Reconciling, "", "a2r b3l"),
            (ACommitsBehind, STALE, Reconciling, "", "a2r b3l"),
            (StrangerCommits, UNKNOWN, Reconciling, "", "a2r b3l"),
            (OffsetsAreDeleted, READ, Reconciling, "", "a2r b3l"),
            (GroupIsDeleted, NON_EMPTY, Reconciling, "", "a2r b3l"),
            (WeekPasses, NONE, Dead, "ptmGptmGEeg", ""),
        ],
    ),
    (
        Stable,
        &[
            (NewMemberJoins, "4:0", Reconciling, "MGTEP", "a3s b3s c4l"),
            (NewMemberJoinsInVain, NOT_COORDINATOR, Stable, "", "a3s b3s"),
            (ClassicMemberJoins, "4", Reconciling, "MGTEP", "a3s b3s ?4l"),
            (AJoinsAgain, "3:2", Stable, "", "a3s b3s"),
            (BJoinsAgain, TAKEN, Stable, "", "a3s b3s"),
            (BSubscribesToMore, "4:3", Reconciling, "MGTEP", "a3s b4s"),
            (ASubscribesByExpression, "4:3", Reconciling, "MRGTEP", "a4s b3s"),
            (ASubscribesByABadExpression, BAD_EXPRESSION, Stable, "", "a3s b3s"),
            (ABeats, "3:-", Stable, "", "a3s b3s"),
            (BBeats, "3:-", Stable, "", "a3s b3s"),
            (AHasGivenBack, "3:-", Stable, "", "a3s b3s"),
            (AHasGivenNothingBack, "3:-", Stable, "", "a3s b3s"),
            (AIsAhead, FENCED, Stable, "", "a3s b3s"),
            (AIsBehind, FENCED, Stable, "", "a3s b3s"),
            (AIsBehindAndHasNoMore, "3:-", Stable, "", "a3s b3s"),
            (StrangerBeats, UNKNOWN, Stable, "", "a3s b3s"),
            (ALeaves, "-1:-", Assigning, "ptmG", "b3s"),
            (BLeaves, "-1:-", Assigning, "ptmG", "a3s"),
            (BLeavesForNow, "-2:-", Reconciling, "P", "a3s b-2s"),
            (BComesBackAsC, "3:2", Stable, "PptmMTP", "a3s c3s"),
            (CClaimsBsInstance, TAKEN, Stable, "", "a3s b3s"),
            (CBeatsWithBsInstance, INSTANCE, Stable, "", "a3s b3s"),
            (AdministratorRemovesB, OK, Assigning, "ptmG", "a3s"),
            (AIsSilent, NONE, Stable, "ptmGTEP", "b4s"),
            (BIsSilent, NONE, Stable, "ptmGTEP", "a4s"),
            (NothingIsGivenBack, NONE, Stable, "", "a3s b3s"),
            (TopicGrows, "4:3", Reconciling, "GTEP", "a4s b3s"),
            (OtherTopicComes, "3:-", Stable, "", "a3s b3s"),
            (TopicGoes, "3:0", Reconciling, "GTEP", "a3r b3s"),
            (BCommits, OK, Stable, "O", "a3s b3s"),
            (BCommitsAhead, STALE, Stable, "", "a3s b3s"),
            (ACommitsBehind, OK, Stable, "O", "a3s b3s"),
            (StrangerCommits, UNKNOWN, Stable, "", "a3s b3s"),
            (OffsetsAreDeleted, READ, Stable, "", "a3s b3s"),
            (GroupIsDeleted, NON_EMPTY, Stable, "", "a3s b3s"),
            (WeekPasses, NONE, Dead, "ptmGptmGEeg", ""),
        ],
    ),
    (
        Dead,
        &[
            (NewMemberJoins, "2:4", Stable, "MGTEP", "c2s"),
            (NewMemberJoinsInVain, NOT_COORDINATOR, Dead, "", ""),
            (ClassicMemberJoins, WAITS, Classic, "C", ""),
            (AJoinsAgain, "2:4", Stable, "MGTEP", "a2s"),
            (BJoinsAgain, "2:4", Stable, "MGTEP", "b2s"),
            (BSubscribesToMore, NOT_FOUND, Dead, "", ""),
            (ASubscribesByExpression, NOT_FOUND, Dead, "", ""),
            (ASubscribesByABadExpression, NOT_FOUND, Dead, "", ""),
            (ABeats, NOT_FOUND, Dead, "", ""),
            (BBeats, NOT_FOUND, Dead, "", ""),
            (AHasGivenBack, NOT_FOUND, Dead, "", ""),
            (AHasGivenNothingBack, NOT_FOUND, Dead, "", ""),
            (AIsAhead, NOT_FOUND, Dead, "", ""),
            (AIsBehind, NOT_FOUND, Dead, "", ""),
            (AIsBehindAndHasNoMore, NOT_FOUND, Dead, "", ""),
            (StrangerBeats, NOT_FOUND, Dead, "", ""),
            (ALeaves, NOT_FOUND, Dead, "", ""),
            (BLeaves, NOT_FOUND, Dead, "", ""),
            (BLeavesForNow, NOT_FOUND, Dead, "", ""),
            (BComesBackAsC, "2:4", Stable, "MGTEP", "c2s"),
            (CClaimsBsInstance, "2:4", Stable, "MGTEP", "c2s"),
            (CBeatsWithBsInstance, NOT_FOUND, Dead, "", ""),
            (AdministratorRemovesB, UNKNOWN, Dead, "", ""),
            (AIsSilent, NONE, Dead, "", ""),
            (BIsSilent, NONE, Dead, "", ""),
            (NothingIsGivenBack, NONE, Dead, "", ""),
            (TopicGrows, NOT_FOUND, Dead, "", ""),
            (OtherTopicComes, NOT_FOUND, Dead, "", ""),
            (TopicGoes, NOT_FOUND, Dead, "", ""),
            (BCommits, NOT_FOUND, Dead, "", ""),
            (BCommitsAhead, NOT_FOUND, Dead, "", ""),
            (ACommitsBehind, NOT_FOUND, Dead, "", ""),
            (StrangerCommits, OK, Classic, "O", ""),
            (OffsetsAreDeleted, NOT_FOUND, Dead, "", ""),
            (GroupIsDeleted, NOT_FOUND, Dead, "", ""),
            (WeekPasses, NONE, Dead, "", ""),
        ],
    ),
];

/// The least time between two targets, Kafka's.
const INTERVAL_MS: u64 = 1_000;
const HEARTBEAT_MS: u64 = 5_000;
const INSTANCE_OF_B: &str = "i";

/// A group of a and b, who read "t"; b is a static member.
struct Scene {
    h: Harness,
    cluster: Cluster,
    topic: TopicId,
    /// Where the members are, or were when there were some.
    epoch_of_a: i32,
    epoch_of_b: i32,
}

impl Scene {
    fn new(state: In) -> Self {
        let mut settings = settings();
        settings.consumer.times.assignment_interval_ms = INTERVAL_MS as i32;
        let (mut h, cluster) = Harness::consumers_with(settings, &[("t", 4), ("u", 1)]);
        let topic = cluster.id("t");
        h.beats(join("a", &["t"]));
        if state != Assigning {
            h.pass(INTERVAL_MS);
        }
        h.beats(of_b(join("b", &["t"])));
        if state != Assigning {
            h.beats(beat("a", 2));
        }
        if matches!(state, Stable | Empty | Dead) {
            h.beats(owning("a", 2, &[(topic, &[0, 1])]));
            h.beats(of_b(beat("b", 3)));
        }
        if state != Assigning {
            h.pass(INTERVAL_MS);
        }
        let epoch = |id: &str| h.group().member(&text(id)).expect("a member").position.epoch.0;
        let (epoch_of_a, epoch_of_b) = (epoch("a"), epoch("b"));
        if matches!(state, Empty | Dead) {
            h.beats(beat("a", -1));
            h.beats(of_b(beat("b", -1)));
        }
        if state == Dead {
            assert_eq!(h.call(Request::Delete(GroupId(text(GROUP)))), Response::Delete(None));
        }
        let scene = Self { h, cluster, topic, epoch_of_a, epoch_of_b };
        assert_eq!(scene.state(), state);
        scene
    }

    fn state(&self) -> In {
        let partition = &self.h.coordinator.partitions[&self.h.coordinator.partition_of(GROUP)];
        let Some(group) = partition.consumers.get(&text(GROUP)) else {
            return if partition.groups.contains_key(&text(GROUP)) { Classic } else { Dead };
        };
        match group.state_name() {
            "Empty" => Empty,
            "Assigning" => Assigning,
            "Reconciling" => Reconciling,
            "Stable" => Stable,
            other => panic!("{other}"),
        }
    }

    /// Those who joined without an id of their own last.
    fn members(&self) -> String {
        if matches!(self.state(), Dead | Classic) {
            return String::new();
        }
        let known = |id: &str| if id.len() == 1 { id.to_owned() } else { "?".to_owned() };
        let each = self.h.group().members().map(|member| {
            let state = match format!("{:?}", member.position.state).as_str() {
                "Stable" => "s",
                "UnrevokedPartitions" => "r",
                "UnreleasedPartitions" => "l",
                other => panic!("{other}"),
            };
            (member.id.len(), format!("{}{}{state}", known(&member.id), member.position.epoch))
        });
        let mut each: Vec<(usize, String)> = each.collect();
        each.sort();
        each.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
    }

    /// What the request that the event is is answered.
    fn run(&mut self, event: Event) -> String {
        let (a, b, topic) = (self.epoch_of_a, self.epoch_of_b, self.topic);
        let names = |names: &[&str]| Some(names.iter().map(|name| TopicName(text(name))).collect());
        let heartbeat = match event {
            NewMemberJoins => join("c", &["t"]),
            AJoinsAgain => join("a", &["t"]),
            BJoinsAgain => of_b(join("b", &["t"])),
            BSubscribesToMore => of_b(beat("b", b)).with_subscribed_topic_names(names(&["t", "u"])),
            ASubscribesByExpression => beat("a", a).with_subscribed_topic_regex(Some(text("u"))),
            ASubscribesByABadExpression => beat("a", a).with_subscribed_topic_regex(Some(text("("))),
            ABeats => beat("a", a),
            BBeats => of_b(beat("b", b)),
            AHasGivenBack => owning("a", a, &[(topic, &[0, 1])]),
            AHasGivenNothingBack => owning("a", a, &[(topic, &[0, 1, 2, 3])]),
            AIsAhead => beat("a", a + 1),
            AIsBehind => beat("a", a - 1),
            AIsBehindAndHasNoMore => owning("a", a - 1, &[(topic, &[0, 1])]),
            StrangerBeats => beat("x", 3),
            ALeaves => beat("a", -1),
            BLeaves => of_b(beat("b", -1)),
            BLeavesForNow => of_b(beat("b", -2)),
            BComesBackAsC => {
                self.h.answer(of_b(beat("b", -2)));
                of_b(join("c", &["t"]))
            }
            CClaimsBsInstance => of_b(join("c", &["t"])),
            CBeatsWithBsInstance => of_b(beat("c", b)),
            TopicGrows | OtherTopicComes | TopicGoes => {
                self.change_topics(event);
                beat("a", a)
            }
            other => return self.run_other(other),
        };
        let response = self.h.answer(heartbeat);
        match ErrorCode::try_from_code(response.error_code) {
            Some(error) => {
                assert!(response.error_message.is_some(), "{event:?}: an error has words");
                format!("{error:?}")
            }
            None => {
                let topics = response.assignment.map(|assignment| assignment.topic_partitions);
                let told =
                    topics.map(|topics| topics.iter().map(|topic| topic.partitions.len()).sum::<usize>());
                let told = told.map_or(NONE.to_owned(), |count| count.to_string());
                format!("{}:{told}", response.member_epoch)
            }
        }
    }

    fn run_other(&mut self, event: Event) -> String {
        let (a, b) = (self.epoch_of_a, self.epoch_of_b);
        match event {
            NewMemberJoinsInVain => {
                self.h.holds_appends = true;
                let token = self.h.send(Request::ConsumerHeartbeat(join("c", &["t"])));
                self.h.fail_one(ErrorCode::NotLeaderOrFollower);
                self.h.release();
                self.answer(token)
            }
            ClassicMemberJoins => {
                // This version needs no id first.
                self.h.version = 3;
                let token = self.h.send(Request::Join(join_request("")));
                self.answer(token)
            }
            AdministratorRemovesB => {
                let leaver = MemberIdentity::default().with_group_instance_id(Some(text(INSTANCE_OF_B)));
                let request = LeaveGroupRequest::default()
                    .with_group_id(GroupId(text(GROUP)))
                    .with_members(vec![leaver]);
                self.ask(5, Request::Leave(request))
            }
            BCommits => self.commit("b", b),
            BCommitsAhead => self.commit("b", b + 1),
            ACommitsBehind => self.commit("a", a - 1),
            StrangerCommits => self.commit("", -1),
            OffsetsAreDeleted => {
                let topic = OffsetDeleteRequestTopic::default()
                    .with_name(TopicName(text("t")))
                    .with_partitions(vec![OffsetDeleteRequestPartition::default()]);
                let request = OffsetDeleteRequest::default()
                    .with_group_id(GroupId(text(GROUP)))
                    .with_topics(vec![topic]);
                self.ask(0, Request::DeleteOffsets(request))
            }
            GroupIsDeleted => self.ask(2, Request::Delete(GroupId(text(GROUP)))),
            AIsSilent => self.pass(46_000, &["b"], true),
            BIsSilent => self.pass(46_000, &["a"], true),
            NothingIsGivenBack => self.pass(31_000, &["a", "b"], false),
            WeekPasses => self.pass(8 * 24 * 3_600_000, &[], false),
            other => panic!("{other:?} is a heartbeat"),
        }
    }

    fn change_topics(&mut self, event: Event) {
        match event {
            TopicGrows => self.cluster.grow("t", 6),
            OtherTopicComes => self.cluster.create("x", 1),
            _ => self.cluster.delete("t"),
        }
        self.h.cluster(self.cluster.image());
    }

    fn commit(&mut self, member: &str, epoch: i32) -> String {
        let mut request = commit_request(GROUP, member, epoch, "t", 1);
        request.topics[0].topic_id = self.topic.0;
        self.ask(10, Request::Commit(request))
    }

    fn ask(&mut self, version: i16, request: Request) -> String {
        self.h.version = version;
        let token = self.h.send(request);
        self.answer(token)
    }

    fn answer(&mut self, token: ReplyToken) -> String {
        let code = match self.h.reply(token) {
            None => return WAITS.to_owned(),
            Some(Response::Join(response)) if response.error_code == 0 => {
                return response.generation_id.to_string();
            }
            Some(Response::Join(response)) => response.error_code,
            Some(Response::ConsumerHeartbeat(response)) => response.error_code,
            Some(Response::Leave(response)) if response.error_code == 0 => response.members[0].error_code,
            Some(Response::Leave(response)) => response.error_code,
            Some(Response::Commit(response)) => response.topics[0].partitions[0].error_code,
            Some(Response::DeleteOffsets(response)) if response.error_code == 0 => {
                response.topics[0].partitions[0].error_code
            }
            Some(Response::DeleteOffsets(response)) => response.error_code,
            Some(Response::Delete(error)) => error.map_or(0, |error| error.code()),
            other => panic!("{other:?}"),
        };
        ErrorCode::try_from_code(code).map_or(OK.to_owned(), |error| format!("{error:?}"))
    }

    /// Lets time pass in which these are heard of; they may do as they are told.
    fn pass(&mut self, ms: u64, alive: &[&str], obeys: bool) -> String {
        let beats = if alive.is_empty() { 0 } else { ms / HEARTBEAT_MS };
        for _ in 0..beats {
            self.h.pass(HEARTBEAT_MS);
            for id in alive {
                self.hear_of(id, obeys);
            }
        }
        self.h.pass(ms - beats * HEARTBEAT_MS);
        NONE.to_owned()
    }

    fn hear_of(&mut self, id: &str, obeys: bool) {
        if matches!(self.state(), Dead | Classic) {
            return;
        }
        let Some(member) = self.h.group().member(&text(id)) else { return };
        let epoch = member.position.epoch.0;
        let has = member.position.assigned.get(&self.topic).into_iter().flat_map(|owned| owned.keys());
        let has: Vec<i32> = has.map(|partition| partition.0).collect();
        let request = match obeys {
            true => owning(id, epoch, &[(self.topic, &has[..])]),
            false => beat(id, epoch),
        };
        self.h.beats(if id == "b" { of_b(request) } else { request });
    }
}

fn of_b(request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatRequest {
    request.with_instance_id(Some(text(INSTANCE_OF_B)))
}

/// The kinds of the records from the `from`th on, those of a kind that follow each other once.
pub(super) fn kinds_written(h: &Harness, from: usize) -> String {
    let mut kinds: Vec<char> = records(h)[from..].iter().map(kind).collect();
    kinds.dedup();
    kinds.into_iter().collect()
}

pub(super) fn records(h: &Harness) -> Vec<Record> {
    let contents = h.logs.values().flatten();
    let records = contents.flat_map(|content| match content {
        Content::Records(records) => records.iter(),
        other => panic!("{other:?}"),
    });
    let read = records.map(|record| Record::decode(&record.key, record.value.as_deref()));
    read.map(|record| record.expect("it reads its own")).collect()
}

fn kind(record: &Record) -> char {
    let (kind, ends) = match record {
        Record::Offset { value, .. } => ('O', value.is_none()),
        Record::Group { value, .. } => ('C', value.is_none()),
        Record::Consumer(record) => {
            let kind = match record {
                ConsumerRecord::Group { .. } => 'G',
                ConsumerRecord::PartitionMetadata { .. } => 'N',
                ConsumerRecord::Member { .. } => 'M',
                ConsumerRecord::TargetEpoch { .. } => 'E',
                ConsumerRecord::Target { .. } => 'T',
                ConsumerRecord::Position { .. } => 'P',
                ConsumerRecord::Regex { .. } => 'R',
            };
            (kind, record.is_tombstone())
        }
        Record::Share(record) => {
            let kind = match record {
                ShareRecord::Group { .. } => 'G',
                ShareRecord::Member { .. } => 'M',
                ShareRecord::TargetEpoch { .. } => 'E',
                ShareRecord::Target { .. } => 'T',
                ShareRecord::Position { .. } => 'P',
                ShareRecord::States { .. } => 'S',
            };
            (kind, record.is_tombstone())
        }
    };
    if ends { kind.to_ascii_lowercase() } else { kind }
}

/// What is wrong with a row, if anything.
fn check(state: In, (event, answer, next, records_written, members): Row) -> Result<(), String> {
    let mut scene = Scene::new(state);
    let before = records(&scene.h).len();
    let answered = scene.run(event);
    let found = (answered, scene.state(), kinds_written(&scene.h, before), scene.members());
    let expected = (answer.to_owned(), next, records_written.to_owned(), members.to_owned());
    // What a classic group's members wait for is not in the log.
    if scene.state() != Classic {
        scene.h.restart_same();
        assert_eq!(scene.state(), found.1, "{state:?} × {event:?}: the log says the same");
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
    empty_becomes_dead_when_its_offsets_expire: Empty, WeekPasses => Dead;
    empty_becomes_a_classic_group_when_a_classic_member_joins: Empty, ClassicMemberJoins => Classic;
    empty_stays_empty_when_offsets_are_committed: Empty, StrangerCommits => Empty;
    assigning_becomes_reconciling_when_a_target_may_be_made: Assigning, NothingIsGivenBack => Reconciling;
    assigning_becomes_stable_when_one_is_left: Assigning, BIsSilent => Stable;
    reconciling_becomes_stable_when_who_gives_nothing_back_is_out: Reconciling, NothingIsGivenBack => Stable;
    reconciling_becomes_stable_when_a_session_ends: Reconciling, AIsSilent => Stable;
    reconciling_becomes_assigning_when_a_member_leaves: Reconciling, BLeaves => Assigning;
    reconciling_stays_while_others_have_not_taken_over: Reconciling, AHasGivenBack => Reconciling;
    stable_becomes_reconciling_when_a_member_joins: Stable, NewMemberJoins => Reconciling;
    stable_becomes_reconciling_when_a_classic_member_joins: Stable, ClassicMemberJoins => Reconciling;
    stable_becomes_reconciling_when_a_subscription_changes: Stable, BSubscribesToMore => Reconciling;
    stable_becomes_reconciling_when_an_expression_is_resolved: Stable, ASubscribesByExpression => Reconciling;
    stable_becomes_reconciling_when_a_topic_grows: Stable, TopicGrows => Reconciling;
    stable_becomes_reconciling_when_a_topic_goes: Stable, TopicGoes => Reconciling;
    stable_becomes_reconciling_when_a_static_member_leaves_for_now: Stable, BLeavesForNow => Reconciling;
    stable_stays_stable_when_a_static_member_comes_back: Stable, BComesBackAsC => Stable;
    stable_becomes_assigning_when_a_member_leaves: Stable, ALeaves => Assigning;
    stable_becomes_assigning_when_an_administrator_removes_a_member: Stable, AdministratorRemovesB => Assigning;
    stable_stays_stable_with_heartbeats: Stable, ABeats => Stable;
    dead_becomes_stable_when_a_member_joins: Dead, NewMemberJoins => Stable;
}

#[test]
fn reconciling_becomes_stable_when_the_last_has_taken_over() {
    let mut scene = Scene::new(Reconciling);
    scene.run(AHasGivenBack);
    assert_eq!(scene.run(BBeats), "3:2");
    assert_eq!((scene.state(), &*scene.members()), (Stable, "a3s b3s"));
}

#[test]
fn stable_becomes_empty_when_the_last_member_leaves() {
    let mut scene = Scene::new(Stable);
    scene.run(ALeaves);
    scene.run(BLeaves);
    assert_eq!(scene.state(), Empty);
}

#[test]
fn a_group_that_is_being_deleted_lets_who_comes_wait_until_it_is_dead() {
    for request in [join("c", &["t"]), beat("a", 3), beat("a", -1)] {
        let mut scene = Scene::new(Empty);
        scene.h.holds_appends = true;
        let deletion = scene.h.send(Request::Delete(GroupId(text(GROUP))));
        let waiting = scene.h.send(Request::ConsumerHeartbeat(request));
        assert_eq!((scene.answer(waiting), scene.answer(deletion)), (WAITS.to_owned(), WAITS.to_owned()));
        scene.h.release();
        assert_eq!(scene.answer(deletion), OK);
        assert!([OK, NOT_FOUND].contains(&&*scene.answer(waiting)));
    }
}
