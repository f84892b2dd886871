//! What a sweep tries, when it stops, which runs it compares, and what is no verdict.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use fault_injection::{
    At, BoxError, Call, CallKind, FaultPlan, KindSet, Outcome, Repeat, SweepError, SweepOptions, SweepReport,
    inject, sweep,
};
use kernels::device::{Device, DevicePtr, DeviceRef, DeviceResult};
use kernels::guards::{Capture, OwnedStream};
use kernels::scratch::Scratch;

use support::{STREAM, clean_names, device, good, judge};

#[test]
fn calls_that_only_the_first_run_made_are_missed_by_name() {
    let runs = AtomicU64::new(0);
    let options = SweepOptions { repeats: vec![Repeat::Once], at: vec![At::Call], ..SweepOptions::default() };
    let launcher = |device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let scratch = Scratch::new(device, 64, STREAM)?;
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            device.memset(scratch.ptr(), 3, 64, STREAM)?;
            device.synchronize(STREAM)?;
        }
        Ok(vec![1])
    };
    let report = sweep(&device(), &options, launcher).unwrap();
    let missed: Vec<_> = report.steps.iter().map(|step| (step.number, step.call)).collect();
    assert_eq!(missed, [(1, Call::Alloc), (2, Call::Memset), (3, Call::Synchronize)]);
    for step in &report.steps[1..] {
        let detail = "1 calls could fail, in the first clean run 3".to_owned();
        assert_eq!(step.outcomes, [Outcome::Nondeterministic { detail }]);
    }
}

#[test]
fn a_launcher_that_makes_ever_more_calls_is_given_up_after_sixteen_more() {
    let runs = AtomicU64::new(0);
    let options = SweepOptions { repeats: vec![Repeat::Once], at: vec![At::Call], ..SweepOptions::default() };
    let launcher = |device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        for _ in 0..=runs.fetch_add(1, Ordering::Relaxed) {
            Scratch::new(device, 64, STREAM)?.release()?;
        }
        Ok(vec![1])
    };
    let report = sweep(&device(), &options, launcher).unwrap();
    assert_eq!(report.fired(), 1 + 16, "{report}");
    assert!(report.steps.iter().all(|step| step.call == Call::Alloc && !step.contained()), "{report}");
    let detail = "call 3 is alloc, in the first clean run it was nothing".to_owned();
    assert!(report.steps[1].outcomes.contains(&Outcome::Nondeterministic { detail }), "{report}");
}

#[test]
fn a_call_that_fails_and_is_another_than_in_the_clean_run_is_nondeterministic() {
    let runs = AtomicU64::new(0);
    let options = SweepOptions {
        kinds: [CallKind::Memset, CallKind::Event].into_iter().collect(),
        repeats: vec![Repeat::Once],
        at: vec![At::Call],
        ..SweepOptions::default()
    };
    let launcher = |device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let scratch = Scratch::new(device, 64, STREAM)?;
        if runs.fetch_add(1, Ordering::Relaxed) < 2 {
            device.memset(scratch.ptr(), 3, 64, STREAM)?;
        } else {
            device.destroy_event(device.create_event()?)?;
        }
        Ok(vec![1])
    };
    let report = sweep(&device(), &options, launcher).unwrap();
    let detail = "call 2 is create_event, in the first clean run it was memset".to_owned();
    let other = Outcome::Nondeterministic { detail };
    assert_eq!(report.steps[0].outcomes, [other.clone(), other], "of the run with the fault and of the next");
}

/// Also where the failure surfaces only in the wait that follows the launcher.
#[test]
fn calls_that_change_before_a_late_failure_are_nondeterministic() {
    let runs = AtomicU64::new(0);
    let options = SweepOptions {
        kinds: KindSet::only(CallKind::Memset),
        at: vec![At::NextSynchronize],
        ..SweepOptions::default()
    };
    let launcher = |device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let scratch = Scratch::new(device, 64, STREAM)?;
        device.memset(scratch.ptr(), 3, 64, STREAM)?;
        // The two clean runs of the baseline agree, and no later one does with them.
        if runs.fetch_add(1, Ordering::Relaxed) >= 2 {
            device.create_event().and_then(|event| device.destroy_event(event))?;
        }
        scratch.release()?;
        Ok(vec![1])
    };
    let report = sweep(&device(), &options, launcher).unwrap();
    assert_eq!(clean_names(&report), ["Contained"]);
    let detail = "call 3 is create_event, in the first clean run it was free".to_owned();
    let other = Outcome::Nondeterministic { detail };
    for step in &report.steps {
        // Of the run with the fault and of the clean run after it.
        assert_eq!(step.outcomes, [other.clone(), other.clone()], "{step}");
    }
    assert_eq!(report.fired(), 2);
}

