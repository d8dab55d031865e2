//! Which shard a producer's bytes go to, and whether its connection had better live there: then nothing of a request
//! crosses shards, and two shards sleep and wake for one. Pure; the connection asks it and carries the move out.
//!
//! A connection moves when three quarters of its last bytes went to one other shard, and when that one could do the
//! work of both and have time left. The amount that must have gone doubles with each move.

use std::time::Duration;

use crate::base::ShardId;
use crate::base::clock::Monotonic;

/// Produced bytes by which the first move is judged.
const WINDOW_BYTES: u64 = 4 << 20;
/// Moves after which the amount doubles no more.
const DOUBLINGS_MAX: u32 = 16;
/// How long both shards are watched before a move, at least.
const LOOK_MIN: Duration = Duration::from_secs(1);
/// What both shards together were busy, of the time of one: above it the move would make one of two cores the
/// bottleneck.
const BUSY_PERCENT_MAX: u128 = 70;

/// How long two shards have been busy since they started, read at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusyTimes {
    pub there: Duration,
    pub here: Duration,
    pub at: Monotonic,
}

/// What is known of one connection.
#[derive(Debug)]
pub struct Leaning {
    here: ShardId,
    moves: u32,
    /// It has state on this shard.
    stays: bool,
    candidate: ShardId,
    candidate_bytes: u64,
    bytes: u64,
    /// The shard that was asked about, and what it said.
    seen: Option<(ShardId, BusyTimes)>,
}

impl Leaning {
    /// Of a connection that lives on `here` after so many moves.
    pub fn new(here: ShardId, moves: u32) -> Self {
        Self { here, moves, stays: false, candidate: here, candidate_bytes: 0, bytes: 0, seen: None }
    }

    pub fn moves(&self) -> u32 {
        self.moves
    }

    /// The connection never moves: it has state on its shard.
    pub fn stay(&mut self) {
        self.stays = true;
    }

    /// A produce request had so many bytes of records for `owner`.
    pub fn note(&mut self, owner: ShardId, bytes: u64) {
        self.bytes += bytes;
        if owner == self.candidate {
            self.candidate_bytes += bytes;
        } else if self.candidate_bytes * 2 < self.bytes {
            // Whoever is ahead of all others becomes the candidate before long, and is judged from then on.
            (self.candidate, self.candidate_bytes, self.bytes) = (owner, bytes, bytes);
        }
    }

    /// Once so many bytes have gone: the shard to ask how busy it has been.
    pub fn due(&mut self) -> Option<ShardId> {
        if self.bytes < WINDOW_BYTES << self.moves.min(DOUBLINGS_MAX) {
            return None;
        }
        let leans = self.candidate_bytes * 4 >= self.bytes * 3;
        (self.candidate_bytes, self.bytes) = (0, 0);
        if self.candidate == self.here || self.stays || !leans {
            self.seen = None;
            return None;
        }
        Some(self.candidate)
    }

    /// The answer of the shard that was [`Self::due`]: whether to move there now.
    pub fn told(&mut self, owner: ShardId, busy: BusyTimes) -> bool {
        let before = match self.seen {
            Some((seen, before)) if seen == owner => before,
            _ => {
                self.seen = Some((owner, busy));
                return false;
            }
        };
        let elapsed = busy.at.since(before.at);
        if elapsed < LOOK_MIN {
            return false;
        }
        self.seen = Some((owner, busy));
        let worked = busy.there.saturating_sub(before.there) + busy.here.saturating_sub(before.here);
        worked.as_nanos() * 100 <= elapsed.as_nanos() * BUSY_PERCENT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ShardId = ShardId(0);
    const THERE: ShardId = ShardId(1);

    fn busy(at_ms: u64, here_ms: u64, there_ms: u64) -> BusyTimes {
        BusyTimes {
            there: Duration::from_millis(there_ms),
            here: Duration::from_millis(here_ms),
            at: Monotonic::ZERO.plus(Duration::from_millis(at_ms)),
        }
    }

    fn window(leaning: &mut Leaning, owner: ShardId) -> Option<ShardId> {
        leaning.note(owner, WINDOW_BYTES);
        leaning.due()
    }

    #[test]
    fn a_producer_of_another_shards_partition_moves_after_a_second_look() {
        let mut leaning = Leaning::new(HERE, 0);
        assert_eq!(window(&mut leaning, THERE), Some(THERE));
        assert!(!leaning.told(THERE, busy(0, 0, 0)));
        assert_eq!(window(&mut leaning, THERE), Some(THERE));
        assert!(!leaning.told(THERE, busy(999, 10, 10)), "before a second is over");
        assert_eq!(window(&mut leaning, THERE), Some(THERE));
        assert!(leaning.told(THERE, busy(1000, 350, 350)));
    }

    #[test]
    fn it_stays_when_one_core_could_not_do_the_work_of_both() {
        let mut leaning = Leaning::new(HERE, 0);
        assert_eq!(window(&mut leaning, THERE), Some(THERE));
        assert!(!leaning.told(THERE, busy(0, 0, 0)));
        assert_eq!(window(&mut leaning, THERE), Some(THERE));
        assert!(!leaning.told(THERE, busy(1000, 700, 200)));
        assert_eq!(window(&mut leaning, THERE), Some(THERE));
        assert!(leaning.told(THERE, busy(2000, 800, 300)), "later there is time");
    }

    #[test]
    fn it_stays_where_its_partitions_are_or_where_they_are_not_in_one_place() {
        let mut leaning = Leaning::new(HERE, 0);
        assert_eq!(window(&mut leaning, HERE), None);
        for _ in 0..100 {
            leaning.note(HERE, WINDOW_BYTES / 100);
            leaning.note(THERE, WINDOW_BYTES / 100);
        }
        assert_eq!(leaning.due(), None);
    }

    #[test]
    fn most_of_the_bytes_suffice_also_when_others_came_first() {
        let mut leaning = Leaning::new(HERE, 0);
        for _ in 0..40 {
            leaning.note(ShardId(2), WINDOW_BYTES / 50);
        }
        for _ in 0..200 {
            leaning.note(THERE, WINDOW_BYTES / 50);
            if leaning.due() == Some(THERE) {
                return;
            }
        }
        panic!("{leaning:?}");
    }

    #[test]
    fn each_move_doubles_what_the_next_one_takes() {
        let mut leaning = Leaning::new(HERE, 2);
        assert_eq!(window(&mut leaning, THERE), None);
        leaning.note(THERE, 3 * WINDOW_BYTES);
        assert_eq!(leaning.due(), Some(THERE));
    }

    #[test]
    fn one_with_state_on_its_shard_never_moves() {
        let mut leaning = Leaning::new(HERE, 0);
        leaning.stay();
        assert_eq!(window(&mut leaning, THERE), None);
    }
}
