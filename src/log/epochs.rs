//! Where each leader epoch began (Kafka's `LeaderEpochFileCache`, file `leader-epoch-checkpoint`), for
//! OffsetForLeaderEpoch and the truncation of followers (KIP-101, KIP-279, KIP-320).

use crate::base::{LeaderEpoch, Offset};

/// A leader epoch and the offset of its first record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochStart {
    pub epoch: LeaderEpoch,
    pub start: Offset,
}

/// Ascending in both epoch and offset. A handful of entries: searched one by one.
#[derive(Clone, Default, Debug)]
pub(super) struct Epochs {
    starts: Vec<EpochStart>,
    /// Counts the changes, and those that the file has.
    version: u64,
    written: u64,
    /// The last entry has no record yet. Only its first one is worth a write: every start of a broker begins an
    /// epoch on each of its partitions.
    begun: bool,
}

impl Epochs {
    /// As read from the file; entries out of order give way to later ones.
    pub fn from_file(starts: impl IntoIterator<Item = EpochStart>) -> Self {
        let mut epochs = Self::default();
        for entry in starts {
            epochs.assign(entry.epoch, entry.start);
        }
        epochs.written = epochs.version;
        epochs
    }

    pub fn latest(&self) -> Option<LeaderEpoch> {
        self.starts.last().map(|entry| entry.epoch)
    }

