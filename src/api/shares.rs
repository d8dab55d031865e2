//! A request cut by owner shard: what each owner is asked, and which place of the response each answer
//! belongs to. Lives on the connection's shard.

use std::rc::Rc;

use super::client::{Target, find_partition};
use crate::base::{PartitionIndex, ShardId};
use crate::metadata::Image;
use crate::shard::Shard;
use crate::shard::messages::{Reply, Request};
use crate::wire::ErrorCode;

/// The place of a partition in a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) topic: usize,
    pub(super) partition: usize,
}

/// The parts that one shard owns, each with its place.
pub(super) struct Share<Part, At> {
    pub(super) owner: ShardId,
    pub(super) parts: Vec<Part>,
    pub(super) places: Vec<At>,
}

/// The shares of all owners.
pub(super) struct Shares<Part, At = Place>(Vec<Share<Part, At>>);

impl<Part, At> Shares<Part, At> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a part for `owner`. A request has few owners, so a scan is the fastest map.
    pub(super) fn add(&mut self, owner: ShardId, place: At, part: Part) {
        let at = match self.0.iter().position(|share| share.owner == owner) {
            Some(at) => at,
            None => {
                self.0.push(Share { owner, parts: Vec::new(), places: Vec::new() });
                self.0.len() - 1
            }
        };
        self.0[at].parts.push(part);
        self.0[at].places.push(place);
    }

    pub(super) fn into_vec(self) -> Vec<Share<Part, At>> {
        self.0
    }

    /// Asks every owner for its share, all at the same time. `request` makes the message, `answers` takes the
    /// answers out of its reply: one for each part, in their order.
    pub(super) async fn ask<Answer>(
        self,
        shard: &Rc<Shard>,
        request: impl Fn(Vec<Part>) -> Request,
        answers: impl Fn(Reply) -> Option<Vec<Answer>>,
    ) -> Vec<(At, Answer)> {
        let mut sent = Vec::with_capacity(self.0.len());
        for Share { owner, parts, places } in self.0 {
            sent.push((places, shard.send(owner, request(parts)).await));
        }
        let mut answered = Vec::new();
        for (places, pending) in sent {
            let Some(answers) = answers(pending.await) else {
                crate::base::fatal("a request between shards got another one's answer");
            };
            debug_assert_eq!(places.len(), answers.len());
            answered.extend(places.into_iter().zip(answers));
        }
        answered
    }
}

/// Finds a partition that a request names as `topic` and `partition`, and its owner.
pub(super) fn find(shard: &Shard, image: &Image, topic: &str, partition: i32) -> Result<Target, ErrorCode> {
    let topic = image.topic(topic).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    find_partition(shard, topic, PartitionIndex(partition))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_gets_its_parts_in_the_order_of_the_request() {
        let mut shares = Shares::new();
        for (place, owner) in [2, 0, 2, 1, 2].into_iter().enumerate() {
            shares.add(ShardId(owner), place, place * 10);
        }
        let shares = shares.into_vec().into_iter().map(|share| (share.owner.0, share.parts, share.places));
        let expected = [(2, vec![0, 20, 40], vec![0, 2, 4]), (0, vec![10], vec![1]), (1, vec![30], vec![3])];
        assert_eq!(shares.collect::<Vec<_>>(), expected);
    }
}
