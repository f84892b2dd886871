//! The judgement itself: an executor that runs the real kernel and then spoils one thing, and the verdict must name it.

use std::time::Duration;

use cases::case::Case;
use cases::executor::protocol::Status;
use cases::executor::{Executor, InProcess, Job, Operation, Outcome, PoolUse, Reply};
use cases::inputs::Inputs;
use cases::run::{Checking, STORE_ARM, Settings, run_case};
use cases::verdict::{Class, Failure, Verdict};
use kernels::device::DeviceKind;

/// Runs jobs for real and lets a closure change the `n`-th reply.
struct Spoiled<F> {
    inner: InProcess,
    run: usize,
    spoil: F,
}

impl<F: FnMut(usize, &Job, &mut Reply)> Executor for Spoiled<F> {
    fn run(&mut self, job: &Job, limit: Duration) -> Outcome {
        let mut outcome = self.inner.run(job, limit);
        if let Outcome::Replied(reply) = &mut outcome {
            (self.spoil)(self.run, job, reply);
        }
        self.run += 1;
        outcome
    }
}

/// Index of a named buffer among those that come back.
fn returned(job: &Job, name: &str) -> usize {
    job.buffers
        .iter()
        .filter(|b| b.returned)
        .position(|b| b.name == name)
        .unwrap_or_else(|| panic!("no buffer {name}"))
}

fn settings() -> Settings {
    Settings {
        device: DeviceKind::Simt,
        checking: Checking::Never,
        schedule: None,
        limit: Duration::from_secs(60),
    }
}

fn judge(line: &str, spoil: impl FnMut(usize, &Job, &mut Reply)) -> Verdict {
    let case: Case = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
    let arm = if line.starts_with("store") { STORE_ARM } else { "scalar" };
    run_case(&case, arm, &mut Spoiled { inner: InProcess::default(), run: 0, spoil }, &settings())
}

fn failures(verdict: Verdict) -> Vec<Failure> {
    assert_eq!(verdict.class(), Class::Failed);
    match verdict {
        Verdict::Mismatch { failures } => failures,
        other => panic!("{other:?}"),
    }
}

fn f32_at(bytes: &mut [u8], element: usize) -> &mut [u8; 4] {
    (&mut bytes[element * 4..element * 4 + 4]).try_into().expect("four bytes")
}

fn change(bytes: &mut [u8], element: usize, change: impl FnOnce(f32) -> f32) {
    let word = f32_at(bytes, element);
    *word = change(f32::from_le_bytes(*word)).to_le_bytes();
}

const PLAIN: &str = "mixed f32 kv=f32 h4/2 d32 page4 NHD causal q=[3,2] kv=[9,6] seed=1";

#[test]
fn untouched_replies_pass() {
    assert!(
        matches!(judge(PLAIN, |_, _, _| {}), Verdict::Pass { worst_share } if worst_share > 0.0 && worst_share < 1.0)
    );
}

#[test]
fn a_wrong_element_is_named_with_its_place() {
    // Row 1 of request 1 is row 4 of the batch; 4 heads of 32.
    let element = (4 * 4 + 2) * 32 + 5;
    let failures = failures(judge(PLAIN, |_, job, reply| {
        change(&mut reply.buffers[returned(job, "out")], element, |x| x + 0.01)
    }));
    let [Failure::Elements { output, wrong, of, worst, pattern, .. }] = &failures[..] else {
        panic!("{failures:?}")
    };
    assert_eq!((output.as_str(), *wrong, *of), ("out", 1, 5 * 4 * 32));
    let place = (worst.place.request, worst.place.row, worst.place.head, worst.place.dim);
    assert_eq!(place, (1, 1, 2, Some(5)));
    assert_eq!(worst.error, "1.0e-2");
    assert!(pattern.as_ref().unwrap().starts_with("only request 1: "), "{pattern:?}");
}

#[test]
fn a_nan_is_a_mismatch() {
    let failures = failures(judge(PLAIN, |_, job, reply| {
        change(&mut reply.buffers[returned(job, "out")], 0, |_| f32::NAN)
    }));
    assert!(
        matches!(&failures[0], Failure::Elements { wrong: 1, worst, .. } if worst.got == "NaN"),
        "{failures:?}"
    );
}

#[test]
fn an_lse_in_base_two_is_recognised() {
    let failures = failures(judge(PLAIN, |_, job, reply| {
        let lse = &mut reply.buffers[returned(job, "lse")];
        (0..lse.len() / 4).for_each(|i| change(lse, i, |x| x * std::f32::consts::LOG2_E));
    }));
    let [Failure::Elements { output, explanation, .. }] = &failures[..] else { panic!("{failures:?}") };
    assert_eq!((output.as_str(), explanation.as_deref()), ("lse", Some("the value is the base-2 logarithm")));
}

