//! Fetch requests, and the records inside their answers. No IO.

use std::collections::{BTreeMap, HashSet, VecDeque};

use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use kafka_protocol::protocol::StrBytes;

use super::{ConsumerConfig, ConsumerRecord};
use crate::base::{Offset, PartitionIndex, ProducerId, TopicId, TopicName, TopicPartition};
use crate::client::error::{ClientError, Result};
use crate::client::metadata::Metadata;
use crate::wire::ErrorCode;
use crate::wire::record::{
    BatchError, BatchView, Codec, ControlType, Record, RecordFormatError, Records, decompress,
};

/// The most that the records of one batch may take after decompression.
const DECOMPRESSED_BYTES_MAX: usize = 256 << 20;
/// The epoch of a fetch without session (KIP-227).
const NO_SESSION: i32 = -1;

/// What a broker returned for a partition.
#[derive(Debug)]
pub struct Data {
    pub records: Bytes,
    pub high_watermark: Offset,
    pub last_stable_offset: Offset,
    /// Aborted transactions that begin in or before these records.
    pub aborted: Vec<(ProducerId, Offset)>,
}

pub fn request(
    config: &ConsumerConfig,
    metadata: &Metadata,
    partitions: &[(TopicPartition, Offset)],
    version: i16,
) -> FetchRequest {
    let mut topics: BTreeMap<&TopicName, Vec<FetchPartition>> = BTreeMap::new();
    for (partition, offset) in partitions {
        let epoch = metadata.leader(partition).map_or(-1, |leader| leader.epoch.0);
        let entry = FetchPartition::default()
            .with_partition(partition.partition.0)
            .with_current_leader_epoch(epoch)
            .with_fetch_offset(offset.0)
            .with_last_fetched_epoch(-1)
            .with_log_start_offset(-1)
            .with_partition_max_bytes(config.partition_bytes_max);
        topics.entry(&partition.topic).or_default().push(entry);
    }
    let topic = |(name, partitions): (&TopicName, Vec<FetchPartition>)| {
        let topic = FetchTopic::default().with_partitions(partitions);
        match version {
            ..=12 => topic.with_topic(StrBytes::from_string(name.to_string()).into()),
            _ => topic.with_topic_id(metadata.topic_id(name).0),
        }
    };
    FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(config.fetch_wait_max.as_millis() as i32)
        .with_min_bytes(config.fetch_bytes_min)
        .with_max_bytes(config.fetch_bytes_max)
        .with_isolation_level(i8::from(config.read_committed))
        .with_session_id(0)
        .with_session_epoch(NO_SESSION)
        .with_topics(topics.into_iter().map(topic).collect())
}

/// The partitions of an answer. Topics that are no longer known by their id are left out.
pub fn outcomes(
    metadata: &Metadata,
    response: FetchResponse,
) -> Vec<(TopicPartition, Result<Data, ErrorCode>)> {
    let mut outcomes = Vec::new();
    for topic in response.responses {
        let name = match TopicId(topic.topic_id) {
            TopicId::ZERO => TopicName::new(&topic.topic.0),
            id => match metadata.topic_name(id) {
                Some(name) => name.clone(),
                None => continue,
            },
        };
        for partition in topic.partitions {
            let key = TopicPartition::new(name.clone(), PartitionIndex(partition.partition_index));
            let outcome = match ErrorCode::try_from_code(partition.error_code) {
                Some(code) => Err(code),
                None => {
                    let aborted = partition.aborted_transactions.unwrap_or_default();
                    Ok(Data {
                        records: partition.records.unwrap_or_default(),
                        high_watermark: Offset(partition.high_watermark),
                        last_stable_offset: Offset(partition.last_stable_offset),
                        aborted: aborted
                            .iter()
                            .map(|aborted| (ProducerId(aborted.producer_id.0), Offset(aborted.first_offset)))
                            .collect(),
                    })
                }
            };
            outcomes.push((key, outcome));
        }
    }
    outcomes
}

/// Fetched records of one partition, given out one by one; a batch is opened when its turn comes.
#[derive(Debug)]
pub struct Fetched {
    partition: TopicPartition,
    /// The first offset not to be skipped: a fetch from inside a batch returns the whole batch.
    from: Offset,
    end: Offset,
    bytes: Bytes,
    ready: VecDeque<ConsumerRecord>,
    /// With read_committed: transactions to leave out, the later at the front of the list.
    aborted: Option<Vec<(ProducerId, Offset)>>,
    aborting: HashSet<ProducerId>,
}

