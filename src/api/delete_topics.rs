//! DeleteTopics 1–6, by name and from version 6 on by id (`ControllerApis.deleteTopics`).

use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse};

use super::cluster_view::{text, topic_name};
use super::{Client, cluster_view};
use crate::base::TopicId;
use crate::metadata::{Command, DeleteTopics, DeletedTopic, Refusal, TopicRef};
use crate::wire::ErrorCode;
use crate::wire::header::RequestHeader;

/// The first version whose clients know THROTTLING_QUOTA_EXCEEDED.
const STRICT_SINCE: i16 = 5;

pub async fn handle(
    client: &Client,
    header: &RequestHeader,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let version = header.version;
    let Plan { topics, mut answers } = plan(version, request);
    if !topics.is_empty() {
        let command = Command::DeleteTopics(DeleteTopics { topics: topics.clone() });
        let results = match client.mutate(header, STRICT_SINCE, command).await {
            Ok(response) => response.topics_deleted(),
            Err(refusal) => topics.into_iter().map(|topic| (topic, Err(refusal.clone()))).collect(),
        };
        answers.extend(results.into_iter().map(|(topic, result)| answer(version, topic, result)));
    }
    DeleteTopicsResponse::default().with_responses(answers)
}

/// What the controller is asked, and what is answered without it.
struct Plan {
    topics: Vec<TopicRef>,
    answers: Vec<DeletableTopicResult>,
}

fn plan(version: i16, request: DeleteTopicsRequest) -> Plan {
    if version < 6 {
        let topics = request.topic_names.iter().map(|name| TopicRef::Name(name.to_string())).collect();
        return Plan { topics, answers: Vec::new() };
    }
    let mut plan = Plan { topics: Vec::new(), answers: Vec::new() };
    for topic in request.topics {
        let refuse = |message: &str| {
            DeletableTopicResult::default()
                .with_name(topic.name.clone())
                .with_topic_id(topic.topic_id)
                .with_error_code(ErrorCode::InvalidRequest.code())
                .with_error_message(Some(text(message)))
        };
        match (&topic.name, topic.topic_id.is_nil()) {
            (Some(name), true) => plan.topics.push(TopicRef::Name(name.to_string())),
            (None, false) => plan.topics.push(TopicRef::Id(TopicId(topic.topic_id))),
            (Some(_), false) => {
                plan.answers.push(refuse("A topic is named by its name or its id, not by both."))
            }
            (None, true) => plan.answers.push(refuse("Neither the name nor the id of a topic is given.")),
        }
    }
    plan
}

fn answer(version: i16, topic: TopicRef, result: Result<DeletedTopic, Refusal>) -> DeletableTopicResult {
    let answer = match topic {
        TopicRef::Name(name) => DeletableTopicResult::default().with_name(Some(topic_name(&name))),
        TopicRef::Id(id) => DeletableTopicResult::default().with_name(None).with_topic_id(id.0),
    };
    match result {
        Ok(DeletedTopic { name, id }) => answer.with_name(Some(topic_name(&name))).with_topic_id(id.0),
        Err(Refusal { code, message }) => {
            // TOPIC_DELETION_DISABLED came with version 3.
            let code = match code {
                ErrorCode::TopicDeletionDisabled if version < 3 => ErrorCode::InvalidRequest,
                code => code,
            };
            answer.with_error_code(code.code()).with_error_message(cluster_view::message(&message))
        }
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
    use kafka_protocol::protocol::{Decodable, HeaderVersion};
    use uuid::Uuid;

    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    #[test]
    fn a_topic_is_named_one_way_or_the_other() {
        let state = |name: Option<&str>, id: u128| {
            DeleteTopicState::default().with_name(name.map(topic_name)).with_topic_id(Uuid::from_u128(id))
        };
        let request = DeleteTopicsRequest::default().with_topics(vec![
            state(Some("a"), 0),
            state(None, 5),
            state(Some("b"), 6),
            state(None, 0),
        ]);
        let plan = plan(6, request);
        let id = TopicId(Uuid::from_u128(5));
        assert_eq!(plan.topics, [TopicRef::Name("a".into()), TopicRef::Id(id)]);
        assert!(plan.answers.iter().all(|answer| answer.error_code == ErrorCode::InvalidRequest.code()));
        assert_eq!(plan.answers.len(), 2);
        let response = DeleteTopicsResponse::default().with_responses(plan.answers);
        assert!(guard::encode(6, CorrelationId(1), &response).is_ok());
    }

    #[test]
    fn every_version_can_be_encoded() {
        let deleted = DeletedTopic { name: "a".into(), id: TopicId(Uuid::from_u128(5)) };
        for version in 1..=6 {
            let disabled = Refusal::new(ErrorCode::TopicDeletionDisabled, "no");
            let answers = vec![
                answer(version, TopicRef::Name("a".into()), Ok(deleted.clone())),
                answer(version, TopicRef::Name("b".into()), Err(disabled)),
            ];
            let response = DeleteTopicsResponse::default().with_responses(answers);
            let frame = guard::encode(version, CorrelationId(1), &response).unwrap();
            let head = if DeleteTopicsResponse::header_version(version) >= 1 { 9 } else { 8 };
            let back = DeleteTopicsResponse::decode(&mut frame.slice(head..), version).unwrap();
            let codes: Vec<i16> = back.responses.iter().map(|answer| answer.error_code).collect();
            assert_eq!(codes, [0, if version < 3 { 42 } else { 73 }]);
        }
        let by_id = answer(6, TopicRef::Id(deleted.id), Ok(deleted));
        assert_eq!(by_id.name.as_deref().map(|name| &**name), Some("a"));
    }
}
