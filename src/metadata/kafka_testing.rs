//! Files of Kafka's metadata log as its controller makes them, record by record.

use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::wire::record::{BatchBuilder, Compression, ControlType};

pub(crate) const TOPIC: u128 = 0x1234;

pub(crate) fn framed(key: u8, version: u8, body: &[u8]) -> Vec<u8> {
    [&[1, key, version], body].concat()
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    [&[text.len() as u8 + 1], text.as_bytes()].concat()
}

pub(crate) fn id(id: u128) -> Vec<u8> {
    id.to_be_bytes().to_vec()
}

pub(crate) fn ints(values: &[i32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
    [&[values.len() as u8 + 1], bytes.as_slice()].concat()
}

pub(crate) fn topic(name: &str, topic: u128) -> Vec<u8> {
    framed(2, 0, &[text(name), id(topic), vec![0]].concat())
}

pub(crate) fn partition(topic: u128, index: i32, replicas: &[i32], epoch: i32) -> Vec<u8> {
    let directories = [vec![replicas.len() as u8 + 1], id(77).repeat(replicas.len())].concat();
    let fields = [
        index.to_be_bytes().to_vec(),
        id(topic),
        ints(replicas),
        ints(replicas),
        ints(&[]),
        ints(&[]),
        replicas[0].to_be_bytes().to_vec(),
        epoch.to_be_bytes().to_vec(),
        3i32.to_be_bytes().to_vec(),
        directories,
        vec![0],
    ];
    framed(3, 1, &fields.concat())
}

pub(crate) fn new_leader(topic: u128, index: i32, leader: i32) -> Vec<u8> {
    let tagged = [vec![1, 1, 4], leader.to_be_bytes().to_vec()].concat();
    framed(5, 0, &[index.to_be_bytes().to_vec(), id(topic), tagged].concat())
}

pub(crate) fn config(kind: u8, resource: &str, name: &str, value: Option<&str>) -> Vec<u8> {
    let value = value.map_or(vec![0], text);
    framed(4, 0, &[vec![kind], text(resource), text(name), value, vec![0]].concat())
}

/// A limit of 0 takes the quota away.
pub(crate) fn quota(parts: &[(&str, Option<&str>)], key: &str, limit: f64) -> Vec<u8> {
    let part =
        |(kind, name): &(&str, Option<&str>)| [text(kind), name.map_or(vec![0], text), vec![0]].concat();
    let parts = [vec![parts.len() as u8 + 1], parts.iter().flat_map(part).collect()].concat();
    let value = limit.to_bits().to_be_bytes().to_vec();
    framed(14, 0, &[parts, text(key), value, vec![u8::from(limit == 0.0)], vec![0]].concat())
}

pub(crate) fn producer_ids(next: i64) -> Vec<u8> {
    let fields =
        [1i32.to_be_bytes().to_vec(), 5i64.to_be_bytes().to_vec(), next.to_be_bytes().to_vec(), vec![0]];
    framed(15, 0, &fields.concat())
}

pub(crate) fn batch(base: i64, records: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Offset(base), Compression::NONE);
    for record in records {
        builder.append(Timestamp(1), None, Some(record), &[]);
    }
    builder.finish().expect("encodes").to_vec()
}

fn control(base: i64, kind: ControlType, value: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Offset(base), Compression::NONE).with_control();
    builder.append(Timestamp(1), Some(&kind.to_key()), Some(value), &[]);
    builder.finish().expect("encodes").to_vec()
}

/// A batch that says who keeps the log (KIP-853).
pub(crate) fn voters(base: i64, ids: &[i32]) -> Vec<u8> {
    let voter = |voter: &i32| {
        let endpoint = [text("CONTROLLER"), text("host"), vec![0x23, 0x85, 0]].concat();
        [voter.to_be_bytes().to_vec(), id(9), vec![2], endpoint, vec![0, 0, 0, 1, 0, 0]].concat()
    };
    let voters: Vec<u8> = ids.iter().flat_map(voter).collect();
    let value = [&[0, 0, ids.len() as u8 + 1], voters.as_slice(), &[0]].concat();
    control(base, ControlType::KraftVoters, &value)
}

/// A snapshot of these records, whole.
pub(crate) fn snapshot(records: &[Vec<u8>]) -> Vec<u8> {
    let footer = control(1 + records.len() as i64, ControlType::SnapshotFooter, &[0, 0]);
    let state = if records.is_empty() { Vec::new() } else { batch(1, records) };
    [control(0, ControlType::SnapshotHeader, &[0, 0]), state, footer].concat()
}
