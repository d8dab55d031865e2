//! Replays the kept corpus of every fuzz target, `fuzz/corpus/<target>`: what a fuzzer found interesting once must
//! not come to harm again. `fuzz/run` looks for more.

#[path = "../fuzz/src/lib.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kuring::base::random::Random;
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

/// What a fuzzer without feedback does, in every run of the tests: `KURING_FUZZ_MUTATIONS` per input.
#[test]
fn mutations_of_the_corpus_pass() {
    let count = std::env::var("KURING_FUZZ_MUTATIONS").map_or(20, |count| count.parse().expect("a number"));
    let seed = Random::from_os().next_u64();
    let mut random = Random::seeded(seed);
    for (target, body) in targets::TARGETS {
        let inputs: Vec<Vec<u8>> = inputs(target).iter().map(|path| std::fs::read(path).unwrap()).collect();
        for input in &inputs {
            let mut mutated = input.clone();
            for number in 0..count {
                // Most begin with a kept input, some with what came of it before.
                if number % 4 == 0 {
                    mutated.clone_from(input);
                }
                let other = &inputs[random.below(inputs.len() as u64) as usize];
                mutate(&mut mutated, other, &mut random);
                let outcome = catch_unwind(AssertUnwindSafe(|| body(&mutated)));
                assert!(outcome.is_ok(), "{target} fails on {mutated:02x?}");
            }
        }
    }
}

fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let at = random.below(input.len() as u64 + 1) as usize;
        match random.below(6) {
            0 => input.insert(at, random.next_u64() as u8),
            1 => input.truncate(at),
            2 => {
                let from = random.below(other.len() as u64 + 1) as usize;
                input.splice(at.., other[from..].iter().copied());
            }
            _ if at == input.len() => {}
            3 => input[at] ^= 1 << random.below(8),
            4 => input[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
            _ => drop(input.remove(at)),
        }
    }
    input.truncate(4096);
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
