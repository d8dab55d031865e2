use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::{ApiKey, HeartbeatRequest};

use super::*;

const NODE: NodeId = NodeId::Bootstrap(0);

/// A broker that does what a script says with its first connection.
struct Peer {
    stream: TcpStream,
}

impl Peer {
    fn start(script: impl FnOnce(Peer) + Send + 'static) -> (Network, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let config =
            NetworkConfig { request_timeout: Duration::from_millis(300), ..NetworkConfig::default() };
        let mut network = Network::new(config);
        network.set_address(NODE, "127.0.0.1", port);
        let thread = std::thread::spawn(move || {
            script(Peer { stream: listener.accept().expect("a connection").0 });
        });
        (network, thread)
    }

    /// Key, version and correlation id of the next request.
    fn request(&mut self) -> (i16, i16, i32) {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).expect("a request");
        let mut frame = vec![0; i32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame).expect("a whole request");
        let mut frame = &frame[..];
        (frame.get_i16(), frame.get_i16(), frame.get_i32())
    }

    fn answer(&mut self, correlation: i32, body: &[u8]) {
        let length = (body.len() + 4) as i32;
        let frame = [&length.to_be_bytes()[..], &correlation.to_be_bytes(), body].concat();
        self.stream.write_all(&frame).expect("writes");
    }

    fn answer_versions(&mut self, correlation: i32, version: i16, error: i16, keys: &[(ApiKey, i16, i16)]) {
        let key = |&(key, min, max): &(ApiKey, i16, i16)| {
            ApiVersion::default().with_api_key(key as i16).with_min_version(min).with_max_version(max)
        };
        let response = ApiVersionsResponse::default()
            .with_error_code(error)
            .with_api_keys(keys.iter().map(key).collect());
        let mut body = BytesMut::new();
        response.encode(&mut body, version).expect("encodes");
        self.answer(correlation, &body);
    }

    /// Answers ApiVersions with Heartbeat 0–2.
    fn open(&mut self) {
        let (key, version, correlation) = self.request();
        assert_eq!(key, ApiKey::ApiVersions as i16);
        self.answer_versions(correlation, version, 0, &[(ApiKey::Heartbeat, 0, 2)]);
    }
}

fn wait_ready(network: &mut Network) {
    while !network.ready(NODE, monotonic()) {
        assert!(network.failure(NODE).is_none(), "{:?}", network.failure(NODE));
        network.poll(Duration::from_millis(50), monotonic()).expect("polls");
    }
}

fn next_event(network: &mut Network) -> Event {
    loop {
        if let Some(event) = network.poll(Duration::from_millis(50), monotonic()).expect("polls").pop() {
            return event;
        }
    }
}

fn heartbeat(network: &mut Network) -> Token {
    let version = network.version::<HeartbeatRequest>(NODE).expect("a common version");
    assert_eq!(version, 2, "the newest of both sides");
    network.send(NODE, version, &HeartbeatRequest::default(), monotonic()).expect("is sent")
}

fn lost(event: Event) -> String {
    match event {
        Event::Lost(lost) => lost.reason,
        Event::Answer { .. } => panic!("an answer came"),
    }
}

#[test]
fn a_broker_that_knows_only_older_versions_is_asked_again() {
    let (mut network, peer) = Peer::start(|mut peer| {
        let (_, version, correlation) = peer.request();
        assert_eq!(version, ApiVersionsRequest::VERSIONS.max);
        peer.answer_versions(correlation, 0, 35, &[(ApiKey::ApiVersions, 0, 2)]);
        let (_, version, correlation) = peer.request();
        assert_eq!(version, 2);
        peer.answer_versions(correlation, 2, 0, &[(ApiKey::Heartbeat, 0, 2)]);
    });
    wait_ready(&mut network);
    peer.join().expect("as scripted");
}

#[test]
fn a_broker_that_tells_no_range_is_asked_in_version_0() {
    let (mut network, peer) = Peer::start(|mut peer| {
        let (_, _, correlation) = peer.request();
        peer.answer_versions(correlation, 0, 35, &[]);
        let (_, version, correlation) = peer.request();
        assert_eq!(version, 0);
        peer.answer_versions(correlation, 0, 0, &[(ApiKey::Heartbeat, 0, 2)]);
    });
    wait_ready(&mut network);
    peer.join().expect("as scripted");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (mut network, peer) = Peer::start(|mut peer| {
        peer.open();
        let (first, second) = (peer.request(), peer.request());
        assert_eq!(second.2, first.2 + 1);
        peer.answer(first.2, b"\0\0\0\0\0\0");
        peer.answer(second.2, b"\0\0\0\0\0\x1b");
    });
    wait_ready(&mut network);
    let tokens = [heartbeat(&mut network), heartbeat(&mut network)];
    assert_eq!(network.in_flight(NODE), 2);
    let mut events = Vec::new();
    while events.len() < 2 {
        events.extend(network.poll(Duration::from_millis(50), monotonic()).expect("polls"));
    }
    let codes: Vec<(Token, i16)> = events
        .into_iter()
        .map(|event| match event {
            Event::Answer { token, version, body } => {
                (token, decode::<HeartbeatRequest>(version, body).expect("decodes").error_code)
            }
            Event::Lost(lost) => panic!("{lost:?}"),
        })
        .collect();
    assert_eq!(codes, [(tokens[0], 0), (tokens[1], 27)]);
    peer.join().expect("as scripted");
}

#[test]
fn a_request_without_answer_is_lost_by_its_time_out() {
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let (mut network, peer) = Peer::start(move |mut peer| {
        peer.open();
        peer.request();
        // Until the test has seen the time-out; its end of the channel is dropped then.
        assert!(wait.recv().is_err());
    });
    wait_ready(&mut network);
    heartbeat(&mut network);
    assert!(lost(next_event(&mut network)).contains("in time"));
    drop(done);
    peer.join().expect("as scripted");
}

#[test]
fn a_closed_connection_and_a_wrong_answer_lose_what_was_asked() {
    let (mut network, peer) = Peer::start(|mut peer| {
        peer.open();
        peer.request();
    });
    wait_ready(&mut network);
    heartbeat(&mut network);
    assert!(lost(next_event(&mut network)).contains("closed"));
    assert!(matches!(network.failure(NODE), Some(ClientError::Lost { .. })), "it had been open");
    peer.join().expect("as scripted");

    let (mut network, peer) = Peer::start(|mut peer| {
        peer.open();
        let (_, _, correlation) = peer.request();
        peer.answer(correlation + 1, b"\0\0\0\0\0\0");
        // The client closes it.
        assert_eq!(peer.stream.read(&mut [0; 8]).unwrap_or(0), 0);
    });
    wait_ready(&mut network);
    heartbeat(&mut network);
    assert!(lost(next_event(&mut network)).contains("out of order"));
    peer.join().expect("as scripted");
}

#[test]
fn an_api_that_the_broker_lacks_is_told() {
    let (mut network, peer) = Peer::start(|mut peer| peer.open());
    wait_ready(&mut network);
    let error =
        network.version::<kafka_protocol::messages::MetadataRequest>(NODE).expect_err("not advertised");
    assert!(error.to_string().ends_with("have no common version of Metadata"), "{error}");
    peer.join().expect("as scripted");
}
