//! ShareFetch and ShareAcknowledge 1–2 (KIP-932): the session on this shard, the records and their states at the owners of
//! the partitions. The owners are asked one after the other, so that no more is acquired than is wanted; a fetch that
//! finds nothing waits at all of them until the first has news.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use indexmap::IndexMap;

use super::client::{Target, find_partition};
use super::produce::current_leader;
use super::share_session::{Context, Member, Named};
use super::shares::{Share, Shares, Waiting};
use super::{Client, CloseReason, Outcome, Piece, malformed};
use crate::base::clock::{self, Monotonic};
use crate::base::{BrokerId, LeaderEpoch, TopicId};
use crate::config::ShareGroupConfig;
use crate::metadata::{ConfigResource, Image, SHARE_VERSION};
use crate::shard::PartitionKey;
use crate::shard::messages::{
    Reply, Request, ShareAnswer, ShareFetchPart, ShareFetchRequest as OwnerFetch, ShareSize, ShareWait,
};
use crate::share::{AcknowledgeBatch, AcknowledgeKind, Wanted};
use crate::wire::ErrorCode;
use crate::wire::header::RequestHeader;
use crate::wire::parts::TopicRef;
use crate::wire::share::{
    AcquiredRecords, Leader, ShareAcknowledgeRequest, ShareAcknowledgeResponse, ShareAcknowledgedPartition,
    ShareFetchRequest, ShareFetchResponse, ShareFetchedPartition, SharePeer, ShareTopic,
};

/// The mode in which not one record too many is acquired (`ShareAcquireMode.RECORD_LIMIT`).
const EXACT: i8 = 1;

/// A pause before owners are asked again that had news and then nothing to give.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest between two looks whether there is as much as the client waits for.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// More than that is not waited for.
const MIN_BYTES_MAX: u32 = 1 << 20;

/// One partition of a request on its way to its answer.
struct Place {
    key: PartitionKey,
    acknowledges: bool,
    fetches: bool,
    answer: ShareAnswer,
}

type OwnerShare = Share<ShareFetchPart, usize>;

/// Serves ShareFetch.
pub(super) async fn fetch(client: &Rc<Client>, header: &RequestHeader, body: &Bytes) -> Outcome {
    let request = match ShareFetchRequest::decode(header.version, body) {
        Ok(request) => request,
        Err(error) => return malformed(header, error),
    };
    let mut response = match serve_fetch(client, request).await {
        Ok(response) => response,
        Err(refusal) => ShareFetchResponse {
            error: Some(refusal.code),
            message: Some(refusal.message),
            ..ShareFetchResponse::default()
        },
    };
    let requests = &client.shard.requests;
    requests.error_code(header.api, response.error);
    for partition in response.topics.iter().flat_map(|(_, partitions)| partitions) {
        requests.error_code(header.api, partition.error);
        requests.error_code(header.api, partition.acknowledge_error);
        client.shard.counters.fetched_bytes.add(partition.records.len() as u64);
    }
    // Over its quota too a member gets what it has acquired: nobody else would, for as long as it is locked.
    let bytes = response.topics.iter().flat_map(|(_, partitions)| partitions);
    let bytes = bytes.map(|partition| partition.records.len() as u64).sum();
    response.throttle_ms = client.throttle_given(header, bytes);
    match response.encode(header.version, header.correlation_id) {
        Ok(pieces) => Outcome::Answer(pieces.into_iter().map(Piece::Bytes).collect()),
        Err(error) => {
            let (api, version) = (header.api.name, header.version);
            Outcome::Close(CloseReason::Unencodable { api, version, error })
        }
    }
}

