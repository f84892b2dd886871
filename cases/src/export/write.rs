//! Writing a case.

use std::collections::HashMap;

use oracle::{Format, Reference};
use safetensors::{Dtype, View};

use super::{Description, ExportError};
use crate::case::{Case, Expectation};
use crate::inputs::{Inputs, Poison};
use crate::problem::{Op, Problem};
use crate::reference::references;

/// One tensor of the file.
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        (&self.bytes).into()
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// The tensors by name, collected.
#[derive(Default)]
struct File {
    tensors: Vec<(&'static str, Tensor)>,
}

impl File {
    fn add(&mut self, name: &'static str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.push((name, Tensor { dtype, shape: shape.to_vec(), bytes }));
    }

    fn i32s(&mut self, name: &'static str, shape: &[usize], values: impl IntoIterator<Item = i32>) {
        self.add(name, Dtype::I32, shape, values.into_iter().flat_map(i32::to_le_bytes).collect());
    }

    fn f32s(&mut self, name: &'static str, shape: &[usize], values: &[f32]) {
        self.add(name, Dtype::F32, shape, Format::F32.encode_to_bytes(values));
    }

    fn f64s<'a>(&mut self, name: &'static str, shape: &[usize], values: impl IntoIterator<Item = &'a f64>) {
        self.add(name, Dtype::F64, shape, values.into_iter().flat_map(|x| x.to_le_bytes()).collect());
    }
}

/// The file of a case, with the bound of `arm`. Equal cases give equal bytes.
///
/// # Errors
/// For stores, for cases that must be refused, and for cases that the reference refuses.
pub fn export(case: &Case, arm: &str) -> Result<Vec<u8>, ExportError> {
    if case.problem.op == Op::Store {
        return Err(ExportError::Store);
    }
    if let Expectation::Reject { argument } = &case.expectation {
        return Err(ExportError::MustReject { argument: argument.clone() });
    }
    let inputs = Inputs::generate(case)?;
    let references = references(case, &inputs, arm)?;
    let mut file = File::default();
    write_inputs(&mut file, &case.problem, &inputs);
    write_cache(&mut file, &case.problem, &inputs);
    write_expected(&mut file, &case.problem, &references);
    let description = serde_json::to_string(&Description::new(case, &inputs, arm))
        .expect("numbers, names and options are always JSON");
    let metadata = HashMap::from([("attest".to_owned(), description)]);
    let tensors = file.tensors.iter().map(|(name, tensor)| (*name, tensor));
    Ok(safetensors::serialize(tensors, Some(metadata))?)
}

/// About how large the file of a case is, in bytes; the whole output counts even where only a sample of rows is written.
#[must_use]
pub fn estimated_bytes(problem: &Problem) -> usize {
    let rows: usize = problem.query_lens.iter().sum();
    let keys: usize = problem.kv_lens.iter().sum();
    let per_row = problem.num_q_heads * (4 * problem.head_dim + 16 * problem.head_dim_v + 16);
    let per_key = problem.num_kv_heads * (problem.head_dim + problem.head_dim_v) * 8;
    rows.saturating_mul(per_row).saturating_add(keys.saturating_mul(per_key))
}

fn start_locs(lens: &[usize]) -> Vec<i32> {
    let mut starts = vec![0];
    for len in lens {
        let len = i32::try_from(*len).expect("the parser bounds lengths by 2^24");
        starts.push(starts[starts.len() - 1] + len);
    }
    starts
}

fn write_inputs(file: &mut File, problem: &Problem, inputs: &Inputs) {
    let (q_type, heads) = (dtype(problem.query_format), problem.num_q_heads);
    let q = inputs.query.as_slice().expect("generated arrays are row-major");
    file.add("q", q_type, inputs.query.shape(), problem.query_format.encode_to_bytes(q));
    let requests = problem.num_requests();
    for (name, of_requests, dim) in
        [("k", &inputs.keys, problem.head_dim), ("v", &inputs.values, problem.head_dim_v)]
    {
        let all: Vec<f32> = of_requests.iter().flat_map(|array| array.iter()).copied().collect();
        let rows = problem.kv_lens.iter().sum();
        file.f32s(name, &[rows, problem.num_kv_heads, dim], &all);
    }
    file.i32s("kv_start_loc", &[requests + 1], start_locs(&problem.kv_lens));
    file.i32s("query_start_loc", &[requests + 1], start_locs(&problem.query_lens));
    let lens = problem.kv_lens.iter().map(|len| i32::try_from(*len).expect("bounded by the parser"));
    file.i32s("seq_lens", &[requests], lens);
    file.i32s("block_table", &[requests, inputs.pages.width], inputs.pages.block_table());
    for (name, scale) in [("k_scale", &problem.k_scale), ("v_scale", &problem.v_scale)] {
        let all: Vec<f32> = (0..problem.num_kv_heads).map(|head| scale.of_head(head)).collect();
        file.f32s(name, &[problem.num_kv_heads], &all);
    }
    if let Some(slopes) = problem.alibi_slopes() {
        file.f32s("alibi_slopes", &[heads], &slopes);
    }
    if let Some(sinks) = &inputs.sinks {
        file.f32s("sinks", &[heads], sinks);
    }
}

fn write_cache(file: &mut File, problem: &Problem, inputs: &Inputs) {
    let names: &[&'static str] = match problem.packing {
        oracle::Packing::Separate => &["k_cache", "v_cache"],
        _ => &["kv_cache"],
    };
    for (name, bytes) in names.iter().zip(inputs.caches(Poison::Nan)) {
        file.add(name, Dtype::U8, &[bytes.len()], bytes);
    }
}

fn write_expected(file: &mut File, problem: &Problem, references: &[Reference]) {
    let starts = start_locs(&problem.query_lens);
    let global = references.iter().zip(&starts).flat_map(|(reference, start)| {
        reference.rows.iter().map(move |row| start + i32::try_from(*row).expect("bounded by the parser"))
    });
    let rows: Vec<i32> = global.collect();
    let out_shape = [rows.len(), problem.num_q_heads, problem.head_dim_v];
    file.f64s("expected_out", &out_shape, references.iter().flat_map(|reference| &reference.out));
    file.f64s("out_bound", &out_shape, references.iter().flat_map(|reference| &reference.bound));
    file.f64s("expected_lse", &out_shape[..2], references.iter().flat_map(|reference| &reference.lse));
    file.f64s("lse_bound", &out_shape[..2], references.iter().flat_map(|reference| &reference.lse_bound));
    file.i32s("expected_rows", &[rows.len()], rows);
}

/// The type of a query's format. A query has no 8-bit format.
fn dtype(format: Format) -> Dtype {
    match format {
        Format::F32 => Dtype::F32,
        Format::Bf16 => Dtype::BF16,
        Format::F16 => Dtype::F16,
        Format::E4m3 => Dtype::F8_E4M3,
        Format::E5m2 => Dtype::F8_E5M2,
    }
}
