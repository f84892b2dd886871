//! Reading an exported case back.

use ndarray::{Array2, Array3, Axis};
use oracle::{Mask, Reference};
use safetensors::{Dtype, SafeTensors};

use super::description::SCHEMA;
use super::{Description, FileError};
use crate::case::Case;

/// An exported case: enough to judge an output.
#[derive(Clone, Debug)]
pub struct Exported {
    /// What the file says about itself.
    pub description: Description,
    /// The case.
    pub case: Case,
    /// The reference of every request, as the file has it.
    pub references: Vec<Reference>,
    /// Bytes of `q`: they tell whether the case still means the same inputs.
    pub(super) query: Vec<u8>,
}

impl Exported {
    /// Reads a file. Its own expected values and bounds are what counts, whatever this version would compute.
    ///
    /// # Errors
    /// When it is not a file that [`super::export`] wrote, or not complete.
    pub fn read(bytes: &[u8]) -> Result<Self, FileError> {
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let entry = metadata.metadata().as_ref().and_then(|all| all.get("attest"));
        let entry = entry.ok_or_else(|| FileError::Description("missing".to_owned()))?;
        let description: Description =
            serde_json::from_str(entry).map_err(|error| FileError::Description(error.to_string()))?;
        if description.schema != SCHEMA {
            return Err(FileError::Description(format!("of schema {}", description.schema)));
        }
        let case: Case = description.case.parse()?;
        let file = SafeTensors::deserialize(bytes)?;
        let references = references(&file, &case)?;
        let query = tensor(&file, "q", "the queries")?.data().to_vec();
        Ok(Self { description, case, references, query })
    }
}

pub(super) fn tensor<'a>(
    file: &SafeTensors<'a>,
    name: &'static str,
    accepted: &str,
) -> Result<safetensors::tensor::TensorView<'a>, FileError> {
    file.tensor(name).map_err(|_| FileError::Missing { name, accepted: accepted.to_owned() })
}

fn f64s(file: &SafeTensors<'_>, name: &'static str, shape: &[usize]) -> Result<Vec<f64>, FileError> {
    let accepted = format!("f64 {shape:?}");
    let tensor = tensor(file, name, &accepted)?;
    if tensor.dtype() != Dtype::F64 {
        return Err(FileError::Type { name, dtype: format!("{:?}", tensor.dtype()), accepted: "f64" });
    }
    if tensor.shape() != shape {
        return Err(FileError::Shape { name, shape: tensor.shape().to_vec(), accepted });
    }
    Ok(tensor.data().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
}

/// The rows that are judged, as indices into the whole batch, ascending.
fn rows(file: &SafeTensors<'_>, case: &Case) -> Result<Vec<usize>, FileError> {
    let (name, total) = ("expected_rows", case.problem.total_query_rows());
    let accepted = format!("i32 [rows], ascending row numbers below {total}");
    let tensor = tensor(file, name, &accepted)?;
    if tensor.dtype() != Dtype::I32 {
        return Err(FileError::Type { name, dtype: format!("{:?}", tensor.dtype()), accepted: "i32" });
    }
    let words = tensor.data().as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
    let rows: Vec<usize> = words.map(|row| usize::try_from(row).unwrap_or(usize::MAX)).collect();
    if !rows.is_sorted_by(|a, b| a < b) || rows.last().is_some_and(|last| *last >= total) {
        return Err(FileError::Shape { name, shape: tensor.shape().to_vec(), accepted });
    }
    Ok(rows)
}

fn references(file: &SafeTensors<'_>, case: &Case) -> Result<Vec<Reference>, FileError> {
    let problem = &case.problem;
    let rows = rows(file, case)?;
    let shape = (rows.len(), problem.num_q_heads, problem.head_dim_v);
    let cube = |name| {
        let values = f64s(file, name, &[shape.0, shape.1, shape.2])?;
        Ok::<_, FileError>(Array3::from_shape_vec(shape, values).expect("the shape was checked"))
    };
    let plane = |name| {
        let values = f64s(file, name, &[shape.0, shape.1])?;
        Ok::<_, FileError>(Array2::from_shape_vec((shape.0, shape.1), values).expect("the shape was checked"))
    };
    let (out, bound) = (cube("expected_out")?, cube("out_bound")?);
    let (lse, lse_bound) = (plane("expected_lse")?, plane("lse_bound")?);
    let mut references = Vec::new();
    let mut first = 0;
    for (q_len, kv_len) in problem.query_lens.iter().zip(&problem.kv_lens) {
        let places: Vec<usize> =
            (0..rows.len()).filter(|place| (first..first + q_len).contains(&rows[*place])).collect();
        let of_request: Vec<usize> = places.iter().map(|place| rows[*place] - first).collect();
        let mask = Mask {
            q_len: *q_len as i64,
            kv_len: *kv_len as i64,
            causal: problem.options.causal,
            window_left: problem.options.window_left,
            window_right: problem.options.window_right,
        };
        references.push(Reference {
            out: out.select(Axis(0), &places),
            bound: bound.select(Axis(0), &places),
            lse: lse.select(Axis(0), &places),
            lse_bound: lse_bound.select(Axis(0), &places),
            positions: of_request.iter().map(|row| mask.position(*row)).collect(),
            rows: of_request,
            max_eta: 0.0,
        });
        first += q_len;
    }
    Ok(references)
}
