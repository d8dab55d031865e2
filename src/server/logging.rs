//! The process's log: text on standard error, `KURING_LOG` sets the level as in `tracing`'s env-filter.

use tracing_subscriber::EnvFilter;

/// Starts the log. A second call in one process changes nothing.
pub(super) fn start() {
    let filter =
        EnvFilter::try_from_env("KURING_LOG").unwrap_or_else(|_| EnvFilter::new("info,openraft=warn"));
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(is_terminal)
        .with_target(false);
    let _ = subscriber.try_init();
}
