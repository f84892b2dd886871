//! The fuzz targets' entry points hold on the seed corpus and on many small changes of it. Fuzzing itself needs a nightly
//! compiler (`cargo +nightly fuzz run case_line` in `cases`); this does not.

use std::path::Path;
use std::time::{Duration, Instant};

use cases::{catalogue, fuzz};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A fuzz target: its folder in the corpus, and what it runs.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 2] = [("case_line", fuzz::case_line), ("metadata", fuzz::metadata)];

/// The committed inputs of a target.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// One to four changes: a byte, a piece left out or repeated, a piece of another input.
fn changed(rng: &mut ChaCha8Rng, inputs: &[Vec<u8>]) -> Vec<u8> {
    let below = |rng: &mut ChaCha8Rng, limit: usize| rng.next_u32() as usize % limit.max(1);
    let mut bytes = inputs[below(rng, inputs.len())].clone();
    for _ in 0..=below(rng, 4) {
        let at = below(rng, bytes.len());
        let end = (at + below(rng, 12)).min(bytes.len());
        match below(rng, 5) {
            0 if at < bytes.len() => bytes[at] = rng.next_u32() as u8,
            1 => drop(bytes.drain(at..end)),
            2 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            3 => {
                let other = &inputs[below(rng, inputs.len())];
                let from = below(rng, other.len());
                bytes.splice(at..end, other[from..(from + below(rng, 16)).min(other.len())].iter().copied());
            }
            _ => bytes.insert(at, rng.next_u32() as u8),
        }
    }
    bytes
}

/// Runs one input and says which it was if it does not hold.
fn run((name, target): Target, bytes: &[u8]) {
    let shown = || format!("{name}: {:?} ({})", bytes, String::from_utf8_lossy(bytes));
    assert!(std::panic::catch_unwind(|| target(bytes)).is_ok(), "{}", shown());
}

#[test]
fn targets_hold_on_their_corpus() {
    for target in TARGETS {
        let corpus = corpus(target.0);
        assert!(corpus.len() >= 10, "{}: {} inputs", target.0, corpus.len());
        corpus.iter().for_each(|bytes| run(target, bytes));
    }
    catalogue::entries().unwrap().iter().for_each(|entry| fuzz::case_line(entry.case.to_string().as_bytes()));
}

#[test]
fn targets_hold_on_changes_of_their_corpus() {
    // Long runs ask for more: `ATTEST_FUZZ_SECONDS=300 cargo test -p cases --test fuzz`.
    let seconds = std::env::var("ATTEST_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    for target in TARGETS {
        let inputs = corpus(target.0);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let start = Instant::now();
        let goes_on = |done: u32| match seconds {
            None => done < 20_000,
            Some(seconds) => start.elapsed() < Duration::from_secs(seconds),
        };
        let mut done = 0;
        while goes_on(done) {
            run(target, &changed(&mut rng, &inputs));
            done += 1;
        }
        println!("{}: {done} inputs", target.0);
    }
}

/// The checks of an accepted call can fail: here on one whose table names a page that the pool does not have.
#[test]
#[should_panic(expected = "[5, 0, 3, 1, 2, 99]")]
fn an_unsound_call_is_noticed() {
    let mut args = cases::bad_input::attention(kernels::tensor::DType::F32, kernels::tensor::DType::F32);
    args.host.block_table = Some(vec![5, 0, 3, 1, 2, 99]);
    args.host.seq_lens = Some(vec![40, 48]);
    args.max_seq_len = 48;
    fuzz::attention_is_sound(&args);
}
