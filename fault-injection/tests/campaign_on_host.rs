//! The whole report on host memory, which poses as whatever device a line needs: a card that loses its context, a card too old
//! for an arm, a pool that never gets anything back.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fault_injection::campaign::{self, Line, Selection, Surroundings, Verdict};
use fault_injection::exhaustion::just_below;
use fault_injection::operations::Operation;
use fault_injection::{
    Child, FaultyDevice, HostDevice, Outcome, Repeat, Step, SweepError, WithoutFrees, sticky,
};
use kernels::device::{
    Device, DeviceError, DeviceInfo, DeviceKind, DevicePtr, DeviceRef, DeviceResult, KernelId, LaunchConfig,
    StreamId,
};
use kernels::source::{KernelSpec, SourceSet};

/// A device that says it is another.
struct Posing {
    inner: DeviceRef,
    kind: DeviceKind,
    capability: (u32, u32),
}

impl Device for Posing {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { kind: self.kind, capability: self.capability, ..self.inner.info() }
    }

    kernels::forward_device! { inner:
        create_stream destroy_stream alloc free copy_to_device copy_to_host copy_on_device memset
        load_kernel launch launch_counts create_event destroy_event record_event wait_event elapsed_ms
        begin_capture end_capture launch_graph destroy_graph pool reset_high_water synchronize
    }
}

fn host(limit: Option<u64>) -> DeviceRef {
    Arc::new(HostDevice::new(limit))
}

/// Without `pools`, no device with a ceiling can be opened, which spares the filling of it.
fn posing(
    (kind, capability): (DeviceKind, (u32, u32)),
    pools: bool,
) -> impl Fn(SourceSet, Option<u64>) -> DeviceResult<DeviceRef> {
    move |_, limit| match limit {
        Some(_) if !pools => Err(DeviceError::Environment("no pools here".to_owned())),
        limit => Ok(Arc::new(Posing { inner: host(limit), kind, capability })),
    }
}

const HOST: (DeviceKind, (u32, u32)) = (DeviceKind::Simt, (9, 0));
const CARD: (DeviceKind, (u32, u32)) = (DeviceKind::Cuda, (9, 0));
const OLD_CARD: (DeviceKind, (u32, u32)) = (DeviceKind::Cuda, (7, 0));

type Open<'a> = &'a dyn Fn(SourceSet, Option<u64>) -> DeviceResult<DeviceRef>;
type Spawn<'a> = &'a dyn Fn(Child) -> Result<String, String>;

fn report(open: Open<'_>, spawn: Spawn<'_>, arms: &[&str]) -> Vec<Line> {
    let sources = SourceSet::load().expect("kernel sources");
    let arms = arms.iter().map(|arm| (*arm).to_owned()).collect();
    let selection = Selection { arms, repeats: vec![Repeat::Once] };
    let lines =
        campaign::run(&Surroundings { open, spawn, sources }, &selection, |_| ControlFlow::Continue(()));
    let lines = lines.expect("a device");
    assert_eq!(lines.len(), campaign::planned(&selection));
    lines
}

fn all_is_well(child: Child) -> Result<String, String> {
    Ok(child.name().to_owned())
}

fn line<'a>(lines: &'a [Line], name: &str) -> &'a Line {
    lines.iter().find(|line| line.name == name).unwrap_or_else(|| panic!("no line {name}"))
}

const EXIT: &str = "guards left to process exit";
const STICKY: &str = "a trapping kernel, then a fresh process";

