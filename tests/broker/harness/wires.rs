//! What the nodes of a cluster say to each other, led through proxies that can be cut in one direction or in both: what
//! is on the way then comes when the wire is whole again, as it does after a cut that TCP outlives. Nobody hears that the
//! other end has closed a connection either. Clients reach the nodes beside the wires.
//!
//! A proxy knows who dials it by the socket's number among the files of the nodes' processes: all this takes no rights.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Where the proxies listen, at the ports that the nodes have on 127.0.0.1.
pub const HOST: &str = "127.0.0.2";

/// Between nodes, which have the numbers 0, 1, ….
pub struct Wires {
    state: Arc<State>,
    ends: Vec<SocketAddr>,
}

struct State {
    /// The working directories of the nodes' processes.
    homes: Vec<PathBuf>,
    cuts: Mutex<Cuts>,
    changed: Condvar,
}

#[derive(Default)]
struct Cuts {
    /// From whom to whom nothing comes.
    pairs: BTreeSet<(usize, usize)>,
    is_over: bool,
}

impl Wires {
    /// Of each node its home directory and the ports at which the others reach it.
    pub fn between<'a>(nodes: impl Iterator<Item = (&'a Path, &'a [u16])>) -> Self {
        let (homes, ports): (Vec<&Path>, Vec<&[u16]>) = nodes.unzip();
        let homes = homes.iter().map(|home| home.canonicalize().expect("it is there")).collect();
        let state = Arc::new(State { homes, cuts: Mutex::default(), changed: Condvar::new() });
        let mut ends = Vec::new();
        for (node, port) in
            ports.iter().enumerate().flat_map(|(node, ports)| ports.iter().map(move |p| (node, *p)))
        {
            let listener =
                TcpListener::bind((HOST, port)).expect("a port that is free on 127.0.0.1 is free there");
            ends.push(listener.local_addr().expect("it is bound"));
            let state = state.clone();
            std::thread::spawn(move || state.serve(node, &listener));
        }
        Self { state, ends }
    }

    /// From now on nothing of what `from` says comes to `to`.
    pub fn cut(&self, from: usize, to: usize) {
        self.state.cuts().pairs.insert((from, to));
    }

    pub fn cut_both_ways(&self, node: usize, other: usize) {
        self.cut(node, other);
        self.cut(other, node);
    }

    pub fn mend(&self) {
        self.state.cuts().pairs.clear();
        self.state.changed.notify_all();
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.state.cuts().is_over = true;
        self.state.changed.notify_all();
        // Whoever waits for a connection looks when one comes.
        for end in &self.ends {
            let _ = TcpStream::connect(end);
        }
    }
}

impl State {
    fn cuts(&self) -> MutexGuard<'_, Cuts> {
        self.cuts.lock().expect("nobody panics with it")
    }

    fn serve(self: &Arc<Self>, to: usize, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.cuts().is_over {
                return;
            }
            let Ok(stream) = stream else { continue };
            let Some(from) = self.dialler(&stream) else { continue };
            let state = self.clone();
            std::thread::spawn(move || state.carry(&stream, from, to));
        }
    }

    /// One connection.
    fn carry(self: &Arc<Self>, near: &TcpStream, from: usize, to: usize) {
        self.await_whole(from, to);
        let port = near.local_addr().map_or(0, |address| address.port());
        let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else {
            self.await_whole(to, from);
            return;
        };
        for stream in [near, &far] {
            stream.set_nodelay(true).expect("a TCP socket");
        }
        std::thread::scope(|scope| {
            scope.spawn(|| self.pump(near, &far, from, to));
            self.pump(&far, near, to, from);
        });
    }

    fn pump(&self, mut reader: &TcpStream, mut writer: &TcpStream, from: usize, to: usize) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = reader.read(&mut buffer).unwrap_or(0);
            self.await_whole(from, to);
            if count == 0 || writer.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = writer.shutdown(Shutdown::Both);
        self.await_whole(to, from);
        let _ = reader.shutdown(Shutdown::Both);
    }

    fn await_whole(&self, from: usize, to: usize) {
        let is_cut = |cuts: &mut Cuts| cuts.pairs.contains(&(from, to)) && !cuts.is_over;
        drop(self.changed.wait_while(self.cuts(), is_cut).expect("nobody panics with it"));
    }

    /// The node that has the other end of this connection.
    fn dialler(&self, stream: &TcpStream) -> Option<usize> {
        let number = socket_number(stream.peer_addr().ok()?, stream.local_addr().ok()?)?;
        let wanted = PathBuf::from(format!("socket:[{number}]"));
        fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
            let home = fs::read_link(process.path().join("cwd")).ok()?;
            let node = self.homes.iter().position(|known| *known == home)?;
            let mut files = fs::read_dir(process.path().join("fd")).ok()?.flatten();
            files.any(|file| fs::read_link(file.path()).is_ok_and(|target| target == wanted)).then_some(node)
        })
    }
}

/// What the system calls the socket that is bound to `local` and connected to `remote`.
fn socket_number(local: SocketAddr, remote: SocketAddr) -> Option<String> {
    let (local, remote) = (in_table(local)?, in_table(remote)?);
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1) == Some(&local.as_str()) && fields.get(2) == Some(&remote.as_str());
        is_it.then(|| fields.get(9).map(|number| (*number).to_owned())).flatten()
    })
}

fn in_table(address: SocketAddr) -> Option<String> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port()))
}
