//! The cases are judged: every impostor dies, no right answer is rejected, and a failure says what the impostor did.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cases::case::{Case, Expectation};
use cases::catalogue::{Entry, Tier, entries};
use cases::executor::DeviceSpec;
use cases::impostors::matrix::{Check, Trial};
use cases::impostors::{Impostor, ImpostorExecutor, Kind, all};
use cases::report::describe::describe;
use cases::run::{Checking, Settings, run_case};
use kernels::device::{DeviceInfo, DeviceKind};

fn impostor(name: &str) -> Impostor {
    all().into_iter().find(|impostor| impostor.name == name).unwrap_or_else(|| panic!("no impostor {name}"))
}

fn standard() -> Vec<Entry> {
    let mut entries: Vec<Entry> =
        entries().unwrap().into_iter().filter(|e| e.tier <= Tier::Standard).collect();
    entries.sort_by_key(|entry| work(&entry.case));
    entries
}

fn work(case: &Case) -> usize {
    case.problem.pairs() * (case.problem.head_dim + case.problem.head_dim_v)
}

fn info() -> DeviceInfo {
    let spec = DeviceSpec { kind: DeviceKind::Simt, checked: false, schedule: None };
    cases::devices::open(&spec).expect("simt opens").info()
}

fn settings() -> Settings {
    Settings {
        device: DeviceKind::Simt,
        checking: Checking::Never,
        schedule: None,
        limit: Duration::from_secs(60),
    }
}

#[test]
fn every_impostor_dies() {
    let trial = Trial::new().unwrap();
    let entries = standard();
    let survivors: Vec<&str> = all()
        .iter()
        .filter(|impostor| {
            let mut chances = entries.iter().filter(|entry| impostor.takes_part(&entry.case));
            let killed = |entry: &Entry| {
                trial
                    .case(&entry.case, std::slice::from_ref(impostor))
                    .is_ok_and(|trial| !trial.kills.is_empty())
            };
            !chances.any(killed)
        })
        .map(|impostor| impostor.name)
        .collect();
    assert_eq!(survivors, Vec::<&str>::new());
}

#[test]
fn no_right_answer_is_rejected() {
    let trial = Trial::new().unwrap();
    for entry in standard() {
        if let Ok(trial) = trial.case(&entry.case, &[]) {
            assert_eq!(trial.false_alarm, None, "{}", entry.case);
        }
    }
}

/// An impostor counts as having had a chance only where `applies` says so: where that is too narrow, the matrix leaves out
/// kills. Impostors of refusals are left out: what they do to a call that must be served is another mistake than the one they
/// stand for. So are cases that show a relation, which run other cases than their own.
#[test]
fn where_an_impostor_does_not_apply_it_is_right() {
    let trial = Trial::new().unwrap();
    let narrow: Vec<Impostor> = all().into_iter().filter(|impostor| impostor.kind != Kind::Refusal).collect();
    let mut everywhere = narrow.clone();
    everywhere.iter_mut().for_each(|impostor| impostor.applies = |_| true);
    let mut wrong = BTreeMap::new();
    for Entry { case, .. } in standard().into_iter().filter(|entry| entry.tier == Tier::Smoke) {
        if case.relation.is_some() {
            continue;
        }
        let Ok(trial) = trial.case(&case, &everywhere) else { continue };
        let outside = trial.kills.iter().map(|kill| &narrow[kill.impostor]).filter(|i| !(i.applies)(&case));
        wrong.extend(outside.map(|impostor| (impostor.name, case.to_string())));
    }
    assert_eq!(wrong, BTreeMap::new());
}

