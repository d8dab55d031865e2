//! What the answer to one request may come to: counted against the memory of its shard while it is made, in parts that
//! let others run, and cut off where it would be too long. For answers that can be far longer than their requests.
//! Lives on the connection's shard.

use super::Client;
use crate::io::runtime::yield_if_needed;

/// Bytes of one answer, decoded and encoded, about.
pub const ANSWER_BYTES_MAX: usize = 128 << 20;

/// The room of one answer.
pub(super) struct AnswerRoom<'a> {
    client: &'a Client,
    bytes: usize,
    /// Of these, what is counted in the shard's memory.
    charged: usize,
    is_cut: bool,
}

impl<'a> AnswerRoom<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        Self { client, bytes: 0, charged: 0, is_cut: false }
    }

    /// No more is to be made of it: errors are to be told instead.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// What may be made of it without waiting.
    pub(super) fn left(&self) -> usize {
        let max = if self.client.is_beyond() {
            ANSWER_BYTES_MAX
        } else {
            self.client.shard.serve_memory().small_max()
        };
        if self.is_cut { 0 } else { max.saturating_sub(self.bytes) }
    }

    /// Waits for the place of a long answer, for more than is left. False when there is no more.
    pub(super) async fn widen(&mut self) -> bool {
        if self.client.is_beyond() {
            self.cut();
        } else if !self.is_cut {
            self.client.go_beyond().await;
        }
        !self.is_cut
    }

    fn cut(&mut self) {
        if !self.is_cut {
            self.is_cut = true;
            self.client.shard.counters.answers_cut.increment();
        }
    }

    /// Makes room for `bytes` more of the answer. False when it would be too long, and from then on. The first part of
    /// an answer is never too long.
    pub(super) async fn add(&mut self, bytes: usize) -> bool {
        if self.bytes > 0 && self.bytes + bytes > ANSWER_BYTES_MAX {
            self.cut();
        }
        if self.is_cut {
            return false;
        }
        self.bytes += bytes;
        let memory = self.client.shard.serve_memory();
        if self.bytes <= memory.small_max() {
            memory.take_now(bytes);
            self.charged += bytes;
        } else {
            // One at a time per shard, until its peer has taken it.
            self.client.go_beyond().await;
        }
        yield_if_needed().await;
        true
    }
}

impl Drop for AnswerRoom<'_> {
    fn drop(&mut self) {
        self.client.shard.serve_memory().give_back(self.charged);
    }
}
