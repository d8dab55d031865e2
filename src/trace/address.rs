//! Host and port, as the command line and responses of brokers name them, and which listener stands for which broker.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ADDRESSES_MAX;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("HOST:PORT is wanted")]
pub struct AddressError;

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = text.rsplit_once(':').ok_or(AddressError)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().map_err(|_| AddressError)?;
        if host.is_empty() { Err(AddressError) } else { Ok(Self { host: host.to_owned(), port }) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Address {
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        (self.host.as_str(), self.port).to_socket_addrs().map(Iterator::collect)
    }
}

/// A listener that is open, and the broker behind it.
struct Known {
    listening: SocketAddr,
    upstream: Address,
    resolved: Vec<SocketAddr>,
}

/// Finds the listener for an address that a broker advertises.
pub struct Directory {
    known: Vec<Known>,
    /// What was looked up before: the place in `known`.
    seen: Mutex<HashMap<Address, Option<usize>>>,
}

impl Directory {
    pub fn new(routes: Vec<(SocketAddr, Address)>) -> Self {
        let known = routes
            .into_iter()
            .map(|(listening, upstream)| {
                let resolved = upstream.resolve().unwrap_or_default();
                Known { listening, upstream, resolved }
            })
            .collect();
        Self { known, seen: Mutex::new(HashMap::new()) }
    }

    /// Where clients that reached the proxy at `local` find the broker `advertised`; `None` when no listener stands
    /// for it. A listener on all addresses is reached where this client reached its own.
    pub fn replacement(&self, advertised: &Address, local: IpAddr) -> Option<Address> {
        let known = &self.known[self.find(advertised)?];
        let ip = if known.listening.ip().is_unspecified() { local } else { known.listening.ip() };
        Some(Address { host: ip.to_string(), port: known.listening.port() })
    }

    /// Nothing is locked while a name is looked up: that may take long, and other connections know theirs.
    fn find(&self, advertised: &Address) -> Option<usize> {
        if let Some(found) = self.seen().get(advertised) {
            return *found;
        }
        let mut found = self.known.iter().position(|known| known.upstream == *advertised);
        if found.is_none() {
            let resolved = advertised.resolve().unwrap_or_default();
            let same = |known: &Known| known.resolved.iter().any(|address| resolved.contains(address));
            found = self.known.iter().position(same);
        }
        let mut seen = self.seen();
        let is_new = !seen.contains_key(advertised);
        if is_new && seen.len() < ADDRESSES_MAX {
            seen.insert(advertised.clone(), found);
        }
        drop(seen);
        if is_new && found.is_none() {
            eprintln!("kuring trace: no listener stands for {advertised}: clients will go there directly");
        }
        found
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<Address, Option<usize>>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["localhost:9092", "10.0.0.1:1", "[::1]:9092"] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["", "localhost", ":9092", "localhost:x", "localhost:99999"] {
            assert_eq!(wrong.parse::<Address>(), Err(AddressError), "{wrong}");
        }
    }

    #[test]
    fn a_broker_is_found_by_its_name_or_by_what_the_name_resolves_to() {
        let address = |text: &str| text.parse::<Address>().expect("valid");
        let listening = "0.0.0.0:7000".parse().expect("valid");
        let directory = Directory::new(vec![(listening, address("127.0.0.1:9092"))]);
        let local = IpAddr::from([10, 1, 2, 3]);
        let wanted = Some(address("10.1.2.3:7000"));
        assert_eq!(directory.replacement(&address("127.0.0.1:9092"), local), wanted);
        assert_eq!(directory.replacement(&address("localhost:9092"), local), wanted);
        assert_eq!(directory.replacement(&address("127.0.0.1:9093"), local), None);
    }
}
