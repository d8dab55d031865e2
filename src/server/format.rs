//! Makes log directories those of a node of a cluster, before it starts for the first time.

use std::path::PathBuf;

use super::{StartError, load};
use crate::base::TopicId;
use crate::io::os::OsFiles;
use crate::log::{DirLock, LogDir, MetaProperties};

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

/// Writes `meta.properties` into every log directory of the configuration; each with whether it was new. Looks at all of
/// them before the first is written.
pub fn format(
    config: Option<PathBuf>,
    set: &[(String, String)],
    cluster_id: &str,
    ignore_formatted: bool,
) -> Result<Vec<(PathBuf, bool)>, FormatError> {
    if cluster_id.parse::<TopicId>().is_err() {
        return Err(FormatError(format!(
            "{cluster_id:?} is no cluster id: wanted 22 letters as `kuring format --new-id` prints them"
        )));
    }
    let config = load(config.as_deref(), set)?.config;
    let mut directories = Vec::new();
    for path in &config.log_dirs {
        let lock = DirLock::acquire(path).map_err(StartError::from)?;
        let known = MetaProperties::read(&OsFiles, path).map_err(StartError::from)?;
        let is_ours =
            |known: &MetaProperties| known.cluster_id == cluster_id && known.node_id == config.node_id;
        match &known {
            Some(known) if !is_ours(known) => {
                return Err(FormatError(format!(
                    "{} is node {}'s of cluster {}",
                    path.display(),
                    known.node_id,
                    known.cluster_id
                )));
            }
            Some(_) if !ignore_formatted => {
                return Err(FormatError(format!("{} is formatted already", path.display())));
            }
            _ => directories.push((path, lock, known.is_none())),
        }
    }
    let mut formatted = Vec::new();
    for (path, _lock, is_new) in directories {
        if is_new {
            LogDir::open(OsFiles, path, cluster_id, config.node_id).map_err(StartError::from)?;
        }
        formatted.push((path.clone(), is_new));
    }
    Ok(formatted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "MkU3OEVBNTcwNTJENDM2Qg";

    fn run(dirs: &str, node: &str, id: &str, ignore_formatted: bool) -> Result<Vec<bool>, String> {
        let set = [("log.dirs", dirs), ("node.id", node)].map(|(name, value)| (name.into(), value.into()));
        let formatted = format(None, &set, id, ignore_formatted);
        let formatted = formatted.map(|list| list.iter().map(|(_, is_new)| *is_new).collect());
        formatted.map_err(|FormatError(message)| message)
    }

    #[test]
    fn every_directory_is_formatted_once() {
        let home = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| home.path().join(name));
        let both = format!("{},{}", one.display(), two.display());
        assert_eq!(run(&one.display().to_string(), "3", ID, false), Ok(vec![true]));
        assert!(run(&both, "3", ID, false).unwrap_err().contains("formatted already"));
        assert!(!two.join("meta.properties").exists(), "nothing is done by halves");
        assert_eq!(run(&both, "3", ID, true), Ok(vec![false, true]));
        let text = std::fs::read_to_string(two.join("meta.properties")).unwrap();
        assert!(text.contains(&format!("cluster.id={ID}")) && text.contains("node.id=3"), "{text}");
        assert!(run(&both, "4", ID, true).unwrap_err().contains("node 3's of cluster"));
        assert!(run(&both, "3", &new_cluster_id(), true).unwrap_err().contains("node 3's of cluster"));
        assert!(run(&both, "3", "short", true).unwrap_err().contains("is no cluster id"));
    }
}
