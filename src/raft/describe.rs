//! What the leader of the metadata log tells of it (DescribeQuorum): who votes, how far each log is, when each node was
//! last heard of and last had everything. Kafka's `LeaderState` keeps the same. Lives on shard 0.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use openraft::RaftMetrics;
use openraft::async_runtime::WatchReceiver as _;
use uuid::Uuid;

use super::leadership::Metrics;
use super::runtime::Moment;
use super::types::{Member, Seat, Types};
use crate::base::clock::{Monotonic, Now, Timestamp};
use crate::base::{BrokerId, LeaderEpoch, Offset};
use crate::io::runtime::{self, Queue};
use crate::metadata::{DecodeError, Reader, Writer};
use crate::peer::Identity;

/// An observer that has not asked for the log for so long is none any more (`LeaderState.OBSERVER_SESSION_TIMEOUT_MS`).
const OBSERVER_SILENCE_MAX: Duration = Duration::from_secs(300);

/// Where an offset is not known.
const UNKNOWN: Offset = Offset(-1);

/// The quorum as its leader sees it. Offsets are places of entries in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuorumDescription {
    pub leader: BrokerId,
    pub epoch: LeaderEpoch,
    /// What is below is on the disks of a majority; -1 while that is not known.
    pub high_watermark: Offset,
    pub voters: Vec<ReplicaDescription>,
    /// Nodes that have the log and no vote.
    pub observers: Vec<ReplicaDescription>,
}

/// One node's metadata log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaDescription {
    pub node: BrokerId,
    /// Where its log is; nil until the leader has met it.
    pub directory: Uuid,
    /// -1 while the leader has not heard of it.
    pub log_end: Offset,
    /// When the leader sent what the node answered last; of the leader itself, now.
    pub last_fetch: Timestamp,
    /// When the node last had all that the leader had; of the leader itself, now.
    pub last_caught_up: Timestamp,
}

impl QuorumDescription {
    /// What `metrics` say, which must be a leader's.
    pub fn new(metrics: &RaftMetrics<Types>, followers: &Followers, now: Now) -> Self {
        let config = &metrics.membership_config;
        let describe = |(seat, member): (&Seat, &Member)| match *seat == metrics.id {
            true => ReplicaDescription {
                node: member.node,
                directory: member.directory,
                log_end: Offset(end_of(metrics.last_log_index) as i64),
                last_fetch: now.wall,
                last_caught_up: now.wall,
            },
            false => followers.describe(*seat, member, now),
        };
        let is_voter = |seat: &Seat| config.voter_ids().any(|voter| voter == *seat);
        let (voters, learners): (Vec<_>, Vec<_>) = config.nodes().partition(|(seat, _)| is_voter(seat));
        let mut observers: Vec<_> = learners.into_iter().map(describe).collect();
        let is_member = |node: BrokerId| config.nodes().any(|(_, member)| member.node == node);
        observers.extend(followers.observers(now).filter(|observer| !is_member(observer.node)));
        let committed = [&metrics.cluster_committed, &metrics.local_committed].into_iter().flatten();
        let high_watermark = committed.map(|log_id| log_id.index as i64 + 1).max();
        Self {
            leader: config.get_node(&metrics.id).map_or(BrokerId(-1), |member| member.node),
            epoch: LeaderEpoch(i32::try_from(metrics.current_term).unwrap_or(i32::MAX)),
            high_watermark: high_watermark.map_or(UNKNOWN, Offset),
            voters: voters.into_iter().map(describe).collect(),
            observers,
        }
    }

    /// As one node tells another; `None`: it does not lead.
    pub fn encode(description: Option<&Self>) -> Vec<u8> {
        let mut body = Vec::new();
        let mut writer = Writer(&mut body);
        writer.bool(description.is_some());
        if let Some(description) = description {
            writer.signed(i64::from(description.leader.0));
            writer.signed(i64::from(description.epoch.0));
            writer.signed(description.high_watermark.0);
            for replicas in [&description.voters, &description.observers] {
                writer.unsigned(replicas.len() as u64);
                replicas.iter().for_each(|replica| write_replica(&mut writer, replica));
            }
        }
        body
    }

    pub fn decode(body: &[u8]) -> Result<Option<Self>, DecodeError> {
        let mut reader = Reader(body);
        let description = match reader.bool()? {
            false => None,
            true => Some(Self {
                leader: read_node(&mut reader)?,
                epoch: LeaderEpoch(read_i32(&mut reader)?),
                high_watermark: Offset(reader.signed()?),
                voters: read_replicas(&mut reader)?,
                observers: read_replicas(&mut reader)?,
            }),
        };
        reader.end()?;
        Ok(description)
    }
}

