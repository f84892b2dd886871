//! The device side of a job: allocate, copy in, launch, copy out, free. It never sees a reference.

use std::collections::HashMap;

use kernels::ahead::DenseAhead;
use kernels::args::{AttentionArgs, BatchMetadata, HostMetadata, PagedCache, Scale, StoreArgs};
use kernels::arm::Arm;
use kernels::device::{DeviceError, DevicePtr, DeviceRef, DeviceResult, StreamId};
use kernels::error::LaunchError;
use kernels::launch::paged_attention_with;
use kernels::route::Knobs;
use kernels::store::reshape_and_cache;
use kernels::tensor::{Allocation, DeviceTensor};

use super::protocol::{
    AttentionCall, CacheSpec, DeviceSpec, Job, Operation, PoolUse, Reply, ScaleSpec, Status, StoreCall,
    TensorSpec,
};
use crate::devices;

/// The devices of one process, opened when first needed.
#[derive(Default)]
pub struct Devices {
    open: HashMap<DeviceSpec, DeviceRef>,
}

impl Devices {
    /// Devices of which one is open already.
    #[must_use]
    pub fn with(spec: DeviceSpec, device: DeviceRef) -> Self {
        Self { open: HashMap::from([(spec, device)]) }
    }

    /// Runs one job and says what came of it.
    pub fn run(&mut self, job: &Job) -> Reply {
        let device = match self.device(&job.device) {
            Ok(device) => device,
            Err(error) => return Reply::failed(status_of(&error)),
        };
        let before_bytes = pool_used(&device);
        let launches_before = launches(&device);
        let allocations = match Allocations::new(&device, job) {
            Ok(allocations) => allocations,
            Err(error) => return Reply::failed(status_of(&error)),
        };
        let status = match launch(&device, job, &allocations.all) {
            Ok(()) => match device.synchronize(StreamId::DEFAULT) {
                Ok(()) => Status::Completed,
                Err(error) => status_of(&error),
            },
            Err(error) => status_of_launch(&error),
        };
        let lost = matches!(status, Status::DeviceError { sticky: true, .. });
        let read = if lost { Ok(Vec::new()) } else { allocations.read(job) };
        let launches = launches(&device) - launches_before;
        drop(allocations);
        let _ = device.synchronize(StreamId::DEFAULT);
        let pool = PoolUse { before_bytes, after_bytes: pool_used(&device) };
        match (read, status) {
            (Ok(buffers), status) => Reply { status, launches, pool, buffers },
            // The launch's own error comes first; reading back only fails on its own after a good launch.
            (Err(error), Status::Completed) => Reply::failed(status_of(&error)),
            (Err(_), status) => Reply { status, launches, pool, buffers: Vec::new() },
        }
    }

    fn device(&mut self, spec: &DeviceSpec) -> DeviceResult<DeviceRef> {
        if let Some(device) = self.open.get(spec) {
            return Ok(device.clone());
        }
        let device = devices::open(spec)?;
        self.open.insert(spec.clone(), device.clone());
        Ok(device)
    }
}

impl Reply {
    fn failed(status: Status) -> Self {
        Self { status, launches: 0, pool: PoolUse::default(), buffers: Vec::new() }
    }
}

fn pool_used(device: &DeviceRef) -> u64 {
    device.pool().map_or(0, |pool| pool.used)
}

fn launches(device: &DeviceRef) -> u64 {
    device.launch_counts().iter().map(|(_, count)| count).sum()
}

/// The job's buffers on the device; freed when dropped.
struct Allocations {
    device: DeviceRef,
    all: Vec<Allocation>,
}

impl Allocations {
    fn new(device: &DeviceRef, job: &Job) -> DeviceResult<Self> {
        let mut allocations = Self { device: device.clone(), all: Vec::with_capacity(job.buffers.len()) };
        for buffer in &job.buffers {
            // A tensor without elements still has an address.
            let bytes = buffer.bytes.len().max(1) as u64;
            let ptr = device.alloc(bytes, StreamId::DEFAULT)?;
            allocations.all.push(Allocation { ptr, bytes });
            if !buffer.bytes.is_empty() {
                device.copy_to_device(ptr, &buffer.bytes, StreamId::DEFAULT)?;
            }
        }
        Ok(allocations)
    }

    fn read(&self, job: &Job) -> DeviceResult<Vec<Vec<u8>>> {
        let mut read = Vec::new();
        for (buffer, allocation) in job.buffers.iter().zip(&self.all).filter(|(buffer, _)| buffer.returned) {
            let mut bytes = vec![0; buffer.bytes.len()];
            if !bytes.is_empty() {
                self.device.copy_to_host(&mut bytes, allocation.ptr, StreamId::DEFAULT)?;
            }
            read.push(bytes);
        }
        Ok(read)
    }
}

impl Drop for Allocations {
    fn drop(&mut self) {
        for allocation in self.all.drain(..).filter(|a| a.ptr != DevicePtr::NULL) {
            // A failed free shows as leaked bytes; there is nobody else to tell.
            let _ = self.device.free(allocation.ptr, StreamId::DEFAULT);
        }
    }
}

