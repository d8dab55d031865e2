//! The rules row by row, and against a model that knows no more than who fetched what and when.

use proptest::prelude::*;

use super::*;

const LAG: Duration = Duration::from_millis(1000);
const ME: BrokerId = BrokerId(1);
const TWO: BrokerId = BrokerId(2);
const THREE: BrokerId = BrokerId(3);
const EPOCH: LeaderEpoch = LeaderEpoch(4);

fn at(ms: u64) -> Monotonic {
    Monotonic::from_millis(ms)
}

fn brokers() -> Brokers {
    let brokers = Brokers::new(ME, LAG);
    brokers.set_alive([ME, TWO, THREE].map(|broker| (broker, BrokerEpoch(10))));
    brokers
}

fn assignment<'a>(isr: &'a [BrokerId], partition_epoch: i32) -> Assignment<'a> {
    Assignment { leader: Some(ME), leader_epoch: EPOCH, partition_epoch, replicas: &[ME, TWO, THREE], isr }
}

fn fetch(replica: BrokerId, offset: i64) -> FollowerFetch {
    FollowerFetch { replica, broker_epoch: BrokerEpoch(10), offset: Offset(offset), log_start: Offset(0) }
}

/// A leadership that began at offset 100.
fn leading(isr: &[BrokerId]) -> (Leadership, Brokers) {
    let brokers = brokers();
    (Leadership::new(&brokers, &assignment(isr, 7), Offset(100), at(0)), brokers)
}

#[test]
fn the_high_watermark_is_the_least_end_of_those_in_sync() {
    let (mut leadership, _) = leading(&[ME, TWO]);
    assert_eq!(
        leadership.high_watermark(Offset(150), 1, at(1)),
        Some(Offset(-1)),
        "one of them has not said how far it is"
    );
    leadership.fetched(fetch(TWO, 120), Offset(150), at(1)).unwrap();
    assert_eq!(leadership.high_watermark(Offset(150), 1, at(1)), Some(Offset(120)));
    leadership.fetched(fetch(TWO, 160), Offset(160), at(2)).unwrap();
    assert_eq!(
        leadership.high_watermark(Offset(140), 1, at(2)),
        Some(Offset(140)),
        "the leader's own end counts: of it a part may not be on the disk"
    );
}

#[test]
fn it_waits_for_whoever_has_caught_up_and_for_nobody_else() {
    let (mut leadership, brokers) = leading(&[ME]);
    assert_eq!(leadership.high_watermark(Offset(150), 1, at(1)), Some(Offset(150)));
    leadership.fetched(fetch(TWO, 50), Offset(150), at(1)).unwrap();
    assert_eq!(leadership.high_watermark(Offset(150), 1, at(1)), Some(Offset(150)), "it is far behind");
    // What it fetched is what the leader had at its last fetch: it had caught up then.
    leadership.fetched(fetch(TWO, 150), Offset(170), at(500)).unwrap();
    assert_eq!(leadership.high_watermark(Offset(170), 1, at(500)), Some(Offset(150)));
    assert_eq!(leadership.high_watermark(Offset(170), 1, at(1001)), Some(Offset(150)));
    assert_eq!(leadership.high_watermark(Offset(170), 1, at(1002)), Some(Offset(170)), "too long ago");
    leadership.fetched(fetch(TWO, 170), Offset(170), at(2000)).unwrap();
    assert_eq!(leadership.high_watermark(Offset(180), 1, at(2001)), Some(Offset(170)));
    brokers.set_alive([(ME, BrokerEpoch(10)), (TWO, BrokerEpoch(11))]);
    assert_eq!(
        leadership.high_watermark(Offset(180), 1, at(2001)),
        Some(Offset(180)),
        "it has started again since and may have lost some"
    );
}

#[test]
fn nothing_is_committed_while_too_few_are_in_sync() {
    let (mut leadership, _) = leading(&[ME, TWO]);
    leadership.fetched(fetch(TWO, 120), Offset(150), at(1)).unwrap();
    assert_eq!(leadership.high_watermark(Offset(150), 3, at(1)), None);
    assert_eq!(leadership.high_watermark(Offset(150), 2, at(1)), Some(Offset(120)));
}

