//! What becomes of a property that kuring does not have. Most are named in one warning and have no
//! effect. One that restricts access, or promises more for the data than kuring keeps, stops the start:
//! the broker is never more open and never weaker than its file says.

/// The verdict on a property that is not in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absent {
    /// It has no effect; the text says why.
    Ignored(&'static str),
    /// The start must stop, unless the value is one of those that ask for nothing.
    Refused { reason: &'static str, harmless: &'static [&'static str] },
}

/// Judges a name that is in no table.
pub fn judge(name: &str) -> Absent {
    // A listener's own setting is what the setting without the prefix is.
    if let Some(rest) = name.strip_prefix("listener.name.") {
        let bare = rest.split_once('.').map_or("", |(_, bare)| bare);
        if bare.starts_with("sasl.") || bare.starts_with("ssl.") || bare.contains(".sasl.") {
            return Absent::Refused { reason: SECURITY, harmless: &[""] };
        }
        return match judge(bare) {
            refused @ Absent::Refused { .. } => refused,
            Absent::Ignored(_) => Absent::Ignored("kuring has no such setting for a single listener"),
        };
    }
    match REFUSED.iter().find(|(pattern, ..)| matches(pattern, name)) {
        Some((_, reason, harmless)) => Absent::Refused { reason, harmless },
        None => match IGNORED.iter().find(|(pattern, _)| matches(pattern, name)) {
            Some((_, reason)) => Absent::Ignored(reason),
            None => Absent::Ignored("kuring does not know this property"),
        },
    }
}

/// `*` at either end of a pattern stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (None, None) => pattern == name,
        (None, Some(start)) => name.starts_with(start),
        (Some(end), None) => name.ends_with(end),
        (Some(middle), Some(_)) => name.contains(middle.trim_end_matches('*')),
    }
}

const SECURITY: &str =
    "kuring has no TLS, SASL or authorization yet, and starting without would leave the broker open";
const PLUGIN: &str = "kuring runs no Java class, and starting without would not enforce what it enforces";

type Refusal = (&'static str, &'static str, &'static [&'static str]);

