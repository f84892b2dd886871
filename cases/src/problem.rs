//! What a case asks for: the attention (or store) problem, with nothing about how it is tried or judged.

use oracle::{CacheLayout, CacheShape, CacheViews, Format, OracleError, Packing, Padding};

/// Which operation of the cache a case exercises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// Attention with long queries.
    Prefill,
    /// Attention with one query row per request.
    Decode,
    /// Attention over a batch that mixes prefill, decode and empty requests.
    Mixed,
    /// Attention with the same small number of query rows in every request (speculative verify).
    Verify,
    /// `reshape_and_cache`: writes new K and V rows into the paged cache.
    Store,
}

impl Op {
    /// Every operation, in the order the documentation lists them.
    pub const ALL: [Self; 5] = [Self::Prefill, Self::Decode, Self::Mixed, Self::Verify, Self::Store];

    /// The word that starts a case line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
            Self::Verify => "verify",
            Self::Store => "store",
        }
    }
}

/// A dequantisation scale: one for the tensor, or one per KV head.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// One scale for the whole cache tensor.
    PerTensor(f32),
    /// One scale per KV head; its length is `num_kv_heads` in every valid case.
    PerHead(Vec<f32>),
}

impl Scale {
    /// The scale of one KV head.
    #[must_use]
    pub fn of_head(&self, head: usize) -> f32 {
        match self {
            Self::PerTensor(scale) => *scale,
            Self::PerHead(scales) => scales[head.min(scales.len() - 1)],
        }
    }

    /// All scales: one element, or one per head.
    #[must_use]
    pub fn values(&self) -> Vec<f32> {
        match self {
            Self::PerTensor(scale) => vec![*scale],
            Self::PerHead(scales) => scales.clone(),
        }
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self::PerTensor(1.0)
    }
}

/// Attention sinks: one logit per query head that counts in the denominator only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sinks {
    /// No sinks.
    Absent,
    /// Seeded logits between −2 and 4, different for every head.
    Seeded,
    /// The same logit for every head.
    Constant(f32),
}

/// Masking and score options of an attention case.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Bottom-right aligned causal mask.
    pub causal: bool,
    /// Keys further left than this are hidden; `None` is no limit. Inclusive.
    pub window_left: Option<i64>,
    /// Keys further right than this are hidden; `None` is no limit. Inclusive.
    pub window_right: Option<i64>,
    /// Logit soft cap, if any.
    pub softcap: Option<f32>,
    /// Whether every query head has an ALiBi slope, `2^(−8(h+1)/num_q_heads)`.
    pub alibi: bool,
    /// Attention sinks.
    pub sinks: Sinks,
    /// Softmax scale; `None` is `1/sqrt(head_dim of K)`.
    pub softmax_scale: Option<f32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            causal: false,
            window_left: None,
            window_right: None,
            softcap: None,
            alibi: false,
            sinks: Sinks::Absent,
            softmax_scale: None,
        }
    }
}

/// What a case asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The operation.
    pub op: Op,
    /// Format of the query and the output; of the new K and V rows for a store.
    pub query_format: Format,
    /// Format of the cache.
    pub cache_format: Format,
    /// Query heads.
    pub num_q_heads: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Head dimension of Q and K.
    pub head_dim: usize,
    /// Head dimension of V and the output.
    pub head_dim_v: usize,
    /// Token slots of a page.
    pub page_size: usize,
    /// Order of slots and heads inside a page.
    pub layout: CacheLayout,
    /// How K and V share memory.
    pub packing: Packing,
    /// Padded strides and base offset of the cache views.
    pub padding: Padding,
    /// Those of V where they are not those of K, which needs separate tensors.
    pub v_padding: Option<Padding>,
    /// Masking and score options.
    pub options: Options,
    /// Dequantisation scale of K.
    pub k_scale: Scale,
    /// Dequantisation scale of V.
    pub v_scale: Scale,
    /// Query rows of each request. For a store: new rows of each request.
    pub query_lens: Vec<usize>,
    /// Keys of each request, the new ones included.
    pub kv_lens: Vec<usize>,
    /// Whether the kernel is asked for lse besides the output.
    pub wants_lse: bool,
    /// Explicit slots of a store (`-1` is skipped); `None` derives them from the lengths.
    pub slots: Option<Vec<i64>>,
}

impl Problem {
    /// Number of requests.
    #[must_use]
    pub fn num_requests(&self) -> usize {
        self.query_lens.len()
    }

    /// Query rows of the whole batch (new rows of a store).
    #[must_use]
    pub fn total_query_rows(&self) -> usize {
        match &self.slots {
            Some(slots) => slots.len(),
            None => self.query_lens.iter().sum(),
        }
    }

    /// Where K and V lie in a cache of so many pages.
    ///
    /// # Errors
    /// If the cache cannot be laid out (an unbind packing with unequal dims or paddings, a zero extent).
    pub fn cache_views(&self, pages: usize) -> Result<CacheViews, OracleError> {
        let shape = CacheShape {
            pages,
            page_size: self.page_size,
            heads: self.num_kv_heads,
            k_dim: self.head_dim,
            v_dim: self.head_dim_v,
        };
        let v_padding = self.v_padding.unwrap_or(self.padding);
        CacheViews::padded_apart(self.layout, self.packing, shape, self.padding, v_padding)
    }

    /// Whether strides are longer than what they step over, or a base offset is not 0, of K or of V.
    #[must_use]
    pub fn is_padded(&self) -> bool {
        [Some(self.padding), self.v_padding]
            .into_iter()
            .flatten()
            .any(|padding| padding != Padding::default())
    }

    /// The softmax scale in force.
    #[must_use]
    pub fn softmax_scale(&self) -> f32 {
        self.options.softmax_scale.unwrap_or_else(|| 1.0 / (self.head_dim as f32).sqrt())
    }

    /// ALiBi slopes, one per query head, if the case has them.
    #[must_use]
    pub fn alibi_slopes(&self) -> Option<Vec<f32>> {
        let heads = self.num_q_heads;
        self.options
            .alibi
            .then(|| (0..heads).map(|h| (-8.0 * (h + 1) as f32 / heads as f32).exp2()).collect())
    }

    /// Query-key pairs of the whole batch over all query heads: a measure of the work.
    #[must_use]
    pub fn pairs(&self) -> usize {
        let per_head: usize = self.query_lens.iter().zip(&self.kv_lens).map(|(q, kv)| q * kv).sum();
        per_head * self.num_q_heads
    }
}
