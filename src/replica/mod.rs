//! What this broker is among others: its life as the controller sees it ([`Lifecycle`], pure, on shard 0), and what it
//! does for the partitions that others lead: it fetches their records.
//!
//! Each shard has a [`Fetchers`] for the replicas that it owns, and in it a task for each broker that leads some of
//! them: with a connection of its own it asks for all of them at once, again and again, and hands what comes to the
//! shard. What it asks for and what it makes of the answers is decided by a [`Fetcher`], which is pure.

mod connection;
mod fetcher;
mod fetchers;
mod lifecycle;

pub use fetcher::{Fetcher, Step, Task};
pub use fetchers::Fetchers;
pub use lifecycle::{Effect, Lifecycle};
