//! The stored form of what openraft keeps: votes, entries, snapshot heads. Our own and versioned, in the
//! primitives of [`crate::metadata`]'s codec; openraft's serde types may change between its versions.
//!
//! Version 1 of entries and snapshot heads was a single node's: its memberships have an address where version 2
//! has a member's directory, and the node's id for the id of its member. Version 3 has the address after that, and is written
//! where a member has one. A log id has kept the place of the leading
//! node beside the term: it is written as 0 and not read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use openraft::EntryPayload;

use super::types::{
    CommittedLeaderId, Entry, LeaderId, LogId, Member, Membership, Proposal, Seat, SnapshotMeta,
    StoredMembership, Vote,
};
use crate::base::BrokerId;
use crate::metadata::{DecodeError, Reader, Writer, decode_records, encode_records};
use crate::peer::Address;

/// Of entries, and of the heads of snapshots.
const VERSION: u8 = 2;
/// What memberships looked like before there were members.
const VERSION_ALONE: u8 = 1;
/// Members have addresses.
const VERSION_WITH_ADDRESSES: u8 = 3;

const BLANK: u8 = 0;
const NORMAL: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// The lowest version that has all of it.
pub fn version_of(membership: &Membership) -> u8 {
    let has_addresses = membership.nodes().any(|(_, member)| member.address.is_some());
    if has_addresses { VERSION_WITH_ADDRESSES } else { VERSION }
}

/// Whether it can be read here.
pub fn is_known(version: u8) -> bool {
    (VERSION_ALONE..=VERSION_WITH_ADDRESSES).contains(&version)
}

/// Appends the form of `entry`.
pub fn encode_entry(entry: &Entry, out: &mut Vec<u8>) {
    let mut writer = Writer(out);
    let version = match &entry.payload {
        EntryPayload::Membership(membership) => version_of(membership),
        EntryPayload::Blank | EntryPayload::Normal(_) => VERSION,
    };
    writer.u8(version);
    write_log_id(&mut writer, &entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => writer.u8(BLANK),
        EntryPayload::Normal(proposal) => {
            writer.u8(NORMAL);
            encode_records(&proposal.records, out);
        }
        EntryPayload::Membership(membership) => {
            writer.u8(MEMBERSHIP);
            write_membership(&mut writer, membership, version);
        }
    }
}

pub fn decode_entry(bytes: &[u8]) -> Result<Entry, DecodeError> {
    let mut reader = Reader(bytes);
    let version = reader.u8()?;
    if !is_known(version) {
        return Err(DecodeError::BatchVersion(version));
    }
    let log_id = read_log_id(&mut reader)?;
    let payload = match reader.u8()? {
        BLANK => EntryPayload::Blank,
        NORMAL => {
            let records = Arc::from(decode_records(reader.0)?);
            return Ok(Entry { log_id, payload: EntryPayload::Normal(Proposal { records }) });
        }
        MEMBERSHIP => EntryPayload::Membership(read_membership(&mut reader, version)?),
        _ => return Err(DecodeError::Value("kind of entry")),
    };
    reader.end()?;
    Ok(Entry { log_id, payload })
}

pub fn write_log_id(writer: &mut Writer<'_>, log_id: &LogId) {
    writer.unsigned(log_id.leader_id.term);
    writer.unsigned(0);
    writer.unsigned(log_id.index);
}

pub fn read_log_id(reader: &mut Reader<'_>) -> Result<LogId, DecodeError> {
    let leader_id = CommittedLeaderId::from(reader.unsigned()?);
    reader.unsigned()?;
    Ok(LogId { leader_id, index: reader.unsigned()? })
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
    writer.unsigned(vote.leader_id.term);
    writer.unsigned(vote.leader_id.voted_for.0);
    writer.bool(vote.committed);
}

pub fn read_vote(reader: &mut Reader<'_>) -> Result<Vote, DecodeError> {
    let leader_id = LeaderId { term: reader.unsigned()?, voted_for: Seat(reader.unsigned()?) };
    Ok(Vote { leader_id, committed: reader.bool()? })
}

/// In the version of its membership, which is not in it.
pub fn write_snapshot_meta(writer: &mut Writer<'_>, meta: &SnapshotMeta) {
    let membership = meta.last_membership.membership();
    write_log_id_option(writer, &meta.last_log_id);
    write_log_id_option(writer, meta.last_membership.log_id());
    write_membership(writer, membership, version_of(membership));
}

/// On its way to another node the version comes before it.
pub fn send_snapshot_meta(writer: &mut Writer<'_>, meta: &SnapshotMeta) {
    writer.u8(version_of(meta.last_membership.membership()));
    write_snapshot_meta(writer, meta);
}

pub fn receive_snapshot_meta(reader: &mut Reader<'_>) -> Result<SnapshotMeta, DecodeError> {
    match reader.u8()? {
        version if is_known(version) => read_snapshot_meta(reader, version),
        version => Err(DecodeError::BatchVersion(version)),
    }
}

pub fn read_snapshot_meta(reader: &mut Reader<'_>, version: u8) -> Result<SnapshotMeta, DecodeError> {
    let last_log_id = read_log_id_option(reader)?;
    let membership_log_id = read_log_id_option(reader)?;
    let membership = read_membership(reader, version)?;
    Ok(SnapshotMeta { last_log_id, last_membership: StoredMembership::new(membership_log_id, membership) })
}

