//! InitProducerId 0–5 (KIP-98, KIP-360): an id of its own for an idempotent producer; for a transactional id the
//! coordinator tells id and epoch.

use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId as WireProducerId};

use super::Client;
use crate::base::{ProducerEpoch, ProducerId, ShardId};
use crate::coordinator::transactions::{self, Producer};
use crate::metadata::Refusal;
use crate::shard::messages::{ControlReply, ControlRequest, Reply, Request};
use crate::wire::ErrorCode;

/// From here on clients know PRODUCER_FENCED.
const FIRST_WITH_FENCED: i16 = 4;

pub async fn handle(client: &Client, version: i16, request: InitProducerIdRequest) -> InitProducerIdResponse {
    let expected = match expected(&request) {
        Ok(expected) => expected,
        Err(code) => return respond(Err(code)),
    };
    if let Some(id) = request.transactional_id {
        let timeout_ms = request.transaction_timeout_ms;
        let asked = transactions::Request::Init { id: id.0, timeout_ms, expected };
        return match super::transactions::ask(client, asked).await {
            transactions::Response::Init(result) => respond(
                result.map_err(|error| super::transactions::fit_fenced(error, version >= FIRST_WITH_FENCED)),
            ),
            other => super::transactions::mismatch(&other),
        };
    }
    let request = Request::Control(ControlRequest::ProducerId);
    match client.shard.ask(ShardId::CONTROL, request).await {
        Reply::Control(ControlReply::ProducerId(result)) => {
            let result = result.map(|id| Producer { id, epoch: ProducerEpoch(0) });
            respond(result.map_err(|Refusal { code, .. }| match code {
                // What a client understands as "ask again".
                ErrorCode::NotController => ErrorCode::CoordinatorLoadInProgress,
                code => code,
            }))
        }
        _ => crate::base::fatal("a producer id request got another request's answer"),
    }
}

/// Who the producer believes to be. An id without an epoch, or the other way round, is no producer.
fn expected(request: &InitProducerIdRequest) -> Result<Option<Producer>, ErrorCode> {
    match (request.producer_id.0, request.producer_epoch) {
        (-1, -1) => Ok(None),
        (-1, _) | (_, -1) => Err(ErrorCode::InvalidRequest),
        (id, epoch) => Ok(Some(Producer { id: ProducerId(id), epoch: ProducerEpoch(epoch) })),
    }
}

fn respond(result: Result<Producer, ErrorCode>) -> InitProducerIdResponse {
    let none = InitProducerIdResponse::default().with_producer_id(WireProducerId(-1)).with_producer_epoch(-1);
    match result {
        Ok(producer) => {
            none.with_producer_id(WireProducerId(producer.id.0)).with_producer_epoch(producer.epoch.0)
        }
        Err(code) => none.with_error_code(code.code()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    fn request(producer_id: i64, epoch: i16) -> InitProducerIdRequest {
        InitProducerIdRequest::default()
            .with_producer_id(WireProducerId(producer_id))
            .with_producer_epoch(epoch)
    }

    #[test]
    fn an_id_goes_with_an_epoch() {
        assert_eq!(expected(&request(-1, -1)), Ok(None));
        let producer = Producer { id: ProducerId(5), epoch: ProducerEpoch(1) };
        assert_eq!(expected(&request(5, 1)), Ok(Some(producer)));
        assert_eq!(expected(&request(5, -1)), Err(ErrorCode::InvalidRequest));
        assert_eq!(expected(&request(-1, 5)), Err(ErrorCode::InvalidRequest));
    }

    #[test]
    fn every_version_can_be_encoded() {
        for version in 0..=5 {
            let producer = Producer { id: ProducerId(7), epoch: ProducerEpoch(3) };
            for result in [Ok(producer), Err(ErrorCode::InvalidRequest)] {
                assert!(guard::encode(version, CorrelationId(1), &respond(result)).is_ok());
            }
        }
    }
}