#[test]
fn every_line_of_a_device_without_a_context_passes_but_the_one_that_needs_a_context() {
    let lines = report(&posing(HOST, true), &all_is_well, &[]);
    for line in lines.iter().filter(|line| line.name != STICKY) {
        assert_eq!(line.verdict, Verdict::Passed, "{}", line.name);
        assert!(line.fired > 0 && line.contained == line.fired, "{}: {} fired", line.name, line.fired);
        assert!(line.steps.is_empty() || line.steps.len() as u64 == line.fired, "{}", line.name);
    }
    assert!(matches!(line(&lines, STICKY).verdict, Verdict::Skipped { .. }));
    // An arm's lines name it, and nothing else has an arm.
    let arms: Vec<_> =
        lines.iter().filter(|line| line.arm.is_none()).map(|line| line.name.as_str()).collect();
    assert_eq!(arms.len(), 5, "{arms:?}");
    for name in ["store", "two streams, frees failing too", "identity copy after both allocations"] {
        let steps = &line(&lines, name).steps;
        assert!(!steps.is_empty(), "{name}");
        let as_asked = |step: &Step| {
            step.repeat == Repeat::Once && step.fail_frees == name.ends_with("frees failing too")
        };
        assert!(steps.iter().all(as_asked), "{name}: {steps:?}");
    }
    let canary = line(&lines, "identity copy after both allocations, frees disabled: noticed");
    assert!(canary.remark.as_ref().unwrap().contains("24584 bytes held, baseline 12288"), "{canary:?}");
    let full = line(&lines, "split-KV decode in a full pool").remark.as_ref().unwrap();
    assert!(full.contains("bytes of a 1048576-byte pool; with one more: "), "{full}");
}

#[test]
fn a_card_gets_a_larger_pool() {
    let lines = report(&posing(CARD, true), &all_is_well, &["mma"]);
    let full = line(&lines, "split-KV decode in a full pool").remark.as_ref().unwrap();
    assert!(full.contains("bytes of a 67108864-byte pool; with one more: "), "{full}");
}

#[test]
fn a_card_has_a_context_to_lose() {
    let lines = report(&posing(CARD, false), &all_is_well, &[]);
    let sticky = line(&lines, STICKY);
    assert_eq!(sticky.verdict, Verdict::Passed);
    assert_eq!((sticky.fired, sticky.contained, sticky.remark.as_deref()), (1, 1, Some("sticky")));
}

fn failed(line: &Line) -> &[String] {
    match &line.verdict {
        Verdict::Failed { details } => details,
        other => panic!("{}: {other:?}", line.name),
    }
}

#[test]
fn a_device_that_gets_nothing_back_fails_every_line_that_frees() {
    let open = |_: SourceSet, limit| DeviceResult::Ok(WithoutFrees::wrap(&host(limit)));
    let lines = report(&open, &all_is_well, &[]);
    for name in
        ["fp8-dense prefill", "identity copy after both allocations", "guards dropped while a panic unwinds"]
    {
        let line = line(&lines, name);
        let details = failed(line);
        assert!(line.contained < line.fired, "{name}: {} of {}", line.contained, line.fired);
        assert!(details.iter().any(|detail| detail.contains("bytes held")), "{name}: {details:?}");
    }
    assert!(failed(line(&lines, "fp8-dense prefill"))[0].starts_with("without faults: LeakedBytes"));
}

#[test]
fn an_arm_that_the_device_does_not_serve_is_skipped() {
    let lines = report(&posing(OLD_CARD, false), &all_is_well, &["mma", "store"]);
    let names: Vec<_> =
        lines.iter().map(|line| line.name.as_str()).filter(|name| !name.contains(',')).collect();
    assert_eq!(names, ["store", "mma prefill", "split-KV decode", "split-KV decode in a full pool"]);
    assert!(matches!(line(&lines, "mma prefill").verdict, Verdict::Skipped { .. }), "{:?}", lines[0].verdict);
    assert_eq!(line(&lines, "store").verdict, Verdict::Passed);
}

#[test]
fn a_process_that_ends_badly_fails_its_line() {
    let open = posing(CARD, false);
    let only_cases = |child: Child| match child {
        Child::Plain => Ok("as before".to_owned()),
        other => Err(format!("{}: signal 11", other.name())),
    };
    let lines = report(&open, &only_cases, &[]);
    for (name, said) in [(EXIT, "exit: signal 11"), (STICKY, "sticky: signal 11")] {
        let line = line(&lines, name);
        assert_eq!((failed(line), line.fired, line.contained), (&[said.to_owned()][..], 1, 0));
    }
    let no_cases =
        |child: Child| if child == Child::Plain { Err("no process".to_owned()) } else { all_is_well(child) };
    let lines = report(&open, &no_cases, &[]);
    let full = &line(&lines, "split-KV decode in a full pool").verdict;
    assert!(matches!(full, Verdict::NoVerdict { reason } if reason.contains("no pools here")), "{full:?}");
    assert_eq!(line(&lines, EXIT).verdict, Verdict::Passed);
    assert_eq!(line(&lines, STICKY).verdict, Verdict::NoVerdict { reason: "no process".to_owned() });
}