    /// The file lacks a change.
    pub fn is_dirty(&self) -> bool {
        self.version != self.written
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// The file has all changes up to `version`.
    pub fn mark_written(&mut self, version: u64) {
        self.written = self.written.max(version);
    }

    pub fn starts(&self) -> &[EpochStart] {
        &self.starts
    }

    /// A leadership begins: its records, if it will have some, start at `start`.
    pub fn begin(&mut self, epoch: LeaderEpoch, start: Offset) {
        let (version, latest) = (self.version, self.latest());
        self.assign(epoch, start);
        if self.latest() != latest {
            self.version = version;
            self.begun = true;
        }
    }

    /// The leadership that was begun last is over. Without a record at its start, which `log_end` is then, it leaves
    /// nothing behind.
    pub fn forget_begun(&mut self, log_end: Offset) {
        let (version, begun) = (self.version, std::mem::take(&mut self.begun));
        self.truncate_end(log_end);
        if begun {
            // The file has never heard of it.
            self.version = version;
        }
    }

    /// Epoch `epoch` has a record at `start`. Entries that contradict it (they never got a record that lasted) go.
    pub fn assign(&mut self, epoch: LeaderEpoch, start: Offset) {
        let known = self.starts.last().is_some_and(|last| last.epoch == epoch && start >= last.start);
        if epoch.0 < 0 || known {
            self.version += u64::from(known && self.begun);
            self.begun &= !known;
            return;
        }
        self.begun = false;
        while self.starts.last().is_some_and(|last| last.epoch >= epoch || last.start >= start) {
            self.starts.pop();
        }
        self.starts.push(EpochStart { epoch, start });
        self.version += 1;
    }

    /// The largest known epoch ≤ `epoch` and the offset after its last record; `(-1, -1)` when that is not known.
    pub fn end_of(&self, epoch: LeaderEpoch, log_end: Offset) -> (LeaderEpoch, Offset) {
        const UNKNOWN: (LeaderEpoch, Offset) = (LeaderEpoch::NONE, Offset(-1));
        let Some(latest) = self.latest() else { return UNKNOWN };
        if epoch.0 < 0 || epoch > latest {
            return UNKNOWN;
        }
        if epoch == latest {
            return (epoch, log_end);
        }
        let after = self.starts.partition_point(|entry| entry.epoch <= epoch);
        let end = self.starts[after].start;
        match after.checked_sub(1) {
            Some(floor) => (self.starts[floor].epoch, end),
            // Older than all that is left: its records are gone, the first one left bounds its end.
            None => (epoch, end),
        }
    }

    /// The epoch of the record at `offset`.
    pub fn at(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.starts.iter().rev().find(|entry| entry.start <= offset).map(|entry| entry.epoch)
    }

    /// The log ends at `end` now.
    pub fn truncate_end(&mut self, end: Offset) {
        while self.starts.last().is_some_and(|last| last.start >= end) {
            self.starts.pop();
            self.version += 1;
        }
    }

    /// The log starts at `start` now: the epoch that covers it starts there.
    pub fn truncate_start(&mut self, start: Offset) {
        let covered = self.starts.partition_point(|entry| entry.start <= start);
        if covered == 0 {
            return;
        }
        self.version += u64::from(covered > 1 || self.starts[0].start != start);
        self.starts.drain(..covered - 1);
        self.starts[0].start = start;
    }

    pub fn clear(&mut self) {
        self.version += u64::from(!self.starts.is_empty());
        self.starts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(entries: &[(i32, i64)]) -> Epochs {
        Epochs::from_file(
            entries
                .iter()
                .map(|(epoch, start)| EpochStart { epoch: LeaderEpoch(*epoch), start: Offset(*start) }),
        )
    }

    #[test]
    fn end_of_an_epoch_is_the_start_of_the_next() {
        let epochs = epochs(&[(1, 10), (3, 20), (4, 30)]);
        let end = |epoch| {
            let (epoch, end) = epochs.end_of(LeaderEpoch(epoch), Offset(40));
            (epoch.0, end.0)
        };
        assert_eq!(end(0), (0, 10));
        assert_eq!(end(1), (1, 20));
        assert_eq!(end(2), (1, 20));
        assert_eq!(end(3), (3, 30));
        assert_eq!(end(4), (4, 40));
        assert_eq!(end(5), (-1, -1));
        assert_eq!(end(-1), (-1, -1));
        assert_eq!(Epochs::default().end_of(LeaderEpoch(0), Offset(4)), (LeaderEpoch(-1), Offset(-1)));
        assert_eq!(epochs.at(Offset(19)), Some(LeaderEpoch(1)));
        assert_eq!(epochs.at(Offset(9)), None);
    }

    #[test]
    fn a_begun_epoch_is_known_at_once_and_written_with_its_first_record() {
        let mut epochs = epochs(&[(1, 10)]);
        epochs.begin(LeaderEpoch(2), Offset(20));
        epochs.begin(LeaderEpoch(3), Offset(20));
        assert!(!epochs.is_dirty());
        assert_eq!(epochs.end_of(LeaderEpoch(3), Offset(20)), (LeaderEpoch(3), Offset(20)));
        assert_eq!(epochs.end_of(LeaderEpoch(2), Offset(20)), (LeaderEpoch(1), Offset(20)));
        epochs.assign(LeaderEpoch(3), Offset(20));
        assert!(epochs.is_dirty());
        epochs.mark_written(epochs.version());
        epochs.assign(LeaderEpoch(3), Offset(25));
        assert!(!epochs.is_dirty());
    }

    #[test]
    fn an_epoch_that_ends_without_a_record_leaves_nothing_behind() {
        let mut epochs = epochs(&[(1, 10)]);
        epochs.begin(LeaderEpoch(2), Offset(20));
        epochs.forget_begun(Offset(20));
        assert_eq!(epochs.latest(), Some(LeaderEpoch(1)));
        assert!(!epochs.is_dirty());
        epochs.begin(LeaderEpoch(3), Offset(20));
        epochs.assign(LeaderEpoch(3), Offset(20));
        epochs.forget_begun(Offset(25));
        assert_eq!(epochs.latest(), Some(LeaderEpoch(3)));
    }

    #[test]
    fn a_new_epoch_replaces_those_that_wrote_nothing() {
        let mut epochs = epochs(&[(1, 10), (2, 20)]);
        epochs.assign(LeaderEpoch(2), Offset(25));
        assert!(!epochs.is_dirty());
        epochs.assign(LeaderEpoch(5), Offset(20));
        assert!(epochs.is_dirty());
        assert_eq!(epochs.starts(), super::tests::epochs(&[(1, 10), (5, 20)]).starts());
        epochs.truncate_end(Offset(20));
        assert_eq!(epochs.starts().len(), 1);
        epochs.truncate_start(Offset(15));
        assert_eq!(epochs.starts(), [EpochStart { epoch: LeaderEpoch(1), start: Offset(15) }]);
        epochs.truncate_start(Offset(14));
        assert_eq!(epochs.starts()[0].start, Offset(15));
    }
}
