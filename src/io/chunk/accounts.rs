//! Who may take how much of a pool's budget, and who waits for it: the accounts of a [`super::ChunkPool`], without
//! the memory. Pure.
//!
//! Frames are counted in six lanes: short, long and large ones, of connections that have brought one of their kind to
//! its end (*proven*; for a large one a long one does) and of those that have not (*strangers*). A share of the budget is
//! kept for short frames. Of each kind, proven ones and strangers have half, and may borrow of the other half what nobody
//! waits for there: a crowd that begins long frames and does not end them keeps neither small requests nor the producers
//! at work from theirs. Large frames have half of what short ones leave, never more: a few of them that come slowly would
//! else hold all that the others need. What they do not use the long ones may borrow.
//!
//! Frames that grow hold memory while they wait for more, so a lane can be stuck: all of it is held by those who wait.
//! Its first in line is then let through *beyond* the budget, with room for the whole of its frame, so that it never
//! waits again; so is a frame that is longer than a lane's share, a *giant*. What is beyond is one frame, or several that
//! are as much as a share of the long ones. Giants that wait for that place stand in lines of their own, for no room in
//! their lane is of use to them.

use std::collections::BTreeMap;
use std::task::Waker;

/// Chunks up to this size, for frames up to this length, are short.
pub(super) const SHORT_BYTES_MAX: usize = 32 << 10;

/// Budgets below leave nothing to spare for a reserve: all frames are counted together.
const RESERVE_BUDGET_MIN: usize = 4 << 20;

/// What a chunk is counted as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    ShortStranger = 0,
    ShortProven = 1,
    LongStranger = 2,
    LongProven = 3,
    LargeStranger = 4,
    LargeProven = 5,
    Beyond = 6,
}

const LANES: usize = 7;
/// Those that have a part of the budget.
const KINDS: [Lane; super::FRAME_KINDS] = [
    Lane::ShortStranger,
    Lane::ShortProven,
    Lane::LongStranger,
    Lane::LongProven,
    Lane::LargeStranger,
    Lane::LargeProven,
];

/// Those who wait for room in a lane of [`KINDS`] stand in the line of its number, and giants in one of these.
const STRANGE_GIANTS: usize = 6;
const PROVEN_GIANTS: usize = 7;
const LINES: usize = 8;

/// What short ones leave is so many times what a frame above it is large.
const LARGE_PART: usize = 4;

impl Lane {
    /// The one that it shares with.
    fn sibling(self) -> Self {
        match self {
            Lane::ShortStranger => Lane::ShortProven,
            Lane::ShortProven => Lane::ShortStranger,
            Lane::LongStranger => Lane::LongProven,
            Lane::LongProven => Lane::LongStranger,
            Lane::LargeStranger => Lane::LargeProven,
            Lane::LargeProven => Lane::LargeStranger,
            Lane::Beyond => Lane::Beyond,
        }
    }
}

/// So many bytes, counted in a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    pub(super) lane: Lane,
    pub(super) bytes: usize,
}

/// What a buffer asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) wants: Share,
    /// What it would take to never ask again for the same frame.
    pub(super) whole_bytes: usize,
    /// What the buffer keeps while it waits.
    pub(super) holds: Option<Share>,
}

/// A place in a line: those who hold something come before those who do not, for theirs stays held meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Ticket {
    holds_nothing: bool,
    number: u64,
}

#[derive(Debug)]
struct Waiter {
    wish: Wish,
    waker: Waker,
    /// It was woken because its turn has come; it keeps its place until it looks.
    called: bool,
}

/// Those who are to be woken.
pub(super) type Called = [Option<Waker>; LINES];

/// The accounts of one pool.
#[derive(Debug)]
pub(super) struct Accounts {
    pub(super) budget_bytes: usize,
    /// What long frames leave to short ones.
    reserve_bytes: usize,
    in_use: [usize; LANES],
    /// Of these, what is held by those who wait.
    held: [usize; LANES],
    lines: [BTreeMap<Ticket, Waiter>; LINES],
    /// How many were given, the ones beyond apart.
    grants: [u64; KINDS.len()],
    wanted_bytes: usize,
    next_number: u64,
    pub(super) muted: u64,
}

