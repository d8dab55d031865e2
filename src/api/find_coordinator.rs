//! FindCoordinator 0–6: the broker that leads the partition of `__consumer_offsets` a group is kept in, of
//! `__transaction_state` a transactional id, or of `__share_group_state` a share partition. The first question makes the topic.

use std::sync::Once;

use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;

use super::Client;
use super::cluster_view::{broker_id, text};
use super::internal_topics::{
    CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE, consumer_offsets, share_group_state,
    transaction_state,
};
use crate::base::BrokerId;
use crate::config::BrokerConfig;
use crate::coordinator::partition_for;
use crate::metadata::{Command, CreateTopics, Image, NewTopic};
use crate::wire::ErrorCode;

/// From here on a request names several keys.
const FIRST_VERSION_WITH_BATCH: i16 = 4;

/// What is coordinated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Group,
    Transaction,
    /// A partition of a share group, as `group:topic id:partition`.
    Share,
}

impl Kind {
    fn from_key_type(key_type: i8) -> Result<Self, Failure> {
        let message = match key_type {
            0 => return Ok(Kind::Group),
            1 => return Ok(Kind::Transaction),
            2 => return Ok(Kind::Share),
            other => format!("{other} is not a coordinator type"),
        };
        Err(Failure { code: ErrorCode::InvalidRequest, message })
    }

    fn topic(self) -> &'static str {
        match self {
            Kind::Group => CONSUMER_OFFSETS,
            Kind::Transaction => TRANSACTION_STATE,
            Kind::Share => SHARE_GROUP_STATE,
        }
    }

    fn new_topic(self, config: &BrokerConfig) -> NewTopic {
        match self {
            Kind::Group => consumer_offsets(config),
            Kind::Transaction => transaction_state(config),
            Kind::Share => share_group_state(config),
        }
    }

    /// The property that sets how many replicas its topic has.
    fn replicas_property(self) -> &'static str {
        match self {
            Kind::Group => "offsets.topic.replication.factor",
            Kind::Transaction => "transaction.state.log.replication.factor",
            Kind::Share => "share.coordinator.state.topic.replication.factor",
        }
    }
}

/// Where a coordinator is.
struct Place {
    broker: BrokerId,
    host: StrBytes,
    port: i32,
}

struct Failure {
    code: ErrorCode,
    message: String,
}

pub async fn handle(
    client: &Client,
    version: i16,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    if version >= FIRST_VERSION_WITH_BATCH {
        let mut coordinators = Vec::with_capacity(request.coordinator_keys.len());
        for key in request.coordinator_keys {
            let found = find(client, request.key_type, &key).await;
            coordinators.push(answer(key, found));
        }
        return FindCoordinatorResponse::default().with_coordinators(coordinators);
    }
    let found = answer(StrBytes::new(), find(client, request.key_type, &request.key).await);
    FindCoordinatorResponse::default()
        .with_error_code(found.error_code)
        .with_error_message(found.error_message)
        .with_node_id(found.node_id)
        .with_host(found.host)
        .with_port(found.port)
}

fn answer(key: StrBytes, found: Result<Place, Failure>) -> Coordinator {
    let coordinator = Coordinator::default().with_key(key);
    match found {
        Ok(place) => coordinator
            .with_node_id(broker_id(place.broker))
            .with_host(place.host)
            .with_port(place.port)
            .with_error_message(Some(StrBytes::from_static_str("NONE"))),
        Err(failure) => coordinator
            .with_node_id(broker_id(BrokerId(-1)))
            .with_port(-1)
            .with_error_code(failure.code.code())
            .with_error_message(Some(text(&failure.message))),
    }
}

async fn find(client: &Client, key_type: i8, key: &str) -> Result<Place, Failure> {
    let kind = Kind::from_key_type(key_type)?;
    if client.shard.image().topic(kind.topic()).is_none() {
        make_topic(client, kind).await?;
    }
    locate(&client.shard.image(), client.listener.as_str(), kind, key)
}

/// Makes the topic of share groups' states unless it is there.
pub(super) async fn make_share_topic(client: &Client) -> Result<(), ErrorCode> {
    if client.shard.image().topic(SHARE_GROUP_STATE).is_some() {
        return Ok(());
    }
    make_topic(client, Kind::Share).await.map_err(|failure| failure.code)
}

