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
}
