//! Share sessions (KIP-932): what a member fetches, remembered between its requests. A session lives with the connection
//! that opened it; when that ends, what the member got in it is free again.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexSet;

use super::shares::Shares;
use crate::base::{PartitionIndex, TopicId};
use crate::io::runtime::{Queue, spawn};
use crate::shard::messages::{Request, ShareRelease};
use crate::shard::{PartitionKey, Shard};
use crate::share::{Holder, SessionNumber};
use crate::wire::ErrorCode;
use crate::wire::fetch::SessionEpoch;

/// Partitions that one session may have.
const PARTITIONS_MAX: usize = 20_000;

/// A member as its requests name it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Member {
    pub(super) group: Arc<str>,
    pub(super) id: Arc<str>,
}

#[derive(Debug)]
struct Session {
    number: SessionNumber,
    /// What the next request must carry.
    epoch: SessionEpoch,
    partitions: IndexSet<PartitionKey, ahash::RandomState>,
    /// Left the session, perhaps with records at the member.
    forgotten: HashSet<PartitionKey, ahash::RandomState>,
}

/// The sessions of one connection.
pub(super) struct ShareSessions {
    shard: Rc<Shard>,
    sessions: RefCell<HashMap<Member, Session>>,
}

/// One request's part of its session.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) holder: Holder,
    pub(super) epoch: SessionEpoch,
    /// What is to be fetched, beginning elsewhere each time.
    pub(super) partitions: Vec<PartitionKey>,
}

impl Context {
    pub(super) fn is_first(&self) -> bool {
        self.epoch == SessionEpoch::INITIAL
    }

    pub(super) fn is_last(&self) -> bool {
        self.epoch == SessionEpoch::FINAL
    }
}

/// What a fetch says of its session.
pub(super) struct Named<'a> {
    pub(super) partitions: &'a [PartitionKey],
    pub(super) forgotten: &'a [(TopicId, Vec<PartitionIndex>)],
    pub(super) acknowledges: bool,
}

impl ShareSessions {
    pub(super) fn new(shard: Rc<Shard>) -> Self {
        Self { shard, sessions: RefCell::default() }
    }

    /// Finds, opens or is about to end the session of a fetch (`SharePartitionManager.newContext`).
    pub(super) fn begin_fetch(
        &self,
        member: &Member,
        epoch: SessionEpoch,
        named: &Named<'_>,
    ) -> Result<Context, ErrorCode> {
        let mut sessions = self.sessions.borrow_mut();
        if epoch == SessionEpoch::FINAL {
            let session = sessions.get(member).ok_or(ErrorCode::ShareSessionNotFound)?;
            return Ok(context(member, epoch, session.number, Vec::new()));
        }
        if epoch == SessionEpoch::INITIAL {
            if named.acknowledges {
                return Err(ErrorCode::InvalidRequest);
            }
            if sessions.remove(member).is_some() {
                self.shard.close_share_session();
            }
            let number = self.shard.open_share_session().ok_or(ErrorCode::ShareSessionLimitReached)?;
            let session = Session {
                number,
                epoch: epoch.next(),
                partitions: named.partitions.iter().copied().collect(),
                forgotten: HashSet::default(),
            };
            let partitions = session.partitions.iter().copied().collect();
            sessions.insert(member.clone(), session);
            return Ok(context(member, epoch, number, partitions));
        }
        let session = sessions.get_mut(member).ok_or(ErrorCode::ShareSessionNotFound)?;
        if session.epoch != epoch {
            return Err(ErrorCode::InvalidShareSessionEpoch);
        }
        if session.partitions.len() + session.forgotten.len() + named.partitions.len() > PARTITIONS_MAX {
            return Err(ErrorCode::ShareSessionLimitReached);
        }
        session.epoch = epoch.next();
        session.partitions.extend(named.partitions.iter().copied());
        let forgotten = named.forgotten.iter().flat_map(|(topic, partitions)| {
            partitions.iter().map(|partition| PartitionKey { topic: *topic, partition: *partition })
        });
        let forgotten: HashSet<PartitionKey> = forgotten.collect();
        if !forgotten.is_empty() {
            let left: Vec<PartitionKey> =
                session.partitions.iter().copied().filter(|key| forgotten.contains(key)).collect();
            session.partitions.retain(|key| !forgotten.contains(key));
            session.forgotten.extend(left);
        }
        let mut partitions: Vec<PartitionKey> = session.partitions.iter().copied().collect();
        if !partitions.is_empty() {
            // So that each comes first in its turn.
            let first = epoch.0.unsigned_abs() as usize % partitions.len();
            partitions.rotate_left(first);
        }
        Ok(context(member, epoch, session.number, partitions))
    }

    /// Finds the session of an acknowledgement (`acknowledgeSessionUpdate`).
    pub(super) fn begin_acknowledge(
        &self,
        member: &Member,
        epoch: SessionEpoch,
    ) -> Result<Context, ErrorCode> {
        if epoch == SessionEpoch::INITIAL {
            return Err(ErrorCode::InvalidShareSessionEpoch);
        }
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.get_mut(member).ok_or(ErrorCode::ShareSessionNotFound)?;
        if epoch != SessionEpoch::FINAL {
            if session.epoch != epoch {
                return Err(ErrorCode::InvalidShareSessionEpoch);
            }
            session.epoch = epoch.next();
        }
        Ok(context(member, epoch, session.number, Vec::new()))
    }

    /// Ends a session and frees what its member got in it.
    pub(super) async fn end(&self, member: &Member) {
        let session = self.sessions.borrow_mut().remove(member);
        if let Some(session) = session {
            self.shard.close_share_session();
            release(self.shard.clone(), member.clone(), session).await;
        }
    }
}

impl Drop for ShareSessions {
    fn drop(&mut self) {
        for (member, session) in self.sessions.take() {
            self.shard.close_share_session();
            if !self.shard.is_stopping() {
                let task = release(self.shard.clone(), member, session);
                spawn(Queue::Serve, "share session", task).detach();
            }
        }
    }
}

fn context(
    member: &Member,
    epoch: SessionEpoch,
    session: SessionNumber,
    partitions: Vec<PartitionKey>,
) -> Context {
    Context { holder: Holder { member: member.id.clone(), session }, epoch, partitions }
}

async fn release(shard: Rc<Shard>, member: Member, session: Session) {
    let mut shares: Shares<PartitionKey, ()> = Shares::new();
    for key in session.partitions.into_iter().chain(session.forgotten) {
        shares.add(shard.owner(key), (), key);
    }
    let holder = Holder { member: member.id, session: session.number };
    for share in shares.into_vec() {
        let release = ShareRelease { group: member.group.clone(), holder: holder.clone(), keys: share.parts };
        drop(shard.ask(share.owner, Request::ShareRelease(release)).await);
    }
}
