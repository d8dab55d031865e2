//! The rules of the tree that a compiler does not check: which module may use which, where `unsafe` and the
//! runtime may be named, how long a file may be. Each test lists every place that breaks its rule.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 800;
const MAIN_LINES_MAX: usize = 10;

struct Source {
    /// Relative to the package, with `/`.
    path: String,
    text: String,
    /// `text` with comments, strings and character literals blanked, line by line the same length.
    code: String,
}

impl Source {
    fn is_under(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    }

    /// `log` for `src/log/segment.rs` and `src/log.rs`, nothing for `src/lib.rs` and `src/main.rs`.
    fn module(&self) -> Option<&str> {
        let below = self.path.strip_prefix("src/")?;
        match below.split_once('/') {
            Some((module, _)) => Some(module),
            None => below.strip_suffix(".rs").filter(|name| !matches!(*name, "lib" | "main")),
        }
    }

    /// How many `super` lead from this file's own module to the crate's root.
    fn depth(&self) -> usize {
        let below = self.path.strip_prefix("src/").unwrap_or(&self.path);
        let parts = below.split('/').count();
        match below {
            _ if below.ends_with("/mod.rs") => parts - 1,
            // `x_tests.rs` is the module `x::tests`, included by its path.
            _ if below.ends_with("_tests.rs") => parts + 1,
            _ => parts,
        }
    }

    /// The tests of one module in a file beside it.
    fn is_tests(&self) -> bool {
        self.path.starts_with("src/")
            && (self.path.ends_with("/tests.rs") || self.path.ends_with("_tests.rs"))
    }
}

#[test]
fn a_module_uses_only_those_above_it() {
    let sources = rust_sources(&["src"]);
    let order = module_order(&sources);
    let rank = |module: &str| order.iter().position(|name| name == module);
    let mut broken = Broken::default();
    for source in &sources {
        let Some(module) = source.module() else { continue };
        let Some(own) = rank(module) else {
            broken.add(&source.path, 1, format!("module `{module}` is not in the list of src/lib.rs"));
            continue;
        };
        for (line, name) in crate_paths(&source.code) {
            if rank(&name).is_some_and(|other| other > own) {
                broken.add(
                    &source.path,
                    line,
                    format!("`{module}` uses `crate::{name}`, which stands below it in src/lib.rs"),
                );
            }
        }
        for (line, supers) in super_chains(&source.code) {
            if supers >= source.depth() && !is_inside_inline_module(&source.code, line) {
                broken.add(
                    &source.path,
                    line,
                    "`super` reaches the crate's root: write `crate::module`".to_string(),
                );
            }
        }
    }
    broken.check();
}

#[test]
fn every_module_of_the_tree_is_declared_in_lib_rs() {
    let sources = rust_sources(&["src"]);
    let order = module_order(&sources);
    assert!(order.len() > 10, "src/lib.rs declares only {order:?}: has the format of the list changed?");
    for module in &order {
        assert!(
            sources.iter().any(|source| source.module() == Some(module)),
            "src/lib.rs declares `{module}`, which has no file"
        );
    }
}

#[test]
fn unsafe_stays_in_io() {
    let mut broken = Broken::default();
    for source in rust_sources(&["src", "tests", "benches", "fuzz"]) {
        if source.is_under("src/io") {
            continue;
        }
        for line in lines_with_word(&source.code, "unsafe") {
            broken.add(&source.path, line, "`unsafe` outside src/io".to_string());
        }
    }
    broken.check();
}

#[test]
fn only_io_and_shard_name_the_runtime() {
    let mut broken = Broken::default();
    for source in rust_sources(&["src"]) {
        if source.is_under("src/io") || source.is_under("src/shard") {
            continue;
        }
        for line in lines_with_word(&source.code, "glommio") {
            broken.add(&source.path, line, "`glommio` outside src/io and src/shard".to_string());
        }
    }
    broken.check();
}

#[test]
fn files_stay_short() {
    let mut broken = Broken::default();
    for source in rust_sources(&["src", "tests", "benches", "fuzz"]) {
        let lines = source.text.lines().count();
        let limit = if source.path == "src/main.rs" { MAIN_LINES_MAX } else { LINES_MAX };
        if lines > limit {
            broken.add(&source.path, lines, format!("{lines} lines, the limit is {limit}: split it"));
        }
    }
    broken.check();
}

#[test]
fn every_module_says_what_it_is_for() {
    let mut broken = Broken::default();
    for source in rust_sources(&["src", "tests", "benches", "fuzz"]) {
        if source.path != "src/main.rs" && !source.is_tests() && !source.text.starts_with("//! ") {
            broken.add(&source.path, 1, "does not start with a `//!` header".to_string());
        }
    }
    broken.check();
}

