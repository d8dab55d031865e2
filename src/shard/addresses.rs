//! Where other brokers are.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use super::Shard;
use crate::base::BrokerId;
use crate::peer::PeerError;

impl Shard {
    /// Where a broker is reached by other brokers. Its name is looked up anew for each attempt: nodes move.
    ///
    /// # Errors
    /// The cluster has no such broker, or its name has no address.
    pub async fn broker_address(&self, broker: BrokerId) -> Result<SocketAddr, PeerError> {
        let image = self.image();
        let listener = self.config().inter_broker_listener.as_str();
        let endpoint = image.broker(broker).and_then(|broker| broker.endpoint(listener));
        let endpoint = endpoint.ok_or(PeerError::Unknown(broker))?;
        let (host, port) = (endpoint.host.clone(), endpoint.port);
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(address, port));
        }
        let look_up = move || (host.as_str(), port).to_socket_addrs().map(|mut addresses| addresses.next());
        let found = self.settings.directories.threads.run("resolve", look_up).await?;
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound).into())
    }
}
