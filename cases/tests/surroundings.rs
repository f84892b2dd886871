//! Usage errors and failing surroundings: each a clear error with its exit code.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use common::{attest, run};

const CASE: &str = "decode f32 kv=f32 h2/1 d32 page16 NHD causal q=[1] kv=[5] seed=1";

#[test]
fn a_missing_compiler_is_no_verdict() {
    let ended = run(attest(["replay", CASE]).env("CXX", "/no/such/compiler")).expect(3);
    let ended = ended.complains("no C++ compiler: CXX names \"/no/such/compiler\"");
    assert!(ended.summary().starts_with("0 passed, 0 failed, "), "{}", ended.summary());
}

#[test]
fn a_broken_compiler_is_no_verdict() {
    run(attest(["replay", CASE]).env("CXX", "false")).expect(3).complains("broken C++ compiler");
    // One that can say its version and nothing else.
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("c++");
    std::fs::write(
        &script,
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'broken 1.0' && exit 0\necho cannot compile >&2\nexit 1\n",
    )
    .unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ended = run(attest(["verify", "--tier", "smoke"]).env("CXX", &script)).expect(3);
    let ended = ended.complains("broken C++ compiler").complains("cannot compile");
    assert!(ended.summary().starts_with("0 passed, 0 failed, "), "{}", ended.summary());
}

#[test]
fn a_cache_that_cannot_be_written_is_no_verdict() {
    // A file where the directory should be cannot be written even by the superuser.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let ended = run(attest(["replay", CASE]).env("ATTEST_CACHE_DIR", &file)).expect(3);
    ended.complains("the kernel cache is not writable").complains("ATTEST_CACHE_DIR");
}

#[test]
fn kernel_sources_that_cannot_be_read_are_no_verdict() {
    let ended = run(attest(["replay", CASE]).env("ATTEST_KERNEL_DIR", "/no/such/directory")).expect(3);
    ended.complains("the kernel sources cannot be read");
}

#[test]
fn a_report_that_cannot_be_written_is_known_before_the_run() {
    let ended =
        run(&mut attest(["replay", CASE, "--report", "json=/no/such/directory/report.json"])).expect(3);
    ended.complains("/no/such/directory/report.json");
}

#[test]
fn a_malformed_line_is_a_usage_error_that_points_at_the_term() {
    let ended =
        run(&mut attest(["replay", "decode f32 kv=f33 h2/1 d32 page16 NHD q=[1] kv=[5] seed=1"])).expect(2);
    let ended = ended.complains("column 12: kv format is `f33`; accepted: kv=f32, bf16, f16, e4m3, e5m2");
    let pointer = ended.stderr.lines().last().unwrap();
    assert_eq!(pointer, format!("  {}^", " ".repeat(11)));
}

#[test]
fn an_unknown_device_is_a_usage_error() {
    let ended = run(&mut attest(["verify", "--device", "tpu"])).expect(2);
    ended.complains("'tpu'").complains("auto, simt, cuda");
    let ended = run(attest(["verify"]).env("ATTEST_DEVICE", "tpu")).expect(2);
    ended.complains("'tpu'").complains("auto, simt, cuda");
}

#[test]
fn unknown_arms_tiers_shards_times_and_reports_are_usage_errors() {
    for (arguments, accepted) in [
        (["--arm", "vector"], "scalar"),
        (["--tier", "huge"], "smoke, standard, full"),
        (["--shard", "3/2"], "K/N with 1 ≤ K ≤ N"),
        (["--budget", "soon"], "500ms, 90s, 2m or 1h"),
        (["--report", "xml=x"], "json=FILE, junit=FILE"),
    ] {
        run(attest(["verify"]).args(arguments)).expect(2).complains(accepted);
    }
}

/// Without a card, asking for one is an error and nothing counts as passed.
#[test]
fn a_card_that_is_not_there_is_no_verdict() {
    let devices = run(&mut attest(["list", "devices"])).expect(0);
    let cuda = devices.stdout.lines().find(|line| line.starts_with("cuda")).expect("cuda is listed");
    let ended = run(&mut attest(["replay", CASE, "--device", "cuda"]));
    if cuda.contains("not available") {
        let ended = ended.expect(3).complains("--device cuda cannot be used");
        assert!(ended.summary().starts_with("0 passed, 0 failed, "), "{}", ended.summary());
    } else {
        ended.expect(0);
    }
}

#[test]
fn a_filter_that_matches_nothing_is_not_success() {
    let ended = run(&mut attest(["verify", "no such term"])).expect(4);
    assert_eq!(ended.summary(), "0 passed, 0 failed, 0 skipped");
}

#[test]
fn a_run_without_one_judged_case_is_not_success() {
    // The tensor-core arm serves no f32 query: everything is skipped, as its manifest says.
    let line = "decode f32 kv=f32 h2/1 d64 page16 NHD causal q=[1] kv=[5] seed=1";
    let ended = run(&mut attest(["replay", "--arm", "mma", line])).expect(4);
    let ended = ended.says("no case was judged").says("skipped: 1 (outside the support manifest of mma)");
    assert_eq!(ended.summary(), "0 passed, 0 failed, 1 skipped");
}

#[test]
fn a_budget_that_ends_before_the_smoke_tier_is_not_success() {
    let ended = run(&mut attest(["verify", "--arm", "scalar", "--budget", "1ms", "--jobs", "1"])).expect(4);
    ended.says("the committed minimum of tier smoke").says("the time budget was spent");
}

#[test]
fn an_interrupt_prints_what_is_known_so_far() {
    let mut command = attest(["verify", "--arm", "scalar", "--jobs", "1", "-v"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().expect("a case is judged");
    assert!(first.starts_with("PASS"), "{first}");
    // SAFETY: the process is a child of this one and has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let rest: Vec<String> = lines.collect();
    let status = child.wait().unwrap();
    let summary = rest.last().unwrap();
    assert!(summary.contains(" passed, 0 failed, ") && !summary.starts_with("0 passed"), "{summary}");
    assert!(rest[rest.len() - 2].contains("(interrupted)"), "{rest:?}");
    assert_eq!(status.code(), Some(4));
}
