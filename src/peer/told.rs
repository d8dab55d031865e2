//! What the log was told of peers lately: who tries all the time, and is refused all the time, is told of once a minute.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::BrokerId;
use crate::base::clock::Monotonic;

/// The same of the same peer is told again after this time.
const PAUSE: Duration = Duration::from_secs(60);

/// What is remembered at most; beyond it nothing new is told, until some of it is older than the pause.
const ENTRIES_MAX: usize = 256;

/// One for the process, or for a server; any thread. Asked only where something goes wrong.
#[derive(Default, Debug)]
pub struct Told(Mutex<HashMap<Of, Entry>>);

#[derive(PartialEq, Eq, Hash, Debug)]
enum Of {
    /// Who comes is known by the address and what is wrong: behind one there may be several nodes.
    Comer(IpAddr, String),
    /// Who is asked, by its id.
    Broker(BrokerId),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Monotonic,
    left_out: u64,
}

/// How often the same was not told since the last time, for the end of the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeftOut(u64);

impl Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} times more since the last such line)"),
        }
    }
}

impl Told {
    /// Whether it is told that whoever came from there is refused.
    pub fn of_comer(&self, from: IpAddr, why: &impl Display, now: Monotonic) -> Option<LeftOut> {
        self.admit(Of::Comer(from.to_canonical(), why.to_string()), now)
    }

    /// Whether it is told that nothing comes of what a broker is asked for.
    pub fn of_broker(&self, broker: BrokerId, now: Monotonic) -> Option<LeftOut> {
        self.admit(Of::Broker(broker), now)
    }

    /// The broker answers again: the next failure is told.
    pub fn forget_broker(&self, broker: BrokerId) {
        self.entries().remove(&Of::Broker(broker));
    }

    fn admit(&self, of: Of, now: Monotonic) -> Option<LeftOut> {
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(&of) {
            if now.since(entry.at) < PAUSE {
                entry.left_out += 1;
                return None;
            }
            let left_out = entry.left_out;
            *entry = Entry { at: now, left_out: 0 };
            return Some(LeftOut(left_out));
        }
        if entries.len() >= ENTRIES_MAX {
            entries.retain(|_, entry| now.since(entry.at) < PAUSE);
        }
        if entries.len() >= ENTRIES_MAX {
            return None;
        }
        entries.insert(of, Entry { at: now, left_out: 0 });
        Some(LeftOut(0))
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Of, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_millis(seconds * 1000)
    }

    #[test]
    fn the_same_of_the_same_peer_is_told_once_a_minute_with_what_was_left_out() {
        let told = Told::default();
        let [one, two] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        assert_eq!(told.of_comer(one, &"refused", at(0)), Some(LeftOut(0)));
        assert_eq!(told.of_comer(one, &"refused", at(1)), None);
        assert_eq!(told.of_comer(one, &"refused", at(59)), None);
        assert_eq!(told.of_comer(two, &"refused", at(1)), Some(LeftOut(0)), "another peer");
        assert_eq!(told.of_comer(one, &"closed", at(1)), Some(LeftOut(0)), "another reason");
        assert_eq!(told.of_comer(one, &"refused", at(60)), Some(LeftOut(2)));
        assert_eq!(told.of_comer(one, &"refused", at(61)), None);
        assert_eq!(
            (LeftOut(0).to_string(), LeftOut(2).to_string().contains("2 times")),
            (String::new(), true)
        );
    }

    #[test]
    fn a_broker_that_has_answered_meanwhile_is_told_of_again() {
        let told = Told::default();
        assert_eq!(told.of_broker(BrokerId(2), at(0)), Some(LeftOut(0)));
        assert_eq!(told.of_broker(BrokerId(2), at(1)), None, "another shard");
        assert_eq!(told.of_broker(BrokerId(3), at(1)), Some(LeftOut(0)));
        told.forget_broker(BrokerId(2));
        assert_eq!(told.of_broker(BrokerId(2), at(2)), Some(LeftOut(0)));
    }

    #[test]
    fn many_peers_take_no_more_than_their_part_of_memory_and_of_the_log() {
        let told = Told::default();
        let from = |n: u32| IpAddr::from(n.to_be_bytes());
        let lines =
            |second| (0..1000).filter(|n| told.of_comer(from(*n), &"x", at(second)).is_some()).count();
        assert_eq!(lines(0), ENTRIES_MAX);
        assert_eq!(lines(30), 0);
        assert_eq!(told.entries().len(), ENTRIES_MAX);
        assert_eq!(lines(60), ENTRIES_MAX);
    }
}
