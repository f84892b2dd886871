//! `attest judge`: kernels that are bad on purpose are caught for what they are, and the scaffolds pass.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ended, attest, run};
use rstest::rstest;

/// The compiler of the `simt` device also compiles C.
fn c_compiler() -> Command {
    let mut command = Command::new(std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned()));
    command.args(["-x", "c", "-std=gnu11", "-fPIC", "-shared"]);
    command
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A kernel of this name, compiled into a directory that lives as long as the result.
fn built(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let library = dir.path().join("kernel.so");
    let mut command = c_compiler();
    command.args(["-O1", "-Wall", "-Wextra", "-Werror"]);
    for include in ["tests/foreign_kernels", "scaffold/c", "scaffold/shared", "../kernels/abi"] {
        command.arg("-I").arg(here(include));
    }
    command.arg(here(&format!("tests/foreign_kernels/{name}.c"))).arg("-o").arg(&library);
    let ended = run(command.args(["-x", "none", "-lm", "-lpthread"]));
    assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
    (dir, library)
}

fn judged(library: &Path, arguments: &[&str]) -> Ended {
    run(attest(["judge"]).arg(library).args(["--tier", "smoke", "--jobs", "1"]).args(arguments))
}

/// Few cases, all small.
const FEW: &[&str] = &["f32 kv=f32 d8"];

#[rstest]
#[case::crash("crash", FEW, "CRASHED  kernel on host   SIGSEGV")]
#[case::hang("hang", &["f32 kv=f32 d8", "unbind-inner", "--timeout", "2s"], "TIMED OUT  kernel on host   no answer in 2.0 s; killed")]
#[case::past_the_end("past_the_end", FEW, "past the end of out (896 bytes): byte 896")]
#[case::before_the_start(
    "before_the_start",
    FEW,
    "out of bounds: wrote 1 bytes before the start of out: first byte -2"
)]
#[case::long_message("long_message", &["group=invalid"], "out of bounds: wrote past the error_bytes of the message")]
#[case::modified_input(
    "modified_input",
    FEW,
    "input written: wrote byte 0 of block_table, which is an input"
)]
#[case::unwritten(
    "unwritten",
    FEW,
    "8 of 224 elements of out were not written   first at request 0, row 6, head 3, dim 0"
)]
#[case::remembered("remembered", FEW, "224 of 224 elements of out are a remembered answer")]
#[case::late("late", FEW, "bytes of out changed after the call had returned")]
#[case::leak("leak", FEW, " bytes more of memory with every call")]
#[case::message_left(
    "message_left",
    FEW,
    "lingering error: returned success and left the message `launch failed, trying another way`"
)]
#[case::error_left("error_left", FEW, "lingering error: a good call after a refused one returns 3")]
#[case::rounding_left(
    "rounding_left",
    FEW,
    "lingering error: left the rounding or flush-to-zero mode of its caller changed"
)]
#[case::chance("chance", FEW, "depends on: chance: two runs of the same call differ")]
#[case::addresses("addresses", FEW, "depends on: where the buffers lie in memory")]
#[case::version("version", FEW, "struct version: the kernel was built for version 2 of attest_kernel.h")]
#[case::any_version("any_version", FEW, "attest_paged_attention returned 0 for a struct of version 2")]
#[case::forgetful("forgetful", FEW, "attest_info answers differently when it is asked again")]
#[case::nothing("nothing", FEW, "does not export attest_info")]
#[case::no_refusals("no_refusals", &["group=invalid"], "accepted, although softmax_scale must be refused")]
#[case::silent("silent", &["group=unsupported"], "accepted, although what its info does not declare must be refused")]
#[case::boastful("boastful", &["flag=sinks"], "a valid case was refused for want of support, which its info declares")]
#[case::wrong("wrong", &["flag=window"], "MISMATCH  kernel on host")]
#[case::greedy("greedy", FEW, "got NaN")]
fn a_bad_kernel_is_caught_for_what_it_is(
    #[case] name: &str,
    #[case] filters: &[&str],
    #[case] finding: &str,
) {
    let (_dir, library) = built(name);
    let ended = judged(&library, filters).expect(1).says(finding);
    let last = ended.stdout.lines().last().unwrap_or_default();
    assert!(last.ends_with(" skipped") && !last.contains(" 0 failed"), "{last}");
    // Every finding comes with the command that shows it again.
    assert!(ended.stdout.contains("  replay: attest "), "{}", ended.stdout);
}

#[test]
fn a_kernel_that_prints_is_judged_all_the_same() {
    let (_dir, library) = built("talkative");
    judged(&library, FEW).expect(0).says("0 failed");
}

/// Cases are moved to the little that it serves, and everything else is asked for once.
#[test]
fn a_kernel_that_serves_little_meets_what_it_serves_and_refuses_the_rest() {
    let (_dir, library) = built("narrow");
    let ended = judged(&library, &[]).expect(0);
    let ended = ended.says("attention bf16 kv=  right  bf16 (").says("head dim            right  128 (");
    let ended = ended.says("refuses             right  invalid calls (4), what it does not declare (");
    assert!(!ended.summary().starts_with("0 passed") && ended.summary().contains(" 0 failed, "), "{ended:?}");
}

