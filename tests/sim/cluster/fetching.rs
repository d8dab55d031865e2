//! Records on their way: what a broker serves to followers, consumers and producers, and what it fetches itself.

use std::collections::BTreeSet;
use std::time::Duration;

use kuring::base::{BrokerEpoch, BrokerId, LeaderEpoch, Offset};
use kuring::log::Claim;
use kuring::partition::{Acks, Cut, FollowerFetch, IsrProposal, NotFollowed, QueuedAppend, Waterline};
use kuring::replica::{Fetcher, Step, Task};
use kuring::shard::PartitionKey;
use kuring::wire::ErrorCode;
use kuring::wire::fetch::{FetchAnswer, FetchPartition, FetchRequest, FetchedSlice, SessionId};
use kuring::wire::parts::TopicRef;

use super::broker::{Broker, Context};
use super::entries::entries;
use super::messages::{Attempt, Consumed, Message, OfTransaction, Place, Purpose, Reading, Token};
use super::planted::Planted;
use super::replica::{Answers, Asked, Progress, Replica, failed};

/// A fetch without an answer is given up, and its connection with it.
const FETCH_TIME_US: u64 = 900_000;
const PAUSE_US: u64 = 50_000;
/// How long a leader lets a fetch wait for news.
const WAIT_US: u64 = 500_000;
/// Bytes of a consumer's answer.
const CONSUMED_BYTES: u32 = 800;
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
        (records, transaction): (bytes::Bytes, Option<OfTransaction>),
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        match transaction {
            Some(transaction) => self.produce_in_transaction((token, records), transaction, cx),
            None => self.append_batch(token, records, Claim::Unchecked, cx),
        }
    }

    pub fn refuse(&mut self, token: Token, code: ErrorCode, cx: &mut Context<'_>) -> Result<(), String> {
        cx.send(Place::Client(token.client), Message::Produced { token, result: Err(code) });
        Ok(())
    }

    pub fn append_batch(
        &mut self,
        token: Token,
        records: bytes::Bytes,
        claim: Claim,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let Some(replica) = self.replicas.get_mut(&token.key) else {
            return self.refuse(token, ErrorCode::UnknownTopicOrPartition, cx);
        };
        if replica.partition.check_leader_epoch(LeaderEpoch::NONE).is_err() {
            return self.refuse(token, ErrorCode::NotLeaderOrFollower, cx);
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
            claim,
            token: Purpose::Batch(token),
        });
        let mut answers = Answers::new();
        replica.turn(cx.now, &mut answers)?;
        self.answer(answers, cx);
        self.wake_parked(cx)
    }

    /// Has the checker know what is committed by the word of those that lead.
    pub fn tell_known(&self, cx: &mut Context<'_>) {
        for (key, replica) in self.replicas.iter().filter(|(_, replica)| replica.partition.is_leader()) {
            let known_end = &mut cx.checker.history(*key).known_end;
            *known_end = replica.partition.high_watermark().max(*known_end);
        }
    }

    /// A consumer's fetch.
    pub fn consume(
        &mut self,
        (from, attempt): (Place, Attempt),
        (key, part, reading): (PartitionKey, FetchPartition, Reading),
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let waterline = match reading.is_committed {
            true => Waterline::LastStable,
            false => Waterline::HighWatermark,
        };
        let mut consumed = Consumed {
            slice: failed(key, ErrorCode::UnknownTopicOrPartition),
            aborted: Vec::new(),
            elsewhere: None,
        };
        if let Some(replica) = self.replicas.get_mut(&key) {
            let follows = !replica.partition.is_leader();
            let near = reading.near.filter(|near| *near != self.id.0 as usize);
            let near = near.map(|near| BrokerId(near as i32));
            let nearer = near.and_then(|near| replica.partition.nearer_replica(&[near], part.fetch_offset));
            let checked = replica.partition.check_epoch(part.current_leader_epoch);
            let from_any = reading.near.is_some();
            let asked =
                Asked { key, part: &part, waterline, bytes_max: CONSUMED_BYTES, follower: None, from_any };
            if let (Some(nearer), Ok(())) = (nearer, checked) {
                let (high_watermark, log_start) =
                    (replica.partition.high_watermark(), replica.log().log_start());
                let slice = FetchedSlice {
                    error: None,
                    high_watermark,
                    log_start,
                    ..failed(key, ErrorCode::UnknownServerError)
                };
                consumed = Consumed { slice, aborted: Vec::new(), elsewhere: Some(nearer.0 as usize) };
            } else {
                let (slice, aborted) = replica.fetch(&asked, cx.planted, cx.now, &mut Progress::default())?;
                consumed = Consumed { slice, aborted, elsewhere: None };
            }
            if consumed.slice.error.is_none() {
                let epoch = replica.partition.leader_epoch();
                match follows {
                    false => cx.checker.serves(key, self.id, epoch, consumed.slice.high_watermark),
                    true => follower_serves(key, replica, &consumed.slice, cx)?,
                }
            }
        }
        cx.send(from, Message::Consumed { attempt, consumed: Box::new(consumed) });
        Ok(())
    }

    /// A consumer that asks for the end of a partition.
    pub fn tell_end(
        &self,
        (from, attempt): (Place, Attempt),
        (key, epoch): (PartitionKey, LeaderEpoch),
        cx: &mut Context<'_>,
    ) {
        let result = self.replicas.get(&key).ok_or(ErrorCode::UnknownTopicOrPartition).and_then(|replica| {
            replica.partition.check_leader_epoch(epoch)?;
            match cx.planted {
                Some(Planted::EndToldTooEarly) => Ok(replica.partition.high_watermark()),
                _ => replica.partition.latest(Waterline::HighWatermark),
            }
        });
        cx.send(from, Message::EndIs { attempt, result });
    }

    /// An operator has the records below `offset` deleted.
    pub fn delete_records(&mut self, key: PartitionKey, offset: Offset, cx: &mut Context<'_>) {
        let Some(replica) = self.replicas.get_mut(&key) else { return };
        let deleted = match cx.planted {
            Some(Planted::DeletedBeyondHighWatermark) if replica.partition.is_leader() => {
                let end = replica.log().log_end();
                replica.partition.log_mut().advance_log_start(end)
            }
            _ => replica.partition.delete_records(offset),
        };
        if let Ok(start) = deleted {
            let deleted_to = &mut cx.checker.history(key).deleted_to;
            *deleted_to = start.0.max(*deleted_to);
        }
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
            let waterline = Waterline::LogEnd;
            let asked = Asked { key, part: &part, waterline, bytes_max, follower, from_any: false };
            let (mut slice, _) = replica.fetch(&asked, cx.planted, cx.now, &mut progress)?;
            if cx.planted == Some(Planted::LogStartNotTold) && slice.error.is_none() {
                slice.log_start = Offset::ZERO;
            }
            slices.push(slice);
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
        let mut waits = false;
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
                Ok(None) => waits = true,
                Err(_) => source.fetcher.pause(key, cx.now.monotonic),
            }
        }
        if waits {
            return;
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
        match step {
            Step::Append { records, high_watermark, log_start } => {
                let told = (high_watermark, log_start);
                match replica.append((epoch, at), &records, told, cx.now)? {
                    Err(NotFollowed::Before(base)) if cx.planted == Some(Planted::AskedAgainBefore) => {
                        self.cut(key, epoch, Cut::Anew(base), cx)?;
                        Ok(Ok(()))
                    }
                    Err(NotFollowed::Before(base)) => {
                        self.cut(key, epoch, Cut::Anew(base), cx)?;
                        let Some(replica) = self.replicas.get_mut(&key) else {
                            return Ok(Err(NotFollowed::Stale));
                        };
                        replica.append((epoch, base), &records, told, cx.now)
                    }
                    done => Ok(done),
                }
            }
            Step::Cut { epoch: theirs, end } => {
                self.cut(key, epoch, Cut::Diverging { epoch: theirs, end }, cx)?;
                Ok(Ok(()))
            }
            Step::Anew(_) if cx.planted == Some(Planted::NotBegunAnew) => Ok(Ok(())),
            Step::Anew(start) => {
                cx.checker.begun_anew += 1;
                self.cut(key, epoch, Cut::Anew(start), cx)?;
                Ok(Ok(()))
            }
        }
    }

    fn cut(
        &mut self,
        key: PartitionKey,
        epoch: LeaderEpoch,
        cut: Cut,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let Some(replica) = self.replicas.remove(&key) else { return Ok(()) };
        let leaves_at = replica.leaves_at;
        let (mut replica, is_cut) = replica.cut(epoch, cut, self.durability, cx.planted, cx.now)?;
        replica.leaves_at = leaves_at;
        self.replicas.insert(key, replica);
        if is_cut {
            self.write_checkpoints(None)?;
            let image = self.image.topic_by_id(key.topic).and_then(|topic| topic.partition(key.partition));
            if let Some(image) = image.cloned() {
                self.take_role(key, &image, cx);
            }
        }
        Ok(())
    }
}

/// A follower shows nothing above its leader's high watermark, and nothing below where that starts once it knows.
fn follower_serves(
    key: PartitionKey,
    replica: &Replica,
    slice: &FetchedSlice,
    cx: &mut Context<'_>,
) -> Result<(), String> {
    cx.checker.followers_served += 1;
    let own = replica.partition.high_watermark();
    let known_end = cx.checker.history(key).known_end;
    let last = entries(&slice.records)?.last().map_or(-1, |entry| entry.offset);
    if slice.high_watermark > known_end || last >= known_end.0 {
        let told = slice.high_watermark;
        cx.checker.fail(format!("a follower tells {told} and serves {last}, leaders knew of {known_end}"));
    }
    let start = replica.log().log_start();
    if start < replica.told_start.min(own) {
        let told = replica.told_start;
        cx.checker
            .fail(format!("a follower serves from {start} on, it was told that the log starts at {told}"));
    }
    Ok(())
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
