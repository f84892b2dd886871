//! The detector is proved: launchers that do one thing wrong are each called by the right name, and good ones pass.

mod support;

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};

use fault_injection::{Call, CallKind, HandleKind, MisuseKind, Outcome, Repeat, SweepOptions, sweep};
use kernels::device::{Device, DeviceRef, DeviceResult};
use kernels::guards::{Capture, OwnedEvent, OwnedStream};
use kernels::scratch::Scratch;
use kernels::source::KernelSpec;

use support::{STREAM, clean_names, device, good, judge, names, read};

#[test]
fn a_launcher_with_guards_contains_every_fault() {
    let report = judge(good);
    assert!(report.passed(), "{report}");
    assert_eq!(report.calls[&CallKind::Alloc], 1);
    assert_eq!(report.total_calls(), 4);
    // Three calls can fail at once and one later, each once and persistently.
    assert_eq!((report.fired(), report.contained()), (8, 8));
}

#[test]
fn a_launcher_that_forgets_its_scratch_on_failure_leaks_bytes_and_the_place_is_named() {
    let report = judge(|device: &DeviceRef| {
        let ptr = device.alloc(64, STREAM)?; // the leak
        device.memset(ptr, 3, 64, STREAM)?;
        device.synchronize(STREAM)?;
        device.free(ptr, STREAM).map(|()| vec![1])
    });
    assert_eq!(names(&report), ["LeakedBytes"]);
    let line =
        include_str!("detector.rs").lines().position(|line| line.ends_with("// the leak")).unwrap() + 1;
    let Some(Outcome::LeakedBytes { baseline, held, allocations }) =
        report.escaped().next().map(|step| step.outcomes[0].clone())
    else {
        panic!("{report}")
    };
    assert_eq!((baseline, held, allocations.len()), (0, 64, 1));
    assert_eq!((allocations[0].bytes, allocations[0].stream), (64, 0));
    assert_eq!(allocations[0].site, format!("fault-injection/tests/detector.rs:{line}"));
    let text = format!(
        "LeakedBytes: 64 bytes held, baseline 0\n    64 bytes on stream 0 from {}",
        allocations[0].site
    );
    assert!(report.to_string().contains(&text), "{report}");
    for step in ["memset (call 2, once, at-call)", "memset (call 1, persistent, at-next-synchronize)"] {
        assert!(report.to_string().contains(step), "{report}");
    }
}

/// The pool is the witness even for what the ledger has never heard of.
#[test]
fn a_leak_past_the_ledger_is_seen_by_the_pool_and_cannot_be_cleared_away() {
    let device = device();
    let report = sweep(&device, &SweepOptions::default(), |handle: &DeviceRef| {
        good(handle).inspect_err(|_| drop(device.inner().alloc(48, STREAM)))
    })
    .unwrap();
    let leak = Outcome::LeakedBytes { baseline: 0, held: 48, allocations: vec![] };
    let detail = "the pool holds 48 bytes, baseline 0, after all has been freed".to_owned();
    assert_eq!(report.steps[0].outcomes, [leak, Outcome::DirtyAfter { detail }], "{report}");
}

#[test]
fn a_launcher_that_leaks_on_success_is_found_without_any_fault() {
    let report = judge(|device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        std::mem::forget(Scratch::new(device, 64, STREAM)?);
        Ok(vec![1])
    });
    assert_eq!(clean_names(&report), ["LeakedBytes"]);
    assert!(!report.passed());
}

#[test]
fn a_launcher_that_ignores_an_error_swallows_it() {
    let report = judge(|device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let scratch = Scratch::new(device, 64, STREAM)?;
        let _ = device.memset(scratch.ptr(), 3, 64, STREAM);
        scratch.release()?;
        Ok(vec![1])
    });
    assert_eq!(names(&report), ["Swallowed"]);
    // At the call nobody hears of it; at the next wait the sweep's own does.
    assert_eq!(report.escaped().count(), 2);
}

