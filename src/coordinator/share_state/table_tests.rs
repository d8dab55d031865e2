//! A share partition's state and what each event makes of it: every state × event → what is answered, the records
//! written, what is kept. Codes are Apache Kafka's (`ShareCoordinatorShard`).

use super::machine::{Request, Response, StateWrite};
use super::tests::{World, batch, initialize, key, read};
use crate::base::{LeaderEpoch, Offset};
use crate::coordinator::ReplyToken;
use crate::share::DeliveryState;
use crate::wire::ErrorCode;

const GROUP: &str = "g";
/// The state epoch that is known; the leader epoch is 7 once somebody has written.
const STATE_EPOCH: i32 = 2;
const LEADER_EPOCH: i32 = 7;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum In {
    Absent,
    /// Nobody has written yet.
    Made,
    Written,
    /// As many changes are written as may be before all of it is written.
    Due,
    /// Written, and another write is on its way: who comes waits for it.
    Busy,
    Loading,
    NotHere,
}
use In::{Absent, Busy, Due, Loading, Made, NotHere, Written};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    InitializeOlder,
    InitializeSame,
    InitializeNewer,
    /// By somebody who leads nothing.
    ReadSummary,
    ReadByOlderLeader,
    ReadByLeader,
    ReadByNewerLeader,
    /// And that it leads cannot be written.
    ReadByNewerLeaderInVain,
    WriteByOlderLeader,
    WriteOfOlderState,
    Write,
    WriteByNewerLeader,
    WriteOfNewerState,
    WriteBehindStart,
    WriteInVain,
    Delete,
    TopicIsDeleted,
}
use Event::*;

const EVENTS: [Event; 17] = [
    InitializeOlder,
    InitializeSame,
    InitializeNewer,
    ReadSummary,
    ReadByOlderLeader,
    ReadByLeader,
    ReadByNewerLeader,
    ReadByNewerLeaderInVain,
    WriteByOlderLeader,
    WriteOfOlderState,
    Write,
    WriteByNewerLeader,
    WriteOfNewerState,
    WriteBehindStart,
    WriteInVain,
    Delete,
    TopicIsDeleted,
];

const OK: &str = "ok";
/// Nobody asks.
const NONE: &str = "-";
const UNKNOWN: &str = "UnknownTopicOrPartition";
const INVALID: &str = "InvalidRequest";
const OLD_LEADER: &str = "FencedLeaderEpoch";
const OLD_STATE: &str = "FencedStateEpoch";
const UNAVAILABLE: &str = "CoordinatorNotAvailable";
const IS_LOADING: &str = "CoordinatorLoadInProgress";
const IS_ELSEWHERE: &str = "NotCoordinator";

