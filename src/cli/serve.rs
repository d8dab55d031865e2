//! `kuring serve`: hands its arguments to the server.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::name_and_value;

const EXAMPLES: &str = "Examples:
  kuring serve
  kuring serve --config /etc/kuring/server.properties
  kuring serve --set listeners=PLAINTEXT://0.0.0.0:9092 --set advertised.listeners=PLAINTEXT://broker1:9092

Exit codes: 0 stopped as told, 1 cannot start (one line on standard error says why), 70 a promise cannot be kept
any more.";

/// Without `--config` the broker keeps its data in ./kuring-data and listens on 127.0.0.1:9092.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ServeArguments {
    /// Kafka's server.properties
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A property that overrides the file's
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_value)]
    set: Vec<(String, String)>,
}

pub(super) fn run(arguments: ServeArguments) -> ExitCode {
    crate::server::serve(arguments.config, arguments.set)
}
