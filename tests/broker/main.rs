//! A running broker seen by its clients: librdkafka and a raw socket. One program, so that the harness is built once
//! and what no test uses is noticed. `KURING_TEST_BROKER=kafka` runs the same tests against Apache Kafka.

mod admin;
mod bad_input;
mod checkpoints;
mod cluster;
mod cold_reads;
mod commands;
mod compaction;
mod configs;
mod consumer_groups;
mod crash;
mod crowd;
mod exactly_once;
mod exactly_once_kills;
mod faults;
mod fetch;
mod group_rules;
mod groups;
mod harness;
mod known_cases;
mod limits;
mod log_dirs;
mod member_connections;
mod moves;
mod newest_versions;
mod off_owner;
mod offsets;
mod produce;
mod protocol;
mod restart;
mod share_groups;
mod topic_ids;
mod topics;
mod transaction_bounds;
mod transaction_rules;
mod transactions;
