//! Commits within a transaction: what is told to clients of which version. Codes are Apache Kafka's.

use super::consumers::join;
use super::harness::{GROUP, Harness, OK, commit_request};
use crate::base::{ProducerEpoch, ProducerId};
use crate::coordinator::transactions::Producer;
use crate::coordinator::{Request, Response};
use crate::log::Claim;
use crate::wire::ErrorCode;

fn commit(h: &mut Harness, group: &str, member: &str, epoch: i32) -> i16 {
    let commit = commit_request(group, member, epoch, "t", 7);
    let producer = Producer { id: ProducerId(5), epoch: ProducerEpoch(0) };
    match h.call(Request::CommitInTransaction { commit, producer, claim: Claim::Unchecked }) {
        Response::Commit(response) => response.topics[0].partitions[0].error_code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn missing_groups_and_stale_epochs_are_told_to_clients_that_know_them() {
    for (version, missing, stale) in [
        (5, ErrorCode::IllegalGeneration, ErrorCode::IllegalGeneration),
        (6, ErrorCode::GroupIdNotFound, ErrorCode::StaleMemberEpoch),
    ] {
        let (mut h, _) = Harness::consumers(&[("t", 1)]);
        h.beats(join("a", &["t"]));
        h.version = version;
        assert_eq!(commit(&mut h, "nobody", "a", 1), missing.code(), "version {version}");
        assert_eq!(commit(&mut h, "nobody", "", -1), OK, "an assigned consumer's");
        assert_eq!(commit(&mut h, GROUP, "a", 9), stale.code(), "version {version}");
        assert_eq!(commit(&mut h, GROUP, "x", 1), ErrorCode::UnknownMemberId.code());
        assert_eq!(commit(&mut h, GROUP, "a", 2), OK);
        assert_eq!(commit(&mut h, GROUP, "", -1), OK, "of a producer that names nobody");
    }
}
