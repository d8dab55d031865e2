//! AlterClientQuotas: from what a client names to records (Kafka's `ClientQuotaControlManager`, its words too), and
//! the quota of a client for what it has made and deleted (KIP-599, `ControllerMutationQuotaManager`).

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use super::super::command::{
    AlterClientQuotas, Command, MutationQuota, QuotaChange, QuotaResults, QuotaTarget, Refusal, Response,
};
use super::super::image::Image;
use super::super::quotas::{QuotaEntity, QuotaKey, QuotaLimit, QuotaName, Scope};
use super::super::record::Record;
use super::{Controller, Decision, Outcome};
use crate::base::clock::Monotonic;
use crate::base::{TokenBucket, Windows};
use crate::wire::ErrorCode;

/// Clients whose permits are counted at the same time. Beyond that a new one begins with a bucket that nobody keeps.
const BUCKETS_MAX: usize = 10_000;

/// A whole number may be off by so much.
const FRACTION_MAX: f64 = 1e-6;

/// What is left of the permits of clients. Not part of the state: another controller begins with full buckets.
pub(super) struct Mutations {
    windows: Windows,
    buckets: HashMap<BucketKey, TokenBucket>,
    /// Of the command that is being decided.
    permits: Option<Permits>,
}

type BucketKey = (Scope, String, String);

struct Permits {
    bucket: TokenBucket,
    limit: f64,
    is_strict: bool,
    throttle: Duration,
    now: Monotonic,
}

impl Mutations {
    pub(super) fn new(windows: Windows) -> Self {
        Self { windows, buckets: HashMap::new(), permits: None }
    }

    /// So many partitions are to be made or deleted.
    pub(super) fn take(&mut self, partitions: usize) -> Result<(), Refusal> {
        let windows = self.windows;
        let Some(permits) = &mut self.permits else { return Ok(()) };
        if permits.is_strict {
            let overdrawn = permits.bucket.overdrawn(windows, permits.limit, permits.now);
            if !overdrawn.is_zero() {
                permits.throttle = overdrawn;
                // Kafka has no words beside this code.
                return Err(Refusal::new(ErrorCode::ThrottlingQuotaExceeded, ""));
            }
        }
        permits.bucket.take(partitions as f64, windows, permits.limit, permits.now);
        if !permits.is_strict {
            permits.throttle = permits.bucket.overdrawn(windows, permits.limit, permits.now);
        }
        Ok(())
    }

    fn begin(&mut self, image: &Image, quota: &MutationQuota, now: Monotonic) -> Option<BucketKey> {
        let MutationQuota { user, client_id, is_strict } = quota;
        let found = image.client_quotas().of_client(QuotaKey::ControllerMutationRate, user, client_id)?;
        let key = match found.scope {
            Scope::UserAndClient => (found.scope, user.clone(), client_id.clone()),
            Scope::User => (found.scope, user.clone(), String::new()),
            Scope::Client => (found.scope, String::new(), client_id.clone()),
        };
        let bucket = self.buckets.get(&key).copied().unwrap_or_else(|| TokenBucket::new(now));
        let (limit, throttle) = (found.limit.get(), Duration::ZERO);
        self.permits = Some(Permits { bucket, limit, is_strict: *is_strict, throttle, now });
        Some(key)
    }

    /// Ends what [`Mutations::begin`] began; how long the client has to wait.
    fn end(&mut self, key: Option<BucketKey>) -> Duration {
        let (Some(key), Some(permits)) = (key, self.permits.take()) else { return Duration::ZERO };
        let Permits { bucket, limit, throttle, now, .. } = permits;
        if self.buckets.len() >= BUCKETS_MAX {
            // A full one is the same as none. Of another limit it may be kept for a while longer.
            let windows = self.windows;
            self.buckets.retain(|_, bucket| !bucket.is_full(windows, limit, now));
        }
        if self.buckets.len() < BUCKETS_MAX || self.buckets.contains_key(&key) {
            self.buckets.insert(key, bucket);
        }
        throttle
    }
}

impl Controller {
    /// Decides on `command` under the quota of whoever asks for it.
    pub(super) fn limited(
        &mut self,
        image: &Image,
        quota: &MutationQuota,
        command: Command,
        now: Monotonic,
    ) -> Result<Outcome, Refusal> {
        let key = self.mutations.begin(image, quota, now);
        let outcome = self.handle(image, command, now);
        let throttle = self.mutations.end(key);
        outcome.map(|outcome| Outcome {
            response: Response::Limited(throttle, Box::new(outcome.response)),
            ..outcome
        })
    }
}