const REFUSED: &[Refusal] = &[
    ("authorizer.class.name", SECURITY, &[""]),
    ("super.users", SECURITY, &[""]),
    ("allow.everyone.if.no.acl.found", SECURITY, &["true"]),
    ("sasl.*", SECURITY, &[""]),
    ("ssl.*", SECURITY, &[""]),
    ("*.sasl.*", SECURITY, &[""]),
    ("security.providers", SECURITY, &[""]),
    ("delegation.token.secret.key", SECURITY, &[""]),
    ("delegation.token.master.key", SECURITY, &[""]),
    ("connections.max.reauth.ms", SECURITY, &["0"]),
    (
        "principal.builder.class",
        SECURITY,
        &["", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"],
    ),
    ("create.topic.policy.class.name", PLUGIN, &[""]),
    ("alter.config.policy.class.name", PLUGIN, &[""]),
    ("client.quota.callback.class", PLUGIN, &[""]),
    ("config.providers", "kuring does not resolve values through config providers", &[""]),
    (
        "transaction.two.phase.commit.enable",
        "kuring takes part in no transactions that another coordinator decides",
        &["false"],
    ),
    (
        "remote.log.storage.system.enable",
        "kuring has no tiered storage: the remote copies would not be made",
        &["false"],
    ),
    // A slip in one of our own names must not pass: it may have asked for fsync.
    ("kuring.*", "kuring has no setting of this name", &[]),
];

const THREADS: &str =
    "kuring has no such thread pool: kuring.shards and kuring.file.threads take their place";
const REPLICATION: &str = "kuring's nodes speak to each other with connections, sizes and times of their own";
const QUORUM: &str = "kuring's metadata log has timings and sizes of its own";
const GROUPS: &str = "kuring serves consumer groups of both protocols, but no share or streams groups, and needs no such setting";
const TIERED: &str = "kuring has no tiered storage";
const METRICS: &str = "kuring's metrics are not Kafka's reporters";
const QUOTAS: &str =
    "Kafka 4 dropped it: quotas are set for users, client ids and addresses, or as their defaults";
const MOVE_WINDOWS: &str = "kuring holds moves between log directories to their rate without windows";
const PURGATORY: &str = "kuring's purgatory needs no purging";

const IGNORED: &[(&str, &str)] = &[
    ("num.network.threads", THREADS),
    ("num.io.threads", THREADS),
    ("num.recovery.threads.per.data.dir", THREADS),
    ("num.replica.alter.log.dirs.threads", THREADS),
    ("background.threads", THREADS),
    ("group.coordinator.threads", THREADS),
    ("group.coordinator.background.threads", THREADS),
    ("queued.max.requests", "kuring bounds what is queued by bytes: kuring.memory.receive.bytes"),
    ("num.replica.fetchers", REPLICATION),
    ("replica.*", REPLICATION),
    (
        "leader.imbalance.per.broker.percentage",
        "Kafka 4 does not have it any more: every first replica that may lead is made to",
    ),
    ("controlled.shutdown.*", REPLICATION),
    ("controller.socket.timeout.ms", REPLICATION),
    ("request.timeout.ms", REPLICATION),
    ("socket.connection.setup.timeout*", REPLICATION),
    ("early.start.listeners", SECURITY_UNUSED),
    ("connection.failed.authentication.delay.ms", SECURITY_UNUSED),
    ("delegation.token.*", SECURITY_UNUSED),
    ("controller.quorum.*", QUORUM),
    ("metadata.*", QUORUM),
    ("quota.*", QUOTAS),
    ("alter.log.dirs.replication.quota.*", MOVE_WINDOWS),
    ("transaction.state.log.load.buffer.size", "kuring loads transactions in blocks of its own size"),
    ("group.*", GROUPS),
    ("share.*", GROUPS),
    ("errors.deadletterqueue.*", GROUPS),
    ("offsets.load.buffer.size", "kuring loads offsets in blocks of its own size"),
    ("offsets.topic.compression.codec", "kuring does not compress the offsets topic"),
    ("remote.*", TIERED),
    ("follower.fetch.last.tiered.offset.enable", TIERED),
    ("rsm.config.*", TIERED),
    ("rlmm.config.*", TIERED),
    ("metric.reporters", METRICS),
    ("metrics.*", METRICS),
    ("kafka.metrics.*", METRICS),
    ("auto.include.jmx.reporter", METRICS),
    ("telemetry.*", "kuring collects no client telemetry"),
    ("fetch.purgatory.purge.interval.requests", PURGATORY),
    ("producer.purgatory.purge.interval.requests", PURGATORY),
    ("delete.records.purgatory.purge.interval.requests", PURGATORY),
    ("share.fetch.purgatory.purge.interval.requests", PURGATORY),
    ("log.dir.failure.timeout.ms", "a failed directory goes offline at once"),
    ("cordoned.log.dirs", "kuring places new partitions in every directory of log.dirs"),
    ("zookeeper.*", "neither kuring nor Kafka 4 uses ZooKeeper"),
    ("log.message.format.version", "Kafka 4 dropped it; batches are version 2"),
    ("inter.broker.protocol.version", "Kafka 4 dropped it"),
];

const SECURITY_UNUSED: &str = "it has no effect on listeners without authentication";

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(name: &str) -> bool {
        matches!(judge(name), Absent::Refused { .. })
    }

    #[test]
    fn what_restricts_access_is_refused() {
        for name in [
            "authorizer.class.name",
            "ssl.keystore.location",
            "sasl.enabled.mechanisms",
            "listener.name.external.ssl.client.auth",
            "listener.name.external.plain.sasl.jaas.config",
            "listener.name.external.principal.builder.class",
            "client.quota.callback.class",
            "super.users",
            "kuring.durabilty",
        ] {
            assert!(is_refused(name), "{name}");
        }
    }

    #[test]
    fn what_only_tunes_is_ignored_with_its_reason() {
        assert_eq!(judge("num.io.threads"), Absent::Ignored(THREADS));
        assert_eq!(judge("listener.name.a.num.network.threads"), judge("listener.name.b.num.io.threads"));
        assert_eq!(judge("confluent.x"), Absent::Ignored("kuring does not know this property"));
        assert_eq!(judge("quota.producer.default"), Absent::Ignored(QUOTAS));
    }
}
