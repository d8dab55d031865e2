//! Fetch sessions (KIP-227): a consumer that names its partitions once and from then on only what changes.
//! A session lives on the shard of the connection that opened it; a client that comes back on another
//! shard is told FETCH_SESSION_ID_NOT_FOUND and opens a new one, as after a broker's restart.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use indexmap::IndexMap;

use crate::base::clock::{self, Monotonic};
use crate::base::random::Random;
use crate::base::{Offset, PartitionIndex};
use crate::wire::ErrorCode;
use crate::wire::fetch::{FetchPartition, FetchPartitionResponse, FetchRequest, SessionEpoch, SessionId};
use crate::wire::parts::TopicRef;

/// A session that has not been used for so long gives way to a new one
/// (`kafka.server.FetchSession`, `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`).
const EVICTION_MS_MIN: u64 = 120_000;

/// Partitions that the sessions of one shard remember at most; a client beyond that fetches without one.
const PARTITIONS_MAX: usize = 1 << 20;

/// A partition as the client names it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct SessionKey {
    pub(super) topic: TopicRef,
    pub(super) partition: PartitionIndex,
}

/// What the client last asked of a partition and was last told.
#[derive(Clone, Debug)]
struct Cached {
    request: FetchPartition,
    high_watermark: Offset,
    log_start: Offset,
    had_error: bool,
    /// Got records in the request that is being served.
    was_served: bool,
}

struct Session {
    /// Its topics are named by id: a request must not mix both forms (KIP-516).
    by_id: bool,
    partitions: IndexMap<SessionKey, Cached, ahash::RandomState>,
    /// What the next request must carry.
    epoch: SessionEpoch,
    last_used: Monotonic,
    /// A request of it is being served: another is refused rather than mixed with it.
    busy: bool,
}

type Sessions = HashMap<SessionId, Session, ahash::RandomState>;

/// How full a cache is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SessionFigures {
    pub sessions: usize,
    pub partitions: usize,
    pub evictions: u64,
}

/// The sessions of one shard.
pub struct SessionCache {
    sessions: RefCell<Sessions>,
    slots_max: usize,
    /// Of all sessions together.
    partitions_held: Cell<usize>,
    random: RefCell<Random>,
    evictions: Cell<u64>,
}

/// The session part of one request: what to fetch and how to answer.
pub(super) struct Context {
    kind: Kind,
    pub(super) session_id: SessionId,
    /// Those of an incremental fetch are there once [`SessionCache::fill`] has been called.
    pub(super) partitions: Vec<(SessionKey, FetchPartition)>,
    in_session: usize,
}

impl Context {
    /// How many partitions it has, or will have.
    pub(super) fn len(&self) -> usize {
        self.partitions.len().max(self.in_session)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sessionless,
    Full,
    Incremental,
}

impl SessionCache {
    /// A cache of at most `slots_max` sessions (`max.incremental.fetch.session.cache.slots`, dealt out over
    /// the shards).
    pub fn new(slots_max: usize) -> Rc<Self> {
        Rc::new(Self {
            sessions: RefCell::default(),
            slots_max,
            partitions_held: Cell::new(0),
            random: RefCell::new(Random::from_os()),
            evictions: Cell::new(0),
        })
    }

    /// Open sessions, the partitions in them, and how many sessions had to make room for others.
    pub fn figures(&self) -> SessionFigures {
        SessionFigures {
            sessions: self.sessions.borrow().len(),
            partitions: self.partitions_held.get(),
            evictions: self.evictions.get(),
        }
    }

    /// Sessions that had to give way to newer ones.
    pub fn evictions(&self) -> u64 {
        self.evictions.get()
    }