/// What is answered; the records: a snapshot, an update or an end (x); what is kept: the epochs of state and leader,
/// the start, the batches.
type Row = (Event, &'static str, &'static str, &'static str);

const TABLE: &[(In, &[Row])] = &[
    (
        Absent,
        &[
            (InitializeOlder, OK, "s", "2-1 0 @50 0"),
            (InitializeSame, OK, "s", "2 0 @50 0"),
            (InitializeNewer, OK, "s", "2+1 0 @50 0"),
            (ReadSummary, UNKNOWN, "", UNKNOWN),
            (ReadByOlderLeader, UNKNOWN, "", UNKNOWN),
            (ReadByLeader, UNKNOWN, "", UNKNOWN),
            (ReadByNewerLeader, UNKNOWN, "", UNKNOWN),
            (ReadByNewerLeaderInVain, UNKNOWN, "", UNKNOWN),
            (WriteByOlderLeader, INVALID, "", UNKNOWN),
            (WriteOfOlderState, INVALID, "", UNKNOWN),
            (Write, INVALID, "", UNKNOWN),
            (WriteByNewerLeader, INVALID, "", UNKNOWN),
            (WriteOfNewerState, INVALID, "", UNKNOWN),
            (WriteBehindStart, INVALID, "", UNKNOWN),
            (WriteInVain, INVALID, "", UNKNOWN),
            (Delete, OK, "", UNKNOWN),
            (TopicIsDeleted, NONE, "", UNKNOWN),
        ],
    ),
    (
        Made,
        &[
            (InitializeOlder, OLD_STATE, "", "2 0 @-1 0"),
            (InitializeSame, OK, "s", "2 0 @50 0"),
            (InitializeNewer, OK, "s", "2+1 0 @50 0"),
            (ReadSummary, OK, "", "2 0 @-1 0"),
            (ReadByOlderLeader, OK, "u", "2 6 @-1 0"),
            (ReadByLeader, OK, "u", "2 7 @-1 0"),
            (ReadByNewerLeader, OK, "u", "2 8 @-1 0"),
            (ReadByNewerLeaderInVain, UNAVAILABLE, "", "2 0 @-1 0"),
            (WriteByOlderLeader, OK, "u", "2 6 @10 1"),
            (WriteOfOlderState, OLD_STATE, "", "2 0 @-1 0"),
            (Write, OK, "u", "2 7 @10 1"),
            (WriteByNewerLeader, OK, "u", "2 8 @10 1"),
            (WriteOfNewerState, OK, "u", "2 7 @10 1"),
            (WriteBehindStart, OK, "u", "2 7 @5 1"),
            (WriteInVain, UNAVAILABLE, "", "2 0 @-1 0"),
            (Delete, OK, "x", UNKNOWN),
            (TopicIsDeleted, NONE, "x", UNKNOWN),
        ],
    ),
    (
        Written,
        &[
            (InitializeOlder, OLD_STATE, "", "2 7 @10 1"),
            (InitializeSame, OK, "s", "2 0 @50 0"),
            (InitializeNewer, OK, "s", "2+1 0 @50 0"),
            (ReadSummary, OK, "", "2 7 @10 1"),
            (ReadByOlderLeader, OLD_LEADER, "", "2 7 @10 1"),
            (ReadByLeader, OK, "", "2 7 @10 1"),
            (ReadByNewerLeader, OK, "u", "2 8 @10 1"),
            (ReadByNewerLeaderInVain, UNAVAILABLE, "", "2 7 @10 1"),
            (WriteByOlderLeader, OLD_LEADER, "", "2 7 @10 1"),
            (WriteOfOlderState, OLD_STATE, "", "2 7 @10 1"),
            (Write, OK, "u", "2 7 @10 2"),
            (WriteByNewerLeader, OK, "u", "2 8 @10 2"),
            (WriteOfNewerState, OK, "u", "2 7 @10 2"),
            (WriteBehindStart, OK, "u", "2 7 @10 2"),
            (WriteInVain, UNAVAILABLE, "", "2 7 @10 1"),
            (Delete, OK, "x", UNKNOWN),
            (TopicIsDeleted, NONE, "x", UNKNOWN),
        ],
    ),
    (
        Due,
        &[
            (InitializeOlder, OLD_STATE, "", "2 7 @10 1"),
            (InitializeSame, OK, "s", "2 0 @50 0"),
            (InitializeNewer, OK, "s", "2+1 0 @50 0"),
            (ReadSummary, OK, "", "2 7 @10 1"),
            (ReadByOlderLeader, OLD_LEADER, "", "2 7 @10 1"),
            (ReadByLeader, OK, "", "2 7 @10 1"),
            (ReadByNewerLeader, OK, "s", "2 8 @10 1"),
            (ReadByNewerLeaderInVain, UNAVAILABLE, "", "2 7 @10 1"),
            (WriteByOlderLeader, OLD_LEADER, "", "2 7 @10 1"),
            (WriteOfOlderState, OLD_STATE, "", "2 7 @10 1"),
            (Write, OK, "s", "2 7 @10 2"),
            (WriteByNewerLeader, OK, "s", "2 8 @10 2"),
            (WriteOfNewerState, OK, "s", "2 7 @10 2"),
            (WriteBehindStart, OK, "s", "2 7 @10 2"),
            (WriteInVain, UNAVAILABLE, "", "2 7 @10 1"),
            (Delete, OK, "x", UNKNOWN),
            (TopicIsDeleted, NONE, "x", UNKNOWN),
        ],
    ),
    (
        Busy,
        &[
            (InitializeOlder, OLD_STATE, "u", "2 7 @10 2"),
            (InitializeSame, OK, "us", "2 0 @50 0"),
            (InitializeNewer, OK, "us", "2+1 0 @50 0"),
            (ReadSummary, OK, "u", "2 7 @10 2"),
            (ReadByOlderLeader, OLD_LEADER, "u", "2 7 @10 2"),
            (ReadByLeader, OK, "u", "2 7 @10 2"),
            (ReadByNewerLeader, OK, "uu", "2 8 @10 2"),
            (ReadByNewerLeaderInVain, UNAVAILABLE, "u", "2 7 @10 2"),
            (WriteByOlderLeader, OLD_LEADER, "u", "2 7 @10 2"),
            (WriteOfOlderState, OLD_STATE, "u", "2 7 @10 2"),
            (Write, OK, "uu", "2 7 @10 2"),
            (WriteByNewerLeader, OK, "uu", "2 8 @10 2"),
            (WriteOfNewerState, OK, "uu", "2 7 @10 2"),
            (WriteBehindStart, OK, "uu", "2 7 @10 2"),
            (WriteInVain, UNAVAILABLE, "u", "2 7 @10 2"),
            (Delete, OK, "ux", UNKNOWN),
            (TopicIsDeleted, NONE, "ux", UNKNOWN),
        ],
    ),
    (Loading, &refused(IS_LOADING)),
    (NotHere, &refused(IS_ELSEWHERE)),
];

/// All events where nothing can be served.
const fn refused(why: &'static str) -> [Row; EVENTS.len()] {
    let mut rows = [(TopicIsDeleted, NONE, "", why); EVENTS.len()];
    let mut at = 0;
    while at + 1 < EVENTS.len() {
        rows[at] = (EVENTS[at], why, "", why);
        at += 1;
    }
    rows
}

fn write(leader_epoch: i32, state_epoch: i32, start: i64, first: i64) -> Request {
    Request::Write(Box::new(StateWrite {
        key: key(GROUP),
        state_epoch,
        leader_epoch: LeaderEpoch(leader_epoch),
        start: Offset(start),
        delivery_complete: 2,
        batches: vec![batch(first, first + 1, DeliveryState::Acknowledged, 1)],
    }))
}

fn request(event: Event) -> Option<Request> {
    let initialize = |state_epoch| initialize(GROUP, state_epoch, 50);
    let read = |leader_epoch| read(GROUP, LeaderEpoch(leader_epoch));
    let write = |leader_epoch, state_epoch| write(leader_epoch, state_epoch, 10, 20);
    Some(match event {
        InitializeOlder => initialize(STATE_EPOCH - 1),
        InitializeSame => initialize(STATE_EPOCH),
        InitializeNewer => initialize(STATE_EPOCH + 1),
        ReadSummary => read(LeaderEpoch::NONE.0),
        ReadByOlderLeader => read(LEADER_EPOCH - 1),
        ReadByLeader => read(LEADER_EPOCH),
        ReadByNewerLeader | ReadByNewerLeaderInVain => read(LEADER_EPOCH + 1),
        WriteByOlderLeader => write(LEADER_EPOCH - 1, STATE_EPOCH),
        WriteOfOlderState => write(LEADER_EPOCH, STATE_EPOCH - 1),
        Write | WriteInVain => write(LEADER_EPOCH, STATE_EPOCH),
        WriteByNewerLeader => write(LEADER_EPOCH + 1, STATE_EPOCH),
        WriteOfNewerState => write(LEADER_EPOCH, STATE_EPOCH + 1),
        WriteBehindStart => self::write(LEADER_EPOCH, STATE_EPOCH, 5, 20),
        Delete => Request::Delete { key: key(GROUP) },
        TopicIsDeleted => return None,
    })
}

fn world(state: In) -> World {
    let mut world = World::new();
    let writes = match state {
        Absent | Made | Loading | NotHere => 0,
        Written | Busy => 1,
        Due => 5,
    };
    if state != Absent {
        assert_eq!(world.ask(initialize(GROUP, STATE_EPOCH, -1)), Response::Changed(Ok(())));
    }
    for _ in 0..writes {
        let write = write(LEADER_EPOCH, STATE_EPOCH, 10, 10);
        assert_eq!(world.ask(write), Response::Changed(Ok(())));
    }
    let index = world.coordinator.partition_of(&key(GROUP));
    match state {
        Busy => drop(world.send(write(LEADER_EPOCH, STATE_EPOCH, 10, 20))),
        Loading => world.coordinator.load(index),
        NotHere => world.coordinator.unload(index),
        _ => {}
    }
    world
}

/// Has the event happen and all be written that follows; what it is answered.
fn run(world: &mut World, state: In, event: Event) -> String {
    let token = match request(event) {
        Some(request) => Some(world.send(request)),
        None => {
            world.coordinator.topics_deleted(|topic| topic == key(GROUP).topic, world.now);
            world.perform();
            None
        }
    };
    if state == Busy {
        assert!(world.replies.is_empty() && world.pending.len() == 1, "{event:?} waits");
        world.finish(0, Ok(()));
    }
    while !world.pending.is_empty() {
        let result = match event {
            WriteInVain | ReadByNewerLeaderInVain => Err(ErrorCode::NotEnoughReplicas),
            _ => Ok(()),
        };
        world.finish(0, result);
    }
    token.map_or(NONE.to_owned(), |token| answer(world, token))
}

fn answer(world: &World, token: ReplyToken) -> String {
    let of_token = world.replies.iter().filter(|(replied, _)| *replied == token);
    let answers: Vec<&Response> = of_token.map(|(_, response)| response).collect();
    let [answer] = answers[..] else { panic!("one answer, not {answers:?}") };
    let error = match answer {
        Response::Read(result) => result.as_ref().err().copied(),
        Response::Changed(result) => result.err(),
    };
    error.map_or(OK.to_owned(), |error| format!("{error:?}"))
}

fn kept(world: &mut World) -> String {
    match world.read(GROUP) {
        Err(error) => format!("{error:?}"),
        Ok(kept) => {
            let state_epoch = match kept.state_epoch - STATE_EPOCH {
                0 => format!("{STATE_EPOCH}"),
                difference => format!("{STATE_EPOCH}{difference:+}"),
            };
            let (leader_epoch, start, batches) = (kept.leader_epoch.0, kept.start.0, kept.batches.len());
            format!("{state_epoch} {leader_epoch} @{start} {batches}")
        }
    }
}

fn records_from(world: &World, at: usize) -> String {
    let kind = |(_, record): &(_, crate::coordinator::KeyValue)| match (record.key[1], &record.value) {
        (0, Some(_)) => 's',
        (0, None) => 'x',
        _ => 'u',
    };
    world.log[at..].iter().map(kind).collect()
}

#[test]
fn every_event_in_every_state_has_its_answer_and_leaves_what_it_should() {
    let mut wrong = Vec::new();
    for (state, rows) in TABLE {
        assert!(rows.iter().map(|row| row.0).eq(EVENTS), "{state:?}: each event, once");
        for (event, answer, records, left) in *rows {
            let mut world = world(*state);
            let written = world.log.len();
            let found = (run(&mut world, *state, *event), records_from(&world, written), kept(&mut world));
            let expected = ((*answer).to_owned(), (*records).to_owned(), (*left).to_owned());
            if found != expected {
                wrong.push(format!("{state:?} × {event:?}: {found:?}, not {expected:?}"));
            }
            if !matches!(state, Loading | NotHere) {
                world.reload();
                assert_eq!(kept(&mut world), found.2, "{state:?} × {event:?}: the log says the same");
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn who_reads_as_a_newer_leader_is_told_what_was_there_and_fences_the_one_before() {
    let mut world = world(Written);
    let Response::Read(Ok(told)) = world.ask(read(GROUP, LeaderEpoch(LEADER_EPOCH + 1))) else {
        panic!("it is there")
    };
    assert_eq!((told.start, told.batches.len()), (Offset(10), 1));
    let late = world.ask(write(LEADER_EPOCH, STATE_EPOCH, 10, 20));
    assert_eq!(late, Response::Changed(Err(ErrorCode::FencedLeaderEpoch)));
    world.reload();
    let late = world.ask(write(LEADER_EPOCH, STATE_EPOCH, 10, 20));
    assert_eq!(late, Response::Changed(Err(ErrorCode::FencedLeaderEpoch)));
}