fn write_membership(writer: &mut Writer<'_>, membership: &Membership, version: u8) {
    let configs = membership.get_joint_config();
    writer.unsigned(configs.len() as u64);
    for voters in configs {
        writer.unsigned(voters.len() as u64);
        for voter in voters {
            writer.unsigned(voter.0);
        }
    }
    let nodes: Vec<_> = membership.nodes().collect();
    writer.unsigned(nodes.len() as u64);
    for (seat, member) in nodes {
        writer.unsigned(seat.0);
        writer.signed(i64::from(member.node.0));
        writer.uuid(&member.directory);
        if version >= VERSION_WITH_ADDRESSES {
            write_address(writer, member.address.as_ref());
        }
    }
}

fn write_address(writer: &mut Writer<'_>, address: Option<&Address>) {
    writer.bool(address.is_some());
    if let Some((host, port)) = address {
        writer.text(host);
        writer.unsigned(u64::from(*port));
    }
}

fn read_address(reader: &mut Reader<'_>) -> Result<Option<Address>, DecodeError> {
    if !reader.bool()? {
        return Ok(None);
    }
    let host = reader.text()?.to_owned();
    let port = u16::try_from(reader.unsigned()?).map_err(|_| DecodeError::Value("port"))?;
    Ok(Some((host, port)))
}

fn read_membership(reader: &mut Reader<'_>, version: u8) -> Result<Membership, DecodeError> {
    let mut configs = Vec::new();
    // No capacity from the counts: each element is read before the next is made.
    for _ in 0..reader.unsigned()? {
        let mut voters = BTreeSet::new();
        for _ in 0..reader.unsigned()? {
            voters.insert(Seat(reader.unsigned()?));
        }
        configs.push(voters);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..reader.unsigned()? {
        let seat = Seat(reader.unsigned()?);
        nodes.insert(seat, read_member(reader, seat, version)?);
    }
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, nodes).map_err(|_| DecodeError::Value("membership"))
}

fn read_member(reader: &mut Reader<'_>, seat: Seat, version: u8) -> Result<Member, DecodeError> {
    let node = |number: i64| i32::try_from(number).map(BrokerId).map_err(|_| DecodeError::Value("node id"));
    if version == VERSION_ALONE {
        reader.text()?;
        let number = i64::try_from(seat.0).map_err(|_| DecodeError::Value("node id"))?;
        return Ok(Member { node: node(number)?, ..Member::default() });
    }
    let (node, directory) = (node(reader.signed()?)?, reader.uuid()?);
    let address = if version >= VERSION_WITH_ADDRESSES { read_address(reader)? } else { None };
    Ok(Member { node, directory, address })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::metadata::Record;

    fn log_id(term: u64, index: u64) -> LogId {
        LogId { leader_id: CommittedLeaderId::from(term), index }
    }

    fn membership() -> impl Strategy<Value = Membership> {
        let config = prop::collection::btree_set(0u64..5, 1..4);
        let place = (any::<u128>(), prop::option::of((".{0,9}", any::<u16>())));
        (prop::collection::vec(config, 0..3), place).prop_map(|(configs, (directory, address))| {
            let directory = uuid::Uuid::from_u128(directory);
            // One of them has none.
            let address = |id| address.clone().filter(|_| id != 3);
            let member = |id: u64| Member { node: BrokerId(id as i32 + 7), directory, address: address(id) };
            let members: BTreeMap<Seat, Member> = (0..6).map(|id| (Seat(id), member(id))).collect();
            let configs: Vec<BTreeSet<Seat>> =
                configs.into_iter().map(|config| config.into_iter().map(Seat).collect()).collect();
            if configs.is_empty() {
                Membership::default()
            } else {
                Membership::new(configs, members).unwrap()
            }
        })
    }

    /// A node's first entry as it was written before there were members.
    #[test]
    fn the_membership_of_a_node_alone_opens_as_it_was_written() {
        let mut bytes = Vec::new();
        let mut writer = Writer(&mut bytes);
        writer.u8(1);
        // Term, node, index; one configuration of one voter; one node with its address.
        [0, 4, 0].into_iter().for_each(|number| writer.unsigned(number));
        writer.u8(MEMBERSHIP);
        [1, 1, 4, 1, 4].into_iter().for_each(|number| writer.unsigned(number));
        writer.text("");
        let entry = decode_entry(&bytes).unwrap();
        assert_eq!(entry.log_id, log_id(0, 0));
        let EntryPayload::Membership(membership) = entry.payload else { panic!("{:?}", entry.payload) };
        assert!(membership.voter_ids().eq([Seat(4)]));
        let member = Member { node: BrokerId(4), ..Member::default() };
        assert_eq!(membership.get_node(&Seat(4)), Some(&member));
    }

    proptest! {
        #[test]
        fn entries_come_back_as_they_were_and_no_prefix_passes(
            term: u64, index: u64, membership in membership(), name in ".{0,9}", kind in 0..3,
        ) {
            let payload = match kind {
                0 => EntryPayload::Blank,
                1 => EntryPayload::Normal(Proposal { records: Arc::from([Record::Feature { name, level: 3 }]) }),
                _ => EntryPayload::Membership(membership),
            };
            let entry = Entry { log_id: log_id(term, index), payload };
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
            last in prop::option::of(any::<(u64, u64)>()), membership in membership(),
        ) {
            let last_log_id = last.map(|(term, index)| log_id(term, index));
            let last_membership = StoredMembership::new(last_log_id, membership);
            let meta = SnapshotMeta { last_log_id, last_membership };
            let mut bytes = Vec::new();
            send_snapshot_meta(&mut Writer(&mut bytes), &meta);
            prop_assert_eq!(receive_snapshot_meta(&mut Reader(&bytes)), Ok(meta));
        }
    }
}
