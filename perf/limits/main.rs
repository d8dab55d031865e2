//! The limit that brokers are compared with: one thread that does nothing of a broker's work but what no
//! broker can leave out. A sink for Produce (receive, CRC-32C, append) and a sendfile server for Fetch.
//!
//! It speaks just enough of the protocol for the load generator that drives the brokers to drive it too:
//! topics are made and described, the segments of a topic roll and go as its settings say, and that is all.
//! No replication, no groups, no validation beyond lengths and checksums, no limits: never a broker.

mod cold;
mod connection;
mod store;
mod wire;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use slab::Slab;

use connection::Connection;
use store::Store;

const LISTENER: u64 = u64::MAX;
const EVENTS_MAX: usize = 1024;

const USAGE: &str = "usage: limits DIRECTORY PORT [--preallocate]
Serves on 127.0.0.1:PORT and appends below DIRECTORY until it is killed.
--preallocate reserves each segment's blocks beforehand, as a broker may.";

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let preallocate = arguments.iter().position(|argument| argument == "--preallocate");
    if let Some(at) = preallocate {
        arguments.remove(at);
    }
    let [directory, port] = arguments.as_slice() else { usage() };
    let Ok(port) = port.parse::<u16>() else { usage() };
    if let Err(error) = serve(PathBuf::from(directory), port, preallocate.is_some()) {
        eprintln!("limits: {error}");
        std::process::exit(1);
    }
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    std::process::exit(2);
}

fn serve(directory: PathBuf, port: u16, preallocate: bool) -> std::io::Result<()> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    // The standard library's backlog is 128, and a load of 1,000 connections comes at once.
    rustix::net::listen(&listener, 4096)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    println!("limits ready, bootstrap {address}");
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut store = Store::new(directory, address.port(), preallocate);
    let mut connections: Slab<Connection> = Slab::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        events.clear();
        let timeout = next_deadline(&connections).map(timespec);
        match epoll::wait(&poll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let appended_before = store.appended;
        for event in &events {
            let key = event.data.u64();
            if key == LISTENER {
                accept(&listener, &poll, &mut connections)?;
                continue;
            }
            let key = key as usize;
            let Some(connection) = connections.get_mut(key) else { continue };
            let turn = connection.turn(event.flags, &mut store);
            settle(&poll, &mut connections, key, turn);
        }
        wake_parked(&poll, &mut connections, &mut store, appended_before);
    }
}

fn accept(
    listener: &TcpListener,
    poll: &rustix::fd::OwnedFd,
    connections: &mut Slab<Connection>,
) -> std::io::Result<()> {
    while let Ok((stream, _)) = listener.accept() {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let entry = connections.vacant_entry();
        epoll::add(
            poll,
            stream.as_fd(),
            epoll::EventData::new_u64(entry.key() as u64),
            epoll::EventFlags::IN,
        )?;
        entry.insert(Connection::new(stream));
    }
    Ok(())
}

/// Fetches that waited for something to read are answered once something was appended, or when their time
/// is over.
fn wake_parked(
    poll: &rustix::fd::OwnedFd,
    connections: &mut Slab<Connection>,
    store: &mut Store,
    appended_before: u64,
) {
    let appended = store.appended != appended_before;
    let now = Instant::now();
    let woken: Vec<usize> = connections
        .iter()
        .filter(|(_, connection)| connection.deadline().is_some_and(|deadline| appended || deadline <= now))
        .map(|(key, _)| key)
        .collect();
    for key in woken {
        let turn = connections[key].wake(store, now);
        settle(poll, connections, key, turn);
    }
}

/// Closes a connection that has failed; asks for writability while an answer is half sent.
fn settle(
    poll: &rustix::fd::OwnedFd,
    connections: &mut Slab<Connection>,
    key: usize,
    turn: std::io::Result<()>,
) {
    if turn.is_err() {
        // The descriptor leaves the epoll set when it is closed.
        connections.remove(key);
        return;
    }
    let connection = &mut connections[key];
    if let Some(flags) = connection.changed_interest() {
        let data = epoll::EventData::new_u64(key as u64);
        if epoll::modify(poll, connection.as_fd(), data, flags).is_err() {
            connections.remove(key);
        }
    }
}

fn next_deadline(connections: &Slab<Connection>) -> Option<Duration> {
    let first = connections.iter().filter_map(|(_, connection)| connection.deadline()).min()?;
    Some(first.saturating_duration_since(Instant::now()))
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
