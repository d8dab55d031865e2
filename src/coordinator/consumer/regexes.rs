//! Subscriptions by regular expression. Clients write RE2's language; the `regex` crate's differs in a few places,
//! which [`translate`] bridges.

use std::collections::BTreeSet;

use kafka_protocol::protocol::StrBytes;
use regex::{Regex, RegexBuilder};

use crate::metadata::Image;

/// Different expressions that the members of one group may subscribe to.
pub(super) const EXPRESSIONS_MAX: usize = 100;
/// How many are matched again in one turn.
pub(super) const REFRESHED_MAX: usize = 8;
/// The names that one expression may stand for, and those that one turn writes: well below the smallest batch limit
/// in use.
pub(super) const RESOLVED_BYTES_MAX: usize = 256 << 10;
/// A longer expression is refused.
const REGEX_BYTES_MAX: usize = 1 << 10;
/// The program that an expression compiles to, and the cache of matching it.
const REGEX_PROGRAM_BYTES_MAX: usize = 256 << 10;
const REGEX_NESTING_MAX: u32 = 100;
/// RE2's bound on counted repetitions.
const REPETITIONS_MAX: u32 = 1000;

/// The expression compiled to match whole names, or what is wrong with it.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > REGEX_BYTES_MAX {
        return Err(format!("longer than {REGEX_BYTES_MAX} bytes"));
    }
    let translated = translate(pattern)?;
    RegexBuilder::new(&format!(r"\A(?:{translated})\z"))
        .size_limit(REGEX_PROGRAM_BYTES_MAX)
        .dfa_size_limit(REGEX_PROGRAM_BYTES_MAX)
        .nest_limit(REGEX_NESTING_MAX)
        .build()
        .map_err(|error| reason(&error))
}

/// The names of the topics that match as a whole, if one record holds them with room to spare.
pub(super) fn matching(pattern: &Regex, image: &Image) -> Result<BTreeSet<StrBytes>, String> {
    let mut matching = BTreeSet::new();
    let mut bytes = 0;
    for topic in image.topics().filter(|topic| pattern.is_match(&topic.name)) {
        bytes += topic.name.len();
        if bytes > RESOLVED_BYTES_MAX {
            return Err(format!(
                "it stands for topics whose names are longer than {RESOLVED_BYTES_MAX} bytes"
            ));
        }
        matching.insert(StrBytes::from_string(topic.name.to_string()));
    }
    Ok(matching)
}

/// The beginnings of the crate's reasons and RE2's words for them.
const REASONS: &[(&str, &str)] = &[
    ("unclosed group", "missing closing )"),
    ("unopened group", "regexp/syntax: internal error"),
    ("unclosed character class", "missing closing ]"),
    ("invalid character class range", "invalid character class range"),
    ("repetition operator missing expression", "missing argument to repetition operator"),
    ("invalid repetition count range", "invalid repeat count"),
    ("unrecognized escape sequence", "invalid escape sequence"),
    ("backreferences are not supported", "invalid escape sequence"),
    ("look-around", "invalid or unsupported Perl syntax"),
    ("unrecognized flag", "invalid or unsupported Perl syntax"),
];

/// The last line of the crate's message, which for a syntax error draws the pattern first, in RE2's words if it
/// has some.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    let last = last.trim().trim_start_matches("error: ");
    let known = REASONS.iter().find(|(ours, _)| last.starts_with(ours));
    known.map_or(last, |(_, theirs)| theirs).to_owned()
}

/// Brings RE2's language to the crate's: quoting by `\Q…\E`, and no set operations in classes. Refuses what only
/// the crate takes, and a group that is closed but was not opened: with something around it `a)(b` would do.
fn translate(pattern: &str) -> Result<String, String> {
    let mut translated = String::with_capacity(pattern.len());
    let mut rest = pattern;
    // Whether a repetition ended just here, and whether it may still be made lazy.
    let mut repeated = Repeated::No;
    let mut open_groups = 0u32;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '\\' if rest.starts_with(r"\Q") => {
                let end = rest.find(r"\E").unwrap_or(rest.len());
                translated.push_str(&regex::escape(&rest[2..end]));
                (end + 2).min(rest.len())
            }
            '\\' => {
                let escaped = rest.chars().nth(1).map_or(0, char::len_utf8);
                translated.push_str(&rest[..1 + escaped]);
                1 + escaped
            }
            '[' => class(rest, &mut translated)?,
            _ => {
                match first {
                    '(' => {
                        check_flags(rest)?;
                        open_groups += 1;
                    }
                    ')' => {
                        open_groups = open_groups.checked_sub(1).ok_or("regexp/syntax: internal error")?;
                    }
                    _ => {}
                }
                let taken = repetition(rest)?;
                let taken = if taken > 0 {
                    repeated = repeated.again(first)?;
                    translated.push_str(&rest[..taken]);
                    rest = &rest[taken..];
                    continue;
                } else {
                    first.len_utf8()
                };
                translated.push(first);
                taken
            }
        };
        repeated = Repeated::No;
        rest = &rest[taken..];
    }
    Ok(translated)
}

