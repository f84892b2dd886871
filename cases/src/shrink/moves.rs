//! Simpler neighbours of a case, the boldest first.

use oracle::{CacheLayout, Format, Packing, Padding};

use crate::case::{Case, Data, Paging};
use crate::problem::{Options, Problem, Scale, Sinks};

/// Most requests or slots that are dropped one at a time; longer batches are halved first.
const SINGLY: usize = 16;

/// Neighbours that can be printed and parsed. Some of them may be larger: [`super::cost`] decides.
pub(super) fn candidates(case: &Case) -> Vec<Case> {
    let mut all = Candidates { case, found: Vec::new() };
    all.requests();
    all.slots();
    all.lengths();
    all.heads();
    all.dims();
    all.options();
    all.making();
    all.layout();
    all.formats();
    all.found.retain(|candidate| candidate.to_string().parse().as_ref() == Ok(candidate));
    all.found
}

struct Candidates<'a> {
    case: &'a Case,
    found: Vec<Case>,
}

impl Candidates<'_> {
    fn with(&mut self, change: impl FnOnce(&mut Case)) {
        let mut candidate = self.case.clone();
        change(&mut candidate);
        fit_scales(&mut candidate.problem);
        self.found.push(candidate);
    }

    fn problem(&mut self, change: impl FnOnce(&mut Problem)) {
        self.with(|case| change(&mut case.problem));
    }

    fn requests(&mut self) {
        let all: Vec<usize> = (0..self.case.problem.kv_lens.len()).collect();
        for kept in subsets(&all) {
            self.problem(|p| {
                let pick = |lens: &[usize]| kept.iter().filter_map(|i| lens.get(*i).copied()).collect();
                (p.query_lens, p.kv_lens) = (pick(&p.query_lens), pick(&p.kv_lens));
            });
        }
    }

    fn slots(&mut self) {
        let Some(slots) = self.case.problem.slots.clone() else { return };
        for kept in subsets(&slots) {
            self.problem(|p| p.slots = Some(kept));
        }
        for (index, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot > 0) {
            for smaller in [0, slot / 2, slot - 1] {
                self.problem(|p| p.slots.as_mut().expect("present above")[index] = smaller);
            }
        }
    }

    /// All requests at once, then each: fewer rows, fewer keys, and both by the same number, which leaves every position
    /// where it was.
    fn lengths(&mut self) {
        self.problem(|p| p.query_lens.iter_mut().chain(&mut p.kv_lens).for_each(|len| *len /= 2));
        let case = self.case;
        for index in 0..case.problem.kv_lens.len() {
            let kv = case.problem.kv_lens[index];
            let q = case.problem.query_lens.get(index).copied().unwrap_or(0);
            for by in steps(q.min(kv)) {
                self.problem(|p| {
                    p.query_lens[index] -= by;
                    p.kv_lens[index] -= by;
                });
            }
            for by in steps(q) {
                self.problem(|p| p.query_lens[index] -= by);
            }
            for by in steps(kv) {
                self.problem(|p| p.kv_lens[index] -= by);
            }
        }
    }

    fn heads(&mut self) {
        let (q, kv) = (self.case.problem.num_q_heads, self.case.problem.num_kv_heads);
        let group = q / kv.max(1);
        for (q, kv) in [
            (1, 1),
            (group, 1),
            (kv, kv),
            (2 * group, 2),
            (2, 2),
            (2, 1),
            (4, 1),
            (4, 2),
            (q / 2, kv / 2),
            (q / 2, kv),
            (q.saturating_sub(group), kv.saturating_sub(1)),
            (q.saturating_sub(kv), kv),
        ] {
            if q > 0 && kv > 0 {
                self.problem(|p| (p.num_q_heads, p.num_kv_heads) = (q, kv));
            }
        }
    }

    fn dims(&mut self) {
        const DIMS: [usize; 9] = [8, 16, 32, 64, 80, 96, 112, 128, 192];
        for dim in DIMS {
            self.problem(|p| (p.head_dim, p.head_dim_v) = (dim, dim));
        }
        for dim in DIMS {
            self.problem(|p| p.head_dim = dim);
            self.problem(|p| p.head_dim_v = dim);
        }
    }

    fn options(&mut self) {
        self.problem(|p| p.options = Options::default());
        self.problem(|p| p.options.causal = false);
        self.problem(|p| (p.options.window_left, p.options.window_right) = (None, None));
        self.problem(|p| p.options.softcap = None);
        self.problem(|p| p.options.alibi = false);
        self.problem(|p| p.options.sinks = Sinks::Absent);
        self.problem(|p| p.options.softmax_scale = None);
        self.problem(|p| (p.k_scale, p.v_scale) = (Scale::default(), Scale::default()));
        self.problem(|p| p.k_scale = Scale::default());
        self.problem(|p| p.v_scale = Scale::default());
        self.problem(|p| p.k_scale = Scale::PerTensor(p.k_scale.of_head(0)));
        self.problem(|p| p.v_scale = Scale::PerTensor(p.v_scale.of_head(0)));
        self.problem(|p| p.wants_lse = p.slots.is_none() && p.op != crate::problem::Op::Store);
        let (left, right) = (self.case.problem.options.window_left, self.case.problem.options.window_right);
        self.problem(|p| p.options.window_left = None);
        self.problem(|p| p.options.window_right = None);
        for by in steps(usize::try_from(left.unwrap_or(0)).unwrap_or(0)) {
            self.problem(|p| p.options.window_left = left.map(|keys| keys - by as i64));
        }
        for by in steps(usize::try_from(right.unwrap_or(0)).unwrap_or(0)) {
            self.problem(|p| p.options.window_right = right.map(|keys| keys - by as i64));
        }
    }

    fn making(&mut self) {
        self.with(|case| (case.data, case.logit_shift) = (Data::Random, 0.0));
        self.with(|case| case.magnitude = 1.0);
        self.with(|case| case.logit_shift = 0.0);
        self.with(|case| case.paging = Paging::Shuffled);
        for seed in [0, 1, 2, 3] {
            self.with(|case| case.seed = seed);
        }
    }

    fn layout(&mut self) {
        self.problem(|p| {
            (p.layout, p.packing, p.padding) = (CacheLayout::Nhd, Packing::Separate, Padding::default());
            p.v_padding = None;
        });
        self.problem(|p| p.packing = Packing::Separate);
        self.problem(|p| p.layout = CacheLayout::Nhd);
        self.problem(|p| p.padding = Padding::default());
        for simpler in simpler_paddings(self.case.problem.padding) {
            self.problem(|p| p.padding = simpler);
        }
        if let Some(of_v) = self.case.problem.v_padding {
            self.problem(|p| p.v_padding = None);
            for simpler in simpler_paddings(of_v) {
                self.problem(|p| p.v_padding = Some(simpler));
            }
        }
        for page_size in [1, 4, 5, 8, 16, 32, 48, 64, 128] {
            self.problem(|p| p.page_size = page_size);
        }
    }

    fn formats(&mut self) {
        let query = self.case.problem.query_format;
        self.problem(|p| (p.query_format, p.cache_format) = (Format::F32, Format::F32));
        self.problem(|p| p.query_format = Format::F32);
        self.problem(|p| p.cache_format = Format::F32);
        self.problem(|p| p.cache_format = query);
        self.problem(|p| p.cache_format = Format::E4m3);
        self.problem(|p| (p.query_format, p.cache_format) = (Format::Bf16, Format::Bf16));
    }
}

