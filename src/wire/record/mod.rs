//! Record batches of format 2 (KIP-98): the 61-byte head, views over batches in a buffer, the records
//! within, their compression and how batches are made. What is stored and what goes over the wire are the
//! same bytes.

mod builder;
mod codec;
mod control;
mod head;
mod legacy;
mod records;
mod scan;
pub mod varint;
mod view;

pub use builder::{BatchBuilder, write_record};
pub use codec::{CodecError, Compression, Compressor, Decompressor, decompress};
pub use control::{ControlType, EndTxnMarker};
pub use head::{Attributes, BatchHead, Codec, HEAD_LEN, LOG_OVERHEAD, MAGIC, increment_sequence};
pub use legacy::{legacy_records, upgrade_message};
pub use records::{Header, Headers, Record, RecordFormatError, Records};
pub use scan::{ScannedRecord, Scanner};
pub use view::{BatchError, BatchView, Batches, ReadError};
