//! The ways of shard 0 to the other brokers: connections that are dialled when something is asked and kept for what is
//! asked next. Each carries one request at a time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};

use crate::base::BrokerId;
use crate::base::clock::{self, Monotonic};
use crate::io::chunk::ChunkPool;
use crate::peer::{BrokerConnection, Greetings, PeerError};
use crate::shard::Shard;
use crate::wire::header::CorrelationId;
use crate::wire::write::EncodeError;

/// How long an answer may take (Kafka's `request.timeout.ms`).
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// What all answers are received into.
const RECEIVE_BYTES_MAX: usize = 8 << 20;
/// The first pause after a connection that could not be made; it doubles up to the last.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How soon a question is given up whose broker is fenced: it will not answer, and others lead what it led.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Brokers {
    shard: Rc<Shard>,
    greetings: Arc<Greetings>,
    pool: ChunkPool,
    ways: RefCell<HashMap<BrokerId, Way>>,
}

#[derive(Default)]
struct Way {
    idle: Vec<BrokerConnection>,
    failures: u32,
    /// No attempt to connect before this.
    pause: Option<Monotonic>,
}

impl Brokers {
    /// `None` on a node alone.
    pub(super) fn new(shard: &Rc<Shard>) -> Option<Rc<Self>> {
        let greetings = shard.settings().greetings.clone()?;
        let pool = ChunkPool::new(RECEIVE_BYTES_MAX);
        Some(Rc::new(Self { shard: shard.clone(), greetings, pool, ways: RefCell::default() }))
    }

    /// Asks a broker with the frame that `request` makes; its answer, a frame without its length. The broker may have
    /// done what was asked though there is an error, and it may be asked twice: a connection that nothing was asked on
    /// for long may be closed by its other end just then.
    pub(super) async fn ask(
        &self,
        broker: BrokerId,
        request: impl Fn(CorrelationId) -> Result<Bytes, EncodeError>,
    ) -> Result<Bytes, PeerError> {
        let answer = pin!(self.ask_anyhow(broker, request));
        match select(answer, pin!(self.gone(broker))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), _)) => Err(PeerError::Unknown(broker)),
        }
    }

    async fn ask_anyhow(
        &self,
        broker: BrokerId,
        request: impl Fn(CorrelationId) -> Result<Bytes, EncodeError>,
    ) -> Result<Bytes, PeerError> {
        loop {
            let idle = self.take_idle(broker);
            let was_idle = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.dial(broker).await?,
            };
            match connection.ask(ANSWER_TIME_MAX, &request).await {
                Ok(answer) => {
                    self.ways.borrow_mut().entry(broker).or_default().idle.push(connection);
                    return Ok(answer);
                }
                // The others may be closed as well; in the end one is dialled.
                Err(PeerError::Closed | PeerError::Io(_)) if was_idle => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn take_idle(&self, broker: BrokerId) -> Option<BrokerConnection> {
        let mut ways = self.ways.borrow_mut();
        let idle = &mut ways.get_mut(&broker)?.idle;
        while let Some(connection) = idle.pop() {
            if !connection.has_hung_up() {
                return Some(connection);
            }
        }
        None
    }

    async fn dial(&self, broker: BrokerId) -> Result<BrokerConnection, PeerError> {
        let (failures, pause) = {
            let mut ways = self.ways.borrow_mut();
            let way = ways.entry(broker).or_default();
            (way.failures, way.pause)
        };
        if pause.is_some_and(|until| clock::monotonic() < until) {
            return Err(PeerError::Pause);
        }
        let dialled = match self.shard.broker_address(broker).await {
            Ok(address) => BrokerConnection::open(address, broker, &self.greetings, &self.pool).await,
            Err(error) => Err(error),
        };
        let mut ways = self.ways.borrow_mut();
        let way = ways.entry(broker).or_default();
        match &dialled {
            Ok(_) => (way.failures, way.pause) = (0, None),
            Err(error) => {
                // The first of a row, and once in a while: a broker that is down for a day fills no log.
                if failures.is_multiple_of(64) {
                    tracing::warn!(%broker, "a coordinator cannot ask it: {error}");
                }
                let pause = PAUSE_MIN.saturating_mul(1 << failures.min(10)).min(PAUSE_MAX);
                way.failures = failures.saturating_add(1);
                way.pause = Some(clock::monotonic().plus(pause));
            }
        }
        dialled
    }

    /// Until the cluster counts the broker for lost.
    async fn gone(&self, broker: BrokerId) {
        let is_there = || self.shard.image().broker(broker).is_some_and(|broker| !broker.fenced);
        while is_there() {
            self.shard.sleep(LOOK_INTERVAL).await;
        }
    }
}