impl Accounts {
    pub(super) fn new(budget_bytes: usize) -> Self {
        Self {
            budget_bytes,
            reserve_bytes: if budget_bytes < RESERVE_BUDGET_MIN { 0 } else { budget_bytes / 4 },
            in_use: [0; LANES],
            held: [0; LANES],
            lines: Default::default(),
            grants: [0; KINDS.len()],
            wanted_bytes: 0,
            next_number: 0,
            muted: 0,
        }
    }

    pub(super) fn in_use(&self) -> usize {
        self.in_use.iter().sum()
    }

    /// For a frame or a chunk of `bytes`, of a connection that is proven in short and in long ones or not.
    pub(super) fn lane_of(&self, bytes: usize, [short, long]: [bool; 2]) -> Lane {
        let is_large = self.has_reserve() && bytes > self.long_bytes_max() / LARGE_PART;
        match (bytes <= SHORT_BYTES_MAX, is_large) {
            (true, _) if short => Lane::ShortProven,
            (true, _) => Lane::ShortStranger,
            (false, false) if long => Lane::LongProven,
            (false, false) => Lane::LongStranger,
            (false, true) if long => Lane::LargeProven,
            (false, true) => Lane::LargeStranger,
        }
    }

    fn in_lanes(&self) -> usize {
        self.in_use() - self.in_use[Lane::Beyond as usize]
    }

    /// What those who wait want.
    pub(super) fn wanted_bytes(&self) -> usize {
        self.wanted_bytes
    }

    pub(super) fn has_reserve(&self) -> bool {
        self.reserve_bytes > 0
    }

    pub(super) fn somebody_waits(&self) -> bool {
        self.lines.iter().any(|line| !line.is_empty())
    }

    /// Much is held, or somebody waits for a part of the budget: whoever asks should ask for little.
    pub(super) fn is_tight(&self) -> bool {
        self.has_reserve()
            && (self.in_lanes() > self.budget_bytes / 2
                || self.pair(Lane::ShortStranger) > self.reserve_bytes / 2
                || KINDS.into_iter().any(|lane| self.waits(lane)))
    }

    /// The lanes that are held by those who wait, whole, and how many chunks each has given so far: one that has given
    /// none between two looks does not move.
    pub(super) fn stuck(&self) -> [Option<u64>; KINDS.len()] {
        KINDS.map(|lane| {
            let index = lane as usize;
            (self.in_use[index] > 0 && self.in_use[index] == self.held[index]).then(|| self.grants[index])
        })
    }

    /// The share that `wish` gets, if it is its turn and there is room. Else it waits at `ticket`.
    pub(super) fn take(&mut self, wish: Wish, ticket: &mut Option<Ticket>, waker: &Waker) -> Option<Share> {
        if let Some(ticket) = *ticket {
            self.leave(ticket);
        }
        let line = &self.lines[self.line_of(&wish)];
        let in_turn = match *ticket {
            Some(ticket) => line.first_key_value().is_none_or(|(first, _)| ticket < *first),
            None => line.is_empty(),
        };
        let granted = if in_turn { self.admits(&wish) } else { None };
        let Some(granted) = granted else {
            let place = *ticket.get_or_insert_with(|| {
                self.muted += 1;
                self.next_number += 1;
                Ticket { holds_nothing: wish.holds.is_none(), number: self.next_number }
            });
            self.enter(place, Waiter { wish, waker: waker.clone(), called: false });
            return None;
        };
        *ticket = None;
        self.in_use[granted.lane as usize] += granted.bytes;
        if granted.lane != Lane::Beyond {
            self.grants[granted.lane as usize] += 1;
        }
        Some(granted)
    }

    pub(super) fn give_back(&mut self, share: Share) {
        self.in_use[share.lane as usize] -= share.bytes;
    }

    pub(super) fn leave(&mut self, ticket: Ticket) {
        for line in 0..LINES {
            self.remove(line, ticket);
        }
    }

    /// Calls the first of each line if there is room for it now.
    pub(super) fn call_next(&mut self) -> Called {
        std::array::from_fn(|line| {
            let (ticket, first) = self.lines[line].first_key_value()?;
            if first.called {
                return None;
            }
            let ticket = *ticket;
            let mut first = self.remove(line, ticket)?;
            first.called = self.admits(&first.wish).is_some();
            let waker = first.called.then(|| first.waker.clone());
            self.enter(ticket, first);
            waker
        })
    }

    fn enter(&mut self, ticket: Ticket, waiter: Waiter) {
        if let Some(holds) = waiter.wish.holds {
            self.held[holds.lane as usize] += holds.bytes;
        }
        self.wanted_bytes += waiter.wish.wants.bytes;
        let line = self.line_of(&waiter.wish);
        self.lines[line].insert(ticket, waiter);
    }