#[test]
fn a_launcher_that_drops_a_late_error_swallows_it() {
    let report = judge(|device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let scratch = Scratch::new(device, 64, STREAM)?;
        device.memset(scratch.ptr(), 3, 64, STREAM)?;
        let _ = device.synchronize(STREAM);
        scratch.release()?;
        Ok(vec![1])
    });
    let late = report.escaped().filter(|step| step.call == Call::Memset).count();
    assert_eq!((names(&report), late), (vec!["Swallowed"], 2));
}

#[test]
fn a_launcher_that_reports_its_own_error_masks_the_first() {
    let report =
        judge(|device: &DeviceRef| good(device).map_err(|error| format!("attention failed: {error}")));
    assert_eq!(names(&report), ["Masked"]);
    assert_eq!(report.contained(), 0);
    let Outcome::Masked { reported } = &report.steps[0].outcomes[0] else { panic!("{report}") };
    assert!(reported.starts_with("attention failed: alloc"), "{reported}");
}

#[test]
fn a_launcher_that_reports_a_later_error_masks_the_first() {
    let launcher = |device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let scratch = Scratch::new(device, 64, STREAM)?;
        let filled = device.memset(scratch.ptr(), 3, 64, STREAM);
        device.synchronize(STREAM)?;
        filled.map(|()| vec![1])
    };
    let report = judge(launcher);
    assert_eq!(names(&report), ["Masked"]);
    assert!(report.escaped().all(|step| step.repeat == Repeat::Persistent), "{report}");
}

#[test]
fn a_launcher_that_unwraps_panics() {
    let report = catch_unwind(|| {
        judge(|device: &DeviceRef| -> DeviceResult<Vec<u8>> {
            let scratch = Scratch::new(device, 64, STREAM).expect("memory is never short");
            let bytes = read(device, &scratch)?;
            scratch.release()?;
            Ok(bytes)
        })
    })
    .expect("the panic is caught");
    assert_eq!(names(&report), ["Panicked"]);
    assert!(report.to_string().contains("memory is never short"), "{report}");
}

#[test]
fn a_launcher_that_forgets_handles_leaks_them_by_kind() {
    let report = judge(|device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let stream = device.create_stream()?;
        let event = device.create_event()?;
        device.begin_capture(stream)?;
        device.record_event(event, STREAM)?;
        let graph = device.end_capture(stream)?;
        device.launch_graph(graph, stream)?;
        device.destroy_graph(graph)?;
        device.destroy_event(event)?;
        device.destroy_stream(stream)?;
        Ok(vec![1])
    });
    assert_eq!(names(&report), ["LeakedHandles"]);
    let leaked = |kind: HandleKind| {
        let leaks = |outcome: &Outcome| matches!(outcome, Outcome::LeakedHandles { handles } if handles.iter().any(|h| h.kind == kind));
        report.steps.iter().any(|step| step.outcomes.iter().any(leaks))
    };
    for kind in [HandleKind::Stream, HandleKind::Event, HandleKind::Graph, HandleKind::OpenCapture] {
        assert!(leaked(kind), "{kind:?}: {report}");
    }
}

#[test]
fn a_launcher_that_changes_its_calls_is_nondeterministic() {
    let runs = AtomicU64::new(0);
    let report = judge(|device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        for _ in 0..=runs.fetch_add(1, Ordering::Relaxed) % 2 {
            Scratch::new(device, 64, STREAM)?.release()?;
        }
        Ok(vec![1])
    });
    assert!(clean_names(&report).contains(&"Nondeterministic"), "{report}");
    assert!(names(&report).contains(&"Nondeterministic"), "{report}");
}

