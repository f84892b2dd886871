//! Which cases judge mutants: committed cases, chosen so that few compiled instances exercise as much as possible.
//!
//! Compiling an instance costs more than running a small case, so the choice is greedy: a case is worth what it
//! exercises for the first time on its arm, and costs the work it does and the instances that only it needs. What counts as
//! exercised is a guess at what matters, so a mutant that the choice misses meets all the other small cases, too.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use kernels::device::{DeviceInfo, DeviceKind, DeviceRef};
use kernels::source::KernelSpec;

use crate::case::{Case, Expectation};
use crate::catalogue::{CatalogueError, Tier, entries};
use crate::executor::DeviceSpec;
use crate::executor::device_side::Devices;
use crate::inputs::{Inputs, Poison, StoreInputs};
use crate::job::{Variant, attention_job, store_job};
use crate::problem::{Op, Problem};
use crate::run::STORE_ARM;
use crate::session::recorder::Recorder;
use crate::session::{Item, arms_of};
use crate::support;

/// One case on one arm, with the kernels that it launches.
#[derive(Clone, Debug)]
pub struct Check {
    /// The case and the arm.
    pub item: Item,
    /// Compiled instances that it uses.
    pub kernels: Vec<KernelSpec>,
    /// Whether it is one of those that exercise what all do; the others have the last word on what these miss.
    pub chosen: bool,
}

impl Check {
    /// `arm: case line`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}: {}", self.item.arm, self.item.case)
    }

    /// Query-key pairs times head_dim.
    #[must_use]
    pub fn work(&self) -> usize {
        work(&self.item.case)
    }

    /// The command that runs the case alone, on whatever kernel sources are in force.
    #[must_use]
    pub fn replay(&self) -> String {
        let arm =
            if self.item.arm == STORE_ARM { String::new() } else { format!(" --arm {}", self.item.arm) };
        format!("attest replay --device simt --checked{arm} '{}'", self.item.case)
    }
}

/// Query-key pairs times head_dim up to which a case serves as a check: a fraction of a second in checked mode.
const LARGEST_WORK: usize = 700_000;

/// Weight of one compiled instance against the work of running cases.
const INSTANCE_COST: usize = 1_200_000;
/// Weight of a worker's round trip.
const RUN_COST: usize = 60_000;

/// Further checks per set of instances, once everything is exercised: they cost no compilation.
const EXTRA_CHECKS: usize = 6;

/// The committed cases of a tier that can serve as checks on `simt`: valid, served by the arm, and small.
///
/// # Errors
/// When the catalogue cannot be read.
pub fn candidates(tier: Tier, arms: &[String], info: &DeviceInfo) -> Result<Vec<Check>, CatalogueError> {
    let recorder = Arc::new(Recorder::new(info.clone()));
    let mut checks = Vec::new();
    for entry in entries()?.into_iter().filter(|entry| entry.tier <= tier && is_small(&entry.case)) {
        for arm in arms_of(&entry.case, arms) {
            if support::gap(&entry.case, arm).is_some() {
                continue;
            }
            let kernels = kernels_of(&entry.case, arm, &recorder);
            if kernels.is_empty() {
                continue;
            }
            let item = Item {
                case: entry.case.clone(),
                arm: arm.clone(),
                group: entry.group.to_owned(),
                comment: entry.comment.clone(),
            };
            checks.push(Check { item, kernels, chosen: false });
        }
    }
    Ok(checks)
}

fn is_small(case: &Case) -> bool {
    let work = case.problem.pairs() * (case.problem.head_dim + case.problem.head_dim_v) / 2;
    case.expectation == Expectation::Valid && case.defect.is_none() && work <= LARGEST_WORK
}

/// The kernels that a case loads on an arm, in order; none if it is refused.
fn kernels_of(case: &Case, arm: &str, recorder: &Arc<Recorder>) -> Vec<KernelSpec> {
    let spec = DeviceSpec { kind: DeviceKind::Simt, checked: true, schedule: None };
    let job = if case.problem.op == Op::Store {
        StoreInputs::generate(case).ok().map(|inputs| store_job(case, &inputs, &spec))
    } else {
        let variant = Variant::plain(Poison::Zero);
        Inputs::generate(case).ok().map(|inputs| attention_job(case, &inputs, arm, &spec, variant).job)
    };
    let Some(job) = job else { return Vec::new() };
    recorder.take();
    let device: DeviceRef = recorder.clone();
    let _ = Devices::with(spec, device).run(&job);
    let mut kernels = recorder.take();
    kernels.sort();
    kernels.dedup();
    kernels
}

