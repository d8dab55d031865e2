//! Kafka's rules for batches that clients produce (`org.apache.kafka.storage.internals.log.LogValidator`,
//! `UnifiedLog.analyzeAndValidateRecords`, `ProduceRequest.validateRecords`).
//!
//! Runs on the shard that owns the partition, in steps with a budget, so that a large compressed batch does
//! not stall the others. What passes keeps the client's bytes unless the topic wants another codec. Offsets
//! and leader epoch are the log's to assign; producer sequences are `partition`'s to check.

#[cfg(test)]
mod tests;

use std::io::Read;
use std::task::Poll;

use bytes::Bytes;
use zerocopy::FromBytes;

use super::ErrorCode;
use super::record::{
    BatchError, BatchHead, BatchView, Codec, CodecError, Compression, Compressor, Decompressor, HEAD_LEN,
    Header, RecordFormatError, Records, ScannedRecord, Scanner, decompress, write_record,
};
use crate::base::Offset;
use crate::base::clock::Timestamp;
use crate::base::crc32c;
use crate::config::{LogConfig, TimestampType};

/// Bounds on the work that one batch may cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes that a compressed body may expand to. They are checked as a stream, not held.
    pub decompressed_bytes_max: usize,
    /// How many times its size a body may expand to beyond [`UNSUSPECTED_BYTES`].
    pub decompression_ratio_max: usize,
    /// Records of one batch.
    pub records_max: usize,
    /// Records named one by one in a refusal; the others count as part of the refused batch all the same.
    pub record_errors_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self::of(&LogConfig::default())
    }
}

impl Limits {
    pub fn of(config: &LogConfig) -> Self {
        Self {
            decompressed_bytes_max: config.decompressed_bytes_max as usize,
            decompression_ratio_max: config.decompression_ratio_max as usize,
            records_max: config.batch_records_max as usize,
            record_errors_max: 1000,
        }
    }

    /// What a body of `len` bytes may expand to.
    fn expanded_max(&self, len: usize) -> usize {
        let by_ratio = len.saturating_mul(self.decompression_ratio_max).max(UNSUSPECTED_BYTES);
        by_ratio.min(self.decompressed_bytes_max)
    }
}

/// A body that expands to no more is not judged by its ratio: batches of zeros shrink to nothing and are no bomb.
const UNSUSPECTED_BYTES: usize = 16 << 20;

/// Bytes that a body with wrong record offsets may expand to: it is rewritten in memory.
const RENUMBERED_BYTES_MAX: usize = 16 << 20;

/// The first produce version that may carry zstd (KIP-110).
const ZSTD_VERSION_MIN: i16 = 7;

/// Decompressed bytes per read of the stream.
const CHUNK_LEN: usize = 32 << 10;

/// A batch that may be appended.
#[derive(Clone, Debug)]
pub struct ValidatedBatch {
    /// Base offset 0; the log patches base offset and leader epoch, which the checksum does not cover.
    pub head: BatchHead,
    /// Everything behind the head: a slice of the request unless it was recompressed.
    pub body: Bytes,
    /// The offset delta of the first record with the maximum timestamp; 0 under LogAppendTime. (For the
    /// time index Kafka takes the batch's last offset instead.)
    pub max_timestamp_delta: i32,
}

impl ValidatedBatch {
    /// A batch that the broker made itself (markers, coordinator records): nothing is checked but that it
    /// is whole. Its maximum timestamp is taken to be its last record's.
    pub fn from_own(batch: &Bytes) -> Result<Self, BatchError> {
        let head = *BatchView::parse(batch)?.head();
        let body = batch.slice(HEAD_LEN..head.total_len());
        Ok(Self { head, body, max_timestamp_delta: head.last_offset_delta() })
    }

    /// Bytes of the whole batch with its head.
    pub fn len(&self) -> usize {
        HEAD_LEN + self.body.len()
    }

    /// Never: a batch has a head.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The checked codec.
    pub fn codec(&self) -> Codec {
        self.head.attributes().codec().unwrap_or(Codec::None)
    }
}

/// Why a batch is refused, as the produce response tells it (KIP-467).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordError {
    pub code: ErrorCode,
    pub message: Option<String>,
    /// The records to blame: place in the batch and why.
    pub record_errors: Vec<(i32, Option<String>)>,
    /// The bound that the batch is over, if that is why; to be counted.
    pub bound: Option<BatchBound>,
}

