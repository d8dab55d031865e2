//! Ten thousand connections, few of them well-behaved, beside a producer and a consumer that are not to notice.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use rdkafka::Offset;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::Consumer as _;

use crate::harness::client::{Client, Send, poll};
use crate::harness::{Broker, PATIENCE, eventually};

const CONNECTIONS: usize = 10_000;

/// What a round trip of the producer and the consumer may take: the machine may be busy, but nobody may have to wait
/// for a peer's time-out.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(10);

const MIB: u64 = 1 << 20;

/// `docs/LIMITS.md`: two shards with 16 MiB of requests and 16 MiB of answers each, one request beyond it, and for
/// each connection what a task takes in a debug build.
const MEMORY_MAX: u64 = 2 * (16 + 16 + 8) * MIB + CONNECTIONS as u64 * (12 << 10);

/// How a peer behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Manner {
    Silent,
    /// Has asked once.
    Idle,
    /// Sends a request byte by byte.
    Slow,
    /// Asks again and again and reads nothing.
    Greedy,
    HalfClosed,
    Garbage,
}

impl Manner {
    fn of(index: usize) -> Self {
        match index % 10 {
            // More of them would be a load, not a crowd.
            7 if index % 100 == 7 => Manner::Greedy,
            0..=2 => Manner::Silent,
            3..=5 | 7 => Manner::Idle,
            6 => Manner::Slow,
            8 => Manner::HalfClosed,
            _ => Manner::Garbage,
        }
    }
}

/// Length, key, version, correlation id, no client id; the empty tagged fields of a flexible header where wanted.
fn frame(length: i32, key: i16, version: i16, flexible: bool, body: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_i32(length);
    frame.put_i16(key);
    frame.put_i16(version);
    frame.put_i32(1);
    frame.put_i16(-1);
    if flexible {
        frame.put_u8(0);
    }
    frame.put_slice(body);
    frame.freeze()
}

fn request(key: i16, version: i16, flexible: bool, body: &[u8]) -> Bytes {
    let length = 10 + usize::from(flexible) + body.len();
    frame(i32::try_from(length).expect("a small request"), key, version, flexible, body)
}

/// Metadata of all topics.
fn metadata() -> Bytes {
    request(3, 1, false, &[0xff; 4])
}

