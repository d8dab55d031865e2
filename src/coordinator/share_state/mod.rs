//! The share coordinator: the state of share partitions, kept in the partitions of `__share_group_state` that this node
//! leads (KIP-932).
//!
//! It lives on shard 0 as one plain struct, [`Coordinator`], and never does IO, reads a clock or waits: requests,
//! acknowledgements of appends, the time and changes of ownership go in, [`Effect`]s come out. A state changes only when
//! its record was appended, and loading a partition applies the same records by the same code. What a share partition
//! means is not known here: ranges of offsets with a state and a count are laid over each other, the newest on top.

mod machine;
mod records;

#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;

pub use machine::{Coordinator, Effect, Request, Response, StateWrite};
pub use records::{Record, RecordError, Snapshot, Update};
