//! `attest faults` from the outside: its lines, its last line, its reports and exit codes.

use std::process::{Command, Output};

fn faults(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_attest")).arg("faults").args(args).output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_sweep_of_one_arm_passes_and_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (json, junit) = (file("faults.json"), file("faults.xml"));
    let output = faults(&[
        "--device",
        "simt",
        "--arm",
        "store",
        "--report",
        &format!("json={json}"),
        "--report",
        &format!("junit={junit}"),
    ]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    for line in &lines[..2] {
        assert!(line.starts_with("passed     store") && line.contains("6 calls"), "{line}");
        assert!(line.contains("18 fired  18 contained"), "{line}");
    }
    assert_eq!(lines[2], "2 passed, 0 failed, 0 skipped");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).expect("a report")).expect("JSON");
    assert_eq!(report["lines"][0]["steps"].as_array().expect("steps").len(), 18);
    assert_eq!(report["lines"][1]["verdict"], "passed");
    let report = std::fs::read_to_string(junit).expect("a report");
    assert!(report.contains("tests=\"2\"") && report.contains("failures=\"0\""), "{report}");
}

#[test]
fn usage_and_surroundings_have_their_exit_codes() {
    assert_eq!(faults(&["--arm", "none"]).status.code(), Some(2));
    assert_eq!(faults(&["--once", "--persistent"]).status.code(), Some(2));
    let unwritable = faults(&["--device", "simt", "--report", "json=/no/such/directory/faults.json"]);
    assert_eq!(unwritable.status.code(), Some(3));
}
