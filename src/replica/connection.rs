//! What a follower asks of the broker that leads: Fetch, over a connection that was greeted.

use std::future::Future;
use std::time::Duration;

use crate::peer::{BrokerConnection, PeerError};
use crate::wire::fetch::{FetchAnswer, FetchRequest};

/// What followers speak to their leaders: topics by id, the replica's registration, its high watermark.
const VERSION: i16 = 18;

const CLIENT_ID: &str = "kuring-follower";

/// Beside the time that the leader may wait (`replica.socket.timeout.ms`).
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// One request and its answer, for which the leader waits no longer once `nudge` is ready. Cancelled in between, the
/// connection is of no more use.
pub(super) async fn fetch(
    connection: &mut BrokerConnection,
    request: &FetchRequest,
    nudge: impl Future<Output = ()>,
) -> Result<FetchAnswer, PeerError> {
    let limit = ANSWER_TIME_MAX + Duration::from_millis(request.max_wait_ms.max(0) as u64);
    let encode = |correlation| request.encode(VERSION, correlation, CLIENT_ID);
    let answer = connection.ask_nudging(limit, encode, nudge).await?;
    let (_, answer) = FetchAnswer::decode(VERSION, &answer)
        .map_err(|_| PeerError::Malformed("an answer to a fetch that does not decode"))?;
    Ok(answer)
}