#[test]
fn nothing_is_left_unfinished_or_silenced() {
    const FORBIDDEN: [&str; 7] = [
        "todo!",
        "unimplemented!",
        "dbg!",
        "allow(dead_code",
        "allow(unused",
        "allow(clippy::all",
        "#[ignore",
    ];
    let mut broken = Broken::default();
    for source in rust_sources(&["src", "tests", "benches", "fuzz"]) {
        for (index, line) in source.code.lines().enumerate() {
            for forbidden in FORBIDDEN.iter().filter(|forbidden| line.contains(*forbidden)) {
                broken.add(&source.path, index + 1, format!("`{forbidden}`"));
            }
        }
    }
    broken.check();
}

#[test]
fn lines_end_where_their_text_ends() {
    let mut broken = Broken::default();
    for path in files_below(&root(), &["rs", "md", "toml", "properties", "sh", "py"]) {
        let name = relative(&path);
        let text = read(&path);
        if !text.is_empty() && !text.ends_with('\n') {
            broken.add(&name, text.lines().count(), "no newline at the end".to_string());
        }
        for (index, line) in text.lines().enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                broken.add(&name, index + 1, "space at the end of the line".to_string());
            }
            if line.contains('\t') {
                broken.add(&name, index + 1, "a tab".to_string());
            }
        }
    }
    broken.check();
}

#[test]
fn every_dependency_is_explained() {
    let manifest = read(&root().join("Cargo.toml"));
    let document = read(&root().join("docs/dependencies.md"));
    let mut section = "";
    let mut count = 0;
    let mut broken = Broken::default();
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
        } else if section.ends_with("dependencies") && line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let name = line.split([' ', '=']).next().unwrap_or(line);
            count += 1;
            if !document.contains(&format!("| `{name}` |")) {
                broken.add("Cargo.toml", index + 1, format!("`{name}` has no line in docs/dependencies.md"));
            }
        }
    }
    assert!(count > 10, "found only {count} dependencies: has the format of Cargo.toml changed?");
    broken.check();
}

#[test]
fn every_file_that_a_document_names_is_there() {
    // A file of the code is named from `src/` on, one of the tests from `tests/` on, or from the root.
    const FROM: [&str; 3] = ["", "src", "tests"];
    let is_path = |word: &str| {
        word.contains('/')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "/_-.".contains(c))
            && [".rs", ".md", ".properties", ".py", "/"].iter().any(|end| word.ends_with(end))
    };
    // Those that a run makes.
    let is_made = |word: &str| word.starts_with("perf/report") || word.starts_with("kuring-metadata/");
    let (mut broken, mut count) = (Broken::default(), 0);
    for path in files_below(&root().join("docs"), &["md"]).into_iter().chain([root().join("README.md")]) {
        for (index, line) in read(&path).lines().enumerate() {
            // What stands between backticks.
            for word in line.split('`').skip(1).step_by(2).filter(|word| is_path(word) && !is_made(word)) {
                count += 1;
                if !FROM.iter().any(|from| root().join(from).join(word).exists()) {
                    broken.add(&relative(&path), index + 1, format!("there is no {word}"));
                }
            }
        }
    }
    assert!(count > 100, "found only {count} names of files");
    broken.check();
}

