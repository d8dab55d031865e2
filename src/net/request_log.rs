//! Lines about single requests, for whoever looks for one that misbehaves: one in so many
//! (`kuring.request.log.sample`), and those that were slow (`kuring.request.log.slow.ms`), at most
//! [`SLOW_PER_SECOND_MAX`] a second. Off by default; then a request costs one comparison.

use std::cell::Cell;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use crate::base::clock::Monotonic;
use crate::config::{BrokerConfig, ListenerName};
use crate::wire::ApiKey;
use crate::wire::header::RequestHeader;

/// The target of these lines, for filters: `RUST_LOG=warn,kuring::request=info`.
pub const REQUEST_TARGET: &str = "kuring::request";

/// Bytes of a client's id that are shown.
const CLIENT_ID_SHOWN_MAX: usize = 64;

/// Lines about slow requests, per shard.
const SLOW_PER_SECOND_MAX: u32 = 10;

/// Which requests of a shard get a line.
pub(super) struct RequestLog {
    /// One in so many; 0 for none.
    sample: u64,
    slow: Option<Duration>,
    begun: Cell<u64>,
    /// The second that `slow_lines` were written in.
    second: Cell<Monotonic>,
    slow_lines: Cell<u32>,
}

/// A request that may get a line.
pub(super) struct Entry {
    is_sampled: bool,
    version: i16,
    correlation: i32,
    client_id: String,
    request_bytes: usize,
    pub(super) response_bytes: u64,
    pub(super) queue: Duration,
    pub(super) local: Duration,
    pub(super) remote: Duration,
}

impl RequestLog {
    pub(super) fn new(config: &BrokerConfig) -> Self {
        Self {
            sample: config.request_log_sample,
            slow: config.request_log_slow_ms.map(Duration::from_millis),
            begun: Cell::new(0),
            second: Cell::new(Monotonic::ZERO),
            slow_lines: Cell::new(0),
        }
    }

    /// Some requests may get a line.
    pub(super) fn is_on(&self) -> bool {
        self.sample > 0 || self.slow.is_some()
    }

    /// Notes what is said of the request if it gets a line.
    pub(super) fn begin(&self, header: &RequestHeader, request_bytes: usize) -> Option<Box<Entry>> {
        if !self.is_on() {
            return None;
        }
        let number = self.begun.get();
        self.begun.set(number.wrapping_add(1));
        let is_sampled = self.sample > 0 && number.is_multiple_of(self.sample);
        if !is_sampled && self.slow.is_none() {
            return None;
        }
        Some(Box::new(Entry {
            is_sampled,
            version: header.version,
            correlation: header.correlation_id.0,
            client_id: shown(header.client_id.as_deref().unwrap_or_default()),
            request_bytes,
            response_bytes: 0,
            queue: Duration::ZERO,
            local: Duration::ZERO,
            remote: Duration::ZERO,
        }))
    }

    /// Whether it was slow, by the times that are not the client's own choice.
    pub(super) fn is_slow(&self, key: ApiKey, entry: &Entry, total: Duration) -> bool {
        let chosen = match key {
            ApiKey::Fetch | ApiKey::JoinGroup | ApiKey::SyncGroup => entry.remote,
            _ => Duration::ZERO,
        };
        self.slow.is_some_and(|slow| total.saturating_sub(chosen) >= slow)
    }

    /// Writes the line if the request is to have one. `from` is its connection.
    pub(super) fn finish(&self, line: Line<'_>, now: Monotonic) {
        let Line { api, entry, from: (peer, listener), send, total, is_slow } = line;
        let is_told = entry.is_sampled || is_slow && self.may_tell_slow(now);
        if !is_told {
            return;
        }
        tracing::info!(
            target: REQUEST_TARGET,
            api,
            version = entry.version,
            correlation = entry.correlation,
            client_id = entry.client_id,
            %peer,
            listener = listener.as_str(),
            request_bytes = entry.request_bytes,
            response_bytes = entry.response_bytes,
            queue_us = entry.queue.as_micros() as u64,
            local_us = entry.local.as_micros() as u64,
            remote_us = entry.remote.as_micros() as u64,
            send_us = send.as_micros() as u64,
            total_us = total.as_micros() as u64,
            "{}",
            if is_slow { "slow request" } else { "request" }
        );
    }

    fn may_tell_slow(&self, now: Monotonic) -> bool {
        if now.since(self.second.get()) >= Duration::from_secs(1) {
            self.second.set(now);
            self.slow_lines.set(0);
        }
        self.slow_lines.set(self.slow_lines.get() + 1);
        self.slow_lines.get() <= SLOW_PER_SECOND_MAX
    }
}

/// A request that has been answered.
pub(super) struct Line<'a> {
    pub(super) api: &'static str,
    pub(super) entry: &'a Entry,
    pub(super) from: (SocketAddr, &'a ListenerName),
    pub(super) send: Duration,
    pub(super) total: Duration,
    pub(super) is_slow: bool,
}

/// Opaque bytes as text: what is not printable ASCII is escaped, what is long is cut.
fn shown(id: &[u8]) -> String {
    let mut text = String::new();
    for byte in id.iter().take(CLIENT_ID_SHOWN_MAX) {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => drop(write!(text, "\\x{byte:02x}")),
        }
    }
    if id.len() > CLIENT_ID_SHOWN_MAX {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api;
    use crate::wire::header::CorrelationId;

    fn log(sample: u64, slow: Option<Duration>) -> RequestLog {
        RequestLog {
            sample,
            slow,
            begun: Cell::new(0),
            second: Cell::new(Monotonic::ZERO),
            slow_lines: Cell::new(0),
        }
    }

    fn header() -> RequestHeader {
        let api = api::find(ApiKey::Fetch as i16).unwrap();
        RequestHeader { api, version: 12, correlation_id: CorrelationId(7), client_id: None }
    }

    #[test]
    fn one_in_so_many_is_sampled_and_none_when_it_is_off() {
        let off = log(0, None);
        assert!((0..100).all(|_| off.begin(&header(), 10).is_none()));
        let sampled = log(10, None);
        assert_eq!((0..100).filter(|_| sampled.begin(&header(), 10).is_some()).count(), 10);
    }

    #[test]
    fn a_fetch_that_waited_as_it_was_asked_to_is_not_slow() {
        let ms = Duration::from_millis;
        let slow = log(0, Some(ms(100)));
        let mut entry = slow.begin(&header(), 10).unwrap();
        entry.remote = ms(500);
        assert!(!slow.is_slow(ApiKey::Fetch, &entry, ms(510)));
        assert!(slow.is_slow(ApiKey::Fetch, &entry, ms(600)));
        assert!(slow.is_slow(ApiKey::Produce, &entry, ms(510)));
    }

    #[test]
    fn slow_requests_are_told_a_few_times_a_second() {
        let slow = log(0, Some(Duration::ZERO));
        let told = (0..1000).filter(|at| slow.may_tell_slow(Monotonic::from_millis(2000 + at))).count();
        assert_eq!(told, SLOW_PER_SECOND_MAX as usize);
        assert!(slow.may_tell_slow(Monotonic::from_millis(3001)));
    }

    #[test]
    fn a_client_id_is_escaped_and_cut() {
        assert_eq!(shown(b"app\n\xc3\x28\\"), "app\\x0a\\xc3(\\\\");
        assert_eq!(shown(&[b'a'; 100]), "a".repeat(64) + "…");
    }
}
