//! The listeners: each accepts clients for one broker and gives every connection its threads.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::address::{Address, Directory};
use super::connection;
use super::decode::TopicNames;
use super::schema::Schemas;
use super::{CONNECTIONS_MAX, Config, Sink};

/// How often the end is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Without descriptors `accept` fails at once, again and again.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What all connections share.
pub(super) struct Shared {
    pub config: Config,
    pub schemas: Schemas,
    pub names: TopicNames,
    pub directory: Directory,
    sink: Sink,
    sink_is_gone: AtomicBool,
    open: AtomicUsize,
    next: AtomicU64,
}

impl Shared {
    /// Prints a line; that nobody reads them any more ends the trace, and is no failure of a connection before.
    pub fn line(&self, text: &str) -> io::Result<()> {
        let printed = self.sink.line(text);
        if printed.is_err() {
            self.sink_is_gone.store(true, Ordering::Relaxed);
        }
        printed
    }
}

/// Open listeners. They and their connections live until the process ends.
pub struct Listening {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
}

impl Listening {
    /// Where each route listens, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns when `interrupt` is set or nobody reads the lines any more.
    pub fn wait(&self, interrupt: &AtomicBool) {
        while !interrupt.load(Ordering::Relaxed) && !self.shared.sink_is_gone.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Opens all listeners, or none.
pub fn start(config: Config, sink: Sink) -> io::Result<Listening> {
    let mut listeners = Vec::new();
    for route in &config.routes {
        let addresses = route.listen.resolve()?;
        let listener = TcpListener::bind(addresses.as_slice())
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", route.listen)))?;
        listeners.push((listener.local_addr()?, listener, route.upstream.clone()));
    }
    let routes = listeners.iter().map(|(address, _, upstream)| (*address, upstream.clone())).collect();
    let shared = Arc::new(Shared {
        config,
        schemas: Schemas::new(),
        names: TopicNames::default(),
        directory: Directory::new(routes),
        sink,
        sink_is_gone: AtomicBool::new(false),
        open: AtomicUsize::new(0),
        next: AtomicU64::new(1),
    });
    let mut addresses = Vec::new();
    for (address, listener, upstream) in listeners {
        let shared = shared.clone();
        let name = format!("accept-{}", address.port());
        std::thread::Builder::new().name(name).spawn(move || accept(&shared, &listener, &upstream))?;
        addresses.push(address);
    }
    Ok(Listening { shared, addresses })
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener, upstream: &Address) {
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) => {
                eprintln!("kuring trace: cannot accept: {error}");
                std::thread::sleep(ACCEPT_RETRY);
                continue;
            }
        };
        if shared.open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            shared.open.fetch_sub(1, Ordering::Relaxed);
            eprintln!("kuring trace: {CONNECTIONS_MAX} connections are open, one more is refused");
            continue;
        }
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let (shared_too, upstream) = (shared.clone(), upstream.clone());
        let thread = std::thread::Builder::new().name(format!("requests-{number}"));
        let started = thread.spawn(move || {
            serve(&shared_too, number, client, &upstream);
            shared_too.open.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = started {
            shared.open.fetch_sub(1, Ordering::Relaxed);
            eprintln!("kuring trace: no thread for connection {number}: {error}");
        }
    }
}

fn serve(shared: &Arc<Shared>, number: u64, client: TcpStream, upstream: &Address) {
    let gone = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
        )
    };
    if let Err(error) = connection::serve(shared, number, client, upstream)
        && !gone(&error)
    {
        eprintln!("kuring trace: connection {number} to {upstream}: {error}");
    }
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod tests;
