//! Record batches of format 2 (KIP-98): the 61-byte head, views over batches in a buffer and the records
//! within. What is stored and what goes over the wire are the same bytes.

mod head;
mod records;
pub mod varint;
mod view;

pub use head::{Attributes, BatchHead, Codec, HEAD_LEN, LOG_OVERHEAD, MAGIC, increment_sequence};
pub use records::{Header, Headers, Record, RecordFormatError, Records};
pub use view::{BatchError, BatchView, Batches};
