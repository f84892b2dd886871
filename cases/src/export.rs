//! Cases as safetensors files: inputs, expected output and the error allowed to each element, for any framework; and the
//! judgement of an output that any framework computed.
//!
//! # The file
//!
//! One metadata entry, `attest`, is a JSON object, [`Description`]. The tensors, with R requests:
//!
//! | name | type | shape |
//! | --- | --- | --- |
//! | `q` | the query's | `[total_q, num_q_heads, head_dim]` |
//! | `k`, `v` | f32 | `[total_kv, num_kv_heads, head_dim]`, `[…, head_dim_v]`: decoded codes of all requests, one after another, not yet multiplied by their scales |
//! | `kv_start_loc` | i32 | `[R + 1]`: first row of each request in `k` and `v`, then total_kv |
//! | `k_cache` and `v_cache`, or `kv_cache` where both share a tensor | u8 | the bytes of the paged cache; bytes that no request owns are NaN |
//! | `block_table` | i32 | `[R, width]` |
//! | `seq_lens` | i32 | `[R]` |
//! | `query_start_loc` | i32 | `[R + 1]` |
//! | `k_scale`, `v_scale` | f32 | `[num_kv_heads]` |
//! | `alibi_slopes`, `sinks` | f32 | `[num_q_heads]`, where the case has them |
//! | `expected_rows` | i32 | `[rows]`: rows of `q` that are judged; all of them but for large cases |
//! | `expected_out`, `out_bound` | f64 | `[rows, num_q_heads, head_dim_v]` |
//! | `expected_lse`, `lse_bound` | f64 | `[rows, num_q_heads]` |
//!
//! A whole suite is a directory of such files with a manifest, [`Suite`].
//!
//! An output file has `out`, `[total_q, num_q_heads, head_dim_v]` (or its last two axes as one), in f16, bf16, f32 or f64,
//! and may have `lse`, `[total_q, num_q_heads]` in f32 or f64. An element of `out` is right iff it lies in
//! `[round(expected − bound), round(expected + bound)]`, rounded to the type of `out` (f32 for f64).

mod description;
mod output;
mod read;
mod suite;
mod write;

pub use description::{Description, ViewDescription};
pub use output::{Output, judge};
pub use read::Exported;
pub use suite::{Answer, MANIFEST, MadeBy, Suite, SuiteCase, SuiteError};
pub use write::{estimated_bytes, export};

use crate::case::ParseError;

/// A case that has no file.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Stores have no output within a bound.
    #[error("operation is store; accepted: prefill, decode, mixed, verify (a store's result is exact bytes)")]
    Store,
    /// There is no output to expect.
    #[error("expect is reject:{argument}; accepted: cases that must be served")]
    MustReject {
        /// The argument for which the case must be refused.
        argument: String,
    },
    /// The reference refuses the case.
    #[error("the case has no reference: {0}")]
    NoReference(#[from] oracle::OracleError),
    /// The file cannot be put together.
    #[error("the file cannot be written: {0}")]
    Format(#[from] safetensors::SafeTensorError),
}

/// A file that cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Not a safetensors file.
    #[error("not a safetensors file: {0}")]
    Format(#[from] safetensors::SafeTensorError),
    /// Not one that `attest export` wrote.
    #[error("metadata entry `attest` is {0}; accepted: what `attest export` writes")]
    Description(String),
    /// The case is written in a way that this version does not read.
    #[error("the file's case does not parse: {0}")]
    Case(#[from] ParseError),
    /// The case cannot be judged any more.
    #[error("the file's case has no inputs: {0}")]
    Inputs(#[from] oracle::OracleError),
    /// An output that was computed from other inputs.
    #[error("the output was made for `{case}`; accepted: one for `{expected}`")]
    OtherCase {
        /// The case that the output names.
        case: String,
        /// The case of the exported file.
        expected: String,
    },
    /// A tensor is not there.
    #[error("tensor {name} is missing; accepted: {accepted}")]
    Missing {
        /// Its name.
        name: &'static str,
        /// What it would be.
        accepted: String,
    },
    /// A tensor of another shape.
    #[error("tensor {name} has shape {shape:?}; accepted: {accepted}")]
    Shape {
        /// Its name.
        name: &'static str,
        /// Its shape.
        shape: Vec<usize>,
        /// What would be accepted.
        accepted: String,
    },
    /// A tensor of another type.
    #[error("tensor {name} has type {dtype}; accepted: {accepted}")]
    Type {
        /// Its name.
        name: &'static str,
        /// Its type.
        dtype: String,
        /// What would be accepted.
        accepted: &'static str,
    },
}

#[cfg(test)]
mod tests;