/// A bound on the work that a batch causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchBound {
    /// `kuring.decompression.bytes.max` or `kuring.decompression.ratio.max`.
    Decompression,
    /// `kuring.batch.records.max`.
    Records,
}

impl RecordError {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()), record_errors: Vec::new(), bound: None }
    }
}

/// The same code as Kafka's. Stricter in one place: Kafka does not compare the length of a compressed record
/// with its fields, so that a consumer is the first to stumble.
impl From<RecordFormatError> for RecordError {
    fn from(error: RecordFormatError) -> Self {
        Self::new(ErrorCode::InvalidRecord, error.to_string())
    }
}

/// Kafka answers UNKNOWN_SERVER_ERROR to a broken stream, which blames the broker; INVALID_RECORD ends the
/// client's retries just as well and says whose fault it is.
impl From<CodecError> for RecordError {
    fn from(error: CodecError) -> Self {
        let bound = matches!(error, CodecError::TooLarge { .. }).then_some(BatchBound::Decompression);
        Self { bound, ..Self::new(ErrorCode::InvalidRecord, error.to_string()) }
    }
}

/// The validation of one partition's records, in steps.
pub struct Validation {
    head: BatchHead,
    body: Bytes,
    rules: Rules,
    limits: Limits,
    stage: Stage,
    scanner: Scanner,
    findings: Findings,
    /// Takes the records as they pass when the topic wants another codec.
    output: Option<Compressor>,
}

enum Stage {
    Checksum { crc: u32, at: usize },
    Plain { at: usize },
    Compressed { decompressor: Decompressor<Bytes>, chunk: Box<[u8]>, total: usize },
}

/// What the topic's settings ask of a batch.
#[derive(Clone, Copy)]
struct Rules {
    compacted: bool,
    timestamp_type: TimestampType,
    timestamp_before_max_ms: i64,
    timestamp_after_max_ms: i64,
    batch_bytes_max: usize,
    segment_bytes_max: usize,
    target: Compression,
    now: Timestamp,
}

/// What the records showed.
struct Findings {
    max_timestamp: Timestamp,
    max_timestamp_delta: i32,
    offsets_consecutive: bool,
    record_errors: Vec<(i32, Option<String>)>,
    record_error_count: usize,
    timestamp_refused: bool,
}

impl Validation {
    /// Checks the head of the batch that `records` holds, the data of one partition in a Produce request of
    /// `version`. Reads no further than the head.
    pub fn start(
        records: Bytes,
        config: &LogConfig,
        version: i16,
        now: Timestamp,
        limits: Limits,
    ) -> Result<Self, RecordError> {
        let (head, body) = take_single_batch(&records)?;
        let attributes = head.attributes();
        let Some(source) = attributes.codec() else {
            let error = format!("attributes {:#06x} name no codec", attributes.0);
            return Err(RecordError::new(ErrorCode::UnsupportedCompressionType, error));
        };
        if source == Codec::Zstd && version < ZSTD_VERSION_MIN {
            let error = format!("zstd needs Produce version {ZSTD_VERSION_MIN}, this is {version}");
            return Err(RecordError::new(ErrorCode::UnsupportedCompressionType, error));
        }
        let rules = Rules {
            compacted: config.cleanup_policy.compact,
            timestamp_type: config.message_timestamp_type,
            timestamp_before_max_ms: config.message_timestamp_before_max_ms,
            timestamp_after_max_ms: config.message_timestamp_after_max_ms,
            batch_bytes_max: config.max_message_bytes as usize,
            segment_bytes_max: config.segment_bytes as usize,
            target: Compression::for_topic(config.compression, source),
            now,
        };
        if head.total_len() > rules.batch_bytes_max {
            return Err(too_large(head.total_len(), rules.batch_bytes_max));
        }
        check_head(&head)?;
        if usize::try_from(head.count()).is_ok_and(|count| count > limits.records_max) {
            let reason =
                format!("{} records exceed kuring.batch.records.max={}", head.count(), limits.records_max);
            let bound = Some(BatchBound::Records);
            return Err(RecordError { bound, ..RecordError::new(ErrorCode::InvalidRecord, reason) });
        }
        // Kafka bounds a record where it decompresses, nowhere else.
        let record_len_max = match source {
            Codec::None => usize::MAX,
            _ => config.max_decompressed_message_bytes as usize,
        };
        let output = match rules.target.codec == source {
            true => None,
            false => Some(Compressor::new(rules.target)?),
        };
        Ok(Self {
            stage: Stage::Checksum { crc: head.compute_crc(&[]), at: 0 },
            scanner: Scanner::new(head.count(), record_len_max),
            findings: Findings::new(),
            head,
            body,
            rules,
            limits,
            output,
        })
    }

