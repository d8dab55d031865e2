//! Bugs that are planted where the simulator's glue hands something on: the production code stays as it is, what it is
//! told or what it says is altered. Each must be found.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A producer that waits for all is answered when its batch is written.
    AcknowledgedEarly,
    /// Nobody looks whether a follower's log parts from its leader's.
    TruncationSkipped,
    /// A leader does not give its proposals up with its leadership, and the controller takes them for the present one's.
    StaleEpochAccepted,
    /// Every block of producer ids begins with the first one.
    ProducerIdReused,
    /// Whoever is there leads, in sync or not.
    ElectedOutsideIsr,
    /// A leader leaves a follower out before the controller has said so.
    ShrunkWithoutController,
    /// Consumers read up to the leader's own end.
    HighWatermarkByOwnEnd,
    /// A follower that was cut goes where the leader said, and is not looked at again.
    CutNotRechecked,
    /// A broker that comes back after a crash is taken for the one that was there before.
    UncleanRestartKept,
    /// A follower is in sync as soon as it fetches.
    LaggardInSync,
    /// The coordinator takes its records for written when they are in its own log.
    StateNotAwaited,
    /// A coordinator that comes back goes on with what it knew.
    StateNotReloaded,
    /// One partition of a transaction gets no marker.
    MarkerForgotten,
    /// Batches are taken without a look at their transaction.
    TransactionNotVerified,
    /// Consumers that want committed transactions read up to the high watermark.
    LastStableIgnored,
    /// Followers do not tell of aborted transactions.
    AbortedNotTold,
    /// Consumers read up to the end of a follower's log.
    FollowerServesItsEnd,
    /// A new leader tells the end before it knows how much of what it has is committed.
    EndToldTooEarly,
    /// Followers are not told where their leader's log starts.
    LogStartNotTold,
    /// A follower behind its leader's start goes on where it is.
    NotBegunAnew,
    /// A follower whose leader's log starts within a batch begins with the batch, and asks for it again.
    AskedAgainBefore,
    /// Deletion goes as far as the log does.
    DeletedBeyondHighWatermark,
}

impl Planted {
    /// Where nothing is deleted it does no harm.
    pub fn is_of_deletions(self) -> bool {
        use Planted::{AskedAgainBefore, DeletedBeyondHighWatermark, LogStartNotTold, NotBegunAnew};
        matches!(self, AskedAgainBefore | DeletedBeyondHighWatermark | LogStartNotTold | NotBegunAnew)
    }
}