/// Makes the coordinator's topic. Another request may have been faster: then it is there.
async fn make_topic(client: &Client, kind: Kind) -> Result<(), Failure> {
    let topic = kind.new_topic(client.shard.config());
    let replicas = topic.replication_factor;
    let command = Command::CreateTopics(CreateTopics { topics: vec![topic], validate_only: false });
    let created = match client.command(command).await {
        Ok(response) => response.topics_created(),
        Err(refusal) => return Err(unavailable(refusal.message)),
    };
    match created.into_iter().next() {
        Some((_, Err(refusal))) if refusal.code != ErrorCode::TopicAlreadyExists => {
            let message = format!(
                "{} cannot be created with {}={replicas}: {}",
                kind.topic(),
                kind.replicas_property(),
                refusal.message
            );
            // Clients ask again and again; an operator needs to read it once.
            static GROUPS: Once = Once::new();
            static TRANSACTIONS: Once = Once::new();
            static SHARES: Once = Once::new();
            match kind {
                Kind::Group => GROUPS.call_once(|| tracing::warn!("no group can be served: {message}")),
                Kind::Share => SHARES.call_once(|| tracing::warn!("no share group can be served: {message}")),
                Kind::Transaction => {
                    TRANSACTIONS.call_once(|| tracing::warn!("no transaction can be served: {message}"));
                }
            }
            Err(unavailable(message))
        }
        _ => Ok(()),
    }
}

fn locate(image: &Image, listener: &str, kind: Kind, key: &str) -> Result<Place, Failure> {
    let name = kind.topic();
    let topic = image
        .topic(name)
        .filter(|topic| !topic.partitions.is_empty())
        .ok_or_else(|| unavailable(format!("{name} is not there")))?;
    let index = partition_for(key, topic.partitions.len() as i32);
    let leader = topic.partitions[index.0 as usize].leader;
    let broker = leader.and_then(|leader| image.broker(leader)).filter(|broker| !broker.fenced);
    let broker = broker.ok_or_else(|| unavailable(format!("partition {index} of {name} has no leader")))?;
    let endpoint = broker
        .endpoint(listener)
        .ok_or_else(|| unavailable(format!("broker {} has no listener {listener}", broker.id)))?;
    Ok(Place { broker: broker.id, host: text(&endpoint.host), port: i32::from(endpoint.port) })
}

fn unavailable(message: String) -> Failure {
    Failure { code: ErrorCode::CoordinatorNotAvailable, message }
}

#[cfg(test)]
mod tests {
    use super::super::cluster_view::testing;
    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    #[test]
    fn a_group_is_at_the_leader_of_its_partition() {
        let state = testing::cluster(&[(CONSUMER_OFFSETS, 50)]);
        let place = locate(state.image(), "INSIDE", Kind::Group, "g")
            .unwrap_or_else(|failure| panic!("{}", failure.message));
        assert_eq!((place.broker, &*place.host, place.port), (BrokerId(1), "inside-1", 9092));
    }

    #[test]
    fn without_topic_or_listener_there_is_no_coordinator() {
        let state = testing::cluster(&[("t", 1)]);
        let failure = locate(state.image(), "INSIDE", Kind::Group, "g").err().expect("no topic");
        assert_eq!(failure.code, ErrorCode::CoordinatorNotAvailable);
        let state = testing::cluster(&[(CONSUMER_OFFSETS, 50)]);
        assert!(locate(state.image(), "OUTSIDE", Kind::Group, "g").is_err());
        assert!(locate(state.image(), "INSIDE", Kind::Transaction, "t").is_err());
    }

    #[test]
    fn every_version_can_be_encoded() {
        for version in 0..=6 {
            for found in [
                Ok(Place { broker: BrokerId(1), host: text("h"), port: 9092 }),
                Err(unavailable("why".to_owned())),
            ] {
                let one = answer(text(if version >= FIRST_VERSION_WITH_BATCH { "g" } else { "" }), found);
                let response = match version >= FIRST_VERSION_WITH_BATCH {
                    true => FindCoordinatorResponse::default().with_coordinators(vec![one]),
                    false => FindCoordinatorResponse::default()
                        .with_error_code(one.error_code)
                        .with_error_message(one.error_message)
                        .with_node_id(one.node_id)
                        .with_host(one.host)
                        .with_port(one.port),
                };
                assert!(guard::encode(version, CorrelationId(1), &response).is_ok(), "{version}");
            }
        }
    }
}
