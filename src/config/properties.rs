//! Reads the text of a Java `.properties` file (`java.util.Properties.load`): comments, continuation
//! lines, escapes, the three separators. Keeps the line of each value, so that an error can name it.
//! Opens nothing: the text is given.

/// One assignment of the file, in file order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Property {
    pub name: String,
    pub value: String,
    /// The line where the name stands; the first is 1.
    pub line: usize,
}

/// The text is not a properties file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct MalformedProperties {
    pub line: usize,
    pub reason: &'static str,
}

/// Parses the whole text. Duplicates are all returned; the last one counts.
pub fn parse(text: &str) -> Result<Vec<Property>, MalformedProperties> {
    let mut properties = Vec::new();
    let mut lines = number_lines(text);
    while let Some((line, first)) = lines.next() {
        let first = first.trim_start_matches(BLANK);
        // A lone backslash continues nothing: the next line begins afresh.
        if first.is_empty() || first == "\\" || first.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = first.to_owned();
        while ends_in_continuation(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, more)) => logical.push_str(more.trim_start_matches(BLANK)),
                None => break,
            }
        }
        properties.push(split(&logical, line)?);
    }
    Ok(properties)
}

const BLANK: [char; 3] = [' ', '\t', '\u{c}'];

/// The natural lines with their numbers; `\n`, `\r\n` and a lone `\r` end one.
fn number_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = Some(text);
    let mut number = 0;
    std::iter::from_fn(move || {
        let text = rest?;
        number += 1;
        match text.find(['\n', '\r']) {
            Some(end) => {
                let width = if text[end..].starts_with("\r\n") { 2 } else { 1 };
                rest = Some(&text[end + width..]);
                Some((number, &text[..end]))
            }
            None => {
                rest = None;
                Some((number, text))
            }
        }
    })
}

/// An odd number of backslashes at the end joins the next line.
fn ends_in_continuation(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Splits a logical line at the first separator that is not escaped.
fn split(logical: &str, line: usize) -> Result<Property, MalformedProperties> {
    let mut escaped = false;
    let mut name_end = logical.len();
    for (position, letter) in logical.char_indices() {
        if escaped {
            escaped = false;
        } else if letter == '\\' {
            escaped = true;
        } else if letter == '=' || letter == ':' || BLANK.contains(&letter) {
            name_end = position;
            break;
        }
    }
    let (name, rest) = logical.split_at(name_end);
    let rest = rest.trim_start_matches(BLANK);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(BLANK);
    Ok(Property { name: unescape(name, line)?, value: unescape(value, line)?, line })
}

/// Resolves backslash escapes; `\uXXXX` is a UTF-16 unit, so two of them can make one letter.
fn unescape(text: &str, line: usize) -> Result<String, MalformedProperties> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let plain = match letter {
            '\\' => match letters.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some('u') => {
                    let digits: String = letters.by_ref().take(4).collect();
                    let unit = match digits.len() {
                        4 => u16::from_str_radix(&digits, 16).ok(),
                        _ => None,
                    };
                    let reason = "\\u wants four hexadecimal digits";
                    units.push(unit.ok_or(MalformedProperties { line, reason })?);
                    continue;
                }
                Some(other) => other,
                None => break,
            },
            other => other,
        };
        let mut buffer = [0; 2];
        units.extend_from_slice(plain.encode_utf16(&mut buffer));
    }
    String::from_utf16(&units)
        .map_err(|_| MalformedProperties { line, reason: "\\u escapes that make half a letter" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap().into_iter().map(|property| (property.name, property.value)).collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn equals_colon_and_blank_separate_a_name_from_its_value() {
        let read = pairs("a=1\nb:2\nc 3\nd = 4\n  e\t:  5\nf\n");
        let wanted = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5"), ("f", "")];
        assert_eq!(read, wanted.map(|(name, value)| pair(name, value)));
    }

    #[test]
    fn comments_and_blank_lines_are_skipped_and_only_at_line_start() {
        assert_eq!(pairs("# one\n\n  ! two\na=1 # no comment\n"), [pair("a", "1 # no comment")]);
    }

    #[test]
    fn a_backslash_at_the_end_joins_the_next_line_without_its_indent() {
        assert_eq!(
            pairs("a=1,\\\n    2,\\\n  3\nb=x\\\\\nc=1"),
            [pair("a", "1,2,3"), pair("b", "x\\"), pair("c", "1")]
        );
    }

    #[test]
    fn a_comment_is_not_continued_and_a_continued_line_may_look_like_one() {
        assert_eq!(pairs("# c \\\na=1\\\n#2\n"), [pair("a", "1#2")]);
    }

    #[test]
    fn a_lone_backslash_continues_nothing() {
        assert_eq!(pairs("\\\n\na=1\n  \\\n# c\nb=2"), [pair("a", "1"), pair("b", "2")]);
    }

    #[test]
    fn escapes_are_resolved_in_names_and_values() {
        assert_eq!(pairs("a\\ b\\:c=x\\ty\\u00e9\\q"), [pair("a b:c", "x\tyéq")]);
        assert_eq!(pairs("a=\\ud83d\\ude00"), [pair("a", "😀")]);
    }

    #[test]
    fn a_broken_unicode_escape_names_its_line() {
        assert_eq!(parse("a=1\nb=\\u00g1").unwrap_err().line, 2);
        assert_eq!(parse("a=\\u12").unwrap_err().line, 1);
        assert_eq!(parse("a=\\ud83d").unwrap_err().line, 1);
    }

    #[test]
    fn lines_are_counted_whatever_ends_them() {
        let lines =
            |text: &str| parse(text).unwrap().iter().map(|property| property.line).collect::<Vec<_>>();
        assert_eq!(lines("\na=1\n\nb=2\\\n3\nc=4"), [2, 4, 6]);
        assert_eq!(lines("\r\na=1\r\n\r\nb=2\\\r\n  3\r\nc=4"), [2, 4, 6]);
        assert_eq!(pairs("b=2\\\r\n  3\r\n"), [pair("b", "23")]);
    }

    #[test]
    fn trailing_blanks_stay_as_in_java() {
        assert_eq!(pairs("a=1  "), [pair("a", "1  ")]);
    }
}