#[test]
fn who_is_asked_to_be_in_sync_counts_at_once() {
    let (mut leadership, _) = leading(&[ME]);
    leadership.fetched(fetch(TWO, 130), Offset(140), at(1)).unwrap();
    assert_eq!(leadership.expand(TWO, Offset(135)), None, "it lacks what is committed");
    let proposal = leadership.expand(TWO, Offset(130)).unwrap();
    assert_eq!(proposal.isr, [(ME, BrokerEpoch(10)), (TWO, BrokerEpoch(10))]);
    assert_eq!((proposal.leader_epoch, proposal.partition_epoch), (EPOCH, 7));
    assert_eq!(leadership.isr(), [ME], "until the controller says so");
    assert_eq!(leadership.high_watermark(Offset(200), 1, at(60_000)), Some(Offset(130)), "however late");
    leadership.fetched(fetch(THREE, 200), Offset(200), at(60_000)).unwrap();
    assert_eq!(leadership.expand(THREE, Offset(130)), None, "one question at a time");
    let altered = AlteredIsr { leader_epoch: EPOCH, partition_epoch: 8, isr: vec![ME, TWO] };
    assert!(leadership.altered(&proposal, Ok(altered.clone())));
    assert_eq!(leadership.isr(), [ME, TWO]);
    assert!(!leadership.altered(&proposal, Ok(altered)), "it was answered before");
    assert!(leadership.expand(THREE, Offset(130)).is_some());
}

#[test]
fn a_follower_behind_the_start_of_the_leadership_does_not_join() {
    let (mut leadership, _) = leading(&[ME]);
    leadership.fetched(fetch(TWO, 99), Offset(100), at(1)).unwrap();
    // The high watermark may be behind the start when a leadership begins.
    assert_eq!(leadership.expand(TWO, Offset(50)), None);
    leadership.fetched(fetch(TWO, 100), Offset(100), at(2)).unwrap();
    assert!(leadership.expand(TWO, Offset(50)).is_some());
}

#[test]
fn whoever_lags_for_too_long_is_to_leave() {
    let (mut leadership, _) = leading(&[ME, TWO, THREE]);
    leadership.fetched(fetch(TWO, 150), Offset(150), at(900)).unwrap();
    assert_eq!(leadership.shrink(Offset(150), at(1000)), None, "they have the time of one lag at first");
    let proposal = leadership.shrink(Offset(150), at(1001)).unwrap();
    assert_eq!(proposal.isr, [(ME, BrokerEpoch(10)), (TWO, BrokerEpoch(10))]);
    let reached = leadership.high_watermark(Offset(150), 1, at(1001));
    assert_eq!(reached, Some(Offset(-1)), "it may be in sync for all this broker knows");
    assert_eq!(leadership.shrink(Offset(150), at(1002)), None);
    let altered = AlteredIsr { leader_epoch: EPOCH, partition_epoch: 8, isr: vec![ME, TWO] };
    assert!(leadership.altered(&proposal, Ok(altered)));
    assert_eq!(leadership.high_watermark(Offset(150), 1, at(1001)), Some(Offset(150)));
    assert_eq!(leadership.shrink(Offset(150), at(90_000)), None, "it has all there is, however long ago");
    assert!(leadership.shrink(Offset(151), at(90_000)).is_some());
}

#[test]
fn a_consumer_is_sent_to_who_is_in_sync_and_has_what_it_wants() {
    let (mut leadership, _) = leading(&[ME, TWO, THREE]);
    assert_eq!(leadership.nearer_replica(&[TWO, THREE], Offset(0)), None, "nobody knows how far they are");
    leadership
        .fetched(FollowerFetch { log_start: Offset(20), ..fetch(TWO, 150) }, Offset(150), at(5))
        .unwrap();
    leadership.fetched(fetch(THREE, 120), Offset(150), at(5)).unwrap();
    assert_eq!(leadership.nearer_replica(&[TWO, THREE], Offset(120)), Some(TWO), "it has more");
    assert_eq!(leadership.nearer_replica(&[THREE], Offset(120)), Some(THREE));
    assert_eq!(leadership.nearer_replica(&[THREE], Offset(121)), None);
    assert_eq!(
        leadership.nearer_replica(&[TWO, THREE], Offset(19)),
        Some(THREE),
        "the other one has it no more"
    );
    assert_eq!(leadership.nearer_replica(&[ME, BrokerId(9)], Offset(120)), None);
    leadership.fetched(fetch(THREE, 150), Offset(150), at(9)).unwrap();
    assert_eq!(leadership.nearer_replica(&[TWO, THREE], Offset(150)), Some(THREE), "it had everything later");
    assert!(leadership.set_assignment(&assignment(&[ME, TWO], 8), Offset(150), at(10)));
    assert_eq!(leadership.nearer_replica(&[TWO, THREE], Offset(150)), Some(TWO));
    assert_eq!(leadership.nearer_replica(&[THREE], Offset(150)), None, "it is not in sync");
}

