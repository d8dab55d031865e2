//! Log lines that a peer can cause at will: so many a second are written, the rest are counted and told with the
//! next one. Pure.

use crate::base::clock::Monotonic;
use std::time::Duration;

/// Lines per second of one kind.
const LINES_MAX: u32 = 10;

/// Says which lines are written.
#[derive(Default, Debug)]
pub(super) struct Quiet {
    second: Option<Monotonic>,
    written: u32,
    swallowed: u64,
}

impl Quiet {
    /// `Some` if a line may be written now, with how many were not since the last one.
    pub(super) fn allows(&mut self, now: Monotonic) -> Option<u64> {
        if self.second.is_none_or(|second| now.since(second) >= Duration::from_secs(1)) {
            self.second = Some(now);
            self.written = 0;
        }
        if self.written == LINES_MAX {
            self.swallowed += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.swallowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_off_and_counted() {
        let mut quiet = Quiet::default();
        let now = Monotonic::from_millis(5);
        assert!((0..LINES_MAX).all(|_| quiet.allows(now) == Some(0)));
        assert!((0..7).all(|_| quiet.allows(now).is_none()));
        let later = Monotonic::from_millis(1005);
        assert_eq!(quiet.allows(later), Some(7));
        assert_eq!(quiet.allows(later), Some(0));
    }
}
