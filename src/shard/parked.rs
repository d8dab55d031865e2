//! Fetches that wait at their owner until there is enough to read. Each watches its partitions in a
//! purgatory; an append asks only the fetches that watch its partition, and of these only the followers': consumers
//! wait for the high watermark.

use std::collections::HashMap;
use std::rc::Rc;

use super::mesh::{CallId, ReplyTo};
use super::messages::FetchRequest;
use super::placement::PartitionKey;
use crate::base::ShardId;
use crate::base::clock::Monotonic;
use crate::log::OffsetMetadata;
use crate::partition::Waterline;
use crate::timer::{Purgatory, WaitKey};

/// What a parked fetch waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Watch {
    /// The high watermark of the partition moves: a consumer's.
    Committed(PartitionKey),
    /// Its log grows: a follower's.
    Appended(PartitionKey),
}

impl Watch {
    fn of(waterline: Waterline, key: PartitionKey) -> Self {
        match waterline {
            Waterline::HighWatermark | Waterline::LastStable => Watch::Committed(key),
            Waterline::LogEnd => Watch::Appended(key),
        }
    }
}

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
    /// What each part was last seen to have, in the same order, and all together.
    available: Vec<u64>,
    total: u64,
    /// The parts by their keys; empty where there is one only.
    by_key: Rc<[u32]>,
}

impl Parked {
    pub(super) fn new(
        reply_to: ReplyTo,
        request: FetchRequest,
        bytes_min: u64,
        starts: Vec<OffsetMetadata>,
        since: Monotonic,
    ) -> Self {
        let count = request.parts.len();
        let mut by_key: Vec<u32> = if count > 1 { (0..count as u32).collect() } else { Vec::new() };
        by_key.sort_unstable_by_key(|&index| request.parts[index as usize].key);
        let available = vec![0; count];
        Self { reply_to, request, bytes_min, starts, since, available, total: 0, by_key: by_key.into() }
    }

    /// The parts of a partition: more than one if the client names it twice.
    pub(super) fn parts_of(&self, key: PartitionKey) -> impl Iterator<Item = usize> + use<> {
        let by_key = self.by_key.clone();
        let key_of = |index: &u32| self.request.parts[*index as usize].key;
        let found = match self.request.parts.len() {
            1 => 0..1,
            _ => {
                by_key.partition_point(|index| key_of(index) < key)
                    ..by_key.partition_point(|index| key_of(index) <= key)
            }
        };
        found.map(move |place| by_key.get(place).map_or(0, |&index| index as usize))
    }

    /// Notes what a part has; whether all together have enough.
    pub(super) fn set_available(&mut self, part: usize, bytes: u64) -> bool {
        let before = std::mem::replace(&mut self.available[part], bytes);
        self.total = self.total - before + bytes;
        self.total >= self.bytes_min
    }
}

/// Partitions that all parked fetches of one shard name at most: about 150 bytes each.
const PARKED_PARTS_MAX: usize = 1 << 20;

pub(super) struct ParkedFetches {
    pub(super) purgatory: Purgatory<Watch, Parked>,
    parts: usize,
    by_asker: HashMap<Asker, WaitKey, ahash::RandomState>,
}

impl ParkedFetches {
    pub(super) fn new(now: Monotonic) -> Self {
        Self { purgatory: Purgatory::new(now, PARKED_FETCHES_MAX), parts: 0, by_asker: HashMap::default() }
    }

    /// Parks a fetch; gives it back when there is no room.
    pub(super) fn park(&mut self, until: Monotonic, parked: Parked) -> Result<(), Box<Parked>> {
        let asker = asker(&parked.reply_to);
        let parts = parked.request.parts.len();
        if self.parts + parts > PARKED_PARTS_MAX {
            return Err(Box::new(parked));
        }
        let waterline = parked.request.waterline;
        let keys: Vec<Watch> =
            parked.request.parts.iter().map(|part| Watch::of(waterline, part.key)).collect();
        match self.purgatory.watch(until, keys, parked) {
            Ok(key) => {
                self.by_asker.insert(asker, key);
                self.parts += parts;
                Ok(())
            }
            Err(full) => Err(Box::new(full.0)),
        }
    }

    pub(super) fn take(&mut self, asker: Asker) -> Option<Parked> {
        let key = self.by_asker.remove(&asker)?;
        let parked = self.purgatory.remove(key)?;
        self.parts -= parked.request.parts.len();
        Some(parked)
    }

    /// To be called for each fetch that the purgatory gave up.
    pub(super) fn forget(&mut self, parked: &Parked) {
        self.by_asker.remove(&asker(&parked.reply_to));
        self.parts -= parked.request.parts.len();
    }
}

pub(super) fn asker(reply_to: &ReplyTo) -> Asker {
    Asker { shard: reply_to.shard, call: reply_to.call }
}
