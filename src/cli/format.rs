//! `kuring format`: hands its arguments to the server.

use std::path::PathBuf;

use clap::Args;

use super::name_and_value;
use super::output::{Failure, Output};
use crate::server::{self, Done, FirstQuorum, FormatError};

const EXAMPLES: &str = "Examples:
  kuring format --new-id
  kuring format --cluster-id MkU3OEVBNTcwNTJENDM2Qg --config /etc/kuring/server.properties

A node that is alone formats its directories by itself when it starts. Nodes that shall be one cluster must be told the
same id before. Where controller.quorum.voters does not say who votes, each controller is told, too: with --standalone it
is the first one, with --initial-controllers one of several, with --no-initial-controllers it joins those that are there.

Exit codes: 0 done, 1 failed (one line on standard error says why), 2 wrong usage.";

/// Makes the log directories those of a node of a cluster, as kafka-storage.sh format does
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["cluster_id", "new_id"])))]
#[command(group(clap::ArgGroup::new("quorum").args(["standalone", "initial_controllers", "no_initial_controllers"])))]
pub(super) struct FormatArguments {
    /// The cluster's id, the same for all its nodes
    #[arg(long, value_name = "ID")]
    cluster_id: Option<String>,
    /// Print an id for a new cluster and do nothing else
    #[arg(long)]
    new_id: bool,
    /// Kafka's server.properties
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A property that overrides the file's
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_value)]
    set: Vec<(String, String)>,
    /// Directories that are this node's and this cluster's already are no failure, and stay as they are; one that was not
    /// used yet and not told who votes is told
    #[arg(long)]
    ignore_formatted: bool,
    /// This controller is the first voter of a new cluster
    #[arg(long)]
    standalone: bool,
    /// The first voters of a new cluster, the same for all its nodes
    #[arg(long, value_name = "ID@HOST:PORT:DIRECTORY-ID,...")]
    initial_controllers: Option<String>,
    /// The cluster has voters already; this controller may become one
    #[arg(long)]
    no_initial_controllers: bool,
}

pub(super) fn run(arguments: FormatArguments) -> Result<(), Failure> {
    let mut out = Output::stdout();
    let Some(cluster_id) = arguments.cluster_id else {
        out.write(format!("{}\n", server::new_cluster_id()).as_bytes())?;
        return out.finish();
    };
    let quorum = match arguments.initial_controllers {
        Some(voters) => FirstQuorum::Initial(voters),
        None if arguments.standalone => FirstQuorum::Standalone,
        None if arguments.no_initial_controllers => FirstQuorum::NotHere,
        None => FirstQuorum::Unsaid,
    };
    let ignore_formatted = arguments.ignore_formatted;
    let formatted = server::format(arguments.config, &arguments.set, &cluster_id, ignore_formatted, &quorum)
        .map_err(|FormatError(message)| Failure::Told(message))?;
    for (path, done) in formatted.directories {
        let what = match done {
            Done::All => "formatted",
            Done::Voters => "was formatted before, and knows who votes now",
            Done::Nothing => "was formatted before",
        };
        out.write(format!("{}: {what}\n", path.display()).as_bytes())?;
    }
    out.finish()?;
    if let Some(warning) = formatted.warning {
        eprintln!("kuring: {warning}");
    }
    Ok(())
}