#[test]
fn a_launcher_that_keeps_a_half_made_state_is_dirty_after() {
    let half_made = std::cell::Cell::new(false);
    let report = judge(|device: &DeviceRef| {
        let value = if half_made.replace(true) { 9 } else { 3 };
        let scratch = Scratch::new(device, 4, STREAM)?;
        device.memset(scratch.ptr(), value, 4, STREAM)?;
        let bytes = read(device, &scratch)?;
        scratch.release()?;
        half_made.set(false);
        DeviceResult::Ok(bytes)
    });
    assert_eq!(names(&report), ["DirtyAfter"]);
    assert_eq!(clean_names(&report), ["Contained"]);
}

#[test]
fn a_launcher_that_frees_the_memory_of_others_is_dirty_after() {
    let device = device();
    let handle = device.handle();
    let foreign = std::cell::Cell::new(handle.alloc(128, STREAM).unwrap());
    let report = sweep(&device, &SweepOptions::default(), |device: &DeviceRef| {
        let result = good(device);
        if result.is_err() {
            device.free(foreign.get(), STREAM)?;
            foreign.set(device.alloc(32, STREAM)?);
        }
        result
    })
    .unwrap();
    let of_others = |o: &Outcome| {
        matches!(o, Outcome::DirtyAfter { detail } if detail.contains("memory of others")
            && detail.contains("128 bytes on stream 0 from fault-injection/tests/detector.rs:"))
    };
    assert!(report.steps.iter().any(|step| step.outcomes.iter().any(of_others)), "{report}");
}

#[test]
fn other_memory_in_place_of_that_of_others_is_no_substitute() {
    let device = device();
    let foreign = std::cell::Cell::new(device.alloc(128, STREAM).unwrap());
    let report = sweep(&device, &SweepOptions::default(), |device: &DeviceRef| {
        let result = good(device);
        if result.is_err() {
            device.free(foreign.get(), STREAM)?;
            foreign.set(device.alloc(128, STREAM)?);
        }
        result
    })
    .unwrap();
    // The pool holds as much as before, and only the ledger knows better.
    let outcomes = &report.steps[0].outcomes;
    assert!(matches!(outcomes[0], Outcome::LeakedBytes { baseline: 128, held: 128, .. }), "{report}");
    let Outcome::DirtyAfter { detail } = &outcomes[1] else { panic!("{report}") };
    assert!(detail.starts_with("memory of others was freed: 128 bytes held, baseline 128"), "{detail}");
}

#[test]
fn what_is_left_behind_is_cleared_away_and_nothing_else() {
    let device = device();
    let (memory, stream, recording) = (
        device.alloc(128, STREAM).unwrap(),
        device.create_stream().unwrap(),
        device.create_stream().unwrap(),
    );
    let event = device.create_event().unwrap();
    device.begin_capture(stream).unwrap();
    let graph = device.end_capture(stream).unwrap();
    device.begin_capture(recording).unwrap();
    let before = device.snapshot();
    let leaks_whatever_is_open = |device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let stream = device.create_stream()?;
        let ptr = device.alloc(64, stream)?;
        let event = device.create_event()?;
        device.begin_capture(stream)?;
        device.memset(ptr, 1, 64, stream)?;
        let graph = device.end_capture(stream)?;
        device.launch_graph(graph, stream)?;
        device.synchronize(stream)?;
        device.destroy_graph(graph)?;
        device.destroy_event(event)?;
        device.free(ptr, stream)?;
        device.destroy_stream(stream)?;
        Ok(vec![1])
    };
    let report = sweep(&device, &SweepOptions::default(), leaks_whatever_is_open).unwrap();
    assert_eq!(names(&report), ["LeakedHandles", "LeakedBytes"]);
    // Each leak is reported by the run that left it, and by no later one.
    for outcome in report.steps.iter().flat_map(|step| &step.outcomes) {
        match outcome {
            Outcome::LeakedBytes { baseline, held, .. } => assert_eq!((*baseline, *held), (128, 192)),
            Outcome::LeakedHandles { handles } => assert!(handles.len() <= 3, "{handles:?}"),
            _ => {}
        }
    }
    let after = device.snapshot();
    assert_eq!((after.allocations_since(&before), after.missing_since(&before)), (vec![], vec![]));
    assert_eq!((after.handles_since(&before), before.handles_since(&after)), (vec![], vec![]));
    assert_eq!(device.pool().unwrap().used, 128);
    device.end_capture(recording).unwrap();
    device.launch_graph(graph, stream).unwrap();
    device.destroy_event(event).unwrap();
    device.free(memory, STREAM).unwrap();
}