/// What no broker can serve.
fn garbage() -> Vec<Bytes> {
    let many = [0x7f, 0xff, 0xff, 0xff];
    let many_compact = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let all_ones = [0xff; 4];
    vec![
        Bytes::from_static(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        frame(i32::MAX, 0, 9, true, &[0; 64]),
        frame(-1, 0, 9, true, &[0; 64]),
        frame(i32::MIN, 3, 1, false, &[]),
        frame(0, 3, 1, false, &[]),
        request(3, 1, false, &many),
        request(3, 12, true, &many_compact),
        request(1, 12, true, &[&all_ones[..], &[0; 25], &many_compact].concat()),
        request(0, 9, true, &[&[0][..], &[0, 1, 0, 0, 1, 0], &many_compact].concat()),
        request(0, 3, false, &[&[0xff, 0xff, 0, 1, 0, 0, 1, 0][..], &many].concat()),
        request(2, 1, false, &[&all_ones[..], &many].concat()),
        request(8, 2, false, &[&[0, 1, b'g'][..], &all_ones, &[0, 0], &[0; 8], &many].concat()),
        request(11, 0, false, &[&[0, 1, b'g', 0, 0, 0x17, 0x70, 0, 0, 0, 1, b'c'][..], &many].concat()),
        request(19, 2, false, &[&many[..], &[0, 0]].concat()),
        request(12, 3, false, &[0xff; 40]),
        request(32, 1, false, &many),
        request(42, 0, false, &many),
    ]
}

struct Requests {
    api_versions: Bytes,
    metadata: Bytes,
    /// Two hundred times that.
    many: Vec<u8>,
    garbage: Vec<Bytes>,
}

struct Peer {
    stream: TcpStream,
    manner: Manner,
    /// Bytes of a slow one's request; which garbage it is that another sends.
    sent: usize,
    closed: bool,
}

impl Peer {
    fn connect(broker: &Broker, manner: Manner) -> Self {
        let stream = TcpStream::connect(broker.bootstrap()).expect("the broker takes connections");
        stream.set_nonblocking(true).expect("a socket");
        Self { stream, manner, sent: 0, closed: false }
    }

    /// What the kernel takes; a peer that was closed is no failure.
    fn send(&mut self, bytes: &[u8]) {
        match self.stream.write(bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.closed = true,
        }
    }

    fn misbehave(&mut self, round: usize, requests: &Requests) {
        if self.closed {
            return;
        }
        match self.manner {
            Manner::Silent => {}
            Manner::Idle if round == 0 => self.send(&requests.api_versions),
            Manner::Idle => {}
            Manner::Slow => {
                let next = requests.metadata[self.sent];
                self.sent += 1;
                self.send(&[next]);
            }
            Manner::Greedy => self.send(&requests.many),
            Manner::HalfClosed if round == 0 => {
                self.send(&requests.metadata);
                let _ = self.stream.shutdown(Shutdown::Write);
            }
            Manner::HalfClosed => {}
            Manner::Garbage if round == 0 => self.send(&requests.garbage[self.sent]),
            Manner::Garbage => {
                let mut answer = [0; 64];
                if let Ok(0) = self.stream.read(&mut answer) {
                    self.closed = true;
                }
            }
        }
    }
}

/// Produces one record after the other and waits for each to come back, until `stop`. How many did, and how long the
/// slowest took.
fn bystand(client: &Client, done: &AtomicUsize, stop: &AtomicBool) -> (usize, Duration) {
    let producer = client.producer(&[("linger.ms", "0")]);
    let consumer = client.consumer(&[]);
    let mut assignment = TopicPartitionList::new();
    for partition in 0..2 {
        assignment.add_partition_offset("bystander", partition, Offset::Beginning).expect("a valid offset");
    }
    consumer.assign(&assignment).expect("assign");
    let (mut count, mut slowest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        // Every fourth is longer than what a short request may be.
        let length = if count % 4 == 3 { 200_000 } else { 100 };
        let value = vec![count as u8; length];
        client.send(&producer, "bystander", &[Send::value(value.clone()).to(count as i32 % 2)]);
        assert_eq!(poll(&consumer, 1)[0].value.as_ref(), Some(&value));
        slowest = slowest.max(start.elapsed());
        count += 1;
        done.store(count, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
    }
    (count, slowest)
}

fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the soft limit may be the hard one");
    let soft = limit.current.unwrap_or(u64::MAX);
    assert!(soft >= 14_000, "ten thousand connections need 14,000 descriptors, not {soft}: raise ulimit -Hn");
}

#[test]
fn ten_thousand_peers_of_all_manners_do_not_disturb_the_others() {
    if Broker::is_kafka() {
        return;
    }
    raise_open_files();
    let broker = Broker::with(
        2,
        &[
            ("kuring.memory.receive.bytes", "16777216"),
            ("kuring.memory.serve.bytes", "16777216"),
            ("socket.listen.backlog.size", "1024"),
        ],
    );
    let client = Client::of(&broker);
    client.create_topic("bystander", 2, &[]);
    let (files_before, memory_before) = (broker.open_files(), broker.resident_bytes());
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let bystander = std::thread::spawn({
        let (stop, done) = (stop.clone(), done.clone());
        move || bystand(&client, &done, &stop)
    });
    eventually("the bystander is at work", || (done.load(Ordering::Relaxed) > 5).then_some(()));
    let requests = Requests {
        api_versions: request(18, 0, false, &[]),
        metadata: metadata(),
        many: metadata().repeat(200),
        garbage: garbage(),
    };
    let mut peers: Vec<Peer> =
        (0..CONNECTIONS).map(|index| Peer::connect(&broker, Manner::of(index))).collect();
    for (index, peer) in peers.iter_mut().enumerate().filter(|(_, peer)| peer.manner == Manner::Garbage) {
        peer.sent = index / 10 % requests.garbage.len();
    }
    let mut largest = broker.resident_bytes();
    for round in 0..5 {
        for peer in &mut peers {
            peer.misbehave(round, &requests);
        }
        largest = largest.max(broker.resident_bytes());
    }

    // Now all of them, those that were closed anew, begin a produce request of 100 MiB.
    let begun = frame(100 << 20, 0, 9, true, &[0; 3000]);
    for peer in &mut peers {
        if peer.closed || !matches!(peer.manner, Manner::Silent | Manner::Idle) {
            *peer = Peer::connect(&broker, Manner::Silent);
        }
        peer.send(&begun);
    }
    // Longer than kuring.memory.stall.ms, so that some are closed for others.
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100));
        largest = largest.max(broker.resident_bytes());
        for peer in peers.iter_mut().step_by(7) {
            peer.send(&[0; 2000]);
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (count, slowest) = bystander.join().expect("the bystander was served");
    assert!(count > 10, "only {count} records came back, the slowest after {slowest:?}");
    assert!(slowest < ROUND_TRIP_MAX, "a record took {slowest:?}");
    let grown = largest.saturating_sub(memory_before);
    assert!(grown < MEMORY_MAX, "{} MiB more than before", grown / MIB);

    drop(peers);
    eventually("the descriptors are closed", || (broker.open_files() < files_before + 50).then_some(()));
    eventually("the memory is given back", || {
        (broker.resident_bytes() < memory_before + 100 * MIB).then_some(())
    });
    println!("{count} round trips, slowest {slowest:?}, {} MiB more", grown / MIB);
}

