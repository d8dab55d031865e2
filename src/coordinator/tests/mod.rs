//! Tests of the whole coordinator through its interface, over a log in memory.

mod beats;
mod consumer_migration;
mod consumer_simulation;
mod consumer_table;
mod consumers;
mod expressions;
mod group_configs;
mod harness;
mod offsets;
mod ownership;
mod rebalance;
mod room;
mod share_table;
mod shares;
mod simulation;
mod static_members;
mod transactional_commits;
mod transitions;
