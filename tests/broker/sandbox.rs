//! The broker in a sandbox that refuses system calls, as a container's seccomp profile does. The filter is a real one,
//! put on by a few lines of Python, which has no other part in this; where Python is not there, and `CI` is not set, the
//! test says so and does nothing.

use std::process::Command;

use crate::admin::metric;
use crate::harness::client::{Client, Send};
use crate::harness::{Broker, eventually};

/// Linux 6.5; not in every libc crate.
const SYS_CACHESTAT: libc::c_long = 451;

/// Refuses the calls with these numbers (EPERM), and becomes the program behind them: `- NUMBER… - PROGRAM…`.
const REFUSE: &str = r#"
import ctypes, os, struct, sys
end = sys.argv.index("-", 2)
numbers = [int(number) for number in sys.argv[2:end]]
rows = [(0x20, 0, 0, 0)]                                  # the call's number
for left, number in zip(range(len(numbers), 0, -1), numbers):
    rows.append((0x15, left, 0, number))                  # one of these: to the last row
rows += [(0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, 0x00050001)]
program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
head = ctypes.create_string_buffer(struct.pack("@HP", len(rows), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.addressof(head), 0, 0):
    sys.exit("no filter: " + os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[end + 1], sys.argv[end + 1:])
"#;

/// The command that refuses these calls to what follows it.
fn refusing(calls: &[libc::c_long]) -> Option<Vec<String>> {
    let numbers = calls.iter().map(ToString::to_string);
    let words = ["python3", "-c", REFUSE, "-"].map(str::to_owned).into_iter();
    let prefix: Vec<String> = words.chain(numbers).chain(["-".to_owned()]).collect();
    let works = Command::new(&prefix[0]).args(&prefix[1..]).arg("true").status();
    if works.is_ok_and(|status| status.success()) {
        return Some(prefix);
    }
    assert!(std::env::var_os("CI").is_none(), "CI must have Python 3 and filters of system calls");
    eprintln!("NOT TESTED: no system calls can be refused here");
    None
}

#[test]
fn files_are_synced_where_the_system_may_not_be_asked_to_write() {
    if Broker::is_kafka() {
        return;
    }
    let Some(prefix) = refusing(&[libc::SYS_sync_file_range, SYS_CACHESTAT]) else { return };
    let broker = Broker::behind(&prefix, 2, &[]);
    let client = Client::of(&broker);
    client.create_topic("written", 4, &[]);
    let flushes = || metric(&broker, "kuring_log_flush_seconds_count");
    let before = flushes();
    let producer = client.producer(&[("linger.ms", "5")]);
    let value = vec![b'x'; 500_000];
    let records: Vec<Send> = (0..40).map(|number| Send::value(value.clone()).to(number % 4)).collect();
    for _ in 0..4 {
        client.send(&producer, "written", &records);
    }
    // Each partition has got 20 MB: half of what a flush comes at where write-back can be had.
    eventually("each partition is synced twice", || (flushes() >= before + 8).then_some(()));
    let is_told = |line: &&str| ["sync_file_range", "write-back"].iter().any(|word| line.contains(word));
    let told = broker.log().lines().filter(is_told).count();
    assert_eq!(told, 1, "{}", broker.log());
    assert_eq!(
        client.read("written", &[0], 40).len(),
        40,
        "and what cachestat would tell is asked otherwise"
    );
}
