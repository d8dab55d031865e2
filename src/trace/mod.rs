//! `kuring trace`: a proxy between clients and any Kafka brokers that prints what both say, a JSON line for each
//! request and each response.
//!
//! Runs on plain threads, two for each connection; never on a shard. It changes nothing but the addresses of brokers
//! in responses, so that clients come back to it; what it cannot decode goes through as it came.

mod address;
mod connection;
mod decode;
mod filter;
mod json;
mod listen;
mod records;
mod schema;
mod secrets;

pub use address::{Address, AddressError};
pub use filter::{Filter, FilterError};
pub use listen::{Listening, start};

use std::io::Write;
use std::sync::Mutex;

/// Connections open at a time; more are closed at once and counted on standard error.
pub const CONNECTIONS_MAX: usize = 1000;
/// Requests of a connection that wait for their response: ten times what any client leaves open.
pub const REQUESTS_OPEN_MAX: usize = 10_000;
/// Topic ids whose names are remembered.
pub const TOPIC_IDS_MAX: usize = 100_000;
/// Advertised addresses that are remembered.
pub const ADDRESSES_MAX: usize = 10_000;

/// What to listen on and what to print.
#[derive(Clone, Debug)]
pub struct Config {
    /// Each listener and the broker that it stands for.
    pub routes: Vec<Route>,
    pub filter: Filter,
    /// Print the records of Produce and Fetch, not only what they sum up to.
    pub records: bool,
    /// A longer frame ends its connection.
    pub frame_bytes_max: usize,
    /// The JSON of a longer message leaves out elements of its arrays and the ends of its strings.
    pub line_bytes_max: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    pub listen: Address,
    pub upstream: Address,
}

/// Where lines go; whoever is slow to read them slows the connections down.
pub struct Sink {
    out: Mutex<Box<dyn Write + Send>>,
}

impl Sink {
    pub fn new(out: impl Write + Send + 'static) -> Self {
        Self { out: Mutex::new(Box::new(out)) }
    }

    /// Prints one line. Fails when its reader has gone.
    fn line(&self, text: &str) -> std::io::Result<()> {
        // A thread that panicked while it printed leaves at worst half a line.
        let mut out = self.out.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        out.write_all(text.as_bytes())?;
        out.write_all(b"\n")?;
        out.flush()
    }
}
