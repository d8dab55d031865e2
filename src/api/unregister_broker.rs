//! UnregisterBroker 0 (KIP-631): the controller forgets a broker that is gone for good
//! (`ControllerApis.handleUnregisterBroker`).

use kafka_protocol::messages::{UnregisterBrokerRequest, UnregisterBrokerResponse};

use super::Client;
use super::cluster_view::text;
use crate::base::BrokerId;
use crate::metadata::{Command, Refusal};

pub async fn handle(client: &Client, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse {
    let id = BrokerId(request.broker_id.0);
    respond(client.command(Command::UnregisterBroker { id }).await.map(drop))
}

fn respond(result: Result<(), Refusal>) -> UnregisterBrokerResponse {
    let response = UnregisterBrokerResponse::default().with_error_message(None);
    match result {
        Ok(()) => response,
        Err(refusal) => {
            response.with_error_code(refusal.code.code()).with_error_message(Some(text(&refusal.message)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::header::CorrelationId;
    use crate::wire::{ErrorCode, guard};

    #[test]
    fn every_answer_can_be_encoded() {
        let refusal = Refusal::new(ErrorCode::BrokerIdNotRegistered, "why");
        for (result, code) in [(Ok(()), 0), (Err(refusal), 102)] {
            let response = respond(result);
            assert_eq!(response.error_code, code);
            assert!(guard::encode(0, CorrelationId(1), &response).is_ok());
        }
    }
}
