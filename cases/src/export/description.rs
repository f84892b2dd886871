//! What an exported file says about itself.

use oracle::PagedView;
use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::inputs::Inputs;
use crate::reference::p_format;

/// Version of the file's layout; raised when a tensor or a field changes its meaning.
pub(super) const SCHEMA: u32 = 1;

/// The metadata entry `attest`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Version of the file's layout.
    pub schema: u32,
    /// The case line.
    pub case: String,
    /// The arm whose rounding the bound allows.
    pub bound_of: String,
    /// The format in which such an arm keeps the softmax weights before the second product.
    pub probabilities: String,
    /// Format of the query, and of the output on the devices of this project.
    pub query_format: String,
    /// Format of the cache.
    pub cache_format: String,
    /// Query heads.
    pub num_q_heads: usize,
    /// KV heads; query head h reads KV head h / (num_q_heads / num_kv_heads).
    pub num_kv_heads: usize,
    /// Elements of a query and of a key.
    pub head_dim: usize,
    /// Elements of a value and of an output row.
    pub head_dim_v: usize,
    /// Pages of the cache.
    pub num_pages: usize,
    /// Slots of a page.
    pub page_size: usize,
    /// Where K lies in its buffer.
    pub k_view: ViewDescription,
    /// Where V lies in its buffer.
    pub v_view: ViewDescription,
    /// Factor of the dot products, besides `k_scale`.
    pub softmax_scale: f32,
    /// Whether row i of a request, at position p = kv_len − q_len + i, sees no key beyond p.
    pub causal: bool,
    /// Keys before p that are visible; null is no limit.
    pub window_left: Option<i64>,
    /// Keys after p that are visible; null is no limit.
    pub window_right: Option<i64>,
    /// Scores s become c·tanh(s/c); null is none.
    pub softcap: Option<f32>,
}

/// A view of the cache: offset and strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewDescription {
    /// Of the first element.
    pub offset: usize,
    /// From page to page.
    pub page_stride: usize,
    /// From slot to slot.
    pub slot_stride: usize,
    /// From head to head.
    pub head_stride: usize,
}

impl ViewDescription {
    fn of(view: &PagedView) -> Self {
        let PagedView { offset, page_stride, slot_stride, head_stride, .. } = *view;
        Self { offset, page_stride, slot_stride, head_stride }
    }
}

impl Description {
    pub(super) fn new(case: &Case, inputs: &Inputs, arm: &str) -> Self {
        let problem = &case.problem;
        Self {
            schema: SCHEMA,
            case: case.to_string(),
            bound_of: arm.to_owned(),
            probabilities: p_format(arm, problem).name().to_owned(),
            query_format: problem.query_format.name().to_owned(),
            cache_format: problem.cache_format.name().to_owned(),
            num_q_heads: problem.num_q_heads,
            num_kv_heads: problem.num_kv_heads,
            head_dim: problem.head_dim,
            head_dim_v: problem.head_dim_v,
            num_pages: inputs.pages.num_pages,
            page_size: problem.page_size,
            k_view: ViewDescription::of(&inputs.views.k),
            v_view: ViewDescription::of(&inputs.views.v),
            softmax_scale: problem.softmax_scale(),
            causal: problem.options.causal,
            window_left: problem.options.window_left,
            window_right: problem.options.window_right,
            softcap: problem.options.softcap,
        }
    }
}
