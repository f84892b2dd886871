//! The ledger of known failures as a whole run sees it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cases::events::{Consumer, Event, Finished};
use cases::executor::{Executor, InProcess, Job, Outcome};
use cases::ledger::Ledger;
use cases::run::{Checking, Settings};
use cases::session::{Demand, Item, Session};
use kernels::device::DeviceKind;

const LINE: &str = "decode f32 kv=f32 h2/1 d8 page4 NHD q=[1] kv=[9] seed=1";

struct Deaf;

impl Consumer for Deaf {
    fn take(&mut self, _event: &Event) -> io::Result<()> {
        Ok(())
    }
}

/// Fails every job, as a kernel that dies would.
struct Dying;

impl Executor for Dying {
    fn run(&mut self, _job: &Job, _limit: Duration) -> Outcome {
        Outcome::Crashed { signal: "SIGSEGV".to_owned(), detail: String::new() }
    }
}

/// Fails the test if it is asked for anything.
struct Forbidden;

impl Executor for Forbidden {
    fn run(&mut self, _job: &Job, _limit: Duration) -> Outcome {
        panic!("a case that crashes was launched")
    }
}

fn run(entry: &str, executor: &(dyn Fn() -> Box<dyn Executor> + Sync)) -> Finished {
    let ledger: &'static Ledger = Box::leak(Box::new(Ledger::parse(entry).expect("a ledger")));
    let settings = Settings {
        device: DeviceKind::Simt,
        checking: Checking::Never,
        schedule: None,
        limit: Duration::from_secs(60),
    };
    let session = Session {
        settings,
        device_detail: String::new(),
        tier: None,
        arms: vec!["scalar".to_owned()],
        jobs: 1,
        budget: None,
        demand: Demand::default(),
        known_failures: ledger,
        interrupted: Arc::new(AtomicBool::new(false)),
    };
    let item = Item {
        case: LINE.parse().expect("a case"),
        arm: "scalar".to_owned(),
        group: String::new(),
        comment: String::new(),
    };
    session.run(&[item], executor, &mut Deaf).expect("a run")
}

const ENTRY: &str = r#"
[[failure]]
pattern = "d8 page4"
arm = "scalar"
reason = "the last key is lost"
issue = "https://example.org/issues/7"
"#;

fn counts(finished: &Finished) -> (usize, usize, usize, u8) {
    (finished.passed, finished.failed, finished.skipped, finished.exit_code)
}

#[test]
fn a_known_failure_that_fails_is_skipped_and_named() {
    let finished = run(ENTRY, &|| Box::new(Dying));
    assert_eq!(counts(&finished), (0, 0, 1, 4));
    assert!(finished.skips[0].reason.contains("https://example.org/issues/7"), "{:?}", finished.skips);
}

#[test]
fn a_known_failure_that_passes_fails_the_run() {
    assert_eq!(counts(&run(ENTRY, &|| Box::<InProcess>::default())), (0, 1, 0, 1));
}

#[test]
fn an_entry_that_crashes_is_not_launched() {
    let finished = run(&format!("{ENTRY}crashes = true\n"), &|| Box::new(Forbidden));
    assert_eq!(counts(&finished), (0, 0, 1, 4));
}

#[test]
fn without_an_entry_a_failure_is_a_failure() {
    assert_eq!(counts(&run("", &|| Box::new(Dying))), (0, 1, 0, 1));
}
