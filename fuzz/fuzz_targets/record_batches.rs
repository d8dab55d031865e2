//! See `src/lib.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kuring_fuzz::run("record_batches", data));
