//! Compiling every kernel that a run needs before its first case, so that compile errors are reported once and compile
//! time is nobody's time limit.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use kernels::device::{DeviceError, DeviceInfo, DeviceKind, DeviceRef};
use kernels::simt::SimtDevice;
use kernels::source::KernelSpec;

use super::recorder::Recorder;
use super::{CompileErrors, Item};
use crate::case::Case;
use crate::devices;
use crate::events::{Consumer, Event};
use crate::executor::DeviceSpec;
use crate::executor::device_side::Devices;
use crate::inputs::{Inputs, Poison, StoreInputs};
use crate::job::{Variant, attention_job, store_job};
use crate::problem::Op;
use crate::run::Settings;
use crate::support;

/// What came of compiling.
pub(super) struct Prepared {
    kernels: usize,
    seconds: f64,
    failed: BTreeMap<String, String>,
    by_item: CompileErrors,
}

impl Prepared {
    /// Tells what was compiled and what does not compile.
    pub fn announce(&self, consumer: &mut dyn Consumer) -> io::Result<()> {
        for (kernel, message) in &self.failed {
            consumer.take(&Event::CompileFailed { kernel: kernel.clone(), message: message.clone() })?;
        }
        consumer.take(&Event::Prepared { kernels: self.kernels, seconds: self.seconds })
    }

    /// Why an item cannot run, if a kernel of its arm does not compile.
    pub fn compile_error(&self, item: usize) -> Option<&str> {
        self.by_item.get(&item).map(String::as_str)
    }
}

/// Kernels by the mode they are compiled for, and which items need them.
type Needs = BTreeMap<(bool, KernelSpec), BTreeSet<usize>>;

/// Compiles what the items need. The error is a failure of the surroundings.
pub(super) fn prepare(items: &[Item], settings: &Settings, jobs: usize) -> Result<Prepared, String> {
    let start = Instant::now();
    let mut prepared =
        Prepared { kernels: 0, seconds: 0.0, failed: BTreeMap::new(), by_item: CompileErrors::new() };
    if settings.device == DeviceKind::Simt && !items.is_empty() {
        let modes = [true, false].map(|checked| open(settings, checked));
        let [checked, fast] = modes;
        let (checked, fast) = (checked?, fast?);
        let needs = needs(items, settings, &kernels::device::Device::info(checked.as_ref()));
        prepared.kernels = needs.len();
        // Both modes at once would keep the same number of compilers busy; one after the other is simpler.
        compile(&checked, true, &needs, jobs, &mut prepared)?;
        compile(&fast, false, &needs, jobs, &mut prepared)?;
    }
    prepared.seconds = start.elapsed().as_secs_f64();
    Ok(prepared)
}

fn open(settings: &Settings, checked: bool) -> Result<Arc<SimtDevice>, String> {
    let spec = DeviceSpec { kind: DeviceKind::Simt, checked, schedule: settings.schedule };
    devices::open_simt(&spec).map_err(|error| error.to_string())
}

