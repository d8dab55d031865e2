//! Client quotas on the shards. What is set comes with the image; how fast clients are is measured by all shards
//! together, in [`QuotaMeters`]: the one place beside the gate where shards share what changes, because a rate within
//! a tenth of its limit, summed by messages, would cost a message per request.
//!
//! A shard takes the lock of the meters once for each connection after a change of the quotas, never for a request. A
//! meter itself is a few atomics.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Shard;
use crate::base::clock::Monotonic;
use crate::base::{PROCESS, Rate, Windows};
use crate::config::QuotaSettings;
use crate::metadata::{ClientQuotas, Image, QuotaKey, Scope};

/// Meters are looked through for those that nobody needs when there are so many, and then twice as many as were needed.
const SWEEP_FROM: usize = 1024;

/// Who invents names does not make the others wait for one sweep after the other.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// The rates of all clients that have quotas; one for the process.
#[derive(Debug)]
pub struct QuotaMeters {
    windows: Windows,
    meters_max: usize,
    by_key: [Mutex<Meters>; QuotaKey::ALL.len()],
}

#[derive(Debug)]
struct Meters {
    by_name: HashMap<MeterName, Arc<Rate>, ahash::RandomState>,
    sweep_at: usize,
    swept: Monotonic,
    /// Of those that came when there were too many.
    crowd: Option<Arc<Rate>>,
}

/// What is measured together.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct MeterName {
    scope: Scope,
    user: Box<str>,
    client_id: Box<str>,
}

impl QuotaMeters {
    pub fn new(settings: &QuotaSettings) -> Self {
        let meters = || Meters {
            by_name: HashMap::default(),
            sweep_at: SWEEP_FROM,
            swept: Monotonic::ZERO,
            crowd: None,
        };
        Self {
            windows: settings.windows,
            meters_max: settings.clients_max as usize,
            by_key: QuotaKey::ALL.map(|_| Mutex::new(meters())),
        }
    }

    pub fn windows(&self) -> Windows {
        self.windows
    }

    /// The meter of a client whose quota has that scope.
    pub fn meter(
        &self,
        key: QuotaKey,
        scope: Scope,
        (user, client_id): (&str, &str),
        now: Monotonic,
    ) -> Arc<Rate> {
        let name = MeterName {
            scope,
            user: if scope == Scope::Client { "" } else { user }.into(),
            client_id: if scope == Scope::User { "" } else { client_id }.into(),
        };
        let mut meters = self.by_key[key as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(meter) = meters.by_name.get(&name) {
            return meter.clone();
        }
        let fresh = || Arc::new(Rate::new(self.windows, now));
        let is_due = now.since(meters.swept) >= SWEEP_PAUSE;
        if is_due && meters.by_name.len() >= meters.sweep_at.min(self.meters_max) {
            meters.sweep(now);
        }
        if meters.by_name.len() >= self.meters_max {
            PROCESS.quota_clients_crowded.increment();
            return meters.crowd.get_or_insert_with(fresh).clone();
        }
        let meter = fresh();
        meters.by_name.insert(name, meter.clone());
        meter
    }
}

impl Meters {
    /// Drops what no connection has and what has been silent for all windows: a new one measures the same.
    fn sweep(&mut self, now: Monotonic) {
        self.by_name.retain(|_, meter| Arc::strong_count(meter) > 1 || !meter.is_silent(now));
        self.swept = now;
        self.sweep_at = SWEEP_FROM.max(2 * self.by_name.len());
    }
}

/// The quotas as a shard knows them.
#[derive(Default)]
pub(super) struct ShardQuotas {
    quotas: RefCell<Arc<ClientQuotas>>,
    /// Grows with each change; 0 while nothing of clients is limited.
    epoch: Cell<u64>,
    changes: Cell<u64>,
}

impl Shard {
    /// Which quotas of users and client ids hold; 0 is none at all. All that a request costs without quotas.
    pub fn quota_epoch(&self) -> u64 {
        self.quotas.epoch.get()
    }

    pub fn client_quotas(&self) -> Arc<ClientQuotas> {
        self.quotas.quotas.borrow().clone()
    }

    pub(super) fn know_quotas(&self, old: &Image, new: &Image) {
        if Arc::ptr_eq(old.client_quotas(), new.client_quotas()) {
            return;
        }
        let changes = self.quotas.changes.get() + 1;
        self.quotas.changes.set(changes);
        self.quotas.epoch.set(if new.client_quotas().has_of_clients() { changes } else { 0 });
        self.quotas.quotas.replace(new.client_quotas().clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: QuotaKey = QuotaKey::ProducerByteRate;

    fn meters(max: u32) -> QuotaMeters {
        let windows = Windows::new(11, 1);
        QuotaMeters::new(&QuotaSettings { windows, controller_windows: windows, clients_max: max })
    }

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_millis(ms)
    }

    #[test]
    fn a_meter_is_shared_by_those_of_its_scope() {
        let meters = meters(100);
        let meter = |scope, user, client_id| meters.meter(KEY, scope, (user, client_id), at(0));
        let of_user = meter(Scope::User, "u", "a");
        assert!(Arc::ptr_eq(&of_user, &meter(Scope::User, "u", "b")));
        assert!(!Arc::ptr_eq(&of_user, &meter(Scope::UserAndClient, "u", "a")));
        let of_client = meter(Scope::Client, "u", "a");
        assert!(Arc::ptr_eq(&of_client, &meter(Scope::Client, "v", "a")));
        assert!(!Arc::ptr_eq(&of_client, &meter(Scope::Client, "u", "b")));
        let other = meters.meter(QuotaKey::ConsumerByteRate, Scope::User, ("u", "a"), at(0));
        assert!(!Arc::ptr_eq(&of_user, &other));
    }

    #[test]
    fn peers_that_invent_client_ids_take_no_more_memory_than_is_granted() {
        let meters = meters(10);
        let meter =
            |number: usize, now| meters.meter(KEY, Scope::Client, ("u", &format!("client-{number}")), now);
        let held: Vec<Arc<Rate>> = (0..10).map(|number| meter(number, at(0))).collect();
        let hits = PROCESS.quota_clients_crowded.get();
        let crowd = meter(10, at(0));
        assert!(Arc::ptr_eq(&crowd, &meter(11, at(0))), "they share one");
        assert_eq!(PROCESS.quota_clients_crowded.get(), hits + 2);
        assert!(Arc::ptr_eq(&held[3], &meter(3, at(0))));
        // Those that are gone make room once nothing of them counts any more.
        drop(held);
        assert!(Arc::ptr_eq(&crowd, &meter(10, at(11_000))));
        let own = meter(10, at(13_000));
        assert!(!Arc::ptr_eq(&crowd, &own));
        assert_eq!(meters.by_key[KEY as usize].lock().unwrap().by_name.len(), 1);
    }
}
