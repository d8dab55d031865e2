//! A socket that sends any frame, right or wrong, and reads what comes back.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::ListOffsetsPartitionResponse;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    FetchRequest, IncrementalAlterConfigsRequest, InitProducerIdRequest, ListOffsetsRequest, MetadataRequest,
    ProduceRequest, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use uuid::Uuid;

use super::{Broker, PATIENCE, eventually};

/// The newest versions that name topics, not ids.
pub const PRODUCE: i16 = 12;
pub const FETCH: i16 = 12;

/// Kafka's answer until its first block of producer ids is there; kuring may wait instead.
const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;

pub struct Raw {
    stream: TcpStream,
    next_correlation: i32,
    client_id: &'static str,
}

/// What came instead of, or as, an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Frame(Bytes),
    Closed,
    /// Nothing at all within the time allowed.
    Silence,
}

impl Raw {
    pub fn connect(broker: &Broker) -> Self {
        Self::connect_to(broker.bootstrap())
    }

    /// The same connection, with another client id from now on.
    pub fn named(self, client_id: &'static str) -> Self {
        Self { client_id, ..self }
    }

    pub fn connect_to(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the broker listens");
        stream.set_nodelay(true).expect("a TCP socket");
        Self { stream, next_correlation: 1, client_id: "raw" }
    }

