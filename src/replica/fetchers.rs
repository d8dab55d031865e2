//! The fetching tasks of one shard, one for each broker that leads partitions with a replica here. They share a memory
//! for what they receive, which bounds it; a task that has none waits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select;

use super::connection::fetch;
use super::fetcher::{Fetcher, Step, Task};
use crate::base::clock;
use crate::base::{BrokerEpoch, BrokerId};
use crate::io::chunk::ChunkPool;
use crate::io::runtime::{Notify, Queue, spawn, yield_if_needed};
use crate::partition::NotFollowed;
use crate::peer::{BrokerConnection, Greetings, PeerError};
use crate::shard::{Cut, NotAppended, PartitionKey, Received, ReplicationEnd, Shard};

/// What the fetchers of a shard receive into.
const RECEIVE_BYTES_MAX: usize = 64 << 20;

/// The first pause after a connection that could not be made or was lost; it doubles up to the last.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often a replica that waits for its disk is looked at.
const DISK_POLL: Duration = Duration::from_millis(1);

/// How often a task that has nothing to do looks for something.
const IDLE_POLL: Duration = Duration::from_millis(100);

/// The fetchers of one shard.
pub struct Fetchers {
    shard: Rc<Shard>,
    greetings: Arc<Greetings>,
    pool: ChunkPool,
    /// The brokers that a task fetches from; each is told that something has come to follow another broker, or none.
    sources: RefCell<BTreeMap<BrokerId, Rc<Notify>>>,
}

impl Fetchers {
    /// Starts to fetch what `shard` follows, for as long as it runs.
    pub fn start(shard: &Rc<Shard>, greetings: Arc<Greetings>) {
        let pool = ChunkPool::new(RECEIVE_BYTES_MAX);
        let fetchers = Rc::new(Self { shard: shard.clone(), greetings, pool, sources: RefCell::default() });
        spawn(Queue::Serve, "fetchers", async move {
            loop {
                fetchers.start_missing();
                fetchers.shard.follows_changed().notified().await;
                if fetchers.shard.is_stopping() {
                    return;
                }
                fetchers.sources.borrow().values().for_each(|changed| changed.notify());
            }
        })
        .detach();
    }

    fn start_missing(self: &Rc<Self>) {
        for source in self.shard.followed_brokers() {
            if self.sources.borrow().contains_key(&source) {
                continue;
            }
            let changed: Rc<Notify> = Rc::default();
            self.sources.borrow_mut().insert(source, changed.clone());
            let wait_max =
                self.shard.config().cluster.as_ref().map_or(Duration::ZERO, |cluster| cluster.fetch_wait_max);
            let source = Source {
                fetchers: self.clone(),
                broker: source,
                fetcher: Fetcher::new(self.shard.settings().broker, wait_max),
                changes: 0,
                changed,
                connection: None,
                failures: 0,
            };
            spawn(Queue::Serve, "fetcher", source.run()).detach();
        }
    }
}

/// The task for one broker.
struct Source {
    fetchers: Rc<Fetchers>,
    broker: BrokerId,
    fetcher: Fetcher,
    /// What [`Shard::follow_changes`] was when it was last looked at.
    changes: u64,
    changed: Rc<Notify>,
    connection: Option<BrokerConnection>,
    failures: u32,
}

impl Source {
    async fn run(mut self) {
        let shard = self.fetchers.shard.clone();
        while !shard.is_stopping() {
            self.look_for_changes();
            let waits = self.place_all();
            let now = clock::monotonic();
            let own = shard.image().broker(shard.settings().broker).map(|broker| broker.epoch);
            let is_held = |key: PartitionKey| {
                let held = shard.holds_back(ReplicationEnd::Follower, key);
                shard.counters.replication_held_follower.add(u64::from(held));
                held
            };
            let request = self.fetcher.request(own.unwrap_or(BrokerEpoch(-1)), now, is_held);
            let Some(request) = request else {
                if self.fetcher.is_idle() {
                    self.connection = None;
                    self.fetcher.disconnected();
                }
                let pause = shard.sleep(if waits { DISK_POLL } else { IDLE_POLL });
                select(pin!(pause), pin!(self.changed())).await;
                continue;
            };
            // What comes to follow the broker meanwhile is not to wait until the others have something.
            let changed = self.changed();
            let answered = match self.connected().await {
                Ok(connection) => fetch(connection, &request, changed).await,
                Err(error) => Err(error),
            };
            match answered {
                Ok(answer) => {
                    if std::mem::take(&mut self.failures) > 0 {
                        self.fetchers.greetings.told().forget_broker(self.broker);
                    }
                    for task in self.fetcher.answered(answer, clock::monotonic()) {
                        self.carry_out(task).await;
                        yield_if_needed().await;
                    }
                }
                Err(error) => self.failed(&error).await,
            }
        }
    }

