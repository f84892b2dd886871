//! The operations that are swept: every arm, and the ways in which they are put together.

use kernels::ahead::DenseAhead;
use kernels::args::StoreArgs;
use kernels::arm::Arm;
use kernels::device::{DeviceRef, StreamId};
use kernels::error::LaunchError;
use kernels::guards::{Capture, OwnedEvent, OwnedStream};
use kernels::route::Knobs;
use kernels::store::reshape_and_cache;
use kernels::tensor::{Allocation, DType};
use kernels::workspace::Workspace;

use super::Run;
use super::batch::{Batch, BatchShape, Inputs};

const STREAM: StreamId = StreamId::DEFAULT;

/// A prefill with a cached prefix.
const PREFILL: BatchShape = BatchShape {
    q_lens: &[5],
    kv_lens: &[11],
    heads: (4, 2),
    head_dim: 64,
    page_size: 4,
    q_dtype: DType::Bf16,
    kv_dtype: DType::E4m3,
};

/// Two requests, one of them all prompt. Dense scratch takes 12288 bytes, its identity table 8.
pub(super) const TWO_REQUESTS: BatchShape =
    BatchShape { q_lens: &[5, 6], kv_lens: &[12, 6], heads: (2, 2), ..PREFILL };

/// One new token on a sequence long enough to be split.
const DECODE: BatchShape = BatchShape { q_lens: &[1], kv_lens: &[70], ..PREFILL };

fn bf16(shape: BatchShape) -> BatchShape {
    BatchShape { kv_dtype: DType::Bf16, ..shape }
}

/// A call of one arm and nothing else.
fn one_arm(device: &DeviceRef, shape: &BatchShape, arm: Arm, knobs: Knobs) -> Result<Run, LaunchError> {
    let batch = Batch::new(device, shape)?;
    Ok(Box::new(move |device| {
        batch.attend(device, STREAM, (arm, &knobs), None)?;
        Ok(batch.read(device, STREAM)?)
    }))
}

fn split(splits: u64) -> Knobs {
    Knobs { splits: Some(splits), ..Knobs::default() }
}

pub(super) fn scalar(device: &DeviceRef) -> Result<Run, LaunchError> {
    one_arm(device, &PREFILL, Arm::Scalar, Knobs::default())
}

pub(super) fn mma(device: &DeviceRef) -> Result<Run, LaunchError> {
    one_arm(device, &bf16(PREFILL), Arm::Mma, Knobs::default())
}

pub(super) fn fp8_dense(device: &DeviceRef) -> Result<Run, LaunchError> {
    one_arm(device, &PREFILL, Arm::Fp8Dense, Knobs::default())
}

pub(super) fn fp8_dense_f32(device: &DeviceRef) -> Result<Run, LaunchError> {
    one_arm(device, &BatchShape { q_dtype: DType::F32, ..PREFILL }, Arm::Fp8Dense, Knobs::default())
}

pub(super) fn fp8_staged_soft(device: &DeviceRef) -> Result<Run, LaunchError> {
    one_arm(device, &DECODE, Arm::Fp8StagedSoft, split(1))
}

pub(super) fn fp8_staged_hw(device: &DeviceRef) -> Result<Run, LaunchError> {
    one_arm(device, &DECODE, Arm::Fp8StagedHw, split(2))
}

pub(super) fn bf16_dense(device: &DeviceRef) -> Result<Run, LaunchError> {
    one_arm(device, &bf16(PREFILL), Arm::Bf16Dense, Knobs::default())
}

pub(super) fn split_kv_decode(device: &DeviceRef) -> Result<Run, LaunchError> {
    one_arm(device, &bf16(DECODE), Arm::Mma, split(3))
}

pub(super) fn two_request_batch(device: &DeviceRef) -> Result<Run, LaunchError> {
    one_arm(device, &TWO_REQUESTS, Arm::Fp8Dense, Knobs::default())
}

/// Rows to store for every key of a batch.
struct Store {
    args: StoreArgs,
    cache: [Allocation; 2],
    _held: Vec<kernels::scratch::Scratch>,
}

impl Store {
    fn new(device: &DeviceRef, shape: &BatchShape, batch: &Batch) -> Result<Self, LaunchError> {
        let mut inputs = Inputs::new(device);
        let slots = shape.slots();
        let tokens = slots.len() as u64;
        let rows = [tokens, shape.heads.1, shape.head_dim];
        let bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
        let cache = batch.args.cache.clone();
        let args = StoreArgs {
            k: inputs.pattern(DType::Bf16, &rows, 4)?,
            v: inputs.pattern(DType::Bf16, &rows, 5)?,
            slot_mapping: inputs.upload(DType::I64, &[tokens], &bytes)?,
            host_slot_mapping: Some(slots),
            cache,
        };
        device.synchronize(STREAM)?;
        let cache = [args.cache.k.allocation, args.cache.v.allocation];
        Ok(Self { args, cache, _held: inputs.held })
    }

