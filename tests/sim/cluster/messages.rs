//! What nodes and clients say to each other.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use kuring::base::{LeaderEpoch, Offset, PartitionIndex, ProducerId, TopicPartition};
use kuring::coordinator::Ticket;
use kuring::coordinator::transactions::{Marker, Request, Response as Coordination, TransactionVersion};
use kuring::log::{AbortedTransaction, Appended};
use kuring::metadata::{Command, Refusal, Response};
use kuring::shard::PartitionKey;
use kuring::wire::ErrorCode;
use kuring::wire::fetch::{FetchAnswer, FetchPartition, FetchRequest, FetchedSlice};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    Node(usize),
    Client(usize),
}

/// Names a question: an answer to another one than the last is not wanted any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Attempt(pub u64);

/// A batch of a producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    pub client: usize,
    /// How many its client made before.
    pub number: u64,
    pub sequence: i32,
    pub key: PartitionKey,
}

/// Whom an append is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    Batch(Token),
    /// The transaction coordinator of this broker, for a record in this partition of its topic.
    State(PartitionIndex, Ticket),
    /// A coordinator, here or on another broker.
    Marker {
        to: Place,
        attempt: Attempt,
    },
}

/// What a batch of a transaction comes with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OfTransaction {
    pub id: StrBytes,
    /// What its client speaks.
    pub version: TransactionVersion,
}

/// What a consumer is told.
#[derive(Clone, Debug)]
pub struct Consumed {
    pub slice: FetchedSlice,
    /// For who reads committed transactions.
    pub aborted: Vec<AbortedTransaction>,
    /// A replica on this node is to be read instead.
    pub elsewhere: Option<usize>,
}

/// How a consumer reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    pub is_committed: bool,
    /// The node that is near.
    pub near: Option<usize>,
}

#[derive(Clone, Debug)]
pub enum Message {
    Fetch {
        attempt: Attempt,
        request: FetchRequest,
    },
    Fetched {
        attempt: Attempt,
        answer: FetchAnswer,
    },
    /// To the controller.
    Command {
        attempt: Attempt,
        command: Command,
    },
    Decided {
        attempt: Attempt,
        result: Result<Response, Refusal>,
    },
    /// The metadata log has so many entries.
    Metadata {
        entries: u64,
    },
    InitProducer,
    ProducerIs(ProducerId),
    Produce {
        token: Token,
        records: Bytes,
        transaction: Option<OfTransaction>,
    },
    Produced {
        token: Token,
        result: Result<Appended, ErrorCode>,
    },
    Consume {
        attempt: Attempt,
        key: PartitionKey,
        part: FetchPartition,
        reading: Reading,
    },
    Consumed {
        attempt: Attempt,
        consumed: Box<Consumed>,
    },
    /// Where the partition ends for consumers (ListOffsets).
    AskEnd {
        attempt: Attempt,
        key: PartitionKey,
        epoch: LeaderEpoch,
    },
    EndIs {
        attempt: Attempt,
        result: Result<Offset, ErrorCode>,
    },
    /// To the coordinator of a transactional id, from its producer or from a broker that it writes to.
    Coordinate {
        attempt: Attempt,
        request: Request,
    },
    Coordinated {
        attempt: Attempt,
        response: Box<Coordination>,
    },
    /// From a coordinator to whoever leads the partition.
    WriteMarker {
        attempt: Attempt,
        marker: Marker,
        partition: TopicPartition,
    },
    MarkerWritten {
        attempt: Attempt,
        result: Result<(), ErrorCode>,
    },
    /// From an operator to the partition's leader: [`Offset`] -1 stands for its high watermark.
    DeleteRecords {
        key: PartitionKey,
        offset: Offset,
    },
}
