//! Relations between runs are checked: a right kernel satisfies them, and each is violated by what it is there to find.

use std::collections::BTreeSet;
use std::time::Duration;

use cases::case::{Case, Relation};
use cases::catalogue::{Entry, entries};
use cases::executor::{DeviceSpec, Executor, Job, Outcome};
use cases::impostors::ImpostorExecutor;
use cases::report::describe::describe;
use cases::run::{Checking, Settings, run_case};
use cases::support;
use cases::verdict::Verdict;
use kernels::device::{DeviceInfo, DeviceKind};

fn info() -> DeviceInfo {
    let spec = DeviceSpec { kind: DeviceKind::Simt, checked: false, schedule: None };
    cases::devices::open(&spec).expect("simt opens").info()
}

fn settings() -> Settings {
    Settings {
        device: DeviceKind::Simt,
        checking: Checking::Never,
        schedule: None,
        limit: Duration::from_secs(60),
    }
}

fn committed() -> Vec<Entry> {
    entries().unwrap().into_iter().filter(|entry| entry.case.relation.is_some()).collect()
}

/// Changes the buffers of a reply, given those of the first run.
type Change<'a> = dyn Fn(&mut [Vec<u8>], &[Vec<u8>]) + 'a;

/// A right kernel whose replies are changed from the second run on.
struct Changed<'a> {
    honest: ImpostorExecutor<'static>,
    runs: usize,
    first: Option<Vec<Vec<u8>>>,
    change: &'a Change<'a>,
}

impl Executor for Changed<'_> {
    fn run(&mut self, job: &Job, limit: Duration) -> Outcome {
        let outcome = self.honest.run(job, limit);
        let Outcome::Replied(mut reply) = outcome else { return outcome };
        let first = self.first.get_or_insert_with(|| reply.buffers.clone());
        if self.runs > 0 {
            (self.change)(&mut reply.buffers, first);
        }
        self.runs += 1;
        Outcome::Replied(reply)
    }
}

fn judge(case: &Case, change: &Change<'_>) -> Verdict {
    let mut executor =
        Changed { honest: ImpostorExecutor::honest(info(), false), runs: 0, first: None, change };
    run_case(case, "scalar", &mut executor, &settings())
}

#[test]
fn every_relation_has_cases_of_16_bits_and_fp8_and_a_decode_where_it_can() {
    let committed = committed();
    for relation in Relation::ALL {
        let of: Vec<&Case> =
            committed.iter().map(|e| &e.case).filter(|case| case.relation == Some(relation)).collect();
        assert!(of.len() >= 2, "{}: {} cases", relation.name(), of.len());
    }
    let arms: BTreeSet<&str> = support::manifests().iter().map(|support| support.name.as_str()).collect();
    for arm in arms.into_iter().filter(|arm| *arm != "store") {
        let served = committed.iter().filter(|entry| support::gap(&entry.case, arm).is_none()).count();
        assert!(served >= 8, "{arm} serves {served} cases");
    }
}

#[test]
fn a_right_kernel_satisfies_every_relation() {
    for entry in committed() {
        let verdict = judge(&entry.case, &|_, _| {});
        assert!(matches!(verdict, Verdict::Pass { .. }), "{}: {verdict:?}", entry.case);
    }
}

/// One bit of one element, far within the bound.
fn last_bit(buffers: &mut [Vec<u8>]) {
    buffers[0][0] ^= 1;
}

#[test]
fn one_bit_shows_where_a_relation_is_exact() {
    let exact = [
        Relation::PermutePages,
        Relation::Repage,
        Relation::Reorder,
        Relation::Solo,
        Relation::KScale,
        Relation::VScale,
        Relation::Unlimited,
        Relation::Heads,
    ];
    for entry in committed().into_iter().filter(|e| exact.contains(&e.case.relation.unwrap())) {
        let runs = std::cell::Cell::new(0);
        let verdict = judge(&entry.case, &|buffers, _| {
            // The unsplit run that some relations start from stays as it is.
            runs.set(runs.get() + 1);
            let is_start =
                matches!(entry.case.relation, Some(Relation::Solo | Relation::Heads)) && runs.get() == 1;
            if !is_start {
                last_bit(buffers);
            }
        });
        let text = describe(&verdict);
        // A single row alone takes another way, so only the bound holds for it.
        let within_bound =
            entry.case.relation == Some(Relation::Solo) && matches!(verdict, Verdict::Pass { .. });
        let found = text.details.iter().any(|line| line.starts_with("depends on: "));
        assert!(found || within_bound, "{}: {verdict:?}", entry.case);
    }
}

#[test]
fn zeros_show_where_a_relation_holds_within_the_bound() {
    let bounded = [Relation::Chunks, Relation::LastRow, Relation::Splits, Relation::Shift];
    for entry in committed().into_iter().filter(|e| bounded.contains(&e.case.relation.unwrap())) {
        let verdict = judge(&entry.case, &|buffers, _| buffers[0].fill(0));
        assert!(matches!(verdict, Verdict::Mismatch { .. }), "{}: {verdict:?}", entry.case);
    }
}

#[test]
fn an_option_that_does_not_act_is_named() {
    for entry in committed().into_iter().filter(|e| e.case.relation == Some(Relation::Live)) {
        // Whatever is asked, the answer is the first one.
        let verdict = judge(&entry.case, &|buffers, first| buffers.clone_from_slice(first));
        let text = describe(&verdict);
        assert!(text.details[0].contains(" does not act: the output is the same without it"), "{text:?}");
    }
}

#[test]
fn a_case_that_cannot_show_its_relation_fails() {
    let line = |relation: &str| -> Case {
        let line = "prefill f32 kv=f32 h2/1 d16 page4 NHD q=[3] kv=[9]";
        format!("{line} relation={relation} seed=1").parse().unwrap()
    };
    for relation in ["reorder", "solo", "chunks", "shift", "live", "heads"] {
        let text = describe(&judge(&line(relation), &|_, _| {}));
        assert!(text.details[0].starts_with("the case cannot show the relation: "), "{relation}: {text:?}");
    }
}
