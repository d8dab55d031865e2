//! Which shard a producer's bytes go to, and whether its connection had better live there: then nothing of a request
//! crosses shards, and one shard sleeps and wakes for it where two did. Pure; the connection carries the move out.
//!
//! A connection asks to move when three quarters of its last bytes went to one other shard. That one has the say
//! ([`crate::shard`]'s intake): it takes what it has time for. One that lives with its partitions and is not most of what
//! its shard does asks whether it had better leave: a shard that has been too busy for a while lets one go after the
//! other, each to the least busy shard. The amount that must have gone doubles with each move. (Connections of a group's
//! members, which produce nothing, ask to live with the coordinator: [`crate::net`].) A follower's connection goes by what
//! it asks for first, and asks nobody: that shard has the work of its fetches in any case.

use std::time::Duration;

use crate::base::ShardId;
use crate::base::clock::Monotonic;

/// Produced bytes by which the first move is judged.
const WINDOW_BYTES: u64 = 4 << 20;
/// Moves after which the amount doubles no more.
const DOUBLINGS_MAX: u32 = 16;
/// How long a connection and its shard are watched before it asks, at least.
const LOOK_MIN: Duration = Duration::from_secs(1);
/// One that costs more of a core stays with its partitions: elsewhere it would find no core that is free enough, and
/// here it is what makes the shard busy.
const LEAVING_PERCENT_MAX: u32 = 50;

/// What the connection's shard has done since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardWork {
    pub busy: Duration,
    pub bytes_in: u64,
    pub at: Monotonic,
}

/// What to ask for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveQuestion {
    pub to: Destination,
    /// What the connection costs, in percent of a core, at most.
    pub cost_percent: u32,
}

/// Where a connection had better live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// With its partitions.
    Owner(ShardId),
    /// Anywhere, if its own shard, where its partitions are, is too busy.
    Elsewhere,
}

/// What is known of one connection.
#[derive(Debug)]
pub struct Leaning {
    here: ShardId,
    moves: u32,
    /// It has state on this shard.
    stays: bool,
    /// It was to go where the partitions of a follower are.
    has_followed: bool,
    candidate: ShardId,
    candidate_bytes: u64,
    bytes: u64,
    look: Option<Look>,
    moves_to: Option<ShardId>,
}

/// Since when it has leant to a shard.
#[derive(Debug)]
struct Look {
    owner: ShardId,
    since: ShardWork,
    /// Produced by the connection since then.
    bytes: u64,
}

impl Leaning {
    /// Of a connection that lives on `here` after so many moves.
    pub fn new(here: ShardId, moves: u32) -> Self {
        Self {
            here,
            moves,
            stays: false,
            has_followed: false,
            candidate: here,
            candidate_bytes: 0,
            bytes: 0,
            look: None,
            moves_to: None,
        }
    }

    pub fn moves(&self) -> u32 {
        self.moves
    }

    /// The connection never moves: it has state on its shard.
    pub fn stay(&mut self) {
        self.stays = true;
        self.moves_to = None;
    }

    /// The connection is a follower's, of partitions that all are `owner`'s: it goes there before it gets state here. True
    /// if it does; it is tried once.
    pub fn follow(&mut self, owner: ShardId) -> bool {
        let goes = owner != self.here && self.moves == 0 && !self.has_followed;
        if goes {
            (self.has_followed, self.moves_to) = (true, Some(owner));
        }
        goes
    }

    /// A produce request had so many bytes of records for `owner`.
    pub fn note(&mut self, owner: ShardId, bytes: u64) {
        self.bytes += bytes;
        if let Some(look) = &mut self.look {
            look.bytes += bytes;
        }
        if owner == self.candidate {
            self.candidate_bytes += bytes;
        } else if self.candidate_bytes * 2 < self.bytes {
            // Whoever is ahead of all others becomes the candidate before long, and is judged from then on.
            (self.candidate, self.candidate_bytes, self.bytes) = (owner, bytes, bytes);
        }
    }

    /// Whether enough bytes have gone for [`Self::question`].
    pub fn is_due(&self) -> bool {
        self.bytes >= WINDOW_BYTES << self.moves.min(DOUBLINGS_MAX)
    }

    /// Judges the last bytes; what to ask if they say that the connection had better move.
    pub fn question(&mut self, work: ShardWork) -> Option<MoveQuestion> {
        let leans = self.candidate_bytes * 4 >= self.bytes * 3;
        (self.candidate_bytes, self.bytes) = (0, 0);
        let owner = self.candidate;
        if self.stays || !leans {
            self.look = None;
            return None;
        }
        let look = self.look.get_or_insert(Look { owner, since: work, bytes: 0 });
        let elapsed = work.at.since(look.since.at);
        if look.owner == owner && elapsed < LOOK_MIN {
            return None;
        }
        let look = std::mem::replace(look, Look { owner, since: work, bytes: 0 });
        if look.owner != owner {
            return None;
        }
        let busy = work.busy.saturating_sub(look.since.busy);
        let of_all = u128::from(work.bytes_in.saturating_sub(look.since.bytes_in).max(look.bytes).max(1));
        let share = busy.as_nanos() * 100 * u128::from(look.bytes) / of_all;
        let cost_percent = share.div_ceil(elapsed.as_nanos()).min(100) as u32;
        let to = if owner == self.here { Destination::Elsewhere } else { Destination::Owner(owner) };
        let asks = to != Destination::Elsewhere || cost_percent <= LEAVING_PERCENT_MAX;
        asks.then_some(MoveQuestion { to, cost_percent })
    }

