//! What share groups need of the broker's properties (`group.share.*`, `share.coordinator.*`) and of a group's own
//! (`share.*`), which win over the broker's.

use std::time::Duration;

use super::define::Value;
use super::settings::{Overrides, Settings};
use super::table::group;

/// Where a group begins to read a partition that it has no position in (`share.auto.offset.reset`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareReset {
    Earliest,
    Latest,
    /// With the first record that is not older.
    ByDuration(Duration),
}

impl ShareReset {
    /// `by_duration:` takes what Java's `Duration.parse` does, as long as it is not negative.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "earliest" => Some(ShareReset::Earliest),
            "latest" => Some(ShareReset::Latest),
            _ => parse_duration(text.strip_prefix("by_duration:")?).map(ShareReset::ByDuration),
        }
    }
}

/// ISO 8601 in days, hours, minutes and seconds, as in `P2DT3H4M5.6S`.
fn parse_duration(text: &str) -> Option<Duration> {
    let upper = text.to_ascii_uppercase();
    let rest = upper.strip_prefix('P')?;
    let (days, time) = match rest.split_once('T') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (rest, ""),
    };
    if days.is_empty() && time.is_empty() {
        return None;
    }
    let mut millis: u64 = 0;
    if !days.is_empty() {
        let days: u64 = days.strip_suffix('D')?.parse().ok()?;
        millis = days.checked_mul(86_400_000)?;
    }
    let mut rest = time;
    for (unit, unit_ms) in [('H', 3_600_000), ('M', 60_000)] {
        if let Some((number, after)) = rest.split_once(unit) {
            millis = millis.checked_add(number.parse::<u64>().ok()?.checked_mul(unit_ms)?)?;
            rest = after;
        }
    }
    if !rest.is_empty() {
        let (whole, fraction) =
            rest.strip_suffix('S')?.split_once('.').unwrap_or((rest.strip_suffix('S')?, ""));
        let seconds: u64 = whole.parse().ok()?;
        if !fraction.bytes().all(|digit| digit.is_ascii_digit()) || fraction.len() > 9 {
            return None;
        }
        let thousandths: u64 = format!("{fraction:0<3}")[..3].parse().ok()?;
        millis = millis.checked_add(seconds.checked_mul(1000)?)?.checked_add(thousandths)?;
    }
    // What does not fit into a timestamp is no age.
    i64::try_from(millis).ok()?;
    Some(Duration::from_millis(millis))
}

/// The settings of all share groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShareGroupSettings {
    pub members_max: i32,
    /// Share sessions of the broker.
    pub sessions_max: i32,
    pub defaults: ShareGroupConfig,
    bounds: Vec<Bound>,
}

/// The least and the greatest value of a group's own setting.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Bound {
    name: &'static str,
    min: i64,
    max: i64,
}

/// The settings of one share group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareGroupConfig {
    pub session_timeout_ms: i32,
    pub heartbeat_interval_ms: i32,
    pub lock_duration_ms: i32,
    pub delivery_count_max: i32,
    /// Records of one partition that may be under way.
    pub record_locks_max: i32,
    pub reset: ShareReset,
    pub reads_committed: bool,
    pub renews_locks: bool,
}

/// Names of a number, its least and its greatest value.
pub(super) const BOUNDED: &[[&str; 3]] = &[
    [
        "group.share.session.timeout.ms",
        "group.share.min.session.timeout.ms",
        "group.share.max.session.timeout.ms",
    ],
    [
        "group.share.heartbeat.interval.ms",
        "group.share.min.heartbeat.interval.ms",
        "group.share.max.heartbeat.interval.ms",
    ],
    [
        "group.share.record.lock.duration.ms",
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ],
    [
        "group.share.delivery.count.limit",
        "group.share.min.delivery.count.limit",
        "group.share.max.delivery.count.limit",
    ],
    [
        "group.share.partition.max.record.locks",
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ],
];

/// What an empty file says.
impl Default for ShareGroupSettings {
    fn default() -> Self {
        Self::new(&Settings::default())
    }
}

impl ShareGroupSettings {
    pub(super) fn new(s: &Settings) -> Self {
        let reset = group::find("share.auto.offset.reset").and_then(|config| config.definition.default);
        let bounds = BOUNDED.iter().map(|[name, min, max]| Bound {
            name: name.strip_prefix("group.").expect("all of them are properties of groups"),
            min: s.integer(min),
            max: s.integer(max),
        });
        Self {
            members_max: s.number("group.share.max.size"),
            sessions_max: s.number("group.share.max.share.sessions"),
            defaults: ShareGroupConfig {
                session_timeout_ms: s.number("group.share.session.timeout.ms"),
                heartbeat_interval_ms: s.number("group.share.heartbeat.interval.ms"),
                lock_duration_ms: s.number("group.share.record.lock.duration.ms"),
                delivery_count_max: s.number("group.share.delivery.count.limit"),
                record_locks_max: s.number("group.share.partition.max.record.locks"),
                reset: reset.and_then(ShareReset::parse).expect("the table's own default"),
                reads_committed: false,
                renews_locks: true,
            },
            bounds: bounds.collect(),
        }
    }