    /// Finds or opens the session of `request`.
    ///
    /// # Errors
    /// FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR: the client starts
    /// anew with a full fetch.
    pub(super) fn begin(&self, request: &FetchRequest, by_id: bool) -> Result<Context, ErrorCode> {
        let epoch = request.session_epoch;
        if epoch.is_full() {
            self.forget(&mut self.sessions.borrow_mut(), request.session_id);
            let partitions: Vec<_> = named(request).collect();
            if epoch == SessionEpoch::FINAL || partitions.is_empty() {
                let (kind, session_id) = (Kind::Sessionless, SessionId::NONE);
                return Ok(Context { kind, session_id, partitions, in_session: 0 });
            }
            let session_id = self.open(&partitions, by_id);
            let kind = if session_id == SessionId::NONE { Kind::Sessionless } else { Kind::Full };
            return Ok(Context { kind, session_id, partitions, in_session: 0 });
        }
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.get_mut(&request.session_id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
        if session.epoch != epoch || session.busy {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if session.by_id != by_id {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        session.epoch = epoch.next();
        session.last_used = clock::monotonic();
        session.busy = true;
        let held_before = session.partitions.len();
        for topic in &request.forgotten {
            for &partition in &topic.partitions {
                session.partitions.swap_remove(&SessionKey { topic: topic.topic.clone(), partition });
            }
        }
        for (key, wanted) in named(request) {
            match session.partitions.get_mut(&key) {
                Some(cached) => cached.request = wanted,
                None => {
                    session.partitions.insert(key, Cached::new(wanted));
                }
            }
        }
        self.partitions_held.set(self.partitions_held.get() - held_before + session.partitions.len());
        if self.partitions_held.get() > PARTITIONS_MAX {
            self.forget(&mut sessions, request.session_id);
            return Err(ErrorCode::FetchSessionIdNotFound);
        }
        if session.partitions.is_empty() {
            // Nothing is left of it (`FetchManager.newContext`).
            self.forget(&mut sessions, request.session_id);
            let (kind, session_id) = (Kind::Sessionless, SessionId::NONE);
            return Ok(Context { kind, session_id, partitions: Vec::new(), in_session: 0 });
        }
        let (kind, session_id) = (Kind::Incremental, request.session_id);
        Ok(Context { kind, session_id, partitions: Vec::new(), in_session: session.partitions.len() })
    }

    /// Gives an incremental fetch the partitions of its session.
    ///
    /// # Errors
    /// FETCH_SESSION_ID_NOT_FOUND: another request has ended it meanwhile.
    pub(super) fn fill(&self, context: &mut Context) -> Result<(), ErrorCode> {
        if context.kind == Kind::Incremental {
            let sessions = self.sessions.borrow();
            let session = sessions.get(&context.session_id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
            let partitions = session.partitions.iter();
            context.partitions = partitions.map(|(key, cached)| (key.clone(), cached.request)).collect();
        }
        Ok(())
    }

    /// Remembers what the client is told; returns whether the answer must name the partition. To be called
    /// for every partition of the context.
    pub(super) fn tell(
        &self,
        context: &Context,
        key: &SessionKey,
        response: &FetchPartitionResponse,
    ) -> bool {
        if context.kind == Kind::Sessionless {
            return true;
        }
        let mut sessions = self.sessions.borrow_mut();
        let Some(session) = sessions.get_mut(&context.session_id) else { return true };
        let Some(cached) = session.partitions.get_mut(key) else { return true };
        let told_before = cached.high_watermark == response.high_watermark
            && cached.log_start == response.log_start_offset
            && !cached.had_error;
        cached.high_watermark = response.high_watermark;
        cached.log_start = response.log_start_offset;
        cached.had_error = response.error.is_some();
        let has_news = response.records_len > 0
            || response.error.is_some()
            || response.diverging_epoch.is_some()
            || response.preferred_read_replica.is_some();
        cached.was_served = response.records_len > 0;
        context.kind == Kind::Full || has_news || !told_before
    }

    /// The request is answered with nothing at all, because of a quota: the session to name in the answer. One that it
    /// would have opened is not, for its client has been told nothing (`FetchContext.getThrottledResponse`).
    pub(super) fn throttled(&self, context: &Context) -> SessionId {
        match context.kind {
            Kind::Incremental => context.session_id,
            Kind::Sessionless => SessionId::NONE,
            Kind::Full => {
                self.forget(&mut self.sessions.borrow_mut(), context.session_id);
                SessionId::NONE
            }
        }
    }

    /// Ends the request's use of its session.
    pub(super) fn finish(&self, session: SessionId) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(&session) {
            session.busy = false;
            if session.partitions.values().any(|cached| cached.was_served) {
                // Whoever got data goes to the end, so that the others are not starved of the byte limit. All
                // at once: to move one costs by the number of the others.
                session.partitions.sort_by(|_, a, _, b| a.was_served.cmp(&b.was_served));
                session.partitions.values_mut().for_each(|cached| cached.was_served = false);
            }
        }
    }

    fn forget(&self, sessions: &mut Sessions, id: SessionId) {
        if let Some(session) = sessions.remove(&id) {
            self.partitions_held.set(self.partitions_held.get() - session.partitions.len());
        }
    }

    fn open(&self, partitions: &[(SessionKey, FetchPartition)], by_id: bool) -> SessionId {
        let now = clock::monotonic();
        let mut sessions = self.sessions.borrow_mut();
        if self.partitions_held.get() + partitions.len() > PARTITIONS_MAX {
            return SessionId::NONE;
        }
        if sessions.len() >= self.slots_max {
            let oldest = sessions
                .iter()
                .filter(|(_, session)| !session.busy)
                .min_by_key(|(_, session)| session.last_used)
                .map(|(&id, session)| (id, session.last_used));
            match oldest {
                Some((id, used)) if now.since(used).as_millis() as u64 >= EVICTION_MS_MIN => {
                    self.forget(&mut sessions, id);
                    self.evictions.set(self.evictions.get() + 1);
                }
                _ => return SessionId::NONE,
            }
        }
        let session_id = loop {
            let id = SessionId((self.random.borrow_mut().next_u64() >> 33) as i32);
            if id != SessionId::NONE && !sessions.contains_key(&id) {
                break id;
            }
        };
        let partitions: IndexMap<_, _, _> =
            partitions.iter().map(|(key, wanted)| (key.clone(), Cached::new(*wanted))).collect();
        let epoch = SessionEpoch::INITIAL.next();
        self.partitions_held.set(self.partitions_held.get() + partitions.len());
        sessions.insert(session_id, Session { by_id, partitions, epoch, last_used: now, busy: true });
        session_id
    }
}

impl Cached {
    fn new(request: FetchPartition) -> Self {
        Self {
            request,
            high_watermark: Offset(-1),
            log_start: Offset(-1),
            had_error: false,
            was_served: false,
        }
    }
}

fn named(request: &FetchRequest) -> impl Iterator<Item = (SessionKey, FetchPartition)> + '_ {
    request.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| {
            let key = SessionKey { topic: topic.topic.clone(), partition: partition.index };
            (key, *partition)
        })
    })
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::StrBytes;

