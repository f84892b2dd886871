//! What the reference is asked, what it answers, and the checks in between.

use ndarray::{Array2, Array3, ArrayView3};

use crate::{Mask, OracleError};

/// One request: its query rows, and its keys and values in order of position.
///
/// The arrays hold decoded codes. K and V are unscaled: `k_scale` and `v_scale` are options.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `[q_len, num_q_heads, k_dim]`.
    pub q: ArrayView3<'a, f32>,
    /// `[kv_len, num_kv_heads, k_dim]`.
    pub k: ArrayView3<'a, f32>,
    /// `[kv_len, num_kv_heads, v_dim]`.
    pub v: ArrayView3<'a, f32>,
}

/// The options of one attention call.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Factor of q·k, greater than 0. The reference takes it as given: where the device gets an `f32`, pass the
    /// value of that `f32`.
    pub softmax_scale: f64,
    /// Hide the keys after each row's position.
    pub causal: bool,
    /// Keys before the position that stay visible; `None` is unlimited.
    pub window_left: Option<i64>,
    /// Keys after the position that stay visible; `None` is unlimited.
    pub window_right: Option<i64>,
    /// Logits become c·tanh(s/c).
    pub softcap: Option<f64>,
    /// Adds slope·(j − p) to the logits, also where j > p; one slope per query head.
    pub alibi_slopes: Option<Vec<f32>>,
    /// Adds exp(sink) to the denominator; one sink per query head, −∞ meaning none.
    pub sinks: Option<Vec<f32>>,
    /// Scale of K: one for the tensor or one per KV head.
    pub k_scale: Vec<f32>,
    /// Scale of V: one for the tensor or one per KV head.
    pub v_scale: Vec<f32>,
}

impl AttentionOptions {
    /// No mask, no softcap, no ALiBi, no sinks, scales of 1.
    #[must_use]
    pub fn new(softmax_scale: f64) -> Self {
        Self {
            softmax_scale,
            causal: false,
            window_left: None,
            window_right: None,
            softcap: None,
            alibi_slopes: None,
            sinks: None,
            k_scale: vec![1.0],
            v_scale: vec![1.0],
        }
    }

    /// [`new`](Self::new) with a causal mask.
    #[must_use]
    pub fn causal(softmax_scale: f64) -> Self {
        Self { causal: true, ..Self::new(softmax_scale) }
    }
}

/// Which query rows to compute. Rows are independent, so a sample of a long request is judged exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows<'a> {
    /// Every row.
    All,
    /// These rows, in this order.
    Sample(&'a [usize]),
}

/// The answer in f64, with the error allowed to each element. The first axis runs over `rows`.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Output, `[rows, num_q_heads, v_dim]`.
    pub out: Array3<f64>,
    /// Natural logarithm of the denominator, `[rows, num_q_heads]`.
    pub lse: Array2<f64>,
    /// Error allowed to each element of `out` before its rounding to the output format.
    pub bound: Array3<f64>,
    /// Error allowed to each element of `lse` before its rounding to f32.
    pub lse_bound: Array2<f64>,
    /// Row of the request that each first index stands for.
    pub rows: Vec<usize>,
    /// Position of each of those rows among the keys.
    pub positions: Vec<i64>,
    /// Largest relative error of a single weight that the bound reckons with. The bound is first order: beyond
    /// 0.1 it means nothing.
    pub max_eta: f64,
}

/// The answer without a bound. The first axis runs over `rows`.
#[derive(Clone, Debug)]
pub struct Attention<T> {
    /// Output, `[rows, num_q_heads, v_dim]`.
    pub out: Array3<T>,
    /// Natural logarithm of the denominator, `[rows, num_q_heads]`.
    pub lse: Array2<T>,
    /// Row of the request that each first index stands for.
    pub rows: Vec<usize>,
}

/// What one query head needs, resolved from the options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub index: usize,
    pub kv_index: usize,
    /// softmax_scale · k_scale.
    pub sigma: f64,
    pub v_scale: f64,
    pub softcap: Option<f64>,
    pub slope: Option<f64>,
    pub sink: Option<f64>,
}

impl Head {
    /// The logit of key `j` for the row at position `p`, from the plain dot product.
    #[inline]
    pub fn logit(&self, dot: f64, p: i64, j: i64) -> f64 {
        let scaled = self.sigma * dot;
        let capped = self.softcap.map_or(scaled, |cap| cap * (scaled / cap).tanh());
        capped + self.slope.map_or(0.0, |slope| slope * (j - p) as f64)
    }
}

/// A request and its options after every check.
#[derive(Clone, Debug)]
pub(crate) struct Problem<'a> {
    pub request: Request<'a>,
    pub heads: Vec<Head>,
    pub mask: Mask,
    pub rows: Vec<usize>,
}

impl<'a> Problem<'a> {
    pub fn new(
        request: &Request<'a>,
        options: &AttentionOptions,
        rows: Rows<'_>,
    ) -> Result<Self, OracleError> {
        check_shapes(request)?;
        check_options(options)?;
        let (q_len, q_heads, _) = request.q.dim();
        let (kv_len, kv_heads, _) = request.k.dim();
        let mask = Mask {
            q_len: q_len as i64,
            kv_len: kv_len as i64,
            causal: options.causal,
            window_left: options.window_left,
            window_right: options.window_right,
        };
        Ok(Self {
            request: *request,
            heads: resolve_heads(options, q_heads, kv_heads)?,
            mask,
            rows: resolve_rows(rows, q_len)?,
        })
    }