    /// Clears the cache, so that what is read later was stored now, and stores.
    fn run(&self, device: &DeviceRef) -> Result<(), LaunchError> {
        for side in self.cache {
            device.memset(side.ptr, 0, side.bytes, STREAM)?;
        }
        reshape_and_cache(device, STREAM, &self.args)
    }
}

pub(super) fn store(device: &DeviceRef) -> Result<Run, LaunchError> {
    let batch = Batch::new(device, &PREFILL)?;
    let store = Store::new(device, &PREFILL, &batch)?;
    Ok(Box::new(move |device| {
        // The batch owns the cache.
        let _ = &batch;
        store.run(device)?;
        let mut bytes = vec![0; store.cache.iter().map(|side| side.bytes as usize).sum()];
        let (k, v) = bytes.split_at_mut(store.cache[0].bytes as usize);
        device.copy_to_host(k, store.cache[0].ptr, STREAM)?;
        device.copy_to_host(v, store.cache[1].ptr, STREAM)?;
        Ok(bytes)
    }))
}

pub(super) fn store_then_attend(device: &DeviceRef) -> Result<Run, LaunchError> {
    let batch = Batch::new(device, &PREFILL)?;
    let store = Store::new(device, &PREFILL, &batch)?;
    Ok(Box::new(move |device| {
        store.run(device)?;
        batch.attend(device, STREAM, (Arm::Fp8Dense, &Knobs::default()), None)?;
        Ok(batch.read(device, STREAM)?)
    }))
}

/// The first call fills the workspace, the second is recorded, and the recording runs twice.
pub(super) fn graph(device: &DeviceRef) -> Result<Run, LaunchError> {
    let batch = Batch::new(device, &PREFILL)?;
    let knobs = Knobs::default();
    Ok(Box::new(move |device| {
        let stream = OwnedStream::new(device)?;
        let mut workspace = Workspace::new(device, stream.id());
        batch.attend(device, stream.id(), (Arm::Fp8Dense, &knobs), Some(&mut workspace))?;
        // Declared after the workspace: a stream that still records would not take its frees.
        let capture = Capture::begin(device, stream.id())?;
        batch.attend(device, stream.id(), (Arm::Fp8Dense, &knobs), Some(&mut workspace))?;
        let graph = capture.end()?;
        device.launch_graph(graph.id(), stream.id())?;
        device.launch_graph(graph.id(), stream.id())?;
        let bytes = batch.read(device, stream.id())?;
        graph.release()?;
        workspace.release()?;
        stream.release()?;
        Ok(bytes)
    }))
}

/// Two batches side by side; the default stream waits for the other before both are read.
pub(super) fn two_streams(device: &DeviceRef) -> Result<Run, LaunchError> {
    let (near, far) = (Batch::new(device, &PREFILL)?, Batch::new(device, &TWO_REQUESTS)?);
    let knobs = Knobs::default();
    Ok(Box::new(move |device| {
        let side = OwnedStream::new(device)?;
        let (start, end) = (OwnedEvent::new(device)?, OwnedEvent::new(device)?);
        device.record_event(start.id(), STREAM)?;
        device.wait_event(side.id(), start.id())?;
        far.attend(device, side.id(), (Arm::Fp8Dense, &knobs), None)?;
        near.attend(device, STREAM, (Arm::Fp8Dense, &knobs), None)?;
        device.record_event(end.id(), side.id())?;
        device.wait_event(STREAM, end.id())?;
        let mut bytes = near.read(device, STREAM)?;
        bytes.extend(far.read(device, STREAM)?);
        end.release()?;
        start.release()?;
        side.release()?;
        Ok(bytes)
    }))
}

/// Two layers in turn; while the first attends, the second is dequantised on a stream of its own.
pub(super) fn ahead(device: &DeviceRef) -> Result<Run, LaunchError> {
    let (first, second) = (Batch::new(device, &PREFILL)?, Batch::new(device, &TWO_REQUESTS)?);
    let knobs = Knobs::default();
    Ok(Box::new(move |device| {
        first.clear(device, STREAM)?;
        second.clear(device, STREAM)?;
        let mut ahead = DenseAhead::new(device, STREAM)?;
        ahead.attend(&first.args, &knobs, Some(&second.args))?;
        ahead.attend(&second.args, &knobs, None)?;
        let mut bytes = first.read(device, STREAM)?;
        bytes.extend(second.read(device, STREAM)?);
        ahead.release()?;
        Ok(bytes)
    }))
}
