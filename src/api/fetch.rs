//! Fetch: one plan per owner shard, merged in request order; the records stay in their files. Unmet
//! `min_bytes` waits at the owners, whose wake already carries what there is.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::client::{find_partition, find_topic};
use super::fetch_session::{Context, SessionKey};
use super::produce::current_leader;
use super::shares::Shares;
use super::{Client, CloseReason, Outcome, Piece, malformed};
use crate::base::BrokerId;
use crate::base::clock::{self, Monotonic};
use crate::io::os::OsFiles;
use crate::log::FileRange;
use crate::metadata::Image;
use crate::partition::Waterline;
use crate::shard::messages::{
    FetchPart, FetchReply, FetchRequest as OwnerFetch, FetchWait, FetchedData, FetchedPart, Reply, Request,
};
use crate::wire::ErrorCode;
use crate::wire::fetch::{
    self, DivergingEpoch, FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse,
    FetchTopicResponse, IsolationLevel, SessionId,
};
use crate::wire::header::RequestHeader;

/// The partitions of a request that one shard owns, with their places in the request.
type Share = super::shares::Share<FetchPart, usize>;

/// One partition's answer, with the range that its records are in.
struct Merged {
    response: FetchPartitionResponse,
    range: Option<FileRange<OsFiles>>,
    first_batch_bytes: u32,
}

/// Serves a fetch.
pub(super) async fn handle(client: &Rc<Client>, header: &RequestHeader, body: &Bytes) -> Outcome {
    let request = match FetchRequest::decode(header.version, body) {
        Ok(request) => request,
        Err(error) => return malformed(header, error),
    };
    if request.replica_id != BrokerId(-1) {
        // No follower exists on one node: whoever says it is one is not in the cluster.
        return encode(header, failure(ErrorCode::NotLeaderOrFollower), Vec::new());
    }
    let context = match client.sessions.begin(&request) {
        Ok(context) => context,
        Err(code) => return encode(header, failure(code), Vec::new()),
    };
    let _busy = InUse { client, context: &context };
    let image = client.shard.image();
    let (mut merged, shares) = split(client, &image, &context.partitions);
    fetch(client, &request, &mut merged, shares).await;
    limit(&mut merged, request.max_bytes);
    respond(client, header, &context, merged)
}

/// Frees the session when the request ends, also when its connection is lost meanwhile.
struct InUse<'a> {
    client: &'a Client,
    context: &'a Context,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.client.sessions.finish(self.context);
    }
}

/// A place for every partition, with the answer for those that nobody need ask, and the owners' shares.
fn split(
    client: &Client,
    image: &Image,
    partitions: &[(SessionKey, FetchPartition)],
) -> (Vec<Merged>, Vec<Share>) {
    let mut merged = Vec::with_capacity(partitions.len());
    let mut shares = Shares::new();
    for (place, (key, partition)) in partitions.iter().enumerate() {
        let target = find_topic(image, &key.topic)
            .and_then(|topic| find_partition(&client.shard, topic, key.partition));
        merged.push(Merged::failed(partition, target.as_ref().err().copied()));
        let Ok(target) = target else { continue };
        let part = FetchPart {
            key: target.key,
            offset: partition.fetch_offset,
            bytes_max: u32::try_from(partition.max_bytes).unwrap_or(0),
            current_leader_epoch: partition.current_leader_epoch,
            last_fetched_epoch: partition.last_fetched_epoch,
        };
        shares.add(target.owner, place, part);
    }
    (merged, shares.into_vec())
}

/// Asks the owners. With one owner the wait is its own; with several, a first round looks without waiting,
/// and only if that is too little a second one waits at all of them until the first has news.
async fn fetch(client: &Client, request: &FetchRequest, merged: &mut [Merged], shares: Vec<Share>) {
    let ask = Ask {
        waterline: match request.isolation_level {
            IsolationLevel::ReadUncommitted => Waterline::HighWatermark,
            IsolationLevel::ReadCommitted => Waterline::LastStable,
        },
        bytes_max: u32::try_from(request.max_bytes).unwrap_or(0).min(client.shard.config().fetch_bytes_max),
        bytes_min: u64::try_from(request.min_bytes).unwrap_or(0),
        until: clock::monotonic()
            .plus(Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0))),
    };
    // An error is answered at once; nothing waits behind it.
    let may_wait = ask.bytes_min > 0
        && request.max_wait_ms > 0
        && merged.iter().all(|part| part.response.error.is_none());
    match shares.as_slice() {
        [] => wait_for_nothing(client, may_wait, ask.until).await,
        [share] => {
            let bytes_min = if may_wait { ask.bytes_min } else { 0 };
            ask_all(client, &ask, &shares, bytes_min, merged).await;
            debug_assert_eq!(share.places.len(), share.parts.len());
        }
        shares => {
            ask_all(client, &ask, shares, 0, merged).await;
            let bytes: u64 = merged.iter().map(Merged::bytes).sum();
            let urgent = merged.iter().any(Merged::is_urgent);
            if may_wait && !urgent && bytes < ask.bytes_min {
                ask_all(client, &ask, shares, ask.bytes_min, merged).await;
            }
        }
    }
}