#[test]
fn one_planned_fault_is_judged_like_a_step_of_a_sweep() {
    let plan = FaultPlan { repeat: Repeat::Persistent, ..FaultPlan::nth(2).of(KindSet::ALL) };
    let step = inject(&device(), plan, good).unwrap().expect("two calls can fail");
    assert_eq!(
        (step.call, step.number, step.repeat, step.at),
        (Call::Memset, 2, Repeat::Persistent, At::Call)
    );
    assert!(step.contained() && !step.fail_frees, "{step}");
    assert_eq!(inject(&device(), FaultPlan::nth(5), good).unwrap(), None, "four calls can fail");
}

#[test]
fn an_operation_that_fails_by_itself_is_no_verdict() {
    let error =
        sweep(&device(), &SweepOptions::default(), |_: &DeviceRef| Err::<Vec<u8>, _>("no")).unwrap_err();
    assert!(matches!(error, SweepError::Baseline { .. }), "{error}");
    assert_eq!(error.to_string(), "the operation fails without any injected fault: no");
    let out_of_range = |device: &DeviceRef| device.memset(DevicePtr(8), 1, 8, STREAM).map(|()| vec![1]);
    let error = sweep(&device(), &SweepOptions::default(), out_of_range).unwrap_err();
    assert!(matches!(error, SweepError::Baseline { .. }), "only the wait after it reports that: {error}");
    let panics = |_: &DeviceRef| -> Result<Vec<u8>, BoxError> { panic!("always") };
    let error = sweep(&device(), &SweepOptions::default(), panics).unwrap_err();
    assert!(error.to_string().contains("always"), "{error}");
}

#[test]
fn an_error_that_was_there_before_is_not_the_operations() {
    let device = device();
    device.memset(DevicePtr(8), 1, 8, STREAM).unwrap();
    let error = sweep(&device, &SweepOptions::default(), good).unwrap_err();
    assert!(matches!(error, SweepError::Pool(_)), "{error}");
    assert!(sweep(&device, &SweepOptions::default(), good).unwrap().passed(), "it has been reported");
}

#[test]
fn a_late_failure_of_work_that_nothing_runs_is_counted_apart() {
    let report = judge(|device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let stream = OwnedStream::new(device)?;
        let scratch = Scratch::new(device, 64, STREAM)?;
        let capture = Capture::begin(device, stream.id())?;
        device.memset(scratch.ptr(), 3, 64, stream.id())?;
        capture.end()?.release()?;
        Ok(vec![1])
    });
    assert!(report.passed(), "{report}");
    assert_eq!(report.unsurfaced, 2, "once and persistently");
}

#[test]
fn a_sweep_of_some_kinds_fails_only_those() {
    let options = SweepOptions { kinds: KindSet::only(CallKind::Memset), ..SweepOptions::default() };
    let report = sweep(&device(), &options, good).unwrap();
    assert_eq!(report.fired(), 4);
    assert!(report.passed() && report.steps.iter().all(|step| step.call == Call::Memset));
}

#[test]
fn a_sweep_in_which_nothing_could_fail_does_not_pass() {
    let report = judge(|_: &DeviceRef| DeviceResult::Ok(vec![1]));
    assert_eq!((report.fired(), report.passed()), (0, false));
}

#[test]
fn a_report_survives_json() {
    let report = judge(|device: &DeviceRef| good(device).map_err(|error| error.to_string()));
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<SweepReport>(&text).unwrap(), report);
    assert!(text.contains("\"name\":\"masked\""), "{text}");
}
