//! What other controllers ask, answered by this node's openraft. Lives on shard 0.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;

use openraft::async_runtime::WatchReceiver as _;
use openraft::raft::AppendEntriesResponse;
use openraft::storage::Snapshot;

use super::machine::{Machine, SnapshotBytes};
use super::types::{self, Seat, SnapshotMeta, Types, Vote};
use super::wire::{self, ChunkAnswer};
use crate::base::clock::{self, Monotonic};
use crate::base::{BrokerId, crc32c};
use crate::io::Files;
use crate::metadata::DecodeError;
use crate::peer::{PeerError, PeerKey, Request};

/// Answers other controllers, whatever files this one has.
pub trait Serve {
    /// The body of the answer to what node `from` asks.
    fn serve<'a>(&'a self, from: BrokerId, request: &'a Request) -> Serving<'a>;
}

pub type Serving<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, PeerError>> + 'a>>;

/// openraft as others see it.
pub struct RaftCalls<F: Files> {
    raft: openraft::Raft<Types, Machine<F>>,
    /// When a leader that this node follows spoke last.
    heard: Rc<Cell<Monotonic>>,
    /// A snapshot on its way; another one takes its place.
    incoming: RefCell<Option<Incoming>>,
}

struct Incoming {
    vote: Vote,
    meta: SnapshotMeta,
    length: usize,
    crc: u32,
    /// Grows with what has come, whatever length was said.
    bytes: Vec<u8>,
}

impl<F: Files> RaftCalls<F> {
    pub fn new(raft: openraft::Raft<Types, Machine<F>>, heard: Rc<Cell<Monotonic>>) -> Self {
        Self { raft, heard, incoming: RefCell::default() }
    }

    async fn answer(&self, from: BrokerId, request: &Request) -> Result<Vec<u8>, PeerError> {
        let body = &request.body[..];
        match request.key {
            PeerKey::RaftAppend => {
                let request = wire::read_append_request(body).map_err(unreadable)?;
                self.check_seat(from, &request.vote)?;
                let response = self.raft.append_entries(request).await.map_err(|_| PeerError::Closed)?;
                if !matches!(response, AppendEntriesResponse::HigherVote(_)) {
                    self.heard.set(clock::monotonic());
                }
                Ok(wire::append_answer(&response))
            }
            PeerKey::RaftVote => {
                let request = wire::read_vote_request(body).map_err(unreadable)?;
                self.check_seat(from, &request.vote)?;
                let response = self.raft.vote(request).await.map_err(|_| PeerError::Closed)?;
                Ok(wire::vote_answer(&response))
            }
            PeerKey::RaftPreVote => {
                let request = wire::read_vote_request(body).map_err(unreadable)?;
                self.check_seat(from, &request.vote)?;
                let response = self.raft.pre_vote(request).await.map_err(|_| PeerError::Closed)?;
                Ok(wire::vote_answer(&response))
            }
            PeerKey::RaftTransfer => {
                let request = wire::read_transfer_request(body).map_err(unreadable)?;
                self.check_seat(from, request.from_leader())?;
                let taken = self.raft.handle_transfer_leader(request).await.map_err(|_| PeerError::Closed)?;
                if let Err(error) = taken {
                    tracing::info!("the leadership is not taken over: {error}");
                }
                Ok(Vec::new())
            }
            PeerKey::RaftSnapshot => self.take_chunk(from, body).await,
            PeerKey::Hello
            | PeerKey::Proof
            | PeerKey::BrokerRegistration
            | PeerKey::BrokerHeartbeat
            | PeerKey::AssignReplicasToDirs
            | PeerKey::Command
            | PeerKey::DescribeQuorum
            | PeerKey::FetchLog
            | PeerKey::Join
            | PeerKey::ChangeVoters
            | PeerKey::ShareState
            | PeerKey::Nudge => Err(PeerError::Malformed("a request that is not for the metadata log")),
        }
    }

