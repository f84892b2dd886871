//! Every barrier of the scalar kernel is needed, and the checked device says so when one is missing: a barrier that could go
//! unnoticed is either superfluous or unguarded.

#[path = "support/attention.rs"]
mod attention;
mod support;

use attention::{Batch, Problem};
use kernels::arm::Arm;
use kernels::device::{DeviceError, FindingKind};
use kernels::launch::paged_attention;
use kernels::simt::Mode;
use kernels::source::SourceSet;
use kernels::tensor::DType;
use support::{STREAM, device_with};

const BARRIER: &str = "__syncthreads();";

fn run(text: &str) -> Result<(), DeviceError> {
    let sources = SourceSet::load().unwrap().with_file("scalar.cu", text);
    let device = device_with(Mode::Checked, sources);
    let batch = Batch::new(&device, Problem::new(DType::F32, DType::Bf16, (2, 1), 64).lens(&[5], &[70]), 1);
    paged_attention(&device, STREAM, Arm::Scalar, &batch.args).expect("a launch");
    device.synchronize(STREAM)
}

#[test]
fn the_kernel_as_it_is_has_no_findings() {
    run(SourceSet::load().unwrap().get("scalar.cu").unwrap()).unwrap();
}

#[test]
fn each_missing_barrier_is_a_race_with_both_places() {
    let sources = SourceSet::load().unwrap();
    let text = sources.get("scalar.cu").unwrap();
    let barriers: Vec<usize> = text.match_indices(BARRIER).map(|(at, _)| at).collect();
    assert_eq!(barriers.len(), 3);
    for at in barriers {
        let line = text[..at].matches('\n').count() + 1;
        let without = format!("{}{}", &text[..at], &text[at + BARRIER.len()..]);
        let error = run(&without).expect_err("a race");
        let DeviceError::Findings(findings) = &error else { panic!("line {line}: {error}") };
        let race = findings.iter().find(|finding| finding.kind == FindingKind::SharedRace);
        let race = race.unwrap_or_else(|| panic!("line {line}: {error}"));
        for site in [&race.site, &race.other_site] {
            let site = site.as_ref().unwrap_or_else(|| panic!("line {line}: {error}"));
            assert!(site.starts_with("scalar.cu:"), "line {line}: {error}");
        }
    }
}
