//! A classic group's five states and what each event makes of them: every state × event → what is answered, the next
//! state, and how many batches are written.

use kafka_protocol::messages::{GroupId, HeartbeatRequest, LeaveGroupRequest};

use super::harness::{GROUP, Harness, REBALANCE_MS, SESSION_MS, commit_request, join_request, text};
use crate::coordinator::{ReplyToken, Request, Response};
use crate::wire::ErrorCode;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum In {
    /// The three have left.
    Empty,
    /// The leader and the patient one have joined again, the late one has not.
    Preparing,
    /// The patient one has synced, the others have not.
    Completing,
    Stable,
    /// The group is being deleted: its tombstone is on the way.
    Dead,
}
use In::{Completing, Dead, Empty, Preparing, Stable};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    NewMemberJoins,
    LeaderJoinsAgain,
    LateJoinsAgain,
    /// With another subscription.
    LateJoinsChanged,
    LeaderSyncs,
    /// And what it assigns cannot be written.
    LeaderSyncsInVain,
    LateSyncs,
    LateBeats,
    LateLeaves,
    /// For longer than its session, while the others are heard of.
    LateIsSilent,
    /// The rebalance time-out passes, while all are heard of.
    PhaseEnds,
    LateCommits,
    /// A consumer that assigns its partitions itself.
    StrangerCommits,
    GroupIsDeleted,
    /// Longer than offsets are kept.
    WeekPasses,
}
use Event::*;

/// What a request is answered; `waits` as long as it is not.
const WAITS: &str = "waits";
const OK: &str = "ok";
/// Nobody asks.
const NONE: &str = "-";
const UNKNOWN: &str = "UnknownMemberId";
const REBALANCE: &str = "RebalanceInProgress";
const UNAVAILABLE: &str = "CoordinatorNotAvailable";
const NON_EMPTY: &str = "NonEmptyGroup";

/// Three members in a group.
struct Scene {
    h: Harness,
    leader: String,
    patient: String,
    late: String,
    generation: i32,
    /// The patient one's request.
    waiting: Option<ReplyToken>,
}

impl Scene {
    fn new(state: In) -> Self {
        let mut h = Harness::new();
        let (ids, generation) = h.stable_group(3);
        let [leader, patient, late] = ids.try_into().expect("three");
        let mut scene = Self { h, leader, patient, late, generation, waiting: None };
        match state {
            Stable => {}
            Preparing => scene.prepare(),
            Completing => {
                scene.prepare();
                let last = scene.h.join(&scene.late);
                scene.generation = scene.h.join_reply(last).generation_id;
                let waiting = scene.waiting.take().expect("it joined");
                scene.h.join_reply(waiting);
                scene.waiting = Some(scene.h.sync(&scene.patient, scene.generation, &[]));
            }
            Empty => scene.all_leave(),
            Dead => {
                scene.all_leave();
                scene.h.holds_appends = true;
                scene.h.send(Request::Delete(GroupId(text(GROUP))));
            }
        }
        scene.h.version = 9;
        assert_eq!(scene.h.state(), name(state));
        scene
    }

    fn prepare(&mut self) {
        self.h.join(&self.leader);
        self.waiting = Some(self.h.join(&self.patient));
    }

    fn all_leave(&mut self) {
        for id in [&self.leader, &self.patient, &self.late] {
            self.h.leave(id);
        }
    }

    fn batches(&self) -> usize {
        self.h.logs.values().map(Vec::len).sum()
    }

    /// Lets time pass in steps in which those of `alive` are heard of who wait for nothing.
    fn pass(&mut self, ms: u64, alive: &[&str]) {
        let step = SESSION_MS as u64 / 3;
        for _ in 0..=ms / step {
            self.h.pass(step);
            for id in alive {
                self.h.heartbeat(id, self.generation);
            }
        }
    }

