//! DescribeTopicPartitions 0 (KIP-966): topics by name, in pages of partitions
//! (`DescribeTopicPartitionsRequestHandler`).

use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::{DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse};

use super::Client;
use super::cluster_view::{TOPIC_OPERATIONS, View, broker_id, broker_ids, topic_name};
use crate::base::PartitionIndex;
use crate::metadata::{PartitionImage, TopicImage, check_topic_name, is_internal_topic};
use crate::wire::ErrorCode;

pub async fn handle(
    client: &Client,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let image = client.shard.image();
    let view = View::of(&image, client);
    respond(view, client.shard.config().describe_partitions_max as usize, request)
}

fn respond(
    view: View<'_>,
    partitions_max: usize,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let limit = usize::try_from(request.response_partition_limit).unwrap_or(0);
    let mut page = Page {
        view,
        left: limit.min(partitions_max).max(1),
        response: DescribeTopicPartitionsResponse::default(),
    };
    let (first_topic, first_partition) = match &request.cursor {
        Some(cursor) => (cursor.topic_name.to_string(), cursor.partition_index),
        None => (String::new(), 0),
    };
    if request.topics.is_empty() {
        if first_partition < 0 {
            return page.response;
        }
        for topic in view.image.topics_from(&first_topic) {
            let start = if *topic.name == first_topic { first_partition } else { 0 };
            if !page.add(&topic.name, start) {
                break;
            }
        }
        return page.response;
    }
    let mut names: Vec<String> = request.topics.iter().map(|topic| topic.name.to_string()).collect();
    names.sort();
    names.dedup();
    // A cursor is one that an earlier answer gave: it points at a topic of the same request.
    if request.cursor.is_some() && (first_partition < 0 || names.binary_search(&first_topic).is_err()) {
        let refused = names.iter().map(|name| failed(name, ErrorCode::InvalidRequest));
        return page.response.with_topics(refused.collect());
    }
    for name in names.iter().filter(|name| **name >= first_topic) {
        let start = if *name == first_topic { first_partition } else { 0 };
        if !page.add(name, start) {
            break;
        }
    }
    page.response
}

/// The answer as it fills.
struct Page<'a> {
    view: View<'a>,
    /// Partitions that may still be added.
    left: usize,
    response: DescribeTopicPartitionsResponse,
}

impl Page<'_> {
    /// Adds a topic from partition `start` on, or sets the cursor and returns false when the page is full.
    fn add(&mut self, name: &str, start: i32) -> bool {
        if self.left == 0 {
            self.stop_before(name, start);
            return false;
        }
        let Some(topic) = self.view.image.topic(name) else {
            let code = match check_topic_name(name) {
                Ok(()) => ErrorCode::UnknownTopicOrPartition,
                Err(_) => ErrorCode::InvalidTopicException,
            };
            let topic = failed(name, code).with_is_internal(is_internal_topic(name));
            self.response.topics.push(topic.with_topic_authorized_operations(TOPIC_OPERATIONS));
            return true;
        };
        let view = self.view;
        let rest = topic.numbered().skip(usize::try_from(start).unwrap_or(usize::MAX));
        let partitions: Vec<_> =
            rest.take(self.left).map(|(index, image)| partition(view, index, image)).collect();
        self.left -= partitions.len();
        let next = start.saturating_add(partitions.len() as i32);
        self.response.topics.push(described(topic, partitions));
        if (next as usize) < topic.partitions.len() {
            self.stop_before(name, next);
            return false;
        }
        true
    }

    fn stop_before(&mut self, topic: &str, partition: i32) {
        let cursor = Cursor::default().with_topic_name(topic_name(topic)).with_partition_index(partition);
        self.response.next_cursor = Some(cursor);
    }
}

fn described(
    topic: &TopicImage,
    partitions: Vec<DescribeTopicPartitionsResponsePartition>,
) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic::default()
        .with_name(Some(topic_name(&topic.name)))
        .with_topic_id(topic.id.0)
        .with_is_internal(topic.is_internal())
        .with_partitions(partitions)
        .with_topic_authorized_operations(TOPIC_OPERATIONS)
}

fn failed(name: &str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic::default()
        .with_error_code(code.code())
        .with_name(Some(topic_name(name)))
}

