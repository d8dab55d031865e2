//! Client quotas as the cluster has set them: of whom, what, how much; and which of them counts for a client (Kafka's
//! `ClientQuotasImage`, `ClientQuotaManager`). Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::sorted_map::SortedMap;

/// Whom quotas are set for: a user, a client id, both together, or an address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct QuotaEntity {
    pub user: Option<QuotaName>,
    pub client_id: Option<QuotaName>,
    pub ip: Option<QuotaName>,
}

/// One of its parts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum QuotaName {
    /// Whoever has no quota under his own name.
    Default,
    Of(String),
}

/// What is limited.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum QuotaKey {
    /// Bytes per second of Produce requests.
    ProducerByteRate,
    /// Bytes per second of answers to Fetch.
    ConsumerByteRate,
    /// Percent of a second of one processor, per second.
    RequestPercentage,
    /// Partitions made and deleted per second.
    ControllerMutationRate,
    /// Connections per second from an address.
    ConnectionCreationRate,
}

/// How much of it: a number above 0, compared by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuotaLimit(u64);

/// What is set for one entity; never empty.
pub type QuotaLimits = BTreeMap<QuotaKey, QuotaLimit>;

/// All that is set.
#[derive(Clone, Default, Debug)]
pub struct ClientQuotas {
    entities: SortedMap<QuotaEntity, Arc<QuotaLimits>>,
    /// Of each key, for how many entities.
    counts: [usize; QuotaKey::ALL.len()],
}

/// The quota of a client, and what is measured together for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfClient {
    pub limit: QuotaLimit,
    pub scope: Scope,
}

/// With whom a client shares its quota.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scope {
    /// Those of the same user and client id.
    UserAndClient,
    /// All of the same user.
    User,
    /// All of the same client id.
    Client,
}

impl QuotaKey {
    pub const ALL: [QuotaKey; 5] = [
        QuotaKey::ProducerByteRate,
        QuotaKey::ConsumerByteRate,
        QuotaKey::RequestPercentage,
        QuotaKey::ControllerMutationRate,
        QuotaKey::ConnectionCreationRate,
    ];

    /// As the protocol and the tools have it.
    pub fn name(self) -> &'static str {
        match self {
            QuotaKey::ProducerByteRate => "producer_byte_rate",
            QuotaKey::ConsumerByteRate => "consumer_byte_rate",
            QuotaKey::RequestPercentage => "request_percentage",
            QuotaKey::ControllerMutationRate => "controller_mutation_rate",
            QuotaKey::ConnectionCreationRate => "connection_creation_rate",
        }
    }

    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name() == name)
    }

    /// Whether it is one of an address, not of users and clients.
    pub fn is_of_ip(self) -> bool {
        self == QuotaKey::ConnectionCreationRate
    }
}

impl QuotaLimit {
    pub fn new(value: f64) -> Self {
        Self(value.to_bits())
    }

    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl fmt::Debug for QuotaLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get())
    }
}

impl ClientQuotas {
    /// Every entity that has quotas, with them.
    pub fn iter(&self) -> impl Iterator<Item = (&QuotaEntity, &Arc<QuotaLimits>)> {
        self.entities.iter()
    }

    pub fn get(&self, entity: &QuotaEntity) -> Option<&Arc<QuotaLimits>> {
        self.entities.get(entity)
    }

    /// Whether anybody's `key` is limited.
    pub fn has(&self, key: QuotaKey) -> bool {
        self.counts[key as usize] > 0
    }

    /// Whether anything of users or client ids is limited.
    pub fn has_of_clients(&self) -> bool {
        QuotaKey::ALL.into_iter().any(|key| !key.is_of_ip() && self.has(key))
    }

    /// What counts for this user and client id: the first of these that is set for, in the order of Kafka's
    /// `DefaultQuotaCallback`. A client without an id has what its user has.
    pub fn of_client(&self, key: QuotaKey, user: &str, client_id: &str) -> Option<OfClient> {
        if !self.has(key) {
            return None;
        }
        let own_user = || Some(QuotaName::Of(user.to_owned()));
        let own_client = || Some(QuotaName::Of(client_id.to_owned()));
        let default = || Some(QuotaName::Default);
        let levels = [
            (own_user(), own_client(), Scope::UserAndClient),
            (own_user(), default(), Scope::UserAndClient),
            (own_user(), None, Scope::User),
            (default(), own_client(), Scope::UserAndClient),
            (default(), default(), Scope::UserAndClient),
            (default(), None, Scope::User),
            (None, own_client(), Scope::Client),
            (None, default(), Scope::Client),
        ];
        let applies = |scope: Scope| scope == Scope::User || !client_id.is_empty();
        levels.into_iter().filter(|(.., scope)| applies(*scope)).find_map(|(user, client_id, scope)| {
            let limits = self.get(&QuotaEntity { user, client_id, ip: None })?;
            limits.get(&key).map(|limit| OfClient { limit: *limit, scope })
        })
    }