    /// What the request that the event is, and the patient one's, are answered by now.
    fn run(&mut self, event: Event) -> (&'static str, &'static str) {
        let (leader, late) = (self.leader.clone(), self.late.clone());
        let token = match event {
            NewMemberJoins => {
                // This version needs no id first.
                self.h.version = 3;
                Some(self.h.join(""))
            }
            LeaderJoinsAgain => Some(self.h.join(&leader)),
            LateJoinsAgain => Some(self.h.join(&late)),
            LateJoinsChanged => {
                let mut request = join_request(&late);
                request.protocols[0].metadata = vec![0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff].into();
                Some(self.h.send(Request::Join(request)))
            }
            LeaderSyncs => Some(self.h.sync(&leader, self.generation, &[(&late, "x")])),
            LeaderSyncsInVain => {
                self.h.holds_appends = true;
                let token = self.h.sync(&leader, self.generation, &[]);
                self.h.fail_one(ErrorCode::NotLeaderOrFollower);
                self.h.release();
                Some(token)
            }
            LateSyncs => Some(self.h.sync(&late, self.generation, &[])),
            LateBeats => {
                let request = HeartbeatRequest::default()
                    .with_group_id(GroupId(text(GROUP)))
                    .with_generation_id(self.generation)
                    .with_member_id(text(&late));
                Some(self.h.send(Request::Heartbeat(request)))
            }
            LateLeaves => {
                let leaver = kafka_protocol::messages::leave_group_request::MemberIdentity::default()
                    .with_member_id(text(&late));
                let request = LeaveGroupRequest::default()
                    .with_group_id(GroupId(text(GROUP)))
                    .with_members(vec![leaver]);
                Some(self.h.send(Request::Leave(request)))
            }
            LateIsSilent => {
                let (leader, patient) = (self.leader.clone(), self.patient.clone());
                self.pass(SESSION_MS as u64, &[&leader, &patient]);
                None
            }
            PhaseEnds => {
                let ids = [self.leader.clone(), self.patient.clone(), self.late.clone()];
                self.pass(REBALANCE_MS as u64, &ids.each_ref().map(String::as_str));
                None
            }
            LateCommits => {
                Some(self.h.send(Request::Commit(commit_request(GROUP, &late, self.generation, "t", 1))))
            }
            StrangerCommits => Some(self.h.send(Request::Commit(commit_request(GROUP, "", -1, "t", 1)))),
            GroupIsDeleted => Some(self.h.send(Request::Delete(GroupId(text(GROUP))))),
            WeekPasses => {
                self.h.pass(8 * 24 * 3_600_000);
                None
            }
        };
        let answer = token.map_or(NONE, |token| self.answer(token));
        let other = self.waiting.map_or(NONE, |token| self.answer(token));
        (answer, other)
    }

    fn answer(&mut self, token: ReplyToken) -> &'static str {
        let code = match self.h.reply(token) {
            None => return WAITS,
            Some(Response::Join(response)) => response.error_code,
            Some(Response::Sync(response)) => response.error_code,
            Some(Response::Heartbeat(response)) => response.error_code,
            Some(Response::Leave(response)) if response.error_code == 0 => response.members[0].error_code,
            Some(Response::Leave(response)) => response.error_code,
            Some(Response::Commit(response)) => response.topics[0].partitions[0].error_code,
            Some(Response::Delete(error)) => error.map_or(0, |error| error.code()),
            other => panic!("{other:?}"),
        };
        match ErrorCode::try_from_code(code) {
            None => OK,
            Some(ErrorCode::UnknownMemberId) => UNKNOWN,
            Some(ErrorCode::RebalanceInProgress) => REBALANCE,
            Some(ErrorCode::CoordinatorNotAvailable) => UNAVAILABLE,
            Some(ErrorCode::NonEmptyGroup) => NON_EMPTY,
            Some(ErrorCode::GroupIdNotFound) => "GroupIdNotFound",
            Some(ErrorCode::NotCoordinator) => "NotCoordinator",
            Some(other) => panic!("{other:?}"),
        }
    }
}

