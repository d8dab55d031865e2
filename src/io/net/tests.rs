//! Tests of sockets against plain ones of the standard library on loopback.

use std::cell::RefCell;
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures::FutureExt as _;

use super::*;
use crate::io::chunk::{ChunkPool, ReceiveBuffer};
use crate::io::runtime::{Queue, ShardBuilder, ShardThread, mailbox, run_shard, sleep, spawn};

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// One accepted connection and its other end.
fn pair() -> (OwnedFd, TcpStream) {
    let listener = Listener::bind(any_port(), 10).unwrap();
    let address = listener.local_addr();
    let (accepted, connections) = mpsc::channel();
    let acceptor = listener.accept_with(move |connection, _| accepted.send(connection).unwrap()).unwrap();
    let peer = TcpStream::connect(address).unwrap();
    let connection = connections.recv().unwrap();
    acceptor.stop();
    (connection, peer)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 % 251) as u8).collect()
}

fn pool() -> ChunkPool {
    ChunkPool::new(64 << 20)
}

/// A shard that sends back what it receives, until the peer has finished.
fn echo_shard(name: &str) -> (crate::io::runtime::Sender<OwnedFd>, ShardThread<usize>) {
    let (sender, mut connections) = mailbox::<OwnedFd>();
    let shard = ShardBuilder::new(name).spawn(move || async move {
        let (mut batch, mut tasks, pool) = (Vec::new(), Vec::new(), pool());
        while connections.drain_into(&mut batch).await > 0 {
            for connection in batch.drain(..) {
                let pool = pool.clone();
                tasks.push(spawn(Queue::Serve, "echo", async move {
                    let socket = Socket::adopt(connection, &SocketOptions::default()).unwrap();
                    let (mut reader, mut writer) = socket.split();
                    let mut buffer = ReceiveBuffer::new(pool);
                    while reader.receive(&mut buffer).await.unwrap() > 0 {
                        let bytes = buffer.take(buffer.filled().len());
                        let (head, tail) = bytes.split_at(bytes.len() / 2);
                        let mut pieces = [head, &[], tail].map(IoSlice::new);
                        writer.send(&mut pieces, false).await.unwrap();
                    }
                    writer.finish();
                }));
            }
        }
        let served = tasks.len();
        for task in tasks {
            task.await;
        }
        assert_eq!(pool.in_use_bytes(), 0);
        served
    });
    (sender, shard.unwrap())
}