#[test]
fn broken_rules_are_reported_with_the_run_that_broke_them() {
    let report = judge(|device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let scratch = Scratch::new(device, 64, STREAM)?;
        let ptr = scratch.ptr();
        device.memset(ptr, 3, 64, STREAM)?;
        if let Err(error) = device.synchronize(STREAM) {
            drop(scratch);
            let _ = device.free(ptr, STREAM);
            return Err(error);
        }
        scratch.release()?;
        Ok(vec![1])
    });
    assert_eq!(names(&report), ["Misused"]);
    let double =
        |o: &Outcome| matches!(o, Outcome::Misused { misuses } if misuses[0].kind == MisuseKind::DoubleFree);
    assert!(report.escaped().all(|step| step.outcomes.iter().any(double)), "{report}");
}

#[test]
fn failing_frees_may_not_hide_the_first_error() {
    let options = SweepOptions { fail_frees: true, ..SweepOptions::default() };
    let report = sweep(&device(), &options, good).unwrap();
    assert!(report.passed(), "{report}");
    assert_eq!(report.fired(), 10, "the free is swept, too");

    let masking = |device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let scratch = Scratch::new(device, 64, STREAM)?;
        let filled = device.memset(scratch.ptr(), 3, 64, STREAM);
        scratch.release()?;
        filled.map(|()| vec![1])
    };
    assert!(sweep(&device(), &SweepOptions::default(), masking).unwrap().passed());
    assert_eq!(names(&sweep(&device(), &options, masking).unwrap()), ["Masked"]);
}

#[test]
fn what_could_not_be_given_back_because_that_failed_is_not_leaked() {
    let launcher = |device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        let stream = OwnedStream::new(device)?;
        let event = OwnedEvent::new(device)?;
        let capture = Capture::begin(device, stream.id())?;
        let graph = capture.end()?;
        device.launch_graph(graph.id(), stream.id())?;
        device.record_event(event.id(), stream.id())?;
        device.synchronize(stream.id())?;
        graph.release()?;
        event.release()?;
        stream.release()?;
        Ok(vec![1])
    };
    let options = SweepOptions { fail_frees: true, ..SweepOptions::default() };
    let report = sweep(&device(), &options, launcher).unwrap();
    assert!(report.passed(), "{report}");
    for call in [Call::DestroyGraph, Call::DestroyEvent, Call::DestroyStream] {
        let swept = report.steps.iter().filter(|step| step.call == call).count();
        assert_eq!(swept, 2, "{call}");
    }
}

#[test]
fn a_launcher_that_loads_other_kernels_after_a_failure_leaks_modules() {
    let load = |device: &DeviceRef, entry: &'static str| {
        device.load_kernel(&KernelSpec { file: "none.cu", entry, defines: vec![] })
    };
    let usual = |device: &DeviceRef| -> DeviceResult<Vec<u8>> {
        load(device, "usual")?;
        good(device)
    };
    let report = judge(usual);
    assert!(report.passed(), "what a clean run loads is kept on purpose: {report}");
    let report = judge(|device: &DeviceRef| usual(device).inspect_err(|_| drop(load(device, "other"))));
    assert_eq!(names(&report), ["LeakedHandles"]);
    let Some(Outcome::LeakedHandles { handles }) = report.escaped().next().map(|step| &step.outcomes[0])
    else {
        panic!("{report}")
    };
    assert_eq!(handles.iter().map(|handle| handle.kind).collect::<Vec<_>>(), [HandleKind::Module]);
    assert!(handles[0].site.contains("other"), "{handles:?}");
}
