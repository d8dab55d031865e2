//! A connection whose client is over a quota: its answers have left, and for a while no request of it is served
//! (KIP-219).

use std::pin::pin;

use super::{Connection, End};
use crate::base::clock;
use crate::net::watch::Phase;

impl Connection {
    /// No request is to be begun now.
    pub(super) fn is_mute(&self) -> bool {
        self.client.muted_until().is_some()
    }

    /// Lets the time pass, if there is some. A peer that goes away is noticed, but for one with requests that wait: it may
    /// only have finished sending, and gets its answers.
    pub(super) async fn stay_mute(&mut self, has_requests: bool) -> Result<(), End> {
        self.settle_all().await?;
        self.send_answers().await?;
        let Some(until) = self.client.muted_until() else { return Ok(()) };
        self.now = clock::monotonic();
        if self.now < until {
            self.enter(Phase::Muted);
            let time = self.shard.sleep_until(until);
            self.await_beside_peer(pin!(time), !has_requests).await?;
            self.now = clock::monotonic();
            // What came meanwhile came for this moment.
            self.received = self.now;
            self.is_fresh = true;
        }
        self.client.unmute();
        Ok(())
    }
}
