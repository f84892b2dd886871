//! Dequantising the next layer's pages while this layer attends.
//!
//! What the dense route adds to a call is one pass over the cache. That pass is bound by memory and the attention by the
//! matrix units, and the last round of an attention's blocks leaves multiprocessors idle: work that waits on a background
//! stream runs there, and the pass costs nothing. A layer's tokens of earlier calls are in its cache long before the layer's turn
//! comes; only the tokens of the call itself are dequantised in line.

use crate::args::AttentionArgs;
use crate::arm::Arm;
use crate::dense::{Dense, Tokens, allocation_bytes, identity_table};
use crate::device::{DeviceError, DevicePtr, DeviceRef, StreamId};
use crate::error::LaunchError;
use crate::guards::{OwnedEvent, OwnedStream};
use crate::launch::{Launched, nothing_to_compute};
use crate::route::{Capability, Knobs, Route, plan_arm};
use crate::scratch::Scratch;
use crate::validate::{AttentionShape, validate_attention};
use crate::workspace::ScratchSource;

/// Runs attention calls one after another on one stream through the dense route, each told which call comes next.
///
/// Holds two scratch areas, which grow to the largest call (each within [`Knobs::scratch_budget_bytes`]) and are freed when
/// this is dropped: one that is read while the other is filled. Not for a stream that is being captured.
pub struct DenseAhead {
    device: DeviceRef,
    stream: StreamId,
    // Dropped first: it is drained before the areas that its work writes to are freed.
    background: OwnedStream,
    may_start: OwnedEvent,
    areas: [Area; 2],
    current: usize,
}

/// A validated call, and the way that it takes.
struct Planned<'a> {
    args: &'a AttentionArgs,
    shape: AttentionShape,
    route: Route,
}

impl<'a> Planned<'a> {
    fn new(args: &'a AttentionArgs, capability: &Capability, knobs: &Knobs) -> Result<Self, LaunchError> {
        let shape = validate_attention(args)?;
        let arm = if shape.kv_dtype.is_fp8() { Arm::Fp8Dense } else { Arm::Bf16Dense };
        let route = plan_arm(arm, &shape, capability, knobs)?;
        Ok(Self { args, shape, route })
    }
}

impl DenseAhead {
    /// For calls on `stream`.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(device: &DeviceRef, stream: StreamId) -> Result<Self, DeviceError> {
        Ok(Self {
            background: OwnedStream::background(device)?,
            may_start: OwnedEvent::new(device)?,
            areas: [Area::new(device)?, Area::new(device)?],
            current: 0,
            device: DeviceRef::clone(device),
            stream,
        })
    }

    /// The stream on which pages are dequantised ahead.
    #[must_use]
    pub fn background_stream(&self) -> StreamId {
        self.background.id()
    }

    /// Bytes of both scratch areas.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.areas.iter().map(Area::bytes).sum()
    }

    /// Puts one call on the stream, and on the background stream the dequantisation of what `next` will read of earlier calls.
    ///
    /// If the call is the one that was announced as next last time, its earlier tokens are there already; any other call
    /// is dequantised in line, as by [`crate::launch::paged_attention`]. Bits of the output are the same either way. Between
    /// the announcement and the call, the block table, the lengths and the pages of tokens of earlier calls must stay as they
    /// are (a change of host copies, where they are given, is noticed); the tokens of the call itself may be stored until
    /// the call, on the same stream.
    ///
    /// # Errors
    /// As [`crate::launch::paged_attention`], for either call, before anything is queued; what the device reports. Of an
    /// announcement that fails, nothing is under way afterwards.
    pub fn attend(
        &mut self,
        args: &AttentionArgs,
        knobs: &Knobs,
        next: Option<&AttentionArgs>,
    ) -> Result<Launched, LaunchError> {
        let capability = Capability::of(&self.device.info());
        let call = Planned::new(args, &capability, knobs)?;
        let next = next.map(|args| Planned::new(args, &capability, knobs)).transpose()?;
        let next = next.filter(|next| !nothing_to_compute(&next.shape));
        let empty = nothing_to_compute(&call.shape);
        let mut kernels = Vec::new();
        let here = if empty { None } else { Some(self.fill(&call, &mut kernels)?) };
        let ahead = match &next {
            Some(next) => Some((next, self.announce(next)?)),
            None => None,
        };
        if let Some(dense) = here {
            kernels.extend(self.attend_on(dense, &call, &capability, knobs)?);
        }
        if let Some((next, dense)) = ahead {
            self.dequantise_ahead(next, dense)?;
        }
        Ok(Launched { arm: call.route.arm, kernels, fallback: None })
    }

    /// Fills the current area with what is not in it yet.
    fn fill(&mut self, call: &Planned<'_>, kernels: &mut Vec<&'static str>) -> Result<Dense, LaunchError> {
        let (dense, missing) = self.areas[self.current].take(&self.device, self.stream, call)?;
        kernels.extend(dense.dequantise(&self.device, self.stream, call.args, &call.shape, missing)?);
        Ok(dense)
    }

    /// Makes room in the other area, and marks the place in the stream from which on it may be written to: the last call that
    /// reads it lies before, and so does everything that stored tokens of earlier calls.
    fn announce(&mut self, next: &Planned<'_>) -> Result<Dense, DeviceError> {
        let (dense, _) = self.areas[1 - self.current].take(&self.device, self.stream, next)?;
        self.device.record_event(self.may_start.id(), self.stream)?;
        Ok(dense)
    }

    fn attend_on(
        &self,
        dense: Dense,
        call: &Planned<'_>,
        capability: &Capability,
        knobs: &Knobs,
    ) -> Result<Vec<&'static str>, LaunchError> {
        let mut scratch = ScratchSource::new(&self.device, self.stream, None);
        let request = (call.route.arm, call.args, &call.shape);
        let kernels = dense.attend(&self.device, self.stream, request, capability, knobs, &mut scratch)?;
        scratch.finish()?;
        Ok(kernels)
    }

    fn dequantise_ahead(&mut self, next: &Planned<'_>, dense: Dense) -> Result<(), LaunchError> {
        self.current = 1 - self.current;
        let (device, background) = (&self.device, self.background.id());
        let area = &mut self.areas[self.current];
        let queued =
            device.wait_event(background, self.may_start.id()).map_err(LaunchError::from).and_then(|()| {
                dense.dequantise(device, background, next.args, &next.shape, Tokens::Earlier)?;
                Ok(device.record_event(area.ready.id(), background)?)
            });
        match queued {
            Ok(()) => area.holds = Some(next.args.clone()),
            // The area must not be written to when nobody knows of it any more.
            Err(_) => drop(device.synchronize(background)),
        }
        queued
    }

    /// Frees everything and reports the first failure, after trying all.
    ///
    /// # Errors
    /// What the device reports.
    pub fn release(self) -> Result<(), DeviceError> {
        let Self { device, stream, background, may_start, areas, .. } = self;
        let mut first = Ok(());
        for area in &areas {
            first = first.and(area.wait(&device, stream));
        }
        first = first.and(background.release()).and(may_start.release());
        for area in areas {
            first = first.and(area.release());
        }
        first
    }
}

