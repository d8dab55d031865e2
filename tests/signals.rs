//! The stopping signals, seen from outside. Without the test harness: its main thread would take them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kuring::io::signal;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("child") => child(),
        _ => {
            first_signal_calls_back_and_second_ends_at_once();
            hangup_stops_unless_it_is_ignored();
            println!("signals: ok");
        }
    }
}

/// Says `ready`, then the signal's name when one has come.
fn child() {
    signal::block().expect("blocked");
    signal::on_stop(|name| println!("{name}")).expect("waiting");
    println!("ready");
    std::thread::sleep(Duration::from_secs(60));
}

fn first_signal_calls_back_and_second_ends_at_once() {
    for (first, name) in [("TERM", "SIGTERM"), ("INT", "SIGINT")] {
        let (mut child, mut said) = start("");
        send(&child, first);
        assert_eq!(said(), name);
        assert!(child.try_wait().expect("asked").is_none(), "the first one only calls back");
        send(&child, "INT");
        assert_eq!(child.wait().expect("ended").code(), Some(128 + 2));
    }
}

fn hangup_stops_unless_it_is_ignored() {
    let (mut child, mut said) = start("");
    send(&child, "HUP");
    assert_eq!(said(), "SIGHUP");
    child.kill().expect("killed");
    child.wait().expect("ended");

    let (mut child, mut said) = start("trap '' HUP;");
    send(&child, "HUP");
    send(&child, "TERM");
    assert_eq!(said(), "SIGTERM");
    child.kill().expect("killed");
    child.wait().expect("ended");
}

fn start(before: &str) -> (Child, impl FnMut() -> String) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new("sh")
        .args(["-c", &format!("{before} exec \"$0\" child")])
        .arg(program)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut said = move || lines.next().expect("a line").expect("text");
    assert_eq!(said(), "ready");
    (child, said)
}

fn send(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
    assert!(sent.expect("kill").success());
}
