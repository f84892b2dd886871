//! The state of a device behind its lock, and the running of queued work.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use super::global_shadow::GlobalShadow;
use super::launch;
use super::memory::Memory;
use super::module::Module;
use super::options::SimtOptions;
use super::stream::{Event, Graph, Stream, Work};
use crate::device::{
    DeviceError, DevicePtr, DeviceResult, EventId, Finding, FindingKind, GraphId, KernelId, LaunchConfig,
    StreamId,
};
use crate::source::KernelSpec;

/// Everything that changes.
pub(super) struct State {
    pub memory: Memory,
    /// Present in checked mode.
    pub shadow: Option<GlobalShadow>,
    pub modules: Vec<Module>,
    pub loaded: HashMap<KernelSpec, KernelId>,
    pub streams: HashMap<StreamId, Stream>,
    pub events: HashMap<EventId, Event>,
    pub graphs: HashMap<GraphId, Graph>,
    pub launches: BTreeMap<&'static str, u64>,
    /// Launches run so far; seeds the schedule of each.
    pub launch_number: u64,
    pub used: u64,
    pub high_water: u64,
    next_handle: u64,
}

impl State {
    pub fn new(memory: Memory, shadow: Option<GlobalShadow>) -> Self {
        Self {
            memory,
            shadow,
            modules: Vec::new(),
            loaded: HashMap::new(),
            streams: HashMap::from([(StreamId::DEFAULT, Stream::default())]),
            events: HashMap::new(),
            graphs: HashMap::new(),
            launches: BTreeMap::new(),
            launch_number: 0,
            used: 0,
            high_water: 0,
            next_handle: 0,
        }
    }

