//! A broker at the other end says who it is before it asks what brokers alone may; and asks some of it in a form of
//! kuring's own.

use std::net::IpAddr;

use bytes::Bytes;

use super::{Connection, End};
use crate::api::Piece;
use crate::base::clock;
use crate::peer::Ends;

impl Connection {
    /// Answers a frame of kuring's own; false where there are none: then it is one of an API that there is not.
    pub(super) async fn hear(&mut self, frame: &Bytes) -> Result<bool, End> {
        if self.client.is_nudge(frame) {
            return Ok(true);
        }
        if self.client.is_asked_by_broker(frame) {
            self.settle_all().await?;
            let answer = self.client.answer_broker(frame).await?;
            self.push_answer(vec![Piece::Bytes(answer)]);
            self.send_answers().await?;
            return Ok(true);
        }
        let (own, other) = (self.reader.local_addr().ip(), self.reader.peer_addr().ip());
        let ends = Ends { is_local: own.is_loopback() && other.is_loopback() };
        let Some(answer) = self.client.hear(frame, ends) else { return Ok(false) };
        let answer = answer?;
        self.settle_all().await?;
        self.push_answer(vec![Piece::Bytes(answer.frame.into())]);
        self.send_answers().await?;
        match answer.refusal {
            Some(refusal) => Err(End::Greeting(refusal.into())),
            None => Ok(true),
        }
    }

    /// A broker that is refused comes again, from each of its shards.
    pub(super) fn tell_of_refused(&self, peer: IpAddr, end: &End) {
        let told = self.shard.settings().greetings.as_ref().map(|greetings| greetings.told());
        if let Some(left_out) = told.and_then(|told| told.of_comer(peer, end, clock::monotonic())) {
            tracing::info!(%peer, "connection closed: {end}{left_out}");
        }
    }
}