fn write_replica(writer: &mut Writer<'_>, replica: &ReplicaDescription) {
    writer.signed(i64::from(replica.node.0));
    writer.uuid(&replica.directory);
    writer.signed(replica.log_end.0);
    writer.signed(replica.last_fetch.0);
    writer.signed(replica.last_caught_up.0);
}

/// Believes the count only as far as the replicas are there.
fn read_replicas(reader: &mut Reader<'_>) -> Result<Vec<ReplicaDescription>, DecodeError> {
    let count = reader.unsigned()?;
    let mut replicas = Vec::new();
    for _ in 0..count {
        replicas.push(ReplicaDescription {
            node: read_node(reader)?,
            directory: reader.uuid()?,
            log_end: Offset(reader.signed()?),
            last_fetch: Timestamp(reader.signed()?),
            last_caught_up: Timestamp(reader.signed()?),
        });
    }
    Ok(replicas)
}

fn read_node(reader: &mut Reader<'_>) -> Result<BrokerId, DecodeError> {
    read_i32(reader).map(BrokerId)
}

fn read_i32(reader: &mut Reader<'_>) -> Result<i32, DecodeError> {
    i32::try_from(reader.signed()?).map_err(|_| DecodeError::Value("number"))
}

/// How far the others are and when they were heard of, while this node leads.
#[derive(Default)]
pub struct Followers {
    term: u64,
    seen: BTreeMap<Seat, Seen>,
    /// Nodes that fetch the log, each with where its own directory is.
    observers: BTreeMap<BrokerId, (Uuid, Seen)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    /// When that was sent which the node answered last.
    answered: Moment,
    /// Of the node's log.
    end: Option<u64>,
    /// Of the leader's log at that time, or a little later.
    leader_end: u64,
    caught_up: Option<Moment>,
}

impl Followers {
    /// Takes in what openraft tells, now and then; nothing of a leadership before stays.
    pub fn note(&mut self, metrics: &RaftMetrics<Types>) {
        let (Some(answers), Some(matched)) = (&metrics.heartbeat, &metrics.replication) else {
            self.seen.clear();
            self.observers.clear();
            return;
        };
        if self.term != metrics.current_term {
            *self = Self { term: metrics.current_term, ..Self::default() };
        }
        let leader_end = end_of(metrics.last_log_index);
        for (seat, answered) in answers {
            let Some(answered) = *answered else { continue };
            let matched = matched.get(seat).copied().flatten();
            let end = matched.map(|log_id| log_id.index + 1);
            let seen = Seen::after(self.seen.get(seat), answered.into_inner(), end, leader_end);
            self.seen.insert(*seat, seen);
        }
        self.seen.retain(|seat, _| answers.contains_key(seat));
    }

    /// Takes in what an observer has, which asks for more now.
    pub fn note_observer(&mut self, from: &Identity, have: Option<u64>, leader_end: u64, now: Monotonic) {
        let now = Moment::at(now);
        self.observers.retain(|_, (_, seen)| now - seen.answered < OBSERVER_SILENCE_MAX);
        let before = self.observers.get(&from.node).filter(|(directory, _)| *directory == from.directory);
        let seen = Seen::after(before.map(|(_, seen)| seen), now, Some(end_of(have)), leader_end);
        self.observers.insert(from.node, (from.directory, seen));
    }

    /// Those that have asked for the log not long ago.
    fn observers(&self, now: Now) -> impl Iterator<Item = ReplicaDescription> {
        let heard = self
            .observers
            .iter()
            .filter(move |(_, (_, seen))| Moment::at(now.monotonic) - seen.answered < OBSERVER_SILENCE_MAX);
        heard.map(move |(node, (directory, seen))| {
            let member = Member { node: *node, directory: *directory, ..Member::default() };
            describe(&member, Some(seen), now)
        })
    }

    fn describe(&self, seat: Seat, member: &Member, now: Now) -> ReplicaDescription {
        describe(member, self.seen.get(&seat), now)
    }
}

