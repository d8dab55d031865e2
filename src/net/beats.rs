//! Connections whose requests the coordinator alone serves, and among them those that bring nothing but heartbeats.
//!
//! All of them ask to live on the coordinator's shard: there each request crosses a shard less. Thousands of members, each
//! with a heartbeat every few seconds, would wake their shard for each; where there are many their connections are looked at
//! together ([`crate::io::net::Gathering`]), every few milliseconds, which is nothing to a heartbeat. Any other request ends
//! that at once. On the coordinator's shard a heartbeat to whose member nothing is new is answered in the look that found it
//! ([`Resting`]): the connection's task sleeps on, and nearly all that the processor would have to fetch of it from memory is
//! left alone.
//!
//! One [`BeatingConnections`] per shard.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::figures::ListenerCounters;
use super::registry::{Connections, Entry};
use super::watch::Phase;
use crate::api::{self, Client};
use crate::base::clock::{self, Monotonic};
use crate::io::net::{Gathering, Look, Rest};
use crate::io::runtime::{Queue, spawn, yield_if_needed};
use crate::shard::Shard;
use crate::wire::ApiKey;
use crate::wire::frame::{self, FrameStep, PREFIX_LEN};
use crate::wire::header::{self, Request};

/// So many heartbeats in a row, and nothing else, make a connection one of these.
const BEATS_MIN: u32 = 2;
/// So many requests in a row that only the coordinator serves, and the connection asks to live there.
const OF_COORDINATOR_MIN: u32 = 64;
/// What a connection with other requests than heartbeats costs, in percent of a core, about: a few hundred requests a second.
const COST_PERCENT: u32 = 1;
/// Heartbeats that come sooner after each other are part of a rebalance, where each waits for the one before.
const GAP_MIN: Duration = Duration::from_millis(200);
/// Fewer on a shard do not cost it what looking at them costs.
const GATHERED_MIN: usize = 256;
/// Between two looks, when something came at the last one.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(5);
/// The same when nothing has come for a while.
const LOOK_EVERY_MAX: Duration = Duration::from_millis(20);

/// How many connections of a shard bring nothing but heartbeats.
pub(super) struct BeatingConnections {
    count: Cell<usize>,
    /// Not there when the system refused it: then each wakes its shard.
    gathering: Option<Rc<Gathering>>,
}

/// What a connection has brought lately.
pub(super) struct Beats {
    of_shard: Rc<BeatingConnections>,
    run: Run,
    counted: Option<Counted>,
    /// Requests in a row that only the coordinator serves.
    of_coordinator: u32,
    /// What the connection costs that asks to move, in percent of a core.
    asks: Option<u32>,
}

/// Heartbeats in a row, which go on when the connection goes over to another shard.
#[derive(Clone, Copy, Default, Debug)]
pub struct Run {
    count: u32,
    last: Option<Monotonic>,
}

/// One of the connections that are counted.
struct Counted(Rc<BeatingConnections>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
    }
}

impl BeatingConnections {
    /// Starts to look at those of `shard`.
    pub fn start(shard: &Rc<Shard>) -> Rc<Self> {
        let gathering = Gathering::new().inspect_err(|error| {
            tracing::warn!("members' connections wake their shard one by one: no epoll: {error}");
        });
        let gathering = gathering.ok();
        if let Some(gathering) = gathering.clone() {
            let shard = shard.clone();
            spawn(Queue::Serve, "members' connections", look(shard, gathering)).detach();
        }
        Rc::new(Self { count: Cell::new(0), gathering })
    }

    /// How many are looked at together.
    pub fn gathered(&self) -> usize {
        self.gathering.as_ref().map_or(0, |gathering| gathering.len())
    }
}

async fn look(shard: Rc<Shard>, gathering: Rc<Gathering>) {
    let mut every = LOOK_EVERY_MAX;
    loop {
        gathering.occupied().await;
        shard.sleep(every).await;
        every = match look_at_all(&gathering).await {
            Ok(0) => (every * 2).min(LOOK_EVERY_MAX),
            Ok(_) => LOOK_EVERY_MIN,
            Err(error) => {
                crate::base::fatal(format_args!("members' connections cannot be looked at: {error}"))
            }
        };
    }
}

/// Looks until all that has come is found: on how many connections.
async fn look_at_all(gathering: &Gathering) -> io::Result<usize> {
    let mut all = 0;
    loop {
        let Look { found, is_cut, .. } = gathering.look()?;
        all += found;
        if !is_cut {
            return Ok(all);
        }
        // Thousands may send at once.
        yield_if_needed().await;
    }
}