    pub fn k_dim(&self) -> usize {
        self.request.k.dim().2
    }

    pub fn v_dim(&self) -> usize {
        self.request.v.dim().2
    }
}

fn check_shapes(request: &Request<'_>) -> Result<(), OracleError> {
    let (_, q_heads, q_dim) = request.q.dim();
    let (kv_len, kv_heads, k_dim) = request.k.dim();
    let (v_len, v_heads, v_dim) = request.v.dim();
    let positive = "[kv_len, num_kv_heads, head_dim] with at least one head and one dim";
    if kv_heads == 0 || k_dim == 0 {
        return Err(OracleError::shape("k", request.k.shape(), positive));
    }
    if v_len != kv_len || v_heads != kv_heads || v_dim == 0 {
        let accepted = format!("[{kv_len}, {kv_heads}, v_dim] with v_dim at least 1, as k has it");
        return Err(OracleError::shape("v", request.v.shape(), accepted));
    }
    if q_dim != k_dim || q_heads == 0 || q_heads % kv_heads != 0 {
        let accepted = format!("[q_len, a multiple of the {kv_heads} KV heads, {k_dim}]");
        return Err(OracleError::shape("q", request.q.shape(), accepted));
    }
    Ok(())
}

fn check_options(options: &AttentionOptions) -> Result<(), OracleError> {
    let positive = |argument: &str, value: f64| match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(OracleError::value(argument, value, "a finite value greater than 0")),
    };
    positive("softmax_scale", options.softmax_scale)?;
    options.softcap.map_or(Ok(()), |cap| positive("softcap", cap))?;
    for (argument, scales) in [("k_scale", &options.k_scale), ("v_scale", &options.v_scale)] {
        for (index, &scale) in scales.iter().enumerate() {
            positive(&format!("{argument}[{index}]"), f64::from(scale))?;
        }
    }
    for (argument, window) in [("window_left", options.window_left), ("window_right", options.window_right)] {
        if let Some(keys) = window.filter(|&keys| keys < 0) {
            return Err(OracleError::value(argument, keys, "0 or more, or None for no limit"));
        }
    }
    Ok(())
}

fn resolve_heads(
    options: &AttentionOptions,
    q_heads: usize,
    kv_heads: usize,
) -> Result<Vec<Head>, OracleError> {
    let k_scale = per_kv_head("k_scale", &options.k_scale, kv_heads)?;
    let v_scale = per_kv_head("v_scale", &options.v_scale, kv_heads)?;
    let slopes = per_q_head(
        "alibi_slopes",
        options.alibi_slopes.as_deref(),
        q_heads,
        |slope: f32| slope.is_finite(),
        "finite",
    )?;
    let usable_sink = |sink: f32| sink.is_finite() || sink == f32::NEG_INFINITY;
    let sinks = per_q_head("sinks", options.sinks.as_deref(), q_heads, usable_sink, "finite or -inf")?;
    let head = |index: usize| {
        let kv_index = index / (q_heads / kv_heads);
        Head {
            index,
            kv_index,
            sigma: options.softmax_scale * k_scale[kv_index],
            v_scale: v_scale[kv_index],
            softcap: options.softcap,
            slope: slopes.map(|slopes| f64::from(slopes[index])),
            // exp(−∞) adds nothing, so such a sink is none; this keeps ∞ − ∞ out of everything that follows.
            sink: sinks.map(|sinks| f64::from(sinks[index])).filter(|sink| sink.is_finite()),
        }
    };
    Ok((0..q_heads).map(head).collect())
}

fn per_kv_head(argument: &'static str, scales: &[f32], kv_heads: usize) -> Result<Vec<f64>, OracleError> {
    match scales.len() {
        1 => Ok(vec![f64::from(scales[0]); kv_heads]),
        n if n == kv_heads => Ok(scales.iter().copied().map(f64::from).collect()),
        _ => {
            let accepted =
                format!("1 scale for the tensor or {kv_heads}, one per KV head (never one per page)");
            Err(OracleError::shape(argument, &[scales.len()], accepted))
        }
    }
}

fn per_q_head<'o>(
    argument: &'static str,
    values: Option<&'o [f32]>,
    q_heads: usize,
    usable: impl Fn(f32) -> bool,
    accepted: &str,
) -> Result<Option<&'o [f32]>, OracleError> {
    let Some(values) = values else { return Ok(None) };
    if values.len() != q_heads {
        return Err(OracleError::shape(
            argument,
            &[values.len()],
            format!("[{q_heads}], one per query head"),
        ));
    }
    match values.iter().position(|&value| !usable(value)) {
        Some(index) => Err(OracleError::value(format!("{argument}[{index}]"), values[index], accepted)),
        None => Ok(Some(values)),
    }
}

fn resolve_rows(rows: Rows<'_>, q_len: usize) -> Result<Vec<usize>, OracleError> {
    let Rows::Sample(rows) = rows else { return Ok((0..q_len).collect()) };
    match rows.iter().position(|&row| row >= q_len) {
        Some(index) => Err(OracleError::value(
            format!("rows[{index}]"),
            rows[index],
            format!("below the q_len of {q_len}"),
        )),
        None => Ok(rows.to_vec()),
    }
}
