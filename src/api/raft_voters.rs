//! AddRaftVoter 0–1 and RemoveRaftVoter 0 (KIP-853, KIP-1186), with the checks of Kafka's leader in the same order
//! (`KafkaRaftClient`, `AddVoterHandler`, `RemoveVoterHandler`). Where voters are those of `controller.quorum.voters`, which Kafka
//! calls `kraft.version` 0, both are refused here: whoever leads says the same. Else the leader does it, wherever it is. An
//! answer comes when the change is committed, also where KIP-1186 lets a client do without.

use std::time::Duration;

use kafka_protocol::messages::add_raft_voter_request::Listener;
use kafka_protocol::messages::{
    AddRaftVoterRequest, AddRaftVoterResponse, RemoveRaftVoterRequest, RemoveRaftVoterResponse,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::Client;
use super::cluster_view::text;
use crate::base::ShardId;
use crate::config::ListenerName;
use crate::metadata::Refusal;
use crate::raft::{VoterChange, VoterKey};
use crate::shard::messages::{ControlReply, ControlRequest, Reply, Request};
use crate::wire::ErrorCode;

/// A leader waits no longer for a new voter to catch up, whatever the request says.
const CATCH_UP_MAX: Duration = Duration::from_secs(60);

pub async fn add(client: &Client, request: AddRaftVoterRequest) -> AddRaftVoterResponse {
    let controllers = client.shard.config().controller_listeners.first().map(|listener| &listener.name);
    let image = client.shard.image();
    let result = match check_add(image.cluster_id(), controllers, &request, image.voters_change()) {
        Ok(()) => {
            let wait = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
            let voter = key(request.voter_id, request.voter_directory_id);
            change(client, VoterChange::Add(voter, wait.min(CATCH_UP_MAX))).await
        }
        refused => refused,
    };
    let (code, message) = told(result);
    AddRaftVoterResponse::default().with_error_code(code).with_error_message(message)
}

pub async fn remove(client: &Client, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse {
    let image = client.shard.image();
    let result = match check_remove(image.cluster_id(), &request, image.voters_change()) {
        Ok(()) => {
            let voter = key(request.voter_id, request.voter_directory_id);
            change(client, VoterChange::Remove(voter)).await
        }
        refused => refused,
    };
    let (code, message) = told(result);
    RemoveRaftVoterResponse::default().with_error_code(code).with_error_message(message)
}

fn key(id: i32, directory: Uuid) -> VoterKey {
    VoterKey { node: crate::base::BrokerId(id), directory }
}

async fn change(client: &Client, change: VoterChange) -> Result<(), Refusal> {
    let asked = Request::Control(ControlRequest::ChangeVoters(change));
    match client.shard.ask(ShardId::CONTROL, asked).await {
        Reply::Control(ControlReply::VotersChanged(result)) => result,
        _ => crate::base::fatal("a change of voters got another request's answer"),
    }
}

fn told(result: Result<(), Refusal>) -> (i16, Option<StrBytes>) {
    match result {
        Ok(()) => (0, None),
        Err(Refusal { code, message }) => (code.code(), Some(text(&message))),
    }
}

/// Why the voter is not added before the leader is asked; controllers reach each other by the listener `controllers`, of
/// which a node alone, or a broker alone, may have none.
fn check_add(
    cluster_id: &str,
    controllers: Option<&ListenerName>,
    request: &AddRaftVoterRequest,
    voters_change: bool,
) -> Result<(), Refusal> {
    check_cluster(cluster_id, request.cluster_id.as_ref())?;
    if !is_voter(request.voter_id, request.voter_directory_id) {
        let text = "Add voter request didn't include a valid voter";
        return Err(Refusal::new(ErrorCode::InvalidRequest, text));
    }
    let has =
        |wanted: &ListenerName| request.listeners.iter().any(|it| ListenerName::new(&it.name) == *wanted);
    if let Some(wanted) = controllers.filter(|wanted| !has(wanted)) {
        let text = format!(
            "Add voter request didn't include the endpoint ({}) for the default listener ListenerName({wanted})",
            endpoints(&request.listeners)
        );
        return Err(Refusal::new(ErrorCode::InvalidRequest, text));
    }
    if voters_change { Ok(()) } else { Err(unsupported("adding")) }
}

fn check_remove(
    cluster_id: &str,
    request: &RemoveRaftVoterRequest,
    voters_change: bool,
) -> Result<(), Refusal> {
    check_cluster(cluster_id, request.cluster_id.as_ref())?;
    if !is_voter(request.voter_id, request.voter_directory_id) {
        let text = "Remove voter request didn't include a valid voter";
        return Err(Refusal::new(ErrorCode::InvalidRequest, text));
    }
    if voters_change { Ok(()) } else { Err(unsupported("removing")) }
}

/// Nothing said is right.
fn check_cluster(cluster_id: &str, asked: Option<&StrBytes>) -> Result<(), Refusal> {
    match asked.filter(|asked| asked.as_str() != cluster_id) {
        None => Ok(()),
        Some(asked) => {
            let text = format!("The given id \"{asked}\" doesn't match the cluster id \"{cluster_id}\"");
            Err(Refusal::new(ErrorCode::InconsistentClusterId, text))
        }
    }
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
            let Refusal { code, message } =
                check_add("cluster", controllers, request, false).expect_err("voters are fixed");
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
        assert_eq!(check_add("cluster", Some(&controllers), &right, true), Ok(()));
    }

    #[test]
    fn nobody_is_taken_out_of_a_quorum_that_is_fixed() {
        let told = |cluster_id: Option<&'static str>, id, directory| {
            let request = RemoveRaftVoterRequest::default()
                .with_cluster_id(cluster_id.map(StrBytes::from_static_str))
                .with_voter_id(id)
                .with_voter_directory_id(directory);
            let result = check_remove("cluster", &request, false);
            let Refusal { code, message } = result.expect_err("voters are fixed");
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