impl Fetched {
    /// Walks the heads of the batches. What is cut off at the end is normal; nothing but a cut-off batch, and
    /// a head that makes no sense, are errors.
    pub fn new(partition: TopicPartition, from: Offset, data: Data, read_committed: bool) -> Result<Self> {
        let mut end = from;
        let mut position = 0;
        while position < data.records.len() {
            match BatchView::parse(&data.records[position..]) {
                Ok(view) => {
                    end = end.max(view.head().next_offset());
                    position += view.bytes().len();
                }
                Err(BatchError::Incomplete { .. }) if position > 0 => break,
                Err(error) => return Err(damaged(&partition, error)),
            }
        }
        let mut aborted = data.aborted;
        aborted.sort_by_key(|&(_, first)| std::cmp::Reverse(first));
        Ok(Self {
            partition,
            from,
            end,
            bytes: data.records.slice(..position),
            ready: VecDeque::new(),
            aborted: read_committed.then_some(aborted),
            aborting: HashSet::new(),
        })
    }

    pub fn partition(&self) -> &TopicPartition {
        &self.partition
    }

    /// The offset behind the last batch.
    pub fn end(&self) -> Offset {
        self.end
    }

    pub fn bytes_left(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_done(&self) -> bool {
        self.bytes.is_empty() && self.ready.is_empty()
    }

    /// The next record; `None` at the end.
    pub fn next(&mut self, check_crc: bool) -> Result<Option<ConsumerRecord>> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Ok(Some(record));
            }
            if self.bytes.is_empty() {
                return Ok(None);
            }
            self.open_batch(check_crc)?;
        }
    }

    fn open_batch(&mut self, check_crc: bool) -> Result<()> {
        let total = BatchView::total_len(&self.bytes).map_err(|error| damaged(&self.partition, error))?;
        let batch = self.bytes.split_to(total);
        let view = BatchView::parse(&batch).map_err(|error| damaged(&self.partition, error))?;
        if check_crc {
            view.check_crc().map_err(|error| damaged(&self.partition, error))?;
        }
        let head = *view.head();
        let attributes = head.attributes();
        if attributes.is_control() {
            let body = batch.slice_ref(view.body());
            if self.aborted.is_some() && is_abort(&Records::new(&head, &body).collect::<Result<Vec<_>, _>>())
            {
                self.aborting.remove(&head.producer_id());
            }
            return Ok(());
        }
        if attributes.is_transactional() && self.is_aborted(head.producer_id(), head.last_offset()) {
            return Ok(());
        }
        let body = match attributes.codec() {
            Some(Codec::None) => batch.slice_ref(view.body()),
            Some(codec) => {
                let mut body = Vec::new();
                decompress(codec, view.body(), DECOMPRESSED_BYTES_MAX, &mut body)
                    .map_err(|error| damaged(&self.partition, error))?;
                Bytes::from(body)
            }
            None => return Err(damaged(&self.partition, format!("codec of {attributes:?}"))),
        };
        for record in Records::new(&head, &body) {
            let record = record.map_err(|error| damaged(&self.partition, error))?;
            if record.offset >= self.from {
                self.ready.push_back(owned(&self.partition, &body, &record));
            }
        }
        Ok(())
    }

    /// Whether a transactional batch belongs to an aborted transaction.
    fn is_aborted(&mut self, producer: ProducerId, last: Offset) -> bool {
        let Some(aborted) = &mut self.aborted else { return false };
        while let Some(&(begun, first)) = aborted.last()
            && first <= last
        {
            self.aborting.insert(begun);
            aborted.pop();
        }
        self.aborting.contains(&producer)
    }
}

fn is_abort(records: &Result<Vec<Record<'_>>, RecordFormatError>) -> bool {
    let key = records.as_ref().ok().and_then(|records| records.first()?.key);
    key.and_then(ControlType::from_key) == Some(ControlType::Abort)
}

fn owned(partition: &TopicPartition, body: &Bytes, record: &Record<'_>) -> ConsumerRecord {
    let slice = |field: &[u8]| body.slice_ref(field);
    ConsumerRecord {
        partition: partition.clone(),
        offset: record.offset,
        timestamp: record.timestamp,
        key: record.key.map(slice),
        value: record.value.map(slice),
        headers: record.headers.map(|header| (slice(header.key), header.value.map(slice))).collect(),
    }
}

