//! The way to the other controllers: there is none yet, a quorum has one node. Every call answers that the
//! peer cannot be reached, so a membership with others would stand still rather than go wrong.

use std::future::Future;

use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use openraft::{AnyError, BasicNode, OptionalSend, RaftNetworkFactory, RaftNetworkV2};

use super::machine::SnapshotBytes;
use super::types::{Types, Vote};

/// Makes [`NoPeer`]s.
pub struct NoPeers;

/// A peer that cannot be reached.
pub struct NoPeer;

impl RaftNetworkFactory<Types> for NoPeers {
    type Network = NoPeer;

    async fn new_client(&mut self, _target: u64, _node: &BasicNode) -> NoPeer {
        NoPeer
    }
}

impl RaftNetworkV2<Types> for NoPeer {
    type SnapshotData = SnapshotBytes;

    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(unreachable_peer()))
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(unreachable_peer()))
    }

    /// openraft's own default would grant.
    async fn pre_vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(unreachable_peer()))
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: SnapshotOf<Types, SnapshotBytes>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(StreamingError::Unreachable(unreachable_peer()))
    }
}

fn unreachable_peer() -> Unreachable<Types> {
    Unreachable::new(&AnyError::error("this node knows no way to other controllers"))
}
