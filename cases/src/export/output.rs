//! An output that was computed anywhere, and its verdict.

use oracle::Format;
use safetensors::{Dtype, SafeTensors};

use super::read::tensor;
use super::{Exported, FileError};
use crate::case::Data;
use crate::inputs::Inputs;
use crate::judge::{AttentionOutput, judge_attention};
use crate::verdict::Verdict;

/// An output to judge.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The format of `out`: its own, or f32 where it is f64.
    pub format: Format,
    /// Bytes of `out` and of `lse`, the latter in f32.
    pub bytes: AttentionOutput,
}

const OUT_TYPES: &str = "f16, bf16, f32, f64";

impl Output {
    /// Reads the output for an exported case from a safetensors file, which may be the exported file with `out` added.
    ///
    /// # Errors
    /// When there is no `out`, or a tensor's type or shape is another.
    pub fn read(bytes: &[u8], exported: &Exported) -> Result<Self, FileError> {
        let file = SafeTensors::deserialize(bytes)?;
        same_case(bytes, exported)?;
        let problem = &exported.case.problem;
        let (rows, heads, dim) = (problem.total_query_rows(), problem.num_q_heads, problem.head_dim_v);
        let accepted = format!("[{rows}, {heads}, {dim}] or [{rows}, {}]", heads * dim);
        let out = tensor(&file, "out", &format!("{accepted} in {OUT_TYPES}"))?;
        if ![&[rows, heads, dim][..], &[rows, heads * dim]].contains(&out.shape()) {
            return Err(FileError::Shape { name: "out", shape: out.shape().to_vec(), accepted });
        }
        let (format, out) = narrowed("out", out.dtype(), out.data())?;
        let lse = match file.tensor("lse") {
            Err(_) => None,
            Ok(lse) if lse.shape() != [rows, heads] => {
                let accepted = format!("[{rows}, {heads}]");
                return Err(FileError::Shape { name: "lse", shape: lse.shape().to_vec(), accepted });
            }
            Ok(lse) => match narrowed("lse", lse.dtype(), lse.data())? {
                (Format::F32, bytes) => Some(bytes),
                (format, _) => {
                    let dtype = format.name().to_owned();
                    return Err(FileError::Type { name: "lse", dtype, accepted: "f32, f64" });
                }
            },
        };
        Ok(Self { format, bytes: AttentionOutput { out, lse } })
    }
}

/// An output may say in its metadata for which case it was made: an old one is found that way.
fn same_case(bytes: &[u8], exported: &Exported) -> Result<(), FileError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes)?;
    let case = metadata.metadata().as_ref().and_then(|all| all.get("case"));
    match case {
        Some(case) if *case != exported.description.case => {
            Err(FileError::OtherCase { case: case.clone(), expected: exported.description.case.clone() })
        }
        _ => Ok(()),
    }
}

/// The format and bytes of a tensor, f64 rounded to f32.
fn narrowed(name: &'static str, dtype: Dtype, data: &[u8]) -> Result<(Format, Vec<u8>), FileError> {
    match dtype {
        Dtype::F16 => Ok((Format::F16, data.to_vec())),
        Dtype::BF16 => Ok((Format::Bf16, data.to_vec())),
        Dtype::F32 => Ok((Format::F32, data.to_vec())),
        Dtype::F64 => {
            let wide = data.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
            Ok((Format::F32, wide.flat_map(|x| (x as f32).to_le_bytes()).collect()))
        }
        other => Err(FileError::Type { name, dtype: format!("{other:?}"), accepted: OUT_TYPES }),
    }
}

/// Judges an output by the comparison that judges devices.
///
/// # Errors
/// When the inputs of the case cannot be made, which does not happen to files that [`super::export`] wrote.
pub fn judge(exported: &Exported, output: &Output) -> Result<Verdict, FileError> {
    let mut case = exported.case.clone();
    let inputs = Inputs::generate(&case)?;
    let q = inputs.query.as_slice().expect("generated arrays are row-major");
    if case.problem.query_format.encode_to_bytes(q) != exported.query {
        // Another version made the file from other numbers. Its own expectations decide; what the probes of this version
        // know about the data would be wrong.
        case.data = Data::Random;
    }
    case.problem.query_format = output.format;
    let (failures, worst_share) = judge_attention(&case, &inputs, &exported.references, &output.bytes)?;
    Ok(if failures.is_empty() { Verdict::Pass { worst_share } } else { Verdict::Mismatch { failures } })
}
