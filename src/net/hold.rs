//! The quota of an address on connections (`connection_creation_rate`, KIP-612): one that comes too soon is taken in,
//! served nothing, and closed when its time is over, so that its peer does not come again at once
//! (`ConnectionQuotas.recordIpConnectionMaybeThrottle`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Monotonic;
use crate::metadata::{ClientQuotas, QuotaEntity, QuotaKey, QuotaName, Scope};
use crate::shard::QuotaMeters;

/// What addresses may do, and how fast they do it.
#[derive(Clone)]
pub(super) struct IpLimits {
    meters: Arc<QuotaMeters>,
    default: Option<f64>,
    own: Arc<HashMap<IpAddr, f64>>,
}

impl IpLimits {
    /// `None` when no address is limited.
    pub(super) fn of(quotas: &ClientQuotas, meters: &Arc<QuotaMeters>) -> Option<Self> {
        if !quotas.has(QuotaKey::ConnectionCreationRate) {
            return None;
        }
        let mut limits = Self { meters: meters.clone(), default: None, own: Arc::default() };
        let mut own = HashMap::new();
        for (entity, set) in quotas.iter() {
            let Some(limit) = set.get(&QuotaKey::ConnectionCreationRate) else { continue };
            match entity {
                QuotaEntity { ip: Some(QuotaName::Default), .. } => limits.default = Some(limit.get()),
                QuotaEntity { ip: Some(QuotaName::Of(ip)), .. } => {
                    own.extend(ip.parse::<IpAddr>().ok().map(|ip| (ip.to_canonical(), limit.get())));
                }
                _ => {}
            }
        }
        limits.own = Arc::new(own);
        Some(limits)
    }

    /// Counts a connection of `ip`; how long it is held before it is closed, if it comes too soon. It does not count then.
    pub(super) fn hold(&self, ip: IpAddr, now: Monotonic) -> Option<Duration> {
        let ip = ip.to_canonical();
        let limit = self.own.get(&ip).copied().or(self.default)?;
        let name = ip.to_string();
        let meter =
            self.meters.meter(QuotaKey::ConnectionCreationRate, Scope::Client, ("", name.as_str()), now);
        meter.record(1, now);
        let throttle = meter.throttle(limit, now).min(self.meters.windows().span());
        if throttle.is_zero() {
            return None;
        }
        meter.take_back(1);
        Some(throttle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Windows;
    use crate::config::QuotaSettings;
    use crate::metadata::{QuotaLimit, Record, State};

    fn limits(set: &[(Option<&str>, f64)]) -> Option<IpLimits> {
        let mut state = State::default();
        for (ip, limit) in set {
            let name = ip.map_or(QuotaName::Default, |ip| QuotaName::Of(ip.to_owned()));
            let entity = QuotaEntity { ip: Some(name), ..QuotaEntity::default() };
            let key = QuotaKey::ConnectionCreationRate;
            let record = Record::ClientQuota { entity, key, limit: Some(QuotaLimit::new(*limit)) };
            state.apply(1, &[record]).unwrap();
        }
        let windows = Windows::new(11, 1);
        let settings = QuotaSettings { windows, controller_windows: windows, clients_max: 100 };
        IpLimits::of(state.image().client_quotas(), &Arc::new(QuotaMeters::new(&settings)))
    }

    #[test]
    fn an_address_over_its_rate_is_held_for_a_second_at_most_and_others_are_not() {
        assert!(limits(&[]).is_none());
        let limits = limits(&[(None, 1.0), (Some("10.0.0.9"), 2.0)]).unwrap();
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let hold = |last, ms| limits.hold(ip(last), Monotonic::from_millis(ms));
        // Ten seconds count at least.
        assert!((0..10).all(|_| hold(1, 0).is_none()));
        assert_eq!(hold(1, 0), Some(Duration::from_secs(1)));
        assert_eq!(hold(1, 500), Some(Duration::from_millis(500)), "those that were held do not count");
        assert_eq!(hold(2, 500), None);
        assert!((0..20).all(|_| hold(9, 0).is_none()), "its own limit");
        assert!(hold(9, 0).is_some());
        let mapped = "::ffff:10.0.0.9".parse().unwrap();
        assert!(limits.hold(mapped, Monotonic::ZERO).is_some());
    }
}
