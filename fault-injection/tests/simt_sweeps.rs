//! Every operation of the project, with every call failing in turn, on the simt device.

use std::sync::Arc;

use fault_injection::operations::Operation;
use fault_injection::operations::founding::{BASELINE_BYTES, Founding};
use fault_injection::{FaultyDevice, Outcome, SweepOptions, sweep};
use kernels::device::DeviceRef;
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::SourceSet;
use rstest::rstest;

fn device(mode: Mode) -> Arc<FaultyDevice<SimtDevice>> {
    let options = SimtOptions { mode, ..SimtOptions::new(SourceSet::load().expect("kernel sources")) };
    FaultyDevice::new(SimtDevice::new(options).expect("a simt device"))
}

/// Operations by position, so that each is a test of its own and several run at once.
fn operation(index: usize) -> &'static Operation {
    assert_eq!(Operation::ALL.len(), 14, "every operation has a position below");
    &Operation::ALL[index]
}

#[rstest]
fn every_fault_of_every_operation_is_contained(
    #[values(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)] index: usize,
    #[values(false, true)] fail_frees: bool,
) {
    let operation = operation(index);
    let device = device(Mode::Fast);
    let mut run = operation.prepare(&device.handle()).expect("inputs");
    let options = SweepOptions { fail_frees, ..SweepOptions::default() };
    let report = sweep(&device, &options, |device: &DeviceRef| run(device)).expect(operation.name);
    println!("{}: {report}", operation.name);
    assert!(report.passed(), "{}: {report}", operation.name);
    assert_eq!(report.unsurfaced, 0, "{}", operation.name);
    // Most calls fail at once, and the fills and launches late as well, each of them once and persistently.
    assert!(report.fired() >= report.total_calls() + 6, "{}: {report}", operation.name);
    drop(run);
    assert_eq!(device.snapshot().bytes(), 0, "{} keeps its inputs", operation.name);
}

/// The sweep runs uninstrumented; one run of each operation is held to every rule of the checked device.
#[rstest]
fn a_clean_run_of_every_operation_has_no_findings_and_writes_every_result(
    #[values(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)] index: usize,
) {
    let operation = operation(index);
    let results = [Mode::Fast, Mode::Checked].map(|mode| {
        let device = device(mode);
        let mut run = operation.prepare(&device.handle()).expect("inputs");
        let result = run(&device.handle()).unwrap_or_else(|error| panic!("{}: {error}", operation.name));
        assert_eq!(device.take_misuses(), [], "{}", operation.name);
        result
    });
    assert_eq!(results[0], results[1], "{}", operation.name);
    // Results were filled with NaN before the call, the cache with zeros before the store.
    let poison = results[0].chunks_exact(4).filter(|word| **word == [0xff; 4]).count();
    assert_eq!(poison, 0, "{}", operation.name);
    let distinct: std::collections::BTreeSet<_> = results[0].chunks_exact(4).collect();
    assert!(distinct.len() > results[0].len() / 64, "{}: {} distinct words", operation.name, distinct.len());
}

#[test]
fn the_founding_cases_are_contained() {
    for case in Founding::ALL {
        let step = case.check(&device(Mode::Fast)).expect("inputs").expect("the fault fires");
        assert!(step.contained(), "{}: {step}", case.name());
    }
}

#[test]
fn with_frees_thrown_away_the_founding_cases_fail_and_print_both_byte_counts() {
    let left = [
        (Founding::IdentityTableAllocation, 24576, vec![12288]),
        (Founding::IdentityCopy, 24584, vec![12288, 8]),
    ];
    for (case, held_bytes, sizes) in left {
        let device = device(Mode::Fast);
        let step = case.check_without_frees(&device).expect("inputs").expect("the fault fires");
        let [Outcome::LeakedBytes { baseline, held, allocations }] = step.outcomes.as_slice() else {
            panic!("{}: {step}", case.name())
        };
        assert_eq!((*baseline, *held), (BASELINE_BYTES, held_bytes), "{}", case.name());
        let mut leaked: Vec<_> = allocations.iter().map(|allocation| allocation.bytes).collect();
        leaked.sort_by_key(|bytes| std::cmp::Reverse(*bytes));
        assert_eq!(leaked, sizes, "{}", case.name());
        assert!(allocations.iter().all(|a| a.site.starts_with("kernels/src/dense.rs:")), "{step}");
        let text = step.to_string();
        assert!(text.contains(&format!("{held_bytes} bytes held, baseline 12288")), "{text}");
    }
}