    fn check_seat(&self, from: BrokerId, vote: &Vote) -> Result<(), PeerError> {
        let seat = vote.leader_id.voted_for;
        let metrics = self.raft.metrics();
        let known = metrics.borrow_watched().membership_config.get_node(&seat).map(|member| member.node);
        check_seat(from, seat, known)
    }

    async fn take_chunk(&self, from: BrokerId, body: &[u8]) -> Result<Vec<u8>, PeerError> {
        let chunk = wire::read_chunk(body).map_err(unreadable)?;
        self.check_seat(from, &chunk.vote)?;
        let own = self.raft.metrics().borrow_watched().vote;
        if !types::yields_to(&own, &chunk.vote) {
            return Ok(wire::chunk_answer(&ChunkAnswer { vote: own, next: 0, is_installed: false }));
        }
        self.heard.set(clock::monotonic());
        let mut incoming = match self.incoming.take() {
            Some(incoming)
                if incoming.vote == chunk.vote
                    && incoming.meta == chunk.meta
                    && (incoming.length, incoming.crc) == (chunk.length, chunk.crc)
                    && incoming.bytes.len() == chunk.offset =>
            {
                incoming
            }
            _ if chunk.offset > 0 => {
                return Ok(wire::chunk_answer(&ChunkAnswer { vote: own, next: 0, is_installed: false }));
            }
            _ => Incoming {
                vote: chunk.vote,
                meta: chunk.meta,
                length: chunk.length,
                crc: chunk.crc,
                bytes: Vec::new(),
            },
        };
        incoming.bytes.extend_from_slice(chunk.bytes);
        let next = incoming.bytes.len();
        if next < incoming.length {
            self.incoming.replace(Some(incoming));
            return Ok(wire::chunk_answer(&ChunkAnswer { vote: own, next, is_installed: false }));
        }
        if crc32c::of(&incoming.bytes) != incoming.crc {
            return Err(PeerError::Malformed("a snapshot whose checksum differs"));
        }
        let Incoming { vote, meta, bytes, .. } = incoming;
        let snapshot = Snapshot { meta, snapshot: SnapshotBytes(bytes) };
        let response =
            self.raft.install_full_snapshot(vote, snapshot).await.map_err(|_| PeerError::Closed)?;
        Ok(wire::chunk_answer(&ChunkAnswer { vote: response.vote, next, is_installed: true }))
    }
}

impl<F: Files> Serve for RaftCalls<F> {
    fn serve<'a>(&'a self, from: BrokerId, request: &'a Request) -> Serving<'a> {
        Box::pin(self.answer(from, request))
    }
}

/// A node speaks with its own vote only: the peer has proved which node it is, so a mistake or a lie of one of them makes
/// nobody else a leader. `known`: who sits there as far as this node knows; later seats may be newer than what it has.
fn check_seat(from: BrokerId, seat: Seat, known: Option<BrokerId>) -> Result<(), PeerError> {
    let is_own = match known {
        Some(node) => node == from,
        None => seat.0 >= Seat::LATER || Seat::first_of(from) == Some(seat),
    };
    if is_own { Ok(()) } else { Err(PeerError::Malformed("a vote of another node")) }
}

pub fn unreadable(error: DecodeError) -> PeerError {
    tracing::warn!("a node's request does not decode: {error}");
    PeerError::Malformed("a body that does not decode")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_speaks_with_anothers_vote() {
        let check =
            |from, seat, known: Option<i32>| check_seat(BrokerId(from), Seat(seat), known.map(BrokerId));
        assert!(check(2, 2, None).is_ok() && check(2, 2, Some(2)).is_ok());
        assert!(check(1, 2, None).is_err() && check(1, 2, Some(2)).is_err());
        assert!(check(-2, 2, None).is_err());
        let later = Seat::LATER | 40;
        assert!(check(7, later, Some(7)).is_ok() && check(8, later, Some(7)).is_err());
        assert!(check(7, later, None).is_ok(), "its seat is newer than what this node has");
    }
}