fn name(state: In) -> &'static str {
    match state {
        Empty => "Empty",
        Preparing => "PreparingRebalance",
        Completing => "CompletingRebalance",
        Stable => "Stable",
        Dead => "Dead",
    }
}

/// State, event; what it is answered, what the patient one is answered, the next state, batches written.
type Row = (In, Event, &'static str, &'static str, In, usize);

/// A group that is deleted is as dead as one that is being deleted.
const TABLE: &[Row] = &[
    (Empty, NewMemberJoins, WAITS, NONE, Preparing, 0),
    (Empty, LeaderJoinsAgain, UNKNOWN, NONE, Empty, 0),
    (Empty, LateJoinsAgain, UNKNOWN, NONE, Empty, 0),
    (Empty, LateJoinsChanged, UNKNOWN, NONE, Empty, 0),
    (Empty, LeaderSyncs, UNKNOWN, NONE, Empty, 0),
    (Empty, LateSyncs, UNKNOWN, NONE, Empty, 0),
    (Empty, LateBeats, UNKNOWN, NONE, Empty, 0),
    (Empty, LateLeaves, UNKNOWN, NONE, Empty, 0),
    (Empty, PhaseEnds, NONE, NONE, Empty, 0),
    (Empty, LateCommits, UNKNOWN, NONE, Empty, 0),
    (Empty, StrangerCommits, OK, NONE, Empty, 1),
    (Empty, GroupIsDeleted, OK, NONE, Dead, 1),
    (Empty, WeekPasses, NONE, NONE, Dead, 1),
    (Preparing, NewMemberJoins, WAITS, WAITS, Preparing, 0),
    (Preparing, LeaderJoinsAgain, WAITS, WAITS, Preparing, 0),
    (Preparing, LateJoinsAgain, OK, OK, Completing, 0),
    (Preparing, LateJoinsChanged, OK, OK, Completing, 0),
    (Preparing, LeaderSyncs, REBALANCE, WAITS, Preparing, 0),
    (Preparing, LateSyncs, REBALANCE, WAITS, Preparing, 0),
    (Preparing, LateBeats, REBALANCE, WAITS, Preparing, 0),
    (Preparing, LateLeaves, OK, OK, Completing, 0),
    (Preparing, LateIsSilent, NONE, OK, Completing, 0),
    (Preparing, PhaseEnds, NONE, OK, Completing, 0),
    (Preparing, LateCommits, OK, WAITS, Preparing, 1),
    (Preparing, StrangerCommits, UNKNOWN, WAITS, Preparing, 0),
    (Preparing, GroupIsDeleted, NON_EMPTY, WAITS, Preparing, 0),
    (Completing, NewMemberJoins, WAITS, REBALANCE, Preparing, 0),
    (Completing, LeaderJoinsAgain, OK, WAITS, Completing, 0),
    (Completing, LateJoinsAgain, OK, WAITS, Completing, 0),
    (Completing, LateJoinsChanged, WAITS, REBALANCE, Preparing, 0),
    (Completing, LeaderSyncs, OK, OK, Stable, 1),
    (Completing, LeaderSyncsInVain, "NotCoordinator", "NotCoordinator", Preparing, 0),
    (Completing, LateSyncs, WAITS, WAITS, Completing, 0),
    (Completing, LateBeats, OK, WAITS, Completing, 0),
    (Completing, LateLeaves, OK, REBALANCE, Preparing, 0),
    (Completing, LateIsSilent, NONE, REBALANCE, Preparing, 0),
    (Completing, PhaseEnds, NONE, REBALANCE, Preparing, 0),
    (Completing, LateCommits, REBALANCE, WAITS, Completing, 0),
    (Completing, StrangerCommits, UNKNOWN, WAITS, Completing, 0),
    (Completing, GroupIsDeleted, NON_EMPTY, WAITS, Completing, 0),
    (Stable, NewMemberJoins, WAITS, NONE, Preparing, 0),
    (Stable, LeaderJoinsAgain, WAITS, NONE, Preparing, 0),
    (Stable, LateJoinsAgain, OK, NONE, Stable, 0),
    (Stable, LateJoinsChanged, WAITS, NONE, Preparing, 0),
    (Stable, LeaderSyncs, OK, NONE, Stable, 0),
    (Stable, LateSyncs, OK, NONE, Stable, 0),
    (Stable, LateBeats, OK, NONE, Stable, 0),
    (Stable, LateLeaves, OK, NONE, Preparing, 0),
    (Stable, LateIsSilent, NONE, NONE, Preparing, 0),
    (Stable, PhaseEnds, NONE, NONE, Stable, 0),
    (Stable, LateCommits, OK, NONE, Stable, 1),
    (Stable, StrangerCommits, UNKNOWN, NONE, Stable, 0),
    (Stable, GroupIsDeleted, NON_EMPTY, NONE, Stable, 0),
    (Dead, NewMemberJoins, UNAVAILABLE, NONE, Dead, 0),
    (Dead, LeaderJoinsAgain, UNAVAILABLE, NONE, Dead, 0),
    (Dead, LateSyncs, UNAVAILABLE, NONE, Dead, 0),
    (Dead, LateBeats, UNAVAILABLE, NONE, Dead, 0),
    (Dead, LateLeaves, UNAVAILABLE, NONE, Dead, 0),
    (Dead, LateCommits, UNAVAILABLE, NONE, Dead, 0),
    (Dead, StrangerCommits, UNAVAILABLE, NONE, Dead, 0),
    (Dead, GroupIsDeleted, "GroupIdNotFound", NONE, Dead, 0),
];