    fn look_for_changes(&mut self) {
        let shard = &self.fetchers.shard;
        let changes = shard.follow_changes(self.broker);
        if self.changes != changes {
            self.changes = changes;
            self.fetcher.follow(shard.followers_of(self.broker));
        }
    }

    /// Ready when something else than at the last look follows the broker.
    fn changed(&self) -> impl Future<Output = ()> + use<> {
        let (shard, changed) = (self.fetchers.shard.clone(), self.changed.clone());
        let (broker, seen) = (self.broker, self.changes);
        async move {
            while shard.follow_changes(broker) == seen {
                changed.notified().await;
            }
        }
    }

    /// Tells the fetcher where the replicas stand; true when some of them wait for their disk.
    fn place_all(&mut self) -> bool {
        let mut waits = false;
        let now = clock::monotonic();
        for (key, epoch) in self.fetcher.unplaced(now) {
            match self.fetchers.shard.follow_position(key, epoch) {
                Ok(Some(position)) => self.fetcher.place(key, position),
                Ok(None) => waits = true,
                Err(_) => self.fetcher.pause(key, now),
            }
        }
        waits
    }

    async fn connected(&mut self) -> Result<&mut BrokerConnection, PeerError> {
        if self.connection.is_none() {
            let Fetchers { shard, greetings, pool, .. } = &*self.fetchers;
            let address = shard.broker_address(self.broker).await?;
            self.connection = Some(BrokerConnection::open(address, self.broker, greetings, pool).await?);
            self.fetcher.disconnected();
        }
        self.connection.as_mut().ok_or(PeerError::Closed)
    }

    async fn failed(&mut self, error: &PeerError) {
        self.connection = None;
        self.fetcher.disconnected();
        // Once for all shards, and once in a while: a broker that is down for a day fills no log.
        let told = self.fetchers.greetings.told();
        if let Some(left_out) = told.of_broker(self.broker, clock::monotonic()) {
            tracing::warn!(broker = %self.broker, "nothing is fetched from it: {error}{left_out}");
        }
        let pause = PAUSE_MIN.saturating_mul(1 << self.failures.min(10)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        self.fetchers.shard.sleep(pause).await;
    }

    async fn carry_out(&mut self, task: Task) {
        let shard = self.fetchers.shard.clone();
        let Task { key, epoch, at, step } = task;
        let done = match step {
            Step::Append { records, high_watermark, log_start } => {
                if shard.is_throttled(ReplicationEnd::Follower, key) {
                    shard.note_replicated(ReplicationEnd::Follower, records.len() as u64);
                }
                self.append(key, Received { epoch, at, records, high_watermark, log_start }).await
            }
            Step::Cut { epoch: theirs, end } => {
                shard.follow_cut(key, epoch, Cut::Diverging { epoch: theirs, end }).await
            }
            Step::Anew(start) => shard.follow_cut(key, epoch, Cut::Anew(start)).await,
        };
        match done {
            // The image has said something else meanwhile, and the fetcher hears of it at its next look.
            Ok(()) | Err(NotAppended::NotFollowed(NotFollowed::Stale) | NotAppended::Gone) => {
                self.fetcher.displace(key);
            }
            Err(error) => {
                tracing::warn!(?key, broker = %self.broker, "a follower does not come further: {error}");
                self.fetcher.pause(key, clock::monotonic());
            }
        }
    }

    async fn append(&self, key: PartitionKey, received: Received) -> Result<(), NotAppended> {
        let shard = &self.fetchers.shard;
        match shard.follow_append(key, &received).await {
            Err(NotAppended::NotFollowed(NotFollowed::Before(base))) => {
                shard.follow_cut(key, received.epoch, Cut::Anew(base)).await?;
                // Not asked for again: the leader's log starts behind `base`, where it has nothing to give.
                shard.follow_append(key, &Received { at: base, ..received }).await
            }
            done => done,
        }
    }
}