/// Marks checks as chosen that exercise everything all of them do, cheaply. Deterministic.
pub fn choose(candidates: &mut [Check]) {
    for index in chosen(candidates) {
        candidates[index].chosen = true;
    }
}

fn chosen(candidates: &[Check]) -> Vec<usize> {
    let features: Vec<BTreeSet<String>> = candidates.iter().map(features_of).collect();
    let mut missing: BTreeSet<&String> = features.iter().flatten().collect();
    let mut instances: BTreeSet<&KernelSpec> = BTreeSet::new();
    let mut chosen: Vec<usize> = Vec::new();
    while !missing.is_empty() {
        let worth = |index: usize| features[index].iter().filter(|feature| missing.contains(feature)).count();
        let best = (0..candidates.len()).filter(|index| worth(*index) > 0).max_by(|a, b| {
            // Worth per cost, compared without division; the earlier case wins a tie.
            let (worth_a, worth_b) = (worth(*a), worth(*b));
            let (cost_a, cost_b) = (cost(&candidates[*a], &instances), cost(&candidates[*b], &instances));
            (worth_a * cost_b).cmp(&(worth_b * cost_a)).then(b.cmp(a))
        });
        let Some(best) = best else { break };
        for feature in &features[best] {
            missing.remove(feature);
        }
        instances.extend(&candidates[best].kernels);
        chosen.push(best);
    }
    add_free_checks(candidates, &instances, &mut chosen);
    chosen
}

/// Adds the cheapest remaining checks of every set of instances that is compiled anyway.
fn add_free_checks(candidates: &[Check], instances: &BTreeSet<&KernelSpec>, chosen: &mut Vec<usize>) {
    let taken: HashSet<usize> = chosen.iter().copied().collect();
    let mut free: Vec<usize> = (0..candidates.len())
        .filter(|index| !taken.contains(index))
        .filter(|index| candidates[*index].kernels.iter().all(|kernel| instances.contains(kernel)))
        .collect();
    free.sort_by_key(|index| work(&candidates[*index].item.case));
    let mut added: BTreeMap<&[KernelSpec], usize> = BTreeMap::new();
    for index in free {
        let count = added.entry(&candidates[index].kernels).or_default();
        if *count < EXTRA_CHECKS {
            *count += 1;
            chosen.push(index);
        }
    }
}

fn work(case: &Case) -> usize {
    case.problem.pairs() * (case.problem.head_dim + case.problem.head_dim_v) / 2
}

fn cost(check: &Check, instances: &BTreeSet<&KernelSpec>) -> usize {
    let new = check.kernels.iter().filter(|kernel| !instances.contains(kernel)).count();
    RUN_COST + work(&check.item.case) + INSTANCE_COST * new
}