    /// Holds what its codec needs, which may be far more than the batch.
    pub fn is_decompressing(&self) -> bool {
        matches!(self.stage, Stage::Compressed { .. })
    }

    /// Works on about `budget_bytes` bytes, decompressed ones counted as such. Must not be called again
    /// after it was ready.
    pub fn step(&mut self, budget_bytes: usize) -> Poll<Result<ValidatedBatch, RecordError>> {
        let mut budget = budget_bytes;
        self.step_within(&mut budget)
    }

    /// [`Validation::step`], taking what it worked on off `budget`.
    pub fn step_within(&mut self, budget: &mut usize) -> Poll<Result<ValidatedBatch, RecordError>> {
        *budget = (*budget).max(1);
        while *budget > 0 {
            match self.advance(*budget) {
                Err(error) => return Poll::Ready(Err(error)),
                Ok(Progress::Worked(bytes)) => *budget = budget.saturating_sub(bytes),
                Ok(Progress::Scanned) => return Poll::Ready(self.conclude()),
            }
        }
        Poll::Pending
    }

    /// Validates without a pause, for batches known to be small and for tests.
    pub fn run_to_end(mut self) -> Result<ValidatedBatch, RecordError> {
        loop {
            if let Poll::Ready(outcome) = self.step(usize::MAX) {
                return outcome;
            }
        }
    }

    fn advance(&mut self, budget: usize) -> Result<Progress, RecordError> {
        let Self { head, body, rules, findings, scanner, output, .. } = self;
        let on_record = |record: ScannedRecord| findings.see(record, head, rules, self.limits);
        match &mut self.stage {
            Stage::Checksum { crc, at } => {
                let piece = piece_of(body, *at, budget);
                *crc = crc32c::extend(*crc, piece);
                *at += piece.len();
                if *at < body.len() {
                    return Ok(Progress::Worked(piece.len()));
                }
                if *crc != head.crc() {
                    let error = BatchError::Crc { stored: head.crc(), computed: *crc };
                    return Err(RecordError::new(ErrorCode::CorruptMessage, error.to_string()));
                }
                let worked = Progress::Worked(piece.len());
                self.stage = Stage::of(head, body)?;
                Ok(worked)
            }
            Stage::Plain { at } => {
                let piece = piece_of(body, *at, budget);
                if piece.is_empty() {
                    scanner.finish()?;
                    return Ok(Progress::Scanned);
                }
                scanner.feed(piece, on_record)?;
                *at += piece.len();
                let worked = Progress::Worked(piece.len());
                write_output(output, piece, rules)?;
                Ok(worked)
            }
            Stage::Compressed { decompressor, chunk, total } => {
                let codec = head.attributes().codec().unwrap_or(Codec::None);
                let len = decompressor.read(chunk).map_err(|source| CodecError::Broken { codec, source })?;
                if len == 0 {
                    scanner.finish()?;
                    return Ok(Progress::Scanned);
                }
                *total += len;
                let limit = self.limits.expanded_max(body.len());
                if *total > limit {
                    return Err(CodecError::TooLarge { limit }.into());
                }
                scanner.feed(&chunk[..len], on_record)?;
                write_output(output, &chunk[..len], rules)?;
                Ok(Progress::Worked(len))
            }
        }
    }

    /// All records have been seen and are whole: refuse or finish the batch.
    fn conclude(&mut self) -> Result<ValidatedBatch, RecordError> {
        self.findings.refuse_if_any()?;
        let rebuilt = match (self.findings.offsets_consecutive, self.output.take()) {
            (false, _) => Some(self.renumber()?),
            (true, Some(output)) => Some(output.finish()?),
            (true, None) => None,
        };
        let source = self.head.attributes();
        let attributes =
            source.with_codec(self.rules.target.codec).with_timestamp_type(self.rules.timestamp_type);
        let (max_timestamp, max_timestamp_delta) = match self.rules.timestamp_type {
            TimestampType::CreateTime => (self.findings.max_timestamp, self.findings.max_timestamp_delta),
            TimestampType::LogAppendTime => (self.rules.now, 0),
        };
        let is_changed =
            rebuilt.is_some() || attributes != source || max_timestamp != self.head.max_timestamp();
        self.head.set_attributes(attributes);
        self.head.set_max_timestamp(max_timestamp);
        let body = rebuilt.map_or_else(|| self.body.clone(), Bytes::from);
        let total = HEAD_LEN + body.len();
        if total > self.rules.batch_bytes_max {
            return Err(too_large(total, self.rules.batch_bytes_max));
        }
        if total > self.rules.segment_bytes_max {
            let error =
                format!("batch of {total} bytes exceeds segment.bytes={}", self.rules.segment_bytes_max);
            return Err(RecordError::new(ErrorCode::RecordListTooLarge, error));
        }
        if is_changed {
            self.head.seal(&body);
        }
        Ok(ValidatedBatch { head: self.head, body, max_timestamp_delta })
    }

