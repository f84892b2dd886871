//! `attest mutants` from the outside: mistakes that are caught, one that a single case can see, one that none can, and kernels
//! that fail anyway.

mod common;

use std::path::Path;

use cases::catalogue::Tier;
use cases::mutants::checks::{Check, candidates, choose};
use common::{Ended, KernelSources, attest, run};
use kernels::device::Device;
use kernels::simt::{SimtDevice, SimtOptions};
use kernels::source::SourceSet;

/// Runs on the cases of `store`, which is the smallest kernel, unless other arguments say so.
fn mutants(output: &Path, arguments: &[&str], sources: Option<&KernelSources>) -> Ended {
    mutants_of_tier("smoke", output, arguments, sources)
}

fn mutants_of_tier(tier: &str, output: &Path, arguments: &[&str], sources: Option<&KernelSources>) -> Ended {
    let mut command = attest(["mutants", "--tier", tier, "--jobs", "2", "--output"]);
    command.arg(output).args(arguments);
    if let Some(sources) = sources {
        command.env("ATTEST_KERNEL_DIR", sources.path());
    }
    run(&mut command)
}

fn file(output: &Path, name: &str) -> String {
    std::fs::read_to_string(output.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The log of the only mutant.
fn log(output: &Path) -> String {
    let logs: Vec<_> = std::fs::read_dir(output.join("log")).expect("logs").collect();
    assert_eq!(logs.len(), 1, "{logs:?}");
    std::fs::read_to_string(logs[0].as_ref().expect("an entry").path()).expect("a log")
}

#[test]
fn a_guard_that_does_not_free_dies_by_the_bytes_that_the_pool_holds() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = dir.path().join("out");
    let founding = ["--arm", "fp8-dense", "--mutant", "launch:dequantise_dense free-dropped"];
    let ended = mutants(&output, &founding, None).expect(0).says("1 of 1 mutants tried: 1 caught");
    assert_eq!(ended.summary(), "1 passed, 0 failed, 0 skipped");
    let log = log(&output);
    let line = log.lines().find(|line| line.contains("DEVICE ERROR")).unwrap_or_else(|| panic!("{log}"));
    let after = line.trim().strip_prefix("DEVICE ERROR ").and_then(|rest| {
        let counts = rest.strip_suffix(" bytes of the pool are in use after the call, 0 before it");
        counts?.parse::<u64>().ok()
    });
    assert!(after.is_some_and(|bytes| bytes > 0), "{line}");
    assert!(log.contains("replay: attest replay --device simt --checked --arm fp8-dense '"), "{log}");
}

#[test]
fn a_caught_mutant_is_in_every_report_with_the_check_that_killed_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = dir.path().join("out");
    let some = ["--arm", "store", "--file", "store.cu", "--operator", "swap-kv", "--sample", "2"];
    let ended = mutants(&output, &some, None).expect(0).says("2 of 2 mutants tried: 2 caught");
    ended.complains("canary in store.cu killed by store: store ");
    let caught = file(&output, "caught.txt");
    assert_eq!(caught.lines().count(), 2, "{caught}");
    let outcomes: serde_json::Value =
        serde_json::from_str(&file(&output, "outcomes.json")).expect("outcomes.json is JSON");
    assert_eq!(outcomes["caught"], caught.lines().count(), "{outcomes}");
    let report: serde_json::Value =
        serde_json::from_str(&file(&output, "mutation-report.json")).expect("the report is JSON");
    assert!(report["files"]["kernels/cuda/store.cu"]["mutants"].is_array(), "{report}");
    let matrix = file(&output, "kill-matrix.csv");
    assert!(matrix.lines().any(|line| line.contains("store: store")), "{matrix}");
}

#[test]
fn a_mistake_that_no_case_can_see_fails_the_run() {
    let before = "    const i64 slot = p.slot_mapping[token];\n";
    let unseen = "    if (p.page_size == 123456789) { return; }\n";
    let sources = KernelSources::copy().with_change("store.cu", 0, before, &format!("{before}{unseen}"));
    let text = sources.read("store.cu");
    let line = text[..text.find("p.page_size == 1").expect("it is there")].matches('\n').count() + 1;
    let dir = tempfile::tempdir().expect("a directory");
    let output = dir.path().join("out");
    let id = format!("store.cu:{line}:9 branch #2");
    let ended = mutants(&output, &["--arm", "store", "--mutant", &id], Some(&sources)).expect(1);
    let ended = ended.says("SURVIVED  store.cu:").says("replace `p.page_size == 123456789` with `false`");
    let ended = ended.says(&format!("again: attest mutants --mutant '{id}'"));
    assert_eq!(ended.summary(), "0 passed, 1 failed, 0 skipped");
    assert_eq!(file(&output, "missed.txt").lines().count(), 1);
}

/// A store that is not among the chosen checks, of a shape that none of them has.
fn left_out() -> Check {
    let info = SimtDevice::new(SimtOptions::new(SourceSet::embedded())).expect("a simt device").info();
    let mut checks = candidates(Tier::Standard, &["store".to_owned()], &info).expect("checks");
    choose(&mut checks);
    let shape = |check: &Check| {
        let problem = &check.item.case.problem;
        (problem.num_kv_heads, problem.head_dim, problem.page_size)
    };
    let taken: Vec<_> = checks.iter().filter(|check| check.chosen).map(shape).collect();
    let stores_its_first = |check: &Check| check.item.case.problem.slots.is_none();
    let mut others = checks.iter().filter(|check| !check.chosen && !taken.contains(&shape(check)));
    others.find(|check| stores_its_first(check)).expect("a case of a shape of its own").clone()
}

#[test]
fn what_the_chosen_checks_miss_meets_the_others() {
    let check = left_out();
    let problem = &check.item.case.problem;
    let before = "    const i64 slot = p.slot_mapping[token];\n";
    let seen_once = format!(
        "    if (p.num_kv_heads == {} && p.k.head_dim == {} && p.page_size == {} && token < 0) {{ return; }}\n",
        problem.num_kv_heads, problem.head_dim, problem.page_size
    );
    let sources = KernelSources::copy().with_change("store.cu", 0, before, &format!("{before}{seen_once}"));
    let text = sources.read("store.cu");
    let line = text[..text.find(&seen_once).expect("it is there")].matches('\n').count() + 1;
    let column = seen_once.find("< 0").expect("a comparison") + 1;
    let dir = tempfile::tempdir().expect("a directory");
    let output = dir.path().join("out");
    let id = format!("store.cu:{line}:{column} boundary");
    mutants_of_tier("standard", &output, &["--arm", "store", "--mutant", &id], Some(&sources)).expect(0);
    let log = log(&output);
    assert!(log.contains(&format!("killed by {}\n", check.name())), "{log}");
}

#[test]
fn kernels_that_fail_without_any_mutant_stop_the_run() {
    let sources = KernelSources::copy().with_change(
        "store.cu",
        0,
        "slot % p.page_size",
        "slot % p.page_size + 0 * 1 + 1",
    );
    let dir = tempfile::tempdir().expect("a directory");
    let output = dir.path().join("out");
    let ended = mutants(&output, &["--arm", "store", "--file", "store.cu", "--sample", "3"], Some(&sources))
        .expect(1);
    let ended = ended.says("RED  store: store ").says("  replay: attest replay ");
    assert_eq!(ended.summary(), "0 passed, 1 failed, 3 skipped");
}
