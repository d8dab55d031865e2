//! Which connections a shard takes over from others: as many as leave it time. Pure.

use std::time::Duration;

use crate::base::clock::Monotonic;

/// How long the shard's work is measured for an answer, at least. What it has taken counts by its own estimate until then.
const LOOK_MIN: Duration = Duration::from_secs(1);
/// What was seen longer ago says nothing: who asks so rarely has little to gain.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// What a core may be busy with all that it has taken: beyond that two cores are better than one.
const BUSY_PERCENT_MAX: u32 = 70;

/// How busy a shard is, and what it has promised to take.
#[derive(Default, Debug)]
pub(super) struct Intake {
    since: Option<(Monotonic, Duration)>,
    busy_percent: Option<u32>,
    /// What it has taken since then will cost.
    promised_percent: u32,
}

impl Intake {
    /// Whether the shard, busy for `busy` since its start, takes what costs so much of a core. A first question only
    /// begins to measure.
    pub fn takes(&mut self, cost_percent: u32, busy: Duration, now: Monotonic) -> bool {
        match self.since {
            Some((at, _)) if now.since(at) < LOOK_MIN => {}
            Some((at, before)) if now.since(at) < LOOK_MAX => {
                let share = busy.saturating_sub(before).as_nanos() * 100 / now.since(at).as_nanos();
                *self = Self {
                    since: Some((now, busy)),
                    busy_percent: Some(share.min(100) as u32),
                    promised_percent: 0,
                };
            }
            _ => *self = Self { since: Some((now, busy)), busy_percent: None, promised_percent: 0 },
        }
        let Some(busy_percent) = self.busy_percent else { return false };
        let takes = busy_percent + self.promised_percent + cost_percent <= BUSY_PERCENT_MAX;
        if takes {
            self.promised_percent += cost_percent;
        }
        takes
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
    fn what_was_seen_long_ago_does_not_count() {
        let mut intake = Intake::default();
        assert!(!ask(&mut intake, 1, 0, 0));
        assert!(!ask(&mut intake, 1, 10_000, 0));
        assert!(ask(&mut intake, 1, 11_000, 0));
    }
}