/// Serves ShareAcknowledge.
pub(super) async fn acknowledge(client: &Rc<Client>, header: &RequestHeader, body: &Bytes) -> Outcome {
    let request = match ShareAcknowledgeRequest::decode(header.version, body) {
        Ok(request) => request,
        Err(error) => return malformed(header, error),
    };
    let mut response = match serve_acknowledge(client, request).await {
        Ok(response) => response,
        Err(refusal) => ShareAcknowledgeResponse {
            error: Some(refusal.code),
            message: Some(refusal.message),
            ..ShareAcknowledgeResponse::default()
        },
    };
    let requests = &client.shard.requests;
    requests.error_code(header.api, response.error);
    for partition in response.topics.iter().flat_map(|(_, partitions)| partitions) {
        requests.error_code(header.api, partition.error);
    }
    response.throttle_ms = client.throttle_request(header);
    super::answer(header, response.encode(header.version, header.correlation_id))
}

/// Why a request is refused as a whole.
struct Refusal {
    code: ErrorCode,
    message: String,
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        Self { code, message: code.to_string() }
    }
}

async fn serve_fetch(client: &Rc<Client>, request: ShareFetchRequest) -> Result<ShareFetchResponse, Refusal> {
    let image = client.shard.image();
    let member = member_of(&image, &request.peer)?;
    let config = config_of(client, &image, &member.group);
    // A session may come of it, and sessions are their connection's, on this shard.
    client.leaning.borrow_mut().stay();
    let named = named(&request.topics);
    let mut partitions = request.topics.iter().flat_map(|topic| &topic.partitions);
    let acknowledges = partitions.any(|partition| !partition.acknowledgements.is_empty());
    let about = Named { partitions: &named, forgotten: &request.forgotten, acknowledges };
    let context = client.share_sessions.begin_fetch(&member, request.peer.epoch, &about)?;

    let mut acknowledgements = acknowledgements(request.topics, request.renews);
    let fetches = !request.renews && !context.is_last() && request.max_records > 0 && request.max_bytes > 0;
    let mut parts: IndexMap<PartitionKey, bool> =
        context.partitions.iter().map(|key| (*key, fetches)).collect();
    for key in acknowledgements.keys() {
        parts.entry(*key).or_insert(false);
    }
    let (mut places, mut shares) = split(client, &image, parts, &mut acknowledgements);
    let ask = Ask {
        member: &member,
        context: &context,
        config,
        wanted: Wanted {
            records_max: request.max_records.into(),
            exact: request.acquire_mode == EXACT,
            batch_size: request.batch_size.max(1).into(),
        },
        bytes_max: u32::try_from(request.max_bytes).unwrap_or(0).min(client.shard.config().fetch_bytes_max),
        until: clock::monotonic()
            .plus(Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0))),
    };
    let waits = fetches && request.max_wait_ms > 0;
    let min_bytes = u32::try_from(request.min_bytes).unwrap_or(0).min(ask.bytes_max).min(MIN_BYTES_MAX);
    if waits && min_bytes > 1 {
        // What is said of records counts at once; only more of them are waited for.
        let no_more = Wanted { records_max: 0, ..ask.wanted };
        ask_each(client, &Ask { wanted: no_more, ..ask }, &mut shares, &mut places).await;
        wait_for_bytes(client, &ask, &shares, min_bytes).await;
    }
    ask_owners(client, &ask, shares, waits, &mut places).await;
    if context.is_last() {
        client.share_sessions.end(&member).await;
    }
    let mut topics: IndexMap<TopicId, Vec<ShareFetchedPartition>> = IndexMap::new();
    for place in places {
        let has_news = place.answer.fetched.as_ref().map_or(true, |records| !records.acquired.is_empty());
        if has_news || place.acknowledges || context.is_first() {
            topics.entry(place.key.topic).or_default().push(fetched(&image, place));
        }
    }
    let topics = topics.into_iter().collect();
    let lock_timeout_ms = config.lock_duration_ms;
    Ok(ShareFetchResponse { lock_timeout_ms, topics, ..ShareFetchResponse::default() })
}

