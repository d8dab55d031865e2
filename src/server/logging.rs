//! The process's log: one line per event on standard error, as text or JSON. A line is formatted where it is
//! logged and written by a thread of its own ([`log_queue`]), so that no shard waits for a reader.
//!
//! A line that is repeated by the same place in the program is written [`REPEATS_MAX`] times in [`WINDOW`]; what
//! is left out is counted, and told with the next one.

use std::collections::HashMap;
use std::io;
use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

use crate::base::clock::{self, Monotonic};
use crate::base::{PROCESS, log_queue};
use crate::config::{EventLog, LogFormat};
use crate::net::REQUEST_TARGET;

/// Lines of one place in the program...
const REPEATS_MAX: u32 = 10;
/// ...in this time.
const WINDOW: Duration = Duration::from_secs(10);

/// Lines about the log itself.
const OWN_TARGET: &str = "kuring::log";

/// Overrides `kuring.log.level`.
const LEVEL_VARIABLE: &str = "RUST_LOG";

/// Starts the log. A second call in one process changes nothing.
///
/// # Errors
/// The level that is no filter of `tracing`, and why.
pub(super) fn start(settings: &EventLog) -> Result<(), String> {
    let from_environment = std::env::var(LEVEL_VARIABLE).ok().filter(|text| !text.is_empty());
    let (name, text) = match &from_environment {
        Some(text) => (LEVEL_VARIABLE, text),
        None => ("kuring.log.level", &settings.level),
    };
    let filter = EnvFilter::try_new(text).map_err(|error| format!("{name} = {text:?}: {error}"))?;
    let told = match settings.format {
        LogFormat::Text => dropped_as_text,
        LogFormat::Json => dropped_as_json,
    };
    if let Err(error) = log_queue::start(told) {
        eprintln!("kuring: log lines are written by whoever logs: {error}");
    }
    let registry = tracing_subscriber::registry().with(filter).with(Repeats::default());
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Line);
    let started = match settings.format {
        LogFormat::Text => {
            let is_terminal = io::IsTerminal::is_terminal(&io::stderr());
            registry.with(lines.with_ansi(is_terminal).with_target(false)).try_init()
        }
        LogFormat::Json => {
            let lines = lines.with_ansi(false).json().flatten_event(true).with_current_span(false);
            registry.with(lines.with_span_list(false)).try_init()
        }
    };
    if started.is_ok() {
        std::panic::set_hook(Box::new(panicked));
    }
    Ok(())
}

/// A panic's line in the log. The hook of the standard library would write to standard error from the thread
/// that panics, and wait there.
fn panicked(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let text = panic.payload_as_str().unwrap_or("(no message)");
    let backtrace = std::backtrace::Backtrace::capture();
    tracing::error!(thread = thread.name().unwrap_or(""), place, "panic: {text}");
    if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
        log_queue::write(format!("{backtrace}\n").as_bytes());
    }
}

fn dropped_as_text(count: u64) -> String {
    format!("kuring: {count} log lines were dropped: standard error was not read fast enough\n")
}

fn dropped_as_json(count: u64) -> String {
    format!("{{\"level\":\"WARN\",\"message\":\"log lines were dropped\",\"dropped\":{count}}}\n")
}

/// Takes one formatted line; the formatter writes each with one call.
struct Line;

impl io::Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        log_queue::write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Leaves out what one place in the program says too often. Taken only by lines that the level lets pass, so
/// its lock is rare; as many entries as the program has such places.
#[derive(Default)]
struct Repeats(Mutex<HashMap<Identifier, Window>>);

#[derive(Clone, Copy)]
struct Window {
    since: Monotonic,
    lines: u32,
    left_out: u64,
}

impl Repeats {
    /// Whether a line of this place is written at `now`, and how many were left out before it.
    fn admit(&self, place: Identifier, now: Monotonic) -> Result<u64, ()> {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Window { since: now, lines: 0, left_out: 0 };
        let window = windows.entry(place).or_insert(new);
        let mut left_out = 0;
        if now.since(window.since) >= WINDOW {
            left_out = window.left_out;
            *window = new;
        }
        if window.lines >= REPEATS_MAX {
            window.left_out += 1;
            return Err(());
        }
        window.lines += 1;
        Ok(left_out)
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // Requests have a sample and a limit of their own.
        if matches!(metadata.target(), OWN_TARGET | REQUEST_TARGET) {
            return true;
        }
        match self.admit(metadata.callsite(), clock::monotonic()) {
            Ok(0) => true,
            Ok(left_out) => {
                let (file, line) = (metadata.file().unwrap_or(""), metadata.line().unwrap_or(0));
                tracing::warn!(target: OWN_TARGET, left_out, file, line, "lines like the next one were left out");
                true
            }
            Err(()) => {
                PROCESS.log_lines_suppressed.increment();
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_repeated_is_left_out_and_told_of_later() {
        let repeats = Repeats::default();
        let metadata = tracing::info_span!("place").metadata().map(tracing::Metadata::callsite);
        let Some(place) = metadata else { return };
        let at = |ms| Monotonic::from_millis(ms);
        let admitted = (0..15).filter(|n| repeats.admit(place.clone(), at(*n)).is_ok()).count();
        assert_eq!(admitted, REPEATS_MAX as usize);
        assert_eq!(repeats.admit(place.clone(), at(WINDOW.as_millis() as u64)), Ok(5));
        assert_eq!(repeats.admit(place, at(WINDOW.as_millis() as u64 + 1)), Ok(0));
    }
}