/// One scratch area, and what it holds.
struct Area {
    pages: Option<Scratch>,
    table: Option<Scratch>,
    /// The last dequantisation into it on the background stream is done.
    ready: OwnedEvent,
    /// The call whose earlier tokens are on their way into it.
    holds: Option<AttentionArgs>,
}

impl Area {
    fn new(device: &DeviceRef) -> Result<Self, DeviceError> {
        Ok(Self { pages: None, table: None, ready: OwnedEvent::new(device)?, holds: None })
    }

    fn bytes(&self) -> u64 {
        [&self.pages, &self.table].into_iter().flatten().map(Scratch::bytes).sum()
    }

    /// Makes a stream wait for what is on its way into this area.
    fn wait(&self, device: &DeviceRef, stream: StreamId) -> Result<(), DeviceError> {
        match self.holds {
            Some(_) => device.wait_event(stream, self.ready.id()),
            None => Ok(()),
        }
    }

    /// The area for a call on a stream, and the tokens that it lacks. From here on it holds nothing that is known.
    fn take(
        &mut self,
        device: &DeviceRef,
        stream: StreamId,
        call: &Planned<'_>,
    ) -> Result<(Dense, Tokens), DeviceError> {
        self.wait(device, stream)?;
        let held = self.holds.take();
        let missing = match held.is_some_and(|held| same_tokens(&held, call.args)) {
            true => Tokens::Own,
            false => Tokens::All,
        };
        let bytes = allocation_bytes(&call.shape);
        let k = at_least(&mut self.pages, device, stream, bytes, |_| Ok(()))?;
        let requests = call.shape.num_requests;
        let identity = |table| device.copy_to_device(table, &identity_table(requests), stream);
        let table = at_least(&mut self.table, device, stream, requests * 4, identity)?;
        Ok((Dense { bytes, k, table }, missing))
    }

    fn release(self) -> Result<(), DeviceError> {
        let Self { pages, table, ready, .. } = self;
        [pages, table].into_iter().flatten().map(Scratch::release).fold(ready.release(), Result::and)
    }
}

/// Memory of at least `bytes` bytes in place of what is there, filled if it is new. Work on the stream that uses the old memory
/// precedes its release there.
fn at_least(
    held: &mut Option<Scratch>,
    device: &DeviceRef,
    stream: StreamId,
    bytes: u64,
    fill: impl FnOnce(DevicePtr) -> Result<(), DeviceError>,
) -> Result<DevicePtr, DeviceError> {
    if let Some(scratch) = held.as_ref().filter(|scratch| scratch.bytes() >= bytes) {
        return Ok(scratch.ptr());
    }
    held.take().map_or(Ok(()), Scratch::release)?;
    let scratch = Scratch::new(device, bytes, stream)?;
    fill(scratch.ptr())?;
    Ok(held.insert(scratch).ptr())
}

/// Whether two calls read the same tokens of earlier calls into the same places.
fn same_tokens(one: &AttentionArgs, other: &AttentionArgs) -> bool {
    (&one.cache.k, &one.cache.v, one.q.dtype) == (&other.cache.k, &other.cache.v, other.q.dtype)
        && (&one.block_table, &one.seq_lens, &one.query_start_loc)
            == (&other.block_table, &other.seq_lens, &other.query_start_loc)
        && one.max_seq_len == other.max_seq_len
        && one.host == other.host
}
