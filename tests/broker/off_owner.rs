//! Every test of produce and fetch once more with each connection on another shard than its partitions.

use std::process::Command;

use crate::harness::Broker;
use crate::harness::broker::{OFF_OWNER, off_owner};

/// Fewer would mean that the filter no longer finds them.
const TESTS_MIN: usize = 20;

#[test]
fn produce_and_fetch_also_work_through_the_mesh() {
    if off_owner() || Broker::is_kafka() {
        return;
    }
    let this = std::env::current_exe().expect("the test binary has a path");
    let output = Command::new(this)
        .args(["produce::", "fetch::", "offsets::", "--test-threads=2"])
        .env(OFF_OWNER, "1")
        .output()
        .expect("the test binary runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = text
        .lines()
        .find_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<usize>().ok());
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(passed.is_some_and(|passed| passed >= TESTS_MIN), "{text}");
}
