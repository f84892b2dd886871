//! Block table, lengths and query starts of a batch, as they are or corrupted on purpose.

use kernels::tensor::DType;

use super::Builder;
use crate::case::{Case, Defect};
use crate::executor::TensorSpec;
use crate::inputs::Inputs;

/// The batch's metadata in host memory.
pub(super) struct Metadata {
    table: Vec<i32>,
    table_shape: [usize; 2],
    lens: Vec<i32>,
    starts: Vec<i32>,
    /// The argument that holds 64-bit integers, if one does.
    wide: Option<Defect>,
    /// At least the longest query.
    pub max_query_len: u64,
    /// At least the longest sequence.
    pub max_seq_len: u64,
}

impl Metadata {
    pub fn new(case: &Case, inputs: &Inputs, loose: bool) -> Self {
        let problem = &case.problem;
        let as_i32 = |n: usize| i32::try_from(n).expect("the parser bounds lengths by 2^24");
        let longest = |lens: &[usize]| lens.iter().max().copied().unwrap_or(0) as u64;
        let mut starts = vec![0];
        for len in &problem.query_lens {
            starts.push(starts[starts.len() - 1] + as_i32(*len));
        }
        let capacity = (inputs.pages.width * inputs.pages.page_size) as u64;
        let mut metadata = Self {
            table: inputs.pages.block_table(),
            table_shape: [problem.num_requests(), inputs.pages.width],
            lens: problem.kv_lens.iter().map(|n| as_i32(*n)).collect(),
            starts,
            wide: None,
            max_query_len: longest(&problem.query_lens),
            max_seq_len: longest(&problem.kv_lens),
        };
        if loose {
            metadata.max_query_len = problem.total_query_rows() as u64 + 7;
            metadata.max_seq_len = capacity + 60;
        }
        if let Some(defect) = case.defect {
            metadata.corrupt(defect, inputs, capacity);
        }
        metadata
    }

    fn corrupt(&mut self, defect: Defect, inputs: &Inputs, capacity: u64) {
        match defect {
            Defect::QueryStartLocShort => {
                self.starts.pop();
            }
            Defect::QueryStartLocUnsorted => set(&mut self.starts, 1, -1),
            Defect::QueryStartLocOffset => set(&mut self.starts, 0, 1),
            Defect::QueryStartLocPast => {
                let last = self.starts.len() - 1;
                self.starts[last] += 1;
                self.max_query_len += 1;
            }
            Defect::SeqLensShort => {
                self.lens.pop();
            }
            Defect::SeqLensI64 | Defect::QueryStartLocI64 | Defect::BlockTableI64 => self.wide = Some(defect),
            // It belongs to stores.
            Defect::SlotMappingI32 => {}
            Defect::SeqLensNegative => set(&mut self.lens, 0, -1),
            Defect::SeqLensPastTable => {
                set(&mut self.lens, 0, i32::try_from(capacity + 1).unwrap_or(i32::MAX));
                self.max_seq_len = capacity + 1;
            }
            Defect::BlockTableNegative => set(&mut self.table, 0, -1),
            Defect::BlockTablePast => {
                set(&mut self.table, 0, i32::try_from(inputs.pages.num_pages).unwrap_or(i32::MAX));
            }
        }
    }

    pub fn block_table(&self, builder: &mut Builder, returned: bool) -> TensorSpec {
        let integers = self.integers(&self.table, Defect::BlockTableI64);
        builder.tensor("block_table", integers.0, &self.table_shape, integers.1, returned)
    }

    pub fn seq_lens(&self, builder: &mut Builder, returned: bool) -> TensorSpec {
        let integers = self.integers(&self.lens, Defect::SeqLensI64);
        builder.tensor("seq_lens", integers.0, &[self.lens.len()], integers.1, returned)
    }

    pub fn query_start_loc(&self, builder: &mut Builder, returned: bool) -> TensorSpec {
        let integers = self.integers(&self.starts, Defect::QueryStartLocI64);
        builder.tensor("query_start_loc", integers.0, &[self.starts.len()], integers.1, returned)
    }

    /// Type and bytes of integers: of 32 bits unless they are the ones made too wide.
    fn integers(&self, values: &[i32], wide: Defect) -> (DType, Vec<u8>) {
        match self.wide == Some(wide) {
            true => (DType::I64, values.iter().flat_map(|value| i64::from(*value).to_le_bytes()).collect()),
            false => (DType::I32, bytes(values)),
        }
    }
}

fn set(values: &mut [i32], index: usize, value: i32) {
    if let Some(slot) = values.get_mut(index) {
        *slot = value;
    }
}

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
