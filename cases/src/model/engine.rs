//! Serving a model: steps of one or more requests over the paged cache, on a device.

use std::time::Instant;

use kernels::args::{AttentionArgs, StoreArgs};
use kernels::arm::Arm;
use kernels::device::{DeviceRef, StreamId};
use kernels::launch::{Launched, paged_attention_with};
use kernels::route::Knobs;
use kernels::scratch::Scratch;
use kernels::store::reshape_and_cache;
use kernels::tensor::{Allocation, DType, DeviceTensor};

use super::batch::{Batch, DeviceBatch};
use super::calibrate::Magnitudes;
use super::check::{Call, Judge};
use super::decoder::{Attention, Decoder, Projected};
use super::error::ModelError;
use super::kv::{CacheOptions, KvCache, Sequence, release_all};
use super::timer::{KernelTimes, Timer};
use crate::job::dtype;

/// Repeated, a NaN in every format: stands in the output before a launch that is going to be judged.
const UNWRITTEN: u8 = 0xff;

/// How attention is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launching {
    /// The arm; `None` leaves it to the route.
    pub arm: Option<Arm>,
    /// The route's settings.
    pub knobs: Knobs,
}

/// A model with a cache on a device.
pub struct Engine<'m> {
    model: &'m Decoder,
    device: DeviceRef,
    stream: StreamId,
    cache: KvCache,
    launching: Launching,
    timer: Timer,
    /// Judges attention calls as they are made.
    pub judge: Judge,
    /// Largest keys and values so far.
    pub magnitudes: Magnitudes,
    /// Time on the device so far.
    pub times: KernelTimes,
}

/// One request's part of a step.
pub struct Work<'w> {
    /// What is stored so far.
    pub sequence: &'w mut Sequence,
    /// The tokens to add.
    pub tokens: &'w [u32],
}

