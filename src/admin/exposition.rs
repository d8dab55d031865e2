//! Prometheus' text format, version 0.0.4: every family once, with its HELP and TYPE, its series together.

use std::collections::HashMap;
use std::fmt::{Display, Write as _};

use crate::base::{BOUNDS_NS, Family, Kind, Recorded};

/// The Content-Type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text in the making.
pub struct Exposition {
    families: Vec<(&'static Family, String)>,
    by_name: HashMap<&'static str, usize>,
}

impl Exposition {
    /// Announces `families`, in this order; those without a series are told too.
    pub fn new(families: Vec<&'static Family>) -> Self {
        let by_name = families.iter().enumerate().map(|(index, family)| (family.name, index)).collect();
        Self { families: families.into_iter().map(|family| (family, String::new())).collect(), by_name }
    }

    /// One series; the labels' values in the order of the family's names.
    ///
    /// # Panics
    /// When the family was not announced, or has other labels.
    pub fn add(&mut self, family: &'static Family, labels: &[&str], value: impl Display) {
        let text = self.lines_of(family);
        series(text, family, "", labels, None);
        let _ = writeln!(text, " {value}");
    }

    /// The series of a histogram.
    ///
    /// # Panics
    /// As [`Exposition::add`].
    pub fn add_histogram(&mut self, family: &'static Family, labels: &[&str], recorded: &Recorded) {
        assert_eq!(family.kind, Kind::Histogram, "{}", family.name);
        let text = self.lines_of(family);
        let mut count = 0;
        for (place, in_bucket) in recorded.buckets.iter().enumerate() {
            count += in_bucket;
            let bound = BOUNDS_NS.get(place).map_or("+Inf".to_owned(), |bound| seconds(*bound).to_string());
            series(text, family, "_bucket", labels, Some(&bound));
            let _ = writeln!(text, " {count}");
        }
        series(text, family, "_sum", labels, None);
        let _ = writeln!(text, " {}", seconds(recorded.sum_ns));
        series(text, family, "_count", labels, None);
        let _ = writeln!(text, " {count}");
    }

    /// The whole text.
    pub fn finish(self) -> String {
        let mut text = String::new();
        for (family, series) in self.families {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let help = family.help.trim_start().replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(text, "# HELP {} {help}\n# TYPE {} {kind}", family.name, family.name);
            text.push_str(&series);
        }
        text
    }

    fn lines_of(&mut self, family: &'static Family) -> &mut String {
        match self.by_name.get(family.name) {
            Some(index) => &mut self.families[*index].1,
            None => panic!("{} is in no list of families", family.name),
        }
    }
}

/// ns as seconds: exact enough for a sum of years.
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn series(text: &mut String, family: &Family, suffix: &str, labels: &[&str], bound: Option<&str>) {
    assert_eq!(family.labels.len(), labels.len(), "the labels of {}", family.name);
    text.push_str(family.name);
    text.push_str(suffix);
    let pairs = family.labels.iter().copied().zip(labels.iter().copied());
    let mut separator = '{';
    for (name, value) in pairs.chain(bound.map(|bound| ("le", bound))) {
        let _ = write!(text, "{separator}{name}=\"");
        for letter in value.chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
        separator = ',';
    }
    if separator == ',' {
        text.push('}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static ROOMS: Family =
        Family { name: "rooms", kind: Kind::Gauge, labels: &["house", "floor"], help: " Rooms.\\" };
    static WAIT: Family = Family { name: "wait_seconds", kind: Kind::Histogram, labels: &[], help: "Wait." };

    #[test]
    fn a_family_is_told_once_with_all_its_series() {
        let mut text = Exposition::new(vec![&ROOMS, &WAIT]);
        text.add(&ROOMS, &["a\"b\\c\nd", "1"], 3);
        text.add(&ROOMS, &["x", "2"], 0.5);
        let text = text.finish();
        assert_eq!(
            text,
            "# HELP rooms Rooms.\\\\\n# TYPE rooms gauge\n\
             rooms{house=\"a\\\"b\\\\c\\nd\",floor=\"1\"} 3\nrooms{house=\"x\",floor=\"2\"} 0.5\n\
             # HELP wait_seconds Wait.\n# TYPE wait_seconds histogram\n"
        );
    }

    #[test]
    fn buckets_are_cumulative_and_in_seconds() {
        let mut recorded = Recorded { sum_ns: 1_500_000_000, ..Recorded::default() };
        recorded.buckets[0] = 2;
        recorded.buckets[BOUNDS_NS.len()] = 1;
        let mut text = Exposition::new(vec![&WAIT]);
        text.add_histogram(&WAIT, &[], &recorded);
        let text = text.finish();
        assert!(text.contains("\nwait_seconds_bucket{le=\"0.00005\"} 2\n"), "{text}");
        assert!(text.contains("\nwait_seconds_bucket{le=\"0.0001\"} 2\n"), "{text}");
        assert!(text.contains("\nwait_seconds_bucket{le=\"10\"} 2\n"), "{text}");
        assert!(text.ends_with("{le=\"+Inf\"} 3\nwait_seconds_sum 1.5\nwait_seconds_count 3\n"), "{text}");
    }
}