/// What a check exercises, as names: what its case asks for on its arm, and how its kernels are compiled.
fn features_of(check: &Check) -> BTreeSet<String> {
    let (arm, problem) = (&check.item.arm, &check.item.case.problem);
    // One arm may take several ways: split keys bring a second kernel, which sees the options, too.
    let files: BTreeSet<&str> = check.kernels.iter().map(|kernel| kernel.file).collect();
    let way = files.into_iter().collect::<Vec<_>>().join("+");
    let mut features = BTreeSet::new();
    let mut of_arm = |text: String| {
        features.insert(format!("{arm} by {way}: {text}"));
    };
    of_arm(format!("lse {}", problem.wants_lse));
    of_arm(format!("shift {} magnitude {}", check.item.case.logit_shift, check.item.case.magnitude));
    for flag in check.item.case.flags() {
        of_arm(flag.to_string());
    }
    of_arm(format!("data {}", check.item.case.data));
    of_arm(format!("group {}", problem.num_q_heads / problem.num_kv_heads));
    of_arm(format!("page {}", problem.page_size));
    of_arm(format!("{} {}", problem.layout.name(), problem.packing.name()));
    of_arm(format!("padding {:?} {:?}", problem.padding, problem.v_padding));
    of_arm(format!("{} {}", problem.op.name(), problem.options.causal));
    key_lengths(problem).chain([query_rows(problem), row_widths(problem)]).for_each(&mut of_arm);
    if let Some(relation) = check.item.case.relation {
        of_arm(format!("relation {}", relation.name()));
    }
    edges_of(problem).for_each(&mut of_arm);
    for kernel in &check.kernels {
        let value =
            |name: &str| kernel.defines.iter().find(|(n, _)| *n == name).map_or("", |(_, v)| v.as_str());
        for (name, value) in &kernel.defines {
            features.insert(format!("{} {name}={value}", kernel.file));
        }
        // Rows of the decode kernel that are all alike, or all but one zero, hide what is done to the others.
        if !value("ROWS").is_empty() {
            let (rows, format) = (value("ROWS"), value("KV_FORMAT"));
            features
                .insert(format!("{} {rows} rows of {format}, data {}", kernel.file, check.item.case.data));
        }
        features.insert(format!(
            "{} {} {}",
            kernel.file,
            [value("Q_FORMAT"), value("SOURCE_FORMAT"), value("TO_FORMAT"), value("OUT_FORMAT")].concat(),
            value("KV_FORMAT")
        ));
    }
    features
}

/// How the batch's keys end in tiles of 64, and how many tiles a pipeline over them sees.
fn key_lengths(problem: &Problem) -> impl Iterator<Item = String> {
    problem.kv_lens.iter().flat_map(|len| {
        let end = match (*len, len % 64) {
            (0, _) => "no key".to_owned(),
            (_, 0) => "full tile".to_owned(),
            (_, 1 | 63) => format!("tile end {}", len % 64),
            (len, _) if len < 16 => "short".to_owned(),
            (len, _) if len < 64 => "one tile".to_owned(),
            (len, _) if len >= 2048 => "more splits than are merged at once".to_owned(),
            _ => "several tiles".to_owned(),
        };
        // Two buffers take turns from the third tile on, four places of key rows from the fifth.
        let tiles = match len.div_ceil(64) {
            0..3 => "one or two tiles",
            3..5 => "three or four tiles",
            _ => "five tiles or more",
        };
        [end, tiles.to_owned()]
    })
}

/// How the rows of a KV head fill warps and blocks, and whether requests differ in how many blocks they need.
fn query_rows(problem: &Problem) -> String {
    let group = problem.num_q_heads / problem.num_kv_heads.max(1);
    let blocks = |len: usize| (len * group).div_ceil(128);
    let longest = problem.query_lens.iter().copied().max().unwrap_or(0);
    let rows = match longest * group {
        0..=16 => "up to 16",
        17..=31 => "up to 31",
        // From here on a warp of the prefill kernels has all of its rows.
        32..=64 => "up to 64",
        65..=128 => "up to 128",
        _ => "more than 128",
    };
    let uneven = problem.query_lens.iter().any(|len| blocks(*len) != blocks(longest));
    format!("{rows} rows, uneven {uneven}")
}

/// The widest accesses that suit a row of K and a row of V.
fn row_widths(problem: &Problem) -> String {
    let width = |dim: usize| {
        let bytes = dim * problem.cache_format.size_bytes();
        (1_usize << bytes.trailing_zeros()).min(16)
    };
    format!("rows of {} and {}", width(problem.head_dim), width(problem.head_dim_v))
}

