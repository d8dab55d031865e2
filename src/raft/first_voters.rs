//! The voters that a cluster begins with where they may change later: what `kuring format` leaves for the first start, in
//! `kuring-metadata.voters` beside the metadata log. Kafka's tool leaves a snapshot of its own log there.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use super::voters::VoterKey;
use crate::base::{BrokerId, TopicId};
use crate::io::Files;
use crate::peer::Address;

const FILE: &str = "kuring-metadata.voters";
const HEAD: &str = "version=1";
const BYTES_MAX: usize = 64 << 10;

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FirstVoter {
    pub key: VoterKey,
    pub address: Address,
}

/// `id@host:port:directory-id`, as Kafka's `DynamicVoter`; an IPv6 address is in brackets.
impl fmt::Display for FirstVoter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = &self.address;
        let id = TopicId(self.key.directory);
        match host.contains(':') {
            true => write!(f, "{}@[{host}]:{port}:{id}", self.key.node),
            false => write!(f, "{}@{host}:{port}:{id}", self.key.node),
        }
    }
}

impl FirstVoter {
    fn parse(text: &str) -> Option<Self> {
        let (id, rest) = text.trim().split_once('@')?;
        let node = id.parse::<i32>().ok().filter(|id| *id >= 0).map(BrokerId)?;
        let (address, directory) = rest.rsplit_once(':')?;
        let directory = directory.parse::<TopicId>().ok().filter(|id| !id.is_zero())?.0;
        let (host, port) = address.rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            Some(host) => host.strip_suffix(']')?,
            None => host,
        };
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (!host.is_empty())
            .then(|| Self { key: VoterKey { node, directory }, address: (host.to_owned(), port) })
    }
}

/// Several, with commas between; the error is a line for the operator.
pub fn parse_first_voters(text: &str) -> Result<Vec<FirstVoter>, String> {
    let voters: Vec<FirstVoter> = text
        .split(',')
        .map(|one| FirstVoter::parse(one).ok_or_else(|| format!("{one:?} is not id@host:port:directory-id")))
        .collect::<Result<_, _>>()?;
    check_ids(&voters)?;
    Ok(voters)
}

fn check_ids(voters: &[FirstVoter]) -> Result<(), String> {
    let mut ids = BTreeSet::new();
    match voters.iter().find(|voter| !ids.insert(voter.key.node)) {
        Some(twice) => Err(format!("node id {} is given more than once", twice.key.node)),
        None => Ok(()),
    }
}

/// Where they are, in the directory of the metadata log.
pub fn first_voters_path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// What was written there, perhaps that there are none; `None` where nothing was. The error is a line for the operator.
pub fn read_first_voters(files: &impl Files, dir: &Path) -> Result<Option<Vec<FirstVoter>>, String> {
    let path = first_voters_path(dir);
    let failed = |what: String| format!("{}: {what}", path.display());
    if !files.exists(&path).map_err(|error| failed(error.to_string()))? {
        return Ok(None);
    }
    let contents = files.read_small(&path, BYTES_MAX).map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8(contents).map_err(|_| failed("it is no text".to_owned()))?;
    let mut lines = text.lines();
    match lines.next() {
        Some(HEAD) => {}
        head => return Err(failed(format!("it begins with {head:?}; wanted: {HEAD}"))),
    }
    let voters = lines.collect::<Vec<_>>().join(",");
    match voters.is_empty() {
        true => Ok(Some(Vec::new())),
        false => parse_first_voters(&voters).map(Some).map_err(failed),
    }
}

pub fn write_first_voters(files: &impl Files, dir: &Path, voters: &[FirstVoter]) -> std::io::Result<()> {
    let mut text = format!("{HEAD}\n");
    voters.iter().for_each(|voter| text.push_str(&format!("{voter}\n")));
    files.write_atomically(&first_voters_path(dir), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::os::OsFiles;

    const TWO: &str = "0@example.com:8082:JEXY6aqzQY-32P5TStzaFg,1@[::1]:8083:MvDxzVmcRsaTz33bUuRU6A";

    #[test]
    fn voters_come_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_first_voters(&OsFiles, dir.path()), Ok(None));
        write_first_voters(&OsFiles, dir.path(), &[]).unwrap();
        assert_eq!(read_first_voters(&OsFiles, dir.path()), Ok(Some(Vec::new())));
        let voters = parse_first_voters(TWO).unwrap();
        assert_eq!((voters[1].address.0.as_str(), voters[1].address.1), ("::1", 8083));
        write_first_voters(&OsFiles, dir.path(), &voters).unwrap();
        assert_eq!(read_first_voters(&OsFiles, dir.path()), Ok(Some(voters.clone())));
        let texts: Vec<String> = voters.iter().map(FirstVoter::to_string).collect();
        assert_eq!(texts.join(","), TWO);
        std::fs::write(first_voters_path(dir.path()), "version=2\n").unwrap();
        assert!(read_first_voters(&OsFiles, dir.path()).unwrap_err().contains("wanted: version=1"));
    }

    #[test]
    fn a_voter_that_cannot_be_is_refused_with_its_text() {
        for text in [
            "",
            "1",
            "1@host:9093",
            "1@host:9093:short",
            "-1@host:9093:JEXY6aqzQY-32P5TStzaFg",
            "1@:9093:JEXY6aqzQY-32P5TStzaFg",
            "1@host:0:JEXY6aqzQY-32P5TStzaFg",
            "1@[::1:9093:JEXY6aqzQY-32P5TStzaFg",
            "1@host:9093:AAAAAAAAAAAAAAAAAAAAAA",
        ] {
            let refusal = parse_first_voters(text).unwrap_err();
            assert!(refusal.contains("is not id@host:port:directory-id"), "{text}: {refusal}");
        }
        let twice = format!("{TWO},0@other:9093:07R5amHmR32VDA6jHkGbTA");
        assert!(parse_first_voters(&twice).unwrap_err().contains("node id 0 is given more than once"));
    }
}
