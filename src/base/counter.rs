//! Counters, and the names under which they are exported.
//!
//! A counter is one line: a field in a [`counters!`] struct, with its exported name behind it; its doc comment
//! is the help text. [`Counter`] is a shard's own: a plain cell, no atomics, read by the shard that owns it.
//! [`SharedCounter`] is for what several threads count: file threads, accepting threads, the log.
//!
//! [`counters!`]: crate::counters

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts events on one shard.
#[derive(Default, Debug)]
pub struct Counter(Cell<u64>);

impl Counter {
    pub const fn new() -> Self {
        Self(Cell::new(0))
    }

    pub fn increment(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.set(self.0.get().wrapping_add(count));
    }

    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// Counts events of several threads: one relaxed atomic addition.
#[derive(Default, Debug)]
pub struct SharedCounter(AtomicU64);

impl SharedCounter {
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn increment(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a family of series is (Prometheus' TYPE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A name that `/metrics` exports, with everything that is said about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family {
    /// With its unit: `_bytes`, `_seconds`; counters end with `_total`.
    pub name: &'static str,
    pub kind: Kind,
    /// Names of the labels, in the order of the values.
    pub labels: &'static [&'static str],
    /// As the doc comment has it: it may start with a blank.
    pub help: &'static str,
}

/// How often each limit was hit: one family, so that one alert sees them all. Filled by `limit` lines of
/// [`counters!`](crate::counters).
pub static LIMIT_HITS: Family = Family {
    name: "kuring_limit_hits_total",
    kind: Kind::Counter,
    labels: &["limit"],
    help: "How often a limit refused something or made it wait.",
};

/// How a counter is exported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Export {
    /// Under a name of its own.
    Total(Family),
    /// In [`LIMIT_HITS`], under this label.
    Limit { name: &'static str, help: &'static str },
}

/// Declares a struct of counters and how each is exported:
///
/// ```
/// kuring::counters! {
///     /// Figures of a kitchen.
///     pub struct Kitchen of kuring::base::Counter {
///         /// Meals that went out.
///         pub meals: total "kitchen_meals_total",
///         /// A guest found no table.
///         pub full: limit "kitchen_tables",
///     }
/// }
/// let kitchen = Kitchen::default();
/// kitchen.meals.increment();
/// assert_eq!(kitchen.values(), [1, 0]);
/// ```
///
/// The doc comment of a field is its help text in `/metrics` and in `docs/METRICS.md`. Names of labels may follow a
/// `total` in brackets, where whoever exports the struct has values for them.
#[macro_export]
macro_rules! counters {
    (
        $(#[doc = $about:literal])+
        $visibility:vis struct $name:ident of $counter:ty {
            $(
                $(#[doc = $help:literal])+
                pub $field:ident: $kind:ident $export:literal $([$($label:literal),+])?,
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Default, Debug)]
        $visibility struct $name {
            $(
                $(#[doc = $help])+
                pub $field: $counter,
            )+
        }

        impl $name {
            /// How each counter is exported, in the order of [`Self::values`].
            pub const EXPORTS: &'static [$crate::base::Export] =
                &[$($crate::counters!(@ $kind $export [$($($label),+)?], concat!($($help),+))),+];

            /// All at zero.
            pub const fn new() -> Self {
                Self { $($field: <$counter>::new()),+ }
            }

            /// What each stands at now.
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$field.get()),+]
            }
        }
    };
    (@ total $name:literal [$($label:literal),*], $help:expr) => {
        $crate::base::Export::Total($crate::base::Family {
            name: $name,
            kind: $crate::base::Kind::Counter,
            labels: &[$($label),*],
            help: $help,
        })
    };
    (@ limit $name:literal [], $help:expr) => {
        $crate::base::Export::Limit { name: $name, help: $help }
    };
}

/// Declares families of series that are not counters of a [`counters!`](crate::counters) struct: statics, and
/// the list `FAMILIES` of all of them.
///
/// ```
/// kuring::families! {
///     /// Guests that sit.
///     GUESTS: gauge "kitchen_guests" ["room"];
/// }
/// assert_eq!(FAMILIES[0].name, "kitchen_guests");
/// ```
#[macro_export]
macro_rules! families {
    ($(
        $(#[doc = $help:literal])+
        $name:ident: $kind:ident $export:literal [$($label:literal),*];
    )+) => {
        $(
            $(#[doc = $help])+
            pub static $name: $crate::base::Family = $crate::base::Family {
                name: $export,
                kind: $crate::families!(@ $kind),
                labels: &[$($label),*],
                help: concat!($($help),+),
            };
        )+

        /// Every family that is declared here.
        pub static FAMILIES: &[&$crate::base::Family] = &[$(&$name),+];
    };
    (@ counter) => { $crate::base::Kind::Counter };
    (@ gauge) => { $crate::base::Kind::Gauge };
    (@ histogram) => { $crate::base::Kind::Histogram };
}

crate::counters! {
    /// What threads count that are no shard, one set per process: [`PROCESS`].
    pub struct ProcessCounters of SharedCounter {
        /// Log lines that were dropped because standard error did not take them.
        pub log_lines_dropped: total "kuring_log_lines_dropped_total",
        /// Log lines that were left out because the same line had just been repeated too often.
        pub log_lines_suppressed: total "kuring_log_lines_suppressed_total",
        /// A connection could not be accepted for want of descriptors or memory; it waited in the backlog.
        pub accepts_failed: limit "accept_descriptors",
        /// A connection to the admin listener came while as many as it takes were open.
        pub admin_connections_refused: limit "admin_connections",
        /// A connection to the controllers' listener came while as many were open as it takes.
        pub peers_refused: limit "peer_connections",
        /// A connection to the controllers' listener was closed for another: too many had not said hello.
        pub strangers_closed: limit "peer_strangers",
        /// A client of Kafka's came to a controller's listener while as many were there as it takes.
        pub controller_clients_refused: limit "controller_clients",
        /// A member's JoinGroup, SyncGroup or heartbeat would have taken the groups beyond kuring.groups.bytes.max.
        pub members_refused: limit "group_bytes",
        /// A subscription by an expression was wrong, or too much for its group.
        pub expressions_refused: limit "group_expressions",
        /// A group request found as many waiting for writes to its partition of the offsets topic as may wait.
        pub group_requests_refused: limit "group_requests",
        /// Something was asked of the transaction coordinator while as much was under way as may be.
        pub transactions_refused_pending: limit "transactions_pending",
        /// A transactional id or partitions of a transaction would have gone beyond kuring.transactions.bytes.max.
        pub transactions_refused_room: limit "transaction_bytes",
        /// A producer asked for an id while as many as may be waited for one.
        pub producer_ids_refused: limit "producer_ids",
        /// A coordinator had as much to ask another broker as may wait for one.
        pub broker_questions_refused: limit "broker_questions",
        /// A user or client id with a quota came while kuring.quota.clients.max of them were measured apart.
        pub quota_clients_crowded: limit "quota_clients",
    }
}

/// The process's own counters.
pub static PROCESS: ProcessCounters = ProcessCounters::new();

#[cfg(test)]
mod tests {
    use super::*;

    crate::counters! {
        /// An example.
        struct Some of Counter {
            /// One thing,
            /// in two lines.
            pub one: total "one_total",
            /// Another thing.
            pub other: limit "other",
        }
    }

    #[test]
    fn a_line_declares_the_counter_its_name_and_its_help() {
        let some = Some::new();
        some.one.add(2);
        some.other.increment();
        assert_eq!(some.values(), [2, 1]);
        let [Export::Total(family), limit] = Some::EXPORTS else { panic!("{:?}", Some::EXPORTS) };
        assert_eq!((family.name, family.help), ("one_total", " One thing, in two lines."));
        assert_eq!(*limit, Export::Limit { name: "other", help: " Another thing." });
    }
}
