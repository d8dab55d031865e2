//! The scrub of a shard's logs: one stretch after the other at the rate of `kuring.scrub.bytes.per.second`, all of
//! them round and round. Off by default.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shard;
use super::replica::Replica;
use crate::io::cached;
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, spawn};
use crate::log::{LogError, ScrubJob, ScrubOutcome};

/// Read by one job.
const STRETCH_BYTES: u32 = 1 << 20;

/// Between two rounds, whatever the rate.
const ROUND_PAUSE: Duration = Duration::from_secs(10);

/// Starts the scrub, if one is wanted.
pub(super) fn start(shard: &Rc<Shard>) {
    let rate = shard.config().scrub_bytes_per_second / u64::from(shard.shards());
    if shard.config().scrub_bytes_per_second == 0 {
        return;
    }
    let shard = shard.clone();
    spawn(Queue::Back, "scrub", async move {
        loop {
            let replicas: Vec<Rc<Replica>> = shard.replicas.borrow().values().cloned().collect();
            for replica in replicas {
                shard.scrub(&replica, rate.max(1)).await;
                if shard.is_stopping() {
                    return;
                }
            }
            shard.sleep(ROUND_PAUSE).await;
        }
    })
    .detach();
}

impl Shard {
    async fn scrub(self: &Rc<Self>, replica: &Rc<Replica>, bytes_per_second: u64) {
        let directories = self.settings.directories.clone();
        let mut position = None;
        loop {
            let job = replica.with(|partition| partition.log().scrub_job(position, STRETCH_BYTES));
            let Ok(Some(job)) = job else { return };
            let outcome = directories.readers.run("scrub", move || run(job)).await;
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(error) => {
                    self.note_read_error(replica, &error);
                    return;
                }
            };
            let Ok(Some(scrubbed)) = replica.with(|partition| partition.log().finish_scrub(outcome)) else {
                return;
            };
            for finding in &scrubbed.findings {
                directories.counters.scrub_findings.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    partition = %replica.topic_partition,
                    path = %finding.path.display(),
                    position = finding.position,
                    offset = %finding.offset,
                    "the scrub found damage: {}",
                    finding.why
                );
            }
            position = Some(scrubbed.next);
            directories.counters.scrubbed_bytes.fetch_add(scrubbed.bytes, Ordering::Relaxed);
            let pause = Duration::from_secs(scrubbed.bytes).as_nanos() / u128::from(bytes_per_second);
            self.sleep(Duration::from_nanos(u64::try_from(pause).unwrap_or(u64::MAX))).await;
            if self.is_stopping() {
                return;
            }
        }
    }
}

/// Reads the stretch, and takes out of the page cache again what was not in it before. Blocks.
fn run(job: ScrubJob<OsFiles>) -> Result<ScrubOutcome<OsFiles>, LogError> {
    let was_cached = job.is_cached();
    let outcome = job.run()?;
    if let (false, Some((file, from, to))) = (was_cached, &outcome.read) {
        cached::forget(&***file, u64::from(*from), u64::from(to - from));
    }
    Ok(outcome)
}
