//! InitProducerId 0–5 for idempotent producers (KIP-98). Transactions are not served yet: a transactional id
//! is refused with an error that no client retries.

use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId as WireProducerId};

use super::Client;
use crate::base::{ProducerId, ShardId};
use crate::metadata::Refusal;
use crate::shard::messages::{ControlReply, ControlRequest, Reply, Request};
use crate::wire::ErrorCode;

pub async fn handle(client: &Client, request: InitProducerIdRequest) -> InitProducerIdResponse {
    if let Some(code) = refusal(&request) {
        return respond(Err(code));
    }
    let request = Request::Control(ControlRequest::ProducerId);
    match client.shard.ask(ShardId::CONTROL, request).await {
        Reply::Control(ControlReply::ProducerId(result)) => {
            respond(result.map_err(|Refusal { code, .. }| match code {
                // What a client understands as "ask again".
                ErrorCode::NotController => ErrorCode::CoordinatorLoadInProgress,
                code => code,
            }))
        }
        _ => crate::base::fatal("a producer id request got another request's answer"),
    }
}

fn refusal(request: &InitProducerIdRequest) -> Option<ErrorCode> {
    // An id without an epoch, or the other way round, is no producer.
    if (request.producer_id.0 < 0) != (request.producer_epoch < 0) {
        return Some(ErrorCode::InvalidRequest);
    }
    match request.transactional_id.as_deref().map(|id| &**id) {
        None => None,
        Some("") => Some(ErrorCode::InvalidRequest),
        Some(_) => Some(ErrorCode::UnsupportedVersion),
    }
}

fn respond(result: Result<ProducerId, ErrorCode>) -> InitProducerIdResponse {
    let none = InitProducerIdResponse::default().with_producer_id(WireProducerId(-1)).with_producer_epoch(-1);
    match result {
        Ok(id) => none.with_producer_id(WireProducerId(id.0)).with_producer_epoch(0),
        Err(code) => none.with_error_code(code.code()),
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::TransactionalId;
    use kafka_protocol::protocol::StrBytes;

    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    fn request(id: Option<&'static str>, producer_id: i64, epoch: i16) -> InitProducerIdRequest {
        InitProducerIdRequest::default()
            .with_transactional_id(id.map(|id| TransactionalId(StrBytes::from_static_str(id))))
            .with_producer_id(WireProducerId(producer_id))
            .with_producer_epoch(epoch)
    }

    #[test]
    fn only_idempotent_producers_are_served() {
        assert_eq!(refusal(&request(None, -1, -1)), None);
        assert_eq!(refusal(&request(None, 5, 1)), None);
        assert_eq!(refusal(&request(None, 5, -1)), Some(ErrorCode::InvalidRequest));
        assert_eq!(refusal(&request(None, -1, 5)), Some(ErrorCode::InvalidRequest));
        assert_eq!(refusal(&request(Some(""), -1, -1)), Some(ErrorCode::InvalidRequest));
        assert_eq!(refusal(&request(Some("t"), -1, -1)), Some(ErrorCode::UnsupportedVersion));
    }

    #[test]
    fn every_version_can_be_encoded() {
        for version in 0..=5 {
            for result in [Ok(ProducerId(7)), Err(ErrorCode::InvalidRequest)] {
                assert!(guard::encode(version, CorrelationId(1), &respond(result)).is_ok());
            }
        }
    }
}