#[test]
fn giant_requests_that_come_slowly_do_not_disturb_the_others() {
    if Broker::is_kafka() {
        return;
    }
    let broker = Broker::with(1, &[("kuring.memory.receive.bytes", "16777216")]);
    let client = Client::of(&broker);
    client.create_topic("bystander", 2, &[]);
    let mut giants: Vec<Peer> = (0..6).map(|_| Peer::connect(&broker, Manner::Silent)).collect();
    let begun = frame(100 << 20, 0, 9, true, &[0; 3000]);
    giants.iter_mut().for_each(|giant| giant.send(&begun));
    // Of what has come of them, what they hold is four times at most; they never ask for more than there is of it.
    for _ in 0..12 {
        giants.iter_mut().for_each(|giant| giant.send(&vec![0; 128 << 10]));
        std::thread::sleep(Duration::from_millis(50));
    }
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let bystander = std::thread::spawn({
        let (stop, done) = (stop.clone(), done.clone());
        move || bystand(&client, &done, &stop)
    });
    // Fast enough that none of them has stalled (32 KiB a second).
    for _ in 0..40 {
        giants.iter_mut().for_each(|giant| giant.send(&[0; 8 << 10]));
        std::thread::sleep(Duration::from_millis(150));
    }
    stop.store(true, Ordering::Relaxed);
    let (count, slowest) = bystander.join().expect("the bystander was served");
    assert!(count > 10, "only {count} records came back, the slowest after {slowest:?}");
    assert!(slowest < Duration::from_secs(4), "a record took {slowest:?}");
}

#[test]
fn an_idle_connection_holds_no_buffer() {
    if Broker::is_kafka() {
        return;
    }
    raise_open_files();
    let broker = Broker::with(1, &[("socket.listen.backlog.size", "1024")]);
    let peers = |count: usize| -> Vec<Peer> {
        let asked = request(18, 0, false, &[]);
        let mut peers: Vec<Peer> = (0..count).map(|_| Peer::connect(&broker, Manner::Idle)).collect();
        for peer in &mut peers {
            peer.send(&asked);
            peer.stream.set_nonblocking(false).expect("a socket");
            peer.stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
            let mut size = [0; 4];
            peer.stream.read_exact(&mut size).expect("an answer");
        }
        peers
    };
    let _warm = peers(100);
    let before = broker.resident_bytes();
    let _idle = peers(2000);
    let each = broker.resident_bytes().saturating_sub(before) / 2000;
    // A receive chunk has 32 KiB.
    assert!(each < 16 << 10, "{each} bytes for each idle connection");
    println!("{each} bytes for each idle connection");
}
