//! How the coordinators of shard 0 read the partitions of their topics.

use std::rc::Rc;
use std::time::Duration;

use crate::base::{LeaderEpoch, Offset};
use crate::io::FileHandle;
use crate::io::runtime::yield_if_needed;
use crate::partition::Waterline;
use crate::shard::messages::{FetchPart, FetchRequest, FetchedPart, Reads, Reply, Request};
use crate::shard::{PartitionKey, Shard};
use crate::wire::ErrorCode;
use crate::wire::record::{BatchView, Batches};

/// Read at once from one partition (Kafka's buffers are five times that).
const READ_BYTES: u32 = 1 << 20;
/// How often a log that is read is looked at whether all of it is committed.
const COMMIT_POLL: Duration = Duration::from_millis(5);

/// Why a partition could not be read for now.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("{0}")]
    Answer(ErrorCode),
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error("the batch at offset {0} is broken: {1}")]
    Batch(Offset, String),
}

impl LoadError {
    /// The partition is not led as it was thought, or not yet: the shard that owns it has another image.
    pub fn is_of_leadership(&self) -> bool {
        use ErrorCode::{FencedLeaderEpoch, NotLeaderOrFollower, UnknownLeaderEpoch};
        matches!(self, Self::Answer(NotLeaderOrFollower | FencedLeaderEpoch | UnknownLeaderEpoch))
    }

    pub fn broken(batch: &BatchView<'_>, error: &dyn std::fmt::Display) -> Self {
        LoadError::Batch(batch.head().base_offset(), error.to_string())
    }
}

/// Reads a partition, as its leader in this epoch, from its start to its end and gives each batch to `each`; where it
/// `awaits_commit`, returns only when all of that is committed. Ends early when `goes_on`, asked before each read, says
/// no.
pub(super) async fn read_log(
    shard: &Rc<Shard>,
    (key, epoch): (PartitionKey, LeaderEpoch),
    awaits_commit: bool,
    mut goes_on: impl FnMut() -> bool,
    mut each: impl FnMut(&BatchView<'_>) -> Result<(), LoadError>,
) -> Result<(), LoadError> {
    let mut next = Offset::ZERO;
    while goes_on() {
        let bytes = match read_more(shard, (key, epoch), &mut next).await? {
            More::Bytes(bytes) => bytes,
            More::End { high_watermark } if awaits_commit && high_watermark < next => {
                shard.sleep(COMMIT_POLL).await;
                continue;
            }
            More::End { .. } => return Ok(()),
        };
        let before = next;
        for batch in Batches::new(&bytes) {
            // The last batch of a read may be cut; the next read begins with it.
            let Ok(batch) = batch else { break };
            // A read begins with the batch that holds its offset, which may lie before it.
            if batch.head().next_offset() > next {
                each(&batch)?;
                next = batch.head().next_offset();
            }
            yield_if_needed().await;
        }
        if next == before {
            return Err(LoadError::Batch(before, "no whole batch is there".to_owned()));
        }
    }
    Ok(())
}

/// What comes next in a log.
enum More {
    Bytes(Vec<u8>),
    End { high_watermark: Offset },
}

/// The bytes from `next` on.
async fn read_more(
    shard: &Rc<Shard>,
    (key, epoch): (PartitionKey, LeaderEpoch),
    next: &mut Offset,
) -> Result<More, LoadError> {
    loop {
        let part = FetchPart {
            key,
            offset: *next,
            bytes_max: READ_BYTES,
            current_leader_epoch: epoch,
            last_fetched_epoch: LeaderEpoch::NONE,
            log_start: Offset(-1),
        };
        let request = FetchRequest {
            parts: vec![part],
            follower: None,
            reads: Reads::Leader,
            waterline: Waterline::LogEnd,
            bytes_max: READ_BYTES,
            wait: None,
        };
        let Reply::Fetch(mut reply) = shard.ask(shard.owner(key), Request::Fetch(request)).await else {
            crate::base::fatal("a fetch got another request's answer");
        };
        match reply.parts.pop() {
            Some(FetchedPart::Data(data)) => {
                let Some(range) = data.range else {
                    return Ok(More::End { high_watermark: data.high_watermark });
                };
                let directory = range.file.directory();
                let threads = &shard.settings().directories.readers;
                let read = threads.run("coordinator load", move || {
                    let mut bytes = vec![0; range.length as usize];
                    let count = range.file.read_at(&mut bytes, range.position)?;
                    bytes.truncate(count);
                    Ok::<_, std::io::Error>(bytes)
                });
                let read = read.await;
                if let Err(error) = &read {
                    shard.note_send_error(directory, error);
                }
                return Ok(More::Bytes(read?));
            }
            // What lay before was deleted.
            Some(FetchedPart::Failed { code: ErrorCode::OffsetOutOfRange, log_start, .. })
                if log_start > *next =>
            {
                *next = log_start;
            }
            Some(FetchedPart::Failed { code, .. }) => return Err(LoadError::Answer(code)),
            Some(FetchedPart::Diverging { .. } | FetchedPart::Elsewhere { .. }) | None => {
                return Err(LoadError::Answer(ErrorCode::UnknownServerError));
            }
        }
    }
}
