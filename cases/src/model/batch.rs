//! What one step gives the kernels besides numbers: which rows belong to whom, and where their keys lie.

use kernels::args::{BatchMetadata, HostMetadata};
use kernels::device::{DeviceRef, StreamId};
use kernels::scratch::Scratch;
use kernels::tensor::{Allocation, DType, DeviceTensor};

use super::error::ModelError;
use super::kv::{KvCache, Sequence, release_all};

/// The requests of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Rows of each request.
    pub query_lens: Vec<usize>,
    /// Keys of each request, the new ones included.
    pub seq_lens: Vec<usize>,
    /// Pages of each request, in order of position.
    pub pages: Vec<Vec<i32>>,
    /// Slot of each row.
    pub slots: Vec<i64>,
    /// Position of each row in its sequence.
    pub positions: Vec<usize>,
}

impl Batch {
    /// The step that adds so many rows to each sequence, whose pages are reserved already.
    #[must_use]
    pub fn new<'s>(cache: &KvCache, work: impl Iterator<Item = (&'s Sequence, usize)>) -> Self {
        let mut batch = Self {
            query_lens: Vec::new(),
            seq_lens: Vec::new(),
            pages: Vec::new(),
            slots: Vec::new(),
            positions: Vec::new(),
        };
        for (sequence, rows) in work {
            let end = sequence.len() + rows;
            batch.query_lens.push(rows);
            batch.seq_lens.push(end);
            batch.pages.push(sequence.pages()[..end.div_ceil(cache.page_size())].to_vec());
            batch.slots.extend((sequence.len()..end).map(|position| cache.slot(sequence, position)));
            batch.positions.extend(sequence.len()..end);
        }
        batch
    }

    /// Rows of all requests.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.positions.len()
    }

    /// The first row of each request.
    pub fn first_rows(&self) -> impl Iterator<Item = usize> {
        self.query_lens.iter().scan(0, |next, rows| {
            let first = *next;
            *next += rows;
            Some(first)
        })
    }

    fn width(&self) -> usize {
        self.pages.iter().map(Vec::len).max().unwrap_or(0).max(1)
    }

    /// `[requests, width]`; entries past a request's pages point nowhere.
    fn block_table(&self) -> Vec<i32> {
        let width = self.width();
        let padded = |pages: &Vec<i32>| {
            pages.iter().copied().chain(std::iter::repeat(-1)).take(width).collect::<Vec<_>>()
        };
        self.pages.iter().flat_map(padded).collect()
    }

    fn host(&self) -> HostMetadata {
        let narrow = |n: usize| i32::try_from(n).expect("a model's context is far below 2^31 tokens");
        let starts = self.first_rows().chain([self.rows()]).map(narrow).collect();
        HostMetadata {
            block_table: Some(self.block_table()),
            seq_lens: Some(self.seq_lens.iter().copied().map(narrow).collect()),
            query_start_loc: Some(starts),
        }
    }
}

/// A batch's metadata on the device, for all layers of one step.
pub struct DeviceBatch {
    memory: [Scratch; 4],
    /// What an attention launch gets.
    pub metadata: BatchMetadata,
    /// The same for the launch code's own checks.
    pub host: HostMetadata,
    /// i64 `[rows]`, for the store.
    pub slot_mapping: DeviceTensor,
}

impl DeviceBatch {
    /// Copies a batch to the device.
    ///
    /// # Errors
    /// What the device reports.
    pub fn upload(device: &DeviceRef, stream: StreamId, batch: &Batch) -> Result<Self, ModelError> {
        let host = batch.host();
        let words = |list: &Option<Vec<i32>>| -> Vec<u8> {
            list.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
        };
        let requests = batch.query_lens.len() as u64;
        let upload = |bytes: &[u8], dtype: DType, shape: &[u64]| {
            let memory = Scratch::new(device, bytes.len() as u64, stream)?;
            device.copy_to_device(memory.ptr(), bytes, stream)?;
            let allocation = Allocation { ptr: memory.ptr(), bytes: memory.bytes() };
            Ok::<_, ModelError>((memory, DeviceTensor::contiguous(allocation, dtype, shape)))
        };
        let slots: Vec<u8> = batch.slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
        let table = upload(&words(&host.block_table), DType::I32, &[requests, batch.width() as u64])?;
        let lens = upload(&words(&host.seq_lens), DType::I32, &[requests])?;
        let starts = upload(&words(&host.query_start_loc), DType::I32, &[requests + 1])?;
        let slots = upload(&slots, DType::I64, &[batch.rows() as u64])?;
        let longest = |lens: &[usize]| lens.iter().copied().max().unwrap_or(0) as u64;
        Ok(Self {
            memory: [table.0, lens.0, starts.0, slots.0],
            metadata: BatchMetadata {
                block_table: table.1,
                seq_lens: lens.1,
                query_start_loc: starts.1,
                max_query_len: longest(&batch.query_lens),
                max_seq_len: longest(&batch.seq_lens),
            },
            host,
            slot_mapping: slots.1,
        })
    }

    /// Frees everything and reports the first failure, after trying all.
    ///
    /// # Errors
    /// What the device reports.
    pub fn release(self) -> Result<(), ModelError> {
        Ok(release_all(self.memory.into_iter())?)
    }
}
