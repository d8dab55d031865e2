//! What is kept of a share partition, as Kafka keeps it in `__share_group_state`.

use crate::base::{LeaderEpoch, Offset};

/// What is known of a record when nobody has it (`RecordState`). Who has a record is never kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveryState {
    /// To be delivered, again if its count says so.
    Available,
    /// A member has processed it.
    Acknowledged,
    /// Nobody gets it any more: rejected, delivered too often, or not there.
    Archived,
}

impl DeliveryState {
    pub fn id(self) -> i8 {
        match self {
            DeliveryState::Available => 0,
            DeliveryState::Acknowledged => 2,
            DeliveryState::Archived => 4,
        }
    }

    /// A record that was acquired when this was written is free again. One on its way to a dead letter queue, which
    /// kuring does not have, is done with.
    pub fn from_id(id: i8) -> Option<Self> {
        match id {
            0 | 1 => Some(DeliveryState::Available),
            2 => Some(DeliveryState::Acknowledged),
            3 | 4 => Some(DeliveryState::Archived),
            _ => None,
        }
    }

    /// Nobody gets it any more.
    pub fn is_final(self) -> bool {
        self != DeliveryState::Available
    }
}

/// Records of one state (`PersisterStateBatch`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateBatch {
    pub first: Offset,
    pub last: Offset,
    pub state: DeliveryState,
    pub delivery_count: u16,
}

/// All that is kept of a share partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Persisted {
    /// Rises when the group's position is set anew; older writers are refused.
    pub state_epoch: i32,
    pub leader_epoch: LeaderEpoch,
    /// Below it everything is done with; -1 while nobody has read (`share.auto.offset.reset` decides).
    pub start: Offset,
    /// Records from `start` on that are done with; -1 when that is not known.
    pub delivery_complete: i32,
    pub batches: Vec<StateBatch>,
}
