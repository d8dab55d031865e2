//! `kuring partition`.

mod directories;
mod elect;
mod reassign;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::ConnectArguments;
use super::output::{Failure, Output};

#[derive(Subcommand)]
pub enum PartitionCommand {
    /// Have leaders elected
    #[command(after_help = "Examples:
  kuring partition elect --type preferred --all
  kuring partition elect --type preferred --topic events
  kuring partition elect --type unclean --topic events --partition 3

Preferred: the first replica leads again, if it is in sync. Unclean: a partition without leader is led by a replica that is
alive, in sync or not: what it does not have is lost. One line for each partition; with --all only for those where something
was to be done. That no election is needed is no failure.
Exit codes: 0 done; 1 a partition has not got the leader that is wanted, or nobody answers; 2 wrong usage.")]
    Elect(ElectArguments),
    /// Move partitions to other brokers: plan, execute, verify, cancel
    #[command(
        subcommand,
        after_help = "Example:
  kuring partition reassign plan --topics events --brokers 1,2,3,4 --rollback back.json > plan.json
  kuring partition reassign execute --file plan.json --throttle 50000000
  kuring partition reassign verify --file plan.json --wait 3600"
    )]
    Reassign(ReassignCommand),
}

#[derive(Args)]
pub struct ElectArguments {
    /// Who is to lead
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    kind: Kind,
    /// All partitions that need it
    #[arg(long, conflicts_with = "topic")]
    all: bool,
    /// The partitions of this topic
    #[arg(long, required_unless_present = "all")]
    topic: Option<String>,
    /// Only this partition of the topic; may be repeated
    #[arg(short, long, requires = "topic", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Vec<i32>,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// The first replica, if it is in sync
    Preferred,
    /// Any that is alive, of partitions without leader
    Unclean,
}

#[derive(Subcommand)]
pub enum ReassignCommand {
    /// Print a plan that spreads topics over brokers
    #[command(after_help = "Examples:
  kuring partition reassign plan --topics events,clicks --brokers 1,2,3,4 > plan.json
  kuring partition reassign plan --topics events --brokers 1,2,3 --rollback back.json > plan.json

The plan is the file that kafka-reassign-partitions takes, too, and has only the partitions that change. It gives each
broker the same number of replicas of each topic, and of all these topics together, but for one; where brokers have racks,
first of all the replicas of a partition are in as many racks as there are, and brokers of a rack have the same. Of all such
assignments it is one that copies the fewest replicas: Kafka's tool makes a new assignment from nothing, which moves nearly
everything. Each broker then leads the same number by preference, which copies nothing. Other topics, and the sizes of
partitions, are not looked at. What is balanced already does not change: then nothing is printed.
Standard error tells how much moves. Exit codes: 0 done, 1 failed (one line on standard error says why), 2 wrong usage.")]
    Plan(PlanArguments),
    /// Begin what a plan says
    #[command(after_help = "Examples:
  kuring partition reassign execute --file plan.json
  kuring partition reassign execute --file plan.json --throttle 50000000
  kuring partition reassign execute --file plan.json --throttle 100000000 --additional

Prints the assignment as it is, to go back to. With --throttle the replicas that come get, and those that have the data send
them, at most so many bytes a second on each broker; what is in sync is not throttled. Run verify until all is done: it takes the
throttle away. To change the throttle of what is under way, execute the same plan with another one and --additional. Replicas
whose plan names a log directory are moved there once they are on their brokers (AlterReplicaLogDirs), for which --timeout
waits.")]
    Execute(ExecuteArguments),
    /// Tell how far a plan is
    #[command(after_help = "Examples:
  kuring partition reassign verify --file plan.json
  kuring partition reassign verify --file plan.json --wait 3600

One line for each partition. When nothing at all is being reassigned any more, the throttles of the plan's topics and of all
brokers are taken away.
Exit codes: 0 all is done; 1 something is in progress, or is not as planned and not on its way; 2 wrong usage.")]
    Verify(VerifyArguments),
    /// Give up what is under way of a plan: the replicas from before stay
    #[command(after_help = "Example:
  kuring partition reassign cancel --file plan.json

What is done already stays: to take that back, execute the assignment from before. Throttles are taken away.")]
    Cancel(CancelArguments),
}

#[derive(Args)]
pub struct PlanArguments {
    /// The topics that are spread, separated by commas
    #[arg(long, value_name = "TOPIC", required = true, value_delimiter = ',')]
    topics: Vec<String>,
    /// The brokers that are to have them, separated by commas
    #[arg(long, value_name = "ID", required = true, value_delimiter = ',')]
    brokers: Vec<i32>,
    /// Take all brokers for brokers of one rack
    #[arg(long)]
    ignore_racks: bool,
    /// Write the assignment as it is to a new file, to go back to
    #[arg(long, value_name = "FILE")]
    rollback: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Args)]
pub struct ExecuteArguments {
    /// The plan, as `plan` or kafka-reassign-partitions prints it
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// How much each broker may send and get for it
    #[arg(long, value_name = "BYTES/S", value_parser = clap::value_parser!(i64).range(0..))]
    throttle: Option<i64>,
    /// Also when other partitions are being reassigned, or the same
    #[arg(long)]
    additional: bool,
    /// Refuse to change how many replicas a partition has (KIP-860)
    #[arg(long)]
    disallow_replication_factor_change: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Args)]
pub struct VerifyArguments {
    /// The plan that was executed
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Leave throttles as they are
    #[arg(long)]
    preserve_throttles: bool,
    /// Look again until nothing of the plan is in progress, for so long at most
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Args)]
pub struct CancelArguments {
    /// The plan that was executed
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Leave throttles as they are
    #[arg(long)]
    preserve_throttles: bool,
    #[command(flatten)]
    connect: ConnectArguments,
}

pub fn run(command: PartitionCommand) -> Result<(), Failure> {
    let mut out = Output::stdout();
    match command {
        PartitionCommand::Elect(arguments) => elect::run(arguments, &mut out),
        PartitionCommand::Reassign(ReassignCommand::Plan(arguments)) => reassign::plan(&arguments, &mut out),
        PartitionCommand::Reassign(ReassignCommand::Execute(arguments)) => {
            reassign::execute(&arguments, &mut out)
        }
        PartitionCommand::Reassign(ReassignCommand::Verify(arguments)) => {
            reassign::verify(&arguments, &mut out)
        }
        PartitionCommand::Reassign(ReassignCommand::Cancel(arguments)) => {
            reassign::cancel(&arguments, &mut out)
        }
    }
}