fn compile(
    device: &SimtDevice,
    checked: bool,
    needs: &Needs,
    jobs: usize,
    prepared: &mut Prepared,
) -> Result<(), String> {
    let wanted: Vec<_> = needs.iter().filter(|((mode, _), _)| *mode == checked).collect();
    let specs: Vec<KernelSpec> = wanted.iter().map(|((_, spec), _)| spec.clone()).collect();
    for (((_, spec), items), result) in wanted.into_iter().zip(device.prepare(&specs, jobs)) {
        match result {
            Ok(()) => {}
            Err(error @ DeviceError::Compile { .. }) => {
                let summary = format!("kernel {} does not compile", spec.label());
                prepared.failed.entry(spec.label()).or_insert_with(|| error.to_string());
                for item in items {
                    prepared.by_item.entry(*item).or_insert_with(|| summary.clone());
                }
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

/// Finds the kernels of every item by launching it, cut down to a few rows, on a device that only takes notes.
fn needs(items: &[Item], settings: &Settings, info: &DeviceInfo) -> Needs {
    let recorder = Arc::new(Recorder::new(info.clone()));
    let device: DeviceRef = recorder.clone();
    let mut known: BTreeMap<String, Vec<KernelSpec>> = BTreeMap::new();
    let mut needs = Needs::new();
    let served = |item: &Item| support::gap(&item.case, &item.arm).is_none();
    for (index, item) in items.iter().enumerate().filter(|(_, item)| served(item)) {
        let small = cut_down(&item.case);
        let kernels = known.entry(format!("{} {small}", item.arm)).or_insert_with(|| {
            launch(&small, &item.arm, &device);
            recorder.take()
        });
        for kernel in kernels.iter() {
            let main = settings.main_device(&item.case).checked;
            // Runs that only compare bits are never checked; a store has none.
            let modes = if item.case.problem.op == Op::Store { vec![main] } else { vec![main, false] };
            for mode in modes {
                needs.entry((mode, kernel.clone())).or_default().insert(index);
            }
        }
    }
    needs
}

/// Rows of a request beyond which they select no other instance: no tile has more.
const ROWS: usize = 128;
/// Elements of K and V that a case cut down may have. Long enough for splits, whose parts a kernel of its own combines.
const ELEMENTS: usize = 1 << 21;

/// The case with lengths as short as select the same instances, and a fixed seed.
fn cut_down(case: &Case) -> Case {
    let mut small = case.clone();
    small.seed = 0;
    let problem = &mut small.problem;
    let row = problem.num_kv_heads.max(1) * (problem.head_dim + problem.head_dim_v).max(1);
    let keys = (ELEMENTS / row / problem.kv_lens.len().max(1)).max(32);
    problem.query_lens.iter_mut().for_each(|len| *len = (*len).min(ROWS));
    problem.kv_lens.iter_mut().for_each(|len| *len = (*len).min(keys));
    small
}

fn launch(case: &Case, arm: &str, device: &DeviceRef) {
    let spec = DeviceSpec { kind: DeviceKind::Simt, checked: false, schedule: None };
    let job = if case.problem.op == Op::Store {
        StoreInputs::generate(case).ok().map(|inputs| store_job(case, &inputs, &spec))
    } else {
        let variant = Variant::plain(Poison::Zero);
        Inputs::generate(case).ok().map(|inputs| attention_job(case, &inputs, arm, &spec, variant).job)
    };
    if let Some(job) = job {
        // A refusal loads no kernel, which is all that matters here.
        let _ = Devices::with(spec, device.clone()).run(&job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{self, Tier};
    use crate::executor::protocol::Status;
    use crate::generate::{Generated, generate};
    use crate::session::arms_of;

    fn card() -> DeviceInfo {
        DeviceInfo {
            kind: DeviceKind::Simt,
            name: "none".to_owned(),
            capability: (9, 0),
            multiprocessors: 132,
            max_shared_bytes: 232_448,
            versions: String::new(),
        }
    }

    /// A kernel that was not foreseen is compiled in a worker, within a case's time limit.
    #[test]
    fn a_case_cut_down_selects_the_same_kernels() {
        let recorder = Arc::new(Recorder::new(card()));
        let device: DeviceRef = recorder.clone();
        let kernels = |case: &Case, arm: &str| -> BTreeSet<KernelSpec> {
            launch(case, arm, &device);
            recorder.take().into_iter().collect()
        };
        let arms: Vec<String> = support::manifests().iter().map(|s| s.name.clone()).collect();
        let mut items: Vec<(Case, String)> =
            (0..300).map(generate).map(|Generated { case, arm }| (case, arm)).collect();
        for entry in catalogue::entries().unwrap().into_iter().filter(|e| e.tier == Tier::Smoke) {
            items.extend(arms_of(&entry.case, &arms).map(|arm| (entry.case.clone(), arm.clone())));
        }
        for (case, arm) in items.iter().filter(|(case, _)| case.problem.pairs() <= 1 << 16) {
            assert_eq!(kernels(&cut_down(case), arm), kernels(case, arm), "{arm}: {case}");
        }
    }

    /// The manifest is data, the arms' own answer is code: neither may promise what the other does not know.
    #[test]
    fn the_support_manifest_says_what_the_arms_say() {
        let arms: Vec<String> = support::manifests().iter().map(|s| s.name.clone()).collect();
        let spec = DeviceSpec { kind: DeviceKind::Simt, checked: false, schedule: None };
        let (mut served, mut gaps) = (0, 0);
        let mut seen = BTreeSet::new();
        for entry in catalogue::entries().expect("the catalogue reads") {
            let valid = !entry.case.must_reject() && entry.case.problem.op != Op::Store;
            // Lengths and seeds are nothing to a manifest: each shape is asked once.
            let mut small = cut_down(&entry.case);
            small.problem.query_lens = vec![2];
            small.problem.kv_lens = vec![5];
            if !valid || !seen.insert(small.to_string()) {
                continue;
            }
            for arm in arms_of(&small, &arms) {
                let device: DeviceRef = Arc::new(Recorder::new(card()));
                let inputs = Inputs::generate(&small).expect("the case can be laid out");
                let variant = Variant::plain(Poison::Zero);
                let job = attention_job(&small, &inputs, arm, &spec, variant).job;
                let status = Devices::with(spec.clone(), device).run(&job).status;
                let refused = matches!(status, Status::Unsupported { .. });
                let gap = support::gap(&small, arm);
                assert_eq!(gap.is_some(), refused, "{arm}: manifest {gap:?}, arm {status:?}: {}", entry.case);
                served += usize::from(!refused);
                gaps += usize::from(refused);
            }
        }
        assert!(served > 500 && gaps > 500, "{served} served, {gaps} not");
    }
}
