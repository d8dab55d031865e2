//! Makes log directories those of a node of a cluster, before it starts for the first time.

use std::path::{Path, PathBuf};

use super::broker::METADATA_DIR;
use super::cluster::{keep_to_this_machine, own_address};
use super::{StartError, import, load};
use crate::base::{BrokerId, TopicId};
use crate::config::BrokerConfig;
use crate::io::os::OsFiles;
use crate::log::{DirLock, LogDir, MetaProperties};
use crate::raft::{self, FirstVoter, VoterKey};

/// Why nothing more was formatted, in one line.
#[derive(Debug)]
pub struct FormatError(pub String);

impl From<StartError> for FormatError {
    fn from(error: StartError) -> Self {
        Self(error.to_string())
    }
}

/// An id that no other cluster has, in Kafka's form.
pub fn new_cluster_id() -> String {
    loop {
        let id = TopicId(uuid::Uuid::new_v4()).to_string();
        // One that an option's value cannot begin with.
        if !id.starts_with('-') {
            return id;
        }
    }
}

/// Who votes in a new cluster whose voters come and go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FirstQuorum {
    /// Nothing was said: a file that names the voters, or a node alone, needs nothing.
    Unsaid,
    /// This node.
    Standalone,
    /// These, as `id@host:port:directory-id` with commas between.
    Initial(String),
    /// There is a cluster, which this node is to join.
    NotHere,
}

/// What has become of the directories.
#[derive(Debug)]
pub struct Formatted {
    pub directories: Vec<(PathBuf, Done)>,
    /// What the operator should know before the start, in a line.
    pub warning: Option<String>,
}

/// What was done in one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    All,
    /// It was formatted without a word of who votes, and has not been used since.
    Voters,
    Nothing,
}

/// Writes `meta.properties` into every log directory of the configuration. Looks at all of them before the first is
/// written.
pub fn format(
    config: Option<PathBuf>,
    set: &[(String, String)],
    cluster_id: &str,
    ignore_formatted: bool,
    quorum: &FirstQuorum,
) -> Result<Formatted, FormatError> {
    if cluster_id.parse::<TopicId>().is_err() {
        return Err(FormatError(format!(
            "{cluster_id:?} is no cluster id: wanted 22 letters as `kuring format --new-id` prints them"
        )));
    }
    let config = load(config.as_deref(), set)?.config;
    let mut first = first_voters(&config, quorum)?;
    let warning = warning(&config, first.as_deref()).map_err(FormatError)?;
    let mut directories = Vec::new();
    for path in &config.log_dirs {
        let lock = DirLock::acquire(path).map_err(StartError::from)?;
        let known = MetaProperties::read(&OsFiles, path).map_err(StartError::from)?;
        let is_ours =
            |known: &MetaProperties| known.cluster_id == cluster_id && known.node_id == config.node_id;
        let done = match &known {
            Some(known) if !is_ours(known) => {
                return Err(FormatError(format!(
                    "{} is node {}'s of cluster {}",
                    path.display(),
                    known.node_id,
                    known.cluster_id
                )));
            }
            Some(_) if !ignore_formatted => {
                return Err(FormatError(format!(
                    "{} is formatted already; --ignore-formatted leaves what is, and adds what is missing",
                    path.display()
                )));
            }
            Some(known) if *path == config.metadata_log_dir => match &mut first {
                Some(voters) if wants_voters(path)? => {
                    take_directory(voters, config.node_id, known.directory_id, quorum)
                        .map_err(FormatError)?;
                    Done::Voters
                }
                _ => Done::Nothing,
            },
            Some(_) => Done::Nothing,
            None => Done::All,
        };
        directories.push((path, lock, done));
    }
    let mut formatted = Vec::new();
    for (path, _lock, done) in directories {
        let first = first.as_ref().filter(|_| *path == config.metadata_log_dir);
        if let Some(voters) = first.filter(|_| done != Done::Nothing) {
            // First: a directory that is formatted has what belongs to it.
            std::fs::create_dir_all(path)
                .and_then(|()| raft::write_first_voters(&OsFiles, path, voters))
                .map_err(|error| FormatError(format!("{}: {error}", path.display())))?;
        }
        if done == Done::All {
            let own = first.and_then(|voters| voters.iter().find(|voter| voter.key.node == config.node_id));
            let id = own.map(|own| TopicId(own.key.directory));
            LogDir::format(&OsFiles, path, cluster_id, config.node_id, id).map_err(StartError::from)?;
        }
        formatted.push((path.clone(), done));
    }
    Ok(Formatted { directories: formatted, warning })
}