async fn serve_acknowledge(
    client: &Rc<Client>,
    request: ShareAcknowledgeRequest,
) -> Result<ShareAcknowledgeResponse, Refusal> {
    let image = client.shard.image();
    let member = member_of(&image, &request.peer)?;
    let config = config_of(client, &image, &member.group);
    let context = client.share_sessions.begin_acknowledge(&member, request.peer.epoch)?;
    let mut acknowledgements = acknowledgements(request.topics, request.renews);
    let parts = acknowledgements.keys().map(|key| (*key, false)).collect();
    let (mut places, shares) = split(client, &image, parts, &mut acknowledgements);
    let wanted = Wanted { records_max: 0, exact: true, batch_size: 1 };
    let until = clock::monotonic();
    let ask = Ask { member: &member, context: &context, config, wanted, bytes_max: 0, until };
    ask_owners(client, &ask, shares, false, &mut places).await;
    if context.is_last() {
        client.share_sessions.end(&member).await;
    }
    let mut topics: IndexMap<TopicId, Vec<ShareAcknowledgedPartition>> = IndexMap::new();
    for place in places {
        let error = place.answer.acknowledged.err();
        let leader = leader(&image, place.key, error);
        let index = place.key.partition;
        topics.entry(place.key.topic).or_default().push(ShareAcknowledgedPartition { index, error, leader });
    }
    let topics = topics.into_iter().collect();
    let lock_timeout_ms = config.lock_duration_ms;
    Ok(ShareAcknowledgeResponse { lock_timeout_ms, topics, ..ShareAcknowledgeResponse::default() })
}

fn member_of(image: &Image, peer: &SharePeer) -> Result<Member, Refusal> {
    if image.feature(SHARE_VERSION).unwrap_or(0) < 1 {
        return Err(ErrorCode::UnsupportedVersion.into());
    }
    let text = |text: &Option<kafka_protocol::protocol::StrBytes>| {
        text.as_deref().filter(|text| !text.is_empty()).map(Arc::<str>::from).ok_or(ErrorCode::InvalidRequest)
    };
    Ok(Member { group: text(&peer.group)?, id: text(&peer.member)? })
}

fn config_of(client: &Client, image: &Image, group: &str) -> ShareGroupConfig {
    let own = image.overrides(&ConfigResource::Group(group.to_owned()));
    client.shard.config().groups.share.of_group(own)
}

fn named(topics: &[ShareTopic]) -> Vec<PartitionKey> {
    let keys = topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| PartitionKey { topic: topic.id, partition: partition.index })
    });
    keys.collect()
}

/// What is said of the records of each partition; an error where it cannot be understood.
type Acknowledgements = IndexMap<PartitionKey, Result<Vec<AcknowledgeBatch>, ErrorCode>>;

fn acknowledgements(topics: Vec<ShareTopic>, renews: bool) -> Acknowledgements {
    let mut all = Acknowledgements::new();
    for topic in topics {
        for partition in topic.partitions.into_iter().filter(|it| !it.acknowledgements.is_empty()) {
            let key = PartitionKey { topic: topic.id, partition: partition.index };
            let batches = partition.acknowledgements.into_iter().map(|batch| {
                let kind = |id: &i8| {
                    AcknowledgeKind::from_wire(*id).filter(|kind| renews || *kind != AcknowledgeKind::Renew)
                };
                let kinds: Option<Vec<_>> = batch.types.iter().map(kind).collect();
                let kinds = kinds.filter(|kinds| !kinds.is_empty()).ok_or(ErrorCode::InvalidRequest)?;
                Ok(AcknowledgeBatch { first: batch.first, last: batch.last, kinds })
            });
            let batches: Result<Vec<_>, ErrorCode> = batches.collect();
            match all.entry(key) {
                indexmap::map::Entry::Vacant(entry) => drop(entry.insert(batches)),
                indexmap::map::Entry::Occupied(mut entry) => match (entry.get_mut(), batches) {
                    (Ok(known), Ok(more)) => known.extend(more),
                    (known, Err(code)) => *known = Err(code),
                    (Err(_), Ok(_)) => {}
                },
            }
        }
    }
    all
}

