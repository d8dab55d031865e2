//! DeleteRecords at the owner: the log start moves at once, and followers take it over with their next answers. Whoever
//! asked is told when all replicas that are alive have (Kafka's `DelayedDeleteRecords`): from then on none of them serves
//! what was deleted, whoever leads.

use std::rc::Rc;
use std::time::Duration;

use super::Shard;
use super::mesh::ReplyTo;
use super::messages::Reply;
use super::placement::PartitionKey;
use crate::base::{Offset, clock};
use crate::io::runtime::{Queue, spawn};
use crate::wire::ErrorCode;

/// Between two looks at how far the followers are, each of which says so once in `replica.fetch.wait.max.ms` at least.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Of one partition: the offset below which all is to go, then what its operator is told.
struct Deletion {
    key: PartitionKey,
    below: Offset,
    answer: Option<Result<Offset, ErrorCode>>,
}

impl Shard {
    pub(super) fn delete_records(
        self: &Rc<Self>,
        mut reply_to: ReplyTo,
        targets: &[(PartitionKey, Offset)],
        timeout: Duration,
    ) {
        let mut deletions: Vec<Deletion> =
            targets.iter().map(|&(key, offset)| self.begin_deletion(key, offset)).collect();
        if self.look_at_deletions(&mut deletions) {
            return self.answer_deletions(reply_to, deletions);
        }
        self.mesh.park(&mut reply_to);
        let shard = self.clone();
        let until = clock::monotonic().plus(timeout);
        spawn(Queue::Control, "delete records", async move {
            while clock::monotonic() < until && !shard.is_stopping() {
                shard.sleep(LOOK_EVERY).await;
                if shard.look_at_deletions(&mut deletions) {
                    break;
                }
            }
            shard.answer_deletions(reply_to, deletions);
        })
        .detach();
    }

    fn begin_deletion(self: &Rc<Self>, key: PartitionKey, offset: Offset) -> Deletion {
        let begun = self.replica(key).ok_or(ErrorCode::UnknownTopicOrPartition).and_then(|replica| {
            let start = replica.with(|partition| partition.delete_records(offset))??;
            self.look_for_jobs(&replica);
            Ok(start)
        });
        match begun {
            Ok(start) => Deletion { key, below: if offset.0 == -1 { start } else { offset }, answer: None },
            Err(code) => Deletion { key, below: offset, answer: Some(Err(code)) },
        }
    }

    /// Whether nothing is to be waited for any more.
    fn look_at_deletions(&self, deletions: &mut [Deletion]) -> bool {
        let mut is_done = true;
        for deletion in deletions.iter_mut().filter(|deletion| deletion.answer.is_none()) {
            let low_watermark = match self.replica(deletion.key) {
                Some(replica) => replica.with(|partition| partition.low_watermark()).and_then(|it| it),
                None => Err(ErrorCode::UnknownTopicOrPartition),
            };
            match low_watermark {
                Ok(low_watermark) if low_watermark < deletion.below => is_done = false,
                answer => deletion.answer = Some(answer),
            }
        }
        is_done
    }

    fn answer_deletions(&self, reply_to: ReplyTo, deletions: Vec<Deletion>) {
        let answers = deletions.into_iter().map(|it| it.answer.unwrap_or(Err(ErrorCode::RequestTimedOut)));
        self.mesh.push_reply(reply_to, Reply::DeleteRecords(answers.collect()));
    }
}
