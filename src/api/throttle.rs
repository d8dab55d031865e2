//! What client quotas make of the requests of a connection: how long its client has to wait, which its answer tells and
//! for which the connection is muted (KIP-219, Kafka's `ClientQuotaManager` and `ClientRequestQuotaManager`).
//!
//! Lives on the connection's shard. Without quotas every call here costs one comparison. What other brokers ask is under
//! no quota.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Client;
use crate::base::Rate;
use crate::base::clock::{self, Monotonic};
use crate::metadata::{self, Command, MutationQuota, QuotaKey, Refusal};
use crate::shard::Shard;
use crate::wire::header::RequestHeader;

/// Who every client is until it can say who it is (`KafkaPrincipal.ANONYMOUS`).
const USER: &str = "ANONYMOUS";

/// Nanoseconds of a second in one percent of it.
const NANOS_PER_PERCENT: f64 = 1e7;

/// What a connection knows of its quotas.
#[derive(Default)]
pub(super) struct Throttle {
    limits: RefCell<Option<Rc<Limits>>>,
    /// The request that is being polled: how long it has been served before, and since when it is now.
    service: Cell<Option<(Duration, Monotonic)>>,
    /// How long the client has to wait for what it made or deleted.
    mutation: Cell<Duration>,
    /// What answers were told since it was taken last.
    told: Cell<Option<Duration>>,
    muted_until: Cell<Option<Monotonic>>,
}

/// The quotas of the client that sent the last request.
struct Limits {
    epoch: u64,
    client_id: Box<[u8]>,
    produce: Option<Limit>,
    fetch: Option<Limit>,
    request: Option<Limit>,
    mutations: Option<String>,
}

struct Limit {
    rate: Arc<Rate>,
    per_second: f64,
}

impl Limits {
    fn of(shard: &Shard, epoch: u64, client_id: &[u8]) -> Self {
        let quotas = shard.client_quotas();
        let name = String::from_utf8_lossy(client_id);
        let limit = |key: QuotaKey, unit: f64| {
            let found = quotas.of_client(key, USER, &name)?;
            let now = clock::monotonic();
            let rate = shard.settings().quotas.meter(key, found.scope, (USER, &*name), now);
            Some(Limit { rate, per_second: found.limit.get() * unit })
        };
        let mutations = quotas.of_client(QuotaKey::ControllerMutationRate, USER, &name);
        Self {
            epoch,
            client_id: client_id.into(),
            produce: limit(QuotaKey::ProducerByteRate, 1.0),
            fetch: limit(QuotaKey::ConsumerByteRate, 1.0),
            request: limit(QuotaKey::RequestPercentage, NANOS_PER_PERCENT),
            mutations: mutations.map(|_| name.into_owned()),
        }
    }
}

impl Limit {
    /// Counts what came, and tells how long to wait for it.
    fn record(&self, value: i64, now: Monotonic) -> Duration {
        self.rate.record(value, now);
        self.rate.throttle(self.per_second, now)
    }
}

impl Client {
    /// The quotas of the sender of a request.
    fn limits(&self, header: &RequestHeader) -> Option<Rc<Limits>> {
        let epoch = self.shard.quota_epoch();
        if epoch == 0 {
            return None;
        }
        if self.broker().is_some() {
            return None;
        }
        let client_id = header.client_id.as_deref().unwrap_or_default();
        let known = self.throttle.limits.borrow().clone();
        if let Some(known) = known.filter(|known| known.epoch == epoch && *known.client_id == *client_id) {
            return Some(known);
        }
        let limits = Rc::new(Limits::of(&self.shard, epoch, client_id));
        self.throttle.limits.replace(Some(limits.clone()));
        Some(limits)
    }