/// Less of a padding: none, without each of its parts, and each part alone.
fn simpler_paddings(pad: Padding) -> [Padding; 9] {
    let none = Padding::default();
    [
        none,
        Padding { base: 0, ..pad },
        Padding { row: 0, ..pad },
        Padding { plane: 0, ..pad },
        Padding { page: 0, ..pad },
        Padding { base: pad.base, ..none },
        Padding { row: pad.row, ..none },
        Padding { plane: pad.plane, ..none },
        Padding { page: pad.page, ..none },
    ]
}

/// Scales per head stay as long as there are KV heads.
fn fit_scales(problem: &mut Problem) {
    let heads = problem.num_kv_heads.max(1);
    for scale in [&mut problem.k_scale, &mut problem.v_scale] {
        if let Scale::PerHead(scales) = scale {
            scales.truncate(heads);
        }
    }
}

/// None, each alone, both halves, all but one.
fn subsets<T: Clone>(all: &[T]) -> Vec<Vec<T>> {
    let mut subsets = Vec::new();
    if all.is_empty() {
        return subsets;
    }
    subsets.push(Vec::new());
    if all.len() > 1 {
        let singly = all.len() <= SINGLY;
        subsets.extend(all.iter().filter(|_| singly).map(|one| vec![one.clone()]));
        let (first, second) = all.split_at(all.len() / 2);
        subsets.extend([first.to_vec(), second.to_vec()]);
        for dropped in (0..all.len()).filter(|_| singly) {
            subsets.push([&all[..dropped], &all[dropped + 1..]].concat());
        }
    }
    subsets
}

/// By how much a length is reduced: all of it, all but one, then half, a quarter, … one.
fn steps(len: usize) -> Vec<usize> {
    let mut steps = vec![len, len.saturating_sub(1)];
    let mut step = len / 2;
    while step > 0 {
        steps.push(step);
        step /= 2;
    }
    steps.retain(|step| *step > 0);
    steps
}