#[test]
fn connections_are_echoed_by_two_shards() {
    let shards = [echo_shard("echo-0"), echo_shard("echo-1")];
    let senders: Vec<_> = shards.iter().map(|(sender, _)| sender.clone()).collect();
    let listener = Listener::bind(any_port(), 100).unwrap();
    let address = listener.local_addr();
    let mut next = 0;
    let acceptor = listener.accept_with(move |connection, peer| {
        assert!(peer.ip().is_loopback());
        senders[next % 2].push(connection).unwrap();
        next += 1;
    });
    let clients: Vec<_> = (0..6)
        .map(|_| {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                let sent = pattern(3_000_000);
                let mut writing = stream.try_clone().unwrap();
                let to_send = sent.clone();
                let writer = std::thread::spawn(move || {
                    for part in to_send.chunks(70_001) {
                        writing.write_all(part).unwrap();
                    }
                    writing.shutdown(std::net::Shutdown::Write).unwrap();
                });
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                writer.join().unwrap();
                assert!(received == sent);
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    acceptor.unwrap().stop();
    for (sender, shard) in shards {
        drop(sender);
        assert_eq!(shard.join(), 3);
    }
}

#[test]
fn port_in_use_is_refused() {
    let first = Listener::bind(any_port(), 10).unwrap();
    let second = Listener::bind(first.local_addr(), 10);
    assert_eq!(second.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let (address, acceptor) = (first.local_addr(), first.accept_with(|_, _| {}).unwrap());
    acceptor.stop();
    Listener::bind(address, 10).unwrap();
}

#[test]
fn accepted_socket_does_not_block_and_does_not_delay() {
    let (connection, peer) = pair();
    let peer_address = peer.local_addr().unwrap();
    run_shard("options", move || async move {
        let options = SocketOptions { send_buffer_bytes: Some(100_000), receive_buffer_bytes: Some(50_000) };
        let copy = connection.try_clone().unwrap();
        let socket = Socket::adopt(connection, &options).unwrap();
        assert_eq!(socket.peer_addr(), peer_address);
        assert!(rustix::fs::fcntl_getfl(&copy).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
        assert!(sockopt::tcp_nodelay(&copy).unwrap());
        assert!(sockopt::socket_keepalive(&copy).unwrap());
        assert!(sockopt::socket_send_buffer_size(&copy).unwrap() >= 100_000);
    });
}

#[test]
fn half_closed_peer_still_gets_its_answer() {
    let (connection, mut peer) = pair();
    let shard = ShardBuilder::new("half").spawn(move || async move {
        let (mut reader, mut writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        let mut buffer = ReceiveBuffer::new(pool());
        while reader.receive(&mut buffer).await.unwrap() > 0 {}
        assert_eq!(buffer.filled(), b"question");
        sleep(Duration::from_millis(20)).await;
        writer.send(&mut [IoSlice::new(b"answer")], true).await.unwrap();
        writer.send(&mut [IoSlice::new(b"!")], false).await.unwrap();
    });
    peer.write_all(b"question").unwrap();
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    peer.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer!");
    shard.unwrap().join();
}

#[test]
fn reset_by_the_peer_ends_receive_and_send_with_an_error() {
    let (connection, peer) = pair();
    sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    let shard = ShardBuilder::new("reset").spawn(move || async move {
        let (mut reader, mut writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        let sending = spawn(Queue::Serve, "send", async move {
            let data = pattern(1 << 20);
            loop {
                if let Err(error) = writer.send(&mut [IoSlice::new(&data)], false).await {
                    return error;
                }
            }
        });
        let mut buffer = ReceiveBuffer::new(pool());
        let received = reader.receive(&mut buffer).await;
        (received.map_err(|error| error.kind()), sending.await.kind())
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(peer);
    let (received, sent) = shard.unwrap().join();
    let gone = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    // One of the two gets the reset itself, the other finds the socket closed.
    assert!(received.is_ok_and(|bytes| bytes == 0) || received.is_err_and(|kind| gone.contains(&kind)));
    assert!(gone.contains(&sent), "{sent}");
}

#[test]
fn closer_ends_a_receive_that_waits_and_the_peer_hears_at_once() {
    let (connection, mut peer) = pair();
    let heard = Arc::new(AtomicBool::new(false));
    let hears = heard.clone();
    let shard = ShardBuilder::new("closer").spawn(move || async move {
        let (mut reader, writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        let closer = reader.closer();
        let reading = spawn(Queue::Serve, "read", async move {
            reader.receive(&mut ReceiveBuffer::new(pool())).await.unwrap()
        });
        sleep(Duration::from_millis(10)).await;
        closer.close();
        assert_eq!(reading.await, 0);
        drop((closer, writer));
        // Not because the shard ends.
        let begun = std::time::Instant::now();
        while !hears.load(Ordering::Acquire) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the peer hears nothing");
            sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!(peer.read(&mut [0; 10]).unwrap(), 0);
    heard.store(true, Ordering::Release);
    shard.unwrap().join();
}

#[test]
fn cancelled_receive_loses_nothing() {
    let (connection, mut peer) = pair();
    let shard = ShardBuilder::new("cancel").spawn(move || async move {
        let (mut reader, _writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        let mut buffer = ReceiveBuffer::new(pool());
        for _ in 0..5 {
            let receive = std::pin::pin!(reader.receive(&mut buffer));
            let timeout = std::pin::pin!(sleep(Duration::from_millis(2)));
            futures::future::select(receive, timeout).await;
        }
        while buffer.filled().len() < 8 {
            assert!(reader.receive(&mut buffer).await.unwrap() > 0);
        }
        buffer.take(8)
    });
    for part in [b"12", b"34", b"56", b"78"] {
        std::thread::sleep(Duration::from_millis(5));
        peer.write_all(part).unwrap();
    }
    assert_eq!(&shard.unwrap().join()[..], b"12345678");
}

#[test]
fn file_reaches_a_slow_reader_whole_and_others_are_served_meanwhile() {
    let (connection, mut peer) = pair();
    let mut file = tempfile::tempfile().unwrap();
    let contents = pattern(20_000_000);
    file.write_all(&contents).unwrap();
    let shard = ShardBuilder::new("sendfile").spawn(move || async move {
        let (_reader, mut writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        let ticks = spawn(Queue::Serve, "ticks", async {
            let mut ticks = 0;
            loop {
                sleep(Duration::from_millis(1)).await;
                ticks += 1;
                if ticks == 20 {
                    return ticks;
                }
            }
        });
        writer.send(&mut [IoSlice::new(b"head")], true).await.unwrap();
        writer.send_file(&file, 1_000, 19_000_000).await.unwrap();
        assert_eq!(ticks.await, 20);
    });
    let mut received = Vec::new();
    let mut part = vec![0; 300_000];
    loop {
        match peer.read(&mut part).unwrap() {
            0 => break,
            read => received.extend_from_slice(&part[..read]),
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    assert_eq!(&received[..4], b"head");
    assert!(received[4..] == contents[1_000..19_001_000]);
    shard.unwrap().join();
}

#[test]
fn file_that_ends_early_and_peer_that_leaves_are_told_apart() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(10_000_000)).unwrap();
    let unreadable = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    let (connection, mut peer) = pair();
    let shard = ShardBuilder::new("short").spawn(move || async move {
        let (_reader, mut writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        let short = writer.send_file(&file, 9_999_000, 5_000).await;
        assert!(matches!(short, Err(SendFileError::EndedShort { missing: 4_000 })), "{short:?}");
        let unreadable = writer.send_file(&unreadable, 0, 5_000).await;
        assert!(matches!(unreadable, Err(SendFileError::File(_))), "{unreadable:?}");
        let gone = writer.send_file(&file, 0, 10_000_000).await;
        assert!(matches!(gone, Err(SendFileError::Peer(_))), "{gone:?}");
    });
    peer.read_exact(&mut [0; 2_000]).unwrap();
    drop(peer);
    shard.unwrap().join();
}

#[test]
fn shard_connects_to_another() {
    let (sender, echo) = echo_shard("server");
    let listener = Listener::bind(any_port(), 10).unwrap();
    let address = listener.local_addr();
    let acceptor = listener.accept_with(move |connection, _| sender.push(connection).unwrap()).unwrap();
    run_shard("client", move || async move {
        let socket = Socket::connect(address, &SocketOptions::default()).await.unwrap();
        assert_eq!(socket.peer_addr(), address);
        let (mut reader, mut writer) = socket.split();
        writer.send(&mut [IoSlice::new(b"hello")], false).await.unwrap();
        writer.finish();
        let mut buffer = ReceiveBuffer::new(pool());
        while reader.receive(&mut buffer).await.unwrap() > 0 {}
        assert_eq!(buffer.filled(), b"hello");
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        let refused = Socket::connect(nobody, &SocketOptions::default()).await;
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    });
    acceptor.stop();
    assert_eq!(echo.join(), 1);
}

/// What is there without waiting.
fn receive_now(reader: &mut SocketReader, buffer: &mut ReceiveBuffer) -> Option<Vec<u8>> {
    let received = reader.receive(buffer).now_or_never()?.unwrap();
    assert_eq!(received, buffer.filled().len());
    Some(buffer.take(received).to_vec())
}

#[test]
fn gathered_sockets_receive_what_a_look_has_found() {
    let (connection, mut peer) = pair();
    run_shard("gathered", move || async move {
        let gathering = Gathering::new().unwrap();
        let (mut reader, _writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        let mut buffer = ReceiveBuffer::new(pool());
        // By itself first, so that its next wait is armed already.
        peer.write_all(b"alone").unwrap();
        assert_eq!(reader.receive(&mut buffer).await.unwrap(), 5);
        buffer.skip(5);
        reader.gather(&gathering, None).unwrap();
        peer.write_all(b"one").unwrap();
        assert_eq!(receive_now(&mut reader, &mut buffer), None);
        assert_eq!(gathering.look().unwrap().found, 1);
        assert_eq!(receive_now(&mut reader, &mut buffer), Some(b"one".to_vec()));
        assert_eq!(receive_now(&mut reader, &mut buffer), None);
        assert_eq!(gathering.look().unwrap().found, 0);
        // The task that waits is woken by the look.
        let waits = spawn(Queue::Serve, "waits", async move {
            let received = reader.receive(&mut buffer).await.unwrap();
            (received, reader, buffer)
        });
        sleep(Duration::from_millis(5)).await;
        peer.write_all(b"two!").unwrap();
        while gathering.look().unwrap().found == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let (received, mut reader, mut buffer) = waits.await;
        assert_eq!(received, 4);
        buffer.skip(4);
        reader.stand_alone();
        assert!(gathering.is_empty());
        peer.write_all(b"three").unwrap();
        assert_eq!(reader.receive(&mut buffer).await.unwrap(), 5);
    });
}

#[test]
fn the_end_of_a_gathered_socket_shows_though_it_came_with_its_last_bytes() {
    let (connection, mut peer) = pair();
    run_shard("gathered-end", move || async move {
        let gathering = Gathering::new().unwrap();
        let (mut reader, _writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        let mut buffer = ReceiveBuffer::new(pool());
        reader.gather(&gathering, None).unwrap();
        peer.write_all(b"last").unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(gathering.look().unwrap().found, 1);
        assert_eq!(receive_now(&mut reader, &mut buffer), Some(b"last".to_vec()));
        assert_eq!(receive_now(&mut reader, &mut buffer), Some(Vec::new()), "no look tells of it again");
    });
}

#[test]
fn a_gathered_socket_that_is_handed_over_leaves_the_others() {
    let (connection, mut peer) = pair();
    run_shard("gathered-moves", move || async move {
        let gathering = Gathering::new().unwrap();
        let (mut reader, writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        reader.gather(&gathering, None).unwrap();
        let there = reader.hand_over().unwrap();
        drop((reader, writer));
        assert!(gathering.is_empty());
        peer.write_all(b"there").unwrap();
        assert_eq!(gathering.look().unwrap().found, 0, "the descriptor that lives on is not in the set");
        let (mut reader, _writer) = Socket::adopt(there, &SocketOptions::default()).unwrap().split();
        let mut buffer = ReceiveBuffer::new(pool());
        assert_eq!(reader.receive(&mut buffer).await.unwrap(), 5);
    });
}

/// Serves what begins with "beat": all of it is the answer. Takes notice of what it was shown.
struct Echo(RefCell<Vec<String>>);

impl Rest for Echo {
    fn serve(&self, received: &[u8], send: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.borrow_mut().push(String::from_utf8(received.to_vec()).unwrap());
        received.starts_with(b"beat") && send(received)
    }
}

/// Looks until something has come: on a busy machine that takes a while. No task runs meanwhile.
fn look_until_found(gathering: &Gathering) -> Look {
    loop {
        match gathering.look().unwrap() {
            Look { found: 0, .. } => std::thread::sleep(Duration::from_millis(1)),
            look => return look,
        }
    }
}

fn read(peer: &mut TcpStream, bytes: usize) -> String {
    let mut read = vec![0; bytes];
    peer.read_exact(&mut read).unwrap();
    String::from_utf8(read).unwrap()
}

#[test]
fn what_comes_at_rest_is_served_in_the_look_and_the_task_has_what_is_not() {
    let (connection, mut peer) = pair();
    run_shard("at-rest", move || async move {
        let gathering = Gathering::new().unwrap();
        let echo = Rc::new(Echo(RefCell::default()));
        let (mut reader, _writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        reader.gather(&gathering, Some(echo.clone())).unwrap();
        let task = spawn(Queue::Serve, "rests", async move {
            let mut buffer = ReceiveBuffer::new(pool());
            let received = reader.receive_at_rest(&mut buffer).await.unwrap();
            (buffer.take(received).to_vec(), reader, buffer)
        });
        sleep(Duration::from_millis(5)).await;
        let look = || look_until_found(&gathering);
        for beat in ["beat-1", "beat-2"] {
            peer.write_all(beat.as_bytes()).unwrap();
            assert_eq!(look(), Look { found: 1, woken: 0, is_cut: false });
            assert_eq!(read(&mut peer, beat.len()), beat);
        }
        assert_eq!(gathering.look().unwrap(), Look::default());
        // Not served: the task has it, and what comes before it has looked is not served ahead of it.
        peer.write_all(b"other").unwrap();
        assert_eq!(look(), Look { found: 1, woken: 1, is_cut: false });
        peer.write_all(b"beat-3").unwrap();
        assert_eq!(look(), Look { found: 1, woken: 1, is_cut: false });
        let (first, mut reader, mut buffer) = task.await;
        assert_eq!(first, b"other");
        assert!(!reader.has_aside());
        assert_eq!(receive_now(&mut reader, &mut buffer), Some(b"beat-3".to_vec()));
        // Nobody rests: nothing is served.
        peer.write_all(b"beat-4").unwrap();
        assert_eq!(look(), Look { found: 1, woken: 1, is_cut: false });
        assert_eq!(receive_now(&mut reader, &mut buffer), Some(b"beat-4".to_vec()));
        assert_eq!(*echo.0.borrow(), ["beat-1", "beat-2", "other"]);
    });
}

#[test]
fn what_a_look_has_received_is_not_lost_when_the_socket_is_to_stand_alone() {
    let (connection, mut peer) = pair();
    run_shard("aside", move || async move {
        let gathering = Gathering::new().unwrap();
        let echo = Rc::new(Echo(RefCell::default()));
        let (mut reader, _writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
        reader.gather(&gathering, Some(echo)).unwrap();
        let mut buffer = ReceiveBuffer::new(pool());
        {
            let mut rests = std::pin::pin!(reader.receive_at_rest(&mut buffer));
            assert!(rests.as_mut().now_or_never().is_none());
            peer.write_all(b"other").unwrap();
            assert_eq!(look_until_found(&gathering).woken, 1);
        }
        assert!(reader.has_aside());
        reader.stand_alone();
        assert_eq!(receive_now(&mut reader, &mut buffer), Some(b"other".to_vec()));
        reader.stand_alone();
        assert!(gathering.is_empty());
    });
}

#[test]
fn more_than_a_small_request_and_the_end_of_a_peer_are_not_served_at_rest() {
    for ends in [false, true] {
        let (connection, mut peer) = pair();
        run_shard("not-at-rest", move || async move {
            let gathering = Gathering::new().unwrap();
            let echo = Rc::new(Echo(RefCell::default()));
            let (mut reader, _writer) = Socket::adopt(connection, &SocketOptions::default()).unwrap().split();
            reader.gather(&gathering, Some(echo.clone())).unwrap();
            let sent = if ends { b"beat".to_vec() } else { b"beat".repeat(1000) };
            let wanted = sent.clone();
            let task = spawn(Queue::Serve, "rests", async move {
                let mut buffer = ReceiveBuffer::new(pool());
                let mut all = Vec::new();
                while all.len() < wanted.len() {
                    let received = reader.receive_at_rest(&mut buffer).await.unwrap();
                    all.extend_from_slice(&buffer.take(received));
                }
                assert_eq!(all, wanted);
                if ends {
                    assert_eq!(reader.receive_at_rest(&mut buffer).await.unwrap(), 0);
                }
            });
            sleep(Duration::from_millis(5)).await;
            peer.write_all(&sent).unwrap();
            if ends {
                peer.shutdown(std::net::Shutdown::Write).unwrap();
            }
            assert_eq!(look_until_found(&gathering).woken, 1);
            task.await;
            assert!(echo.0.borrow().is_empty(), "it was not even asked");
        });
    }
}