/// Refuses flags that RE2 has not; with the crate's `x` a parenthesis may be part of a comment.
fn check_flags(group: &str) -> Result<(), String> {
    let Some(flags) = group.strip_prefix("(?") else { return Ok(()) };
    let mut flags =
        flags.chars().take_while(|letter| letter.is_ascii_alphabetic() || *letter == '-').peekable();
    // A name: `(?P<name>`.
    let is_name = flags.peek() == Some(&'P');
    match is_name || flags.all(|flag| "imsU-".contains(flag)) {
        true => Ok(()),
        false => Err("invalid or unsupported Perl syntax".to_owned()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeated {
    No,
    Greedy,
    Lazy,
}

impl Repeated {
    fn again(self, operator: char) -> Result<Repeated, String> {
        match (self, operator) {
            (Repeated::No, _) => Ok(Repeated::Greedy),
            (Repeated::Greedy, '?') => Ok(Repeated::Lazy),
            _ => Err("invalid nested repetition operator".to_owned()),
        }
    }
}

/// The length of the repetition operator that the text begins with, 0 if it is none.
fn repetition(text: &str) -> Result<usize, String> {
    match text.as_bytes().first() {
        // `(?` is not one.
        Some(b'*' | b'+' | b'?') => Ok(1),
        Some(b'{') => {
            let Some(end) = text.find('}') else { return Ok(0) };
            let counts = text[1..end].split(',');
            for count in counts.filter(|count| !count.is_empty()) {
                match count.parse::<u32>() {
                    Ok(0..=REPETITIONS_MAX) => {}
                    Ok(_) => return Err("invalid repeat count".to_owned()),
                    Err(_) => return Ok(0),
                }
            }
            Ok(end + 1)
        }
        _ => Ok(0),
    }
}

/// Copies a class; what stands for an operation on sets in the crate is escaped. Returns its length.
fn class(text: &str, translated: &mut String) -> Result<usize, String> {
    let unclosed = || "missing closing ]".to_owned();
    let mut at = 1;
    translated.push('[');
    if text[at..].starts_with('^') {
        translated.push('^');
        at += 1;
    }
    let first = at;
    loop {
        let rest = &text[at..];
        let next = rest.chars().next().ok_or_else(unclosed)?;
        match next {
            ']' if at > first => {
                translated.push(']');
                return Ok(at + 1);
            }
            '[' if rest.starts_with("[:") && rest.contains(":]") => {
                let end = rest.find(":]").ok_or_else(unclosed)? + 2;
                translated.push_str(&rest[..end]);
                at += end;
            }
            '\\' => {
                let escaped = rest.chars().nth(1).ok_or_else(unclosed)?.len_utf8();
                translated.push_str(&rest[..1 + escaped]);
                at += 1 + escaped;
            }
            '[' | ']' | '&' | '~' => {
                translated.push('\\');
                translated.push(next);
                at += 1;
            }
            _ => {
                translated.push(next);
                at += next.len_utf8();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What re2j 1.8, which Kafka 4.4 uses, takes and refuses.
    #[test]
    fn expressions_are_taken_and_refused_as_by_re2() {
        for pattern in
            ["", "a.*", "(?<n>x)", r"\Qa.b\E", "[a&&b]", "(?:a|b)+?", "a{2,3}", "[]a]", "[[:alpha:]_]"]
        {
            assert!(compile(pattern).is_ok(), "{pattern}: {:?}", compile(pattern));
        }
        for (pattern, reason) in [
            ("(", "missing closing )"),
            ("a)(b", "regexp/syntax: internal error"),
            ("[z-a]", "invalid character class range"),
            ("a{1001}", "invalid repeat count"),
            ("*", "missing argument to repetition operator"),
            ("a**", "invalid nested repetition operator"),
            (r"\C", "invalid escape sequence"),
            ("(?=x)", "invalid or unsupported Perl syntax"),
            ("x{2,1}", "invalid repeat count"),
            (r"\8", "invalid escape sequence"),
            ("[a", "missing closing ]"),
            ("(?x)a#)", "invalid or unsupported Perl syntax"),
        ] {
            assert_eq!(compile(pattern).map(|_| ()), Err(reason.to_owned()), "{pattern}");
        }
        assert!(compile(&"a".repeat(REGEX_BYTES_MAX + 1)).is_err());
        assert!(compile("((a{1000}){1000}){1000}").is_err());
    }

    #[test]
    fn names_match_as_a_whole() {
        let matches = |pattern: &str, name: &str| compile(pattern).expect(pattern).is_match(name);
        assert!(matches("orders", "orders"));
        assert!(!matches("orders", "my-orders"));
        assert!(!matches("a|b", "ab"));
        assert!(matches(r"\Qa.b\E", "a.b") && !matches(r"\Qa.b\E", "axb"));
        assert!(matches("[a&&b]", "a") && matches("[a&&b]", "b"));
        assert!(matches("(?i)ORDERS", "orders"));
        assert!(matches("", ""));
    }
}
