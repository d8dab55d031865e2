//! A Produce request with one batch, written around a body that stays where it is. No IO.

use std::io::IoSlice;

use bytes::Bytes;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ProduceRequest, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use zerocopy::IntoBytes;

use super::plan::Plan;
use crate::base::PartitionIndex;
use crate::base::clock::Timestamp;
use crate::client::producer::{Acks, Sequence};
use crate::client::{Result, encode};
use crate::wire::record::{Attributes, BatchHead, Codec, HEAD_LEN};

/// The first version with compact lengths and tagged fields.
const FLEXIBLE_VERSION: i16 = 9;
/// The first version that names topics by id.
const TOPIC_ID_VERSION: i16 = 13;
/// Empty tagged fields behind the records: of the partition, the topic and the request.
const FLEXIBLE_TAIL: [u8; 3] = [0; 3];
const CORRELATION_AT: usize = 8;

/// What is the same in all requests for one partition.
#[derive(Debug)]
pub struct FrameTemplate {
    prefix: Vec<u8>,
    flexible: bool,
}

/// What differs from batch to batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchFields {
    pub codec: Codec,
    pub count: usize,
    pub timestamp: Timestamp,
    pub sequence: Option<Sequence>,
    pub is_transactional: bool,
}

impl FrameTemplate {
    pub fn new(
        plan: &Plan,
        partition: PartitionIndex,
        acks: Acks,
        timeout_ms: i32,
        transactional_id: Option<&str>,
    ) -> Result<Self> {
        let version = plan.produce_version;
        let data = PartitionProduceData::default().with_index(partition.0).with_records(Some(Bytes::new()));
        let topic = TopicProduceData::default().with_partition_data(vec![data]);
        let topic = match version {
            ..TOPIC_ID_VERSION => topic.with_name(StrBytes::from_string(plan.topic.to_string()).into()),
            _ => topic.with_topic_id(plan.topic_id.0),
        };
        let transactional_id =
            transactional_id.map(|id| TransactionalId(StrBytes::from_string(id.to_owned())));
        let request = ProduceRequest::default()
            .with_transactional_id(transactional_id)
            .with_acks(acks.code())
            .with_timeout_ms(timeout_ms)
            .with_topic_data(vec![topic]);
        let mut prefix = encode(&request, version, 0, &plan.client_id)?.to_vec();
        let flexible = version >= FLEXIBLE_VERSION;
        // Off come the length of the empty records and what follows it.
        let behind = if flexible { 1 + FLEXIBLE_TAIL.len() } else { 4 };
        prefix.truncate(prefix.len() - behind);
        Ok(Self { prefix, flexible })
    }

    /// Writes everything before the body into `head`.
    pub fn write_head(&self, correlation: i32, fields: &BatchFields, body: &[u8], head: &mut Vec<u8>) {
        head.clear();
        head.extend_from_slice(&self.prefix);
        let records_len = HEAD_LEN + body.len();
        if self.flexible {
            write_varint(head, records_len as u32 + 1);
        } else {
            head.extend_from_slice(&(records_len as i32).to_be_bytes());
        }
        head.extend_from_slice(batch_head(fields, body).as_bytes());
        let total = head.len() - 4 + body.len() + self.tail().len();
        head[..4].copy_from_slice(&(total as i32).to_be_bytes());
        head[CORRELATION_AT..CORRELATION_AT + 4].copy_from_slice(&correlation.to_be_bytes());
    }

    /// What follows the body.
    pub fn tail(&self) -> &'static [u8] {
        if self.flexible { &FLEXIBLE_TAIL } else { &[] }
    }
}

fn batch_head(fields: &BatchFields, body: &[u8]) -> BatchHead {
    let mut head = BatchHead::empty();
    let attributes = Attributes::default().with_codec(fields.codec);
    head.set_attributes(attributes.with_transactional(fields.is_transactional));
    head.set_base_timestamp(fields.timestamp);
    head.set_max_timestamp(fields.timestamp);
    head.set_count(fields.count as i32);
    head.set_last_offset_delta(fields.count as i32 - 1);
    if let Some(sequence) = fields.sequence {
        head.set_producer(sequence.producer, sequence.epoch, sequence.base);
    }
    head.seal(body);
    head
}

fn write_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// What is left of head, body and tail after `written` bytes.
pub fn unwritten<'a>(parts: [&'a [u8]; 3], mut written: usize) -> [IoSlice<'a>; 3] {
    parts.map(|part| {
        let skip = written.min(part.len());
        written -= skip;
        IoSlice::new(&part[skip..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{ProducerEpoch, ProducerId, TopicId};
    use crate::wire::record::{BatchView, Records, write_record};
    use bytes::Buf;
    use kafka_protocol::protocol::{Decodable, decode_request_header_from_buffer};

    fn plan(version: i16) -> Plan {
        Plan {
            topic: "t".into(),
            topic_id: TopicId(uuid::Uuid::from_u128(7)),
            client_id: "c".into(),
            produce_version: version,
            fetch_version: 12,
            response_bytes_max: 0,
            workers: Vec::new(),
        }
    }

    #[test]
    fn the_parts_make_a_produce_request_of_every_version() {
        let mut body = Vec::new();
        for number in 0..300 {
            write_record(&mut body, 0, number, None, Some(b"value"), &[]);
        }
        for version in 3..=13 {
            let template = FrameTemplate::new(&plan(version), PartitionIndex(5), Acks::All, 1000, Some("id"))
                .expect("encodes");
            let sequence = Some(Sequence { producer: ProducerId(1), epoch: ProducerEpoch(0), base: 9 });
            let fields = BatchFields {
                codec: Codec::None,
                count: 300,
                timestamp: Timestamp(44),
                sequence,
                is_transactional: true,
            };
            let mut head = Vec::new();
            template.write_head(77, &fields, &body, &mut head);
            let mut frame = Bytes::from([&head, &body[..], template.tail()].concat());
            assert_eq!(frame.get_i32() as usize, frame.len(), "version {version}");
            let header = decode_request_header_from_buffer(&mut frame).expect("a header");
            assert_eq!((header.correlation_id, header.request_api_version), (77, version));
            let request = ProduceRequest::decode(&mut frame, version).expect("decodes");
            assert!(frame.is_empty());
            assert_eq!(request.acks, -1);
            assert_eq!(request.transactional_id.as_ref().map(|id| id.as_str()), Some("id"));
            let data = &request.topic_data[0].partition_data[0];
            assert_eq!(data.index, 5);
            let records = data.records.clone().expect("records");
            let view = BatchView::parse(&records).expect("a batch");
            view.check_crc().expect("sealed");
            assert!(view.head().attributes().is_transactional());
            assert_eq!((view.head().count(), view.head().base_sequence()), (300, 9));
            assert_eq!(Records::new(view.head(), view.body()).filter(Result::is_ok).count(), 300);
        }
    }

    #[test]
    fn writing_goes_on_where_it_stopped() {
        let parts: [&[u8]; 3] = [b"abc", b"def", b"g"];
        let left = |written| unwritten(parts, written).map(|slice| slice.to_vec()).concat();
        assert_eq!(left(0), b"abcdefg");
        assert_eq!(left(2), b"cdefg");
        assert_eq!(left(4), b"efg");
        assert_eq!(left(6), b"g");
        assert_eq!(left(7), b"");
    }
}