/// How a problem's rows fill blocks of eight and sixteen, and where its windows start.
fn edges_of(problem: &Problem) -> impl Iterator<Item = String> {
    let group = problem.num_q_heads / problem.num_kv_heads.max(1);
    let (left, causal) = (problem.options.window_left, problem.options.causal);
    let requests = problem.query_lens.iter().zip(&problem.kv_lens);
    requests.flat_map(move |(q_len, kv_len)| {
        let rows = q_len * group;
        let filled = if rows.is_multiple_of(8) { "full" } else { "partly filled" };
        let filled = format!("{filled} block of rows, {} eights", rows.div_ceil(8).min(3));
        // The first key that the first row sees, where the window hides some before it.
        let start =
            left.and_then(|left| usize::try_from((*kv_len as i64 - *q_len as i64).saturating_sub(left)).ok());
        let start = start.filter(|start| *start > 0).map(|start| {
            let at = |size: usize| if start.is_multiple_of(size.max(1)) { "at" } else { "within" };
            format!("window starts {} a page, {} a step", at(problem.page_size), at(16))
        });
        let apart = left.is_some_and(|left| causal && left < *q_len as i64 - 1);
        let apart = apart.then(|| "rows without a key in common".to_owned());
        // A dim of V in place of one of K shows in each of several rows and of several keys of a thread.
        let unequal = (problem.head_dim != problem.head_dim_v)
            .then(|| format!("unequal dims, more rows {}, more keys {}", rows > 4, *kv_len > 32));
        [Some(filled), start, apart, unequal].into_iter().flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arm: &str, line: &str, define: &str) -> Check {
        let case: Case = line.parse().unwrap();
        let item = Item { case, arm: arm.to_owned(), group: String::new(), comment: String::new() };
        let kernel = KernelSpec {
            file: "scalar.cu",
            entry: "scalar_attention",
            defines: vec![("KV_FORMAT", define.to_owned())],
        };
        Check { item, kernels: vec![kernel], chosen: false }
    }

    /// The lines of what is chosen.
    fn lines(mut checks: Vec<Check>) -> Vec<String> {
        choose(&mut checks);
        checks.iter().filter(|check| check.chosen).map(|check| check.item.case.to_string()).collect()
    }

    const SMALL: &str = "prefill bf16 kv=bf16 h2/1 d32 page16 NHD causal q=[4] kv=[40] seed=1";
    const SAME_BUT_LARGE: &str = "prefill bf16 kv=bf16 h2/1 d32 page16 NHD causal q=[4] kv=[60] seed=1";
    const WINDOWED: &str = "prefill bf16 kv=bf16 h2/1 d32 page16 NHD causal win=7,- q=[4] kv=[40] seed=1";
    const OTHER_FORMAT: &str = "prefill bf16 kv=e4m3 h2/1 d32 page16 NHD causal q=[4] kv=[40] seed=1";

    #[test]
    fn what_nothing_else_exercises_is_kept() {
        let chosen = lines(vec![
            check("scalar", SMALL, "Bf16"),
            check("scalar", WINDOWED, "Bf16"),
            check("scalar", OTHER_FORMAT, "E4m3"),
        ]);
        assert!(chosen.contains(&WINDOWED.to_owned()), "{chosen:?}");
        assert!(chosen.contains(&OTHER_FORMAT.to_owned()), "{chosen:?}");
    }

    #[test]
    fn a_case_that_needs_an_instance_of_its_own_for_nothing_new_is_left_out() {
        let all = vec![check("scalar", SMALL, "Bf16"), check("scalar", SAME_BUT_LARGE, "Bf16")];
        let mut expensive = check("scalar", SAME_BUT_LARGE, "Bf16");
        expensive.kernels[0].entry = "another_instance";
        assert_eq!(lines(all).len(), 2, "a case on an instance that is compiled anyway is free");
        assert_eq!(lines(vec![check("scalar", SMALL, "Bf16"), expensive]), [SMALL]);
    }

    #[test]
    fn every_arm_that_the_catalogue_serves_has_checks_with_a_replay_line() {
        let info = DeviceInfo {
            kind: DeviceKind::Simt,
            name: String::new(),
            capability: (9, 0),
            multiprocessors: 132,
            max_shared_bytes: 232_448,
            versions: String::new(),
        };
        let arms = ["scalar", "mma", "fp8-dense", STORE_ARM].map(str::to_owned);
        let mut checks = candidates(Tier::Smoke, &arms, &info).unwrap();
        choose(&mut checks);
        for arm in &arms {
            assert!(checks.iter().any(|check| check.chosen && check.item.arm == *arm), "no check on {arm}");
        }
        for check in &checks {
            let replay = check.replay();
            assert!(replay.contains(&check.item.case.to_string()), "{replay}");
        }
    }
}
