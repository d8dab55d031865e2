//! Versions that kafka-protocol does not encode, as bytes: TxnOffsetCommit 6, WriteTxnMarkers 2, DeleteGroups 3. The
//! values are Apache Kafka's.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::ApiKey;
use uuid::Uuid;

use crate::harness::eventually;
use crate::harness::raw::Raw;
use crate::transaction_rules::{Rules, Who};

const OK: i16 = 0;
const UNKNOWN_MEMBER_ID: i16 = 25;
const INVALID_PRODUCER_EPOCH: i16 = 47;
const GROUP_ID_NOT_FOUND: i16 = 69;
const UNKNOWN_TOPIC_ID: i16 = 100;

/// What is behind the header of the answer to a request with a flexible header.
fn call(raw: &mut Raw, key: ApiKey, version: i16, body: &[u8]) -> Bytes {
    let sent = raw.send_as(key as i16, version, 2, body);
    let mut frame = raw.frame();
    assert_eq!((frame.get_i32(), frame.get_u8()), (sent, 0), "correlation id, no tagged field");
    frame
}

fn put_compact(body: &mut BytesMut, text: &str) {
    body.put_u8(text.len() as u8 + 1);
    body.put_slice(text.as_bytes());
}

/// Commits offset 7 of partition 0.
fn commit(h: &mut Rules, name: &str, who: Who, group: &str, member: (&str, i32), topic: Uuid) -> i16 {
    let mut body = BytesMut::new();
    put_compact(&mut body, name);
    put_compact(&mut body, group);
    body.put_i64(who.id);
    body.put_i16(who.epoch);
    body.put_i32(member.1);
    put_compact(&mut body, member.0);
    body.put_u8(0); // no instance
    body.put_u8(2); // one topic
    body.put_slice(topic.as_bytes());
    body.put_u8(2); // one partition
    body.put_i32(0);
    body.put_i64(7);
    body.put_i32(-1);
    put_compact(&mut body, "note");
    body.put_slice(&[0, 0, 0]); // no tagged fields: partition, topic, request
    eventually("the coordinators are loaded", || {
        let mut answer = call(&mut h.raw, ApiKey::TxnOffsetCommit, 6, &body);
        assert_eq!((answer.get_i32(), answer.get_u8()), (0, 2), "not throttled, one topic");
        assert_eq!(answer.split_to(16), topic.as_bytes()[..]);
        assert_eq!((answer.get_u8(), answer.get_i32()), (2, 0), "one partition");
        let error = answer.get_i16();
        assert_eq!(answer[..], [0, 0, 0]);
        // Not available, loading, not the coordinator; what was under way, under transactions v2.
        (!matches!(error, 14..=16 | 51)).then_some(error)
    })
}

#[test]
fn offsets_are_committed_within_a_transaction_by_topic_id() {
    let mut h = Rules::start();
    let nobody = ("", -1);
    let topic = h.raw.topic_id("t");
    let me = h.init("o");
    assert_eq!(commit(&mut h, "o", me, "g", nobody, Uuid::from_u128(7)), UNKNOWN_TOPIC_ID);
    assert_eq!(commit(&mut h, "o", me, "g", ("m", 3), topic), GROUP_ID_NOT_FOUND);
    assert_eq!(commit(&mut h, "o", me, "g", nobody, topic), OK);
    assert_eq!(commit(&mut h, "o", me, "g", ("m", 3), topic), UNKNOWN_MEMBER_ID);
    assert_eq!(h.end(5, "o", me, true).0, OK);
    eventually("the offset counts", || (h.fetch_offset("g", true) == (OK, 7)).then_some(()));
}

#[test]
fn a_marker_of_transactions_v2_has_an_epoch_above_its_transaction() {
    let mut h = Rules::start();
    h.init("m");
    let me = h.init("m");
    assert_eq!(h.produce(12, Some("m"), me, 0, 0).0, OK);
    let mut mark = |epoch: i16, transaction_version: i8| {
        let mut body = BytesMut::new();
        body.put_u8(2); // one marker
        body.put_i64(me.id);
        body.put_i16(epoch);
        body.put_u8(0); // aborts
        body.put_u8(2); // one topic
        put_compact(&mut body, "t");
        body.put_u8(2); // one partition
        body.put_i32(0);
        body.put_u8(0);
        body.put_i32(0); // the coordinator's epoch
        body.put_i8(transaction_version);
        body.put_slice(&[0, 0]);
        let mut answer = call(&mut h.raw, ApiKey::WriteTxnMarkers, 2, &body);
        assert_eq!((answer.get_u8(), answer.get_i64()), (2, me.id));
        assert_eq!((answer.get_u8(), answer.split_to(2)), (2, Bytes::from_static(b"\x02t")));
        assert_eq!((answer.get_u8(), answer.get_i32()), (2, 0));
        let error = answer.get_i16();
        assert_eq!(answer[..], [0, 0, 0, 0]);
        error
    };
    assert_eq!(mark(me.epoch, 2), INVALID_PRODUCER_EPOCH, "it may be one of the transaction before");
    assert_eq!(mark(me.epoch + 1, 2), OK);
    assert_eq!(mark(me.epoch + 1, 2), OK, "written twice");
    assert_eq!(mark(me.epoch, 1), INVALID_PRODUCER_EPOCH);
    assert_eq!(h.raw.list_offset_committed(7, "t", -1).offset, 3, "a record and two markers");
}

#[test]
fn a_group_that_is_not_there_is_not_deleted_without_a_word() {
    let mut h = Rules::start();
    let mut body = BytesMut::new();
    body.put_u8(2);
    put_compact(&mut body, "nobody");
    body.put_u8(0);
    let (error, rest) = eventually("the coordinator is loaded", || {
        let mut answer = call(&mut h.raw, ApiKey::DeleteGroups, 3, &body);
        assert_eq!((answer.get_i32(), answer.get_u8()), (0, 2));
        assert_eq!(answer.split_to(7), b"\x07nobody"[..]);
        let error = answer.get_i16();
        (!matches!(error, 14..=16)).then_some((error, answer))
    });
    assert_eq!(error, GROUP_ID_NOT_FOUND);
    assert_eq!(rest[..], [0, 0, 0], "no message, no tagged fields");
}
