//! The smallest case that still fails: greedy descent over everything that a case line can say.

mod moves;

use std::collections::HashSet;

use crate::case::Case;
use crate::verdict::Verdict;

/// What came of shrinking.
#[derive(Clone, Debug, PartialEq)]
pub struct Shrunk {
    /// The smallest case found.
    pub case: Case,
    /// Cases that were judged on the way.
    pub judged: usize,
    /// Whether nothing simpler fails; false where the limit ended the search.
    pub minimal: bool,
}

/// Shrinks a failing case.
///
/// `still_fails` judges a candidate; `accepted` hears of every step that is kept. Every step lowers [`cost`], so the
/// search ends; after a step it starts over, since what did not help before may help now. At most `limit` candidates are
/// judged.
///
/// # Errors
/// Whatever `still_fails` reports, at once.
pub fn shrink<E>(
    case: &Case,
    limit: usize,
    mut still_fails: impl FnMut(&Case) -> Result<bool, E>,
    mut accepted: impl FnMut(&Case),
) -> Result<Shrunk, E> {
    let mut shrunk = Shrunk { case: case.clone(), judged: 0, minimal: false };
    let mut tried = HashSet::from([case.to_string()]);
    'steps: loop {
        for candidate in moves::candidates(&shrunk.case) {
            let new = cost(&candidate) < cost(&shrunk.case) && tried.insert(candidate.to_string());
            // A head ratio that no arm accepts would be refused for a reason of its own.
            let sound = whole_groups(&candidate) || !whole_groups(case);
            if !new || !sound {
                continue;
            }
            if shrunk.judged == limit {
                return Ok(shrunk);
            }
            shrunk.judged += 1;
            if still_fails(&candidate)? {
                accepted(&candidate);
                shrunk.case = candidate;
                continue 'steps;
            }
        }
        return Ok(Shrunk { minimal: true, ..shrunk });
    }
}

/// Whether every KV head serves a whole number of query heads.
fn whole_groups(case: &Case) -> bool {
    case.problem.num_q_heads.is_multiple_of(case.problem.num_kv_heads.max(1))
}

/// How much there is to understand in a case. Lengths, heads and dims count by their size, everything that the line has
/// to mention by a flat fee.
#[must_use]
pub fn cost(case: &Case) -> u64 {
    let p = &case.problem;
    let sum = |lens: &[usize]| lens.iter().sum::<usize>() as u64;
    let slots = p.slots.as_ref().map_or(0, |slots| slots.iter().map(|slot| 8 + slot.unsigned_abs()).sum());
    let words = case.to_string().split_whitespace().count() as u64;
    let windows = [p.options.window_left, p.options.window_right];
    let windows: u64 = windows.into_iter().flatten().map(|keys| keys.unsigned_abs().min(1 << 24)).sum();
    let formats = [p.query_format, p.cache_format].map(|format| format as u64);
    let sizes = [
        256 * p.num_requests() as u64,
        8 * sum(&p.query_lens),
        8 * sum(&p.kv_lens),
        slots,
        16 * (p.num_q_heads + p.num_kv_heads) as u64,
        2 * (p.head_dim + p.head_dim_v) as u64,
        p.page_size as u64,
        [Some(p.padding), p.v_padding].into_iter().flatten().map(elements).sum(),
        64 * words,
        windows,
        16 * formats.iter().sum::<u64>(),
        u64::from(p.layout == oracle::CacheLayout::Hnd),
        u64::from(u64::BITS - case.seed.leading_zeros()),
    ];
    sizes.into_iter().fold(0, u64::saturating_add)
}

fn elements(of: oracle::Padding) -> u64 {
    (of.base + of.row + of.plane + of.page) as u64
}