    /// Writes the records anew with the offsets 0, 1, 2… that a batch must have. Kafka 4.4 stores wrong
    /// offsets of an uncompressed batch as they are and fails where it means to renumber a compressed one.
    fn renumber(&self) -> Result<Vec<u8>, RecordError> {
        let codec = self.head.attributes().codec().unwrap_or(Codec::None);
        let limit = RENUMBERED_BYTES_MAX.min(self.limits.expanded_max(self.body.len()));
        let mut source = Vec::new();
        decompress(codec, &self.body, limit, &mut source)?;
        let mut renumbered = Vec::with_capacity(source.len());
        let mut headers: Vec<Header<'_>> = Vec::new();
        for (offset_delta, record) in (0..).zip(Records::new(&self.head, &source)) {
            let record = record?;
            headers.clear();
            headers.extend(record.headers);
            let delta = record.timestamp_delta;
            write_record(&mut renumbered, delta, offset_delta, record.key, record.value, &headers);
        }
        let mut compressor = Compressor::new(self.rules.target)?;
        compressor.write(&renumbered)?;
        Ok(compressor.finish()?)
    }
}

enum Progress {
    Worked(usize),
    Scanned,
}

impl Stage {
    /// Where the records are read from once the checksum has passed.
    fn of(head: &BatchHead, body: &Bytes) -> Result<Stage, RecordError> {
        match head.attributes().codec() {
            None | Some(Codec::None) => Ok(Stage::Plain { at: 0 }),
            Some(codec) => Ok(Stage::Compressed {
                decompressor: Decompressor::new(codec, body.clone())?,
                chunk: vec![0; CHUNK_LEN].into(),
                total: 0,
            }),
        }
    }
}

impl Findings {
    fn new() -> Self {
        Self {
            max_timestamp: Timestamp::NONE,
            max_timestamp_delta: 0,
            offsets_consecutive: true,
            record_errors: Vec::new(),
            record_error_count: 0,
            timestamp_refused: false,
        }
    }

    /// Takes note of one record; allocates only for one to be refused.
    fn see(&mut self, record: ScannedRecord, head: &BatchHead, rules: &Rules, limits: Limits) {
        let timestamp = Timestamp(head.base_timestamp().0.wrapping_add(record.timestamp_delta));
        self.offsets_consecutive &= record.offset_delta == record.index;
        if timestamp > self.max_timestamp {
            self.max_timestamp = timestamp;
            self.max_timestamp_delta = record.index;
        }
        let is_keyless = rules.compacted && !record.has_key;
        if !is_keyless && rules.admit(timestamp) {
            return;
        }
        self.record_error_count += 1;
        self.timestamp_refused |= !is_keyless;
        if self.record_errors.len() < limits.record_errors_max {
            let reason = match is_keyless {
                true => "a compacted topic takes no record without a key".to_string(),
                false => rules.timestamp_reason(timestamp),
            };
            self.record_errors.push((record.index, Some(reason)));
        }
    }

    fn refuse_if_any(&mut self) -> Result<(), RecordError> {
        if self.record_error_count == 0 {
            return Ok(());
        }
        let code = match self.timestamp_refused {
            true => ErrorCode::InvalidTimestamp,
            false => ErrorCode::InvalidRecord,
        };
        let message = format!("{} records of the batch are refused", self.record_error_count);
        let record_errors = std::mem::take(&mut self.record_errors);
        Err(RecordError { code, message: Some(message), record_errors, bound: None })
    }
}

