//! The stored form of what openraft keeps: votes, entries, snapshot heads. Our own and versioned, in the
//! primitives of [`crate::metadata`]'s codec; openraft's serde types may change between its versions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use openraft::{BasicNode, EntryPayload};

use super::types::{Entry, LeaderId, LogId, Membership, Proposal, SnapshotMeta, StoredMembership, Vote};
use crate::metadata::{DecodeError, Reader, Writer, decode_records, encode_records};

const ENTRY_VERSION: u8 = 1;

const BLANK: u8 = 0;
const NORMAL: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// Appends the form of `entry`.
pub fn encode_entry(entry: &Entry, out: &mut Vec<u8>) {
    let mut writer = Writer(out);
    writer.u8(ENTRY_VERSION);
    write_log_id(&mut writer, &entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => writer.u8(BLANK),
        EntryPayload::Normal(proposal) => {
            writer.u8(NORMAL);
            encode_records(&proposal.records, out);
        }
        EntryPayload::Membership(membership) => {
            writer.u8(MEMBERSHIP);
            write_membership(&mut writer, membership);
        }
    }
}

pub fn decode_entry(bytes: &[u8]) -> Result<Entry, DecodeError> {
    let mut reader = Reader(bytes);
    match reader.u8()? {
        ENTRY_VERSION => {}
        version => return Err(DecodeError::BatchVersion(version)),
    }
    let log_id = read_log_id(&mut reader)?;
    let payload = match reader.u8()? {
        BLANK => EntryPayload::Blank,
        NORMAL => {
            let records = Arc::from(decode_records(reader.0)?);
            return Ok(Entry { log_id, payload: EntryPayload::Normal(Proposal { records }) });
        }
        MEMBERSHIP => EntryPayload::Membership(read_membership(&mut reader)?),
        _ => return Err(DecodeError::Value("kind of entry")),
    };
    reader.end()?;
    Ok(Entry { log_id, payload })
}

pub fn write_log_id(writer: &mut Writer<'_>, log_id: &LogId) {
    write_leader(writer, &log_id.leader_id);
    writer.unsigned(log_id.index);
}

pub fn read_log_id(reader: &mut Reader<'_>) -> Result<LogId, DecodeError> {
    Ok(LogId { leader_id: read_leader(reader)?, index: reader.unsigned()? })
}

pub fn write_log_id_option(writer: &mut Writer<'_>, log_id: &Option<LogId>) {
    writer.bool(log_id.is_some());
    if let Some(log_id) = log_id {
        write_log_id(writer, log_id);
    }
}

pub fn read_log_id_option(reader: &mut Reader<'_>) -> Result<Option<LogId>, DecodeError> {
    if reader.bool()? { read_log_id(reader).map(Some) } else { Ok(None) }
}

pub fn write_vote(writer: &mut Writer<'_>, vote: &Vote) {
    write_leader(writer, &vote.leader_id);
    writer.bool(vote.committed);
}

pub fn read_vote(reader: &mut Reader<'_>) -> Result<Vote, DecodeError> {
    Ok(Vote { leader_id: read_leader(reader)?, committed: reader.bool()? })
}

pub fn write_snapshot_meta(writer: &mut Writer<'_>, meta: &SnapshotMeta) {
    write_log_id_option(writer, &meta.last_log_id);
    write_log_id_option(writer, meta.last_membership.log_id());
    write_membership(writer, meta.last_membership.membership());
}

pub fn read_snapshot_meta(reader: &mut Reader<'_>) -> Result<SnapshotMeta, DecodeError> {
    let last_log_id = read_log_id_option(reader)?;
    let membership_log_id = read_log_id_option(reader)?;
    let membership = read_membership(reader)?;
    Ok(SnapshotMeta { last_log_id, last_membership: StoredMembership::new(membership_log_id, membership) })
}

fn write_leader(writer: &mut Writer<'_>, leader: &LeaderId) {
    writer.unsigned(leader.term);
    writer.unsigned(leader.node_id);
}

fn read_leader(reader: &mut Reader<'_>) -> Result<LeaderId, DecodeError> {
    Ok(LeaderId { term: reader.unsigned()?, node_id: reader.unsigned()? })
}

fn write_membership(writer: &mut Writer<'_>, membership: &Membership) {
    let configs = membership.get_joint_config();
    writer.unsigned(configs.len() as u64);
    for voters in configs {
        writer.unsigned(voters.len() as u64);
        for voter in voters {
            writer.unsigned(*voter);
        }
    }
    let nodes: Vec<_> = membership.nodes().collect();
    writer.unsigned(nodes.len() as u64);
    for (id, node) in nodes {
        writer.unsigned(*id);
        writer.text(&node.addr);
    }
}

fn read_membership(reader: &mut Reader<'_>) -> Result<Membership, DecodeError> {
    let mut configs = Vec::new();
    // No capacity from the counts: each element is read before the next is made.
    for _ in 0..reader.unsigned()? {
        let mut voters = BTreeSet::new();
        for _ in 0..reader.unsigned()? {
            voters.insert(reader.unsigned()?);
        }
        configs.push(voters);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..reader.unsigned()? {
        let id = reader.unsigned()?;
        nodes.insert(id, BasicNode { addr: reader.text()?.to_owned() });
    }
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, nodes).map_err(|_| DecodeError::Value("membership"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::metadata::Record;

    fn log_id(term: u64, node_id: u64, index: u64) -> LogId {
        LogId { leader_id: LeaderId { term, node_id }, index }
    }

    fn membership() -> impl Strategy<Value = Membership> {
        let config = prop::collection::btree_set(0u64..5, 1..4);
        (prop::collection::vec(config, 0..3), ".{0,9}").prop_map(|(configs, addr)| {
            let nodes: BTreeMap<u64, BasicNode> =
                (0..6).map(|id| (id, BasicNode { addr: addr.clone() })).collect();
            if configs.is_empty() { Membership::default() } else { Membership::new(configs, nodes).unwrap() }
        })
    }

    proptest! {
        #[test]
        fn entries_come_back_as_they_were_and_no_prefix_passes(
            term: u64, node: u64, index: u64, membership in membership(), name in ".{0,9}", kind in 0..3,
        ) {
            let payload = match kind {
                0 => EntryPayload::Blank,
                1 => EntryPayload::Normal(Proposal { records: Arc::from([Record::Feature { name, level: 3 }]) }),
                _ => EntryPayload::Membership(membership),
            };
            let entry = Entry { log_id: log_id(term, node, index), payload };
            let mut bytes = Vec::new();
            encode_entry(&entry, &mut bytes);
            let back = decode_entry(&bytes).unwrap();
            prop_assert_eq!(&back.log_id, &entry.log_id);
            prop_assert_eq!(format!("{:?}", back.payload), format!("{:?}", entry.payload));
            for end in 0..bytes.len() {
                prop_assert!(decode_entry(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn snapshot_heads_come_back_as_they_were(
            last in prop::option::of(any::<(u64, u64, u64)>()), membership in membership(),
        ) {
            let last_log_id = last.map(|(term, node, index)| log_id(term, node, index));
            let last_membership = StoredMembership::new(last_log_id, membership);
            let meta = SnapshotMeta { last_log_id, last_membership };
            let mut bytes = Vec::new();
            write_snapshot_meta(&mut Writer(&mut bytes), &meta);
            prop_assert_eq!(read_snapshot_meta(&mut Reader(&bytes)), Ok(meta));
        }
    }
}