#[test]
fn every_test_that_the_table_of_public_cases_names_is_there() {
    let text = read(&root().join("docs/TESTING.md"));
    let (_, section) = text.split_once("## Cases that broke other brokers\n").expect("the section");
    let section = section.split("\n## ").next().unwrap_or(section);
    let tests = rust_sources(&["tests"]);
    let is_test = |name: &str| tests.iter().any(|source| source.code.contains(&format!("fn {name}")));
    let is_file = |name: &str| {
        ["tests/broker", ""].iter().any(|from| {
            let path = root().join(from).join(name);
            path.exists() || path.with_extension("rs").exists()
        })
    };
    let rows = section.lines().filter(|line| line.starts_with('|'));
    let words =
        rows.filter_map(|row| row.split('|').nth(2)).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let missing: Vec<&str> =
        words.filter(|word| !is_file(word) && !is_test(word.trim_end_matches('…'))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_figure_moves_in_a_test_or_has_its_reason() {
    let document = read(&root().join("docs/METRICS.md"));
    let tables = ["metrics", "limits"].into_iter().flat_map(|table| {
        let (_, rest) = document.split_once(&format!("<!-- {table} -->")).expect("the table");
        let (rows, _) = rest.split_once("<!-- end of").expect("its end");
        rows.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next())
    });
    let tests = rust_sources(&["tests/broker"]);
    let testing = read(&root().join("docs/TESTING.md"));
    let (_, section) = testing.split_once("## Figures that no test moves\n").expect("the section");
    let section = section.split("\n## ").next().unwrap_or(section);
    let reasons: Vec<&str> = section
        .lines()
        .filter_map(|row| row.strip_prefix("| ")?.split('|').next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let mut broken = Broken::default();
    for name in tables {
        let is_tested = ["", "_count"].iter().any(|end| {
            let literal = format!("\"{name}{end}\"");
            tests.iter().any(|source| source.text.contains(&literal))
        });
        if is_tested == reasons.contains(&name) {
            let what = if is_tested { "a test and a reason for none" } else { "neither a test nor a reason" };
            broken.add("docs/METRICS.md", 1, format!("{name} has {what}"));
        }
    }
    broken.check();
}

/// Else a run of all clients fails at its end, half an hour later.
#[test]
fn the_table_of_clients_has_what_kafka_was_asked() {
    let asked: BTreeSet<(String, String)> = read(&root().join("tests/clients/kafka.txt"))
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split(' ').map(str::to_owned);
            Some((words.next()?, words.next()?))
        })
        .collect();
    let programs: BTreeSet<&str> = asked.iter().map(|(program, _)| program.as_str()).collect();
    let mut told = BTreeSet::new();
    let mut columns: Vec<String> = Vec::new();
    for line in read(&root().join("tests/clients/README.md")).lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match cells.as_slice() {
            ["scenario", clients @ ..] if clients.len() > 1 => {
                columns = clients.iter().map(|client| (*client).to_owned()).collect();
            }
            [program, scenarios] if programs.contains(program) => {
                told.extend(scenarios.split(", ").map(|name| ((*program).to_owned(), name.to_owned())));
            }
            [scenario, clients] if clients.contains('✓') => {
                let passed = clients.split(", ").filter_map(|client| client.strip_suffix(" ✓"));
                told.extend(passed.map(|client| (client.to_owned(), (*scenario).to_owned())));
            }
            [scenario, marks @ ..] if !columns.is_empty() && marks.len() == columns.len() => {
                let passed = columns.iter().zip(marks).filter(|(_, mark)| **mark == "✓");
                told.extend(passed.map(|(client, _)| (client.clone(), (*scenario).to_owned())));
            }
            _ => {}
        }
    }
    let differences: Vec<_> = asked.symmetric_difference(&told).collect();
    assert!(
        differences.is_empty(),
        "tests/clients/README.md and kafka.txt differ in {differences:?}: tests/clients/run --table, --kafka --table"
    );
}

#[test]
fn the_table_of_modules_has_them_in_their_order() {
    let text = read(&root().join("docs/ARCHITECTURE.md"));
    let (_, table) = text.split_once("| module | owns |\n").expect("the table");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2));
    assert_eq!(names.collect::<Vec<_>>(), module_order(&rust_sources(&["src"])));
}

#[derive(Default)]
struct Broken {
    report: String,
}

impl Broken {
    fn add(&mut self, path: &str, line: usize, what: String) {
        let _ = writeln!(self.report, "  {path}:{line}: {what}");
    }

    #[track_caller]
    fn check(self) {
        assert!(self.report.is_empty(), "\n{}", self.report);
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().into_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn rust_sources(folders: &[&str]) -> Vec<Source> {
    let sources: Vec<Source> = folders
        .iter()
        .flat_map(|folder| files_below(&root().join(folder), &["rs"]))
        .map(|path| {
            let text = read(&path);
            Source { path: relative(&path), code: code_of(&text), text }
        })
        .collect();
    assert!(!sources.is_empty(), "no source under {folders:?}");
    sources
}

fn files_below(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_output =
                matches!(name.as_str(), "target" | "node_modules" | "kuring-data" | ".git" | "out");
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !is_output => folders.push(path),
                Ok(kind)
                    if kind.is_file()
                        && extensions.iter().any(|end| path.extension().is_some_and(|e| e == *end)) =>
                {
                    found.push(path);
                }
                _ => {}
            }
        }
    }
    found.sort();
    found
}

fn module_order(sources: &[Source]) -> Vec<String> {
    let list = sources.iter().find(|source| source.path == "src/lib.rs").map(|source| source.code.as_str());
    list.unwrap_or_default()
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub mod ")?.strip_suffix(';'))
        .map(str::to_string)
        .collect()
}

/// Every name that follows `crate::`, the members of `crate::{a::…, b}` included, with its line.
fn crate_paths(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (start, _) in code.match_indices("crate::") {
        if start > 0 && code[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let line = line_of(code, start);
        let rest = &code[start + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group_members(group).into_iter().map(|name| (line, name))),
            None => found.push((line, identifier(rest))),
        }
    }
    found
}