#[test]
fn a_proposal_ends_by_its_answer_or_by_the_metadata() {
    let rows = [
        (Err(ErrorCode::IneligibleReplica), true),
        (Err(ErrorCode::OperationNotAttempted), true),
        (Err(ErrorCode::InvalidUpdateVersion), false),
        (Err(ErrorCode::FencedLeaderEpoch), false),
        (Ok(AlteredIsr { leader_epoch: LeaderEpoch(5), partition_epoch: 8, isr: vec![ME, TWO] }), false),
    ];
    for (answer, may_ask_again) in rows {
        let (mut leadership, _) = leading(&[ME]);
        leadership.fetched(fetch(TWO, 100), Offset(100), at(1)).unwrap();
        let proposal = leadership.expand(TWO, Offset(100)).unwrap();
        assert!(!leadership.altered(&proposal, answer.clone()));
        assert_eq!(leadership.expand(TWO, Offset(100)).is_some(), may_ask_again, "{answer:?}");
        assert!(!leadership.set_assignment(&assignment(&[ME], 7), Offset(100), at(2)), "no news");
        assert!(leadership.set_assignment(&assignment(&[ME], 9), Offset(100), at(2)));
        assert_eq!(leadership.isr(), [ME]);
        assert!(leadership.expand(TWO, Offset(100)).is_some());
    }
}

#[test]
fn strangers_and_earlier_processes_are_refused() {
    let (mut leadership, brokers) = leading(&[ME, TWO]);
    let stranger = FollowerFetch { replica: BrokerId(9), ..fetch(TWO, 100) };
    assert_eq!(leadership.fetched(stranger, Offset(100), at(1)), Err(ErrorCode::UnknownLeaderEpoch));
    let stale = FollowerFetch { broker_epoch: BrokerEpoch(9), ..fetch(TWO, 100) };
    assert_eq!(leadership.fetched(stale, Offset(100), at(1)), Err(ErrorCode::NotLeaderOrFollower));
    brokers.set_alive([(ME, BrokerEpoch(10))]);
    leadership.fetched(stale, Offset(100), at(1)).unwrap();
    assert_eq!(leadership.expand(TWO, Offset(100)), None);
}

#[test]
fn the_low_watermark_is_the_least_start_of_those_alive() {
    let (mut leadership, brokers) = leading(&[ME, TWO]);
    assert_eq!(leadership.low_watermark(), Some(UNKNOWN_END));
    leadership
        .fetched(FollowerFetch { log_start: Offset(5), ..fetch(TWO, 100) }, Offset(100), at(1))
        .unwrap();
    leadership
        .fetched(FollowerFetch { log_start: Offset(9), ..fetch(THREE, 100) }, Offset(100), at(1))
        .unwrap();
    assert_eq!(leadership.low_watermark(), Some(Offset(5)));
    brokers.set_alive([(ME, BrokerEpoch(10)), (THREE, BrokerEpoch(10))]);
    assert_eq!(leadership.low_watermark(), Some(Offset(9)));
}

#[derive(Clone, Debug)]
enum Step {
    Append(u8),
    /// A follower fetches what it has not got, so much of it.
    Fetch {
        follower: bool,
        takes: u8,
    },
    Wait(u16),
    Shrink,
    Expand {
        follower: bool,
    },
    /// The controller says yes, or no.
    Answer(bool),
    /// The metadata takes a follower out of those in sync.
    Fence {
        follower: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..20_u8).prop_map(Step::Append),
        (any::<bool>(), 0..30_u8).prop_map(|(follower, takes)| Step::Fetch { follower, takes }),
        (1..800_u16).prop_map(Step::Wait),
        Just(Step::Shrink),
        any::<bool>().prop_map(|follower| Step::Expand { follower }),
        any::<bool>().prop_map(Step::Answer),
        any::<bool>().prop_map(|follower| Step::Fence { follower }),
    ]
}

/// Every fetch there was: when, from where, and where the leader's log ended.
#[derive(Default)]
struct Model {
    fetches: [Vec<(u64, i64, i64)>; 2],
}

