//! Consumer groups of the new protocol (KIP-848): the members tell what they subscribe to, the coordinator
//! assigns.
//!
//! A [`ConsumerGroup`] changes through [`ConsumerRecord`]s alone. A request is worked out on a [`Draft`]: it
//! applies records to the group as it goes, gathers them and takes them all back in the end; the group changes
//! when they are written. One such write of a group is under way at a time (`super::gate`).
//!
//! Never here: IO, a clock, the group of another request.

mod assignor;
mod classic;
mod commit;
mod convert;
mod describe;
mod draft;
mod group;
mod heartbeat;
mod leave;
mod member;
mod protocol;
mod reconcile;
mod records;
mod regexes;
mod requests;
mod timing;
mod topics;

pub(super) use group::ConsumerGroup;
pub(super) use member::{Epoch, Partitions};
pub use records::ConsumerRecord;
pub use regexes::compile as compile_expression;
pub(super) use requests::Applied;
pub(super) use topics::Topics;