fn launch(device: &DeviceRef, job: &Job, allocations: &[Allocation]) -> Result<(), LaunchError> {
    match &job.operation {
        Operation::Attention { arm, call } => {
            let arm: Arm = arm.parse()?;
            let args = attention_args(call, job, allocations);
            let knobs =
                Knobs { splits: call.splits, uniform_query_len: call.uniform_query_len, ..Knobs::default() };
            if call.ahead {
                return attend_announced(device, &args, &knobs);
            }
            paged_attention_with(device, StreamId::DEFAULT, Some(arm), &args, &knobs, None).map(|_| ())
        }
        Operation::Store(call) => {
            reshape_and_cache(device, StreamId::DEFAULT, &store_args(call, job, allocations))
        }
    }
}

/// Serves a call twice: the first time it announces itself, so that the second finds earlier tokens dequantised.
fn attend_announced(device: &DeviceRef, args: &AttentionArgs, knobs: &Knobs) -> Result<(), LaunchError> {
    let mut ahead = DenseAhead::new(device, StreamId::DEFAULT)?;
    ahead.attend(args, knobs, Some(args))?;
    ahead.attend(args, knobs, None)?;
    Ok(ahead.release()?)
}

fn attention_args(call: &AttentionCall, job: &Job, allocations: &[Allocation]) -> AttentionArgs {
    let tensor = |spec: &TensorSpec| tensor(spec, allocations);
    let metadata = BatchMetadata {
        block_table: tensor(&call.block_table),
        seq_lens: tensor(&call.seq_lens),
        query_start_loc: tensor(&call.query_start_loc),
        max_query_len: call.max_query_len,
        max_seq_len: call.max_seq_len,
    };
    let host = |spec: &TensorSpec| call.host_metadata.then(|| words(&job.buffers[spec.buffer].bytes));
    AttentionArgs {
        lse: call.lse.as_ref().map(tensor),
        softmax_scale: call.softmax_scale.0,
        causal: call.causal,
        window_left: call.window_left,
        window_right: call.window_right,
        softcap: call.softcap.map(|cap| cap.0),
        alibi_slopes: call.alibi_slopes.as_ref().map(tensor),
        sinks: call.sinks.as_ref().map(tensor),
        host: HostMetadata {
            block_table: host(&call.block_table),
            seq_lens: host(&call.seq_lens),
            query_start_loc: host(&call.query_start_loc),
        },
        ..AttentionArgs::causal(tensor(&call.q), cache(&call.cache, allocations), tensor(&call.out), metadata)
    }
}

fn store_args(call: &StoreCall, job: &Job, allocations: &[Allocation]) -> StoreArgs {
    let slots = &job.buffers[call.slot_mapping.buffer].bytes;
    StoreArgs {
        k: tensor(&call.k, allocations),
        v: tensor(&call.v, allocations),
        cache: cache(&call.cache, allocations),
        slot_mapping: tensor(&call.slot_mapping, allocations),
        host_slot_mapping: call.host_slots.then(|| long_words(slots)),
    }
}

fn cache(spec: &CacheSpec, allocations: &[Allocation]) -> PagedCache {
    let scale = |scale: &ScaleSpec| match scale {
        ScaleSpec::PerTensor(scale) => Scale::PerTensor(scale.0),
        ScaleSpec::PerHead(spec) => Scale::PerHead(tensor(spec, allocations)),
    };
    PagedCache {
        k: tensor(&spec.k, allocations),
        v: tensor(&spec.v, allocations),
        k_scale: scale(&spec.k_scale),
        v_scale: scale(&spec.v_scale),
    }
}

fn tensor(spec: &TensorSpec, allocations: &[Allocation]) -> DeviceTensor {
    let allocation = allocations[spec.buffer];
    DeviceTensor::strided(allocation, spec.offset, spec.dtype, &spec.shape, &spec.strides)
}

fn words(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect()
}

fn long_words(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks::<8>().0.iter().map(|word| i64::from_le_bytes(*word)).collect()
}

fn status_of_launch(error: &LaunchError) -> Status {
    match error {
        LaunchError::Argument(inner) => {
            Status::Refused { argument: inner.argument.clone(), message: inner.to_string() }
        }
        LaunchError::Unsupported(inner) => Status::Unsupported { message: inner.to_string() },
        LaunchError::Device(inner) => status_of(inner),
        other => Status::DeviceError { message: chain(other), sticky: false },
    }
}

fn status_of(error: &DeviceError) -> Status {
    match error {
        DeviceError::Findings(findings) => Status::Findings { findings: findings.clone() },
        DeviceError::Environment(message) => Status::Environment { message: message.clone() },
        DeviceError::Driver { sticky, .. } => Status::DeviceError { message: chain(error), sticky: *sticky },
        other => Status::DeviceError { message: chain(other), sticky: false },
    }
}

/// An error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}