impl Beats {
    pub fn new(of_shard: Rc<BeatingConnections>, run: Run) -> Self {
        Self { of_shard, run, counted: None, of_coordinator: 0, asks: None }
    }

    pub fn run(&self) -> Run {
        self.run
    }

    /// A request has come.
    pub fn note(&mut self, key: ApiKey, now: Monotonic) {
        let is_beat =
            matches!(key, ApiKey::Heartbeat | ApiKey::ConsumerGroupHeartbeat | ApiKey::ShareGroupHeartbeat);
        let count = match self.run.last {
            Some(last) if is_beat && now.since(last) >= GAP_MIN => self.run.count.saturating_add(1),
            _ => u32::from(is_beat),
        };
        self.run = Run { count, last: is_beat.then_some(now) };
        let is_of_coordinator = is_beat || is_of_coordinator(key);
        self.of_coordinator = if is_of_coordinator { self.of_coordinator.saturating_add(1) } else { 0 };
        // A shard that was not asked lately says no the first time.
        let beats_ask = count >= BEATS_MIN && (count <= BEATS_MIN + 1 || count.is_power_of_two());
        let requests_ask = self.of_coordinator >= OF_COORDINATOR_MIN && self.of_coordinator.is_power_of_two();
        self.asks = match (beats_ask, requests_ask) {
            (true, _) => Some(0),
            (false, true) => Some(COST_PERCENT),
            (false, false) => None,
        };
        if count < BEATS_MIN {
            self.counted = None;
            return;
        }
        if self.counted.is_none() {
            self.of_shard.count.set(self.of_shard.count.get() + 1);
            self.counted = Some(Counted(self.of_shard.clone()));
        }
    }

    /// Whether it brings nothing but heartbeats.
    pub fn are_all(&self) -> bool {
        self.counted.is_some()
    }

    /// Where to wait for the next one, if not alone.
    pub fn gathering(&self) -> Option<&Rc<Gathering>> {
        let are_many = self.of_shard.count.get() >= GATHERED_MIN;
        self.of_shard.gathering.as_ref().filter(|_| are_many && self.are_all())
    }

    /// What the connection costs, in percent of a core, if it is time to ask for a move to the coordinator's shard.
    pub fn take_question(&mut self) -> Option<u32> {
        self.asks.take()
    }
}

/// Whether requests of the kind go to the coordinator and nowhere else; heartbeats are told apart before.
fn is_of_coordinator(key: ApiKey) -> bool {
    use ApiKey::{JoinGroup, LeaveGroup, OffsetCommit, OffsetFetch, SyncGroup};
    matches!(key, OffsetCommit | OffsetFetch | JoinGroup | SyncGroup | LeaveGroup)
}

/// Serves a member's heartbeats while its connection rests. What it does not answer the connection's task does.
pub(super) struct Resting {
    client: Rc<Client>,
    connections: Rc<Connections>,
    entry: Rc<Entry>,
    listener: Rc<ListenerCounters>,
    /// When the last one came.
    last: Cell<Monotonic>,
}

impl Resting {
    pub fn new(
        client: Rc<Client>,
        connections: Rc<Connections>,
        entry: Rc<Entry>,
        listener: Rc<ListenerCounters>,
    ) -> Self {
        Self { client, connections, entry, listener, last: Cell::new(clock::monotonic()) }
    }

    /// Whether a request that has come at `now` is as good as served by the connection's task, which looks at more.
    fn may_serve(&self, now: Monotonic) -> bool {
        let connections = &self.connections;
        now.since(self.last.replace(now)) >= GAP_MIN
            && self.entry.closed.get().is_none()
            && !connections.is_draining()
            && !connections.memory().is_used_up()
            && !connections.request_log.is_on()
            && connections.beating().count.get() >= GATHERED_MIN
    }
}

