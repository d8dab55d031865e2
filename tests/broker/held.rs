//! A broker that can be had to write nothing to a partition, and to go on. It has a second log directory whose disk is
//! full to it: the reserve that was there does not fit any more. What lies there can be read, and no batch is taken, be it
//! a producer's or a transaction's marker: KAFKA_STORAGE_ERROR. Partitions move there and back (AlterReplicaLogDirs) and
//! stay where they are over kills. New ones come into the other directory.

use crate::harness::Broker;
use crate::log_dirs::{TWO, alter, await_move, other};

/// What such a broker is started with.
pub const SETTINGS: [(&str, &str); 2] = [TWO, ("kuring.reserve.bytes", MORE_THAN_A_DISK_HAS)];
const MORE_THAN_A_DISK_HAS: &str = "1000000000000000000";
const RESERVE: &str = ".kuring-reserve";

/// Makes the second directory full for the next start, which takes away what it finds of a reserve.
pub fn prepare(broker: &Broker) {
    let full = other(broker);
    std::fs::create_dir_all(&full).expect("a directory beside the data");
    std::fs::write(full.join(RESERVE), "").expect("ours");
}

/// Nothing is written to the topic's only partition from here on.
#[track_caller]
pub fn hold(broker: &Broker, topic: &str) {
    assert_eq!(alter(broker, topic, 0, &other(broker)), 0);
    await_move(broker, topic, 0, &other(broker));
}

/// Takes [`hold`] back.
#[track_caller]
pub fn release(broker: &Broker, topic: &str) {
    assert_eq!(alter(broker, topic, 0, &broker.data()), 0);
    await_move(broker, topic, 0, &broker.data());
}