fn partition(
    view: View<'_>,
    index: PartitionIndex,
    image: &PartitionImage,
) -> DescribeTopicPartitionsResponsePartition {
    let (seen, transit) = (view.partition(image), image.transit());
    DescribeTopicPartitionsResponsePartition::default()
        .with_error_code(super::code(seen.error))
        .with_partition_index(index.0)
        .with_leader_id(broker_id(seen.leader))
        .with_leader_epoch(image.leader_epoch.0)
        .with_replica_nodes(broker_ids(&image.replicas))
        .with_isr_nodes(broker_ids(&image.isr))
        .with_eligible_leader_replicas(Some(broker_ids(&transit.elr)))
        .with_last_known_elr(Some(broker_ids(transit.last_known.as_slice())))
        .with_offline_replicas(broker_ids(&seen.offline))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::describe_topic_partitions_request::{self, TopicRequest};

    use super::super::cluster_view::testing::{cluster, view};
    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    fn request(names: &[&str], limit: i32, cursor: Option<(&str, i32)>) -> DescribeTopicPartitionsRequest {
        let topics = names.iter().map(|name| TopicRequest::default().with_name(topic_name(name)));
        let cursor = cursor.map(|(topic, partition)| {
            describe_topic_partitions_request::Cursor::default()
                .with_topic_name(topic_name(topic))
                .with_partition_index(partition)
        });
        DescribeTopicPartitionsRequest::default()
            .with_topics(topics.collect())
            .with_response_partition_limit(limit)
            .with_cursor(cursor)
    }

    /// Each topic as `name:code[partitions]`, and the cursor.
    fn shown(response: &DescribeTopicPartitionsResponse) -> String {
        assert!(guard::encode(0, CorrelationId(1), response).is_ok());
        let topics = response.topics.iter().map(|topic| {
            let partitions: Vec<i32> = topic.partitions.iter().map(|p| p.partition_index).collect();
            format!("{}:{}{partitions:?} ", &**topic.name.as_ref().unwrap(), topic.error_code)
        });
        let cursor = response.next_cursor.as_ref();
        topics.collect::<String>()
            + &cursor.map_or("end".into(), |c| format!("-> {}-{}", &*c.topic_name, c.partition_index))
    }

    /// The expected texts are the answers of a real Kafka 4.4, but for the names of topics.
    #[test]
    fn pages_end_and_go_on_as_kafkas() {
        let state = cluster(&[("a", 1), ("p5", 5), ("v", 1)]);
        let ask = |names: &[&str], limit, cursor| {
            shown(&respond(view(&state), 2000, request(names, limit, cursor)))
        };
        assert_eq!(ask(&[], 100, None), "a:0[0] p5:0[0, 1, 2, 3, 4] v:0[0] end");
        assert_eq!(ask(&[], 4, Some(("p5", 0))), "p5:0[0, 1, 2, 3] -> p5-4");
        assert_eq!(ask(&[], 4, Some(("p5", 4))), "p5:0[4] v:0[0] end");
        assert_eq!(ask(&[], 4, Some(("p5", 40))), "p5:0[] v:0[0] end");
        assert_eq!(ask(&[], 4, Some(("q", 7))), "v:0[0] end");
        assert_eq!(ask(&[], 6, None), "a:0[0] p5:0[0, 1, 2, 3, 4] -> v-0");
        assert_eq!(ask(&["a", "none", "bad name"], 100, None), "a:0[0] bad name:17[] none:3[] end");
        assert_eq!(ask(&["none", "a"], 1, Some(("a", 0))), "a:0[0] -> none-0");
        assert_eq!(ask(&["a", "A"], 0, None), "A:3[] a:0[0] end");
        assert_eq!(ask(&["a", "a"], -1, None), "a:0[0] end");
        assert_eq!(ask(&["a"], 2, Some(("a", -1))), "a:42[] end");
        assert_eq!(ask(&["p5"], 4, Some(("p", 2))), "p5:42[] end");
    }

    #[test]
    fn the_brokers_own_limit_holds() {
        let state = cluster(&[("p5", 5)]);
        assert_eq!(shown(&respond(view(&state), 3, request(&[], 100, None))), "p5:0[0, 1, 2] -> p5-3");
    }
}