#[track_caller]
fn check(&(state, event, answer, other, next, batches): &Row) {
    let mut scene = Scene::new(state);
    let before = scene.batches();
    let answered = scene.run(event);
    let written = scene.batches() - before;
    scene.h.version = 9;
    let became = scene.h.state();
    assert_eq!(
        (answered, became.as_str(), written),
        ((answer, other), name(next), batches),
        "{state:?} × {event:?}"
    );
}

#[test]
fn every_event_in_every_state_has_its_answer_and_leads_where_it_should() {
    TABLE.iter().for_each(check);
}

/// Every transition of a group that the sources name, by its name.
macro_rules! transitions {
    ($($name:ident: $state:ident, $event:ident => $next:ident;)+) => {
        $(
            #[test]
            fn $name() {
                let row = TABLE.iter().find(|(state, event, ..)| (*state, *event) == ($state, $event));
                let row = row.expect("it is in the table");
                assert_eq!(row.4, $next);
                check(row);
            }
        )+
    };
}

transitions! {
    empty_becomes_preparing_rebalance_when_a_member_joins: Empty, NewMemberJoins => Preparing;
    empty_becomes_dead_when_its_offsets_expire: Empty, WeekPasses => Dead;
    empty_becomes_dead_when_it_is_deleted: Empty, GroupIsDeleted => Dead;
    empty_stays_empty_when_offsets_are_committed: Empty, StrangerCommits => Empty;
    stable_becomes_preparing_rebalance_when_a_new_member_joins: Stable, NewMemberJoins => Preparing;
    stable_becomes_preparing_rebalance_when_the_leader_joins_again: Stable, LeaderJoinsAgain => Preparing;
    stable_becomes_preparing_rebalance_when_a_subscription_changes: Stable, LateJoinsChanged => Preparing;
    stable_becomes_preparing_rebalance_when_a_member_leaves: Stable, LateLeaves => Preparing;
    stable_becomes_preparing_rebalance_when_a_session_ends: Stable, LateIsSilent => Preparing;
    stable_stays_stable_when_a_member_syncs_again: Stable, LateSyncs => Stable;
    preparing_rebalance_becomes_completing_rebalance_when_all_have_joined: Preparing, LateJoinsAgain => Completing;
    preparing_rebalance_becomes_completing_rebalance_when_who_is_missing_leaves: Preparing, LateLeaves => Completing;
    preparing_rebalance_becomes_completing_rebalance_when_a_session_ends: Preparing, LateIsSilent => Completing;
    preparing_rebalance_becomes_completing_rebalance_when_its_time_is_over: Preparing, PhaseEnds => Completing;
    preparing_rebalance_stays_while_members_are_missing: Preparing, NewMemberJoins => Preparing;
    preparing_rebalance_is_told_with_heartbeats: Preparing, LateBeats => Preparing;
    completing_rebalance_becomes_stable_when_the_leader_syncs: Completing, LeaderSyncs => Stable;
    completing_rebalance_becomes_preparing_rebalance_when_the_assignment_is_not_written: Completing, LeaderSyncsInVain => Preparing;
    completing_rebalance_becomes_preparing_rebalance_when_a_member_joins: Completing, NewMemberJoins => Preparing;
    completing_rebalance_becomes_preparing_rebalance_when_a_subscription_changes: Completing, LateJoinsChanged => Preparing;
    completing_rebalance_becomes_preparing_rebalance_when_a_member_leaves: Completing, LateLeaves => Preparing;
    completing_rebalance_becomes_preparing_rebalance_when_a_session_ends: Completing, LateIsSilent => Preparing;
    completing_rebalance_becomes_preparing_rebalance_when_members_do_not_sync: Completing, PhaseEnds => Preparing;
    completing_rebalance_takes_no_commits: Completing, LateCommits => Completing;
    empty_takes_no_commits_of_members: Empty, LateCommits => Empty;
    empty_knows_no_member_that_joins_under_an_id: Empty, LateJoinsAgain => Empty;
    dead_takes_no_commits: Dead, LateCommits => Dead;
    preparing_rebalance_takes_commits: Preparing, LateCommits => Preparing;
    stable_takes_commits: Stable, LateCommits => Stable;
    completing_rebalance_stays_until_the_leader_syncs: Completing, LateSyncs => Completing;
}

