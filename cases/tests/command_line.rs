//! What a user sees: streams, summary, lists, reports.

mod common;

use common::{attest, run};

const CASE: &str = "mixed f32 kv=f32 h2/1 d32 page16 NHD causal q=[3,1] kv=[5,40] seed=1";

#[test]
fn results_go_to_stdout_and_progress_to_stderr() {
    let ended = run(&mut attest(["replay", "--arm", "scalar", CASE])).expect(0);
    assert_eq!(ended.stdout, "1 passed, 0 failed, 0 skipped\n");
    let ended = ended.complains("1 cases on simt (g++").complains("worst share of the bound");
    assert!(!ended.stderr.contains('\u{1b}'), "no colours in a pipe");
    let quiet = run(&mut attest(["replay", "--arm", "scalar", "-q", CASE])).expect(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("1 passed, 0 failed, 0 skipped\n", ""));
    let verbose = run(&mut attest(["replay", "--arm", "scalar", "-v", CASE])).expect(0);
    verbose.says("PASS  scalar on simt   worst share of the bound 0.").says(CASE);
}

#[test]
fn colours_can_be_forced() {
    let ended = run(&mut attest(["replay", "--arm", "scalar", "--color", "always", CASE])).expect(0);
    ended.says("\u{1b}[");
}

#[test]
fn every_command_has_an_example_in_its_help_and_the_environment_is_documented() {
    for command in ["verify", "list", "replay"] {
        let ended = run(&mut attest([command, "--help"])).expect(0);
        let ended = ended.says("Examples:").says(&format!("  attest {command} "));
        for variable in ["ATTEST_DEVICE", "ATTEST_CACHE_DIR", "CXX", "NO_COLOR", "CI ", "VT_ATTN_FP8_DENSE"] {
            assert!(ended.stdout.contains(variable), "{command}: {variable}");
        }
    }
    run(&mut attest(["--help"])).expect(0).says("Exit codes:");
}

#[test]
fn lists_show_cases_arms_and_devices() {
    let cases = run(&mut attest(["list", "cases", "group=real", "kv=e5m2"])).expect(0);
    let lines: Vec<&str> = cases.stdout.lines().filter(|l| !l.starts_with(' ')).collect();
    assert!(
        lines.len() >= 6 && lines.iter().all(|l| l.contains(" kv=e5m2 ") && l.contains("data=real:")),
        "{lines:?}"
    );
    run(&mut attest(["list", "arms"]))
        .expect(0)
        .says("scalar")
        .says("serves: query f32, bf16, f16;")
        .says("store");
    run(&mut attest(["list", "devices"])).expect(0).says("simt   available: g++").says("cuda ");
    run(&mut attest(["list"])).expect(0).says("standard ");
}

#[test]
fn shards_cover_every_case_once() {
    let count = |extra: &[&str]| -> usize {
        let arguments = ["verify", "group=invalid", "--arm", "scalar"].iter().chain(extra);
        let ended = run(&mut attest(arguments)).expect(0);
        ended.summary().split(' ').next().unwrap().parse().unwrap()
    };
    let (whole, first, second) = (count(&[]), count(&["--shard", "1/2"]), count(&["--shard", "2/2"]));
    assert!(first.abs_diff(second) <= 1 && whole > 40, "{whole} {first} {second}");
    assert_eq!(whole, first + second);
}

#[test]
fn seeds_change_the_inputs_and_the_replay_line_names_them() {
    let ended = run(&mut attest(["verify", "group=batches", "sixteen", "--seed", "5"]));
    assert_eq!(ended.code, Some(4), "filters are about the line, not the comment");
    let filter = "prefill bf16 kv=bf16 h56/8 d64";
    let verbose =
        |seed| run(&mut attest(["verify", filter, "--arm", "scalar", "-v", "--seed", seed])).expect(0).stdout;
    let seed_of = |text: String| -> u64 {
        let line = text.lines().find(|l| l.contains(filter)).unwrap().to_owned();
        line.split("seed=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(seed_of(verbose("5")), seed_of(verbose("0")) + 5);
}

#[test]
fn reports_hold_every_case_and_its_replay_line() {
    let dir = tempfile::tempdir().unwrap();
    let (json, junit) = (dir.path().join("r.json"), dir.path().join("r.xml"));
    let reports =
        [format!("--report=json={}", json.display()), format!("--report=junit={}", junit.display())];
    run(attest(["replay", "--arm", "scalar", CASE]).args(&reports)).expect(0);
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["schema"], 1);
    assert_eq!(report["summary"]["passed"], 1);
    assert_eq!(report["cases"][0]["line"], CASE);
    assert_eq!(report["cases"][0]["verdict"]["verdict"], "pass");
    assert_eq!(report["cases"][0]["replay"], format!("attest replay --device simt --arm scalar '{CASE}'"));
    let xml = std::fs::read_to_string(junit).unwrap();
    assert!(xml.contains("<testsuite name=\"scalar on simt\" tests=\"1\""), "{xml}");
    assert!(xml.contains(CASE), "{xml}");
}

#[test]
fn a_schedule_can_be_chosen_and_stays_in_the_replay_line() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("r.json");
    let report = format!("--report=json={}", json.display());
    run(&mut attest(["replay", "--arm", "scalar", "--schedule", "3", "--checked", &report, CASE])).expect(0);
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let line = format!("attest replay --device simt --arm scalar --checked --schedule 3 '{CASE}'");
    assert_eq!(report["cases"][0]["replay"], line);
    assert_eq!(report["cases"][0]["checked"], true);
}
