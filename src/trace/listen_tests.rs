//! Connections through the proxy to a broker that a test plays.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::time::Instant;

use super::*;
use crate::trace::{Filter, REQUESTS_OPEN_MAX, Route};

/// What happens at once on a quiet machine.
const SOON: Duration = Duration::from_secs(20);

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn read(&self) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// A client, the broker's side of its connection, and the proxy between them.
fn connect() -> (TcpStream, TcpStream, Listening, Lines) {
    let broker = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let upstream = broker.local_addr().expect("bound").to_string().parse().expect("an address");
    let route = Route { listen: "127.0.0.1:0".parse().expect("an address"), upstream };
    let config = Config {
        routes: vec![route],
        filter: Filter::default(),
        records: false,
        frame_bytes_max: 1 << 20,
        line_bytes_max: 1 << 20,
    };
    let lines = Lines::default();
    let listening = start(config, Sink::new(lines.clone())).expect("listens");
    let client = TcpStream::connect(listening.addresses()[0]).expect("accepted");
    let (broker, _) = broker.accept().expect("connected");
    for socket in [&client, &broker] {
        socket.set_read_timeout(Some(SOON)).expect("set");
        socket.set_write_timeout(Some(SOON)).expect("set");
    }
    (client, broker, listening, lines)
}

fn ends(listening: &Listening) -> bool {
    let deadline = Instant::now() + SOON;
    while listening.shared.open.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    listening.shared.open.load(Ordering::Relaxed) == 0
}

fn send(to: &mut TcpStream, frame: &[u8]) {
    let len = (frame.len() as i32).to_be_bytes();
    to.write_all(&[&len[..], frame].concat()).expect("written");
}

fn receive(from: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 4];
    from.read_exact(&mut len).expect("a frame");
    let mut frame = vec![0; i32::from_be_bytes(len) as usize];
    from.read_exact(&mut frame).expect("all of it");
    frame
}

/// A header without tagged fields and the body.
fn request(key: i16, version: i16, correlation: i32, body: &[u8]) -> Vec<u8> {
    let head = [&key.to_be_bytes()[..], &version.to_be_bytes(), &correlation.to_be_bytes(), &[0xff, 0xff]];
    [&head.concat(), body].concat()
}

#[test]
fn a_broker_that_answers_nonsense_and_reads_nothing_holds_no_connection() {
    let (mut client, mut broker, listening, _) = connect();
    // Until nobody takes any more: the proxy waits for the broker.
    client.set_write_timeout(Some(Duration::from_millis(300))).expect("set");
    let frame = request(3, 0, 1, &vec![0; 1 << 19]);
    let frame = [&(frame.len() as i32).to_be_bytes()[..], &frame].concat();
    while client.write_all(&frame).is_ok() {}
    broker.write_all(&(-1i32).to_be_bytes()).expect("written");
    assert!(ends(&listening), "the connection is still served");
    // The broker's side and the client's are open all the time.
    drop((client, broker));
}

#[test]
fn a_client_that_breaks_the_protocol_and_reads_nothing_holds_no_connection() {
    let (mut client, mut broker, listening, _) = connect();
    broker.set_write_timeout(Some(Duration::from_millis(300))).expect("set");
    let answer = [&(1i32 << 19).to_be_bytes()[..], &vec![0; 1 << 19]].concat();
    while broker.write_all(&answer).is_ok() {}
    client.write_all(&(-1i32).to_be_bytes()).expect("written");
    assert!(ends(&listening), "the connection is still served");
    drop((client, broker));
}