impl Model {
    fn end(&self, follower: usize) -> i64 {
        self.fetches[follower].last().map_or(-1, |fetch| fetch.1)
    }

    /// It has what the leader has now, or had what the leader had at some fetch that is not older than the lag.
    fn is_caught_up(&self, follower: usize, end: i64, now: u64, since: Option<u64>) -> bool {
        let fetches = &self.fetches[follower];
        let at_once = fetches.iter().filter(|(_, offset, leader)| offset >= leader).map(|(at, ..)| *at);
        // It has got by its next fetch what there was at one.
        let by_next = fetches.windows(2).filter(|pair| pair[1].1 >= pair[0].2).map(|pair| pair[0].0);
        let last = at_once.chain(by_next).chain(since).max();
        self.end(follower) == end || last.is_some_and(|last| now - last <= LAG.as_millis() as u64)
    }
}

proptest! {
    #[test]
    fn what_is_committed_stays_and_all_in_sync_have_it(steps in prop::collection::vec(step(), 1..80)) {
        let (mut leadership, _) = leading(&[ME, TWO, THREE]);
        let mut model = Model::default();
        let (mut end, mut now, mut epoch, mut high_watermark) = (100_i64, 0_u64, 7, 100_i64);
        let mut isr = vec![ME, TWO, THREE];
        let mut asked: Option<IsrProposal> = None;
        let id = |follower: bool| if follower { TWO } else { THREE };
        for step in steps {
            match step {
                Step::Append(count) => end += i64::from(count),
                Step::Wait(ms) => now += u64::from(ms),
                Step::Fetch { follower, takes } => {
                    let number = usize::from(!follower);
                    let offset = (model.end(number).max(90) + i64::from(takes)).min(end);
                    leadership.fetched(fetch(id(follower), offset), Offset(end), at(now)).unwrap();
                    model.fetches[number].push((now, offset, end));
                }
                Step::Shrink => {
                    let proposal = leadership.shrink(Offset(end), at(now));
                    prop_assert!(proposal.is_none() || asked.is_none());
                    asked = asked.or(proposal);
                }
                Step::Expand { follower } => {
                    let proposal = leadership.expand(id(follower), Offset(high_watermark));
                    if proposal.is_some() {
                        prop_assert!(model.end(usize::from(!follower)) >= high_watermark);
                    }
                    asked = asked.or(proposal);
                }
                Step::Answer(yes) => {
                    let Some(proposal) = asked.take() else { continue };
                    let wanted: Vec<BrokerId> = proposal.isr.iter().map(|(broker, _)| *broker).collect();
                    let answer = match yes {
                        true => {
                            epoch += 1;
                            isr = wanted.clone();
                            Ok(AlteredIsr { leader_epoch: EPOCH, partition_epoch: epoch, isr: wanted })
                        }
                        false => Err(ErrorCode::IneligibleReplica),
                    };
                    prop_assert_eq!(leadership.altered(&proposal, answer), yes);
                }
                Step::Fence { follower } => {
                    epoch += 1;
                    isr.retain(|broker| *broker != id(follower));
                    leadership.set_assignment(&assignment(&isr, epoch), Offset(end), at(now));
                    asked = None;
                }
            }
            prop_assert_eq!(leadership.isr(), &isr[..]);
            let reached = leadership.high_watermark(Offset(end), 1, at(now)).unwrap().0;
            let proposed = asked.iter().flat_map(|proposal| &proposal.isr).map(|(broker, _)| *broker);
            let maximal: Vec<BrokerId> = isr.iter().copied().chain(proposed).collect();
            let mut expected = end;
            for (number, follower) in [TWO, THREE].into_iter().enumerate() {
                let has_fetched = !model.fetches[number].is_empty();
                // Those in sync when it began had the time of one lag.
                let counts = has_fetched && model.is_caught_up(number, end, now, Some(0));
                if maximal.contains(&follower) || counts {
                    expected = expected.min(model.end(number));
                }
            }
            prop_assert_eq!(reached, expected);
            high_watermark = high_watermark.max(reached);
            for (number, follower) in [TWO, THREE].into_iter().enumerate() {
                if isr.contains(&follower) && !model.fetches[number].is_empty() && high_watermark > 100 {
                    prop_assert!(model.end(number) >= high_watermark, "{} is behind", follower);
                }
            }
        }
    }
}
