//! What the fuzz targets run: functions from bytes to nothing, which must return for every input. cargo-fuzz calls
//! them from `fuzz_targets`, `tests/fuzz_corpus.rs` replays the kept corpus through them. They use only what is
//! public; an answer that contradicts itself is a panic, and so is memory beyond what the input can justify
//! (`fuzz/run` sets the limits).

mod checkpoints;
mod input;
mod log;
mod record_batches;
mod requests;
mod settings;
mod state_records;

pub use requests::decode as decode_request;

/// Returns for every input, or has found something.
type Body = fn(&[u8]);

/// Every target by its name, which is also its corpus' folder.
pub const TARGETS: &[(&str, Body)] = &[
    ("checkpoints", checkpoints::checkpoints),
    ("codecs", record_batches::codecs),
    ("frames", requests::frames),
    ("hot_path", requests::hot_path),
    ("indexes", log::indexes),
    ("log_recovery", log::recovery),
    ("producer_snapshots", log::producer_snapshots),
    ("properties", settings::properties),
    ("record_batches", record_batches::batches),
    ("requests", requests::requests),
    ("state_records", state_records::state_records),
    ("validation", record_batches::validation),
];

/// Runs the target of this name; there must be one.
pub fn run(name: &str, data: &[u8]) {
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    let (_, body) = found.unwrap_or_else(|| panic!("no fuzz target is called {name}"));
    body(data);
}
