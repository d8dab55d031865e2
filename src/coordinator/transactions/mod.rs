//! The transaction coordinator: transactional ids and the transactions under way, kept in the partitions of
//! `__transaction_state` that this node leads (KIP-98, KIP-360, KIP-588, KIP-664, KIP-890).
//!
//! It lives on shard 0 as one plain struct, [`Coordinator`], and never does IO, reads a clock or waits:
//! requests, acknowledgements of appends, written markers, new producer ids, the passing of time and changes
//! of ownership go in, [`Effect`]s come out. The state of a transactional id changes only when its record
//! was appended, and loading a partition applies the same records by the same code. A transaction whose end
//! was decided is carried through whatever happens: a partition that is loaded sends its markers again.

mod deadlines;
mod ending;
mod figures;
mod interface;
mod list;
mod machine;
mod partition;
mod records;
mod requests;
mod state;

#[cfg(test)]
mod tests;

pub use figures::Figures;
pub use interface::{Effect, ListCursor, Marker, Producer, Request, Response};
pub use list::ListFilter;
pub use machine::Coordinator;
pub use records::{Record, RecordError};
pub use state::{State, Transaction, TransactionVersion};
