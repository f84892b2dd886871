//! Generated cases raise no false alarm, and the ledger of what has been judged is consistent.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cases::executor::DeviceSpec;
use cases::generate::{Generated, generate};
use cases::impostors::ImpostorExecutor;
use cases::run::{Checking, Settings, run_case};
use cases::seeds::{FAILED, FOLDER, LEDGER, SeedLedger};
use cases::verdict::Verdict;
use kernels::device::DeviceKind;

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(FOLDER)
}

#[test]
fn the_committed_ledger_is_consistent() {
    let ledger = SeedLedger::load(&committed()).unwrap();
    assert_eq!(ledger.contradictions(), Vec::<String>::new());
    assert!(!ledger.run.is_empty());
}

#[test]
fn right_answers_raise_no_false_alarm() {
    let spec = DeviceSpec { kind: DeviceKind::Simt, checked: false, schedule: None };
    let info = cases::devices::open(&spec).unwrap().info();
    let settings = Settings {
        device: DeviceKind::Simt,
        checking: Checking::Never,
        schedule: None,
        limit: Duration::from_secs(60),
    };
    // Far from the seeds of the ledger: these are judged in every run of the tests.
    for seed in (1 << 40)..(1 << 40) + 150 {
        let Generated { case, arm } = generate(seed);
        let mut honest = ImpostorExecutor::honest(info.clone(), false);
        let verdict = run_case(&case, &arm, &mut honest, &settings);
        assert!(matches!(verdict, Verdict::Pass { .. }), "{arm}: {case}: {verdict:?}");
    }
}

fn attest(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_attest"))
        .args(["verify", "--device", "simt", "--fast", "--regressions", folder.to_str().unwrap()])
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A seed of the store kernel, which compiles fast.
fn store_seed() -> u64 {
    (0..).find(|seed| generate(*seed).arm == "store").unwrap()
}

#[test]
fn seeds_are_recorded_once_and_the_next_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let seed = store_seed();
    let range = format!("{seed}..{}", seed + 1);
    let arguments = ["--generated", "5", "--seed-range", &range, "--record-seeds"];
    let (code, out, error) = attest(folder.path(), &arguments);
    assert_eq!((code, out.lines().last()), (0, Some("1 passed, 0 failed, 0 skipped")), "{error}");
    let ledger = SeedLedger::load(folder.path()).unwrap();
    assert_eq!((ledger.total["simt"].judged, ledger.next("simt")), (1, seed + 1));
    let (code, _, error) = attest(folder.path(), &arguments);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains(&format!("accepted: seeds from {} on", seed + 1)), "{error}");
    assert!(
        !folder.path().join(FAILED).exists()
            || std::fs::read_to_string(folder.path().join(FAILED)).unwrap().is_empty()
    );
    assert!(
        std::fs::read_to_string(folder.path().join(LEDGER))
            .unwrap()
            .starts_with("# Seeds of generated cases")
    );
}

#[test]
fn a_range_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    for range in ["3", "5..5", "6..5", "a..b"] {
        let (code, _, error) = attest(folder.path(), &["--generated", "1", "--seed-range", range]);
        assert_eq!(code, 2, "{range}: {error}");
        assert!(error.contains("A..B with A < B"), "{range}: {error}");
    }
}
