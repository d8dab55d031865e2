//! Requests that wait at their owner ([`Keep`]), and of these the fetches that wait until there is enough to read.
//! Each watches its partitions in a purgatory; an append asks only the fetches that watch its partition, and of these
//! only the followers': consumers wait for the high watermark.

use std::collections::HashMap;
use std::hash::Hash;
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

/// Names a request that is kept from the outside: its asker's call.
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

/// A request that its owner keeps for a while.
pub(super) trait Kept {
    /// What may end its wait.
    type Key: Eq + Hash + Clone;

    fn reply_to(&self) -> &ReplyTo;
    fn keys(&self) -> Vec<Self::Key>;
    /// Partitions that it names.
    fn parts(&self) -> usize;
}

impl Kept for Parked {
    type Key = Watch;

    fn reply_to(&self) -> &ReplyTo {
        &self.reply_to
    }

    fn keys(&self) -> Vec<Watch> {
        let waterline = self.request.waterline;
        self.request.parts.iter().map(|part| Watch::of(waterline, part.key)).collect()
    }

    fn parts(&self) -> usize {
        self.request.parts.len()
    }
}

/// Requests of one kind that one shard keeps.
pub(super) struct Keep<Op: Kept> {
    pub(super) purgatory: Purgatory<Op::Key, Op>,
    parts: usize,
    parts_max: usize,
    by_asker: HashMap<Asker, WaitKey, ahash::RandomState>,
}

pub(super) type ParkedFetches = Keep<Parked>;

impl ParkedFetches {
    pub(super) fn of_fetches(now: Monotonic) -> Self {
        Self::new(now, PARKED_FETCHES_MAX, PARKED_PARTS_MAX)
    }
}

impl<Op: Kept> Keep<Op> {
    /// So many requests, which name so many partitions, at most.
    pub(super) fn new(now: Monotonic, requests_max: usize, parts_max: usize) -> Self {
        let purgatory = Purgatory::new(now, requests_max);
        Self { purgatory, parts: 0, parts_max, by_asker: HashMap::default() }
    }

    /// Keeps a request; gives it back when there is no room.
    pub(super) fn park(&mut self, until: Monotonic, kept: Op) -> Result<(), Box<Op>> {
        let (asker, parts) = (asker(kept.reply_to()), kept.parts());
        if self.parts + parts > self.parts_max {
            return Err(Box::new(kept));
        }
        match self.purgatory.watch(until, kept.keys(), kept) {
            Ok(key) => {
                self.by_asker.insert(asker, key);
                self.parts += parts;
                Ok(())
            }
            Err(full) => Err(Box::new(full.0)),
        }
    }

    pub(super) fn take(&mut self, asker: Asker) -> Option<Op> {
        let key = self.by_asker.remove(&asker)?;
        let kept = self.purgatory.remove(key)?;
        self.parts -= kept.parts();
        Some(kept)
    }

    /// To be called for each that the purgatory gave up.
    pub(super) fn forget(&mut self, kept: &Op) {
        self.by_asker.remove(&asker(kept.reply_to()));
        self.parts -= kept.parts();
    }
}

pub(super) fn asker(reply_to: &ReplyTo) -> Asker {
    Asker { shard: reply_to.shard, call: reply_to.call }
}

#[cfg(test)]
mod tests {
    use super::super::mesh::{Mesh, lanes};
    use super::super::messages::Reply;
    use super::*;

    struct One(ReplyTo, usize);

    impl Kept for One {
        type Key = usize;

        fn reply_to(&self) -> &ReplyTo {
            &self.0
        }

        fn keys(&self) -> Vec<usize> {
            (0..self.1).collect()
        }

        fn parts(&self) -> usize {
            self.1
        }
    }

    #[test]
    fn no_more_is_kept_than_requests_and_partitions_may_be_and_its_asker_may_have_it_back() {
        let mesh = Mesh::new(lanes(1).remove(0)).0;
        let mut keep = Keep::new(Monotonic::ZERO, 2, 5);
        let answer = |One(reply_to, _): One| mesh.push_reply(reply_to, Reply::Done);
        let mut pending = Vec::new();
        let mut park = |keep: &mut Keep<One>, parts| {
            let (reply_to, call) = mesh.open_call();
            pending.push(call);
            let asker = asker(&reply_to);
            let refused = keep.park(Monotonic::from_millis(10), One(reply_to, parts)).err();
            refused.map(|refused| answer(*refused)).is_none().then_some(asker)
        };
        let first = park(&mut keep, 3).unwrap();
        assert!(park(&mut keep, 3).is_none(), "too many partitions");
        let second = park(&mut keep, 2).unwrap();
        assert!(park(&mut keep, 0).is_none(), "too many requests");
        answer(keep.take(first).unwrap());
        assert!(keep.take(first).is_none());
        park(&mut keep, 3).unwrap();
        let mut expired = Vec::new();
        keep.purgatory.advance(Monotonic::from_millis(20), &mut expired);
        assert_eq!(expired.len(), 2);
        for kept in expired {
            keep.forget(&kept);
            answer(kept);
        }
        assert!(keep.take(second).is_none() && keep.parts == 0);
    }
}