fn describe(member: &Member, seen: Option<&Seen>, now: Now) -> ReplicaDescription {
    let wall = |moment: Moment| {
        let ago = Moment::at(now.monotonic) - moment;
        Timestamp(now.wall.0 - ago.as_millis() as i64)
    };
    ReplicaDescription {
        node: member.node,
        directory: member.directory,
        log_end: seen.and_then(|seen| seen.end).map_or(UNKNOWN, |end| Offset(end as i64)),
        last_fetch: seen.map_or(Timestamp::NONE, |seen| wall(seen.answered)),
        last_caught_up: seen.and_then(|seen| seen.caught_up).map_or(Timestamp::NONE, wall),
    }
}

impl Seen {
    /// Whoever has what the leader had at the answer before has caught up with that time, at least.
    fn after(before: Option<&Self>, answered: Moment, end: Option<u64>, leader_end: u64) -> Self {
        let reaches = |other: u64| end.is_some_and(|end| end >= other);
        let caught_up = match before {
            _ if reaches(leader_end) => Some(answered),
            Some(before) if before.answered == answered => return Self { end, ..*before },
            Some(before) if reaches(before.leader_end) => before.caught_up.max(Some(before.answered)),
            Some(before) => before.caught_up,
            None => None,
        };
        Self { answered, end, leader_end, caught_up }
    }
}

/// The log ends behind its last entry.
fn end_of(last: Option<u64>) -> u64 {
    last.map_or(0, |index| index + 1)
}

/// Notes each answer of the others for whoever asks later.
pub fn start_noting(mut metrics: Metrics, followers: Rc<RefCell<Followers>>) {
    runtime::spawn(Queue::Control, "quorum's followers", async move {
        while metrics.changed().await.is_ok() {
            let metrics = metrics.borrow_watched();
            if metrics.running_state.is_err() {
                return;
            }
            followers.borrow_mut().note(&metrics);
        }
    })
    .detach();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::at(Monotonic::from_millis(ms))
    }

    fn replica(node: i32, log_end: i64) -> ReplicaDescription {
        ReplicaDescription {
            node: BrokerId(node),
            directory: Uuid::from_u128(node as u128),
            log_end: Offset(log_end),
            last_fetch: Timestamp(log_end),
            last_caught_up: Timestamp(1_700_000_000_000),
        }
    }

    #[test]
    fn a_description_comes_back_as_it_was_and_no_part_of_it_passes() {
        let description = QuorumDescription {
            leader: BrokerId(2),
            epoch: LeaderEpoch(i32::MAX),
            high_watermark: Offset(99),
            voters: vec![replica(1, -1), replica(2, 100)],
            observers: vec![replica(7, 3)],
        };
        let body = QuorumDescription::encode(Some(&description));
        assert_eq!(QuorumDescription::decode(&body), Ok(Some(description)));
        for end in 0..body.len() {
            assert!(QuorumDescription::decode(&body[..end]).is_err(), "{end}");
        }
        assert!(QuorumDescription::decode(&[body, vec![0]].concat()).is_err());
        assert_eq!(QuorumDescription::decode(&QuorumDescription::encode(None)), Ok(None));
        let many = [&[1, 0, 0, 0][..], &[0xff; 9], &[1]].concat();
        assert_eq!(QuorumDescription::decode(&many), Err(DecodeError::Short), "a count is not believed");
    }

    #[test]
    fn who_has_all_is_caught_up_and_who_always_lags_a_little_is_as_of_the_answer_before() {
        let first = Seen::after(None, at(10), Some(5), 5);
        assert_eq!(first.caught_up, Some(at(10)));
        let behind = Seen::after(Some(&first), at(20), Some(5), 8);
        assert_eq!(behind.caught_up, Some(at(10)), "it has what there was then");
        let far = Seen::after(Some(&behind), at(30), Some(7), 12);
        assert_eq!(far.caught_up, Some(at(10)), "it has not what there was at 20");
        let near = Seen::after(Some(&far), at(40), Some(12), 15);
        assert_eq!(near.caught_up, Some(at(30)));
        let done = Seen::after(Some(&near), at(50), Some(15), 15);
        assert_eq!((done.answered, done.caught_up), (at(50), Some(at(50))));
    }

    #[test]
    fn an_answer_that_is_seen_twice_counts_once() {
        let first = Seen::after(None, at(10), None, 5);
        assert_eq!(first.caught_up, None, "nothing is known of its log");
        let again = Seen::after(Some(&first), at(10), Some(3), 9);
        assert_eq!((again.end, again.leader_end, again.caught_up), (Some(3), 5, None));
        assert_eq!(Seen::after(Some(&again), at(10), Some(9), 9).caught_up, Some(at(10)));
    }
}