#[test]
fn a_trap_that_changes_the_next_case_fails_its_line() {
    let cases = Cell::new(0);
    let spawn = |child: Child| match child {
        Child::Plain => Ok(format!("case {}", cases.replace(cases.get() + 1))),
        other => all_is_well(other),
    };
    let lines = report(&posing(CARD, false), &spawn, &[]);
    let details = failed(line(&lines, STICKY));
    assert_eq!(details, [r#"the next case gives Ok("case 1"), before the trap case 0"#]);
}

/// What a device does from the moment on in which its kernel traps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trap {
    /// As a card: every call fails, and says that it always will.
    LosesTheContext,
    /// The wait fails, and what follows works.
    IsReportedOnce,
    /// The wait fails as if something else had.
    IsReportedAsOther,
    /// Later calls fail as if something else had.
    LaterFailsOtherwise,
}

struct Trapping {
    inner: HostDevice,
    trap: Trap,
    kernel: AtomicU64,
    trapped: AtomicBool,
}

impl Trapping {
    fn device(trap: Trap) -> DeviceRef {
        let (kernel, trapped) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        Arc::new(Self { inner: HostDevice::new(None), trap, kernel, trapped })
    }

    fn error(call: &'static str, sticky: bool) -> DeviceError {
        DeviceError::Driver { call, code: "CUDA_ERROR_TEST".to_owned(), message: String::new(), sticky }
    }
}

impl Device for Trapping {
    fn load_kernel(&self, spec: &KernelSpec) -> DeviceResult<KernelId> {
        let kernel = self.inner.load_kernel(spec)?;
        if spec.entry == "trap" {
            self.kernel.store(kernel.0, Ordering::Relaxed);
        }
        Ok(kernel)
    }

    fn launch(
        &self,
        kernel: KernelId,
        config: LaunchConfig,
        params: &[u8],
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.inner.launch(kernel, config, params, stream)?;
        if kernel.0 == self.kernel.load(Ordering::Relaxed) {
            self.trapped.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.inner.synchronize(stream)?;
        match (self.trapped.load(Ordering::Relaxed), self.trap) {
            (false, _) => Ok(()),
            (true, Trap::IsReportedAsOther) => Err(Self::error("synchronize", false)),
            (true, _) => Err(Self::error("synchronize", true)),
        }
    }

    fn memset(&self, dst: DevicePtr, value: u8, bytes: u64, stream: StreamId) -> DeviceResult<()> {
        match (self.trapped.load(Ordering::Relaxed), self.trap) {
            (true, Trap::LosesTheContext) => Err(Self::error("memset", true)),
            (true, Trap::LaterFailsOtherwise) => Err(Self::error("memset", false)),
            _ => self.inner.memset(dst, value, bytes, stream),
        }
    }

    kernels::forward_device! { inner:
        info create_stream destroy_stream alloc free copy_to_device copy_to_host copy_on_device
        launch_counts create_event destroy_event record_event wait_event elapsed_ms
        begin_capture end_capture launch_graph destroy_graph pool reset_high_water
    }
}

/// Kernels of the host device do nothing, so what comes back is what was there before them: NaN, and a cache of zeros.
#[test]
fn results_are_cleared_before_every_call_and_are_as_wide_as_the_query() {
    let run = |name: &str| {
        let device = host(None);
        let operation = Operation::ALL.iter().find(|operation| operation.name == name).expect(name);
        operation.prepare(&device).and_then(|mut run| run(&device)).expect(name)
    };
    let (rows, dim) = (5 * 4, 64);
    assert_eq!(run("fp8-dense prefill"), vec![0xff; rows * dim * 2 + rows * 4]);
    assert_eq!(run("fp8-dense prefill, f32 query"), vec![0xff; rows * dim * 4 + rows * 4]);
    assert_eq!(run("split-KV decode"), vec![0xff; 4 * dim * 2 + 4 * 4], "one row");
    let cache = run("store");
    assert!(cache.len() > 1000 && cache.iter().all(|byte| *byte == 0), "{} bytes", cache.len());
}

#[test]
fn a_decode_has_keys_for_more_than_one_split() {
    let device = host(None);
    let decode = Operation::ALL.iter().find(|operation| operation.name == "split-KV decode").unwrap();
    let _inputs = decode.prepare(&device).unwrap();
    // K and V of two heads of 64 elements in bf16, for at least one key tile of 64 keys and some more.
    let bytes_of_a_key = 2 * 2 * 64 * 2;
    assert!(device.pool().unwrap().used > 66 * bytes_of_a_key);
}

#[test]
fn an_operation_just_does_not_fit_beside_what_others_hold() {
    const LIMIT: u64 = 1 << 20;
    for name in ["fp8-dense prefill", "split-KV decode"] {
        let operation = Operation::ALL.iter().find(|operation| operation.name == name).unwrap();
        // What the operation needs, inputs included, is the high-water mark of a pool without a ceiling.
        let free = host(None);
        let mut run = operation.prepare(&free).unwrap();
        run(&free).unwrap();
        let needed = free.pool().unwrap().high_water;
        for limit in [LIMIT, LIMIT - 1, needed + 1] {
            let device = FaultyDevice::new(host(Some(limit)));
            let found = just_below(&device, limit, operation).unwrap();
            assert_eq!((found.fits_beside, found.outcomes), (limit - needed, vec![Outcome::Contained]));
            assert!(found.reported.contains(&format!("limit {limit}")), "{}", found.reported);
            assert_eq!(device.pool().unwrap().used, 0);
        }
        let roomy = FaultyDevice::new(host(None));
        let error = just_below(&roomy, LIMIT, operation).unwrap_err();
        assert!(matches!(error, SweepError::NeverExhausted { limit: LIMIT }), "{error}");
    }
}

#[test]
fn a_lost_context_is_reported_by_the_wait_and_by_what_follows() {
    let operation = &Operation::ALL[3];
    let provoke = |trap| sticky::provoke(&Trapping::device(trap), operation);
    let lost = provoke(Trap::LosesTheContext).expect("a card behaves so");
    assert_eq!(lost.reported, "synchronize: CUDA_ERROR_TEST");
    assert_eq!(lost.later, "memset: CUDA_ERROR_TEST");
    for (trap, problem) in [
        (Trap::IsReportedOnce, "the next operation succeeded in a lost context"),
        (Trap::IsReportedAsOther, "the trap was not reported as sticky"),
        (Trap::LaterFailsOtherwise, "the next operation did not report the lost context"),
    ] {
        let said = provoke(trap).expect_err("it is noticed");
        assert!(said.starts_with(problem), "{trap:?}: {said}");
    }
    let unnoticed = sticky::provoke(&host(None), operation).expect_err("host memory traps nothing");
    assert_eq!(unnoticed, "the trap was not noticed");
}

#[test]
fn every_task_has_a_name_that_parses_back() {
    for child in [Child::Plain, Child::Sticky, Child::Exit] {
        assert_eq!(child.name().parse(), Ok(child));
    }
    assert_eq!("Plain".parse::<Child>().unwrap_err().value, "Plain");
}

#[test]
fn a_child_does_its_task_and_says_what_came_of_it() {
    let sources = || SourceSet::load().expect("kernel sources");
    let run = |child: Child, device: DeviceRef| child.run(|_| Ok(device), sources());
    // Kernels of the host device do nothing: results stay as they were cleared.
    let plain = run(Child::Plain, host(None)).unwrap();
    assert!(plain.len() > 2 && plain.bytes().all(|byte| byte == b'f'), "{plain}");
    assert_eq!(run(Child::Exit, host(None)).unwrap(), "left");
    let lost = run(Child::Sticky, Trapping::device(Trap::LosesTheContext)).unwrap();
    assert_eq!(lost, "reported synchronize: CUDA_ERROR_TEST, then memset: CUDA_ERROR_TEST");
}
