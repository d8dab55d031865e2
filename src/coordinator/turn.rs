//! What one call of the coordinator hands to the group it is about, and what the group hands back.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{JoinGroupResponse, SyncGroupResponse};
use kafka_protocol::protocol::StrBytes;

use super::consumer::{Applied, Topics};
use super::gate::Gated;
use super::interface::{Effect, ReplyToken, Response};
use super::member::Protocol;
use super::records::Record;
use super::share_group;
use super::timers::{TimerKey, Timers};
use super::transactions::{Marker, Producer};
use crate::base::clock::{Monotonic, Now};
use crate::base::random::Random;
use crate::config::{ConsumerGroupTimes, GroupSettings};
use crate::log::Claim;
use crate::wire::ErrorCode;

pub(super) struct Turn<'a> {
    pub(super) settings: &'a GroupSettings,
    pub(super) timers: &'a mut Timers,
    pub(super) topics: &'a mut Topics,
    /// Of the groups that have configs of their own.
    pub(super) times: &'a HashMap<StrBytes, ConsumerGroupTimes>,
    pub(super) effects: &'a mut Vec<Effect>,
    pub(super) random: &'a mut Random,
    pub(super) now: Now,
}

impl Turn<'_> {
    pub(super) fn reply(&mut self, token: ReplyToken, response: Response) {
        self.effects.push(Effect::Reply { token, response });
    }

    pub(super) fn reply_join(&mut self, token: ReplyToken, response: JoinGroupResponse) {
        self.reply(token, Response::Join(response));
    }

    pub(super) fn reply_sync(&mut self, token: ReplyToken, response: SyncGroupResponse) {
        self.reply(token, Response::Sync(response));
    }

    pub(super) fn after(&self, delay: Duration) -> Monotonic {
        self.now.monotonic.plus(delay)
    }

    pub(super) fn initial_rebalance_delay(&self) -> Duration {
        Duration::from_millis(self.settings.initial_rebalance_delay_ms.max(0) as u64)
    }

    /// The times of a consumer group.
    pub(super) fn consumer_times(&self, group: &StrBytes) -> ConsumerGroupTimes {
        self.times.get(group).copied().unwrap_or(self.settings.consumer.times)
    }

    /// Arms a timer. It never fires in the call that arms it, whatever time-out a client asked for.
    pub(super) fn set_timer(&mut self, key: TimerKey, delay: Duration) {
        let deadline = self.after(delay.max(Duration::from_millis(1)));
        self.timers.set(key, deadline);
    }

    /// A version 4 UUID of this coordinator's own random source, so that a seed repeats it.
    pub(super) fn uuid(&mut self) -> uuid::Uuid {
        let bits = u128::from(self.random.next_u64()) << 64 | u128::from(self.random.next_u64());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }
}

/// Records to append, and what to do when that has succeeded or failed.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) records: Vec<Record>,
    /// Whether the records change state when they are written. The group record of a living group does
    /// not: its soft state is ahead of it.
    pub(super) replay: bool,
    /// Sent as it is on success, as its error form on failure.
    pub(super) reply: Option<(ReplyToken, Response)>,
    pub(super) then: Then,
    /// Whose group it is, if others have to wait for it or it for them.
    pub(super) gate: Option<Gated>,
}

#[derive(Debug)]
pub(super) enum Then {
    Nothing,
    /// Not the last part of a write that is too long for one batch.
    Part,
    /// The first record of a new group: without it there is no group.
    Created {
        group: StrBytes,
    },
    /// The group waits for its tombstone.
    Buried {
        group: StrBytes,
    },
    /// The leader's assignment of a generation.
    Assigned {
        group: StrBytes,
        generation: i32,
        leader: StrBytes,
        assignments: HashMap<StrBytes, Bytes>,
    },
    /// A consumer group changed.
    Consumer(Box<Applied>),
    /// A share group changed.
    Share(Box<share_group::Applied>),
    /// A static member came back under a new id without a rebalance.
    Renamed(Box<Renamed>),
    /// The records are offsets of a transaction: they are held until it ends.
    InTransaction {
        producer: Producer,
        claim: Claim,
    },
    /// A transaction ends.
    EndTransaction(Marker),
    /// Nothing is written: offsets are read once what was appended before is applied.
    Fetch {
        token: ReplyToken,
        group: OffsetFetchRequestGroup,
    },
}

/// What is needed to complete or revert the return of a static member.
#[derive(Debug)]
pub(super) struct Renamed {
    pub(super) group: StrBytes,
    pub(super) old: StrBytes,
    pub(super) new: StrBytes,
    pub(super) old_protocols: Vec<Protocol>,
    pub(super) old_rebalance_timeout_ms: i32,
    pub(super) old_session_timeout_ms: i32,
    /// Who led before, for clients that cannot skip the assignment.
    pub(super) old_leader: StrBytes,
    /// JoinGroup 9 and later.
    pub(super) skips_assignment: bool,
}

impl Write {
    /// The record of a living group.
    pub(super) fn group(record: Record, then: Then) -> Self {
        let gate = Some(Gated { group: record.group().clone(), is_exclusive: false });
        Self { records: vec![record], replay: false, reply: None, then, gate }
    }

    /// Records that are state.
    pub(super) fn state(records: Vec<Record>) -> Self {
        Self { records, replay: true, reply: None, then: Then::Nothing, gate: None }
    }
}

/// How a failed append is told to clients (Kafka's `CoordinatorOperationExceptionHelper`).
pub(super) fn append_error(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::UnknownTopicOrPartition | ErrorCode::NotEnoughReplicas | ErrorCode::RequestTimedOut => {
            ErrorCode::CoordinatorNotAvailable
        }
        ErrorCode::NotLeaderOrFollower | ErrorCode::KafkaStorageError => ErrorCode::NotCoordinator,
        ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge | ErrorCode::InvalidFetchSize => {
            ErrorCode::UnknownServerError
        }
        other => other,
    }
}