struct Ask {
    waterline: Waterline,
    bytes_max: u32,
    bytes_min: u64,
    until: Monotonic,
}

/// A fetch of no partition waits its time out, as Kafka does: an idle session asks so again and again.
async fn wait_for_nothing(client: &Client, may_wait: bool, until: Monotonic) {
    if may_wait {
        client.shard.sleep_until(until).await;
    }
}

/// Asks every owner and merges the answers. `bytes_min` above 0 lets them wait until one has that much;
/// the others are then hurried.
async fn ask_all(client: &Client, ask: &Ask, shares: &[Share], bytes_min: u64, merged: &mut [Merged]) {
    let wait = (bytes_min > 0).then_some(FetchWait { bytes_min, until: ask.until });
    let mut pending = FuturesUnordered::new();
    let mut waiting = Vec::with_capacity(shares.len());
    for (number, share) in shares.iter().enumerate() {
        let request = OwnerFetch {
            parts: share.parts.clone(),
            waterline: ask.waterline,
            bytes_max: ask.bytes_max,
            wait,
        };
        let reply = client.shard.send(share.owner, Request::Fetch(request)).await;
        waiting.push(Some(reply.handle()));
        pending.push(async move { (number, reply.await) });
    }
    let mut hurried = wait.is_none();
    while let Some((number, reply)) = pending.next().await {
        waiting[number] = None;
        let Reply::Fetch(FetchReply { parts }) = reply else {
            crate::base::fatal("a fetch got another request's answer");
        };
        for (&place, part) in shares[number].places.iter().zip(parts) {
            merged[place].take(part);
        }
        if !hurried {
            hurried = true;
            for (number, handle) in waiting.iter().enumerate() {
                if let Some(handle) = handle {
                    client.shard.hurry(shares[number].owner, *handle).await;
                }
            }
        }
    }
}

/// Keeps the whole answer within `max_bytes`: each owner kept to it alone. The first partition with data
/// keeps its first batch whole.
fn limit(merged: &mut [Merged], max_bytes: i32) {
    let mut left = u32::try_from(max_bytes).unwrap_or(0);
    let mut is_first = true;
    for part in merged {
        let Some(range) = &mut part.range else { continue };
        let least = part.first_batch_bytes;
        if is_first {
            range.length = range.length.min(left.max(least));
        } else if left < least {
            part.range = None;
            part.response.records_len = 0;
            continue;
        } else {
            range.length = range.length.min(left);
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
        ranges.push(part.range);
    }
    let response = FetchResponse { session_id: context.session_id, topics, ..Default::default() };
    encode(header, response, ranges)
}

fn failure(code: ErrorCode) -> FetchResponse {
    FetchResponse { error: Some(code), session_id: SessionId::NONE, ..Default::default() }
}

fn encode(
    header: &RequestHeader,
    response: FetchResponse,
    mut ranges: Vec<Option<FileRange<OsFiles>>>,
) -> Outcome {
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
        Self { response, range: None, first_batch_bytes: 0 }
    }

    fn bytes(&self) -> u64 {
        self.range.as_ref().map_or(0, |range| u64::from(range.length))
    }

    fn is_urgent(&self) -> bool {
        self.response.error.is_some() || self.response.diverging_epoch.is_some()
    }

    fn take(&mut self, part: FetchedPart) {
        let index = self.response.index;
        let mut response = FetchPartitionResponse::failed(index, None);
        self.range = None;
        self.first_batch_bytes = 0;
        match part {
            FetchedPart::Data(data) => {
                let FetchedData { high_watermark, last_stable, log_start, range, first_batch_bytes } = data;
                response.high_watermark = high_watermark;
                response.last_stable_offset = last_stable;
                response.log_start_offset = log_start;
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
            // Nothing else is told with an error, as with Kafka.
            FetchedPart::Failed { code, .. } => response.error = Some(code),
        }
        self.response = response;
    }
}
