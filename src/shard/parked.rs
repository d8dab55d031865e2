//! Fetches that wait at their owner until there is enough to read. Each watches its partitions in a
//! purgatory; an append asks only the fetches that watch its partition.

use std::collections::HashMap;

use super::mesh::{CallId, ReplyTo};
use super::messages::FetchRequest;
use super::placement::PartitionKey;
use crate::base::ShardId;
use crate::base::clock::Monotonic;
use crate::log::OffsetMetadata;
use crate::timer::{Purgatory, WaitKey};

/// Fetches that one shard parks at most; a further one is answered at once with what there is.
pub(super) const PARKED_FETCHES_MAX: usize = 65_536;

/// Names a parked fetch from the outside: its asker's call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Asker {
    pub(super) shard: ShardId,
    pub(super) call: CallId,
}

pub(super) struct Parked {
    pub(super) reply_to: ReplyTo,
    pub(super) request: FetchRequest,
    pub(super) bytes_min: u64,
    /// Where each part's read starts, in the order of the request's parts.
    pub(super) starts: Vec<OffsetMetadata>,
    /// When it was parked.
    pub(super) since: Monotonic,
}

pub(super) struct ParkedFetches {
    pub(super) purgatory: Purgatory<PartitionKey, Parked>,
    by_asker: HashMap<Asker, WaitKey, ahash::RandomState>,
}

impl ParkedFetches {
    pub(super) fn new(now: Monotonic) -> Self {
        Self { purgatory: Purgatory::new(now, PARKED_FETCHES_MAX), by_asker: HashMap::default() }
    }

    /// Parks a fetch; gives it back when there is no room.
    pub(super) fn park(&mut self, until: Monotonic, parked: Parked) -> Result<(), Box<Parked>> {
        let asker = asker(&parked.reply_to);
        let keys: Vec<PartitionKey> = parked.request.parts.iter().map(|part| part.key).collect();
        match self.purgatory.watch(until, keys, parked) {
            Ok(key) => {
                self.by_asker.insert(asker, key);
                Ok(())
            }
            Err(full) => Err(Box::new(full.0)),
        }
    }

    pub(super) fn take(&mut self, asker: Asker) -> Option<Parked> {
        let key = self.by_asker.remove(&asker)?;
        self.purgatory.remove(key)
    }

    /// To be called for each fetch that the purgatory gave up.
    pub(super) fn forget(&mut self, parked: &Parked) {
        self.by_asker.remove(&asker(&parked.reply_to));
    }
}

pub(super) fn asker(reply_to: &ReplyTo) -> Asker {
    Asker { shard: reply_to.shard, call: reply_to.call }
}