/// A place for every partition, with the answer for those that nobody need ask, and the owners' shares.
fn split(
    client: &Client,
    image: &Image,
    parts: IndexMap<PartitionKey, bool>,
    acknowledgements: &mut Acknowledgements,
) -> (Vec<Place>, Vec<OwnerShare>) {
    let mut places = Vec::with_capacity(parts.len());
    let mut shares = Shares::new();
    for (at, (key, fetches)) in parts.into_iter().enumerate() {
        let said = acknowledgements.swap_remove(&key);
        let acknowledges = said.is_some();
        let target = find(client, image, key);
        let mut answer = ShareAnswer::default();
        let mut part = ShareFetchPart { key, acknowledgements: Vec::new(), fetches };
        match said.unwrap_or_else(|| Ok(Vec::new())) {
            Ok(batches) => part.acknowledgements = batches,
            Err(code) => answer.acknowledged = Err(code),
        }
        match target {
            Ok(target) => shares.add(target.owner, at, part),
            Err(code) => {
                answer.fetched = Err(code);
                answer.acknowledged = answer.acknowledged.and(Err(code));
            }
        }
        places.push(Place { key, acknowledges, fetches, answer });
    }
    (places, shares.into_vec())
}

fn find(client: &Client, image: &Image, key: PartitionKey) -> Result<Target, ErrorCode> {
    let topic = image.topic_by_id(key.topic).ok_or(ErrorCode::UnknownTopicId)?;
    find_partition(&client.shard, topic, key.partition)
}

struct Ask<'a> {
    member: &'a Member,
    context: &'a Context,
    config: ShareGroupConfig,
    wanted: Wanted,
    bytes_max: u32,
    until: Monotonic,
}

/// Asks the owners, and again when there was nothing and the client waits.
async fn ask_owners(
    client: &Client,
    ask: &Ask<'_>,
    mut shares: Vec<OwnerShare>,
    waits: bool,
    places: &mut [Place],
) {
    let started = clock::monotonic();
    let mut rounds = 0;
    loop {
        ask_each(client, ask, &mut shares, places).await;
        // A partition that is not there does not end the wait for the others; an owner's error does.
        let asked = shares.iter().flat_map(|share| &share.places);
        let has_news = asked.into_iter().any(|at| {
            places[*at].answer.fetched.as_ref().map_or(true, |records| !records.acquired.is_empty())
        });
        let is_over = client.shard.is_stopping() || clock::monotonic() >= ask.until;
        if !waits || has_news || is_over || shares.is_empty() {
            break;
        }
        if rounds > 0 {
            client.shard.sleep(PAUSE).await;
        }
        rounds += 1;
        wait(client, ask, &shares).await;
    }
    client.note_waited(clock::monotonic().since(started));
}

async fn ask_each(client: &Client, ask: &Ask<'_>, shares: &mut [OwnerShare], places: &mut [Place]) {
    let mut wanted = ask.wanted;
    let mut bytes_max = ask.bytes_max;
    for share in shares {
        let is_enough = wanted.records_max <= 0 || bytes_max == 0;
        let parts: Vec<ShareFetchPart> = share
            .parts
            .iter_mut()
            .map(|part| ShareFetchPart {
                key: part.key,
                // They are said once.
                acknowledgements: std::mem::take(&mut part.acknowledgements),
                fetches: part.fetches && !is_enough,
            })
            .collect();
        let has_work = parts.iter().any(|part| part.fetches || !part.acknowledgements.is_empty());
        if !has_work {
            continue;
        }
        let acknowledges: Vec<bool> = parts.iter().map(|part| !part.acknowledgements.is_empty()).collect();
        let request = OwnerFetch {
            group: ask.member.group.clone(),
            holder: ask.context.holder.clone(),
            config: ask.config,
            parts,
            wanted,
            bytes_max,
        };
        let Reply::ShareFetch(answers) = client.shard.ask(share.owner, Request::ShareFetch(request)).await
        else {
            crate::base::fatal("a share fetch got another request's answer");
        };
        for ((at, acknowledges), answer) in share.places.iter().zip(acknowledges).zip(answers) {
            if let Ok(records) = &answer.fetched {
                let ranges = records.acquired.iter();
                wanted.records_max -= ranges.map(|range| range.last.0 - range.first.0 + 1).sum::<i64>();
                bytes_max = bytes_max.saturating_sub(records.records.len() as u32);
            }
            let place = &mut places[*at].answer;
            place.fetched = answer.fetched;
            if acknowledges {
                place.acknowledged = answer.acknowledged;
            }
        }
    }
}

