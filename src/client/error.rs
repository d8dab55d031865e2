//! What can go wrong in the client, told in one line each.

use std::io;
use std::time::Duration;

use kafka_protocol::messages::ApiKey;

use crate::base::TopicPartition;
use crate::wire::ErrorCode;

pub type Result<T, E = ClientError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The text is no `host:port`, or the name has no address.
    #[error("cannot resolve {address}: {reason}")]
    Resolve { address: String, reason: String },
    #[error("cannot connect to {address}: {reason}")]
    Connect { address: String, reason: String },
    /// The connection ended with requests unanswered.
    #[error("lost the connection to {address}: {reason}")]
    Lost { address: String, reason: String },
    #[error("{what} was not done within {} ms", after.as_millis())]
    TimedOut { what: String, after: Duration },
    #[error("{address} and this client have no common version of {api:?}")]
    NoCommonVersion { address: String, api: ApiKey },
    /// The broker answered with one of Kafka's error codes.
    #[error("{what}: {}{}", code_name(*code), message.as_deref().map(|m| format!(": {m}")).unwrap_or_default())]
    Broker { what: String, code: ErrorCode, message: Option<String> },
    /// What came from the broker does not follow the protocol.
    #[error("malformed answer to {what}: {reason}")]
    Malformed { what: String, reason: String },
    /// A request cannot be put into the version the broker speaks.
    #[error("cannot encode {what}: {reason}")]
    Encode { what: String, reason: String },
    #[error("{partition}: a stored batch is damaged: {reason}")]
    DamagedBatch { partition: TopicPartition, reason: String },
    #[error("record of {size} bytes is larger than the request limit of {limit}")]
    RecordTooLarge { size: usize, limit: usize },
    #[error("no committed offset for {0} and no reset policy")]
    NoOffset(TopicPartition),
    #[error("the producer is closed")]
    Closed,
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ClientError {
    /// Wraps a code of a response to `what`.
    pub fn broker(what: impl Into<String>, code: ErrorCode, message: Option<&str>) -> Self {
        ClientError::Broker { what: what.into(), code, message: message.map(str::to_owned) }
    }

    /// The same request may succeed when it is sent again, perhaps after a metadata refresh.
    pub fn is_retriable(&self) -> bool {
        match self {
            ClientError::Broker { code, .. } => code.is_retriable(),
            ClientError::Connect { .. } | ClientError::Lost { .. } => true,
            _ => false,
        }
    }

    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            ClientError::Broker { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// A code under the name it has in Kafka: `UNKNOWN_TOPIC_OR_PARTITION`.
pub fn code_name(code: ErrorCode) -> String {
    if let ErrorCode::Unknown(number) = code {
        return format!("error code {number}");
    }
    let mut name = String::new();
    for letter in code.to_string().chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_by_kafkas_names() {
        assert_eq!(code_name(ErrorCode::UnknownTopicOrPartition), "UNKNOWN_TOPIC_OR_PARTITION");
        assert_eq!(code_name(ErrorCode::Unknown(999)), "error code 999");
        let error = ClientError::broker("create topic t", ErrorCode::TopicAlreadyExists, Some("it exists"));
        assert_eq!(error.to_string(), "create topic t: TOPIC_ALREADY_EXISTS: it exists");
    }
}
