//! AddRaftVoter 0–1 and RemoveRaftVoter 0 (KIP-853, KIP-1186). The voters are those of `controller.quorum.voters`, which
//! Kafka calls `kraft.version` 0, so both are refused as its leader refuses them then, after the same checks in the same
//! order (`KafkaRaftClient`, `AddVoterHandler`, `RemoveVoterHandler`). Whoever leads says the same: nobody is asked.

use kafka_protocol::messages::add_raft_voter_request::Listener;
use kafka_protocol::messages::{
    AddRaftVoterRequest, AddRaftVoterResponse, RemoveRaftVoterRequest, RemoveRaftVoterResponse,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::Client;
use super::cluster_view::text;
use crate::config::ListenerName;
use crate::metadata::Refusal;
use crate::wire::ErrorCode;

pub async fn add(client: &Client, request: AddRaftVoterRequest) -> AddRaftVoterResponse {
    let controllers = client.shard.config().controller_listeners.first().map(|listener| &listener.name);
    let Refusal { code, message } = refuse_to_add(client.shard.image().cluster_id(), controllers, &request);
    AddRaftVoterResponse::default().with_error_code(code.code()).with_error_message(Some(text(&message)))
}

pub async fn remove(client: &Client, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse {
    let Refusal { code, message } = refuse_to_remove(client.shard.image().cluster_id(), &request);
    RemoveRaftVoterResponse::default().with_error_code(code.code()).with_error_message(Some(text(&message)))
}

/// Why the voter is not added, where controllers reach each other by the listener `controllers`; a node alone may have
/// none.
fn refuse_to_add(
    cluster_id: &str,
    controllers: Option<&ListenerName>,
    request: &AddRaftVoterRequest,
) -> Refusal {
    if let Some(refusal) = of_another_cluster(cluster_id, request.cluster_id.as_ref()) {
        return refusal;
    }
    if !is_voter(request.voter_id, request.voter_directory_id) {
        return Refusal::new(ErrorCode::InvalidRequest, "Add voter request didn't include a valid voter");
    }
    let has =
        |wanted: &ListenerName| request.listeners.iter().any(|it| ListenerName::new(&it.name) == *wanted);
    match controllers.filter(|wanted| !has(wanted)) {
        Some(wanted) => {
            let text = format!(
                "Add voter request didn't include the endpoint ({}) for the default listener ListenerName({wanted})",
                endpoints(&request.listeners)
            );
            Refusal::new(ErrorCode::InvalidRequest, text)
        }
        None => unsupported("adding"),
    }
}

fn refuse_to_remove(cluster_id: &str, request: &RemoveRaftVoterRequest) -> Refusal {
    if let Some(refusal) = of_another_cluster(cluster_id, request.cluster_id.as_ref()) {
        return refusal;
    }
    match is_voter(request.voter_id, request.voter_directory_id) {
        true => unsupported("removing"),
        false => Refusal::new(ErrorCode::InvalidRequest, "Remove voter request didn't include a valid voter"),
    }
}

/// Nothing said is right.
fn of_another_cluster(cluster_id: &str, asked: Option<&StrBytes>) -> Option<Refusal> {
    let asked = asked.filter(|asked| asked.as_str() != cluster_id)?;
    let text = format!("The given id \"{asked}\" doesn't match the cluster id \"{cluster_id}\"");
    Some(Refusal::new(ErrorCode::InconsistentClusterId, text))
}

fn is_voter(id: i32, directory: Uuid) -> bool {
    id >= 0 && !directory.is_nil()
}

fn unsupported(change: &str) -> Refusal {
    let text = format!("Cluster doesn't support {change} voter because the kraft.version feature is 0");
    Refusal::new(ErrorCode::UnsupportedVersion, text)
}

/// As Java prints them.
fn endpoints(listeners: &[Listener]) -> String {
    let printed = listeners.iter().map(|Listener { name, host, port, .. }| {
        format!("ListenerName({})={host}/<unresolved>:{port}", ListenerName::new(name))
    });
    format!("Endpoints(endpoints={{{}}})", printed.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: Uuid = Uuid::from_u128(7);

    fn asked(cluster_id: Option<&str>, id: i32, directory: Uuid, listener: &str) -> AddRaftVoterRequest {
        let listener = Listener::default().with_name(text(listener)).with_host(text("h")).with_port(9);
        AddRaftVoterRequest::default()
            .with_cluster_id(cluster_id.map(text))
            .with_voter_id(id)
            .with_voter_directory_id(directory)
            .with_listeners(vec![listener])
    }

    #[test]
    fn what_is_wrong_first_is_told() {
        let controllers = ListenerName::new("CONTROLLER");
        let told = |request: &AddRaftVoterRequest, controllers| {
            let Refusal { code, message } = refuse_to_add("cluster", controllers, request);
            (code.code(), message)
        };
        let invalid = (42, "Add voter request didn't include a valid voter".to_owned());
        let unsupported = "Cluster doesn't support adding voter because the kraft.version feature is 0";
        let unsupported = (35, unsupported.to_owned());
        let other = asked(Some("other"), -1, Uuid::nil(), "X");
        let expected = "The given id \"other\" doesn't match the cluster id \"cluster\"";
        assert_eq!(told(&other, Some(&controllers)), (104, expected.to_owned()));
        for (id, directory) in [(-1, DIRECTORY), (1, Uuid::nil())] {
            assert_eq!(told(&asked(None, id, directory, "X"), Some(&controllers)), invalid);
        }
        let elsewhere = asked(Some("cluster"), 1, DIRECTORY, "x");
        let expected = "Add voter request didn't include the endpoint \
                        (Endpoints(endpoints={ListenerName(X)=h/<unresolved>:9})) for the default listener \
                        ListenerName(CONTROLLER)";
        assert_eq!(told(&elsewhere, Some(&controllers)), (42, expected.to_owned()));
        assert_eq!(told(&elsewhere, None), unsupported, "a node alone has no listener for controllers");
        let right = asked(Some("cluster"), 1, DIRECTORY, "Controller");
        assert_eq!(told(&right, Some(&controllers)), unsupported);
    }

    #[test]
    fn nobody_is_taken_out_of_a_quorum_that_is_fixed() {
        let told = |cluster_id: Option<&'static str>, id, directory| {
            let request = RemoveRaftVoterRequest::default()
                .with_cluster_id(cluster_id.map(StrBytes::from_static_str))
                .with_voter_id(id)
                .with_voter_directory_id(directory);
            let Refusal { code, message } = refuse_to_remove("cluster", &request);
            (code.code(), message)
        };
        assert_eq!(told(Some("other"), 1, DIRECTORY).0, 104);
        let invalid = (42, "Remove voter request didn't include a valid voter".to_owned());
        assert_eq!(told(Some("cluster"), -1, DIRECTORY), invalid);
        assert_eq!(told(None, 1, Uuid::nil()), invalid);
        let unsupported = "Cluster doesn't support removing voter because the kraft.version feature is 0";
        assert_eq!(told(None, 1, DIRECTORY), (35, unsupported.to_owned()));
    }
}