    use super::*;
    use crate::base::{BrokerEpoch, BrokerId, LeaderEpoch};
    use crate::wire::fetch::{FetchTopic, ForgottenTopic, IsolationLevel};

    fn topic() -> TopicRef {
        TopicRef::Name(StrBytes::from_static_str("t"))
    }

    fn request(session_id: SessionId, epoch: i32, partitions: &[i32]) -> FetchRequest {
        let partitions = partitions.iter().map(|&index| FetchPartition {
            index: PartitionIndex(index),
            current_leader_epoch: LeaderEpoch::NONE,
            fetch_offset: Offset(0),
            last_fetched_epoch: LeaderEpoch::NONE,
            log_start_offset: Offset(-1),
            max_bytes: 1000,
            replica_directory_id: uuid::Uuid::nil(),
            high_watermark: None,
        });
        FetchRequest {
            cluster_id: None,
            replica_id: BrokerId(-1),
            replica_epoch: BrokerEpoch(-1),
            max_wait_ms: 0,
            min_bytes: 1,
            max_bytes: 1000,
            isolation_level: IsolationLevel::ReadUncommitted,
            session_id,
            session_epoch: SessionEpoch(epoch),
            topics: vec![FetchTopic { topic: topic(), partitions: partitions.collect() }],
            forgotten: Vec::new(),
            rack_id: StrBytes::new(),
        }
    }

    fn order(context: &Context) -> Vec<i32> {
        context.partitions.iter().map(|(key, _)| key.partition.0).collect()
    }

    fn opened(cache: &SessionCache, partitions: &[i32]) -> SessionId {
        let context = cache.begin(&request(SessionId::NONE, 0, partitions), false).unwrap();
        cache.finish(context.session_id);
        context.session_id
    }

    #[test]
    fn partitions_that_got_records_stand_behind_the_others_next_time() {
        let cache = SessionCache::new(10);
        let session = opened(&cache, &[0, 1, 2, 3]);
        let mut context = cache.begin(&request(session, 1, &[]), false).unwrap();
        assert_eq!((context.len(), cache.fill(&mut context)), (4, Ok(())));
        for (key, partition) in &context.partitions {
            let mut response = FetchPartitionResponse::failed(partition.index, None);
            response.records_len = if [0, 2].contains(&key.partition.0) { 100 } else { 0 };
            cache.tell(&context, key, &response);
        }
        cache.finish(context.session_id);
        let mut next = cache.begin(&request(session, 2, &[]), false).unwrap();
        assert_eq!(cache.fill(&mut next), Ok(()));
        assert_eq!(order(&next), [1, 3, 0, 2]);
    }

    #[test]
    fn a_session_does_not_mix_names_and_ids_and_ends_with_its_last_partition() {
        let cache = SessionCache::new(10);
        let session = opened(&cache, &[0]);
        let mixed = cache.begin(&request(session, 1, &[]), true).err();
        assert_eq!(mixed, Some(ErrorCode::FetchSessionTopicIdError));
        let mut last = request(session, 1, &[]);
        last.forgotten = vec![ForgottenTopic { topic: topic(), partitions: vec![PartitionIndex(0)] }];
        let context = cache.begin(&last, false).unwrap();
        assert_eq!((context.session_id, order(&context)), (SessionId::NONE, Vec::new()));
        let gone = cache.begin(&request(session, 2, &[]), false).err();
        assert_eq!(gone, Some(ErrorCode::FetchSessionIdNotFound));
    }
}
