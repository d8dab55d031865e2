//! Fetch: one plan per owner shard, merged in request order; the records stay in their files. Unmet
//! `min_bytes` waits at the owners, whose wake already carries what there is.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;

use super::client::{find_partition, find_replica, find_topic};
use super::cluster_view::View;
use super::fetch_session::{Context, SessionKey};
use super::produce::current_leader;
use super::shares::{Shares, Waiting};
use super::{Client, CloseReason, Outcome, Piece, malformed, replica_fetch};
use crate::base::clock::{self, Monotonic};
use crate::base::{BrokerId, Budget};
use crate::io::os::OsFiles;
use crate::log::{self, FileRange};
use crate::metadata::Image;
use crate::partition::Waterline;
use crate::shard::messages::{
    FetchPart, FetchReply, FetchRequest as OwnerFetch, FetchWait, FetchedData, FetchedPart, Follower, Reads,
    Reply, Request,
};
use crate::shard::{PartitionKey, ReplicationEnd};
use crate::wire::ErrorCode;
use crate::wire::fetch::{
    self, AbortedTransaction, DivergingEpoch, FetchPartition, FetchPartitionResponse, FetchRequest,
    FetchResponse, FetchTopicResponse, IsolationLevel, SessionId,
};
use crate::wire::header::RequestHeader;

/// The partitions of a request that one shard owns, with their places in the request.
type Share = super::shares::Share<FetchPart, usize>;

/// What a partition of a fetch takes while it is in service: its place in the session's list, in its owner's request,
/// in the owner's answer and in the answer to the client.
const PARTITION_BYTES: usize = 800;

/// The least that a partition takes in a request.
const PARTITION_WIRE_BYTES: usize = 32;

/// Fetches up to here are not counted against the shard's memory.
const UNCHARGED_PARTITIONS_MAX: usize = 8;

/// What a fetch of `length` bytes may take while it is in service, by what it names itself.
pub fn memory_of(length: usize) -> usize {
    length / PARTITION_WIRE_BYTES * PARTITION_BYTES
}

/// One partition's answer, with the range that its records are in.
struct Merged {
    response: FetchPartitionResponse,
    range: Option<FileRange<OsFiles>>,
    first_batch_bytes: u32,
    /// What the request wants of this partition at most.
    bytes_max: u32,
}

/// Serves a fetch.
pub(super) async fn handle(client: &Rc<Client>, header: &RequestHeader, body: &Bytes) -> Outcome {
    let mut request = match FetchRequest::decode(header.version, body) {
        Ok(request) => request,
        Err(error) => return malformed(header, error),
    };
    let follower = match replica_fetch::follower(client, &request) {
        Ok(follower) => follower,
        Err(code) => return encode(client, header, failure(code), Vec::new()),
    };
    match follower.and_then(|_| replica_fetch::home(&client.shard, &request)) {
        Some(home) if client.leaning.borrow_mut().follow(home) => replica_fetch::send_home(&mut request),
        // A session may come of it, and sessions are this shard's.
        _ => client.leaning.borrow_mut().stay(),
    }
    let mut context = match client.sessions.begin(&request, header.version >= fetch::TOPIC_ID_VERSION) {
        Ok(context) => context,
        Err(code) => return encode(client, header, failure(code), Vec::new()),
    };
    let _busy = InUse { client, session: context.session_id };
    // A request of a session need not name its partitions.
    let memory = Memory::take(client, context.len()).await;
    if let Err(code) = client.sessions.fill(&mut context) {
        return encode(client, header, failure(code), Vec::new());
    }
    let image = client.shard.image();
    let reads = match follower {
        Some(_) => Reads::Leader,
        None => reads(client, &image, header.version, &request.rack_id),
    };
    let (mut merged, shares) = split(client, &image, &reads, &context.partitions);
    let bytes_max = match follower {
        Some(_) => bytes_max(client, &request),
        None => bytes_max(client, &request).min(client.fetch_bytes_max(header)),
    };
    let may_park = memory.may_park(client);
    let ask = Ask::of(&request, follower, reads, bytes_max);
    fetch(client, &request, &ask, may_park, &mut merged, shares).await;
    limit(&mut merged, bytes_max);
    if follower.is_some() {
        note_replicated(client, &image, &context, &merged);
    } else {
        let throttle_ms = client.throttle_fetch(header, answer_bytes(&merged));
        if throttle_ms > 0 {
            // Nothing is told, so that the session knows of nothing that was.
            let session_id = client.sessions.throttled(&context);
            let response = FetchResponse { throttle_ms, session_id, ..Default::default() };
            return encode(client, header, response, Vec::new());
        }
    }
    respond(client, header, &context, merged)
}

