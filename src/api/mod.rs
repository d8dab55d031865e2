//! (being written)

pub mod configs;