/// The first names of the members of a `use` group whose opening brace has been read.
fn group_members(group: &str) -> Vec<String> {
    let mut members = Vec::new();
    let mut depth = 0;
    let mut is_start = true;
    for (position, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            _ if is_start && !letter.is_whitespace() => {
                members.push(identifier(&group[position..]));
                is_start = false;
            }
            _ => {}
        }
    }
    members
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The length of each run of `super::super::…`, with its line.
fn super_chains(code: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(position) = code[from..].find("super::").map(|at| from + at) {
        let mut end = position;
        let mut supers = 0;
        while code[end..].starts_with("super::") {
            supers += 1;
            end += "super::".len();
        }
        found.push((line_of(code, position), supers));
        from = end;
    }
    found
}

/// By the layout that rustfmt gives: an inline module starts with `mod name {` at the margin and ends with `}`.
fn is_inside_inline_module(code: &str, line: usize) -> bool {
    let mut inside = false;
    for text in code.lines().take(line) {
        let opens =
            text.starts_with("mod ") || text.starts_with("pub mod ") || text.starts_with("pub(crate) mod ");
        if opens && text.ends_with('{') {
            inside = true;
        } else if text == "}" {
            inside = false;
        }
    }
    inside
}

fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .filter(|(at, _)| !code[..*at].ends_with(is_part) && !code[at + word.len()..].starts_with(is_part))
        .map(|(at, _)| line_of(code, at))
        .collect()
}

fn line_of(code: &str, position: usize) -> usize {
    code[..position].matches('\n').count() + 1
}

/// Blanks comments, strings and character literals; line breaks stay.
fn code_of(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < letters.len() {
        let end = literal_end(&letters, at);
        if end > at {
            code.extend(letters[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            code.push(letters[at]);
            at += 1;
        }
    }
    code
}

/// Where the comment or literal that starts at `at` ends; `at` itself when none starts there.
fn literal_end(letters: &[char], at: usize) -> usize {
    let next = |n: usize| letters.get(at + n).copied().unwrap_or('\0');
    let end_of = |from: usize, mut is_end: Box<dyn FnMut(usize) -> bool + '_>| {
        (from..letters.len()).find(|position| is_end(*position)).unwrap_or(letters.len())
    };
    match letters[at] {
        '/' if next(1) == '/' => end_of(at, Box::new(|position| letters[position] == '\n')),
        '/' if next(1) == '*' => {
            let mut depth = 0;
            let last = end_of(
                at,
                Box::new(|position| {
                    let pair = (letters[position], letters.get(position + 1).copied().unwrap_or('\0'));
                    depth += i32::from(pair == ('/', '*')) - i32::from(pair == ('*', '/'));
                    pair == ('*', '/') && depth == 0
                }),
            );
            (last + 2).min(letters.len())
        }
        '"' => string_end(letters, at + 1, None),
        'r' if at > 0
            && (letters[at - 1].is_alphanumeric() && letters[at - 1] != 'b' || letters[at - 1] == '_') =>
        {
            at
        }
        'r' => {
            let hashes = letters[at + 1..].iter().take_while(|c| **c == '#').count();
            if next(1 + hashes) == '"' { string_end(letters, at + 2 + hashes, Some(hashes)) } else { at }
        }
        '\'' if next(1) == '\\' => end_of(at + 3, Box::new(|position| letters[position] == '\'')) + 1,
        '\'' if next(2) == '\'' => at + 3,
        _ => at,
    }
}

/// The end of a string whose first letter is at `from`; a raw one ends with as many hashes as it began with.
fn string_end(letters: &[char], from: usize, raw_hashes: Option<usize>) -> usize {
    let mut at = from;
    while at < letters.len() {
        match (letters[at], raw_hashes) {
            ('\\', None) => at += 2,
            ('"', None) => return at + 1,
            ('"', Some(hashes))
                if letters[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes =>
            {
                return at + 1 + hashes;
            }
            _ => at += 1,
        }
    }
    letters.len()
}

#[test]
fn comments_and_strings_are_not_code() {
    let code =
        code_of("a // b\n/* c /* d */ e */ f \"g \\\" h\" i r#\"j \" k\"# l 'm' n '\\'' o: &'p q\nbr\"r\" s");
    let words: Vec<&str> = code.split_whitespace().collect();
    assert_eq!(words, ["a", "f", "i", "l", "n", "o:", "&'p", "q", "b", "s"]);
}

#[test]
fn grouped_imports_are_seen() {
    let names: Vec<String> =
        crate_paths("use crate::{\n    a::{b, c},\n    d,\n};\nuse crate::e::f;\nmycrate::g; $crate::h!()")
            .into_iter()
            .map(|(_, name)| name)
            .collect();
    assert_eq!(names, ["a", "d", "e", "h"]);
}