/// What `serve` is going to say of a file that does not tell how its node knows the others; an error: that it refuses.
fn warning(config: &BrokerConfig, first: Option<&[FirstVoter]>) -> Result<Option<String>, String> {
    let changing = config.cluster.as_ref().and_then(|cluster| cluster.changing.as_ref());
    match (first, changing.and_then(|changing| changing.fault.as_ref())) {
        (Some(first), Some(fault)) => keep_to_this_machine(first, config.node_id, fault).map(Some),
        _ => Ok(None),
    }
}

/// Whether nobody told the directory of the metadata log who votes. An error: it is too late for that.
fn wants_voters(path: &Path) -> Result<bool, FormatError> {
    if raft::read_first_voters(&OsFiles, path).map_err(FormatError)?.is_some() {
        return Ok(false);
    }
    let own = path.join(METADATA_DIR);
    let is_used = [&own, &raft::identity_path(&own)].into_iter().any(|path| path.exists());
    match is_used || import::is_beside(&OsFiles, path) {
        false => Ok(true),
        true => Err(FormatError(format!(
            "{} was formatted without a word of who votes and has been in use since: it is too late for one",
            path.display()
        ))),
    }
}

/// A directory that was formatted before keeps its id.
fn take_directory(
    voters: &mut [FirstVoter],
    own: BrokerId,
    directory: TopicId,
    quorum: &FirstQuorum,
) -> Result<(), String> {
    let Some(voter) = voters.iter_mut().find(|voter| voter.key.node == own) else { return Ok(()) };
    match quorum {
        _ if directory.is_zero() => {
            Err("the metadata log's directory was formatted without a directory.id".to_owned())
        }
        FirstQuorum::Initial(_) if voter.key.directory != directory.0 => Err(format!(
            "--initial-controllers: node {own} has the directory id {directory}, which it was formatted with"
        )),
        _ => {
            voter.key.directory = directory.0;
            Ok(())
        }
    }
}

