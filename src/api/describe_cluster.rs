//! DescribeCluster 0–2 (KIP-700, KIP-919, KIP-1073).

use std::collections::BTreeSet;

use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{DescribeClusterRequest, DescribeClusterResponse};

use super::cluster_view::{CLUSTER_OPERATIONS, View, broker_id, text};
use super::{Client, describe_quorum};
use crate::base::BrokerId;
use crate::config::BrokerConfig;
use crate::wire::ErrorCode;

/// Kinds of endpoints on the wire (`EndpointType`).
const BROKER: i8 = 1;
const CONTROLLER: i8 = 2;

pub async fn handle(
    client: &Client,
    version: i16,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    let image = client.shard.image();
    let view = View::of(&image, client);
    match client.at_controller {
        true => respond_as_controller(view, client.shard.config(), &request),
        false => respond(view, version, &request),
    }
}

/// Tells the controllers that have this listener, and who leads them (`ControllerApis.handleDescribeCluster`).
fn respond_as_controller(
    view: View<'_>,
    config: &BrokerConfig,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    match request.endpoint_type {
        CONTROLLER => {}
        BROKER => {
            let message = "This endpoint is a controller's, the request wants a broker's.";
            return refuse(ErrorCode::MismatchedEndpointType, message);
        }
        other => return refuse_unknown(other),
    }
    let voters = config.cluster.iter().flat_map(|cluster| &cluster.voters).map(|voter| voter.node);
    let registered = view.image.controllers().map(|controller| controller.id);
    let nodes: BTreeSet<BrokerId> = voters.chain(registered).collect();
    let controllers = nodes.into_iter().filter_map(|node| {
        let listeners = describe_quorum::listeners(node, view.image, config);
        let endpoint = listeners.into_iter().find(|it| it.name.as_str() == view.listener)?;
        let controller = DescribeClusterBroker::default()
            .with_broker_id(broker_id(node))
            .with_host(endpoint.host)
            .with_port(i32::from(endpoint.port))
            .with_rack(None);
        Some(controller)
    });
    let mut response = DescribeClusterResponse::default()
        .with_endpoint_type(CONTROLLER)
        .with_error_message(None)
        .with_cluster_id(text(view.image.cluster_id()))
        .with_controller_id(broker_id(view.controller.unwrap_or(BrokerId(-1))))
        .with_brokers(controllers.collect());
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = CLUSTER_OPERATIONS;
    }
    response
}

fn refuse_unknown(endpoint_type: i8) -> DescribeClusterResponse {
    refuse(ErrorCode::UnsupportedEndpointType, &format!("There is no endpoint type {endpoint_type}."))
}

fn respond(view: View<'_>, version: i16, request: &DescribeClusterRequest) -> DescribeClusterResponse {
    // Version 0 has no field for it and its default is a broker.
    match request.endpoint_type {
        BROKER => {}
        CONTROLLER => {
            let message = "This endpoint is a broker's, the request wants a controller's.";
            return refuse(ErrorCode::MismatchedEndpointType, message);
        }
        other => return refuse_unknown(other),
    }
    let with_fenced = version >= 2 && request.include_fenced_brokers;
    let brokers = view.all_brokers().filter(|(broker, _)| with_fenced || !broker.fenced);
    let brokers = brokers.map(|(broker, endpoint)| {
        DescribeClusterBroker::default()
            .with_broker_id(broker_id(broker.id))
            .with_host(text(&endpoint.host))
            .with_port(i32::from(endpoint.port))
            .with_rack(broker.rack.as_deref().map(text))
            .with_is_fenced(broker.fenced)
    });
    let mut response = DescribeClusterResponse::default()
        .with_endpoint_type(BROKER)
        .with_cluster_id(text(view.image.cluster_id()))
        .with_controller_id(broker_id(view.controller()))
        .with_brokers(brokers.collect());
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = CLUSTER_OPERATIONS;
    }
    response
}

fn refuse(code: ErrorCode, message: &str) -> DescribeClusterResponse {
    DescribeClusterResponse::default()
        .with_error_code(code.code())
        .with_error_message(Some(text(message)))
        .with_endpoint_type(BROKER)
        .with_controller_id(broker_id(BrokerId(-1)))
}

#[cfg(test)]
mod tests {
    use super::super::cluster_view::testing::{cluster, view};
    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    #[test]
    fn fenced_brokers_are_shown_to_those_who_ask() {
        let state = cluster(&[]);
        for version in 0..=2 {
            let request = DescribeClusterRequest::default()
                .with_include_cluster_authorized_operations(true)
                .with_include_fenced_brokers(true);
            let response = respond(view(&state), version, &request);
            assert!(guard::encode(version, CorrelationId(1), &response).is_ok());
            let ids: Vec<i32> = response.brokers.iter().map(|broker| broker.broker_id.0).collect();
            assert_eq!(ids, if version == 2 { vec![1, 2] } else { vec![1] });
            assert_eq!(response.cluster_authorized_operations, CLUSTER_OPERATIONS);
            assert_eq!((&*response.cluster_id, response.controller_id.0), ("cluster", 1));
        }
    }

    #[test]
    fn the_controller_is_told_where_it_can_be_reached() {
        let state = cluster(&[]);
        let told = |controller: Option<i32>, listener| {
            let controller = controller.map(BrokerId);
            let view = View { controller, listener, ..view(&state) };
            respond(view, 1, &DescribeClusterRequest::default().with_endpoint_type(BROKER)).controller_id.0
        };
        assert_eq!(told(Some(3), "INSIDE"), 3);
        assert_eq!(told(Some(3), "PLAINTEXT"), 1, "it has no such listener");
        assert_eq!(told(Some(2), "PLAINTEXT"), 1, "it is fenced");
        assert_eq!(told(None, "INSIDE"), 1);
    }

    #[test]
    fn an_endpoint_of_another_kind_is_refused() {
        let state = cluster(&[]);
        let code = |endpoint_type| {
            let request = DescribeClusterRequest::default().with_endpoint_type(endpoint_type);
            let response = respond(view(&state), 1, &request);
            assert!(guard::encode(1, CorrelationId(1), &response).is_ok());
            response.error_code
        };
        assert_eq!((code(1), code(2), code(3)), (0, 114, 115));
    }
}
