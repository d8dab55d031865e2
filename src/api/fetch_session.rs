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
}

struct Session {
    partitions: IndexMap<SessionKey, Cached, ahash::RandomState>,
    /// What the next request must carry.
    epoch: SessionEpoch,
    last_used: Monotonic,
    /// A request of it is being served: another is refused rather than mixed with it.
    busy: bool,
}

/// The sessions of one shard.
pub struct SessionCache {
    sessions: RefCell<HashMap<SessionId, Session, ahash::RandomState>>,
    slots_max: usize,
    random: RefCell<Random>,
    evictions: Cell<u64>,
}

/// The session part of one request: what to fetch and how to answer.
pub(super) struct Context {
    kind: Kind,
    pub(super) session_id: SessionId,
    pub(super) partitions: Vec<(SessionKey, FetchPartition)>,
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
            random: RefCell::new(Random::from_os()),
            evictions: Cell::new(0),
        })
    }

    /// Sessions that had to give way to newer ones.
    pub fn evictions(&self) -> u64 {
        self.evictions.get()
    }

    /// Finds or opens the session of `request`.
    ///
    /// # Errors
    /// FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH: the client starts anew with a full fetch.
    pub(super) fn begin(&self, request: &FetchRequest) -> Result<Context, ErrorCode> {
        let epoch = request.session_epoch;
        if epoch.is_full() {
            self.sessions.borrow_mut().remove(&request.session_id);
            let partitions: Vec<_> = named(request).collect();
            if epoch == SessionEpoch::FINAL || partitions.is_empty() {
                return Ok(Context { kind: Kind::Sessionless, session_id: SessionId::NONE, partitions });
            }
            let session_id = self.open(&partitions);
            let kind = if session_id == SessionId::NONE { Kind::Sessionless } else { Kind::Full };
            return Ok(Context { kind, session_id, partitions });
        }
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.get_mut(&request.session_id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
        if session.epoch != epoch || session.busy {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        session.epoch = epoch.next();
        session.last_used = clock::monotonic();
        session.busy = true;
        for topic in &request.forgotten {
            for &partition in &topic.partitions {
                session.partitions.shift_remove(&SessionKey { topic: topic.topic.clone(), partition });
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
        let partitions =
            session.partitions.iter().map(|(key, cached)| (key.clone(), cached.request)).collect();
        Ok(Context { kind: Kind::Incremental, session_id: request.session_id, partitions })
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
        if response.records_len > 0 {
            // Whoever got data goes to the end, so that the others are not starved of the byte limit.
            let last = session.partitions.len() - 1;
            if let Some(at) = session.partitions.get_index_of(key) {
                session.partitions.move_index(at, last);
            }
        }
        context.kind == Kind::Full || has_news || !told_before
    }

    /// Ends the request's use of its session.
    pub(super) fn finish(&self, context: &Context) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(&context.session_id) {
            session.busy = false;
        }
    }

    fn open(&self, partitions: &[(SessionKey, FetchPartition)]) -> SessionId {
        let now = clock::monotonic();
        let mut sessions = self.sessions.borrow_mut();
        if sessions.len() >= self.slots_max {
            let oldest = sessions
                .iter()
                .filter(|(_, session)| !session.busy)
                .min_by_key(|(_, session)| session.last_used)
                .map(|(&id, session)| (id, session.last_used));
            match oldest {
                Some((id, used)) if now.since(used).as_millis() as u64 >= EVICTION_MS_MIN => {
                    sessions.remove(&id);
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
        let partitions = partitions.iter().map(|(key, wanted)| (key.clone(), Cached::new(*wanted))).collect();
        let epoch = SessionEpoch::INITIAL.next();
        sessions.insert(session_id, Session { partitions, epoch, last_used: now, busy: true });
        session_id
    }
}

impl Cached {
    fn new(request: FetchPartition) -> Self {
        Self { request, high_watermark: Offset(-1), log_start: Offset(-1), had_error: false }
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
