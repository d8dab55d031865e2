//! openraft's way to the other controllers, over `peer`'s links. A node alone has none: every call then answers
//! that the peer cannot be reached.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};

use super::machine::SnapshotBytes;
use super::types::{self, Member, Seat, Types, Vote};
use super::wire::{self, CHUNK_BYTES_MAX, Chunk};
use crate::base::crc32c;
use crate::metadata::DecodeError;
use crate::peer::{Lane, Link, Links, PeerError, PeerKey};

/// How long one chunk of a snapshot may take: it is only kept in memory until the last one, which is written.
const CHUNK_TIME_MAX: Duration = Duration::from_secs(5);
const LAST_CHUNK_TIME_MAX: Duration = Duration::from_secs(30);

/// Makes [`PeerNetwork`]s.
pub struct PeerNetworks {
    /// `None` for a node alone.
    pub links: Option<Rc<Links>>,
    /// How long entries may take to the disk of the other: openraft's own limit is a heartbeat.
    pub append_time_max: Duration,
}

/// The way to one controller.
pub struct PeerNetwork {
    links: Option<Rc<Links>>,
    member: Member,
    /// Of appends; votes and snapshots have their own.
    lane: Lane,
    append_time_max: Duration,
}

impl PeerNetworks {
    fn network(&self, member: &Member, lane: Lane) -> PeerNetwork {
        if let (Some(links), Some(address)) = (&self.links, &member.address) {
            links.roster().hint(member.node, address);
        }
        let (links, member) = (self.links.clone(), member.clone());
        PeerNetwork { links, member, lane, append_time_max: self.append_time_max }
    }
}

impl RaftNetworkFactory<Types> for PeerNetworks {
    type Network = PeerNetwork;

    async fn new_client(&mut self, _target: Seat, member: &Member) -> PeerNetwork {
        self.network(member, Lane::Append)
    }

    async fn new_heartbeat_client(&mut self, _target: Seat, member: &Member) -> PeerNetwork {
        self.network(member, Lane::Beat)
    }
}

impl PeerNetwork {
    fn link(&self, lane: Lane) -> Result<Link, PeerError> {
        let links = self.links.as_ref().ok_or(PeerError::Unknown(self.member.node))?;
        Ok(links.link(self.member.node, lane))
    }

    async fn call(&self, lane: Lane, key: PeerKey, body: &[u8], limit: Duration) -> Result<Bytes, PeerError> {
        self.link(lane)?.call(key, body, limit).await
    }
}

impl RaftNetworkV2<Types> for PeerNetwork {
    type SnapshotData = SnapshotBytes;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let (body, cut) = wire::append_request(&request);
        let limit = match self.lane {
            Lane::Append => self.append_time_max.max(option.hard_ttl()),
            _ => option.hard_ttl(),
        };
        let answer = self.call(self.lane, PeerKey::RaftAppend, &body, limit).await.map_err(failed)?;
        let response = wire::read_append_answer(&answer).map_err(unreadable)?;
        match (response, cut) {
            (AppendEntriesResponse::Success, Some(last)) => {
                Ok(AppendEntriesResponse::PartialSuccess(Some(last)))
            }
            (response, _) => Ok(response),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let body = wire::vote_request(&request);
        let answer = self.call(Lane::Vote, PeerKey::RaftVote, &body, option.hard_ttl()).await;
        wire::read_vote_answer(&answer.map_err(failed)?).map_err(unreadable)
    }

    /// openraft's own default would grant.
    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let body = wire::vote_request(&request);
        let answer = self.call(Lane::Vote, PeerKey::RaftPreVote, &body, option.hard_ttl()).await;
        wire::read_vote_answer(&answer.map_err(failed)?).map_err(unreadable)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Types, SnapshotBytes>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        match select(pin!(cancel), pin!(self.send_snapshot(vote, snapshot))).await {
            Either::Left((closed, _)) => Err(StreamingError::Closed(closed)),
            Either::Right((sent, _)) => Ok(sent?),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let body = wire::transfer_request(&request);
        // It answers nothing: whether it took the leadership over is seen by its votes.
        self.call(Lane::Vote, PeerKey::RaftTransfer, &body, option.hard_ttl()).await.map_err(failed)?;
        Ok(Ok(()))
    }
}

impl PeerNetwork {
    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: SnapshotOf<Types, SnapshotBytes>,
    ) -> Result<SnapshotResponse<Types>, RPCError<Types>> {
        let link = self.link(Lane::Snapshot).map_err(failed)?;
        let (meta, state) = (snapshot.meta, snapshot.snapshot.0);
        let (length, crc) = (state.len(), crc32c::of(&state));
        let mut offset = 0;
        loop {
            let end = length.min(offset + CHUNK_BYTES_MAX);
            let chunk = Chunk { vote, meta: meta.clone(), length, crc, offset, bytes: &state[offset..end] };
            let limit = if end == length { LAST_CHUNK_TIME_MAX } else { CHUNK_TIME_MAX };
            let answer =
                link.call(PeerKey::RaftSnapshot, &wire::chunk(&chunk), limit).await.map_err(failed)?;
            let answer = wire::read_chunk_answer(&answer).map_err(unreadable)?;
            if answer.is_installed || !types::yields_to(&answer.vote, &vote) {
                return Ok(answer.into());
            }
            // Forwards, or back to the beginning when the receiver has lost what it had.
            match answer.next {
                next if next == end && end < length => offset = end,
                0 if offset > 0 => offset = 0,
                _ => return Err(failed(PeerError::Malformed("a part of a snapshot that was not asked for"))),
            }
        }
    }
}

/// openraft waits before it tries again where nobody can be reached.
fn failed(error: PeerError) -> RPCError<Types> {
    RPCError::Unreachable(Unreachable::new(&error))
}

fn unreadable(error: DecodeError) -> RPCError<Types> {
    RPCError::Network(NetworkError::new(&error))
}