/// Whether two failing verdicts are about the same fault, as far as a step of shrinking is concerned: a mismatch must not
/// turn into a refusal on the way, nor a race into a deadlock.
#[must_use]
pub fn same_fault(a: &Verdict, b: &Verdict) -> bool {
    match (a, b) {
        (Verdict::Rejected { argument: a, .. }, Verdict::Rejected { argument: b, .. }) => a == b,
        (Verdict::DeviceError { findings: a, .. }, Verdict::DeviceError { findings: b, .. }) => {
            a.first().map(|finding| finding.kind) == b.first().map(|finding| finding.kind)
        }
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(line: &str) -> Case {
        line.parse().unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Shrinks by a condition in place of a device.
    fn smallest(line: &str, fails: impl Fn(&Case) -> bool) -> String {
        let start = case(line);
        assert!(fails(&start), "{line}");
        let mut steps = vec![cost(&start)];
        let judged = |candidate: &Case| Ok::<_, std::convert::Infallible>(fails(candidate));
        let Ok(shrunk) = shrink(&start, 10_000, judged, |step| steps.push(cost(step)));
        assert!(shrunk.minimal && fails(&shrunk.case));
        assert!(steps.is_sorted_by(|a, b| a > b), "every step costs less: {steps:?}");
        shrunk.case.to_string()
    }

    const LARGE: &str = "mixed bf16 kv=e5m2 h32/4 d128 page32 HND unbind-inner pad=16,0,16,32 causal win=100,3 softcap=30 \
                         sinks q=[37,1,0,400] kv=[900,77,5,400] kscale=[0.5,1,2,4] vscale=0.25 data=outlier mag=3 \
                         paging=descending nolse seed=123456789";

    #[test]
    fn what_does_not_matter_goes() {
        assert_eq!(smallest(LARGE, |_| true), "mixed f32 kv=f32 h1/1 d8 page1 NHD q=[] kv=[] seed=0");
    }

    #[test]
    fn what_matters_stays_at_its_edge() {
        let long = |c: &Case| c.problem.kv_lens.iter().any(|kv| *kv >= 65);
        assert_eq!(smallest(LARGE, long), "mixed f32 kv=f32 h1/1 d8 page1 NHD q=[0] kv=[65] seed=0");
        let grouped =
            |c: &Case| c.problem.num_q_heads >= 3 * c.problem.num_kv_heads && c.problem.options.causal;
        assert_eq!(smallest(LARGE, grouped), "mixed f32 kv=f32 h3/1 d8 page1 NHD causal q=[] kv=[] seed=0");
        let padded = |c: &Case| c.problem.padding.plane > 0 && c.problem.num_kv_heads > 1;
        let spread = smallest(LARGE, padded);
        assert!(spread.contains("h2/2 d8 page1 NHD pad=0,0,16,0 q=[]"), "{spread}");
        let apart = |c: &Case| c.problem.v_padding.is_some_and(|of_v| of_v.row > 0);
        let separate = LARGE.replace("unbind-inner pad=16,0,16,32", "pad=16,0,16,32 vpad=8,4,2,6");
        let apart = smallest(&separate, apart);
        assert!(apart.contains("h1/1 d8 page1 NHD vpad=0,4,0,0 q=[]"), "{apart}");
        let two = |c: &Case| c.problem.kv_lens.iter().filter(|kv| **kv > 0).count() >= 2;
        assert!(smallest(LARGE, two).ends_with("q=[0,0] kv=[1,1] seed=0"));
    }

    #[test]
    fn scales_per_head_follow_the_heads() {
        let scaled = |c: &Case| matches!(&c.problem.k_scale, crate::problem::Scale::PerHead(_));
        assert_eq!(
            smallest(LARGE, scaled),
            "mixed f32 kv=f32 h1/1 d8 page1 NHD q=[] kv=[] kscale=[0.5] seed=0"
        );
    }

    #[test]
    fn slots_of_a_store_are_dropped_one_by_one() {
        let line = "store bf16 kv=e4m3 h2/2 d64 page16 NHD slots=[3,-1,17,9,4,40] kv=[48] kscale=0.5 seed=4";
        let skipped = |c: &Case| c.problem.slots.as_ref().is_some_and(|slots| slots.contains(&-1));
        assert_eq!(smallest(line, skipped), "store f32 kv=f32 h1/1 d8 page1 NHD slots=[-1] kv=[] seed=0");
    }

    #[test]
    fn the_limit_ends_the_search() {
        let start = case(LARGE);
        let Ok(shrunk) = shrink(&start, 3, |_| Ok::<_, std::convert::Infallible>(false), |_| ());
        assert_eq!((shrunk.judged, shrunk.minimal, shrunk.case), (3, false, start));
    }

    #[test]
    fn a_mismatch_is_not_a_refusal() {
        let refused =
            |argument: &str| Verdict::Rejected { argument: argument.to_owned(), message: String::new() };
        let mismatch = Verdict::Mismatch { failures: Vec::new() };
        assert!(same_fault(&refused("softcap"), &refused("softcap")));
        assert!(!same_fault(&refused("softcap"), &refused("k_scale")));
        assert!(!same_fault(&mismatch, &refused("k_scale")));
        assert!(same_fault(&mismatch, &mismatch.clone()));
    }
}
