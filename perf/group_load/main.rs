//! What consumer groups cost a broker: it starts `kuring serve` in a directory of its own, is the members itself, over
//! loopback, and prints a line for each thing that docs/PERFORMANCE.md promises. Run it by `perf/groups`.

mod broker;
mod commits;
mod heartbeats;
mod settle;
mod wheel;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

const USAGE: &str = "usage: group-load [--kuring PATH] [--seconds N] [--set NAME=VALUE]... [NAME]...
Names: heartbeats, heartbeats-classic, small, settle, settle-classic, commits, timers; all if none is given.
--kuring   the broker's program; by default the one of this build
--seconds  how long each steady load is measured (20)
--set      a property of the broker";

/// The names, and what each measures.
const LOADS: &[(&str, Measure)] = &[
    ("heartbeats", heartbeats::consumer),
    ("heartbeats-classic", heartbeats::classic),
    ("small", heartbeats::small),
    ("settle", settle::consumer),
    ("settle-classic", settle::classic),
    ("commits", commits::run),
    ("timers", wheel::run),
];

type Outcome = std::io::Result<()>;
type Measure = fn(&Options) -> Outcome;

struct Options {
    kuring: PathBuf,
    time: Duration,
    /// Properties of the broker, as `name=value`.
    settings: Vec<String>,
}

fn main() {
    let mut options =
        Options { kuring: beside("kuring"), time: Duration::from_secs(20), settings: Vec::new() };
    let mut names: Vec<String> = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kuring" => options.kuring = PathBuf::from(arguments.next().unwrap_or_else(usage)),
            "--seconds" => {
                let seconds = arguments.next().and_then(|text| text.parse().ok());
                options.time = Duration::from_secs(seconds.unwrap_or_else(usage));
            }
            "--set" => options.settings.push(arguments.next().unwrap_or_else(usage)),
            name if LOADS.iter().any(|(known, _)| *known == name) => names.push(argument),
            _ => usage(),
        }
    }
    allow_descriptors();
    for (name, run) in LOADS {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == name) {
            continue;
        }
        if let Err(error) = run(&options) {
            eprintln!("group-load: {name}: {error}");
            std::process::exit(1);
        }
    }
}

fn usage<T>() -> T {
    eprintln!("{USAGE}");
    std::process::exit(2);
}

/// A program of the same build: this one is in `examples`.
fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().and_then(|examples| examples.parent()).unwrap_or(&own).join(name)
}

/// Each member has a connection.
fn allow_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        eprintln!("group-load: the limit of descriptors stays as it is: {error}");
    }
}
