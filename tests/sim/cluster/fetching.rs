//! Records on their way: what a broker serves to followers, consumers and producers, and what it fetches itself.

use std::collections::BTreeSet;
use std::time::Duration;

use kuring::base::{BrokerEpoch, BrokerId, LeaderEpoch};
use kuring::partition::{Acks, Cut, FollowerFetch, IsrProposal, NotFollowed, QueuedAppend, Waterline};
use kuring::replica::{Fetcher, Step, Task};
use kuring::shard::PartitionKey;
use kuring::wire::ErrorCode;
use kuring::wire::fetch::{FetchAnswer, FetchPartition, FetchRequest, FetchedSlice, SessionId};
use kuring::wire::parts::TopicRef;

use super::broker::{Broker, Context};
use super::messages::{Attempt, Message, Place, Token};
use super::planted::Planted;
use super::replica::{Answers, Asked, Progress, failed};

/// A fetch without an answer is given up, and its connection with it.
const FETCH_TIME_US: u64 = 900_000;
const PAUSE_US: u64 = 50_000;
/// How long a leader lets a fetch wait for news.
const WAIT_US: u64 = 500_000;
/// Bytes of one partition in an answer at most.
const ANSWER_BYTES: u64 = 2_500;

/// The requests to one broker.
pub struct Source {
    fetcher: Fetcher,
    attempt: Attempt,
    /// One is under way until then.
    until: u64,
    pause: u64,
}

/// A fetch that waits for its leader's log to grow.
pub struct Parked {
    from: Place,
    attempt: Attempt,
    request: FetchRequest,
    until: u64,
}

impl Broker {
    // --- As a leader ---

