//! The Kafka APIs, one file each: validate, ask the owner shards, merge, answer.
//!
//! A handler runs on the connection's shard and takes the decoded request to a response; it reaches
//! partitions and the control services only through [`crate::shard::Shard`]'s messages. Produce and Fetch
//! have codecs of their own and are given the raw body; every other request is decoded by
//! [`crate::wire::guard`], which checks each count before anything is allocated for it.

pub mod alter_replica_log_dirs;
mod answer_room;
pub mod api_versions;
pub mod assign_replicas;
mod batches;
pub mod broker_heartbeat;
pub mod broker_registration;
mod brokers;
mod client;
pub mod client_quotas;
mod cluster_view;
pub mod configs;
mod coordinator_appends;
mod coordinator_log;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_records;
pub mod delete_topics;
pub mod describe_cluster;
pub mod describe_log_dirs;
pub mod describe_producers;
pub mod describe_quorum;
pub mod describe_topic_partitions;
pub mod elect_leaders;
mod elsewhere;
mod errors;
mod fetch;
mod fetch_session;
mod find_coordinator;
pub mod group_driver;
mod groups;
mod handlers;
pub mod init_producer_id;
pub mod internal_topics;
mod leaderships;
mod leaning;
mod line;
pub mod list_offsets;
mod markers;
pub mod metadata;
pub mod offset_for_leader_epoch;
mod offsets;
pub mod produce;
mod questions;
mod raft_voters;
pub mod reassignments;
mod replica_fetch;
mod scram_credentials;
pub mod share_driver;
mod share_elsewhere;
mod share_fetch;
mod share_groups;
mod share_session;
mod shares;
mod throttle;
mod transactional;
mod transactions;
pub mod txn_driver;
mod txn_offset_commit;
pub mod unregister_broker;
pub mod update_features;
mod verification;
mod write_txn_markers;

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

pub use answer_room::ANSWER_BYTES_MAX;
pub use client::{Client, FetchSessions};
pub use fetch::memory_of as fetch_memory_of;
pub use fetch_session::{SessionCache, SessionFigures};
pub use leaning::{Destination, Leaning, MoveQuestion, ShardWork};

use crate::io::os::OsFiles;
use crate::log::FileRange;
use crate::wire::api::Api;
use crate::wire::header::RequestHeader;
use crate::wire::read::DecodeError;
use crate::wire::write::EncodeError;
use crate::wire::{ApiKey, ErrorCode};

/// Requests up to here are not counted against the shard's memory for those in service.
pub const UNCHARGED_BYTES_MAX: usize = 4096;

/// What is told instead of the part of an answer that would make it too long.
const TOO_LONG: &str = "The answer would be too long: ask for less at once.";

/// A part of a response on its way out.
pub enum Piece {
    Bytes(Bytes),
    /// Bytes of a log file that nobody has looked at.
    File(FileRange<OsFiles>),
}

impl Piece {
    /// Bytes on the wire.
    pub fn sent_len(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File(range) => u64::from(range.length),
        }
    }
}

/// What a request ends in.
pub enum Outcome {
    Answer(Vec<Piece>),
    /// `acks=0`.
    Silent,
    /// The connection is closed, as Kafka does.
    Close(CloseReason),
}

/// Why a request ends its connection.
#[derive(Debug, thiserror::Error)]
pub enum CloseReason {
    #[error("{api} v{version}: {error}")]
    Malformed { api: &'static str, version: i16, error: DecodeError },
    #[error("{api} v{version}: the answer cannot be encoded: {error}")]
    Unencodable { api: &'static str, version: i16, error: EncodeError },
    #[error("{api}: no handler")]
    NoHandler { api: &'static str },
    #[error("an append with acks=0 failed: {0}")]
    UnacknowledgedFailure(ErrorCode),
}

/// Whether requests of `api` may be begun before the ones before them are answered.
pub fn may_overlap(api: &Api) -> bool {
    api.key == ApiKey::Produce
}

/// The answer to a request that takes nothing to answer: nearly all where there are thousands of members of groups. All
/// before it are answered.
pub fn answer_at_once(client: &Client, header: &RequestHeader, body: &Bytes) -> Option<Bytes> {
    if client.is_timed(header) {
        return None;
    }
    groups::answer_beat(client, header, body)
}

/// Serves one request that stands alone: all before it are answered.
pub async fn serve(client: &Rc<Client>, header: &RequestHeader, body: Bytes) -> Outcome {
    let Some(handle) = handlers::handler(header.api.key) else {
        return Outcome::Close(CloseReason::NoHandler { api: header.api.name });
    };
    let serving = handle(client, header, body);
    match client.is_timed(header) {
        true => throttle::Timed::new(client, Duration::ZERO, serving).await,
        false => serving.await,
    }
}

fn malformed(header: &RequestHeader, error: DecodeError) -> Outcome {
    Outcome::Close(CloseReason::Malformed { api: header.api.name, version: header.version, error })
}

fn answer(header: &RequestHeader, encoded: Result<Bytes, EncodeError>) -> Outcome {
    match encoded {
        Ok(bytes) => Outcome::Answer(vec![Piece::Bytes(bytes)]),
        Err(error) => {
            Outcome::Close(CloseReason::Unencodable { api: header.api.name, version: header.version, error })
        }
    }
}

/// An error code as the wire has it.
fn code(error: Option<ErrorCode>) -> i16 {
    error.map_or(0, |error| error.code())
}