impl Rest for Resting {
    fn serve(&self, received: &[u8], send: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let begun = clock::monotonic();
        if !self.may_serve(begun) {
            return false;
        }
        let shard = &self.client.shard;
        let length_max = shard.config().socket_request_bytes_max as usize;
        let len = match frame::next(received, length_max) {
            FrameStep::Complete { len } if PREFIX_LEN + len == received.len() => len,
            _ => return false,
        };
        let frame = Bytes::copy_from_slice(&received[PREFIX_LEN..PREFIX_LEN + len]);
        let Ok(Request::Known { header, body }) = header::parse(&frame) else { return false };
        let Some(answer) = api::answer_at_once(&self.client, &header, &body) else { return false };
        let answered = clock::monotonic();
        if !send(&answer) {
            // The task serves it once more, which is nothing to a heartbeat.
            return false;
        }
        let sent = clock::monotonic();
        self.entry.watch.enter(Phase::Idle, sent);
        let (bytes_in, bytes_out) = (received.len() as u64, answer.len() as u64);
        shard.counters.requests.increment();
        shard.counters.beats_at_rest.increment();
        shard.counters.bytes_in.add(bytes_in);
        self.listener.bytes_in.add(bytes_in);
        shard.counters.bytes_out.add(bytes_out);
        self.listener.bytes_out.add(bytes_out);
        shard.requests.begun(header.api);
        shard.requests.answered(header.api, Duration::ZERO, answered.since(begun), Duration::ZERO);
        shard.requests.sent(header.api, sent.since(answered), sent.since(begun));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beats() -> (Rc<BeatingConnections>, Beats) {
        let of_shard = Rc::new(BeatingConnections { count: Cell::new(0), gathering: Gathering::new().ok() });
        (of_shard.clone(), Beats::new(of_shard, Run::default()))
    }

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_millis(ms)
    }

    #[test]
    fn two_heartbeats_in_a_row_make_a_members_connection_and_a_commit_ends_it() {
        let (of_shard, mut beats) = beats();
        beats.note(ApiKey::JoinGroup, at(0));
        beats.note(ApiKey::ConsumerGroupHeartbeat, at(1000));
        assert!(!beats.are_all());
        beats.note(ApiKey::ConsumerGroupHeartbeat, at(4000));
        assert!(beats.are_all());
        assert_eq!(of_shard.count.get(), 1);
        beats.note(ApiKey::OffsetCommit, at(5000));
        assert!(!beats.are_all());
        assert_eq!(of_shard.count.get(), 0);
        beats.note(ApiKey::Heartbeat, at(6000));
        assert!(!beats.are_all());
    }

    #[test]
    fn a_row_goes_on_behind_a_move() {
        let (_, mut beats) = beats();
        beats.note(ApiKey::Heartbeat, at(0));
        beats.note(ApiKey::Heartbeat, at(3000));
        let (there, _) = self::beats();
        let mut moved = Beats::new(there.clone(), beats.run());
        moved.note(ApiKey::Heartbeat, at(6000));
        assert!(moved.are_all());
        assert_eq!(there.count.get(), 1);
    }

    #[test]
    fn heartbeats_that_follow_each_other_at_once_do_not_count() {
        let (_, mut beats) = beats();
        for beat in 0..10 {
            beats.note(ApiKey::ConsumerGroupHeartbeat, at(beat * 199));
            assert!(!beats.are_all());
        }
    }

    #[test]
    fn few_wait_alone_and_many_together() {
        let (of_shard, mut beats) = beats();
        beats.note(ApiKey::Heartbeat, at(0));
        beats.note(ApiKey::Heartbeat, at(3000));
        assert!(beats.gathering().is_none());
        let mut others = Vec::new();
        for _ in 1..GATHERED_MIN {
            let mut other = Beats::new(of_shard.clone(), Run::default());
            other.note(ApiKey::ShareGroupHeartbeat, at(0));
            other.note(ApiKey::ShareGroupHeartbeat, at(3000));
            others.push(other);
        }
        assert!(beats.gathering().is_some());
        others.pop();
        assert!(beats.gathering().is_none(), "one has gone");
    }

    #[test]
    fn it_asks_for_a_move_twice_and_then_ever_more_rarely() {
        let (_, mut beats) = beats();
        let mut asked = Vec::new();
        for beat in 1..=20 {
            beats.note(ApiKey::Heartbeat, at(beat * 3000));
            if let Some(cost) = beats.take_question() {
                assert_eq!(cost, 0);
                asked.push(beat);
            }
            assert_eq!(beats.take_question(), None, "once for each");
        }
        assert_eq!(asked, [2, 3, 4, 8, 16]);
    }

    #[test]
    fn who_only_commits_asks_for_a_move_and_who_also_fetches_does_not() {
        let (_, mut beats) = beats();
        let mut asked = Vec::new();
        for number in 1..=300 {
            beats.note(ApiKey::OffsetCommit, at(number * 3));
            if let Some(cost) = beats.take_question() {
                assert_eq!(cost, COST_PERCENT);
                asked.push(number);
            }
        }
        assert_eq!(asked, [64, 128, 256]);
        for number in 0..1000 {
            let key = if number % 60 == 0 { ApiKey::Fetch } else { ApiKey::OffsetCommit };
            beats.note(key, at(1000 + number));
            assert_eq!(beats.take_question(), None);
        }
    }
}
