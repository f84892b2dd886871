//! Properties over generated problems: whatever a case asks for, every arm that serves it is right; what it must not depend on,
//! it does not; and no input of a person makes a parser or a validator panic.
//!
//! `PROPTEST_CASES` sets how many cases are drawn. A failure is shrunk and appended to `cases/regressions/properties.txt`, whose
//! lines are judged for ever after.

mod coverage;
mod far;
mod grid;
mod judge;
mod never_panics;
mod strategy;

use proptest::test_runner::{Config, TestError, TestRunner};

/// Judges `cases` drawn cases unless `PROPTEST_CASES` says otherwise.
fn hold(cases: u32, strategy: impl proptest::strategy::Strategy<Value = strategy::Drawn>) {
    let chosen = std::env::var_os("PROPTEST_CASES").is_some();
    let config = Config {
        cases: if chosen { Config::default().cases } else { cases },
        // Failures are shrunk by what is known of cases, and kept as lines.
        max_shrink_iters: 0,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let result = runner.run(&strategy, |drawn| {
        judge::passes(&drawn.case, drawn.arm).map_err(|verdict| {
            proptest::test_runner::TestCaseError::fail(format!("{} on {}", verdict.word(), drawn.arm))
        })
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(_, drawn)) => judge::shrink_and_record(&drawn.case, drawn.arm),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_scalar_arm_is_right_whatever_a_case_asks_for() {
    hold(48, strategy::scalar());
}

#[test]
fn the_tensor_core_arms_are_right_whatever_a_case_asks_for() {
    hold(16, strategy::tensor_cores());
}

#[test]
fn stores_are_right_whatever_a_case_asks_for() {
    hold(32, strategy::store());
}

#[test]
fn what_once_failed_passes() {
    let lines = judge::recorded();
    assert!(!lines.is_empty(), "the file of regressions has lines");
    for (case, arm) in lines {
        if let Err(verdict) = judge::passes(&case, &arm) {
            panic!("{arm}: {case}\n{verdict:?}");
        }
    }
}
