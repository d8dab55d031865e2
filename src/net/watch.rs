//! When a connection has had its time: what a peer may take for its first request, for the rest of a request that it
//! has begun, for an answer, and for silence. Pure; the sweeps of [`super::registry`] ask it.

use std::cell::Cell;
use std::time::Duration;

use crate::base::clock::Monotonic;
use crate::config::ServingLimits;

/// Less than this within `kuring.memory.stall.ms` is a stall, while others wait for memory;
const STALL_BYTES: u64 = 32 << 10;
/// so is less than this part of what the connection holds of it.
const STALL_PART: u64 = 128;

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The next request, of which nothing has come.
    Idle,
    /// The rest of a request.
    Receiving,
    /// An answer in the making, or memory: nothing that the peer could do.
    Serving,
    /// Data, or the other members of a group: the peer might as well wait with its next request.
    Parked,
    /// The peer, to take an answer.
    Sending,
    /// Its time to pass, because its client is over a quota.
    Muted,
}

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// `kuring.connection.first.request.ms`
    NoFirstRequest,
    /// `connections.max.idle.ms`
    Idle,
    /// `kuring.connection.request.ms`
    SlowRequest,
    /// `kuring.connection.response.ms`
    SlowResponse,
}

/// The progress of one connection. Its task writes it, the sweeps read it.
#[derive(Debug)]
pub(super) struct Watch {
    phase: Cell<Phase>,
    /// Until its first request is there, or comes fast enough: since when that is waited for.
    fresh_since: Cell<Option<Monotonic>>,
    /// What has come of it since then.
    fresh_bytes: Cell<u64>,
    last_active: Cell<Monotonic>,
    /// When the present look at a transfer began, and what has moved since.
    since: Cell<Monotonic>,
    moved_bytes: Cell<u64>,
    /// The same for the look that is taken while memory is short.
    stall_since: Cell<Monotonic>,
    stall_bytes: Cell<u64>,
}

impl Watch {
    pub(super) fn new(now: Monotonic) -> Self {
        Self {
            phase: Cell::new(Phase::Idle),
            fresh_since: Cell::new(Some(now)),
            fresh_bytes: Cell::new(0),
            last_active: Cell::new(now),
            since: Cell::new(now),
            moved_bytes: Cell::new(0),
            stall_since: Cell::new(now),
            stall_bytes: Cell::new(0),
        }
    }

