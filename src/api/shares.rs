//! A request cut by owner shard: what each owner is asked, and which place of the response each answer
//! belongs to. Lives on the connection's shard.

use std::rc::Rc;

use super::client::{Target, find_partition};
use crate::base::{PartitionIndex, ShardId};
use crate::io::runtime::{Queue, spawn};
use crate::metadata::Image;
use crate::shard::messages::{Reply, Request};
use crate::shard::{CallHandle, PendingReply, Shard};
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
    /// answers out of its reply: one for each part, in their order. Owners that keep their share hear of it when the
    /// asker is gone.
    pub(super) async fn ask<Answer>(
        self,
        shard: &Rc<Shard>,
        request: impl Fn(Vec<Part>) -> Request,
        answers: impl Fn(Reply) -> Option<Vec<Answer>>,
    ) -> Vec<(At, Answer)> {
        let mut sent = Vec::with_capacity(self.0.len());
        let mut waiting = Waiting::new(shard, self.0.len());
        for Share { owner, parts, places } in self.0 {
            let pending = shard.send(owner, request(parts)).await;
            waiting.begin(owner, &pending);
            sent.push((owner, places, pending));
        }
        let mut answered = Vec::new();
        for (owner, places, pending) in sent {
            let reply = pending.await;
            waiting.end(owner);
            let Some(answers) = answers(reply) else {
                crate::base::fatal("a request between shards got another one's answer");
            };
            debug_assert_eq!(places.len(), answers.len());
            answered.extend(places.into_iter().zip(answers));
        }
        answered
    }
}

/// Calls that their owners have not answered, one for each. Dropped early, because the client has gone, it has them
/// answered: they would wait their time out, and that is the client's choice.
pub(super) struct Waiting<'a> {
    shard: &'a Rc<Shard>,
    calls: Vec<(ShardId, CallHandle)>,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(shard: &'a Rc<Shard>, owners: usize) -> Self {
        Self { shard, calls: Vec::with_capacity(owners) }
    }

    pub(super) fn begin(&mut self, owner: ShardId, call: &PendingReply) {
        self.calls.push((owner, call.handle()));
    }

    pub(super) fn end(&mut self, owner: ShardId) {
        self.calls.retain(|(other, _)| *other != owner);
    }

    /// Has those that wait answer with what there is.
    pub(super) async fn hurry(&self) {
        for (owner, call) in &self.calls {
            self.shard.hurry(*owner, *call).await;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.shard.is_stopping() {
            // Its end answers them all.
            return;
        }
        // The number of one that is answered may soon be another one's.
        for (owner, call) in self.calls.drain(..).filter(|(_, call)| self.shard.awaits(*call)) {
            let shard = self.shard.clone();
            spawn(Queue::Serve, "abandoned call", async move { shard.hurry(owner, call).await }).detach();
        }
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