#[test]
fn requests_that_nobody_answers_are_not_waited_for_though_they_cannot_be_read() {
    let (mut client, mut broker, _listening, lines) = connect();
    let reader = std::thread::spawn(move || {
        loop {
            let frame = receive(&mut broker);
            if frame[..2] == 18i16.to_be_bytes() {
                send(&mut broker, &[&frame[4..8], &[0, 0, 0, 0, 0, 0]].concat());
                return broker;
            }
        }
    });
    // Version 3 without acknowledgements, and an array that cannot be.
    let produce = request(0, 3, 5, &[0xff, 0xff, 0, 0, 0, 0, 0, 9, 0x7f, 0xff, 0xff, 0xff]);
    for _ in 0..=REQUESTS_OPEN_MAX {
        send(&mut client, &produce);
    }
    send(&mut client, &request(18, 0, 77, &[]));
    assert_eq!(receive(&mut client)[..4], 77i32.to_be_bytes());
    drop(reader.join().expect("no panic"));
    let lines = lines.read();
    assert!(lines[0]["undecoded"].is_string(), "{}", lines[0]);
    assert!(lines.iter().any(|line| line["kind"] == "response" && line["correlation"] == 77));
}

#[test]
fn tokens_that_have_no_header_are_not_taken_for_one() {
    let (mut client, mut broker, _listening, lines) = connect();
    // SaslHandshake 0 of the mechanism PLAIN.
    send(&mut client, &request(17, 0, 1, &[0, 5, b'P', b'L', b'A', b'I', b'N']));
    receive(&mut broker);
    send(&mut broker, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    receive(&mut client);
    // As a header it would have a client id of five letters.
    send(&mut client, b"\0abcdefg\0\x05hunter2");
    assert_eq!(receive(&mut broker), b"\0abcdefg\0\x05hunter2");
    send(&mut broker, b"");
    assert_eq!(receive(&mut client), b"");
    // The first request after them is one again.
    send(&mut client, &request(18, 0, 2, &[]));
    receive(&mut broker);
    send(&mut broker, &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
    receive(&mut client);
    let lines = lines.read();
    let token = &lines[2];
    assert!(
        token["undecoded"].is_string() && token.get("client").is_none() && token.get("key").is_none(),
        "{token}"
    );
    assert!(!lines.iter().any(|line| line.to_string().contains("hunt")), "{lines:?}");
    assert_eq!(lines[4]["api"], "ApiVersions");
}

/// IncrementalAlterConfigs 0: one config of the broker 1.
fn set_config(correlation: i32, name: &str, value: &str) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as i16).to_be_bytes()[..], text.as_bytes()].concat();
    let one = 1i32.to_be_bytes();
    let config = [&one[..], &string(name), &[0], &string(value)].concat();
    request(44, 0, correlation, &[&one[..], &[4], &string("1"), &config, &[0]].concat())
}

/// Its answer: INVALID_CONFIG and a reason.
fn refusal(correlation: i32, reason: &str) -> Vec<u8> {
    let reason = [&(reason.len() as i16).to_be_bytes()[..], reason.as_bytes()].concat();
    let result = [&40i16.to_be_bytes()[..], &reason, &[4, 0, 1, b'1']].concat();
    [&correlation.to_be_bytes()[..], &[0; 4], &1i32.to_be_bytes(), &result].concat()
}

#[test]
fn a_reason_that_may_repeat_a_password_is_not_shown_and_reaches_the_client() {
    let (mut client, mut broker, _listening, lines) = connect();
    let asked =
        [("ssl.keystore.password", "hunter2"), ("log.retention.ms", "soon"), ("some.plugin", "hunter2")];
    for (correlation, (name, value)) in (1..).zip(asked) {
        send(&mut client, &set_config(correlation, name, value));
        receive(&mut broker);
        let answer = refusal(correlation, &format!("Invalid value {value} for configuration {name}"));
        send(&mut broker, &answer);
        assert_eq!(receive(&mut client), answer);
    }
    let lines = lines.read();
    let reasons: Vec<&serde_json::Value> = lines
        .iter()
        .filter(|line| line["kind"] == "response")
        .map(|line| &line["body"]["responses"][0]["errorMessage"])
        .collect();
    let wanted = ["[hidden]", "Invalid value soon for configuration log.retention.ms", "[hidden]"];
    assert_eq!(reasons, wanted);
    assert!(!lines.iter().any(|line| line.to_string().contains("hunter2")), "{lines:?}");
}
