//! `kuring-metadata.identity`: which seat the log beside it has, and that it has begun. A log that is missing beside it was
//! emptied.

use std::path::PathBuf;
use std::rc::Rc;

use openraft::async_runtime::WatchReceiver as _;

use super::leadership::Raft;
use super::quorum::OpenError;
use super::types::Seat;
use super::voters::VoterKey;
use crate::io::Files;
use crate::io::runtime::{self, Queue};
use crate::io::threads::FileThreads;

const BYTES_MAX: usize = 4 << 10;
const JOINING: &str = "joining=true";

/// What it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownSeat {
    pub seat: Seat,
    /// The seat was given, and nothing was in the log yet.
    pub is_joining: bool,
}

/// The file.
#[derive(Clone)]
pub struct SeatFile<F> {
    pub files: F,
    pub path: PathBuf,
}

impl<F: Files> SeatFile<F> {
    /// Blocking.
    pub fn read(&self) -> Result<Option<KnownSeat>, OpenError> {
        let io_error = |error| OpenError::Io { path: self.path.clone(), error };
        if !self.files.exists(&self.path).map_err(io_error)? {
            return Ok(None);
        }
        let contents = self.files.read_small(&self.path, BYTES_MAX).map_err(io_error)?;
        let text = String::from_utf8_lossy(&contents);
        let seat = text.lines().find_map(|line| line.strip_prefix("seat=")?.parse().ok()).map(Seat);
        let is_joining = text.lines().any(|line| line == JOINING);
        match seat {
            Some(seat) => Ok(Some(KnownSeat { seat, is_joining })),
            None => {
                Err(OpenError::Identity { path: self.path.clone(), reason: "it names no seat".to_owned() })
            }
        }
    }

    pub async fn write(
        &self,
        threads: &FileThreads,
        key: &VoterKey,
        seat: Seat,
        is_joining: bool,
    ) -> Result<(), OpenError> {
        let mut text = format!("seat={seat}\ndirectory.id={}\n", key.directory);
        if is_joining {
            text.push_str(&format!("{JOINING}\n"));
        }
        let Self { files, path } = self.clone();
        let write = move || {
            files
                .write_atomically(&path, text.as_bytes())
                .map_err(|error| OpenError::Io { path: path.clone(), error })
        };
        threads.run("raft-open", write).await
    }

    /// As soon as the log has an entry.
    pub fn write_later(
        self,
        raft: &Raft<F>,
        threads: FileThreads,
        key: VoterKey,
        seat: Seat,
        on_failure: Rc<dyn Fn(&str)>,
    ) {
        let mut metrics = raft.metrics();
        runtime::spawn(Queue::Control, "seat's file", async move {
            while metrics.borrow_watched().last_log_index.is_none() {
                if metrics.changed().await.is_err() {
                    return;
                }
            }
            if let Err(error) = self.write(&threads, &key, seat, false).await {
                on_failure(&error.to_string());
            }
        })
        .detach();
    }
}
