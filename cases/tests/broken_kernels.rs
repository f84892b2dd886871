//! The kernels' text is broken on purpose, and the verdict must say what is wrong and where.

mod common;

use common::{Ended, KernelSources, attest, run};

/// Three tiles, two request-sized tails, an fp8 cache with a scale: every part of the scalar kernel matters.
const CASE: &str = "prefill f32 kv=e4m3 h4/2 d32 page16 NHD causal q=[19] kv=[150] kscale=0.25 seed=7";

fn replay(sources: &KernelSources, extra: &[&str], line: &str) -> Ended {
    let arguments = ["replay", "--arm", "scalar"].iter().chain(extra).chain([&line]);
    run(attest(arguments).env("ATTEST_KERNEL_DIR", sources.path()))
}

#[test]
fn the_unchanged_text_passes() {
    let ended = replay(&KernelSources::copy(), &[], CASE).expect(0);
    assert_eq!(ended.summary(), "1 passed, 0 failed, 0 skipped");
}

#[test]
fn every_missing_barrier_is_a_race_between_two_source_lines() {
    let barriers = KernelSources::copy().read("scalar.cu").matches("__syncthreads();").count();
    assert!(barriers >= 3, "the scalar kernel has {barriers} barriers");
    for nth in 0..barriers {
        let sources = KernelSources::copy().with_change("scalar.cu", nth, "__syncthreads();", ";");
        let ended = replay(&sources, &[], CASE)
            .expect(1)
            .says("DEVICE ERROR  scalar on simt   race in shared memory");
        let sites = |prefix: &str| ended.stdout.lines().filter(|l| l.trim().starts_with(prefix)).count();
        assert!(
            sites("at scalar.cu:") > 0 && sites("and scalar.cu:") > 0,
            "barrier {nth}:\n{}",
            ended.stdout
        );
        assert_eq!(ended.summary(), "0 passed, 1 failed, 0 skipped");
    }
}

#[test]
fn one_row_too_many_in_the_tail_is_out_of_bounds_with_allocation_and_offset() {
    // The row after the request's last one is written to lse and out …
    let written =
        KernelSources::copy().with_change("scalar.cu", 0, "index < work.q_len ?", "index <= work.q_len ?");
    // 19 rows of 4 heads in f32 are 304 bytes of lse.
    replay(&written, &[], CASE)
        .expect(1)
        .says("out of bounds")
        .says("at offset 304 of an allocation of 304 bytes (lse)")
        .says("at scalar.cu:");
    // … or read from q.
    let read = KernelSources::copy();
    let text = read.read("scalar.cu");
    let nth = text.matches("if (index < work.q_len)").count() - 1;
    let read = read.with_change("scalar.cu", nth, "if (index < work.q_len)", "if (index <= work.q_len)");
    replay(&read, &[], CASE)
        .expect(1)
        .says("at offset 9728 of an allocation of 9728 bytes")
        .says("at scalar.cu:");
}

#[test]
fn a_dropped_k_scale_shows_the_elements() {
    let scale = "a.softmax_scale * (a.k_scales ? a.k_scales[work.kv_head] : a.k_scale)";
    let sources = KernelSources::copy().with_change("scalar.cu", 0, scale, "a.softmax_scale");
    let ended = replay(&sources, &[], CASE).expect(1);
    let ended = ended.says("MISMATCH  scalar on simt   2432 of 2432 elements   worst at request 0, row ");
    ended
        .says("allowed ")
        .says("pattern: every element")
        .says(&format!("replay: attest replay --device simt --arm scalar '{CASE}'"));
}

#[test]
fn one_key_too_many_is_found_by_the_poison_behind_the_last_key() {
    let text = KernelSources::copy().read("attention.cuh");
    assert!(text.contains("i64 end = kv_len;"), "attention.cuh has changed");
    let sources =
        KernelSources::copy().with_change("attention.cuh", 0, "i64 end = kv_len;", "i64 end = kv_len + 1;");
    let line = "decode f32 kv=f32 h2/1 d32 page16 NHD q=[1] kv=[21] seed=7";
    replay(&sources, &[], line).expect(1).says("MISMATCH  scalar on simt").says("got NaN");
}

#[test]
fn a_kernel_that_does_not_compile_is_a_verdict_with_the_compilers_words() {
    let sources = KernelSources::copy().with_change(
        "scalar.cu",
        0,
        "ATTEST_SHARED(shared);",
        "ATTEST_SHARED(shared) no_such_type x;",
    );
    let ended = replay(&sources, &[], CASE).expect(1);
    ended
        .says("DOES NOT COMPILE")
        .says("no_such_type")
        .says("scalar.cu:")
        .says("0 passed, 1 failed, 0 skipped");
}

/// Misbehaviour that depends on head_dim, so that one run meets all kinds between healthy cases.
const MISBEHAVIOUR: &str = "ATTEST_SHARED(shared);
    const int dim = p.attention.head_dim_k == p.attention.head_dim_v ? p.attention.head_dim_k : 0;
    if (dim == 40) { __builtin_trap(); }
    if (dim == 72) { for (volatile int endless = 0; endless == 0;) {} }
    if (dim == 96 && threadIdx.x == 0) { p.attention.lse[1 << 20] = 1.0f; }
    if (dim == 112) { return; }";

/// Cases of the catalogue that differ in head_dim.
const FILTER: &str = "prefill bf16 kv=bf16 h4/2 d";

fn misbehave(extra: &[&str]) -> Ended {
    let sources = KernelSources::copy().with_change("scalar.cu", 0, "ATTEST_SHARED(shared);", MISBEHAVIOUR);
    let arguments = ["verify", FILTER, "group=dims", "--arm", "scalar", "--jobs", "1", "--timeout", "3s"];
    run(attest(arguments.iter().chain(extra)).env("ATTEST_KERNEL_DIR", sources.path())).expect(1)
}

/// The verdict's first line of the case with this head_dim.
fn verdict_of(ended: &Ended, head_dim: &str) -> String {
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let replay = lines.iter().position(|l| l.contains("replay:") && l.contains(&format!(" {head_dim} ")));
    let replay = replay.unwrap_or_else(|| panic!("no failure at {head_dim}:\n{}", ended.stdout));
    let headline = lines[..replay].iter().rfind(|l| l.contains(" on simt "));
    (*headline.expect("a failure has a headline")).to_owned()
}

#[test]
fn a_crash_a_hang_and_a_stray_write_cost_one_case_each() {
    let ended = misbehave(&[]);
    assert_eq!(verdict_of(&ended, "d40"), "CRASHED  scalar on simt   SIGILL (illegal instruction)");
    assert_eq!(verdict_of(&ended, "d72"), "TIMED OUT  scalar on simt   no answer in 3.0 s; killed");
    assert_eq!(verdict_of(&ended, "d96"), "DEVICE ERROR  scalar on simt   out of bounds");
    assert!(verdict_of(&ended, "d112").contains("elements of out were not written"), "{}", ended.stdout);
    assert!(ended.summary().ends_with(" passed, 4 failed, 0 skipped"), "{}", ended.summary());
    assert!(!ended.summary().starts_with("0 passed"), "{}", ended.summary());
}

#[test]
fn a_stray_write_of_an_unchecked_kernel_is_a_named_crash() {
    let ended = misbehave(&["--fast"]);
    assert!(verdict_of(&ended, "d96").starts_with("CRASHED  scalar on simt   SIG"), "{}", ended.stdout);
    assert!(ended.summary().ends_with(" passed, 4 failed, 0 skipped"), "{}", ended.summary());
}