/// From which replicas a consumer may read, and from which it had better do (`RackAwareReplicaSelector`).
fn reads(client: &Client, image: &Image, version: i16, rack: &str) -> Reads {
    if version < fetch::ANY_REPLICA_VERSION {
        return Reads::Leader;
    }
    let selects = client.shard.config().cluster.as_ref().is_some_and(|cluster| cluster.selects_by_rack);
    if !selects || rack.is_empty() {
        return Reads::Any;
    }
    let view = View::of(image, client);
    let there = view.brokers().filter(|(broker, _)| broker.rack.as_deref() == Some(rack));
    let there: Vec<BrokerId> = there.map(|(broker, _)| broker.id).collect();
    match there.is_empty() || there.contains(&view.broker) {
        true => Reads::Any,
        false => Reads::Nearer(there.into()),
    }
}

/// Of a partition in an answer, without records.
const ANSWERED_PARTITION_BYTES: u64 = 45;

/// Counts what a follower is sent of throttled partitions, whether it is in sync or not.
fn note_replicated(client: &Client, image: &Image, context: &Context, merged: &[Merged]) {
    let shard = &client.shard;
    if !shard.throttles(ReplicationEnd::Leader) {
        return;
    }
    let is_throttled = |key: &SessionKey| {
        find_topic(image, &key.topic).is_ok_and(|topic| {
            let key = PartitionKey { topic: topic.id, partition: key.partition };
            shard.is_throttled(ReplicationEnd::Leader, key)
        })
    };
    let parts = context.partitions.iter().zip(merged);
    let throttled = parts.filter(|((key, _), part)| part.bytes() > 0 && is_throttled(key));
    let bytes: u64 = throttled.map(|(_, part)| ANSWERED_PARTITION_BYTES + part.bytes()).sum();
    shard.note_replicated(ReplicationEnd::Leader, bytes);
}

/// What the answer takes on the wire, about.
fn answer_bytes(merged: &[Merged]) -> u64 {
    /// Of a response, without partitions.
    const HEAD_BYTES: u64 = 30;
    HEAD_BYTES + merged.iter().map(|part| ANSWERED_PARTITION_BYTES + part.bytes()).sum::<u64>()
}

/// Bound on the records of the whole answer.
fn bytes_max(client: &Client, request: &FetchRequest) -> u32 {
    u32::try_from(request.max_bytes).unwrap_or(0).min(client.shard.config().fetch_bytes_max)
}

/// What a fetch holds of its shard's memory, beside what its connection has taken for the request's own length.
struct Memory {
    budget: Rc<Budget>,
    bytes: usize,
    is_long: bool,
}

impl Memory {
    async fn take(client: &Client, partitions: usize) -> Self {
        let budget = client.shard.serve_memory().clone();
        let is_long = partitions > UNCHARGED_PARTITIONS_MAX;
        let mut memory = Self { budget, bytes: 0, is_long };
        if !is_long || client.is_beyond() {
            return memory;
        }
        let wanted = partitions * PARTITION_BYTES;
        if wanted > memory.budget.max() / 4 {
            client.go_beyond().await;
            return memory;
        }
        let taken = client.charged();
        memory.bytes = wanted.saturating_sub(taken);
        match taken {
            0 => memory.budget.take(memory.bytes).await,
            // Nobody waits for memory who has some already.
            _ => memory.budget.take_now(memory.bytes),
        }
        memory
    }

    /// A long one holds memory for as long as its client chooses.
    fn may_park(&self, client: &Client) -> bool {
        !self.is_long || !(client.is_beyond() || client.shard.is_serve_memory_tight())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// Frees the session when the request ends, also when its connection is lost meanwhile.
struct InUse<'a> {
    client: &'a Client,
    session: SessionId,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.client.sessions.finish(self.session);
    }
}