impl<'m> Engine<'m> {
    /// Allocates the cache and makes everything ready.
    ///
    /// # Errors
    /// If the cache cannot be allocated.
    pub fn new(
        model: &'m Decoder,
        device: &DeviceRef,
        options: &CacheOptions,
        launching: Launching,
        judge: Judge,
    ) -> Result<Self, ModelError> {
        let stream = StreamId::DEFAULT;
        Ok(Self {
            model,
            device: device.clone(),
            stream,
            cache: KvCache::new(device, stream, model.config(), options)?,
            launching,
            timer: Timer::new(device)?,
            judge,
            magnitudes: Magnitudes::new(model.config()),
            times: KernelTimes::default(),
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &'m Decoder {
        self.model
    }

    /// The cache.
    #[must_use]
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Takes back a sequence's pages, however it ended.
    pub fn finish(&mut self, sequence: Sequence) {
        self.cache.finish(sequence);
    }

    /// Runs new tokens of some requests through the model and stores their keys and values. Returns the last layer's rows
    /// `[rows, embedding]`, request after request, for [`Decoder::logits`].
    ///
    /// With `uniform`, every request has that many tokens and the route is told so.
    ///
    /// # Errors
    /// Whatever stops the step; then no sequence has grown.
    pub fn step(&mut self, work: &mut [Work<'_>], uniform: Option<usize>) -> Result<Vec<f32>, ModelError> {
        for request in work.iter_mut() {
            check_length(self.model, request)?;
            self.cache.reserve(request.sequence, request.tokens.len())?;
        }
        let batch =
            Batch::new(&self.cache, work.iter().map(|request| (&*request.sequence, request.tokens.len())));
        let tokens: Vec<u32> = work.iter().flat_map(|request| request.tokens.iter().copied()).collect();
        self.judge.begin_step();
        let mut step = Step::new(self, batch, uniform)?;
        let model = step.engine.model;
        let positions = step.batch.positions.clone();
        let rows = model.forward(&tokens, &positions, &mut step)?;
        step.release()?;
        for request in work {
            request.sequence.advance(request.tokens.len());
        }
        Ok(rows)
    }

    /// Frees the cache and reports the first failure.
    ///
    /// # Errors
    /// What the device reports.
    pub fn release(self) -> Result<(), ModelError> {
        self.cache.release()?;
        Ok(self.device.synchronize(self.stream)?)
    }
}

fn check_length(model: &Decoder, request: &Work<'_>) -> Result<(), ModelError> {
    let (length, context) = (request.sequence.len() + request.tokens.len(), model.config().context);
    if length > context {
        return Err(ModelError::Argument {
            argument: "sequence length",
            value: length.to_string(),
            accepted: format!("at most {context}, the model's context"),
        });
    }
    Ok(())
}

/// Device buffers of the rows of one step, used by one layer after another.
struct RowBuffers {
    memory: Vec<Scratch>,
    q: DeviceTensor,
    k: DeviceTensor,
    v: DeviceTensor,
    out: DeviceTensor,
    lse: DeviceTensor,
}

impl RowBuffers {
    fn new(engine: &Engine<'_>, rows: usize) -> Result<Self, ModelError> {
        let config = engine.model.config();
        let presented = dtype(engine.cache.presents());
        let mut memory = Vec::new();
        let mut tensor = |dtype: DType, shape: &[usize]| {
            let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
            let bytes = shape.iter().product::<u64>() * dtype.size_bytes();
            let scratch = Scratch::new(&engine.device, bytes, engine.stream)?;
            let allocation = Allocation { ptr: scratch.ptr(), bytes };
            memory.push(scratch);
            Ok::<_, ModelError>(DeviceTensor::contiguous(allocation, dtype, &shape))
        };
        let (q_heads, kv_heads, dim) = (config.num_q_heads, config.num_kv_heads, config.head_dim);
        let q = tensor(presented, &[rows, q_heads, dim])?;
        let k = tensor(presented, &[rows, kv_heads, dim])?;
        let v = tensor(presented, &[rows, kv_heads, dim])?;
        let out = tensor(presented, &[rows, q_heads, dim])?;
        let lse = tensor(DType::F32, &[rows, q_heads])?;
        Ok(Self { memory, q, k, v, out, lse })
    }
}

/// One step in progress: attention for the decoder's layers.
struct Step<'s, 'm> {
    engine: &'s mut Engine<'m>,
    batch: Batch,
    on_device: DeviceBatch,
    buffers: RowBuffers,
    knobs: Knobs,
}

impl<'s, 'm> Step<'s, 'm> {
    fn new(engine: &'s mut Engine<'m>, batch: Batch, uniform: Option<usize>) -> Result<Self, ModelError> {
        let on_device = DeviceBatch::upload(&engine.device, engine.stream, &batch)?;
        let buffers = RowBuffers::new(engine, batch.rows())?;
        let knobs = Knobs { uniform_query_len: uniform.map(|rows| rows as u64), ..engine.launching.knobs };
        Ok(Self { engine, batch, on_device, buffers, knobs })
    }

    fn release(self) -> Result<(), ModelError> {
        let rows = release_all(self.buffers.memory.into_iter());
        let metadata = self.on_device.release();
        rows.map_err(ModelError::from).and(metadata)
    }

    /// Copies one layer's rows to the device, in the format that the cache presents; returns the bytes.
    fn put(&self, to: &DeviceTensor, values: &[f32]) -> Result<Vec<u8>, ModelError> {
        let bytes = self.engine.cache.presents().encode_to_bytes(values);
        self.engine.device.copy_to_device(to.ptr(), &bytes, self.engine.stream)?;
        Ok(bytes)
    }

    fn store(&self, layer: usize) -> Result<(), ModelError> {
        let args = StoreArgs {
            k: self.buffers.k.clone(),
            v: self.buffers.v.clone(),
            cache: self.engine.cache.layers[layer].cache.clone(),
            slot_mapping: self.on_device.slot_mapping.clone(),
            host_slot_mapping: Some(self.batch.slots.clone()),
        };
        Ok(reshape_and_cache(&self.engine.device, self.engine.stream, &args)?)
    }

    fn attention(&self, layer: usize, judged: bool) -> Result<Launched, ModelError> {
        let cache = self.engine.cache.layers[layer].cache.clone();
        let buffers = &self.buffers;
        let metadata = self.on_device.metadata.clone();
        let mut args = AttentionArgs::causal(buffers.q.clone(), cache, buffers.out.clone(), metadata);
        args.host = self.on_device.host.clone();
        args.lse = judged.then(|| buffers.lse.clone());
        let (device, stream) = (&self.engine.device, self.engine.stream);
        Ok(paged_attention_with(device, stream, self.engine.launching.arm, &args, &self.knobs, None)?)
    }

    fn judge(&mut self, layer: usize, launched: &Launched, q: &[u8], out: &[u8]) -> Result<(), ModelError> {
        let lse = self.get(&self.buffers.lse)?;
        let engine = &mut *self.engine;
        let stored = engine.cache.layers[layer].read(&engine.device, engine.stream)?;
        let call = Call { layer, launched, batch: &self.batch, q, out, lse: &lse, stored: &stored };
        engine.judge.call(&engine.cache, engine.model.config(), &call)
    }

    fn get(&self, from: &DeviceTensor) -> Result<Vec<u8>, ModelError> {
        let mut bytes = vec![0; from.allocation.bytes as usize];
        self.engine.device.copy_to_host(&mut bytes, from.ptr(), self.engine.stream)?;
        Ok(bytes)
    }

    fn mark_unwritten(&self) -> Result<(), ModelError> {
        for tensor in [&self.buffers.out, &self.buffers.lse] {
            let bytes = tensor.allocation.bytes;
            self.engine.device.memset(tensor.ptr(), UNWRITTEN, bytes, self.engine.stream)?;
        }
        Ok(())
    }
}

impl Attention for Step<'_, '_> {
    fn attend(&mut self, layer: usize, rows: &Projected) -> Result<Vec<f32>, ModelError> {
        self.engine.magnitudes.observe(layer, rows);
        let q = self.put(&self.buffers.q, &rows.q)?;
        let k = self.put(&self.buffers.k, &rows.k)?;
        let v = self.put(&self.buffers.v, &rows.v)?;
        let judged = self.engine.judge.wants(layer);
        if judged {
            self.mark_unwritten()?;
        }
        let (timer, stream) = (&self.engine.timer, self.engine.stream);
        timer.mark(0, stream)?;
        self.store(layer)?;
        timer.mark(1, stream)?;
        let launched = self.attention(layer, judged)?;
        timer.mark(2, stream)?;
        let out = self.get(&self.buffers.out)?;
        let times = timer.read()?;
        self.engine.times += times;
        let start = Instant::now();
        self.engine.judge.remember(layer, &self.engine.cache, &self.batch, [&k, &v]);
        if judged {
            self.judge(layer, &launched, &q, &out)?;
        }
        self.engine.judge.spent += start.elapsed();
        Ok(self.engine.cache.presents().decode_bytes(&out))
    }
}
