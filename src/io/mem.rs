//! (being written) The in-memory, fault-injecting file system.