    /// It has brought requests before, on another shard.
    pub(super) fn set_known(&self) {
        self.fresh_since.set(None);
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Follows what the peer takes of an answer.
    pub(super) fn last_active(&self) -> &Cell<Monotonic> {
        &self.last_active
    }

    /// Enters a phase.
    pub(super) fn enter(&self, phase: Phase, now: Monotonic) {
        self.last_active.set(now);
        if phase == Phase::Serving {
            self.fresh_since.set(None);
        }
        if self.phase.replace(phase) != phase {
            self.begin_look(now);
            self.begin_stall_look(now);
        }
    }

    /// So many bytes came, or went.
    pub(super) fn moved(&self, bytes: usize, now: Monotonic) {
        self.last_active.set(now);
        self.fresh_bytes.set(self.fresh_bytes.get() + bytes as u64);
        self.moved_bytes.set(self.moved_bytes.get() + bytes as u64);
        self.stall_bytes.set(self.stall_bytes.get() + bytes as u64);
    }

    /// The connection waits for memory, not for its peer: the time does not count.
    pub(super) fn excuse(&self, now: Monotonic) {
        self.last_active.set(now);
        if self.fresh_since.get().is_some() {
            self.fresh_since.set(Some(now));
            self.fresh_bytes.set(0);
        }
        self.begin_look(now);
        self.begin_stall_look(now);
    }

    /// Whether its time is up.
    pub(super) fn verdict(&self, limits: &ServingLimits, now: Monotonic) -> Option<Verdict> {
        let is_over =
            |since: Monotonic, limit: Option<Duration>| limit.is_some_and(|limit| now.since(since) >= limit);
        let is_slow = |since: Monotonic, bytes: u64| {
            u128::from(bytes) < now.since(since).as_millis() * u128::from(limits.rate_min) / 1000
        };
        if let Some(since) = self.fresh_since.get()
            && is_over(since, limits.first_request_time_max)
        {
            if self.phase.get() != Phase::Receiving || is_slow(since, self.fresh_bytes.get()) {
                return Some(Verdict::NoFirstRequest);
            }
            // A long one that comes fast enough: from here on it is as any other.
            self.fresh_since.set(None);
        }
        let is_idle = is_over(self.last_active.get(), limits.idle_time_max);
        let (limit, slow) = match self.phase.get() {
            Phase::Idle => return is_idle.then_some(Verdict::Idle),
            Phase::Serving | Phase::Parked | Phase::Muted => return None,
            Phase::Receiving => (limits.request_time_max, Verdict::SlowRequest),
            Phase::Sending => (limits.response_time_max, Verdict::SlowResponse),
        };
        if is_over(self.since.get(), limit) {
            if is_slow(self.since.get(), self.moved_bytes.get()) {
                return Some(slow);
            }
            self.begin_look(now);
        }
        is_idle.then_some(Verdict::Idle)
    }

    /// Whether it has moved so little that the `held_bytes` of memory it holds may be taken from it for others.
    pub(super) fn has_stalled(&self, held_bytes: usize, limits: &ServingLimits, now: Monotonic) -> bool {
        if now.since(self.stall_since.get()) < limits.stall_time_max {
            return false;
        }
        let stalled = self.stall_bytes.get() < STALL_BYTES.max(held_bytes as u64 / STALL_PART);
        if !stalled {
            self.begin_stall_look(now);
        }
        stalled
    }

    /// Since when the present look at a stall runs: the longest goes first.
    pub(super) fn stall_since(&self) -> Monotonic {
        self.stall_since.get()
    }

    fn begin_look(&self, now: Monotonic) {
        self.since.set(now);
        self.moved_bytes.set(0);
    }

    fn begin_stall_look(&self, now: Monotonic) {
        self.stall_since.set(now);
        self.stall_bytes.set(0);
    }
}

/// How often connections are looked through, so that none lives much longer than its limit.
pub(super) fn sweep_every(limits: &ServingLimits) -> Option<Duration> {
    const SWEEP_EVERY_MAX: Duration = Duration::from_secs(5);
    const SWEEP_EVERY_MIN: Duration = Duration::from_millis(50);
    let times = [
        limits.idle_time_max,
        limits.first_request_time_max,
        limits.request_time_max,
        limits.response_time_max,
    ];
    let shortest = times.into_iter().flatten().min()?;
    Some((shortest / 4).clamp(SWEEP_EVERY_MIN, SWEEP_EVERY_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BrokerConfig;

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_millis(ms)
    }

    fn limits() -> ServingLimits {
        let limits = BrokerConfig::load(None, &[]).unwrap().config.serving_limits;
        ServingLimits {
            first_request_time_max: Some(Duration::from_millis(100)),
            request_time_max: Some(Duration::from_millis(1000)),
            response_time_max: Some(Duration::from_millis(2000)),
            rate_min: 1000,
            stall_time_max: Duration::from_millis(100),
            idle_time_max: Some(Duration::from_millis(5000)),
            ..limits
        }
    }

    #[test]
    fn a_first_request_that_trickles_in_is_not_waited_for_longer() {
        let watch = Watch::new(at(0));
        watch.enter(Phase::Idle, at(10));
        watch.enter(Phase::Receiving, at(20));
        watch.moved(50, at(90));
        assert_eq!(watch.verdict(&limits(), at(99)), None);
        assert_eq!(watch.verdict(&limits(), at(100)), Some(Verdict::NoFirstRequest));
        watch.enter(Phase::Serving, at(100));
        assert_eq!(watch.verdict(&limits(), at(90_000)), None);
    }

    #[test]
    fn a_long_first_request_is_waited_for_as_long_as_it_comes_fast_enough() {
        let watch = Watch::new(at(0));
        watch.enter(Phase::Receiving, at(20));
        watch.moved(60, at(50));
        watch.moved(60, at(90));
        assert_eq!(watch.verdict(&limits(), at(100)), None);
        watch.moved(600, at(900));
        assert_eq!(watch.verdict(&limits(), at(1019)), None);
        assert_eq!(watch.verdict(&limits(), at(1020)), Some(Verdict::SlowRequest));
    }

    #[test]
    fn a_first_request_has_its_time_behind_a_wait_for_memory() {
        let watch = Watch::new(at(0));
        watch.enter(Phase::Receiving, at(20));
        watch.excuse(at(90));
        assert_eq!(watch.verdict(&limits(), at(189)), None);
        assert_eq!(watch.verdict(&limits(), at(190)), Some(Verdict::NoFirstRequest));
    }

    #[test]
    fn silence_is_idle_after_its_time() {
        let watch = Watch::new(at(0));
        watch.enter(Phase::Serving, at(0));
        watch.enter(Phase::Idle, at(10));
        assert_eq!(watch.verdict(&limits(), at(5009)), None);
        assert_eq!(watch.verdict(&limits(), at(5010)), Some(Verdict::Idle));
    }

    #[test]
    fn who_is_muted_is_not_idle() {
        let watch = Watch::new(at(0));
        watch.enter(Phase::Serving, at(0));
        watch.enter(Phase::Muted, at(10));
        assert_eq!(watch.verdict(&limits(), at(90_000)), None);
        watch.enter(Phase::Idle, at(90_000));
        assert_eq!(watch.verdict(&limits(), at(94_999)), None);
        assert_eq!(watch.verdict(&limits(), at(95_000)), Some(Verdict::Idle));
    }

    #[test]
    fn a_long_request_lives_as_long_as_it_moves_fast_enough() {
        let watch = Watch::new(at(0));
        watch.enter(Phase::Serving, at(0));
        watch.enter(Phase::Receiving, at(0));
        for second in 1..=20 {
            watch.moved(1000, at(second * 1000 - 1));
            assert_eq!(watch.verdict(&limits(), at(second * 1000)), None, "{second}");
        }
        watch.moved(999, at(20_500));
        assert_eq!(watch.verdict(&limits(), at(20_999)), None);
        assert_eq!(watch.verdict(&limits(), at(21_000)), Some(Verdict::SlowRequest));
    }

    #[test]
    fn time_spent_waiting_for_memory_does_not_count() {
        let watch = Watch::new(at(0));
        watch.enter(Phase::Serving, at(0));
        watch.enter(Phase::Receiving, at(0));
        watch.excuse(at(900));
        assert_eq!(watch.verdict(&limits(), at(1800)), None);
        assert_eq!(watch.verdict(&limits(), at(1900)), Some(Verdict::SlowRequest));
    }

    #[test]
    fn an_answer_that_is_not_taken_has_its_time_too() {
        let watch = Watch::new(at(0));
        watch.enter(Phase::Serving, at(0));
        watch.enter(Phase::Sending, at(0));
        assert_eq!(watch.verdict(&limits(), at(1999)), None);
        assert_eq!(watch.verdict(&limits(), at(2000)), Some(Verdict::SlowResponse));
    }

    #[test]
    fn who_moves_little_has_stalled_and_who_moves_much_has_not() {
        let watch = Watch::new(at(0));
        watch.enter(Phase::Receiving, at(0));
        assert!(!watch.has_stalled(1000, &limits(), at(99)));
        assert!(watch.has_stalled(1000, &limits(), at(100)));
        watch.moved(40_000, at(110));
        assert!(!watch.has_stalled(1000, &limits(), at(120)));
        assert!(!watch.has_stalled(1000, &limits(), at(219)));
        assert!(watch.has_stalled(1000, &limits(), at(220)));
    }

    #[test]
    fn who_holds_much_has_to_move_much() {
        let watch = Watch::new(at(0));
        watch.enter(Phase::Sending, at(0));
        watch.moved(100_000, at(50));
        assert!(watch.has_stalled(16 << 20, &limits(), at(100)));
        watch.moved(100_000, at(150));
        assert!(!watch.has_stalled(8 << 20, &limits(), at(200)));
    }
}