    /// A number no handle of this device has had.
    pub fn next_handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }

    /// Runs everything on a stream.
    pub fn drain(&mut self, options: &SimtOptions, stream: StreamId) {
        while let Some(work) = self.pop(stream) {
            self.perform(options, stream, &work);
        }
    }

    /// Takes the errors of a stream's finished work: all findings together, or the first other error.
    pub fn report(&mut self, stream: StreamId) -> DeviceResult<()> {
        let Some(stream) = self.streams.get_mut(&stream) else { return Ok(()) };
        stream.broken = false;
        let mut findings = Vec::new();
        let mut other = None;
        for error in stream.errors.drain(..) {
            match error {
                DeviceError::Findings(more) => findings.extend(more),
                error => {
                    other.get_or_insert(error);
                }
            }
        }
        match other {
            _ if !findings.is_empty() => Err(DeviceError::Findings(findings)),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn pop(&mut self, stream: StreamId) -> Option<Work> {
        self.streams.get_mut(&stream)?.queue.pop_front()
    }

    fn perform(&mut self, options: &SimtOptions, stream: StreamId, work: &Work) {
        let broken = self.streams.get(&stream).is_some_and(|s| s.broken);
        let done = match work {
            Work::Free { ptr } => self.free(stream, *ptr),
            Work::Record { event, generation } => {
                self.record(*event, *generation);
                Ok(())
            }
            Work::Wait { event, generation } => {
                self.wait(options, stream, *event, *generation);
                Ok(())
            }
            _ if broken => Ok(()),
            Work::CopyIn { dst, data } => self.copy_in(*dst, data),
            Work::CopyWithin { dst, src, bytes } => self.copy_within(*dst, *src, *bytes),
            Work::Fill { dst, value, bytes } => self.fill(*dst, *value, *bytes),
            Work::Launch { kernel, config, params } => self.launch(options, stream, *kernel, *config, params),
        };
        if let Err(error) = done {
            self.fail(stream, error, true);
        }
    }

    fn fail(&mut self, stream: StreamId, error: DeviceError, broken: bool) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.errors.push(error);
            stream.broken |= broken;
        }
    }

    fn launch(
        &mut self,
        options: &SimtOptions,
        stream: StreamId,
        kernel: KernelId,
        config: LaunchConfig,
        params: &Arc<[u8]>,
    ) -> DeviceResult<()> {
        self.launch_number += 1;
        let module = &self.modules[kernel.0 as usize];
        let outcome = launch::run(
            options,
            &self.memory,
            self.shadow.as_mut(),
            module,
            config,
            params,
            self.launch_number,
        )?;
        if !outcome.findings.is_empty() {
            self.fail(stream, DeviceError::Findings(outcome.findings), outcome.stopped);
        }
        Ok(())
    }

    fn record(&mut self, event: EventId, generation: u64) {
        if let Some(event) = self.events.get_mut(&event) {
            event.waiting.remove(&generation);
            event.happened = Some((generation, Instant::now()));
        }
    }

    /// Runs another stream up to an event's record. Its errors become this stream's, so that they are not lost.
    fn wait(&mut self, options: &SimtOptions, stream: StreamId, event: EventId, generation: u64) {
        let Some(&source) = self.events.get(&event).and_then(|e| e.waiting.get(&generation)) else { return };
        let pending =
            |state: &Self| state.events.get(&event).is_some_and(|e| e.waiting.contains_key(&generation));
        while pending(self) {
            let Some(work) = self.pop(source) else { break };
            self.perform(options, source, &work);
        }
        if source == stream {
            return;
        }
        let Some(from) = self.streams.get_mut(&source) else { return };
        let (errors, broken) = (std::mem::take(&mut from.errors), std::mem::take(&mut from.broken));
        if let Some(to) = self.streams.get_mut(&stream) {
            to.errors.extend(errors);
            to.broken |= broken;
        }
    }

    fn free(&mut self, stream: StreamId, ptr: DevicePtr) -> DeviceResult<()> {
        let bytes = self.memory.find(ptr.0 as usize).map_or(0, |a| a.bytes as u64);
        self.used -= bytes;
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.pending_free -= bytes;
        }
        self.memory.free(ptr.0 as usize).map_err(|e| {
            DeviceError::Environment(format!("cannot unmap {bytes} bytes of device memory: {e}"))
        })
    }

    /// The bytes at a device address, if they are still those of a live allocation.
    fn live(&self, what: &str, ptr: DevicePtr, bytes: u64) -> DeviceResult<*mut u8> {
        let (from, bytes) = (ptr.0 as usize, bytes as usize);
        match self.memory.find(from) {
            Some(a) if a.live && from >= a.start && from + bytes <= a.end() => Ok(from as *mut u8),
            found => {
                let size = found.map_or(0, |a| a.bytes);
                Err(DeviceError::Findings(vec![Finding {
                    kind: FindingKind::UseAfterFree,
                    message: format!(
                        "{what} of {bytes} bytes in a {size}-byte allocation that was freed before it in stream order"
                    ),
                    site: None,
                    other_site: None,
                    count: 1,
                }]))
            }
        }
    }

    fn copy_in(&mut self, dst: DevicePtr, data: &[u8]) -> DeviceResult<()> {
        let to = self.live("copy to the device", dst, data.len() as u64)?;
        // SAFETY: `to` is valid for the length; host data does not overlap device memory.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        self.define(dst, data.len() as u64);
        Ok(())
    }

    fn copy_within(&mut self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let (to, from) = (self.live("copy", dst, bytes)?, self.live("copy", src, bytes)?);
        // SAFETY: both are valid for `bytes`.
        unsafe { std::ptr::copy(from, to, bytes as usize) };
        if let Some(shadow) = &mut self.shadow {
            shadow.copy(dst.0 as usize, src.0 as usize, bytes as usize);
        }
        Ok(())
    }

    fn fill(&mut self, dst: DevicePtr, value: u8, bytes: u64) -> DeviceResult<()> {
        let to = self.live("memset", dst, bytes)?;
        // SAFETY: `to` is valid for `bytes`.
        unsafe { std::ptr::write_bytes(to, value, bytes as usize) };
        self.define(dst, bytes);
        Ok(())
    }

    /// Marks bytes as written, in checked mode.
    pub fn define(&mut self, ptr: DevicePtr, bytes: u64) {
        if let Some(shadow) = &mut self.shadow {
            shadow.define_range(ptr.0 as usize, bytes as usize);
        }
    }

    /// Maps a fresh allocation of which nothing is written; `None` if there is no room.
    pub fn allocate(&mut self, bytes: usize) -> std::io::Result<Option<usize>> {
        let start = self.memory.allocate(bytes)?;
        if let (Some(shadow), Some(start)) = (&mut self.shadow, start) {
            shadow.forget(start, bytes)?;
        }
        Ok(start)
    }

    /// Copies device bytes to the host, all earlier work being done.
    pub fn copy_out(&self, dst: &mut [u8], src: DevicePtr) -> DeviceResult<()> {
        let from = self.live("copy to the host", src, dst.len() as u64)?;
        // SAFETY: `from` is valid for the length.
        unsafe { std::ptr::copy_nonoverlapping(from, dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }
}