    /// A Produce request of so many bytes begins. They count from here on: several of a connection, and of others of the
    /// same client, are in service at once.
    pub(super) fn count_produce(&self, header: &RequestHeader, bytes: usize) {
        let Some(limits) = self.limits(header) else { return };
        if let Some(limit) = &limits.produce {
            limit.rate.record(i64::try_from(bytes).unwrap_or(i64::MAX), clock::monotonic());
        }
    }

    /// The throttle time of a Produce request that was counted; without acknowledgement the time that it took does not
    /// count.
    pub(super) fn throttle_produce(&self, header: &RequestHeader, is_acked: bool) -> i32 {
        let Some(limits) = self.limits(header) else { return 0 };
        let now = clock::monotonic();
        let bandwidth = limits.produce.as_ref();
        let bandwidth = bandwidth.map_or(Duration::ZERO, |limit| limit.rate.throttle(limit.per_second, now));
        let request = if is_acked { self.throttle_of_time(&limits, now) } else { Duration::ZERO };
        let counters = &self.shard.counters;
        if bandwidth > request {
            counters.throttled_producer_byte_rate.increment();
        } else if !request.is_zero() {
            counters.throttled_request_percentage.increment();
        }
        self.mute(bandwidth.max(request), now)
    }

    /// Whether the client would have to wait after a Produce request of so many bytes. Then those of the connection that
    /// are in service are waited for first: what it may be over its quota is one request.
    pub fn comes_to_its_quota(&self, header: &RequestHeader, bytes: usize) -> bool {
        let Some(limits) = self.limits(header) else { return false };
        let Some(limit) = &limits.produce else { return false };
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        !limit.rate.throttle_with(bytes, limit.per_second, clock::monotonic()).is_zero()
    }

    /// The throttle time of a fetch that is to be answered with so many bytes. Above 0 it is answered with none, and
    /// they do not count.
    pub(super) fn throttle_fetch(&self, header: &RequestHeader, bytes: u64) -> i32 {
        let Some(limits) = self.limits(header) else { return 0 };
        let now = clock::monotonic();
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let request = self.throttle_of_time(&limits, now);
        let bandwidth = limits.fetch.as_ref().map_or(Duration::ZERO, |limit| limit.record(bytes, now));
        let throttle = bandwidth.max(request);
        if !throttle.is_zero()
            && let Some(limit) = &limits.fetch
        {
            limit.rate.take_back(bytes);
        }
        let counters = &self.shard.counters;
        if bandwidth > request {
            counters.throttled_consumer_byte_rate.increment();
        } else if !request.is_zero() {
            counters.throttled_request_percentage.increment();
        }
        self.mute(throttle, now)
    }

    /// The throttle time of an answer with so many bytes that has to leave as it is.
    pub(super) fn throttle_given(&self, header: &RequestHeader, bytes: u64) -> i32 {
        let Some(limits) = self.limits(header) else { return 0 };
        let now = clock::monotonic();
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let request = self.throttle_of_time(&limits, now);
        let bandwidth = limits.fetch.as_ref().map_or(Duration::ZERO, |limit| limit.record(bytes, now));
        self.shard.counters.throttled_consumer_byte_rate.add(u64::from(!bandwidth.is_zero()));
        self.mute(bandwidth.max(request), now)
    }

    /// More bytes at once would be throttled whatever came before, for ever (`getMaxValueInQuotaWindow`).
    pub(super) fn fetch_bytes_max(&self, header: &RequestHeader) -> u32 {
        let Some(limits) = self.limits(header) else { return u32::MAX };
        let Some(limit) = &limits.fetch else { return u32::MAX };
        let whole = self.shard.settings().quotas.windows().whole();
        // A cast keeps to the greatest number.
        (limit.per_second * whole.as_secs_f64()) as u32
    }

    /// The throttle time of any other request.
    pub(super) fn throttle_request(&self, header: &RequestHeader) -> i32 {
        let Some(limits) = self.limits(header) else { return 0 };
        let now = clock::monotonic();
        let mutation = self.throttle.mutation.take();
        let request = self.throttle_of_time(&limits, now);
        let counters = &self.shard.counters;
        if mutation > request {
            counters.throttled_controller_mutation_rate.increment();
        } else if !request.is_zero() {
            counters.throttled_request_percentage.increment();
        }
        self.mute(mutation.max(request), now)
    }

