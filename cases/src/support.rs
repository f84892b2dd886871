//! The committed support manifest: what each arm serves. It is data apart from the kernels, so that an arm that starts to
//! refuse more than it declares is found.

use std::sync::LazyLock;

use oracle::{Format, PagedView};
use serde::Deserialize;

use crate::case::Case;
use crate::problem::Problem;

const MANIFEST: &str = include_str!("../catalogue/support.toml");

/// What one arm serves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Support {
    /// The arm.
    pub name: String,
    /// Formats of the query.
    pub query: Vec<String>,
    /// Formats of the cache; `same` is the query's own.
    pub cache: Vec<String>,
    /// Head dims are multiples of this.
    pub head_dim_step: Option<usize>,
    /// Largest head dim.
    pub head_dim_max: Option<usize>,
    /// Exactly these head dims.
    pub head_dims: Option<Vec<usize>>,
    /// Whether K and V must have the same head dim.
    #[serde(default)]
    pub equal_head_dims: bool,
    /// Bytes to which every cache row must be aligned.
    pub cache_alignment: Option<usize>,
}

#[derive(Deserialize)]
struct Manifest {
    arm: Vec<Support>,
}

static MANIFESTS: LazyLock<Vec<Support>> = LazyLock::new(|| {
    let manifest: Manifest = toml::from_str(MANIFEST).expect("the embedded manifest parses: a test reads it");
    manifest.arm
});

/// The manifests of all arms.
#[must_use]
pub fn manifests() -> &'static [Support] {
    &MANIFESTS
}

/// Why the manifest of `arm` leaves this case out; `None` if it promises to serve it, or to refuse it as invalid.
#[must_use]
pub fn gap(case: &Case, arm: &str) -> Option<String> {
    let Some(support) = manifests().iter().find(|support| support.name == arm) else {
        return Some(format!("{arm} has no support manifest"));
    };
    let problem = &case.problem;
    let formats = support.formats_gap(problem);
    if case.must_reject() { formats } else { formats.or_else(|| support.shape_gap(problem)) }
}

impl Support {
    fn formats_gap(&self, problem: &Problem) -> Option<String> {
        let (query, cache) = (problem.query_format.name(), problem.cache_format.name());
        let serves_cache = self.cache.iter().any(|c| c == cache || (c == "same" && query == cache));
        if !self.query.iter().any(|q| q == query) {
            return Some(format!("{}: {query} queries", self.name));
        }
        (!serves_cache).then(|| format!("{}: {cache} cache under {query} queries", self.name))
    }

    fn shape_gap(&self, problem: &Problem) -> Option<String> {
        let dims = [problem.head_dim, problem.head_dim_v];
        if let Some(dim) = dims.into_iter().find(|dim| !self.serves_dim(*dim)) {
            return Some(format!("{}: head_dim {dim}", self.name));
        }
        if self.equal_head_dims && dims[0] != dims[1] {
            return Some(format!("{}: K and V of different head_dim", self.name));
        }
        let aligned = self.cache_alignment.is_none_or(|bytes| cache_alignment(problem) >= bytes);
        (!aligned).then(|| {
            format!(
                "{}: cache rows aligned to less than {} bytes",
                self.name,
                self.cache_alignment.unwrap_or(1)
            )
        })
    }

    fn serves_dim(&self, dim: usize) -> bool {
        self.head_dims.as_ref().is_none_or(|dims| dims.contains(&dim))
            && self.head_dim_step.is_none_or(|step| dim.is_multiple_of(step))
            && self.head_dim_max.is_none_or(|max| dim <= max)
    }

    /// The manifest in words.
    #[must_use]
    pub fn in_words(&self) -> String {
        let dims = match (&self.head_dims, self.head_dim_step, self.head_dim_max) {
            (Some(dims), ..) => dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            (None, Some(step), Some(max)) => format!("multiples of {step} up to {max}"),
            _ => "any".to_owned(),
        };
        let equal = if self.equal_head_dims { ", equal for K and V" } else { "" };
        let aligned =
            self.cache_alignment.map(|b| format!("; cache rows aligned to {b} bytes")).unwrap_or_default();
        format!(
            "query {}; cache {}; head_dim {dims}{equal}{aligned}",
            self.query.join(", "),
            self.cache.join(", ")
        )
    }
}

/// The largest power of two, at most 16, of which the addresses of all cache rows are multiples, in bytes.
pub(crate) fn cache_alignment(problem: &Problem) -> usize {
    problem.cache_views(2).map_or(16, |views| {
        row_alignment(&views.k, problem.cache_format).min(row_alignment(&views.v, problem.cache_format))
    })
}

fn row_alignment(view: &PagedView, format: Format) -> usize {
    let strides =
        [(view.pages, view.page_stride), (view.page_size, view.slot_stride), (view.heads, view.head_stride)];
    let strides = strides.into_iter().filter(|(extent, _)| *extent > 1).map(|(_, stride)| stride);
    let bits = strides.fold(view.offset, |bits, stride| bits | stride) * format.size_bytes();
    1 << bits.trailing_zeros().min(4)
}