    /// Sends `request` and waits for its answer, which must be the next one.
    #[track_caller]
    pub fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let sent = self.send(version, request);
        let (correlation, response) = self.receive::<R>(version);
        assert_eq!(correlation, sent, "the answer to another request");
        response
    }

    /// As [`Raw::call`] for a request that kafka-protocol does not encode.
    #[track_caller]
    pub fn call_with_body<R: Request>(&mut self, version: i16, body: &[u8]) -> R::Response {
        let sent = self.send_as(R::KEY, version, R::header_version(version), body);
        let (correlation, response) = self.receive::<R>(version);
        assert_eq!(correlation, sent, "the answer to another request");
        response
    }

    /// The correlation id under which it was sent.
    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        let mut body = BytesMut::new();
        request.encode(&mut body, codec_version(R::KEY, version)).expect("the request fits its version");
        self.send_as(R::KEY, version, R::header_version(version), &body)
    }

    /// Any key and version with any body.
    pub fn send_as(&mut self, key: i16, version: i16, header_version: i16, body: &[u8]) -> i32 {
        let correlation = self.next_correlation;
        self.next_correlation += 1;
        let header = RequestHeader::default()
            .with_request_api_key(key)
            .with_request_api_version(version)
            .with_correlation_id(correlation)
            .with_client_id(Some(StrBytes::from_static_str(self.client_id)));
        let mut frame = BytesMut::new();
        header.encode(&mut frame, header_version).expect("a header fits every version");
        frame.put_slice(body);
        self.send_frame(&frame);
        correlation
    }

    pub fn send_frame(&mut self, frame: &[u8]) {
        let mut bytes = BytesMut::with_capacity(4 + frame.len());
        bytes.put_i32(i32::try_from(frame.len()).expect("a small frame"));
        bytes.put_slice(frame);
        self.send_bytes(&bytes);
    }

    /// A broker that has closed already is not an error here: the answer shows it.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    #[track_caller]
    pub fn receive<R: Request>(&mut self, version: i16) -> (i32, R::Response) {
        let mut frame = self.frame();
        let header =
            ResponseHeader::decode(&mut frame, R::Response::header_version(version)).expect("a header");
        let response = R::Response::decode(&mut frame, codec_version(R::KEY, version))
            .expect("a response of this version");
        assert_eq!(frame.remaining(), 0, "bytes after the response's end");
        (header.correlation_id, response)
    }

    #[track_caller]
    pub fn frame(&mut self) -> Bytes {
        match self.answer(PATIENCE) {
            Answer::Frame(frame) => frame,
            other => panic!("no answer: {other:?}"),
        }
    }

    pub fn answer(&mut self, patience: Duration) -> Answer {
        self.stream.set_read_timeout(Some(patience)).expect("not zero");
        let mut size = [0; 4];
        let mut read = |buffer: &mut [u8]| match self.stream.read_exact(buffer) {
            Ok(()) => None,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Some(Answer::Silence)
            }
            Err(_) => Some(Answer::Closed),
        };
        if let Some(answer) = read(&mut size) {
            return answer;
        }
        let mut frame = vec![0; u32::from_be_bytes(size) as usize];
        read(&mut frame).unwrap_or_else(|| Answer::Frame(frame.into()))
    }

    /// The id of a topic that exists.
    #[track_caller]
    pub fn topic_id(&mut self, topic: &str) -> Uuid {
        let asked = MetadataRequestTopic::default().with_name(Some(name(topic)));
        let request =
            MetadataRequest::default().with_topics(Some(vec![asked])).with_allow_auto_topic_creation(false);
        let response = self.call(12, &request);
        assert_eq!(response.topics[0].error_code, 0, "metadata of {topic}");
        response.topics[0].topic_id
    }

    /// Sets a topic's own value, or takes it away.
    #[track_caller]
    pub fn set_topic_config(&mut self, topic: &str, name: &str, value: Option<&str>) {
        const TOPIC: i8 = 2;
        self.set_config((TOPIC, topic), name, value);
    }

    /// The same of a broker.
    #[track_caller]
    pub fn set_broker_config(&mut self, id: i32, name: &str, value: Option<&str>) {
        const BROKER: i8 = 4;
        self.set_config((BROKER, &id.to_string()), name, value);
    }

    #[track_caller]
    fn set_config(&mut self, (kind, of): (i8, &str), name: &str, value: Option<&str>) {
        const SET: i8 = 0;
        const DELETE: i8 = 1;
        let text = |text: &str| StrBytes::from_string(text.to_owned());
        let config = AlterableConfig::default()
            .with_name(text(name))
            .with_config_operation(if value.is_some() { SET } else { DELETE })
            .with_value(value.map(text));
        let resource = AlterConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(of))
            .with_configs(vec![config]);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let response = self.call(1, &request);
        assert_eq!(response.responses[0].error_code, 0, "{name} of {of}: {response:?}");
    }

    /// A new producer id, at epoch 0.
    #[track_caller]
    pub fn producer_id(&mut self) -> i64 {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000)
            .with_producer_id((-1).into())
            .with_producer_epoch(-1);
        let response = eventually("the broker has a block of ids", || {
            Some(self.call(4, &request))
                .filter(|response| response.error_code != COORDINATOR_LOAD_IN_PROGRESS)
        });
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        response.producer_id.0
    }

    #[track_caller]
    pub fn produce(
        &mut self,
        topic: &str,
        partition: i32,
        acks: i16,
        batch: Bytes,
    ) -> PartitionProduceResponse {
        let request = produce(topic, partition, acks, batch);
        eventually("the leader leads", || {
            let response = self.call(PRODUCE, &request).responses[0].partition_responses[0].clone();
            // After a start Kafka serves before it leads.
            Some(response).filter(|found| !Broker::is_kafka() || found.error_code != NOT_LEADER_OR_FOLLOWER)
        })
    }

    #[track_caller]
    pub fn list_offset(&mut self, version: i16, topic: &str, timestamp: i64) -> ListOffsetsPartitionResponse {
        self.list_offset_as(0, version, topic, timestamp)
    }

    /// With read_committed.
    #[track_caller]
    pub fn list_offset_committed(
        &mut self,
        version: i16,
        topic: &str,
        timestamp: i64,
    ) -> ListOffsetsPartitionResponse {
        self.list_offset_as(1, version, topic, timestamp)
    }

    #[track_caller]
    fn list_offset_as(
        &mut self,
        isolation: i8,
        version: i16,
        topic: &str,
        timestamp: i64,
    ) -> ListOffsetsPartitionResponse {
        let partition = ListOffsetsPartition::default()
            .with_partition_index(0)
            .with_current_leader_epoch(-1)
            .with_timestamp(timestamp);
        let topic = ListOffsetsTopic::default().with_name(name(topic)).with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_replica_id((-1).into())
            .with_isolation_level(isolation)
            .with_topics(vec![topic]);
        self.call(version, &request).topics[0].partitions[0].clone()
    }
}

/// The version in which kafka-protocol has the fields of `version`.
fn codec_version(key: i16, version: i16) -> i16 {
    if key == ListOffsetsRequest::KEY && version == 11 { 10 } else { version }
}

pub fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_string()))
}

pub fn produce(topic: &str, partition: i32, acks: i16, batch: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch));
    let topic = TopicProduceData::default().with_name(name(topic)).with_partition_data(vec![data]);
    ProduceRequest::default().with_acks(acks).with_timeout_ms(10_000).with_topic_data(vec![topic])
}

/// A consumer's fetch of these (partition, offset) pairs, without a session.
pub fn fetch(topic: &str, partitions: &[(i32, i64)]) -> FetchRequest {
    let partition = |(index, offset): &(i32, i64)| {
        FetchPartition::default()
            .with_partition(*index)
            .with_current_leader_epoch(-1)
            .with_fetch_offset(*offset)
            .with_last_fetched_epoch(-1)
            .with_log_start_offset(-1)
            .with_partition_max_bytes(1 << 20)
    };
    let partitions = partitions.iter().map(partition).collect();
    let topic = FetchTopic::default().with_topic(name(topic)).with_partitions(partitions);
    FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(500)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_id(0)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}
