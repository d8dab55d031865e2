//! The end of the process when its promises are void.

use std::time::Duration;

use super::log_queue;

/// How long the last lines may take to be written: nobody may be reading.
const LAST_LINES_MAX: Duration = Duration::from_secs(1);

/// Ends the process at once with `reason` in the log and on standard error. For a lost disk or a broken
/// invariant: what a half-dead broker would answer is worse than no answer.
#[track_caller]
pub fn fatal(reason: impl std::fmt::Display) -> ! {
    let place = std::panic::Location::caller();
    tracing::error!(%place, "fatal: {reason}");
    // Not eprintln!, which a test harness swallows.
    log_queue::write(format!("kuring: fatal: {reason} ({place})\n").as_bytes());
    log_queue::flush(LAST_LINES_MAX);
    std::process::exit(70)
}