fn damaged(partition: &TopicPartition, reason: impl std::fmt::Display) -> ClientError {
    ClientError::DamagedBatch { partition: partition.clone(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ProducerEpoch;
    use crate::base::clock::Timestamp;
    use crate::wire::record::{BatchBuilder, Compression, EndTxnMarker};

    fn batch(base: i64, codec: Codec, values: &[&str]) -> BatchBuilder {
        let mut builder = BatchBuilder::new(Offset(base), Compression::of(codec));
        for value in values {
            builder.append(Timestamp(7), None, Some(value.as_bytes()), &[]);
        }
        builder
    }

    fn data(batches: &[Bytes], aborted: &[(i64, i64)]) -> Data {
        Data {
            records: Bytes::from(batches.concat()),
            high_watermark: Offset(100),
            last_stable_offset: Offset(100),
            aborted: aborted.iter().map(|&(id, first)| (ProducerId(id), Offset(first))).collect(),
        }
    }

    fn values(mut fetched: Fetched) -> Vec<(i64, String)> {
        let mut values = Vec::new();
        while let Some(record) = fetched.next(true).expect("whole") {
            let value = record.value.expect("a value");
            values.push((record.offset.0, String::from_utf8(value.to_vec()).expect("text")));
        }
        values
    }

    fn name() -> TopicPartition {
        TopicPartition::new("t", PartitionIndex(0))
    }

    #[test]
    fn records_before_the_fetch_offset_and_a_cut_off_batch_are_left_out() {
        for codec in Codec::ALL {
            let first = batch(4, codec, &["a", "b", "c"]).finish().expect("encodes");
            let second = batch(7, codec, &["d"]).finish().expect("encodes");
            let cut = second.slice(..second.len() - 1);
            let fetched =
                Fetched::new(name(), Offset(5), data(&[first.clone(), second.clone(), cut], &[]), false);
            let fetched = fetched.expect("whole batches first");
            assert_eq!(fetched.end(), Offset(8));
            assert_eq!(values(fetched), [(5, "b".into()), (6, "c".into()), (7, "d".into())], "{codec:?}");
        }
    }

    #[test]
    fn nothing_but_a_cut_off_batch_is_damage() {
        let first = batch(4, Codec::None, &["a"]).finish().expect("encodes");
        let cut = data(&[first.slice(..first.len() - 1)], &[]);
        assert!(Fetched::new(name(), Offset(4), cut, false).is_err());
    }

    #[test]
    fn a_wrong_checksum_is_found() {
        let mut bytes = batch(4, Codec::None, &["a"]).finish().expect("encodes").to_vec();
        *bytes.last_mut().expect("not empty") ^= 1;
        let data = data(&[bytes.into()], &[]);
        let mut fetched = Fetched::new(name(), Offset(4), data, false).expect("heads are right");
        assert!(matches!(fetched.next(true), Err(ClientError::DamagedBatch { .. })));
    }

    #[test]
    fn read_committed_leaves_aborted_transactions_out() {
        let transactional = |base: i64, id: i64, value: &str| {
            let builder = batch(base, Codec::None, &[value]).with_transactional();
            builder.with_producer(ProducerId(id), ProducerEpoch(0), 0).finish().expect("encodes")
        };
        let marker = |offset: i64, id: i64, commit: bool| {
            let marker = EndTxnMarker { commit, coordinator_epoch: 0 };
            let mut bytes = marker.to_batch(ProducerId(id), ProducerEpoch(0), Timestamp(0)).to_vec();
            bytes[..8].copy_from_slice(&offset.to_be_bytes());
            Bytes::from(bytes)
        };
        let batches = [
            transactional(0, 1, "aborted"),
            transactional(1, 2, "committed"),
            batch(2, Codec::None, &["plain"]).finish().expect("encodes"),
            marker(3, 1, false),
            transactional(4, 1, "later"),
            marker(5, 1, true),
            marker(6, 2, true),
        ];
        let all = |read_committed| {
            let fetched = Fetched::new(name(), Offset(0), data(&batches, &[(1, 0)]), read_committed);
            let fetched = fetched.expect("whole");
            assert_eq!(fetched.end(), Offset(7), "markers count");
            values(fetched).into_iter().map(|(_, value)| value).collect::<Vec<_>>()
        };
        assert_eq!(all(true), ["committed", "plain", "later"]);
        assert_eq!(all(false), ["aborted", "committed", "plain", "later"]);
    }
}
