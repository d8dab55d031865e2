//! `kuring cluster`.

mod brokers;
mod quorum;
mod status;

use clap::{Args, Subcommand};

use super::ConnectArguments;
use super::output::{Failure, Output};

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Tell whether all is well: brokers, leaders, replicas
    #[command(after_help = "Examples:
  kuring cluster status
  kuring cluster status --bootstrap broker1:9092,broker2:9092 --wait 300
  kuring cluster status --json

All is well when there is a controller, no broker is fenced, and every partition has a leader and all its replicas in
sync. Not counted: partitions that are being reassigned (replicas that are added need not be in sync yet) and partitions
led by another than their first replica (`kuring partition elect --type preferred --all` gives them back). Where the
cluster tells of its metadata quorum, a voter that had not all of it in the last 10 seconds is a fault, too. A broker that is
gone for good stays fenced until it is unregistered.
Exit codes: 0 all is well; 1 it is not (one line on standard error says what), or nobody answers; 2 wrong usage.")]
    Status(StatusArguments),
    /// List the brokers: where they are, what they lead and have
    #[command(after_help = "Examples:
  kuring cluster brokers
  kuring cluster brokers --json

LEADS and REPLICAS count partitions. LOG BYTES is what the broker's logs take on its disks, copies that are being moved
between its directories included.
Exit codes: 0 done; 1 a broker that is not fenced did not tell of its logs, or nobody answers; 2 wrong usage.")]
    Brokers(ShowArguments),
    /// Show the metadata quorum: its leader, who votes, who is behind
    #[command(after_help = "Examples:
  kuring cluster quorum
  kuring cluster quorum --json

LAG is how many records of the metadata log a node does not have yet. Times are told on the leader's clock, by how long ago
they were.")]
    Quorum(ShowArguments),
}

#[derive(Args)]
pub struct StatusArguments {
    /// Look again until all is well, for so long at most
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// Print one object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Args)]
pub struct ShowArguments {
    /// Print one object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

pub fn run(command: ClusterCommand) -> Result<(), Failure> {
    let mut out = Output::stdout();
    match command {
        ClusterCommand::Status(arguments) => status::run(&arguments, &mut out),
        ClusterCommand::Brokers(arguments) => brokers::run(&arguments, &mut out),
        ClusterCommand::Quorum(arguments) => quorum::run(&arguments, &mut out),
    }
}