/// Each target for itself.
pub(super) fn alter(image: &Image, request: AlterClientQuotas) -> Decision {
    let mut records = Vec::new();
    let mut results = QuotaResults::new();
    for QuotaChange { target, ops } in request.changes {
        let mut keys = BTreeSet::new();
        let repeats = ops.iter().any(|(key, _)| !keys.insert(key.as_str()));
        let known = results.iter_mut().find(|(other, _)| *other == target);
        let again = || invalid(format!("Ignoring duplicate entity {}", printed(&target)));
        match known {
            // What was to be changed first is changed all the same.
            Some((_, result)) => *result = again(),
            // Kafka says the same of a key that comes twice.
            None if repeats => results.push((target.clone(), again())),
            None => {
                let changed = change(image, &target, &ops);
                results.push((target, changed.map(|new| records.extend(new))));
            }
        }
    }
    if request.validate_only {
        records.clear();
    }
    Decision { records, response: Response::QuotasAltered(results) }
}

fn change(
    image: &Image,
    target: &QuotaTarget,
    ops: &[(String, Option<QuotaLimit>)],
) -> Result<Vec<Record>, Refusal> {
    let entity = entity(target)?;
    let current = image.client_quotas().get(&entity);
    let current = |key: QuotaKey| current.and_then(|limits| limits.get(&key).copied());
    let mut records = Vec::new();
    for (name, limit) in ops {
        let key = QuotaKey::find(name).filter(|key| key.is_of_ip() == entity.ip.is_some());
        if let Some(limit) = limit {
            check_limit(key, name, limit.get())?;
        }
        // What is not known was not set, and need not be taken away.
        let Some(key) = key else { continue };
        if current(key) != *limit {
            records.push(Record::ClientQuota { entity: entity.clone(), key, limit: *limit });
        }
    }
    Ok(records)
}

fn entity(target: &QuotaTarget) -> Result<QuotaEntity, Refusal> {
    let mut entity = QuotaEntity::default();
    for (kind, name) in target {
        let part = match kind.as_str() {
            "user" => &mut entity.user,
            "client-id" => &mut entity.client_id,
            "ip" => &mut entity.ip,
            _ => return invalid(format!("Unhandled client quota entity type: {kind}")),
        };
        if name.as_deref() == Some("") {
            return invalid(format!("Empty {kind} not supported"));
        }
        *part = Some(name.clone().map_or(QuotaName::Default, QuotaName::Of));
    }
    match &entity {
        QuotaEntity { user: None, client_id: None, ip: None } => {
            invalid("Invalid empty client quota entity".to_owned())
        }
        QuotaEntity { user: None, client_id: None, ip: Some(QuotaName::Of(ip)) }
            if ip.parse::<IpAddr>().is_err() =>
        {
            // Kafka takes the name of a host too, and looks it up on every broker.
            invalid(format!("{ip} is not a valid IP or resolvable host."))
        }
        QuotaEntity { user: Some(_), ip: Some(_), .. }
        | QuotaEntity { client_id: Some(_), ip: Some(_), .. } => invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
                .to_owned(),
        ),
        _ => Ok(entity),
    }
}

fn check_limit(key: Option<QuotaKey>, name: &str, limit: f64) -> Result<(), Refusal> {
    let Some(key) = key else { return invalid(format!("Invalid configuration key {name}")) };
    if limit.is_nan() || limit <= 0.0 {
        return invalid(format!("Quota {name} must be greater than 0"));
    }
    let (max, kind) = match key {
        QuotaKey::RequestPercentage | QuotaKey::ControllerMutationRate => return Ok(()),
        QuotaKey::ProducerByteRate | QuotaKey::ConsumerByteRate => (i64::MAX as f64, "a LONG"),
        QuotaKey::ConnectionCreationRate => (f64::from(i32::MAX), "an INT"),
    };
    if limit > max {
        return invalid(format!("Proposed value for {name} is too large for {kind}."));
    }
    if limit % 1.0 > FRACTION_MAX {
        return invalid(format!("{name} cannot be a fractional value."));
    }
    Ok(())
}

fn invalid<T>(message: String) -> Result<T, Refusal> {
    Err(Refusal::new(ErrorCode::InvalidRequest, message))
}

/// As Java prints it.
fn printed(target: &QuotaTarget) -> String {
    let parts: Vec<String> =
        target.iter().map(|(kind, name)| format!("{kind}={}", name.as_deref().unwrap_or("null"))).collect();
    format!("ClientQuotaEntity(entries={{{}}})", parts.join(", "))
}

#[cfg(test)]
#[path = "quotas_tests.rs"]
mod tests;
