//! What shall not stand in a trace: passwords, their hashes, tokens. As Kafka's request log: the values of configs that
//! are passwords, or of which it cannot be told, are hidden (`RequestChannel.loggableRequest`); bytes are told by their
//! length.

use crate::config::{Scope, Settings};

/// In place of a value.
pub(super) const HIDDEN: &str = "[hidden]";

/// Fields of bytes. An envelope has a request of another in it, whose configs nobody looks at here.
const BYTES: [&str; 7] =
    ["authBytes", "salt", "saltedPassword", "hmac", "requestData", "responseData", "requestPrincipal"];

/// What occurs in the names of configs whose type is PASSWORD.
const WORDS: [&str; 6] = ["password", "passphrase", "secret", "jaas", "keystore.key", "certificate"];

/// Kinds of resources whose configs are of no secret kind: loggers, client metrics.
const OPEN_KINDS: [i8; 2] = [8, 16];

pub(super) fn is_secret_field(name: &str) -> bool {
    BYTES.contains(&name)
}

/// Whether a config's name says that it is a password.
pub(super) fn is_secret_config(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

/// Whether a config that is set for a resource of this kind is known, and known to be no password.
pub(super) fn is_open_config(kind: Option<i8>, name: &str) -> bool {
    let file = Settings::default();
    let scope = match kind {
        Some(2) => Scope::Topic,
        Some(4) => Scope::Broker,
        Some(32) => Scope::Group(&file),
        Some(kind) => return OPEN_KINDS.contains(&kind) && !is_secret_config(name),
        None => return false,
    };
    scope.definition(name).is_some() && !is_secret_config(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_kafkas_passwords_are_known_and_others_pass() {
        let passwords = [
            "delegation.token.secret.key",
            "sasl.jaas.config",
            "sasl.oauthbearer.assertion.private.key.passphrase",
            "sasl.oauthbearer.client.credentials.client.secret",
            "ssl.key.password",
            "ssl.keystore.certificate.chain",
            "ssl.keystore.key",
            "ssl.keystore.password",
            "ssl.truststore.certificates",
            "ssl.truststore.password",
            "listener.name.external.scram-sha-256.sasl.jaas.config",
            "listener.name.x.SSL.KEY.PASSWORD",
        ];
        for name in passwords {
            assert!(is_secret_config(name) && !is_open_config(Some(4), name), "{name}");
        }
        assert!(is_open_config(Some(2), "retention.ms") && is_open_config(Some(4), "log.retention.ms"));
        assert!(is_open_config(Some(32), "consumer.session.timeout.ms"));
        assert!(is_open_config(Some(8), "kafka.server.KafkaApis"));
        assert!(!is_open_config(Some(4), "some.plugin.login") && !is_open_config(None, "retention.ms"));
    }
}
