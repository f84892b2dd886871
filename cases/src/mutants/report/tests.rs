//! Reports of a run over two mutants, one caught and one missed.

use kernels::source::SourceSet;
use serde_json::Value;

use super::super::change::Change;
use super::super::discover::mutants_of;
use super::super::operators::Operator;
use super::super::outcome::{Counts, Outcome, Record};
use super::*;

const TEXT: &str = "void f() {\n    x = a + b;\n    y = c < d;\n}\n";

fn changes() -> Vec<Change> {
    let all = mutants_of("f.cu", TEXT).unwrap();
    let kept = |operator: &Operator| matches!(operator, Operator::Arithmetic | Operator::Boundary);
    all.into_iter().filter(|mutant| kept(&mutant.operator)).map(Change::Kernel).collect()
}

fn records(changes: &[Change]) -> Vec<Record> {
    let record = |change: &Change, outcome, failed| Record {
        id: change.id(),
        outcome,
        seconds: 0.25,
        compiled: 1,
        checks: vec![("scalar: one".to_owned(), false), ("scalar: two".to_owned(), failed)],
    };
    let caught = Outcome::Caught {
        check: "scalar: two".to_owned(),
        verdict: "MISMATCH".to_owned(),
        replay: "attest replay 'two'".to_owned(),
    };
    vec![record(&changes[0], caught, true), record(&changes[1], Outcome::Missed, false)]
}

#[test]
fn the_directory_holds_lists_diffs_logs_and_outcomes_and_can_be_resumed() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("mutants.out");
    let (changes, mut counts) = (changes(), Counts::default());
    let records = records(&changes);
    let mut directory = Directory::create(&path, "run 1").unwrap();
    for (change, record) in changes.iter().zip(&records) {
        counts.add(&record.outcome);
        directory.record(change, Some(TEXT), record).unwrap();
    }
    directory.finish(&changes, &records, &counts).unwrap();
    let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
    assert_eq!(read("caught.txt"), "f.cu:2:11: replace `+` with `-` in f [arithmetic]\n");
    assert_eq!(read("missed.txt"), "f.cu:3:11: replace `<` with `<=` in f [boundary]\n");
    assert_eq!(read("timeout.txt"), "");
    assert!(read("diff/f.cu_2_11_arithmetic.diff").contains("+    x = a - b;"));
    let log = read("log/f.cu_2_11_arithmetic.log");
    assert!(log.contains("killed by scalar: two") && log.contains("replay: attest replay 'two'"), "{log}");
    let outcomes: Value = serde_json::from_str(&read("outcomes.json")).unwrap();
    assert_eq!(outcomes["total_mutants"], 2);
    assert_eq!(outcomes["outcomes"][1]["summary"], "MissedMutant");
    assert_eq!(outcomes["outcomes"][0]["scenario"]["Mutant"]["span"]["start"]["line"], 2);

    let (_, known) = Directory::resume(&path, "run 1").unwrap();
    assert_eq!(known, records);
    let stale = Directory::resume(&path, "run 2").err().map(|error| error.to_string());
    assert!(stale.is_some_and(|text| text.contains("other kernel sources")));
    Directory::create(&path, "run 2").unwrap();
    assert!(parent.path().join("mutants.out.old").join("caught.txt").is_file());
}

#[test]
fn the_elements_report_says_what_its_schema_wants() {
    let changes = changes();
    let sources = SourceSet::embedded().with_file("f.cu", TEXT);
    let report = elements(&sources, &changes, &records(&changes)[..1]);
    let file = &report["files"]["kernels/cuda/f.cu"];
    assert_eq!((&report["schemaVersion"], &file["source"]), (&Value::from("2"), &Value::from(TEXT)));
    let mutants = file["mutants"].as_array().unwrap();
    assert_eq!(mutants[0]["status"], "Killed");
    assert_eq!(mutants[0]["killedBy"][0], "scalar: two");
    assert_eq!(mutants[0]["location"]["start"]["column"], 11);
    assert_eq!(mutants[0]["location"]["end"]["column"], 12);
    assert_eq!(mutants[1]["status"], "Pending", "what was not tried is pending");
}

#[test]
fn the_matrix_names_checks_that_kill_nothing() {
    let changes = changes();
    let records = records(&changes);
    let text = matrix(&records);
    assert_eq!(text.lines().count(), 1 + 4);
    assert!(text.contains("\"f.cu:2:11 arithmetic\",\"scalar: two\",1"), "{text}");
    let names = ["scalar: one", "scalar: two", "scalar: never met"].map(str::to_owned);
    assert_eq!(unused_checks(&records, &names), ["scalar: one"]);
}