#[test]
fn impostors_are_named_once_explained_and_of_every_kind() {
    let all = all();
    let names: BTreeSet<&str> = all.iter().map(|impostor| impostor.name).collect();
    assert_eq!(names.len(), all.len());
    assert!(all.len() >= 44, "{} impostors", all.len());
    assert!(all.iter().all(|impostor| impostor.wrong.len() >= 10), "what each does wrong is said");
    for kind in Kind::ALL {
        assert!(all.iter().any(|impostor| impostor.kind == kind), "{kind}");
    }
    let blunt = all.iter().filter(|impostor| impostor.blunt).count();
    assert!(blunt * 10 < all.len(), "{blunt} impostors are wrong everywhere");
}

/// Zeros and the mean of V must not pass for an answer anywhere on the axes of magnitude and shift: the bound means nothing
/// where they do.
#[test]
fn zeros_and_the_mean_of_v_die_on_every_point_of_the_axes() {
    let trial = Trial::new().unwrap();
    let [zeros, mean] = ["zeros", "mean-of-v"].map(impostor);
    let axis: Vec<Entry> = standard().into_iter().filter(|entry| entry.group == "magnitudes").collect();
    let points: BTreeSet<String> = axis.iter().map(|e| point(&e.case)).collect();
    assert!(points.len() >= 8, "{points:?}");
    let dies = |impostor: &Impostor, entry: &Entry| {
        !trial.case(&entry.case, std::slice::from_ref(impostor)).unwrap().kills.is_empty()
    };
    for entry in &axis {
        assert!(dies(&zeros, entry), "zeros pass {}", entry.case);
    }
    for wanted in points {
        let mut there = axis.iter().filter(|entry| point(&entry.case) == wanted);
        assert!(there.any(|entry| dies(&mean, entry)), "the mean of V passes at {wanted}");
    }
}

fn point(case: &Case) -> String {
    format!("magnitude {}, shift {}", case.magnitude, case.logit_shift)
}

/// Everything that a failing case says, on one line.
fn words(name: &str, line: &str) -> String {
    let case: Case = line.parse().unwrap();
    let impostor = impostor(name);
    let mut executor = ImpostorExecutor::new(&impostor, info(), case.expectation != Expectation::Valid);
    let described = describe(&run_case(&case, "scalar", &mut executor, &settings()));
    format!("{} {}", described.headline, described.details.join(" "))
}

#[test]
fn the_needle_says_which_page_was_read() {
    let line = "decode f32 kv=bf16 h2/1 d16 page4 NHD causal q=[1] kv=[30] data=needle:9 seed=1";
    let text = words("identity-block-table", line);
    let case: Case = line.parse().unwrap();
    let inputs = cases::inputs::Inputs::generate(&case).unwrap();
    let (page, slot) = inputs.pages.locate(0, 9);
    assert!(text.contains(&format!("expected page {page} slot {slot}")), "{text}");
    // Logical page p was looked up at physical page p, so the needle's page came up under another number or not at all.
    assert!(!text.contains(&format!("read page {page} slot {slot},")), "{text}");
}

#[test]
fn the_needle_says_which_dims_were_read() {
    let line = "decode f32 kv=bf16 h2/1 d32 page4 NHD causal q=[1] kv=[30] data=needle:9 seed=1";
    let text = words("v-dims-shifted", line);
    assert!(text.contains("dim 0 has the value of dim 24"), "{text}");
}

#[test]
fn the_needle_says_that_a_hidden_key_was_read() {
    let hidden = "decode f32 kv=bf16 h2/1 d16 page4 NHD causal win=8,- q=[1] kv=[30] data=needle:20 seed=1";
    let text = words("window-left-wide", hidden);
    assert!(text.contains("which holds key 20: row 0 does not see it"), "{text}");
    let shown = "decode f32 kv=bf16 h2/1 d16 page4 NHD causal win=8,- q=[1] kv=[30] data=needle:21 seed=1";
    let text = words("window-left-narrow", shown);
    assert!(text.contains("alone, read a mixture"), "{text}");
}

