//! Suites as files: what `attest export` writes, and what `attest check` says of everything that may lie beside it.

mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use common::{Ended, attest, run};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// A score of small cases, so that a run takes a second.
fn export(directory: &Path) -> Vec<String> {
    let path = directory.to_str().expect("a path in UTF-8");
    let filters = ["--filter", "group=windows", "--filter", "decode"];
    let command = ["export", "--tier", "standard", "-o", path];
    run(attest(command).args(filters)).expect(0).says("files and suite.json in ");
    let manifest = std::fs::read_to_string(directory.join("suite.json")).expect("the manifest");
    let manifest: serde_json::Value = serde_json::from_str(&manifest).expect("JSON");
    let cases = manifest["cases"].as_array().expect("cases");
    cases.iter().map(|case| case["id"].as_str().expect("an id").to_owned()).collect()
}

fn beside(directory: &Path, id: &str, ending: &str) -> PathBuf {
    directory.join(format!("{id}.{ending}"))
}

/// Writes the expected output, changed, as a framework would leave it.
fn answer(directory: &Path, id: &str, case: Option<&str>, change: impl Fn(f64) -> f64) {
    let bytes = std::fs::read(beside(directory, id, "safetensors")).expect("the exported file");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let expected = file.tensor("expected_out").expect("the expected output");
    let out: Vec<u8> = expected
        .data()
        .as_chunks::<8>()
        .0
        .iter()
        .flat_map(|bytes| change(f64::from_le_bytes(*bytes)).to_le_bytes())
        .collect();
    let view = TensorView::new(Dtype::F64, expected.shape().to_vec(), &out).expect("as many numbers");
    let metadata = case.map(|case| HashMap::from([("case".to_owned(), case.to_owned())]));
    let bytes = safetensors::serialize([("out", view)], metadata).expect("a file");
    std::fs::write(beside(directory, id, "out.safetensors"), bytes).expect("an output");
}

fn check(directory: &Path, extra: &[&str]) -> Ended {
    run(attest(["check"]).arg(directory).args(extra))
}

#[test]
fn an_answer_of_every_kind_has_its_verdict() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let directory = temporary.path();
    let ids = export(directory);
    assert!(ids.len() >= 8, "{ids:?}");
    for id in &ids {
        answer(directory, id, None, |x| x);
    }
    check(directory, &[]).expect(0).says(&format!("{} passed, 0 failed, 0 skipped", ids.len()));

    // A skip with its reason is no failure, and the reason is counted.
    std::fs::remove_file(beside(directory, &ids[0], "out.safetensors")).expect("an output");
    std::fs::write(beside(directory, &ids[0], "skip.txt"), "no such head_dim\n").expect("a reason");
    let skipped = check(directory, &[]).expect(0).says("skipped: 1 (no such head_dim)");
    assert_eq!(skipped.summary(), format!("{} passed, 0 failed, 1 skipped", ids.len() - 1));

    // Nothing at all is a skip that nobody declared.
    std::fs::remove_file(beside(directory, &ids[0], "skip.txt")).expect("a reason");
    check(directory, &[])
        .expect(4)
        .says("neither an output nor a reason for having none")
        .says("NOT ENOUGH  1 skips are not declared");

    // A wrong output, a crash, an output of another case and one of another shape are verdicts against whoever made them.
    answer(directory, &ids[0], None, |x| x * 1.5);
    std::fs::write(beside(directory, &ids[1], "crash.txt"), "SIGSEGV\nat line 7\n").expect("last words");
    answer(directory, &ids[2], Some("decode of another day"), |x| x);
    std::fs::copy(beside(directory, &ids[0], "safetensors"), beside(directory, &ids[3], "out.safetensors"))
        .expect("a file without `out`");
    std::fs::write(
        directory.join("made-by.json"),
        r#"{"by": "her-kernel", "on": "a toaster", "versions": "2.1"}"#,
    )
    .expect("who it was");
    let html = directory.join("report.html");
    let ended = check(directory, &["--report", &format!("html={}", html.display())])
        .expect(1)
        .says("MISMATCH  her-kernel on a toaster")
        .says("CRASHED  her-kernel on a toaster   SIGSEGV")
        .says("the output was made for `decode of another day`")
        .says("tensor out is missing")
        .says(&format!("replay: attest check {}", beside(directory, &ids[0], "safetensors").display()));
    assert_eq!(ended.summary(), format!("{} passed, 4 failed, 0 skipped", ids.len() - 4));
    let html = std::fs::read_to_string(html).expect("the page");
    assert!(html.contains("a toaster (2.1)") && html.matches("<article").count() == 4, "{html}");
}

#[test]
fn a_suite_may_be_the_lines_of_a_file() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let (lines, directory) = (temporary.path().join("mine.txt"), temporary.path().join("suite"));
    let case = "decode f32 kv=f32 h2/1 d32 page16 NHD q=[1] kv=[21] seed=7";
    std::fs::write(&lines, format!("# mine\n\n{case}\n")).expect("a file");
    let (from, to) = (lines.to_str().expect("UTF-8"), directory.to_str().expect("UTF-8"));
    run(&mut attest(["export", "--cases", from, "-o", to])).expect(0).says("1 files and suite.json");
    check(&directory, &[]).expect(4).says("0 passed, 0 failed, 1 skipped");
    run(attest(["check", to, "--output", "x"]).env("NO_COLOR", "1"))
        .expect(2)
        .complains("--output is given for");
    std::fs::write(&lines, "# nothing\n").expect("a file");
    run(&mut attest(["export", "--cases", from, "-o", to])).expect(2).complains("has no case line");
    std::fs::write(directory.join("suite.json"), "{}").expect("a file");
    check(&directory, &[]).expect(2).complains("accepted: what `attest export --tier` writes");
}
