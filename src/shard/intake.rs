//! Which connections a shard takes over from others, and which it lets go: as many as leave it time. Pure.

use std::time::Duration;

use crate::base::clock::Monotonic;

/// How long the shard's work is measured for an answer, at least. What it has taken counts by its own estimate until then.
const LOOK_MIN: Duration = Duration::from_secs(1);
/// What was seen longer ago says nothing: who asks so rarely has little to gain.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// What a core may be busy with all that it has taken: beyond that two cores are better than one.
const BUSY_PERCENT_MAX: u32 = 70;
/// A core that is busier than this, for so many looks in a row, lets one go.
const TOO_BUSY_PERCENT: u32 = 90;
const TOO_BUSY_LOOKS: u32 = 3;

/// A measurement of how busy the shard is, from one look to the next.
#[derive(Default, Debug)]
struct Busyness(Option<(Monotonic, Duration)>);

/// What a look tells.
enum Look {
    /// The last one was a moment ago.
    TooSoon,
    /// There was none, or long ago: this one begins to measure.
    First,
    /// Since the last look, percent.
    Busy(u32),
}

impl Busyness {
    /// The shard has been busy for `busy` since its start.
    fn look(&mut self, busy: Duration, now: Monotonic) -> Look {
        let look = match self.0 {
            Some((at, _)) if now.since(at) < LOOK_MIN => return Look::TooSoon,
            Some((at, before)) if now.since(at) < LOOK_MAX => {
                let share = busy.saturating_sub(before).as_nanos() * 100 / now.since(at).as_nanos();
                Look::Busy(share.min(100) as u32)
            }
            _ => Look::First,
        };
        self.0 = Some((now, busy));
        look
    }
}

/// How busy a shard is, and what it has promised to take.
#[derive(Default, Debug)]
pub(super) struct Intake {
    measured: Busyness,
    busy_percent: Option<u32>,
    /// What it has taken since then will cost.
    promised_percent: u32,
}

impl Intake {
    /// How busy the shard is with what it has promised. A first question only begins to measure.
    pub fn busy_percent(&mut self, busy: Duration, now: Monotonic) -> Option<u32> {
        match self.measured.look(busy, now) {
            Look::TooSoon => {}
            Look::First => (self.busy_percent, self.promised_percent) = (None, 0),
            Look::Busy(percent) => (self.busy_percent, self.promised_percent) = (Some(percent), 0),
        }
        self.busy_percent.map(|percent| percent + self.promised_percent)
    }

    /// Whether the shard, busy for `busy` since its start, takes what costs so much of a core.
    pub fn takes(&mut self, cost_percent: u32, busy: Duration, now: Monotonic) -> bool {
        let Some(percent) = self.busy_percent(busy, now) else { return false };
        let takes = percent + cost_percent <= BUSY_PERCENT_MAX;
        if takes {
            self.promised_percent += cost_percent;
        }
        takes
    }
}

/// For how long a shard has been too busy.
#[derive(Default, Debug)]
pub(super) struct Outlet {
    measured: Busyness,
    too_busy_looks: u32,
}

impl Outlet {
    /// Whether the connection that asks had better go elsewhere. One is told so in each look at most: the others see
    /// first what that one's leaving does.
    pub fn lets_go(&mut self, busy: Duration, now: Monotonic) -> bool {
        match self.measured.look(busy, now) {
            Look::TooSoon => return false,
            Look::Busy(percent) if percent >= TOO_BUSY_PERCENT => self.too_busy_looks += 1,
            Look::First | Look::Busy(_) => self.too_busy_looks = 0,
        }
        self.too_busy_looks >= TOO_BUSY_LOOKS
    }

    /// It has gone.
    pub fn has_let_go(&mut self) {
        self.too_busy_looks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(intake: &mut Intake, cost: u32, at_ms: u64, busy_ms: u64) -> bool {
        let now = Monotonic::ZERO.plus(Duration::from_millis(at_ms));
        intake.takes(cost, Duration::from_millis(busy_ms), now)
    }

    #[test]
    fn many_that_ask_at_once_get_no_more_than_there_is() {
        let mut intake = Intake::default();
        assert!(!ask(&mut intake, 20, 0, 0), "nothing is known yet");
        assert!(!ask(&mut intake, 20, 500, 100), "and not after half a second");
        assert!(ask(&mut intake, 20, 1000, 200));
        assert!(ask(&mut intake, 20, 1000, 200));
        assert!(!ask(&mut intake, 20, 1000, 200), "20 of its own, 40 taken");
        assert!(ask(&mut intake, 10, 1500, 300));
        // What it has taken is now part of its work.
        assert!(!ask(&mut intake, 10, 2500, 1200));
        assert!(ask(&mut intake, 10, 3500, 1800));
    }

    #[test]
    fn a_shard_that_stays_too_busy_lets_one_go_after_the_other() {
        let mut outlet = Outlet::default();
        let mut busy_ms = 0;
        let mut ask = |at_ms: u64, percent: u64| {
            busy_ms += 10 * percent;
            let now = Monotonic::ZERO.plus(Duration::from_millis(at_ms));
            (
                outlet.lets_go(Duration::from_millis(busy_ms), now),
                outlet.lets_go(Duration::from_millis(busy_ms), now),
            )
        };
        assert_eq!([ask(0, 0), ask(1000, 95), ask(2000, 95)], [(false, false); 3]);
        assert_eq!(ask(3000, 89), (false, false), "it was less for a moment");
        assert_eq!([ask(4000, 90), ask(5000, 99)], [(false, false); 2]);
        assert_eq!(ask(6000, 100), (true, false), "one in a look");
        assert_eq!(ask(7000, 100), (true, false), "nobody took it");
        outlet.has_let_go();
        assert!(!outlet.lets_go(Duration::from_millis(8000), Monotonic::ZERO.plus(Duration::from_secs(8))));
    }

    #[test]
    fn what_was_seen_long_ago_does_not_count() {
        let mut intake = Intake::default();
        assert!(!ask(&mut intake, 1, 0, 0));
        assert!(!ask(&mut intake, 1, 10_000, 0));
        assert!(ask(&mut intake, 1, 11_000, 0));
    }
}