#[test]
fn an_element_that_was_not_written_is_named() {
    let failures = failures(judge(PLAIN, |_, job, reply| {
        let out = returned(job, "out");
        let index = job.buffers.iter().position(|b| b.name == "out").unwrap();
        reply.buffers[out][400..404].copy_from_slice(&job.buffers[index].bytes[400..404]);
    }));
    let Failure::Unwritten { output, elements, first, .. } = &failures[0] else { panic!("{failures:?}") };
    assert_eq!((output.as_str(), *elements, first.row, first.head, first.dim), ("out", 1, 0, 3, Some(4)));
}

#[test]
fn a_changed_input_is_named_with_its_byte() {
    for name in ["q", "k_cache", "v_cache", "block_table", "seq_lens", "query_start_loc"] {
        let failures = failures(judge(PLAIN, |run, job, reply| {
            if run == 0 {
                reply.buffers[returned(job, name)][3] ^= 0x40;
            }
        }));
        assert_eq!(failures, [Failure::Modified { buffer: name.to_owned(), bytes: 1, first: 3 }]);
    }
}

#[test]
fn a_run_that_depends_on_what_must_not_matter_is_named() {
    for (run, on) in [(1, "zero"), (2, "infinity"), (3, "2^100"), (4, "upper bounds of the lengths")] {
        let failures = failures(judge(PLAIN, |this, job, reply| {
            if this == run {
                // One of the runs has gaps between the rows, and one before the first.
                let Operation::Attention { call, .. } = &job.operation else { panic!("not attention") };
                reply.buffers[returned(job, "out")][call.out.offset as usize] ^= 1;
            }
        }));
        let [Failure::Depends { on: found, output, elements: 1, .. }] = &failures[..] else {
            panic!("{failures:?}")
        };
        assert!(found.contains(on) && output == "out", "{found}");
    }
}

#[test]
fn one_lost_key_shows_in_the_uniform_probe_within_the_tolerance_of_the_bound() {
    let line = "prefill f32 kv=e4m3 h1/1 d8 page4 NHD q=[1] kv=[101] data=uniform-q0 seed=1";
    let inputs = Inputs::generate(&line.parse().unwrap()).unwrap();
    let column = |dim: usize| inputs.values[0].slice(ndarray::s![.., 0, dim]).sum();
    // The mean over 100 keys instead of 101, where the lost key is nearly the mean.
    let failures = failures(judge(line, |_, job, reply| {
        let lost = inputs.values[0][[100, 0, 0]];
        change(&mut reply.buffers[returned(job, "out")], 0, |_| (column(0) - lost) / 101.0);
    }));
    let probe = failures.iter().find_map(|f| match f {
        Failure::Probe { message, wrong: 1, of: 8 } => Some(message.clone()),
        _ => None,
    });
    let probe = probe.unwrap_or_else(|| panic!("{failures:?}"));
    assert!(probe.starts_with("request 0, row 0, head 0, dim 0: V sums to "), "{probe}");
}

#[test]
fn a_needle_says_what_was_read() {
    let line = "decode f32 kv=bf16 h2/2 d16 page4 NHD q=[1] kv=[30] data=needle:9 seed=1";
    let inputs = Inputs::generate(&line.parse().unwrap()).unwrap();
    let failures = failures(judge(line, |_, job, reply| {
        let out = &mut reply.buffers[returned(job, "out")];
        (0..16).for_each(|dim| change(out, 16 + dim, |_| inputs.values[0][[22, 1, dim]]));
    }));
    let Failure::Elements { explanation: Some(text), .. } = &failures[0] else { panic!("{failures:?}") };
    let (read, expected) = (inputs.pages.locate(0, 22), inputs.pages.locate(0, 9));
    let want = format!(
        "read page {} slot {} of KV head 1, expected page {} slot {} of KV head 1",
        read.0, read.1, expected.0, expected.1
    );
    assert_eq!(*text, want);
}

#[test]
fn a_neighbours_head_is_named() {
    let line = "decode f32 kv=bf16 h6/3 d16 page4 NHD q=[1] kv=[30] data=head-id seed=1";
    let failures = failures(judge(line, |_, job, reply| {
        let out = &mut reply.buffers[returned(job, "out")];
        (0..16).for_each(|dim| change(out, 5 * 16 + dim, |_| 1.0));
    }));
    let Failure::Elements { explanation: Some(text), .. } = &failures[0] else { panic!("{failures:?}") };
    assert_eq!(text, "query head 5 has the value of KV head 1, expected KV head 2");
}