    fn line_of(&self, wish: &Wish) -> usize {
        match wish.wants.lane {
            Lane::LargeStranger if self.is_giant(wish) => STRANGE_GIANTS,
            Lane::LargeProven if self.is_giant(wish) => PROVEN_GIANTS,
            lane => lane as usize,
        }
    }

    /// It wants more than large ones have: only the place beyond the budget can serve it.
    fn is_giant(&self, wish: &Wish) -> bool {
        self.has_reserve() && wish.wants.bytes > self.large_bytes_max()
    }

    fn remove(&mut self, line: usize, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.lines[line].remove(&ticket)?;
        if let Some(holds) = waiter.wish.holds {
            self.held[holds.lane as usize] -= holds.bytes;
        }
        self.wanted_bytes -= waiter.wish.wants.bytes;
        Some(waiter)
    }

    /// What one who does not stand in line may have of its wish.
    fn admits(&self, wish: &Wish) -> Option<Share> {
        let Share { lane, bytes } = wish.wants;
        let holds_in = |lane| wish.holds.filter(|holds| holds.lane == lane).map_or(0, |holds| holds.bytes);
        if !self.has_reserve() {
            let held = self.held.iter().sum::<usize>() + wish.holds.map_or(0, |holds| holds.bytes);
            // Else no room would come: those who wait hold all there is.
            return (self.in_use() + bytes <= self.budget_bytes || self.in_use() == held)
                .then_some(wish.wants);
        }
        let is_giant = self.is_giant(wish);
        if !is_giant && self.fits(lane, bytes) {
            return Some(wish.wants);
        }
        let is_stuck = self.in_use[lane as usize] == self.held[lane as usize] + holds_in(lane);
        let beyond = self.in_use[Lane::Beyond as usize].saturating_sub(holds_in(Lane::Beyond));
        let whole = wish.whole_bytes.max(bytes);
        let has_place = beyond == 0 || beyond + whole <= self.large_bytes_max();
        ((is_giant || is_stuck) && has_place).then_some(Share { lane: Lane::Beyond, bytes: whole })
    }

    fn fits(&self, lane: Lane, bytes: usize) -> bool {
        let in_total = self.in_lanes() + bytes <= self.budget_bytes;
        let of_pair = self.bytes_of_pair(lane);
        let is_own = self.in_use[lane as usize] + bytes <= of_pair / 2 || !self.waits(lane.sibling());
        let is_in_pair = self.pair(lane) + bytes <= of_pair && is_own;
        match lane {
            Lane::ShortStranger | Lane::ShortProven => {
                // Short ones may borrow all there is, for a moment it is.
                let nobody_else = !KINDS.into_iter().any(|other| other != lane && self.waits(other));
                is_in_pair || (in_total && nobody_else)
            }
            _ => in_total && is_in_pair,
        }
    }

    /// What the lane and its sibling may have now.
    fn bytes_of_pair(&self, lane: Lane) -> usize {
        let [long, large] = [Lane::LongStranger, Lane::LargeStranger].map(|lane| self.pair(lane));
        let left_by = |others: usize| self.long_bytes_max().saturating_sub(others);
        match lane {
            Lane::ShortStranger | Lane::ShortProven => self.reserve_bytes,
            Lane::LongStranger | Lane::LongProven => {
                let is_lent = !self.waits(Lane::LargeStranger) && !self.waits(Lane::LargeProven);
                let max = if is_lent { self.long_bytes_max() } else { self.large_bytes_max() };
                left_by(large).min(max)
            }
            Lane::LargeStranger | Lane::LargeProven => left_by(long).min(self.large_bytes_max()),
            Lane::Beyond => 0,
        }
    }

    /// Somebody waits for room in the lane.
    fn waits(&self, lane: Lane) -> bool {
        !self.lines[lane as usize].is_empty()
    }

    fn pair(&self, lane: Lane) -> usize {
        self.in_use[lane as usize] + self.in_use[lane.sibling() as usize]
    }

    /// What long and large ones have together.
    fn long_bytes_max(&self) -> usize {
        self.budget_bytes - self.reserve_bytes
    }

    /// What large ones have at most.
    fn large_bytes_max(&self) -> usize {
        self.long_bytes_max() / 2
    }
}