    pub(super) fn set(&mut self, entity: &QuotaEntity, key: QuotaKey, limit: Option<QuotaLimit>) {
        let mut limits = self.get(entity).map(|limits| QuotaLimits::clone(limits)).unwrap_or_default();
        let before = limits.contains_key(&key);
        match limit {
            Some(limit) => limits.insert(key, limit),
            None => limits.remove(&key),
        };
        let count = &mut self.counts[key as usize];
        *count = *count - usize::from(before) + usize::from(limit.is_some());
        if limits.is_empty() {
            self.entities.remove(entity);
        } else {
            self.entities.insert(entity.clone(), Arc::new(limits));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Option<QuotaName> {
        match name {
            "" => None,
            "*" => Some(QuotaName::Default),
            name => Some(QuotaName::Of(name.to_owned())),
        }
    }

    fn quotas(set: &[(&str, &str, f64)]) -> ClientQuotas {
        let mut quotas = ClientQuotas::default();
        for (user, client_id, limit) in set {
            let entity = QuotaEntity { user: name(user), client_id: name(client_id), ip: None };
            quotas.set(&entity, QuotaKey::ProducerByteRate, Some(QuotaLimit::new(*limit)));
        }
        quotas
    }

    fn of(quotas: &ClientQuotas, user: &str, client_id: &str) -> Option<(f64, Scope)> {
        let found = quotas.of_client(QuotaKey::ProducerByteRate, user, client_id)?;
        Some((found.limit.get(), found.scope))
    }

    #[test]
    fn the_most_precise_quota_counts() {
        let all = [
            ("u", "c", 1.0),
            ("u", "*", 2.0),
            ("u", "", 3.0),
            ("*", "c", 4.0),
            ("*", "*", 5.0),
            ("*", "", 6.0),
            ("", "c", 7.0),
            ("", "*", 8.0),
        ];
        let scopes = [
            Scope::UserAndClient,
            Scope::UserAndClient,
            Scope::User,
            Scope::UserAndClient,
            Scope::UserAndClient,
            Scope::User,
            Scope::Client,
            Scope::Client,
        ];
        for first in 0..all.len() {
            let quotas = quotas(&all[first..]);
            assert_eq!(of(&quotas, "u", "c"), Some((first as f64 + 1.0, scopes[first])));
        }
        let quotas = quotas(&all);
        assert_eq!(of(&quotas, "u", "other"), Some((2.0, Scope::UserAndClient)));
        assert_eq!(of(&quotas, "other", "c"), Some((4.0, Scope::UserAndClient)));
        assert_eq!(of(&quotas, "other", "other"), Some((5.0, Scope::UserAndClient)));
        assert_eq!(quotas.of_client(QuotaKey::ConsumerByteRate, "u", "c"), None);
    }

    #[test]
    fn a_client_without_an_id_has_what_its_user_has() {
        let with_user = quotas(&[("u", "*", 1.0), ("u", "", 2.0), ("", "*", 3.0)]);
        assert_eq!(of(&with_user, "u", ""), Some((2.0, Scope::User)));
        assert_eq!(of(&quotas(&[("", "*", 3.0)]), "u", ""), None);
    }

    #[test]
    fn what_is_taken_away_is_gone() {
        let mut quotas = quotas(&[("u", "", 1.0), ("*", "", 2.0)]);
        let entity = QuotaEntity { user: name("u"), ..QuotaEntity::default() };
        quotas.set(&entity, QuotaKey::ConsumerByteRate, Some(QuotaLimit::new(9.0)));
        quotas.set(&entity, QuotaKey::ProducerByteRate, None);
        quotas.set(&entity, QuotaKey::ProducerByteRate, None);
        assert_eq!(of(&quotas, "u", "c"), Some((2.0, Scope::User)));
        assert!(quotas.has(QuotaKey::ConsumerByteRate) && quotas.has_of_clients());
        quotas.set(&entity, QuotaKey::ConsumerByteRate, None);
        assert!(!quotas.has(QuotaKey::ConsumerByteRate));
        assert_eq!(quotas.get(&entity), None);
        assert_eq!(quotas.iter().count(), 1);
    }
}
