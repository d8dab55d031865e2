//! Replication between brokers: empty until a cluster is built. A single node has no follower.