#[test]
fn preparing_rebalance_becomes_empty_when_all_are_gone() {
    let mut scene = Scene::new(Stable);
    let before = scene.batches();
    scene.h.leave(&scene.leader.clone());
    scene.h.leave(&scene.patient.clone());
    assert_eq!(scene.h.state(), "PreparingRebalance");
    scene.h.leave(&scene.late.clone());
    assert_eq!(scene.h.state(), "Empty");
    assert_eq!(scene.batches(), before + 1, "the empty group is written");
    scene.h.restart();
    assert_eq!(scene.h.state(), "Empty");
}

#[test]
fn the_next_generation_has_one_number_more_and_another_leader_if_the_leader_is_gone() {
    let mut scene = Scene::new(Stable);
    let (leader, patient, late) = (scene.leader.clone(), scene.patient.clone(), scene.late.clone());
    scene.h.leave(&leader);
    let joins = [scene.h.join(&patient), scene.h.join(&late)];
    for join in joins {
        let joined = scene.h.join_reply(join);
        assert_eq!(joined.generation_id, scene.generation + 1);
        assert!([&*patient, &*late].contains(&&*joined.leader));
    }
}

#[test]
fn the_join_phase_lasts_as_long_as_the_longest_rebalance_time_out() {
    let mut scene = Scene::new(Stable);
    let (leader, patient, late) = (scene.leader.clone(), scene.patient.clone(), scene.late.clone());
    let mut longer = join_request(&leader);
    longer.rebalance_timeout_ms = 2 * REBALANCE_MS;
    scene.h.send(Request::Join(longer));
    scene.h.join(&patient);
    scene.pass(REBALANCE_MS as u64, &[&late]);
    assert_eq!(scene.h.state(), "PreparingRebalance");
    scene.pass(REBALANCE_MS as u64, &[&late]);
    assert_eq!(scene.h.state(), "CompletingRebalance");
}
