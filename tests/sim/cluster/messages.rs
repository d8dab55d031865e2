//! What nodes and clients say to each other.

use bytes::Bytes;
use kuring::base::ProducerId;
use kuring::log::Appended;
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
    pub sequence: i32,
    pub key: PartitionKey,
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
    },
    Produced {
        token: Token,
        result: Result<Appended, ErrorCode>,
    },
    Consume {
        attempt: Attempt,
        key: PartitionKey,
        part: FetchPartition,
    },
    Consumed {
        attempt: Attempt,
        slice: FetchedSlice,
    },
}