    pub fn produce(
        &mut self,
        token: Token,
        records: bytes::Bytes,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let refuse = |cx: &mut Context<'_>, code| {
            cx.send(Place::Client(token.client), Message::Produced { token, result: Err(code) });
            Ok(())
        };
        let Some(replica) = self.replicas.get_mut(&token.key) else {
            return refuse(cx, ErrorCode::UnknownTopicOrPartition);
        };
        if replica.partition.check_leader_epoch(LeaderEpoch::NONE).is_err() {
            return refuse(cx, ErrorCode::NotLeaderOrFollower);
        }
        let acks = match cx.planted {
            Some(Planted::AcknowledgedEarly) => Acks::Leader,
            _ => Acks::All,
        };
        replica.partition.enqueue(QueuedAppend {
            records,
            produce_version: 12,
            acks,
            origin: kuring::log::Origin::Client,
            claim: kuring::log::Claim::Unchecked,
            token,
        });
        let mut answers = Answers::new();
        replica.turn(cx.now, &mut answers)?;
        self.answer(answers, cx);
        self.wake_parked(cx)
    }

    pub fn consume(
        &mut self,
        from: Place,
        attempt: Attempt,
        (key, part): (PartitionKey, FetchPartition),
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let asked =
            Asked { key, part: &part, waterline: Waterline::HighWatermark, bytes_max: 800, follower: None };
        let slice = match self.replicas.get_mut(&key) {
            Some(replica) => {
                let slice = replica.fetch(&asked, cx.planted, cx.now, &mut Progress::default())?;
                if slice.error.is_none() {
                    let epoch = replica.partition.leader_epoch();
                    cx.checker.serves(key, self.id, epoch, slice.high_watermark);
                }
                slice
            }
            None => failed(key, ErrorCode::UnknownTopicOrPartition),
        };
        cx.send(from, Message::Consumed { attempt, slice });
        Ok(())
    }

    /// A follower's request.
    pub fn fetch(
        &mut self,
        from: Place,
        attempt: Attempt,
        request: FetchRequest,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let follower = Some((request.replica_id, request.replica_epoch));
        let slices = self.serve(&request, follower, cx)?;
        let is_urgent = |slice: &FetchedSlice| {
            !slice.records.is_empty() || slice.error.is_some() || slice.diverging.is_some()
        };
        if slices.iter().any(is_urgent) {
            answer_fetch(from, attempt, slices, cx);
        } else {
            let until = cx.time + WAIT_US;
            self.parked.push(Parked { from, attempt, request, until });
        }
        self.bring_proposals(cx);
        self.wake_parked(cx)
    }

    fn serve(
        &mut self,
        request: &FetchRequest,
        follower: Option<(BrokerId, BrokerEpoch)>,
        cx: &mut Context<'_>,
    ) -> Result<Vec<FetchedSlice>, String> {
        let mut progress = Progress::default();
        let mut slices = Vec::new();
        for (key, part) in parts(request) {
            let Some(replica) = self.replicas.get_mut(&key) else {
                slices.push(failed(key, ErrorCode::UnknownTopicOrPartition));
                continue;
            };
            let follower = follower.map(|(replica, broker_epoch)| FollowerFetch {
                replica,
                broker_epoch,
                offset: part.fetch_offset,
                log_start: part.log_start_offset,
            });
            let bytes_max = 300 + cx.random.below(ANSWER_BYTES) as u32;
            let asked = Asked { key, part: &part, waterline: Waterline::LogEnd, bytes_max, follower };
            slices.push(replica.fetch(&asked, cx.planted, cx.now, &mut progress)?);
            if cx.planted == Some(Planted::LaggardInSync) && replica.partition.is_leader() {
                let proposal = follower.and_then(|follower| self.laggard(key, follower.replica));
                progress.proposals.extend(proposal.map(|proposal| (key, proposal)));
            }
        }
        self.proposals.append(&mut progress.proposals);
        self.answer(progress.answers, cx);
        Ok(slices)
    }

    /// A proposal with whoever has just fetched.
    fn laggard(&self, key: PartitionKey, follower: BrokerId) -> Option<IsrProposal> {
        let partition = self.image.topic_by_id(key.topic)?.partition(key.partition)?;
        if partition.isr.contains(&follower) || !partition.replicas.contains(&follower) {
            return None;
        }
        let with_epoch = |id: &BrokerId| {
            let known = self.image.broker(*id).map(|broker| broker.epoch);
            (*id, known.unwrap_or(BrokerEpoch(-1)))
        };
        Some(IsrProposal {
            leader_epoch: partition.leader_epoch,
            partition_epoch: partition.partition_epoch,
            isr: partition.isr.iter().chain([&follower]).map(with_epoch).collect(),
        })
    }

    /// Answers the fetches that have waited for what is there now, or long enough.
    pub fn wake_parked(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        for parked in std::mem::take(&mut self.parked) {
            let has_news = parts(&parked.request).any(|(key, part)| match self.replicas.get(&key) {
                Some(replica) => {
                    replica.log().log_end() > part.fetch_offset
                        || replica.partition.check_leader_epoch(part.current_leader_epoch).is_err()
                }
                None => true,
            });
            if has_news || parked.until <= cx.time {
                // How far the follower is was noted when it came.
                let slices = self.serve(&parked.request, None, cx)?;
                answer_fetch(parked.from, parked.attempt, slices, cx);
            } else {
                self.parked.push(parked);
            }
        }
        Ok(())
    }

    // --- As a follower ---

    /// Asks whoever leads something that is here.
    pub fn fetch_all(&mut self, cx: &mut Context<'_>) {
        let leaders = self.replicas.values().filter_map(|replica| replica.follows);
        for leader in leaders.map(|(leader, _)| leader).collect::<BTreeSet<_>>() {
            let me = self.id;
            let fetcher = || Fetcher::new(me, Duration::from_micros(WAIT_US));
            let source = || Source { fetcher: fetcher(), attempt: Attempt(0), until: 0, pause: 0 };
            self.sources.entry(leader).or_insert_with(source);
        }
        for leader in self.sources.keys().copied().collect::<Vec<_>>() {
            self.ask_leader(leader, cx);
        }
    }

    fn ask_leader(&mut self, leader: BrokerId, cx: &mut Context<'_>) {
        let attempt = self.attempt();
        let Some(source) = self.sources.get_mut(&leader) else { return };
        if source.until > cx.time || source.pause > cx.time {
            return;
        }
        if source.until > 0 {
            // The connection is given up.
            source.fetcher.disconnected();
            (source.until, source.pause) = (0, cx.time + PAUSE_US);
            return;
        }
        let followed = self.replicas.iter().filter_map(|(key, replica)| {
            replica.follows.filter(|(whom, _)| *whom == leader).map(|(_, epoch)| (*key, epoch))
        });
        source.fetcher.follow(followed);
        for (key, epoch) in source.fetcher.unplaced(cx.now.monotonic) {
            let Some(replica) = self.replicas.get(&key) else { continue };
            match replica.partition.position(epoch) {
                Ok(Some(mut position)) => {
                    if cx.planted == Some(Planted::CutNotRechecked) && replica.is_cut {
                        position.last_epoch = LeaderEpoch::NONE;
                    }
                    source.fetcher.place(key, position);
                }
                // It waits for its disk.
                Ok(None) => {}
                Err(_) => source.fetcher.pause(key, cx.now.monotonic),
            }
        }
        let own = self.image.broker(self.id).map_or(BrokerEpoch(-1), |broker| broker.epoch);
        let Some(request) = source.fetcher.request(own, cx.now.monotonic, |_| false) else { return };
        (source.attempt, source.until) = (attempt, cx.time + FETCH_TIME_US);
        cx.send(Place::Node(leader.0 as usize), Message::Fetch { attempt, request });
    }

    /// A leader's answer.
    pub fn fetched(
        &mut self,
        from: usize,
        attempt: Attempt,
        answer: FetchAnswer,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let leader = BrokerId(from as i32);
        let Some(source) = self.sources.get_mut(&leader) else { return Ok(()) };
        if source.attempt != attempt || source.until == 0 {
            return Ok(());
        }
        source.until = 0;
        for task in source.fetcher.answered(answer, cx.now.monotonic) {
            let key = task.key;
            let done = self.carry_out(task, cx)?;
            let Some(source) = self.sources.get_mut(&leader) else { continue };
            match done {
                Ok(()) | Err(NotFollowed::Stale) => source.fetcher.displace(key),
                Err(NotFollowed::Log(error)) => {
                    return Err(format!("a follower does not come further: {error}"));
                }
                Err(_) => source.fetcher.pause(key, cx.now.monotonic),
            }
        }
        self.ask_leader(leader, cx);
        Ok(())
    }

    fn carry_out(&mut self, task: Task, cx: &mut Context<'_>) -> Result<Result<(), NotFollowed>, String> {
        let Task { key, epoch, at, step } = task;
        let Some(replica) = self.replicas.get_mut(&key) else { return Ok(Err(NotFollowed::Stale)) };
        let cut = match step {
            Step::Append { records, high_watermark, log_start } => {
                match replica.append((epoch, at), &records, (high_watermark, log_start), cx.now)? {
                    Err(NotFollowed::Before(base)) => Cut::Anew(base),
                    done => return Ok(done),
                }
            }
            Step::Cut { epoch: theirs, end } => Cut::Diverging { epoch: theirs, end },
            Step::Anew(start) => Cut::Anew(start),
        };
        if let Some(replica) = self.replicas.remove(&key) {
            let leaves_at = replica.leaves_at;
            let (mut replica, is_cut) = replica.cut(epoch, cut, self.durability, cx.planted, cx.now)?;
            replica.leaves_at = leaves_at;
            self.replicas.insert(key, replica);
            if is_cut {
                self.write_checkpoints(None)?;
                let image =
                    self.image.topic_by_id(key.topic).and_then(|topic| topic.partition(key.partition));
                if let Some(image) = image.cloned() {
                    self.take_role(key, &image, cx);
                }
            }
        }
        Ok(Ok(()))
    }
}

fn answer_fetch(to: Place, attempt: Attempt, partitions: Vec<FetchedSlice>, cx: &mut Context<'_>) {
    // There is no room for a session: each request names all.
    let answer = FetchAnswer { error: None, session_id: SessionId::NONE, partitions };
    cx.send(to, Message::Fetched { attempt, answer });
}

fn parts(request: &FetchRequest) -> impl Iterator<Item = (PartitionKey, FetchPartition)> + '_ {
    request.topics.iter().flat_map(|topic| {
        let id = match &topic.topic {
            TopicRef::Id(id) => Some(*id),
            TopicRef::Name(_) => None,
        };
        let parts = topic.partitions.iter();
        parts.filter_map(move |part| Some((PartitionKey { topic: id?, partition: part.index }, *part)))
    })
}
