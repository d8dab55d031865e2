//! `server.properties`.

use kuring::config::{BrokerConfig, Source};

/// The text of a configuration file: loaded, or refused with a reason.
pub fn properties(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match BrokerConfig::load(Some(Source { path: "server.properties", text }), &[]) {
        Ok(loaded) => assert!(!loaded.config.listeners.is_empty()),
        Err(error) => assert!(!error.reason.is_empty()),
    }
}
