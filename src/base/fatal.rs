//! The end of the process when its promises are void.

use std::io::Write;

/// Ends the process at once with `reason` in the log and on standard error. For a lost disk or a broken
/// invariant: what a half-dead broker would answer is worse than no answer.
#[track_caller]
pub fn fatal(reason: impl std::fmt::Display) -> ! {
    let place = std::panic::Location::caller();
    tracing::error!(%place, "fatal: {reason}");
    // Not eprintln!, which a test harness swallows.
    let _ = writeln!(std::io::stderr(), "kuring: fatal: {reason} ({place})");
    std::process::exit(70)
}