    /// Has the controller carry out a command that makes or deletes partitions, and the client wait for it. From
    /// `strict_since` on it knows THROTTLING_QUOTA_EXCEEDED.
    pub(super) async fn mutate(
        &self,
        header: &RequestHeader,
        strict_since: i16,
        command: Command,
    ) -> Result<metadata::Response, Refusal> {
        let is_strict = header.version >= strict_since;
        let (throttle, response) = self.command_under_quota(header, is_strict, command).await?;
        self.throttle.mutation.set(throttle);
        Ok(response)
    }

    /// The same, and how long the client would have to wait.
    pub(super) async fn command_under_quota(
        &self,
        header: &RequestHeader,
        is_strict: bool,
        command: Command,
    ) -> Result<(Duration, metadata::Response), Refusal> {
        match self.limits(header).and_then(|limits| limits.mutations.clone()) {
            None => Ok((Duration::ZERO, self.command(command).await?)),
            Some(client_id) => {
                let quota = MutationQuota { user: USER.to_owned(), client_id, is_strict };
                Ok(self.command(Command::Limited(quota, Box::new(command))).await?.limited())
            }
        }
    }

    /// Whether the time that the request takes is to be measured.
    pub fn is_timed(&self, header: &RequestHeader) -> bool {
        self.limits(header).is_some_and(|limits| limits.request.is_some())
    }

    /// Until when nothing of the connection is to be served.
    pub fn muted_until(&self) -> Option<Monotonic> {
        self.throttle.muted_until.get()
    }

    pub fn unmute(&self) {
        self.throttle.muted_until.set(None);
    }

    /// The throttle time that an answer was told since the last call.
    pub fn take_throttle(&self) -> Option<Duration> {
        self.throttle.told.take()
    }

    fn throttle_of_time(&self, limits: &Limits, now: Monotonic) -> Duration {
        let Some(limit) = &limits.request else { return Duration::ZERO };
        let served = self.throttle.service.get();
        let spent = served.map_or(Duration::ZERO, |(before, since)| before + now.since(since));
        let nanos = i64::try_from(spent.as_nanos()).unwrap_or(i64::MAX);
        // Nobody waits longer than a window (`ClientRequestQuotaManager.throttleTime`).
        limit.record(nanos, now).min(self.shard.settings().quotas.windows().span())
    }

    /// Mutes the connection; the time as the answer has it.
    fn mute(&self, throttle: Duration, now: Monotonic) -> i32 {
        if throttle.is_zero() {
            return 0;
        }
        let until = now.plus(throttle);
        self.throttle.muted_until.set(Some(self.muted_until().map_or(until, |before| before.max(until))));
        self.throttle.told.set(Some(throttle));
        i32::try_from(throttle.as_millis()).unwrap_or(i32::MAX)
    }
}

/// Measures how long a request is served: the time in which it is polled.
pub(super) struct Timed<F> {
    client: Rc<Client>,
    spent: Duration,
    future: F,
}

impl<F: Future + Unpin> Timed<F> {
    /// Of a request for which `spent` has been worked already.
    pub(super) fn new(client: &Rc<Client>, spent: Duration, future: F) -> Self {
        Self { client: client.clone(), spent, future }
    }

    pub(super) fn spent(&self) -> Duration {
        self.spent
    }
}

impl<F: Future + Unpin> Future for Timed<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let since = clock::monotonic();
        this.client.throttle.service.set(Some((this.spent, since)));
        let polled = Pin::new(&mut this.future).poll(context);
        this.client.throttle.service.set(None);
        this.spent += clock::monotonic().since(since);
        polled
    }
}