/// Waits until the owners together have `min_bytes` to read, or the time is over (`DelayedShareFetch`).
async fn wait_for_bytes(client: &Client, ask: &Ask<'_>, shares: &[OwnerShare], min_bytes: u32) {
    let started = clock::monotonic();
    let is_over = || client.shard.is_stopping() || clock::monotonic() >= ask.until;
    while !is_over() {
        let mut bytes = 0;
        for share in shares {
            let size = ShareSize {
                group: ask.member.group.clone(),
                keys: fetched_keys(share),
                config: ask.config,
                bytes_wanted: min_bytes,
            };
            let Reply::ShareSize(more) = client.shard.ask(share.owner, Request::ShareSize(size)).await else {
                crate::base::fatal("a share fetch got another request's answer");
            };
            bytes += more;
        }
        if bytes >= u64::from(min_bytes) {
            break;
        }
        wait(client, ask, shares).await;
        // There is something by now, but it may be as little as before: the longer that lasts the less it is looked at.
        let now = clock::monotonic();
        let pause = (now.since(started) / 8).clamp(PAUSE, PAUSE_MAX);
        client.shard.sleep(pause.min(ask.until.since(now))).await;
    }
    client.note_waited(clock::monotonic().since(started));
}

fn fetched_keys(share: &OwnerShare) -> Vec<PartitionKey> {
    share.parts.iter().filter(|part| part.fetches).map(|part| part.key).collect()
}

/// Waits at all owners until the first has news, or the time is over.
async fn wait(client: &Client, ask: &Ask<'_>, shares: &[OwnerShare]) {
    let mut pending = FuturesUnordered::new();
    let mut waiting = Waiting::new(&client.shard, shares.len());
    for share in shares {
        let keys = fetched_keys(share);
        if keys.is_empty() {
            continue;
        }
        let wait = ShareWait { group: ask.member.group.clone(), keys, config: ask.config, until: ask.until };
        let owner = share.owner;
        let reply = client.shard.send(owner, Request::ShareWait(wait)).await;
        waiting.begin(owner, &reply);
        pending.push(async move {
            drop(reply.await);
            owner
        });
    }
    let mut is_first = true;
    while let Some(owner) = pending.next().await {
        waiting.end(owner);
        if std::mem::take(&mut is_first) {
            waiting.hurry().await;
        }
    }
}

fn fetched(image: &Image, place: Place) -> ShareFetchedPartition {
    let Place { key, acknowledges, fetches, answer } = place;
    let acknowledge_error = answer.acknowledged.err().filter(|_| acknowledges);
    let (error, records) = match answer.fetched {
        Ok(records) => (None, records),
        // One that is only acknowledged has no error of a fetch.
        Err(code) => (Some(code).filter(|_| fetches || !acknowledges), Default::default()),
    };
    let acquired = records.acquired.iter().map(|acquired| AcquiredRecords {
        first: acquired.first,
        last: acquired.last,
        delivery_count: i16::try_from(acquired.delivery_count).unwrap_or(i16::MAX),
    });
    ShareFetchedPartition {
        index: key.partition,
        error,
        acknowledge_error,
        leader: leader(image, key, error.or(acknowledge_error)),
        acquired: acquired.collect(),
        records: records.records,
    }
}

/// Who leads a partition that this broker does not.
fn leader(image: &Image, key: PartitionKey, error: Option<ErrorCode>) -> Leader {
    match error {
        Some(ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch) => {
            let found = current_leader(image, &TopicRef::Id(key.topic), key.partition);
            found.map_or(Leader { id: BrokerId(-1), epoch: LeaderEpoch(-1) }, |leader| Leader {
                id: leader.id,
                epoch: leader.epoch,
            })
        }
        _ => Leader::default(),
    }
}
