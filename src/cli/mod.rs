//! The command line: it reads arguments, prints and chooses the exit code. The work is done by [`crate::client`],
//! [`crate::perf`], [`crate::trace`] and the server.

mod cluster;
mod consume;
mod dump_log;
mod format;
mod json;
mod output;
mod partition;
mod perf;
mod produce;
mod serve;
mod topic;
mod trace;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::client::{ClientError, Cluster, ClusterConfig};
use crate::io::signal;
use output::Failure;

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed (one line on standard error says why), 2 wrong usage.";

#[derive(Parser)]
#[command(name = "kuring", version, about = "A Kafka-protocol broker and its tools", after_help = EXIT_CODES)]
#[command(arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a broker
    Serve(serve::ServeArguments),
    /// Make the log directories those of a node of a cluster
    Format(format::FormatArguments),
    /// Create, list, describe, alter and delete topics
    #[command(subcommand)]
    Topic(topic::TopicCommand),
    /// Tell how a cluster is: its health, its brokers, its quorum
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Elect leaders, move partitions to other brokers
    #[command(subcommand)]
    Partition(partition::PartitionCommand),
    /// Write the lines of standard input to a topic, byte for byte
    Produce(produce::ProduceArguments),
    /// Print the records of a topic
    Consume(consume::ConsumeArguments),
    /// Show and check the files of a partition's log
    DumpLog(dump_log::DumpLogArguments),
    /// Put load on a broker and measure it
    #[command(subcommand)]
    Perf(perf::PerfCommand),
    /// Stand between clients and brokers and print what they say to each other
    Trace(trace::TraceArguments),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  kuring completions bash > /etc/bash_completion.d/kuring")]
    Completions {
        /// The shell the script is for
        shell: clap_complete::Shell,
    },
}

/// How to reach the cluster.
#[derive(Args, Clone)]
struct ConnectArguments {
    /// Brokers to start from, separated by commas
    #[arg(
        short,
        long,
        visible_alias = "bootstrap-server",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9092"
    )]
    bootstrap: String,
    /// Seconds after which an operation that does not succeed is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
}

impl ConnectArguments {
    fn config(&self) -> ClusterConfig {
        let mut config = ClusterConfig::new(&self.bootstrap);
        config.call_timeout = Duration::from_secs(self.timeout);
        config.network.request_timeout = config.network.request_timeout.min(config.call_timeout);
        config.network.connect_timeout = config.network.connect_timeout.min(config.call_timeout);
        config
    }

    fn cluster(&self) -> Result<Cluster, ClientError> {
        Cluster::new(self.config())
    }
}

/// Runs the command that the arguments name; `main` is nothing but this.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Serve(arguments) => return serve::run(arguments),
        Command::Format(arguments) => client_command(|| format::run(arguments)),
        Command::Topic(command) => client_command(|| topic::run(command)),
        Command::Cluster(command) => client_command(|| cluster::run(command)),
        Command::Partition(command) => client_command(|| partition::run(command)),
        Command::Produce(arguments) => client_command(|| produce::run(arguments)),
        Command::Consume(arguments) => client_command(|| consume::run(arguments)),
        Command::DumpLog(arguments) => dump_log::run(arguments),
        Command::Perf(command) => client_command(|| perf::run(command)),
        Command::Trace(arguments) => client_command(|| trace::run(arguments)),
        Command::Completions { shell } => completions(shell),
    };
    match outcome {
        // A reader that has seen enough is no failure.
        Ok(()) | Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        Err(Failure::Told(message)) => {
            eprintln!("kuring: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Client commands say nothing but their errors, unless RUST_LOG asks for more.
fn client_command(run: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    run()
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "kuring", &mut script);
    let mut out = output::Output::stdout();
    out.write(&script)?;
    out.finish()
}

/// A flag that SIGINT and SIGTERM set, so that a command can end well; the second signal ends it at once. To
/// be called before any thread is started.
fn interrupt_flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    let waiting = signal::block().and_then(|()| signal::on_stop(move |_| set.store(true, Ordering::Relaxed)));
    waiting.map_err(|error| Failure::Told(format!("cannot wait for signals: {error}")))?;
    Ok(flag)
}

/// `name=value` of an option that may be repeated.
fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("NAME=VALUE is wanted".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_tells_its_exit_codes_or_examples() {
        fn check(command: &clap::Command) {
            for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
                let documented = sub.get_after_help().is_some() || sub.has_subcommands();
                assert!(documented, "{} has no examples", sub.get_name());
                check(sub);
            }
        }
        let mut command = Arguments::command();
        command.build();
        let mut command = command;
        command = command.disable_help_subcommand(true);
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            assert!(sub.get_after_help().is_some() || sub.has_subcommands(), "{}", sub.get_name());
            for leaf in sub.get_subcommands().filter(|leaf| leaf.get_name() != "help") {
                check(leaf);
                assert!(leaf.get_after_help().is_some(), "{} has no example", leaf.get_name());
            }
        }
    }

    #[test]
    fn the_option_of_kafkas_tools_for_brokers_is_taken() {
        for option in ["-b", "--bootstrap", "--bootstrap-server"] {
            let parsed = Arguments::try_parse_from(["kuring", "cluster", "status", option, "h:1"]);
            assert!(parsed.is_ok(), "{option}");
        }
    }

    #[test]
    fn names_and_values_are_split_at_the_first_equals_sign() {
        assert_eq!(name_and_value("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(name_and_value("=b").is_err());
        assert!(name_and_value("a").is_err());
    }
}
