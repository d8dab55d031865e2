//! The Kafka APIs, one file each: validate, ask the owner shards, merge, answer.
//!
//! A handler runs on the connection's shard and takes the decoded request to a response; it reaches
//! partitions and the control services only through [`crate::shard::Shard`]'s messages. Produce and Fetch
//! have codecs of their own and are given the raw body; every other request is decoded by
//! [`crate::wire::guard`], which checks each count before anything is allocated for it.

pub mod api_versions;
mod client;
mod cluster_view;
pub mod configs;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_records;
pub mod delete_topics;
pub mod describe_cluster;
pub mod describe_log_dirs;
pub mod describe_producers;
pub mod describe_topic_partitions;
mod fetch;
mod fetch_session;
mod find_coordinator;
pub mod group_driver;
mod group_loader;
mod groups;
pub mod init_producer_id;
pub mod internal_topics;
pub mod list_offsets;
pub mod metadata;
pub mod offset_for_leader_epoch;
mod offsets;
pub mod produce;
mod shares;

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use kafka_protocol::protocol::{Encodable, HeaderVersion, Request};

pub use client::{Client, FetchSessions};
pub use fetch_session::SessionCache;

use crate::io::os::OsFiles;
use crate::log::FileRange;
use crate::wire::api::Api;
use crate::wire::guard;
use crate::wire::header::RequestHeader;
use crate::wire::read::DecodeError;
use crate::wire::write::EncodeError;
use crate::wire::{ApiKey, ErrorCode};

/// A part of a response on its way out.
pub enum Piece {
    Bytes(Bytes),
    /// Bytes of a log file that nobody has looked at.
    File(FileRange<OsFiles>),
}

impl Piece {
    /// Bytes held in memory: a file range counts nothing.
    pub fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::File(_) => 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

/// Serves one request that stands alone: all before it are answered.
pub async fn serve(client: &Rc<Client>, header: &RequestHeader, body: Bytes) -> Outcome {
    let version = header.version;
    match header.api.key {
        ApiKey::Produce => produce::begin(client, header, body).await.await,
        ApiKey::Fetch => fetch::handle(client, header, &body).await,
        ApiKey::ApiVersions => typed(header, &body, |request| api_versions::handle(version, request)).await,
        ApiKey::ListOffsets => {
            typed(header, &body, |request| list_offsets::handle(client, version, request)).await
        }
        ApiKey::OffsetForLeaderEpoch => {
            typed(header, &body, |request| offset_for_leader_epoch::handle(client, request)).await
        }
        ApiKey::DeleteRecords => {
            typed(header, &body, |request| delete_records::handle(client, request)).await
        }
        ApiKey::DescribeProducers => {
            typed(header, &body, |request| describe_producers::handle(client, request)).await
        }
        ApiKey::DescribeLogDirs => {
            typed(header, &body, |request| describe_log_dirs::handle(client, version, request)).await
        }
        ApiKey::Metadata => typed(header, &body, |request| metadata::handle(client, version, request)).await,
        ApiKey::DescribeCluster => {
            typed(header, &body, |request| describe_cluster::handle(client, version, request)).await
        }
        ApiKey::DescribeTopicPartitions => {
            typed(header, &body, |request| describe_topic_partitions::handle(client, request)).await
        }
        ApiKey::CreateTopics => {
            typed(header, &body, |request| create_topics::handle(client, version, request)).await
        }
        ApiKey::DeleteTopics => {
            typed(header, &body, |request| delete_topics::handle(client, version, request)).await
        }
        ApiKey::CreatePartitions => {
            typed(header, &body, |request| create_partitions::handle(client, request)).await
        }
        ApiKey::InitProducerId => {
            typed(header, &body, |request| init_producer_id::handle(client, request)).await
        }
        ApiKey::DescribeConfigs => {
            typed(header, &body, |request| configs::handle_describe(client, request)).await
        }
        ApiKey::AlterConfigs => typed(header, &body, |request| configs::handle_alter(client, request)).await,
        ApiKey::IncrementalAlterConfigs => {
            typed(header, &body, |request| configs::handle_incremental_alter(client, request)).await
        }
        ApiKey::ListConfigResources => {
            typed(header, &body, |request| configs::handle_list(client, version, request)).await
        }
        ApiKey::FindCoordinator => {
            typed(header, &body, |request| find_coordinator::handle(client, version, request)).await
        }
        ApiKey::JoinGroup => typed(header, &body, |request| groups::join(client, header, request)).await,
        ApiKey::SyncGroup => typed(header, &body, |request| groups::sync(client, header, request)).await,
        ApiKey::Heartbeat => typed(header, &body, |request| groups::heartbeat(client, header, request)).await,
        ApiKey::LeaveGroup => typed(header, &body, |request| groups::leave(client, header, request)).await,
        ApiKey::DescribeGroups => {
            typed(header, &body, |request| groups::describe(client, header, request)).await
        }
        ApiKey::ListGroups => typed(header, &body, |request| groups::list(client, header, request)).await,
        ApiKey::DeleteGroups => typed(header, &body, |request| groups::delete(client, header, request)).await,
        ApiKey::OffsetCommit => {
            typed(header, &body, |request| offsets::commit(client, header, request)).await
        }
        ApiKey::OffsetFetch => typed(header, &body, |request| offsets::fetch(client, header, request)).await,
        ApiKey::OffsetDelete => {
            typed(header, &body, |request| offsets::delete(client, header, request)).await
        }
        _ => Outcome::Close(CloseReason::NoHandler { api: header.api.name }),
    }
}

/// Decodes, handles and encodes a request of kafka-protocol's types.
async fn typed<Q, S, F>(header: &RequestHeader, body: &Bytes, handle: impl FnOnce(Q) -> F) -> Outcome
where
    Q: Request,
    S: Encodable + HeaderVersion,
    F: Future<Output = S>,
{
    let request = match guard::decode::<Q>(header.version, body) {
        Ok(request) => request,
        Err(error) => return malformed(header, error),
    };
    let response = handle(request).await;
    answer(header, guard::encode(header.version, header.correlation_id, &response))
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
