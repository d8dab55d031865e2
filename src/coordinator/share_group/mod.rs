//! Share groups (KIP-932): the members tell what they subscribe to, the coordinator assigns. Several members may have one
//! partition; who gets which of its records is the business of its owner ([`crate::share`]).
//!
//! A [`ShareGroup`] changes through [`ShareRecord`]s alone: a request is worked out on a copy, which gathers records as
//! it goes; the group changes when they are written. One such write of a group is under way at a time
//! (`super::gate`). A partition is assigned once its state in `__share_group_state` has been made, which who asked for
//! the heartbeat has done.
//!
//! Never here: IO, a clock, the group of another request.

mod assignor;
mod group;
mod heartbeat;
mod records;
mod requests;

pub(super) use group::ShareGroup;
pub use records::{NamedPartitions, ShareRecord};
pub(super) use requests::Applied;
pub use requests::{ShareGroupState, ShareHeartbeat};