#[test]
fn the_head_probe_says_whose_value_it_is() {
    let line = "decode f32 kv=bf16 h6/3 d16 page4 NHD causal q=[1] kv=[30] data=head-id seed=1";
    let text = words("kv-head-modulo", line);
    assert!(text.contains("query head 1 has the value of KV head 1, expected KV head 0"), "{text}");
}

#[test]
fn the_uniform_probe_says_which_key_was_lost_or_foreign() {
    let line = "decode f32 kv=bf16 h2/1 d16 page4 NHD causal win=15,- q=[1] kv=[30] data=uniform-q0 seed=1";
    let inputs = cases::inputs::Inputs::generate(&line.parse().unwrap()).unwrap();
    let at = |key: usize| {
        let (page, slot) = inputs.pages.locate(0, key);
        format!("key {key} (page {page} slot {slot})")
    };
    let text = words("one-key-too-few", line);
    assert!(text.contains(&format!("as if {} were left out", at(29))), "{text}");
    let text = words("window-left-wide", line);
    assert!(text.contains(&format!("as if {} counted, which the row does not see", at(13))), "{text}");
}

#[test]
fn a_hidden_nan_is_named() {
    let line = "decode f32 kv=e4m3 h2/1 d16 page4 NHD causal q=[1] kv=[30] data=nan-key seed=1";
    let text = words("nan-hidden", line);
    assert!(text.contains("NaN of a visible key did not reach the output"), "{text}");
}

#[test]
fn what_lives_and_what_is_vacuous_is_found() {
    let trial = Trial::new().unwrap();
    let smoke =
        || standard().into_iter().filter(|entry| entry.tier == Tier::Smoke && entry.group == "options");
    // No case of this group has a NaN key, so nothing can catch this one.
    let live = trial.matrix(smoke().collect(), vec![impostor("nan-hidden"), impostor("zeros")]);
    assert_eq!(live.survivors().iter().map(|i| i.name).collect::<Vec<_>>(), ["nan-hidden"]);
    assert_eq!((live.vacuous().len(), live.false_alarms().len()), (0, 0));
    // Impostors that are wrong everywhere say nothing about a case.
    let vacuous = trial.matrix(smoke().collect(), vec![impostor("nan-everywhere")]);
    assert_eq!(vacuous.survivors().len(), 0);
    assert_eq!(vacuous.vacuous().len(), smoke().count());
    let scores = live.scores();
    assert_eq!(scores[1].checks.get(&Check::Lse), None, "the lse of zeros is right");
    assert_eq!(scores[1].checks.get(&Check::Out), Some(&smoke().count()));
}

#[test]
fn the_committed_matrix_is_of_these_impostors_and_none_lives() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/KILL-MATRIX.md");
    let text = std::fs::read_to_string(path).unwrap();
    let all = all();
    assert!(text.contains(&format!("{} impostors were tried", all.len())), "regenerate docs/KILL-MATRIX.md");
    assert!(text.contains("; 0 live."), "an impostor lives");
    for impostor in &all {
        let mark = if impostor.blunt { " *" } else { "" };
        let row = format!("| {}{mark} | {} | ", impostor.name, impostor.wrong);
        assert!(text.contains(&row), "regenerate docs/KILL-MATRIX.md: {row}");
    }
}

fn attest(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_attest")).args(arguments).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_command_line_shows_the_matrix_and_fails_on_a_survivor() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("matrix.md");
    let (code, text) =
        attest(&["verify", "--impostors", "--tier", "smoke", "--matrix", file.to_str().unwrap()]);
    // The smoke tier alone is too small for all of them.
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("LIVE IMPOSTOR  store-by-reciprocal: multiplies by the reciprocal of the scale"),
        "{text}"
    );
    assert!(text.lines().last().unwrap().ends_with(" failed, 0 skipped"), "{text}");
    assert!(std::fs::read_to_string(file).unwrap().contains("| zeros | writes zeros; lse is right | "));
    let (code, text) = attest(&["verify", "--impostors", "group=windows"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("(no chosen case catches them)"), "{text}");
}