impl Rules {
    /// Whether a record of this create time may enter. A record without a timestamp always may.
    fn admit(&self, timestamp: Timestamp) -> bool {
        if self.timestamp_type == TimestampType::LogAppendTime || timestamp == Timestamp::NONE {
            return true;
        }
        let age_ms = self.now.0.saturating_sub(timestamp.0);
        age_ms <= self.timestamp_before_max_ms && age_ms.saturating_neg() <= self.timestamp_after_max_ms
    }

    fn timestamp_reason(&self, timestamp: Timestamp) -> String {
        let oldest = self.now.0.saturating_sub(self.timestamp_before_max_ms);
        let newest = self.now.0.saturating_add(self.timestamp_after_max_ms);
        format!("timestamp {timestamp} is outside {oldest} to {newest}", timestamp = timestamp.0)
    }
}

/// Exactly one batch of format 2. A torn second one is cut off, as Kafka does.
fn take_single_batch(records: &Bytes) -> Result<(BatchHead, Bytes), RecordError> {
    let refuse = |code, reason: &str| Err(RecordError::new(code, reason));
    let total = match BatchView::parse(records) {
        Ok(view) => view.bytes().len(),
        Err(BatchError::Incomplete { .. }) => {
            return refuse(ErrorCode::InvalidRecord, "there is no whole batch of format 2");
        }
        Err(BatchError::Magic { magic: magic @ (0 | 1) }) => {
            return refuse(ErrorCode::InvalidRecord, &format!("batch format {magic} is no longer taken"));
        }
        Err(error) => return refuse(ErrorCode::CorruptMessage, &error.to_string()),
    };
    match BatchView::parse(&records[total..]) {
        Err(BatchError::Incomplete { .. }) => {}
        Ok(_) => return refuse(ErrorCode::InvalidRecord, "a partition takes one batch per request"),
        Err(error) => return refuse(ErrorCode::CorruptMessage, &error.to_string()),
    }
    match BatchHead::read_from_prefix(records) {
        Ok((head, _)) => Ok((head, records.slice(HEAD_LEN..total))),
        Err(_) => refuse(ErrorCode::InvalidRecord, "there is no whole batch of format 2"),
    }
}

/// What must hold for the head of a client's batch.
fn check_head(head: &BatchHead) -> Result<(), RecordError> {
    let refuse = |code, reason: String| Err(RecordError::new(code, reason));
    let attributes = head.attributes();
    let count_from_offsets = i64::from(head.last_offset_delta()) + 1;
    if head.base_offset() != Offset::ZERO {
        let reason = format!("base offset is {}, a client's batch begins at 0", head.base_offset());
        return refuse(ErrorCode::InvalidRecord, reason);
    }
    if head.count() <= 0 || count_from_offsets != i64::from(head.count()) {
        let reason = format!("{} records over {count_from_offsets} offsets", head.count());
        return refuse(ErrorCode::InvalidRecord, reason);
    }
    if attributes.is_control() {
        return refuse(ErrorCode::InvalidRecord, "clients do not write control records".to_string());
    }
    if head.producer_id().is_some() && head.base_sequence() < 0 {
        let reason = format!("sequence {} of producer {}", head.base_sequence(), head.producer_id());
        return refuse(ErrorCode::InvalidRecord, reason);
    }
    if attributes.is_transactional() && !head.producer_id().is_some() {
        return refuse(ErrorCode::InvalidRecord, "transactional batch without a producer".to_string());
    }
    // Kafka lets this pass when the records' times happen to be in bounds.
    if attributes.timestamp_type() == TimestampType::LogAppendTime {
        let reason = "a producer does not set the LogAppendTime attribute".to_string();
        return refuse(ErrorCode::InvalidTimestamp, reason);
    }
    Ok(())
}

fn too_large(len: usize, len_max: usize) -> RecordError {
    let reason = format!("batch of {len} bytes exceeds max.message.bytes={len_max}");
    RecordError::new(ErrorCode::MessageTooLarge, reason)
}

fn piece_of(body: &Bytes, at: usize, budget: usize) -> &[u8] {
    let left = &body[at..];
    &left[..budget.min(left.len())]
}

/// Hands records on to the new codec; gives up as soon as they cannot fit any more.
fn write_output(output: &mut Option<Compressor>, piece: &[u8], rules: &Rules) -> Result<(), RecordError> {
    let Some(compressor) = output else { return Ok(()) };
    compressor.write(piece)?;
    let len = HEAD_LEN + compressor.len();
    if len > rules.batch_bytes_max {
        return Err(too_large(len, rules.batch_bytes_max));
    }
    Ok(())
}
