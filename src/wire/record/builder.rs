//! Makes record batches: for the client, for the broker's own topics and for rewriting.

use bytes::Bytes;
use zerocopy::IntoBytes;

use super::codec::{CodecError, Compression, Compressor};
use super::head::{BatchHead, HEAD_LEN};
use super::records::Header;
use super::varint;
use crate::base::clock::Timestamp;
use crate::base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};
use crate::config::TimestampType;

/// Collects records and makes one batch of them. Records are compressed when the batch is finished.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    head: BatchHead,
    compression: Compression,
    body: Vec<u8>,
    append_time: Option<Timestamp>,
    next_offset: Offset,
}

impl BatchBuilder {
    /// A batch whose first record has `base_offset`; a client sends 0.
    pub fn new(base_offset: Offset, compression: Compression) -> Self {
        let mut head = BatchHead::empty();
        head.set_base_offset(base_offset);
        Self { head, compression, body: Vec::new(), append_time: None, next_offset: base_offset }
    }

    pub fn with_leader_epoch(mut self, epoch: LeaderEpoch) -> Self {
        self.head.set_leader_epoch(epoch);
        self
    }

    /// `base_sequence` is the sequence number of the first record.
    pub fn with_producer(mut self, id: ProducerId, epoch: ProducerEpoch, base_sequence: i32) -> Self {
        self.head.set_producer(id, epoch, base_sequence);
        self
    }

    pub fn with_transactional(mut self) -> Self {
        self.head.set_attributes(self.head.attributes().with_transactional(true));
        self
    }

    /// Marks the batch as the broker's own: its records are not for consumers.
    pub fn with_control(mut self) -> Self {
        self.head.set_attributes(self.head.attributes().with_control(true));
        self
    }

    /// Every record counts as appended at `now` (`message.timestamp.type=LogAppendTime`).
    pub fn with_log_append_time(mut self, now: Timestamp) -> Self {
        self.append_time = Some(now);
        self
    }

    /// Notes in the base timestamp from when on tombstones and markers of the batch may go (KIP-534); before the
    /// first record.
    pub fn with_delete_horizon(mut self, horizon: Timestamp) -> Self {
        self.head.set_attributes(self.head.attributes().with_delete_horizon(true));
        self.head.set_base_timestamp(horizon);
        self
    }

    /// Adds a record behind the last one.
    pub fn append(
        &mut self,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) {
        self.append_at(self.next_offset, timestamp, key, value, headers);
    }

    /// Adds a record with an offset of its own, at or above [`Self::next_offset`]: what compaction leaves.
    ///
    /// # Panics
    /// When the offset goes back or lies 2^31 or more above the base: a broken invariant of the caller.
    pub fn append_at(
        &mut self,
        offset: Offset,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) {
        assert!(offset >= self.next_offset, "record offsets of a batch must rise");
        let offset_delta = i32::try_from(offset.0 - self.head.base_offset().0);
        let offset_delta = offset_delta.expect("a batch spans fewer than 2^31 offsets");
        if self.head.count() == 0 && !self.head.attributes().has_delete_horizon() {
            self.head.set_base_timestamp(timestamp);
        }
        let timestamp_delta = timestamp.0.wrapping_sub(self.head.base_timestamp().0);
        write_record(&mut self.body, timestamp_delta, offset_delta, key, value, headers);
        self.head.set_max_timestamp(self.head.max_timestamp().max(timestamp));
        self.head.set_last_offset_delta(offset_delta);
        self.head.set_count(self.head.count() + 1);
        self.next_offset = offset.plus(1);
    }

    /// The offset that the next record gets.
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    pub fn count(&self) -> i32 {
        self.head.count()
    }

    pub fn is_empty(&self) -> bool {
        self.head.count() == 0
    }

    /// Bytes of the batch as if it were not compressed.
    pub fn uncompressed_len(&self) -> usize {
        HEAD_LEN + self.body.len()
    }

