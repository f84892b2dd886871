//! The whole report for one arm, and a pool that is really full.

use std::ops::ControlFlow;
use std::sync::Arc;

use fault_injection::campaign::{self, Selection, Surroundings, Verdict};
use fault_injection::exhaustion::just_below;
use fault_injection::operations::Operation;
use fault_injection::{Child, FaultyDevice, Outcome, Repeat};
use kernels::arm::Arm;
use kernels::device::{DeviceRef, DeviceResult};
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::SourceSet;
use rstest::rstest;

const LIMIT: u64 = 1 << 20;

fn open(sources: SourceSet, memory_limit: Option<u64>) -> DeviceResult<DeviceRef> {
    Ok(SimtDevice::new(SimtOptions { mode: Mode::Fast, memory_limit, ..SimtOptions::new(sources) })?)
}

fn no_processes(_: Child) -> Result<String, String> {
    Err("no processes here".to_owned())
}

fn surroundings() -> Surroundings<'static> {
    Surroundings { open: &open, spawn: &no_processes, sources: SourceSet::load().expect("kernel sources") }
}

fn operation(name: &str) -> &'static Operation {
    Operation::ALL.iter().find(|operation| operation.name == name).expect(name)
}

#[rstest]
#[case("fp8-dense prefill")]
#[case("split-KV decode")]
fn a_pool_one_byte_too_small_is_reported_and_harmless(#[case] name: &str) {
    let sources = || SourceSet::load().expect("kernel sources");
    // What the operation needs, inputs included, is the high-water mark of a pool without a ceiling.
    let free = open(sources(), None).unwrap();
    let mut run = operation(name).prepare(&free).unwrap();
    run(&free).unwrap();
    let needed = free.pool().unwrap().high_water;

    let device = FaultyDevice::new(open(sources(), Some(LIMIT)).unwrap());
    let found = just_below(&device, LIMIT, operation(name)).unwrap();
    assert_eq!(found.outcomes, [Outcome::Contained]);
    assert_eq!(found.fits_beside, LIMIT - needed);
    assert!(found.reported.contains(&format!("limit {LIMIT}")), "{}", found.reported);
    assert_eq!(device.snapshot().bytes(), 0);
}

#[test]
fn the_report_of_one_arm_has_its_sweeps_and_nothing_else() {
    let selection = Selection { arms: vec![Arm::Mma.name().to_owned()], repeats: vec![Repeat::Once] };
    let mut seen = Vec::new();
    let lines = campaign::run(&surroundings(), &selection, |line| {
        seen.push(line.name.clone());
        ControlFlow::Continue(())
    })
    .unwrap();
    let names: Vec<_> = lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "mma prefill",
            "mma prefill, frees failing too",
            "split-KV decode",
            "split-KV decode, frees failing too",
            "split-KV decode in a full pool",
        ]
    );
    assert_eq!(seen, names);
    assert_eq!(campaign::planned(&selection), names.len());
    for line in &lines {
        assert_eq!(line.verdict, Verdict::Passed, "{}", line.name);
        assert!(line.fired > 0 && line.fired == line.contained);
    }
    assert!(lines[0].steps.iter().all(|step| step.repeat == Repeat::Once));
    let text = serde_json::to_string(&lines).unwrap();
    assert_eq!(serde_json::from_str::<Vec<campaign::Line>>(&text).unwrap(), lines);
}

#[test]
fn a_report_can_be_broken_off() {
    let selection = Selection { arms: vec!["store".to_owned()], ..Selection::default() };
    let lines = campaign::run(&surroundings(), &selection, |_| ControlFlow::Break(())).unwrap();
    assert_eq!(lines.iter().map(|line| line.name.as_str()).collect::<Vec<_>>(), ["store"]);
    assert_eq!(campaign::planned(&selection), 2);
}

#[test]
fn a_device_that_cannot_be_opened_is_an_error() {
    let closed = |_: SourceSet, _: Option<u64>| -> DeviceResult<DeviceRef> {
        Err(kernels::device::DeviceError::Environment("no device".to_owned()))
    };
    let surroundings = Surroundings { open: &closed, ..surroundings() };
    assert!(campaign::run(&surroundings, &Selection::default(), |_| ControlFlow::Continue(())).is_err());
}

#[test]
fn leaks_outside_the_faulty_device_are_seen_by_the_pool_alone() {
    // The pool is the witness even for what the ledger has never heard of.
    let inner = open(SourceSet::load().expect("kernel sources"), None).unwrap();
    let device = FaultyDevice::new(Arc::clone(&inner));
    let hidden = std::cell::RefCell::new(Vec::new());
    let report =
        fault_injection::sweep(&device, &fault_injection::SweepOptions::default(), |device: &DeviceRef| {
            let stream = kernels::device::StreamId::DEFAULT;
            let result = kernels::scratch::Scratch::new(device, 64, stream)
                .and_then(kernels::scratch::Scratch::release);
            if result.is_err() {
                hidden.borrow_mut().push(inner.alloc(48, stream)?);
            }
            result.map(|()| vec![1])
        })
        .unwrap();
    let leak = Outcome::LeakedBytes { baseline: 0, held: 48, allocations: vec![] };
    assert!(report.steps[0].outcomes.contains(&leak), "{report}");
}
