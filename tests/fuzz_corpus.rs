//! Replays the kept corpus of every fuzz target, `fuzz/corpus/<target>`: what a fuzzer found interesting once must
//! not come to harm again. `fuzz/run` looks for more.

#[path = "../fuzz/src/lib.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kuring::wire::api::APIS;

/// All corpora together: they are for replay, not for storage.
const CORPUS_BYTES_MAX: u64 = 1 << 20;

fn inputs(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_input_of_the_corpus_passes() {
    for (target, body) in targets::TARGETS {
        let paths = inputs(target);
        assert!(!paths.is_empty(), "{target} has no corpus");
        for path in &paths {
            let input = std::fs::read(path).unwrap();
            let outcome = catch_unwind(AssertUnwindSafe(|| body(&input)));
            assert!(outcome.is_ok(), "{target} fails on {}", path.display());
        }
        println!("{target}: {} inputs", paths.len());
    }
}

#[test]
fn no_input_and_odd_ones_pass_too() {
    let odd = [vec![], vec![0], vec![0xff; 3], vec![0; 300], vec![0xff; 300], (0..=255).collect()];
    for (target, _) in targets::TARGETS {
        for input in &odd {
            targets::run(target, input);
        }
    }
}

#[test]
fn every_served_request_has_a_decoder_in_the_targets() {
    for api in APIS {
        for version in api.min_served..=api.max {
            targets::decode_request(api, version, &Bytes::new());
            targets::decode_request(api, version, &Bytes::from_static(&[0; 64]));
        }
    }
}

#[test]
fn the_corpus_is_small_and_each_folder_belongs_to_a_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut bytes = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(targets::TARGETS.iter().any(|(target, _)| *target == name), "{name} is no target");
        bytes += inputs(&name).iter().map(|path| path.metadata().unwrap().len()).sum::<u64>();
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "{bytes} bytes of corpus");
}