/// What is left for the first start beside the metadata log; `None`: nothing. As Kafka's `StorageTool` decides it.
fn first_voters(config: &BrokerConfig, quorum: &FirstQuorum) -> Result<Option<Vec<FirstVoter>>, FormatError> {
    let refuse = |reason: &str| Err(FormatError(reason.to_owned()));
    let cluster = config.cluster.as_ref();
    let changing = cluster.and_then(|cluster| cluster.changing.as_ref());
    let Some(changing) = changing else {
        return match (quorum, cluster) {
            (FirstQuorum::Unsaid, _) => Ok(None),
            // A node alone is all of its cluster.
            (FirstQuorum::Standalone, None) => Ok(None),
            (FirstQuorum::Standalone, Some(cluster)) if cluster.observes => {
                refuse("--standalone is for controllers, and process.roles is broker alone")
            }
            (_, Some(cluster)) if cluster.observes => Ok(None),
            (_, Some(_)) => refuse("controller.quorum.voters says who votes: nothing else can be told here"),
            (_, None) => refuse(
                "controller.quorum.bootstrap.servers names no controller beside this node: it is a node alone",
            ),
        };
    };
    match quorum {
        FirstQuorum::Unsaid if changing.may_be_alone => Ok(None),
        FirstQuorum::Unsaid => refuse(
            "controller.quorum.voters is not set on this controller; wanted one of --standalone, --initial-controllers \
             and --no-initial-controllers",
        ),
        FirstQuorum::Standalone => {
            let key = VoterKey { node: config.node_id, directory: uuid::Uuid::new_v4() };
            Ok(Some(vec![FirstVoter { key, address: own_address(changing) }]))
        }
        FirstQuorum::Initial(text) => match raft::parse_first_voters(text) {
            Ok(voters) => Ok(Some(voters)),
            Err(reason) => refuse(&format!("--initial-controllers: {reason}")),
        },
        FirstQuorum::NotHere => Ok(Some(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "MkU3OEVBNTcwNTJENDM2Qg";

    fn run(dirs: &str, node: &str, id: &str, ignore_formatted: bool) -> Result<Vec<Done>, String> {
        let set = [("log.dirs", dirs), ("node.id", node)].map(|(name, value)| (name.into(), value.into()));
        done(format(None, &set, id, ignore_formatted, &FirstQuorum::Unsaid))
    }

    fn done(formatted: Result<Formatted, FormatError>) -> Result<Vec<Done>, String> {
        let formatted = formatted.map_err(|FormatError(message)| message)?;
        Ok(formatted.directories.iter().map(|(_, done)| *done).collect())
    }

    #[test]
    fn every_directory_is_formatted_once() {
        let home = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| home.path().join(name));
        let both = format!("{},{}", one.display(), two.display());
        assert_eq!(run(&one.display().to_string(), "3", ID, false), Ok(vec![Done::All]));
        assert!(run(&both, "3", ID, false).unwrap_err().contains("formatted already"));
        assert!(!two.join("meta.properties").exists(), "nothing is done by halves");
        assert_eq!(run(&both, "3", ID, true), Ok(vec![Done::Nothing, Done::All]));
        let text = std::fs::read_to_string(two.join("meta.properties")).unwrap();
        assert!(text.contains(&format!("cluster.id={ID}")) && text.contains("node.id=3"), "{text}");
        assert!(run(&both, "4", ID, true).unwrap_err().contains("node 3's of cluster"));
        assert!(run(&both, "3", &new_cluster_id(), true).unwrap_err().contains("node 3's of cluster"));
        assert!(run(&both, "3", "short", true).unwrap_err().contains("is no cluster id"));
    }

    const SERVERS: (&str, &str) = ("controller.quorum.bootstrap.servers", "localhost:9093,localhost:9094");

    fn told(home: &std::path::Path, more: &[(&str, &str)], quorum: &FirstQuorum) -> Result<String, String> {
        let own = [
            ("log.dirs", home.to_str().unwrap()),
            ("node.id", "3"),
            ("listeners", "PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093"),
            ("controller.listener.names", "CONTROLLER"),
        ];
        let set = own.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let set: Vec<(String, String)> = set.collect();
        let formatted = format(None, &set, ID, false, quorum);
        formatted.map_err(|FormatError(message)| message)?;
        let text =
            std::fs::read_to_string(raft::first_voters_path(home)).unwrap_or_else(|_| "none".to_owned());
        Ok(text)
    }

    #[test]
    fn a_controller_is_told_who_votes_first() {
        let home = tempfile::tempdir().unwrap();
        let initial = "3@h:9093:JEXY6aqzQY-32P5TStzaFg,1@g:9093:MvDxzVmcRsaTz33bUuRU6A".to_owned();
        let quorums = [
            (FirstQuorum::Standalone, "version=1\n3@127.0.0.1:9093:"),
            (FirstQuorum::Initial(initial), "version=1\n3@h:9093:JEXY6aqzQY-32P5TStzaFg\n1@g:9093:"),
            (FirstQuorum::NotHere, "version=1\n"),
        ];
        for (number, (quorum, expected)) in quorums.iter().enumerate() {
            let dir = home.path().join(number.to_string());
            let text = told(&dir, &[SERVERS], quorum).unwrap();
            assert!(text.starts_with(expected), "{text}");
            let meta = std::fs::read_to_string(dir.join("meta.properties")).unwrap();
            let id = meta.lines().find_map(|line| line.strip_prefix("directory.id=")).unwrap();
            // Its directory is the one that votes.
            assert!(number == 2 || text.contains(&format!(":9093:{id}\n")), "{text} {meta}");
        }
    }

    #[test]
    fn who_votes_is_told_where_it_is_not_known_and_nowhere_else() {
        let home = tempfile::tempdir().unwrap();
        let refusal =
            |more: &[(&str, &str)], quorum| told(&home.path().join("no"), more, &quorum).unwrap_err();
        assert!(refusal(&[SERVERS], FirstQuorum::Unsaid).contains("wanted one of --standalone"));
        let bad = FirstQuorum::Initial("1@h:9093".to_owned());
        assert!(refusal(&[SERVERS], bad).contains("is not id@host:port:directory-id"));
        let voters = ("controller.quorum.voters", "3@127.0.0.1:9093,1@localhost:9094");
        assert!(
            refusal(&[voters], FirstQuorum::Standalone).contains("controller.quorum.voters says who votes")
        );
        let observer = [("process.roles", "broker"), ("listeners", "PLAINTEXT://:9092"), SERVERS];
        assert!(refusal(&observer, FirstQuorum::Standalone).contains("is for controllers"));
        assert!(refusal(&[], FirstQuorum::NotHere).contains("it is a node alone"));
        let own = ("controller.quorum.bootstrap.servers", "localhost:9093");
        for (dir, more, quorum) in [
            ("a", &[own][..], FirstQuorum::Unsaid),
            ("b", &[][..], FirstQuorum::Standalone),
            ("c", &observer[..], FirstQuorum::NotHere),
        ] {
            assert_eq!(told(&home.path().join(dir), more, &quorum), Ok("none".to_owned()), "{dir}");
        }
    }

    /// As Kafka's own server.properties, but for the directory.
    fn as_kafkas_file(
        home: &Path,
        quorum: &FirstQuorum,
        ignore_formatted: bool,
    ) -> Result<Formatted, FormatError> {
        let set = [
            ("process.roles", "broker,controller"),
            ("node.id", "1"),
            ("controller.quorum.bootstrap.servers", "localhost:9093"),
            ("listeners", "PLAINTEXT://:9092,CONTROLLER://:9093"),
            ("inter.broker.listener.name", "PLAINTEXT"),
            ("advertised.listeners", "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093"),
            ("controller.listener.names", "CONTROLLER"),
            ("log.dirs", home.to_str().unwrap()),
        ];
        format(None, &set.map(|(name, value)| (name.into(), value.into())), ID, ignore_formatted, quorum)
    }

    #[test]
    fn kafkas_own_file_is_enough_for_a_node_alone_and_not_for_one_of_several() {
        let home = tempfile::tempdir().unwrap();
        let [alone, first, other] = ["alone", "first", "other"].map(|name| home.path().join(name));
        assert_eq!(as_kafkas_file(&alone, &FirstQuorum::Unsaid, false).unwrap().warning, None);
        let warning = as_kafkas_file(&first, &FirstQuorum::Standalone, false).unwrap().warning.unwrap();
        let expected =
            "nodes on other machines cannot join this one as it is set up: kuring.peers.secret.file: not set";
        assert!(warning.starts_with(expected), "{warning}");
        let two = "1@localhost:9093:JEXY6aqzQY-32P5TStzaFg,2@far:9093:MvDxzVmcRsaTz33bUuRU6A".to_owned();
        for quorum in [FirstQuorum::NotHere, FirstQuorum::Initial(two)] {
            let FormatError(refusal) = as_kafkas_file(&other, &quorum, false).unwrap_err();
            assert!(refusal.starts_with("kuring.peers.secret.file: not set"), "{refusal}");
        }
        assert!(!other.exists(), "what serve would refuse is not formatted");
    }

    #[test]
    fn who_votes_may_be_told_later_until_the_first_start() {
        let home = tempfile::tempdir().unwrap();
        let again = |quorum: &FirstQuorum, ignore| done(as_kafkas_file(home.path(), quorum, ignore));
        assert_eq!(again(&FirstQuorum::Unsaid, false), Ok(vec![Done::All]));
        let refusal = again(&FirstQuorum::Standalone, false).unwrap_err();
        assert!(refusal.contains("is formatted already; --ignore-formatted leaves what is"), "{refusal}");
        let own = MetaProperties::read(&OsFiles, home.path()).unwrap().unwrap().directory_id;
        let initial = |id| FirstQuorum::Initial(format!("1@localhost:9093:{id}"));
        let refusal = again(&initial("JEXY6aqzQY-32P5TStzaFg".to_owned()), true).unwrap_err();
        assert!(refusal.contains(&own.to_string()), "{refusal}");
        assert_eq!(again(&FirstQuorum::Standalone, true), Ok(vec![Done::Voters]));
        let voters = raft::read_first_voters(&OsFiles, home.path()).unwrap().unwrap();
        let key = VoterKey { node: BrokerId(1), directory: own.0 };
        assert_eq!(voters.iter().map(|voter| voter.key).collect::<Vec<_>>(), [key]);
        // Once told it is not told otherwise; who says nothing changes nothing.
        for quorum in [FirstQuorum::Standalone, initial(own.to_string()), FirstQuorum::Unsaid] {
            assert_eq!(again(&quorum, true), Ok(vec![Done::Nothing]));
        }
        std::fs::remove_file(raft::first_voters_path(home.path())).unwrap();
        std::fs::create_dir(home.path().join(METADATA_DIR)).unwrap();
        let refusal = again(&FirstQuorum::Standalone, true).unwrap_err();
        assert!(refusal.contains("has been in use since"), "{refusal}");
        assert_eq!(again(&FirstQuorum::Unsaid, true), Ok(vec![Done::Nothing]));
    }
}
