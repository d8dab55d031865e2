//! Partitions on disk that the metadata does not know: left by a crash in the middle of a topic's deletion, or by a
//! directory that was away while the topic went. They are renamed to `-stray` and removed a long time after: whoever
//! put a directory of another origin here will want it back.

use std::rc::Rc;
use std::time::Duration;

use super::import;
use crate::base::clock::{self, Timestamp};
use crate::io::os::OsFiles;
use crate::io::runtime::{Queue, spawn};
use crate::metadata::Image;
use crate::shard::Shard;

/// How often old strays are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// Renames what the start found and no shard wanted.
pub(super) async fn put_aside(shard: &Rc<Shard>, image: &Image) {
    let directories = &shard.settings().directories;
    if image.topic_count() == 0 && !directories.start_list.is_empty() {
        // More likely the metadata was lost than every topic deleted. What the checkpoint files say of them stays,
        // too: it is theirs if the metadata comes back.
        tracing::error!(
            partitions = directories.start_list.len(),
            "there are partitions on disk and no topic in the metadata: they are left alone"
        );
        return;
    }
    if !directories.start_list.is_empty() && comes_from_kafka(shard).await {
        // Kafka's log of the metadata may have been torn or old when its topics were taken over.
        tracing::error!(
            partitions = directories.start_list.len(),
            "there are partitions on disk that no topic has, beside the metadata of a Kafka node: they are left alone; \
             move __cluster_metadata-0 away to have them put aside"
        );
        return;
    }
    let mut strays = directories.start_list.take_rest();
    strays.append(&mut directories.futures.take_rest());
    let found_some = !strays.is_empty();
    for entry in strays {
        let name = entry.found.topic_partition.clone();
        let threads = directories.threads.clone();
        let dir = entry.found.dir.clone();
        let renamed = threads.run("stray", {
            let directories = directories.clone();
            move || directories.list[entry.directory].log_dir.mark_future_stray(&dir, &name)
        });
        match renamed.await {
            Ok(path) => {
                directories.forget_found(&entry);
                tracing::warn!(
                    partition = %entry.found.topic_partition,
                    path = %path.display(),
                    "a partition that no topic has is put aside"
                );
            }
            Err(error) => tracing::error!("a stray partition cannot be renamed: {error}"),
        }
    }
    if found_some {
        // What the checkpoint files say of them must not meet a topic that comes under a name of theirs.
        shard.write_checkpoints().await;
    }
}

async fn comes_from_kafka(shard: &Rc<Shard>) -> bool {
    let dir = shard.config().metadata_log_dir.clone();
    shard.settings().directories.threads.run("strays", move || import::is_beside(&OsFiles, &dir)).await
}

/// Removes strays once they are older than `kuring.stray.retention.ms`.
pub(super) fn start_removal(shard: &Rc<Shard>) {
    let Some(retention_ms) = shard.config().stray_retention_ms else { return };
    let shard = shard.clone();
    spawn(Queue::Back, "strays", async move {
        loop {
            let before = clock::wall().0.saturating_sub(i64::try_from(retention_ms).unwrap_or(i64::MAX));
            let directories = shard.settings().directories.clone();
            let threads = directories.threads.clone();
            threads.run("remove strays", move || directories.remove_strays(Timestamp(before))).await;
            shard.sleep(LOOK_EVERY).await;
            if shard.is_stopping() {
                return;
            }
        }
    })
    .detach();
}