#[test]
fn bits_that_vary_with_the_batch_are_a_finding_only_where_they_are_promised_not_to() {
    let arguments = ["--tier", "standard", "group=metamorphic", "bf16 kv=bf16"];
    let (_dir, fickle) = built("fickle");
    let ended = run(attest(["judge"]).arg(&fickle).args(arguments)).expect(1);
    ended.says("depends on: the page size").says("depends on: the other requests of the batch");
    let (_dir, varying) = built("varying");
    run(attest(["judge"]).arg(&varying).args(arguments)).expect(0).says(" 0 failed, ");
}

#[test]
fn a_finding_replays() {
    let (_dir, library) = built("wrong");
    let ended = judged(&library, &["flag=window"]).expect(1);
    let replay =
        ended.stdout.lines().find_map(|line| line.trim().strip_prefix("replay: attest replay --kernel "));
    let line = replay.and_then(|words| words.split('\'').nth(1)).expect("a replay line").to_owned();
    let again = run(attest(["replay", "--kernel"]).arg(&library).arg(&line)).expect(1);
    again.says("MISMATCH  kernel on host").says(&line).says("0 passed, 1 failed, 0 skipped");
}

#[test]
fn a_hanging_kernel_ends_the_run_after_three_calls() {
    let (_dir, library) = built("hang");
    let ended = run(attest(["judge"]).arg(&library).args([
        "--tier",
        "smoke",
        "--timeout",
        "200ms",
        "--jobs",
        "1",
        "group=formats",
    ]));
    ended.expect(1).says("calls did not end in time").says("skipped: ").says("0 passed, ");
}

#[test]
fn files_that_are_no_libraries_are_no_verdict() {
    run(&mut attest(["judge", "no/such/kernel.so"])).expect(2).complains("no/such/kernel.so");
    run(attest(["judge"]).arg(here("Cargo.toml")))
        .expect(3)
        .complains("cannot be loaded")
        .says("0 passed, 0 failed, 0 skipped");
}

/// Hides any card that this machine has.
#[test]
fn a_kernel_for_a_card_needs_one() {
    let (_dir, library) = built("for_a_card");
    let mut command = attest(["judge"]);
    let ended = run(command.arg(&library).env("CUDA_VISIBLE_DEVICES", "")).expect(3);
    ended.complains("needs a card").says("0 passed, 0 failed, 0 skipped");
}

#[test]
fn reports_hold_the_capabilities() {
    let (dir, library) = built("silent");
    let (json, junit) = (dir.path().join("report.json"), dir.path().join("report.xml"));
    let reports = [format!("json={}", json.display()), format!("junit={}", junit.display())];
    let arguments = ["flag=softcap", "--report", &reports[0], "--report", &reports[1]];
    judged(&library, &arguments).expect(1);
    let json = std::fs::read_to_string(json).expect("the report");
    assert!(json.contains("\"capabilities\"") && json.contains("refuses what it does not declare"), "{json}");
    assert!(std::fs::read_to_string(junit).expect("the report").contains("failures=\"1\""));
}

#[test]
fn the_header_is_printed() {
    let ended = run(&mut attest(["header"])).expect(0);
    assert_eq!(ended.stdout, kernels::abi::HEADER);
}

/// A scaffold, written by the command.
fn scaffold(language: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let ended = run(attest(["new-kernel", "--lang", language]).arg(dir.path().join("mine"))).expect(0);
    ended.says("attest judge ");
    dir
}

#[test]
fn the_c_scaffold_builds_and_passes() {
    let dir = scaffold("c");
    let mine = dir.path().join("mine");
    let mut command = c_compiler();
    let ended = run(command
        .args([
            "-std=c11",
            "-fvisibility=hidden",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "kernel.c",
        ])
        .args(["-o", "libkernel.so", "-x", "none", "-lm"])
        .current_dir(&mine));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let library = mine.join("libkernel.so");
    let ended = run(attest(["judge"]).arg(&library).args(["--tier", "smoke"])).expect(0);
    ended.says("attention bf16 kv=  right  bf16 (").says(" passed, 0 failed, 0 skipped");
    // Times come after the verdict, and the summary stays the last line.
    let timed = run(attest(["judge"]).arg(&library).args(["--tier", "smoke", "--bench"]).args(FEW)).expect(0);
    let timed = timed.says("decode, 16 requests").says(" us median");
    assert_eq!(timed.summary(), "3 passed, 0 failed, 0 skipped");
    // It does not write over what is there.
    run(attest(["new-kernel", "--lang", "c"]).arg(&mine)).expect(2).complains("exists");
}

#[test]
fn the_rust_scaffold_builds_and_passes() {
    let dir = scaffold("rust");
    let mine = dir.path().join("mine");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let ended = run(Command::new(cargo)
        .args(["build", "--release", "--offline", "--quiet"])
        .env("CARGO_TARGET_DIR", mine.join("target"))
        .env("RUSTFLAGS", "-Dwarnings")
        .current_dir(&mine));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let library = mine.join("target/release/libkernel.so");
    run(attest(["judge"]).arg(&library).args(["--tier", "smoke"]))
        .expect(0)
        .says(" passed, 0 failed, 0 skipped");
}