/// A place for every partition, with the answer for those that nobody need ask, and the owners' shares.
fn split(
    client: &Client,
    image: &Image,
    reads: &Reads,
    partitions: &[(SessionKey, FetchPartition)],
) -> (Vec<Merged>, Vec<Share>) {
    let mut merged = Vec::with_capacity(partitions.len());
    let mut shares = Shares::new();
    for (place, (key, partition)) in partitions.iter().enumerate() {
        let target = find_topic(image, &key.topic).and_then(|topic| {
            find_partition(&client.shard, topic, key.partition).or_else(|code| match reads {
                Reads::Leader => Err(code),
                Reads::Any | Reads::Nearer(_) => find_replica(&client.shard, topic, key.partition),
            })
        });
        merged.push(Merged::failed(partition, target.as_ref().err().copied()));
        let Ok(target) = target else { continue };
        let part = FetchPart {
            key: target.key,
            offset: partition.fetch_offset,
            bytes_max: u32::try_from(partition.max_bytes).unwrap_or(0),
            current_leader_epoch: partition.current_leader_epoch,
            last_fetched_epoch: partition.last_fetched_epoch,
            log_start: partition.log_start_offset,
        };
        shares.add(target.owner, place, part);
    }
    (merged, shares.into_vec())
}

/// Asks the owners. With one owner the wait is its own; with several, a first round looks without waiting,
/// and only if that is too little further ones wait at all of them until the first has news.
async fn fetch(
    client: &Client,
    request: &FetchRequest,
    ask: &Ask,
    may_park: bool,
    merged: &mut [Merged],
    shares: Vec<Share>,
) {
    // A partition that nobody need ask, because it is not there, does not end the wait for the others
    // (`KafkaApis.handleFetchRequest`); an owner's error does.
    let wants_to_wait = ask.bytes_min > 0 && request.max_wait_ms > 0;
    let may_wait = may_park && wants_to_wait;
    match shares.as_slice() {
        // A fetch of nothing is answered at once (`KafkaApis.handleFetchRequest`).
        [] => {}
        [share] => {
            let wait = [ask.bytes_min];
            ask_all(client, ask, &shares, may_wait.then_some(&wait[..]), merged).await;
            debug_assert_eq!(share.places.len(), share.parts.len());
        }
        shares => {
            ask_all(client, ask, shares, None, merged).await;
            let mut seen = None;
            loop {
                let bytes: u64 = merged.iter().map(Merged::bytes).sum();
                let asked = shares.iter().flat_map(|share| &share.places);
                let urgent = asked.into_iter().any(|&place| merged[place].is_urgent());
                // An owner that answers without more than before does not wait: its time is up, or it has no
                // room for another waiter.
                let enough = bytes >= ask.bytes_min || seen.is_some_and(|seen| bytes <= seen);
                if !may_wait || urgent || enough {
                    break;
                }
                seen = Some(bytes);
                let wait = waits(merged, shares, ask.bytes_min - bytes);
                ask_all(client, ask, shares, Some(&wait), merged).await;
            }
        }
    }
    let bytes: u64 = merged.iter().map(Merged::bytes).sum();
    if wants_to_wait && !may_park && bytes < ask.bytes_min && !merged.iter().any(Merged::is_urgent) {
        client.shard.counters.fetches_refused.increment();
    }
}

/// What each owner is to wait for when `missing` bytes are wanted from all together: what it had and its part
/// of them. Once all have come, one of the owners at least has that much.
fn waits(merged: &[Merged], shares: &[Share], missing: u64) -> Vec<u64> {
    let part = missing.div_ceil(shares.len() as u64);
    let had = |share: &Share| share.places.iter().map(|&place| merged[place].bytes()).sum::<u64>();
    shares.iter().map(|share| had(share) + part).collect()
}

struct Ask {
    follower: Option<Follower>,
    reads: Reads,
    waterline: Waterline,
    bytes_max: u32,
    bytes_min: u64,
    until: Monotonic,
}

