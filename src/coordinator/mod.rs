//! The group coordinator: consumer groups of both protocols and the offsets they commit, kept in the partitions of
//! `__consumer_offsets` that this node leads.
//!
//! It lives on shard 0 as one plain struct, [`Coordinator`], and never does IO, reads a clock or waits:
//! requests, acknowledgements of appends, the passing of time and changes of ownership go in, and
//! [`Effect`]s come out. What must survive a restart changes only when a record is applied after it was
//! appended, and loading a partition applies the same records by the same code.

mod admin;
mod beats;
mod codec;
mod consumer;
mod figures;
mod gate;
mod group;
mod interface;
mod join;
mod machine;
mod member;
mod membership;
mod offsets;
mod open_offsets;
mod partition;
mod partitioner;
mod rebalance;
mod records;
mod requests;
mod room;
mod share_group;
pub mod share_state;
mod timers;
pub mod transactions;
mod turn;

#[cfg(test)]
mod tests;

pub use consumer::{ConsumerRecord, compile_expression};
pub use figures::{Committed, Told};
pub use interface::{Client, Content, Effect, KeyValue, ReplyToken, Request, Response, Ticket};
pub use machine::Coordinator;
pub use partitioner::partition_for;
pub use records::{GroupValue, MemberValue, OffsetKey, OffsetValue, Record, RecordError};
pub use share_group::{NamedPartitions, ShareGroupState, ShareHeartbeat, ShareRecord};