    /// The batch reaches to `last_offset` though its last record may lie before: compaction keeps the
    /// range a batch was written with.
    pub fn set_last_offset(&mut self, last_offset: Offset) {
        let delta = i32::try_from(last_offset.0 - self.head.base_offset().0);
        self.head.set_last_offset_delta(delta.expect("a batch spans fewer than 2^31 offsets"));
    }

    /// Compresses and seals the batch. An empty one is allowed (compaction keeps it for its sequence).
    pub fn finish(mut self) -> Result<Bytes, CodecError> {
        let mut attributes = self.head.attributes().with_codec(self.compression.codec);
        if let Some(now) = self.append_time {
            attributes = attributes.with_timestamp_type(TimestampType::LogAppendTime);
            self.head.set_max_timestamp(now);
        }
        self.head.set_attributes(attributes);
        let mut compressor = Compressor::new(self.compression)?;
        compressor.write(&self.body)?;
        let body = compressor.finish()?;
        self.head.seal(&body);
        let mut batch = Vec::with_capacity(HEAD_LEN + body.len());
        batch.extend_from_slice(self.head.as_bytes());
        batch.extend_from_slice(&body);
        Ok(batch.into())
    }
}

/// Writes one record as it stands in an uncompressed body.
///
/// # Panics
/// When a record reaches 2 GiB; requests are bounded far below.
pub fn write_record(
    out: &mut Vec<u8>,
    timestamp_delta: i64,
    offset_delta: i32,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[Header<'_>],
) {
    let headers_len: usize =
        headers.iter().map(|header| field_len(Some(header.key)) + field_len(header.value)).sum();
    let header_count = len_i32(headers.len());
    let len = 1
        + varint::len_i64(timestamp_delta)
        + varint::len_i32(offset_delta)
        + field_len(key)
        + field_len(value)
        + varint::len_i32(header_count)
        + headers_len;
    varint::write_i32(out, len_i32(len));
    out.reserve(len);
    out.push(0);
    varint::write_i64(out, timestamp_delta);
    varint::write_i32(out, offset_delta);
    write_field(out, key);
    write_field(out, value);
    varint::write_i32(out, header_count);
    for header in headers {
        write_field(out, Some(header.key));
        write_field(out, header.value);
    }
}

fn write_field(out: &mut Vec<u8>, field: Option<&[u8]>) {
    match field {
        None => varint::write_i32(out, -1),
        Some(bytes) => {
            varint::write_i32(out, len_i32(bytes.len()));
            out.extend_from_slice(bytes);
        }
    }
}

fn field_len(field: Option<&[u8]>) -> usize {
    match field {
        None => 1,
        Some(bytes) => varint::len_i32(len_i32(bytes.len())) + bytes.len(),
    }
}

fn len_i32(len: usize) -> i32 {
    i32::try_from(len).expect("a record is below 2 GiB")
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::{BatchView, Codec, Record};
    use super::*;

    /// A record with values of its own.
    #[derive(Clone, Debug)]
    pub struct Plain {
        pub timestamp: i64,
        key: Option<Vec<u8>>,
        value: Option<Vec<u8>>,
        headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    }

    impl Plain {
        pub fn key(&self) -> Option<&[u8]> {
            self.key.as_deref()
        }

        pub fn value(&self) -> Option<&[u8]> {
            self.value.as_deref()
        }

        pub fn headers(&self) -> Vec<Header<'_>> {
            self.headers.iter().map(|(key, value)| Header { key, value: value.as_deref() }).collect()
        }

        fn is(&self, record: &Record<'_>) -> bool {
            record.key == self.key()
                && record.value == self.value()
                && record.headers.collect::<Vec<_>>() == self.headers()
        }
    }

    pub fn plain_records(count_max: usize) -> impl Strategy<Value = Vec<Plain>> {
        let bytes = || vec(any::<u8>(), 0..100);
        let optional = move || proptest::option::of(bytes());
        let headers = vec((bytes(), optional()), 0..4);
        let record = (0i64..4_000_000_000_000, optional(), optional(), headers)
            .prop_map(|(timestamp, key, value, headers)| Plain { timestamp, key, value, headers });
        vec(record, 0..count_max)
    }

    proptest! {
        #[test]
        fn records_come_back_from_a_batch_of_any_codec(records in plain_records(20), base in 0i64..1 << 50) {
            for codec in Codec::ALL {
                let mut builder = BatchBuilder::new(Offset(base), Compression::of(codec));
                for record in &records {
                    builder.append(
                        Timestamp(record.timestamp), record.key(), record.value(), &record.headers(),
                    );
                }
                let batch = builder.finish().unwrap();
                let view = BatchView::parse(&batch).unwrap();
                prop_assert_eq!(view.bytes().len(), batch.len());
                view.check_crc().unwrap();
                let mut scratch = Vec::new();
                let mut found = 0;
                for (index, record) in view.records(&mut scratch, 1 << 20).unwrap().enumerate() {
                    let record = record.unwrap();
                    prop_assert_eq!(record.offset, Offset(base + index as i64));
                    prop_assert_eq!(record.timestamp, Timestamp(records[index].timestamp));
                    prop_assert!(records[index].is(&record));
                    found += 1;
                }
                prop_assert_eq!(found, records.len());
                let max = records.iter().map(|record| record.timestamp).max().unwrap_or(-1);
                prop_assert_eq!(view.head().max_timestamp(), Timestamp(max));
            }
        }

        #[test]
        fn damaged_batches_never_panic(
            records in plain_records(8), at: prop::sample::Index, byte: u8, codec in 0i16..5,
        ) {
            let codec = Codec::from_id(codec).unwrap();
            let mut builder = BatchBuilder::new(Offset(7), Compression::of(codec));
            for record in &records {
                builder.append(Timestamp(record.timestamp), record.key(), record.value(), &record.headers());
            }
            let mut batch = builder.finish().unwrap().to_vec();
            let at = at.index(batch.len());
            batch[at] = byte;
            if let Ok(view) = BatchView::parse(&batch) {
                let _ = (view.check_crc(), view.head().last_offset(), view.head().last_sequence());
                let mut scratch = Vec::new();
                if let Ok(records) = view.records(&mut scratch, 1 << 20) {
                    let headers = |record: Record<'_>| record.headers.count();
                    let _ = records.map(|record| record.map_or(0, headers)).sum::<usize>();
                }
            }
        }
    }

    #[test]
    fn gaps_and_the_range_of_a_compacted_batch_are_kept() {
        let mut builder = BatchBuilder::new(Offset(100), Compression::NONE);
        builder.append_at(Offset(103), Timestamp(5), Some(b"k"), None, &[]);
        builder.append_at(Offset(107), Timestamp(4), Some(b"l"), Some(b"v"), &[]);
        builder.set_last_offset(Offset(109));
        let batch = builder.finish().unwrap();
        let view = BatchView::parse(&batch).unwrap();
        assert_eq!((view.head().base_offset(), view.head().last_offset()), (Offset(100), Offset(109)));
        assert_eq!(view.head().count(), 2);
        let mut scratch = Vec::new();
        let offsets: Vec<Offset> =
            view.records(&mut scratch, 0).unwrap().map(|record| record.unwrap().offset).collect();
        assert_eq!(offsets, [Offset(103), Offset(107)]);
    }

    #[test]
    fn log_append_time_is_the_time_of_every_record() {
        let mut builder =
            BatchBuilder::new(Offset(0), Compression::NONE).with_log_append_time(Timestamp(900));
        builder.append(Timestamp(5), None, Some(b"v"), &[]);
        let batch = builder.finish().unwrap();
        let view = BatchView::parse(&batch).unwrap();
        assert_eq!(view.head().max_timestamp(), Timestamp(900));
        let mut scratch = Vec::new();
        let record = view.records(&mut scratch, 0).unwrap().next().unwrap().unwrap();
        assert_eq!(record.timestamp, Timestamp(900));
    }
}
