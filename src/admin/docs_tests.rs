//! `docs/METRICS.md` and `docs/LIMITS.md` against the code. `KURING_WRITE_DOCS=1 cargo test --lib docs_tests` writes the two tables anew.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::names::{families, limits};
use crate::base::Kind;
use crate::config;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/METRICS.md");
const LIMITS_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/LIMITS.md");

fn metrics_table() -> String {
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for family in families() {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, help) = (family.name, family.help.trim_start());
        let _ = writeln!(table, "| `{name}` | {kind} | {} | {help} |", labels.join(" "));
    }
    table
}

fn limits_table() -> String {
    let mut table = "| limit | a hit is |\n|---|---|\n".to_owned();
    for (name, help) in limits() {
        let _ = writeln!(table, "| `{name}` | {help} |");
    }
    table
}

/// `text` with what stands between the two comments that name `part` replaced.
fn with_part(text: &str, part: &str, table: &str) -> String {
    let (begin, end) = (format!("<!-- {part} -->\n"), format!("<!-- end of {part} -->"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no {end}"));
    format!("{before}{begin}{table}{end}{after}")
}

#[test]
fn the_document_lists_exactly_what_is_exported() {
    let text = std::fs::read_to_string(PATH).unwrap();
    let wanted = with_part(&with_part(&text, "metrics", &metrics_table()), "limits", &limits_table());
    if std::env::var_os("KURING_WRITE_DOCS").is_some() {
        std::fs::write(PATH, &wanted).unwrap();
    }
    let now = std::fs::read_to_string(PATH).unwrap();
    assert!(now == wanted, "docs/METRICS.md is out of date: KURING_WRITE_DOCS=1 cargo test --lib docs_tests");
}

#[test]
fn every_metric_that_the_document_names_exists() {
    let text = std::fs::read_to_string(PATH).unwrap();
    let names: Vec<&str> = families().iter().map(|family| family.name).collect();
    for word in text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')) {
        // `kuring_…_total` stands for a name to be given.
        let is_name = word.starts_with("kuring_") || word.starts_with("process_");
        if is_name && !word.ends_with('_') {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix));
            assert!(names.contains(&word) || base.is_some_and(|base| names.contains(&base)), "{word}");
        }
    }
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Value and file of each constant of that name under `src/`.
fn constants(name: &str) -> Vec<(Option<u64>, PathBuf)> {
    let (mut found, mut folders) =
        (Vec::new(), vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let declared = text.lines().filter_map(|line| {
                    let (_, rest) = line.split_once(&format!("const {name}: "))?;
                    Some(number(rest.split_once(" = ")?.1.trim_end_matches(';')))
                });
                found.extend(declared.map(|value| (value, path.clone())));
            }
        }
    }
    found
}

/// A number as the code or a document has it; times in ms.
fn number(text: &str) -> Option<u64> {
    let calls = [("Duration::from_millis(", 1), ("Duration::from_secs(", 1000)];
    let units = [(" KiB", 1 << 10), (" MiB", 1 << 20)];
    for (call, ms) in calls {
        if let Some(inner) = text.strip_prefix(call) {
            return Some(number(inner.strip_suffix(')')?)? * ms);
        }
    }
    for (unit, bytes) in units {
        if let Some(count) = text.strip_suffix(unit) {
            return Some(number(count)? * bytes);
        }
    }
    match text.split_once(" << ") {
        Some((left, right)) => Some(number(left)? << number(right)?),
        None => text.replace('_', "").parse().ok(),
    }
}

#[test]
fn every_constant_among_the_limits_is_in_the_code_with_its_value() {
    let text = std::fs::read_to_string(LIMITS_PATH).unwrap();
    let is_constant = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let mut count = 0;
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (files, names): (Vec<&str>, Vec<&str>) = quoted(cells[0]).partition(|word| word.ends_with(".rs"));
        for (name, default) in
            names.into_iter().zip(cells[1].split(", ")).filter(|(name, _)| is_constant(name))
        {
            let found = constants(name);
            let is_so = found.iter().any(|(value, path)| {
                *value == number(default) && files.iter().all(|file| path.ends_with(file))
            });
            assert!(is_so && number(default).is_some(), "{name} is {default}? {found:?}");
            count += 1;
        }
    }
    assert!(count > 20, "only {count}");
}

#[test]
fn every_limit_has_a_name_its_default_and_a_counter() {
    let text = std::fs::read_to_string(LIMITS_PATH).unwrap();
    let mut uncounted: Vec<&str> = limits().iter().map(|(name, _)| *name).collect();
    let metrics: Vec<&str> = families().iter().map(|family| family.name).collect();
    let is_property =
        |name: &str| name.contains('.') && name.chars().all(|c| c.is_ascii_lowercase() || c == '.');
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [names, defaults, _unit, _hit, counters] = cells[..] else { panic!("{row}") };
        if names == "name" {
            continue;
        }
        assert!(!counters.is_empty() && (names.is_empty() || !defaults.is_empty()), "{row}");
        for counter in quoted(counters) {
            let is_limit = limits().iter().any(|(name, _)| *name == counter);
            assert!(is_limit || metrics.contains(&counter), "{counter}");
            uncounted.retain(|name| *name != counter);
        }
        for (name, default) in quoted(names).filter(|name| is_property(name)).zip(defaults.split(", ")) {
            let value = config::default_value(name).unwrap_or_else(|| panic!("{name} is no property"));
            let expected = if default == "empty" { "" } else { default };
            assert_eq!(value.to_string(), expected, "{name}");
        }
    }
    assert!(uncounted.is_empty(), "not in docs/LIMITS.md: {uncounted:?}");
}

#[test]
fn names_follow_prometheus_rules() {
    let mut seen = std::collections::HashSet::new();
    for family in families() {
        let name = family.name;
        assert!(seen.insert(name), "{name} is declared twice");
        assert_eq!(name.ends_with("_total"), family.kind == Kind::Counter, "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        assert!(!family.help.trim().is_empty() && family.help.trim_end().ends_with('.'), "{name}");
        assert!(family.kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
    }
    let mut limits: Vec<&str> = limits().iter().map(|(name, _)| *name).collect();
    limits.dedup();
    assert_eq!(limits.len(), super::names::limits().len(), "a limit is declared twice");
}
