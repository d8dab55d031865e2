//! A broker at the other end says who it is before it asks what brokers alone may.

use bytes::Bytes;

use super::{Connection, End};
use crate::api::Piece;
use crate::peer::Ends;

impl Connection {
    /// Answers a greeting; false where nobody greets: then the frame is one of an API that there is not.
    pub(super) async fn hear(&mut self, frame: &Bytes) -> Result<bool, End> {
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
}
