//! kuring: a Kafka-protocol broker, thread per core on io_uring.
//!
//! Each module may use only those above it in this list; `tests/tidy.rs` checks it.
//! `docs/ARCHITECTURE.md` tells how they work together.

pub mod base;
pub mod config;
pub mod wire;

pub mod timer;

pub mod io;

pub mod peer;

pub mod log;

pub mod partition;

pub mod share;

pub mod metadata;

pub mod coordinator;

pub mod raft;

pub mod shard;

pub mod replica;

pub mod api;

pub mod net;

pub mod admin;

pub mod client;
pub mod perf;
pub mod trace;

pub mod server;

pub mod cli;