#[test]
fn leaked_bytes_are_a_verdict() {
    let verdict = judge(PLAIN, |_, _, reply| reply.pool = PoolUse { before_bytes: 256, after_bytes: 768 });
    let Verdict::DeviceError { error: Some(error), .. } = &verdict else { panic!("{verdict:?}") };
    assert_eq!(error, "768 bytes of the pool are in use after the call, 256 before it");
}

const INVALID: &str =
    "decode f32 kv=f32 h4/2 d32 page4 NHD q=[1] kv=[9] win=-2,0 expect=reject:window_left seed=1";

#[test]
fn a_refusal_must_name_its_argument_launch_nothing_and_write_nothing() {
    assert!(matches!(judge(INVALID, |_, _, _| {}), Verdict::Pass { .. }));
    let other = failures(judge(INVALID, |_, _, reply| {
        reply.status = Status::Refused {
            argument: "window_left_over".to_owned(),
            message: "window_left_over is 1".to_owned(),
        };
    }));
    assert!(
        matches!(&other[..], [Failure::WrongRefusal { expected, .. }] if expected == "window_left"),
        "{other:?}"
    );
    let accepted = failures(judge(INVALID, |_, _, reply| reply.status = Status::Completed));
    assert_eq!(accepted, [Failure::NotRefused { argument: "window_left".to_owned() }]);
    let launched = failures(judge(INVALID, |_, _, reply| reply.launches = 2));
    assert_eq!(launched, [Failure::LaunchedThoughRefused { launches: 2 }]);
    let written = failures(judge(INVALID, |_, job, reply| reply.buffers[returned(job, "out")][7] = 0));
    assert_eq!(written, [Failure::Modified { buffer: "out".to_owned(), bytes: 1, first: 7 }]);
}

#[test]
fn a_valid_case_that_is_refused_fails_and_an_undeclared_gap_is_not_a_pass() {
    let refused = judge(PLAIN, |_, _, reply| {
        reply.status = Status::Refused { argument: "q".to_owned(), message: "q is odd".to_owned() };
    });
    assert!(matches!(&refused, Verdict::Rejected { argument, .. } if argument == "q"));
    assert_eq!(refused.class(), Class::Failed);
    let gap = judge(PLAIN, |_, _, reply| reply.status = Status::Unsupported { message: "no".to_owned() });
    assert_eq!(gap.class(), Class::UndeclaredSkip);
}

const STORE: &str =
    "store bf16 kv=e4m3 h2/2 d16 page4 NHD pad=5,1,2,3 slots=[0,5,-1,7] kv=[8] kscale=0.5 vscale=0.25 seed=9";

#[test]
fn a_wrong_code_a_touched_slot_and_a_touched_gap_are_named() {
    assert!(matches!(judge(STORE, |_, _, _| {}), Verdict::Pass { .. }));
    let inputs = cases::inputs::StoreInputs::generate(&STORE.parse().unwrap()).unwrap();
    // Slot 5 was stored, slot 6 was not.
    for (slot, word) in
        [(5, "page 1, slot 1, head 1, dim 7: code "), (6, "page 1, slot 2, head 1, dim 7: code ")]
    {
        let at = inputs.views.v.index(slot / 4, slot % 4, 1, 7);
        let failures =
            failures(judge(STORE, |_, job, reply| reply.buffers[returned(job, "v_cache")][at] ^= 0x21));
        let [Failure::Cache { tensor, wrong: 1, first, .. }] = &failures[..] else { panic!("{failures:?}") };
        assert!(tensor == "v" && first.starts_with(word), "{first}");
    }
    let gap = failures(judge(STORE, |_, job, reply| reply.buffers[returned(job, "k_cache")][2] ^= 1));
    let [Failure::Cache { tensor, first, .. }] = &gap[..] else { panic!("{gap:?}") };
    assert_eq!((tensor.as_str(), first.as_str()), ("unowned", "byte 2 of buffer 0"));
}

/// Ends every job in the same way.
struct Ends(fn() -> Outcome);

impl Executor for Ends {
    fn run(&mut self, _job: &Job, _limit: Duration) -> Outcome {
        (self.0)()
    }
}

#[test]
fn crashes_and_time_outs_become_their_verdicts() {
    let ends = |outcome| run_case(&PLAIN.parse().unwrap(), "scalar", &mut Ends(outcome), &settings());
    let crashed = ends(|| Outcome::Crashed { signal: "SIGSEGV".to_owned(), detail: String::new() });
    assert!(matches!(&crashed, Verdict::Crashed { signal, .. } if signal == "SIGSEGV"));
    let late = ends(|| Outcome::TimedOut { limit: Duration::from_millis(1500) });
    assert_eq!(late, Verdict::TimedOut { limit_ms: 1500 });
    let unavailable = ends(|| Outcome::Unavailable { message: "no process".to_owned() });
    assert_eq!(unavailable.class(), Class::NoVerdict);
}