    /// The settings of a group with these values of its own. A value beyond the broker's bounds counts as the bound:
    /// the bounds may have been changed since.
    pub fn of_group(&self, own: &Overrides) -> ShareGroupConfig {
        let mut config = self.defaults;
        for (name, text) in own {
            let Some(value) = group::find(name).and_then(|config| config.definition.parse(text).ok()) else {
                continue;
            };
            let number = |number: i64| {
                let bound = self.bounds.iter().find(|bound| bound.name == name);
                let number = bound.map_or(number, |bound| number.max(bound.min).min(bound.max));
                i32::try_from(number).unwrap_or(i32::MAX)
            };
            match (name.as_str(), value) {
                ("share.session.timeout.ms", Value::Integer(ms)) => config.session_timeout_ms = number(ms),
                ("share.heartbeat.interval.ms", Value::Integer(ms)) => {
                    config.heartbeat_interval_ms = number(ms);
                }
                ("share.record.lock.duration.ms", Value::Integer(ms)) => {
                    config.lock_duration_ms = number(ms);
                }
                ("share.delivery.count.limit", Value::Integer(count)) => {
                    config.delivery_count_max = number(count);
                }
                ("share.partition.max.record.locks", Value::Integer(count)) => {
                    config.record_locks_max = number(count);
                }
                ("share.auto.offset.reset", Value::String(text)) => {
                    config.reset = ShareReset::parse(&text).unwrap_or(config.reset);
                }
                ("share.isolation.level", Value::String(text)) => {
                    config.reads_committed = text == "read_committed";
                }
                ("share.renew.acknowledge.enable", Value::Boolean(flag)) => config.renews_locks = flag,
                _ => {}
            }
        }
        config
    }
}

/// The settings of the share coordinator and of its topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShareStateSettings {
    pub topic_partitions: i32,
    pub topic_replication_factor: i16,
    pub topic_segment_bytes: i32,
    pub topic_in_sync_replicas_min: i32,
    pub updates_per_snapshot: i32,
    pub write_timeout: Duration,
    /// How long records wait for others to share a batch with, if at all.
    pub append_linger: Option<Duration>,
    /// How often the topic is cut off where nobody needs it any more.
    pub prune_interval: Duration,
    /// A snapshot as old as this is made anew, so that the topic can be cut off behind it.
    pub cold_interval: Duration,
}

impl ShareStateSettings {
    pub(super) fn new(s: &Settings) -> Self {
        let duration = |name: &str| Duration::from_millis(s.number(name));
        Self {
            topic_partitions: s.number("share.coordinator.state.topic.num.partitions"),
            topic_replication_factor: s.number("share.coordinator.state.topic.replication.factor"),
            topic_segment_bytes: s.number("share.coordinator.state.topic.segment.bytes"),
            topic_in_sync_replicas_min: s.number("share.coordinator.state.topic.min.isr"),
            updates_per_snapshot: s.number("share.coordinator.snapshot.update.records.per.snapshot"),
            write_timeout: duration("share.coordinator.write.timeout.ms"),
            append_linger: s.linger("share.coordinator.append.linger.ms"),
            prune_interval: duration("share.coordinator.state.topic.prune.interval.ms"),
            cold_interval: duration("share.coordinator.cold.partition.snapshot.interval.ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_a_word_or_an_age_as_java_reads_it() {
        let by = |ms| Some(ShareReset::ByDuration(Duration::from_millis(ms)));
        for (text, expected) in [
            ("earliest", Some(ShareReset::Earliest)),
            ("latest", Some(ShareReset::Latest)),
            ("by_duration:PT1H", by(3_600_000)),
            ("by_duration:p1dt2h3m4.5s", by(86_400_000 + 7_200_000 + 180_000 + 4_500)),
            ("by_duration:P2D", by(172_800_000)),
            ("by_duration:PT0.001S", by(1)),
            ("by_duration:PT", None),
            ("by_duration:P", None),
            ("by_duration:P1DT", None),
            ("by_duration:-PT1H", None),
            ("by_duration:PT-1H", None),
            ("by_duration:PT1S2M", None),
            ("by_duration:P99999999999999999999D", None),
            ("by_duration:", None),
            ("none", None),
        ] {
            assert_eq!(ShareReset::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn a_groups_own_values_win_within_the_brokers_bounds() {
        let settings = ShareGroupSettings::new(&Settings::default());
        assert_eq!(settings.of_group(&Overrides::new()), settings.defaults);
        assert_eq!((settings.members_max, settings.defaults.reset), (200, ShareReset::Latest));
        let own = [
            ("share.auto.offset.reset", "earliest"),
            ("share.isolation.level", "read_committed"),
            ("share.record.lock.duration.ms", "20000"),
            ("share.delivery.count.limit", "100"),
            ("share.partition.max.record.locks", "100000"),
            ("share.renew.acknowledge.enable", "false"),
            ("consumer.session.timeout.ms", "1"),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = settings.of_group(&Overrides::from(own));
        assert_eq!(
            (config.reset, config.reads_committed, config.renews_locks),
            (ShareReset::Earliest, true, false)
        );
        assert_eq!(
            (config.lock_duration_ms, config.delivery_count_max, config.record_locks_max),
            (20_000, 10, 4000)
        );
    }
}