impl Ask {
    fn of(request: &FetchRequest, follower: Option<Follower>, reads: Reads, bytes_max: u32) -> Self {
        let wait_max = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
        Self {
            follower,
            reads,
            waterline: match request.isolation_level {
                _ if follower.is_some() => Waterline::LogEnd,
                IsolationLevel::ReadUncommitted => Waterline::HighWatermark,
                IsolationLevel::ReadCommitted => Waterline::LastStable,
            },
            bytes_max,
            // More than may be answered is not waited for (`KafkaApis.handleFetchRequest`).
            bytes_min: u64::try_from(request.min_bytes).unwrap_or(0).min(u64::from(bytes_max)),
            until: clock::monotonic().plus(wait_max),
        }
    }
}

/// Asks every owner and merges the answers. `bytes_min`, one for each share, lets them wait until one has that
/// much; the others are then hurried.
async fn ask_all(
    client: &Client,
    ask: &Ask,
    shares: &[Share],
    bytes_min: Option<&[u64]>,
    merged: &mut [Merged],
) {
    let mut pending = FuturesUnordered::new();
    let mut waiting = Waiting::new(&client.shard, shares.len());
    for (number, share) in shares.iter().enumerate() {
        let wait = bytes_min.map(|bytes| FetchWait { bytes_min: bytes[number], until: ask.until });
        let request = OwnerFetch {
            parts: share.parts.clone(),
            follower: ask.follower,
            reads: ask.reads.clone(),
            waterline: ask.waterline,
            bytes_max: ask.bytes_max,
            wait,
        };
        let reply = client.shard.send(share.owner, Request::Fetch(request)).await;
        waiting.begin(share.owner, &reply);
        pending.push(async move { (number, reply.await) });
    }
    let mut hurried = bytes_min.is_none();
    let mut longest_wait = Duration::ZERO;
    loop {
        let next = match !hurried && ask.follower.is_some() {
            false => pending.next().await,
            true => match select(pending.next(), pin!(client.nudged())).await {
                Either::Left((next, _)) => next,
                Either::Right(_) => {
                    hurried = true;
                    waiting.hurry().await;
                    continue;
                }
            },
        };
        let Some((number, reply)) = next else { break };
        waiting.end(shares[number].owner);
        let Reply::Fetch(FetchReply { parts, waited }) = reply else {
            crate::base::fatal("a fetch got another request's answer");
        };
        longest_wait = longest_wait.max(waited);
        for (&place, part) in shares[number].places.iter().zip(parts) {
            merged[place].take(part, ask.follower.is_some());
        }
        if !hurried {
            hurried = true;
            waiting.hurry().await;
        }
    }
    client.note_waited(longest_wait);
}

/// Keeps the whole answer within `bytes_max`: each owner kept to it alone. The first partition with data
/// keeps its first batch whole; the others are left out where theirs does not fit, for a consumer fails on an
/// answer with nothing but a part of a batch (`ReplicaManager.readFromLog`, `FetchCollector`).
fn limit(merged: &mut [Merged], bytes_max: u32) {
    let mut left = bytes_max;
    let mut is_first = true;
    for part in merged {
        let Some(range) = &mut part.range else { continue };
        let least = part.first_batch_bytes;
        // Each owner lets its own first partition exceed what was asked of it: only the first of all may.
        let allowed = if is_first { left.max(least) } else { left.min(part.bytes_max) };
        range.length = range.length.min(allowed);
        if range.length < least {
            part.range = None;
            part.response.records_len = 0;
            continue;
        }
        is_first = false;
        left = left.saturating_sub(range.length);
        part.response.records_len = range.length as usize;
    }
}

fn respond(client: &Client, header: &RequestHeader, context: &Context, merged: Vec<Merged>) -> Outcome {
    let image = client.shard.image();
    let mut topics: Vec<FetchTopicResponse> = Vec::new();
    let mut ranges = Vec::new();
    for ((key, _), mut part) in context.partitions.iter().zip(merged) {
        if matches!(part.response.error, Some(ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch))
        {
            part.response.current_leader = current_leader(&image, &key.topic, key.partition);
        }
        if !client.sessions.tell(context, key, &part.response) {
            continue;
        }
        match topics.last_mut() {
            Some(topic) if topic.topic == key.topic => topic.partitions.push(part.response),
            _ => {
                topics.push(FetchTopicResponse { topic: key.topic.clone(), partitions: vec![part.response] })
            }
        }
        if let Some(range) = &part.range {
            client.shard.counters.fetched_bytes.add(u64::from(range.length));
        }
        ranges.push(part.range);
    }
    let response = FetchResponse { session_id: context.session_id, topics, ..Default::default() };
    encode(client, header, response, ranges)
}

