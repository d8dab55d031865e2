//! What goes into the transaction coordinator and what comes out of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use kafka_protocol::messages::TransactionalId;
use kafka_protocol::messages::describe_transactions_response::TransactionState;
use kafka_protocol::messages::list_transactions_response::TransactionState as ListedTransaction;
use kafka_protocol::protocol::StrBytes;

use super::super::interface::{KeyValue, ReplyToken, Ticket};
use super::list::ListFilter;
use super::state::{NO_EPOCH, Transaction, TransactionVersion};
use crate::base::{PartitionIndex, ProducerEpoch, ProducerId, TopicPartition};
use crate::wire::ErrorCode;

/// One incarnation of a producer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Producer {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
}

impl Producer {
    pub const NONE: Producer = Producer { id: ProducerId::NONE, epoch: NO_EPOCH };

    pub(super) fn of(transaction: &Transaction) -> Self {
        Self { id: transaction.producer_id, epoch: transaction.epoch }
    }
}

/// A request for one transactional id (the handlers split the requests that name several).
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    Init {
        id: StrBytes,
        timeout_ms: i32,
        /// Who the producer believes to be.
        expected: Option<Producer>,
    },
    AddPartitions {
        id: StrBytes,
        producer: Producer,
        partitions: BTreeSet<TopicPartition>,
        /// What the client speaks.
        version: TransactionVersion,
    },
    /// Whether the partitions were added (KIP-890).
    VerifyPartitions {
        id: StrBytes,
        producer: Producer,
        partitions: BTreeSet<TopicPartition>,
    },
    End {
        id: StrBytes,
        producer: Producer,
        commit: bool,
        version: TransactionVersion,
    },
    Describe(StrBytes),
    /// Transactional ids of this node, some at a time; belongs to no partition.
    List {
        filter: Arc<ListFilter>,
        after: Option<ListCursor>,
    },
}

/// The last transactional id that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListCursor {
    pub(super) partition: PartitionIndex,
    pub(super) id: StrBytes,
}

/// The answer to the [`Request`] of the same name.
#[derive(Clone, PartialEq, Debug)]
pub enum Response {
    Init(Result<Producer, ErrorCode>),
    AddPartitions(Result<(), ErrorCode>),
    /// The partitions that were not added.
    VerifyPartitions(Result<BTreeSet<TopicPartition>, ErrorCode>),
    /// Who the producer is from now on.
    End(Result<Producer, ErrorCode>),
    Describe(TransactionState),
    /// Some of them, and where to go on; `None` at the end.
    List(Result<(Vec<ListedTransaction>, Option<ListCursor>), ErrorCode>),
}

impl Request {
    /// The transactional id it is for; `None` when it is for the whole node.
    pub fn transactional_id(&self) -> Option<&StrBytes> {
        match self {
            Request::Init { id, .. }
            | Request::AddPartitions { id, .. }
            | Request::VerifyPartitions { id, .. }
            | Request::End { id, .. }
            | Request::Describe(id) => Some(id),
            Request::List { .. } => None,
        }
    }

    /// Names the transactional id with `id`, its equal: another may keep a whole request in memory.
    pub(super) fn set_transactional_id(&mut self, id: StrBytes) {
        match self {
            Request::Init { id: own, .. }
            | Request::AddPartitions { id: own, .. }
            | Request::VerifyPartitions { id: own, .. }
            | Request::End { id: own, .. }
            | Request::Describe(own) => *own = id,
            Request::List { .. } => {}
        }
    }

    /// The answer when the request meets `error`.
    pub(super) fn failed(&self, error: ErrorCode) -> Response {
        match self {
            Request::Init { .. } => Response::Init(Err(error)),
            Request::AddPartitions { .. } => Response::AddPartitions(Err(error)),
            Request::VerifyPartitions { .. } => Response::VerifyPartitions(Err(error)),
            Request::End { .. } => Response::End(Err(error)),
            Request::Describe(id) => Response::Describe(
                TransactionState::default()
                    .with_transactional_id(TransactionalId(id.clone()))
                    .with_error_code(error.code()),
            ),
            Request::List { .. } => Response::List(Err(error)),
        }
    }
}

/// The end of a transaction, to be written to each of its partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    pub producer: Producer,
    pub commit: bool,
    pub coordinator_epoch: i32,
    /// How strictly the partitions look at the epoch (KIP-1228).
    pub version: TransactionVersion,
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    Reply {
        token: ReplyToken,
        response: Response,
    },
    /// Append to this partition of `__transaction_state`, in the order of the effects; it counts as written when
    /// it is committed (acks=all); then call [`super::Coordinator::appended`] with `ticket`.
    Append {
        partition: PartitionIndex,
        record: KeyValue,
        ticket: Ticket,
    },
    /// Call [`super::Coordinator::producer_id`] with an id that nobody had before.
    NewProducerId {
        ticket: Ticket,
    },
    /// Append the marker to each of the partitions (acks=all), then call
    /// [`super::Coordinator::markers_written`] with what became of it. A partition that is no more counts as
    /// written.
    WriteMarkers {
        marker: Marker,
        partitions: BTreeSet<TopicPartition>,
        ticket: Ticket,
    },
}
