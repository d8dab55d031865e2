//! What an operator sees from outside: `/metrics`, `/health` and `/ready` over HTTP.
//!
//! It lives on a plain thread with a runtime of its own ([`http`]) and asks each shard by a message to its desk
//! ([`desk`]), which answers with a copy; a shard that does not answer within a second is told of, not waited
//! for. Nothing runs anywhere while nobody asks. Never here: a lock that a shard takes on its hot path, or work
//! on a shard beside copying figures.

mod desk;
#[cfg(test)]
mod docs_tests;
mod exposition;
mod gather;
mod health;
mod http;
mod lag;
mod names;
mod report;

use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

pub use desk::{ControlSources, Desk, Line, desk};
pub use exposition::Exposition;
pub use names::{families, limits};

use crate::base::{clock, fatal};
use crate::config::{AdminListener, BrokerConfig};
use crate::io::runtime;
use crate::net::Gate;
use crate::shard::Directories;

/// How far the broker has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    Starting,
    Serving,
    Stopping,
}

impl Phase {
    const ALL: [Phase; 3] = [Phase::Starting, Phase::Serving, Phase::Stopping];

    fn name(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Serving => "serving",
            Phase::Stopping => "stopping",
        }
    }
}

/// What there is to look at once the shards run.
pub struct Sources {
    pub config: Arc<BrokerConfig>,
    pub directories: Arc<Directories>,
    pub gate: Gate,
    /// By shard.
    pub lines: Vec<Line>,
    /// Descriptors that the partitions and connections may need.
    pub open_files_needed: u64,
}

/// The admin listener; cheap to clone. The listener ends with the process.
#[derive(Clone)]
pub struct Admin {
    shared: Arc<Shared>,
    /// `None`: not listening.
    address: Option<SocketAddr>,
}

/// What the thread of the listener knows.
struct Shared {
    phase: AtomicU8,
    sources: OnceLock<Sources>,
}

impl Admin {
    /// No listener: what is set is not shown to anyone.
    pub fn off() -> Self {
        let shared = Shared { phase: AtomicU8::new(Phase::Starting as u8), sources: OnceLock::new() };
        Self { shared: Arc::new(shared), address: None }
    }

    /// Binds the listener and starts its thread; it answers at once, that the broker is starting.
    ///
    /// # Errors
    /// When the address is not to be had or no thread can be made.
    pub fn start(listener: &AdminListener) -> std::io::Result<Self> {
        let addresses = (listener.host.as_str(), listener.port).to_socket_addrs()?;
        // Not SO_REUSEPORT: a port that another node has is an error here.
        let socket = std::net::TcpListener::bind(addresses.collect::<Vec<_>>().as_slice())?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let admin = Self { address: Some(address), ..Self::off() };
        let shared = admin.shared.clone();
        std::thread::Builder::new().name("admin".into()).spawn(move || {
            let serving = AssertUnwindSafe(|| {
                tokio::task::LocalSet::new().block_on(&runtime, async {
                    match tokio::net::TcpListener::from_std(socket) {
                        Ok(listener) => http::serve(listener, shared).await,
                        Err(error) => tracing::error!(%error, "the admin listener does not start"),
                    }
                });
            });
            if catch_unwind(serving).is_err() {
                fatal("the admin listener panicked");
            }
        })?;
        Ok(admin)
    }

    /// Where it listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The shards run: there is something to look at. A second call changes nothing.
    pub fn connect(&self, sources: Sources) {
        let _ = self.shared.sources.set(sources);
    }

    pub fn set_phase(&self, phase: Phase) {
        self.shared.phase.store(phase as u8, Ordering::Relaxed);
    }
}

impl Shared {
    fn phase(&self) -> Phase {
        let phase = self.phase.load(Ordering::Relaxed);
        Phase::ALL.into_iter().find(|other| *other as u8 == phase).unwrap_or(Phase::Starting)
    }

    async fn metrics(&self) -> String {
        let phase = self.phase();
        let Some(sources) = self.sources.get() else { return report::starting(phase) };
        let begun = clock::monotonic();
        let gathered = gather::figures(&sources.lines, &sources.config).await;
        report::serving(phase, sources, &gathered, clock::monotonic().since(begun))
    }

    async fn health(&self) -> health::Health {
        let lines = self.sources.get().map_or(&[][..], |sources| &sources.lines);
        let pings = gather::pings(lines).await;
        health::health(self.phase(), &pings, &runtime::stalls())
    }

    async fn readiness(&self) -> health::Readiness {
        let phase = self.phase();
        let Some(sources) = self.sources.get().filter(|_| phase != Phase::Stopping) else {
            return health::not_serving(phase);
        };
        let gathered = gather::readiness(&sources.lines).await;
        health::readiness(phase, sources, &gathered)
    }
}