fn failure(code: ErrorCode) -> FetchResponse {
    FetchResponse { error: Some(code), session_id: SessionId::NONE, ..Default::default() }
}

fn encode(
    client: &Client,
    header: &RequestHeader,
    response: FetchResponse,
    mut ranges: Vec<Option<FileRange<OsFiles>>>,
) -> Outcome {
    client.shard.requests.error_code(header.api, response.error);
    for partition in response.topics.iter().flat_map(|topic| &topic.partitions) {
        client.shard.requests.error_code(header.api, partition.error);
    }
    let encoded = match response.encode(header.version, header.correlation_id) {
        Ok(encoded) => encoded,
        Err(error) => {
            return Outcome::Close(CloseReason::Unencodable {
                api: header.api.name,
                version: header.version,
                error,
            });
        }
    };
    let pieces = encoded.pieces.into_iter().filter_map(|piece| match piece {
        fetch::Piece::Bytes(bytes) => Some(Piece::Bytes(bytes)),
        fetch::Piece::Records { partition, .. } => ranges[partition].take().map(Piece::File),
    });
    Outcome::Answer(pieces.collect())
}

impl Merged {
    fn failed(partition: &FetchPartition, error: Option<ErrorCode>) -> Self {
        let response = FetchPartitionResponse::failed(partition.index, error);
        let bytes_max = u32::try_from(partition.max_bytes).unwrap_or(0);
        Self { response, range: None, first_batch_bytes: 0, bytes_max }
    }

    fn bytes(&self) -> u64 {
        self.range.as_ref().map_or(0, |range| u64::from(range.length))
    }

    fn is_urgent(&self) -> bool {
        let response = &self.response;
        response.error.is_some()
            || response.diverging_epoch.is_some()
            || response.preferred_read_replica.is_some()
    }

    fn take(&mut self, part: FetchedPart, is_follower: bool) {
        let index = self.response.index;
        let mut response = FetchPartitionResponse::failed(index, None);
        self.range = None;
        self.first_batch_bytes = 0;
        match part {
            FetchedPart::Data(data) => {
                let FetchedData { high_watermark, last_stable, log_start, range, first_batch_bytes, aborted } =
                    data;
                response.high_watermark = high_watermark;
                response.last_stable_offset = last_stable;
                response.log_start_offset = log_start;
                let told = |transaction: log::AbortedTransaction| AbortedTransaction {
                    producer_id: transaction.producer,
                    first_offset: transaction.first,
                };
                response.aborted = aborted.map(|found| found.into_iter().map(told).collect());
                response.records_len = range.as_ref().map_or(0, |range| range.length as usize);
                self.range = range;
                self.first_batch_bytes = first_batch_bytes;
            }
            FetchedPart::Diverging { epoch, end, high_watermark, last_stable, log_start } => {
                response.high_watermark = high_watermark;
                response.last_stable_offset = last_stable;
                response.log_start_offset = log_start;
                response.diverging_epoch = Some(DivergingEpoch { epoch, end_offset: end });
            }
            FetchedPart::Elsewhere { replica, high_watermark, last_stable, log_start } => {
                response.high_watermark = high_watermark;
                response.last_stable_offset = last_stable;
                response.log_start_offset = log_start;
                response.preferred_read_replica = Some(replica);
            }
            // A follower that is out of range is told where the log begins: that is where it goes on.
            FetchedPart::Failed { code, log_start, .. } if is_follower => {
                response.error = Some(code);
                response.log_start_offset = log_start;
            }
            // Nothing else is told with an error, as with Kafka.
            FetchedPart::Failed { code, .. } => response.error = Some(code),
        }
        self.response = response;
    }
}