    /// The shard that was asked takes it.
    pub fn granted(&mut self, owner: ShardId) {
        if !self.stays {
            self.moves_to = Some(owner);
        }
    }

    /// Whether it may be asked for at all.
    pub fn may_move(&self) -> bool {
        !self.stays && self.moves_to.is_none()
    }

    /// Where it is to go as soon as nothing of it is in service.
    pub fn moves_to(&self) -> Option<ShardId> {
        self.moves_to
    }

    /// It could not be moved.
    pub fn refused(&mut self) {
        self.moves_to = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ShardId = ShardId(0);
    const THERE: ShardId = ShardId(1);

    /// The shard's bytes are so many windows.
    fn work(at_ms: u64, busy_ms: u64, windows: u64) -> ShardWork {
        ShardWork {
            busy: Duration::from_millis(busy_ms),
            bytes_in: windows * WINDOW_BYTES,
            at: Monotonic::ZERO.plus(Duration::from_millis(at_ms)),
        }
    }

    fn window(leaning: &mut Leaning, owner: ShardId, work: ShardWork) -> Option<MoveQuestion> {
        leaning.note(owner, WINDOW_BYTES);
        assert!(leaning.is_due());
        leaning.question(work)
    }

    #[test]
    fn a_producer_of_another_shards_partition_asks_after_a_second_with_its_part_of_the_work() {
        let mut leaning = Leaning::new(HERE, 0);
        assert_eq!(window(&mut leaning, THERE, work(0, 0, 0)), None);
        assert_eq!(window(&mut leaning, THERE, work(999, 10, 1)), None, "before a second is over");
        let question = window(&mut leaning, THERE, work(1000, 400, 4));
        let expected = MoveQuestion { to: Destination::Owner(THERE), cost_percent: 20 };
        assert_eq!(question, Some(expected), "half of 40%");
        assert_eq!(leaning.moves_to(), None);
        leaning.granted(THERE);
        assert_eq!(leaning.moves_to(), Some(THERE));
    }

    #[test]
    fn one_that_lives_with_its_partitions_asks_to_leave_unless_it_is_most_of_what_its_shard_does() {
        let mut leaning = Leaning::new(HERE, 1);
        for (at_ms, busy_ms, windows, expected) in [(0, 0, 0, None), (1000, 960, 8, Some(24))] {
            leaning.note(HERE, WINDOW_BYTES);
            let question = window(&mut leaning, HERE, work(at_ms, busy_ms, windows));
            let expected =
                expected.map(|cost_percent| MoveQuestion { to: Destination::Elsewhere, cost_percent });
            assert_eq!(question, expected, "2 of 8 windows of 96%");
        }
        let mut leaning = Leaning::new(HERE, 0);
        assert_eq!(window(&mut leaning, HERE, work(0, 0, 0)), None);
        assert_eq!(window(&mut leaning, HERE, work(1000, 960, 1)), None, "it does all of it");
    }

    #[test]
    fn it_stays_where_its_partitions_are_not_in_one_place() {
        let mut leaning = Leaning::new(HERE, 0);
        for second in 0..10 {
            for _ in 0..100 {
                leaning.note(HERE, WINDOW_BYTES / 100);
                leaning.note(THERE, WINDOW_BYTES / 100);
            }
            assert_eq!(leaning.question(work(3000 + 1000 * second, 0, 2)), None);
        }
    }

    #[test]
    fn most_of_the_bytes_suffice_also_when_others_came_first() {
        let mut leaning = Leaning::new(HERE, 0);
        for _ in 0..40 {
            leaning.note(ShardId(2), WINDOW_BYTES / 50);
        }
        for second in 0..10 {
            for _ in 0..50 {
                leaning.note(THERE, WINDOW_BYTES / 50);
            }
            if leaning.is_due()
                && leaning
                    .question(work(second * 1000, 0, second))
                    .is_some_and(|question| question.to == Destination::Owner(THERE))
            {
                return;
            }
        }
        panic!("{leaning:?}");
    }

    #[test]
    fn each_move_doubles_what_the_next_one_takes() {
        let mut leaning = Leaning::new(HERE, 2);
        leaning.note(THERE, 3 * WINDOW_BYTES);
        assert!(!leaning.is_due());
        leaning.note(THERE, WINDOW_BYTES);
        assert!(leaning.is_due());
    }

    #[test]
    fn a_followers_connection_goes_to_its_partitions_once() {
        let mut leaning = Leaning::new(HERE, 0);
        leaning.stay();
        assert!(!leaning.follow(HERE), "it is there");
        assert!(leaning.follow(THERE));
        assert_eq!(leaning.moves_to(), Some(THERE));
        leaning.refused();
        assert!(!leaning.follow(THERE), "it was refused");
        assert_eq!(leaning.moves_to(), None);
        assert!(!Leaning::new(THERE, 1).follow(HERE), "it has moved");
    }

    #[test]
    fn one_with_state_on_its_shard_never_moves() {
        let mut leaning = Leaning::new(HERE, 0);
        leaning.granted(THERE);
        leaning.stay();
        assert_eq!(leaning.moves_to(), None);
        assert_eq!(window(&mut leaning, THERE, work(0, 0, 0)), None);
        assert_eq!(window(&mut leaning, THERE, work(2000, 0, 1)), None);
        leaning.granted(THERE);
        assert_eq!(leaning.moves_to(), None);
    }
}
