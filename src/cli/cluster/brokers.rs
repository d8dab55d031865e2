//! `kuring cluster brokers`.

use std::collections::BTreeMap;

use kafka_protocol::messages::MetadataResponse;
use serde_json::{Value, json};

use super::ShowArguments;
use crate::base::BrokerId;
use crate::cli::output::{Failure, Output, table};
use crate::client::{BrokerLogs, ClusterBroker};

const HEADINGS: [&str; 8] =
    ["ID", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS", "LOG BYTES", "OFFLINE DIRECTORIES"];

/// Partitions that it leads, and that it has.
#[derive(Clone, Copy, Default)]
struct Load {
    leads: usize,
    replicas: usize,
}

pub fn run(arguments: &ShowArguments, out: &mut Output) -> Result<(), Failure> {
    let mut cluster = arguments.connect.cluster()?;
    let description = cluster.describe_cluster()?;
    let loads = loads(&cluster.describe_topics()?);
    let mut rows = Vec::new();
    let mut failure = None;
    for broker in &description.brokers {
        let logs = match broker.fenced {
            true => None,
            false => cluster.broker_logs(broker.id).map_err(|error| failure = Some(error)).ok(),
        };
        rows.push((broker, loads.get(&broker.id).copied().unwrap_or_default(), logs));
    }
    if arguments.json {
        let brokers = rows.iter().map(|(broker, load, logs)| as_json(broker, *load, *logs));
        out.line(json!({ "brokers": brokers.collect::<Vec<Value>>() }))?;
    } else {
        let rows: Vec<_> = rows.iter().map(|(broker, load, logs)| as_row(broker, *load, *logs)).collect();
        out.write(table(&HEADINGS, &rows).as_bytes())?;
    }
    out.flush()?;
    failure.map_or(Ok(()), |error| Err(error.into()))
}

fn loads(topics: &MetadataResponse) -> BTreeMap<BrokerId, Load> {
    let mut loads: BTreeMap<BrokerId, Load> = BTreeMap::new();
    for partition in topics.topics.iter().flat_map(|topic| &topic.partitions) {
        loads.entry(BrokerId(partition.leader_id.0)).or_default().leads += 1;
        for replica in &partition.replica_nodes {
            loads.entry(BrokerId(replica.0)).or_default().replicas += 1;
        }
    }
    loads
}

fn state(broker: &ClusterBroker) -> &'static str {
    if broker.fenced { "fenced" } else { "alive" }
}

fn as_row(broker: &ClusterBroker, load: Load, logs: Option<BrokerLogs>) -> Vec<String> {
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    vec![
        broker.id.to_string(),
        format!("{}:{}", broker.host, broker.port),
        known(broker.rack.clone()),
        state(broker).to_owned(),
        load.leads.to_string(),
        load.replicas.to_string(),
        known(logs.map(|logs| logs.bytes.to_string())),
        known(logs.map(|logs| format!("{} of {}", logs.offline, logs.directories))),
    ]
}

fn as_json(broker: &ClusterBroker, load: Load, logs: Option<BrokerLogs>) -> Value {
    json!({
        "id": broker.id.0,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "fenced": broker.fenced,
        "leads": load.leads,
        "replicas": load.replicas,
        "log_bytes": logs.map(|logs| logs.bytes),
        "directories": logs.map(|logs| logs.directories),
        "directories_offline": logs.map(|logs| logs.offline),
    })
}
