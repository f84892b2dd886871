//! Calls over host memory: every buffer between guard pages, inputs read-only, and a watch on what is left behind.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use kernels::abi::types as abi;
use kernels::abi::{BufferSpec, Damage, GuardedMemory, Library, Placed, Placement, State};
use kernels::device::{Finding, FindingKind};

use super::args::{self, Addresses};
use super::{Call, Ended, Text, finding, returned, status_of, timed, workspace_bytes, writable};
use crate::executor::Job;
use crate::executor::protocol::Status;

/// Calls that follow each other when memory is watched, and how many of them, the last, must all grow: a kernel may keep what
/// it makes at first, and the allocator keeps a few freed pieces of each size for itself.
const LEAK_CALLS: usize = 14;
const STEADY_CALLS: usize = 4;
/// A call that takes longer is not repeated.
const SHORT: Duration = Duration::from_millis(50);
/// How long after a call its outputs must not change.
const QUIET: Duration = Duration::from_millis(2);
/// How long an output that is not there yet is waited for, to tell late from never.
const LATE: Duration = Duration::from_millis(300);
/// Bytes of workspace beyond what was asked for, which must stay as they are.
const WORKSPACE_ALIGNMENT: usize = 256;

/// Host memory for the calls of this process.
pub(super) struct Host {
    memory: GuardedMemory,
    /// Number of calls so far that did not ask for a place: each gets a new one.
    fresh: u64,
}

impl Host {
    pub fn open() -> Result<Self, Status> {
        let environment =
            |error: std::io::Error| Status::Environment { message: format!("no memory for calls: {error}") };
        Ok(Self { memory: GuardedMemory::reserve().map_err(environment)?, fresh: 0 })
    }

    fn placement(&mut self, job: &Job) -> Placement {
        self.fresh += 1;
        Placement { seed: job.device.schedule.unwrap_or(self.fresh << 32) }
    }

    pub fn run(&mut self, library: &Library, job: &Job) -> Result<Ended, Status> {
        let placement = self.placement(job);
        // The size of the workspace follows from the description alone: these addresses may not be touched.
        let nowhere = vec![self.memory.untouchable(); job.buffers.len()];
        let described = args::call(job, &Addresses { buffers: &nowhere, stream: std::ptr::null_mut() });
        let workspace = poison(workspace_bytes(library, &described)?);
        let writable = writable(job);
        let mut specs: Vec<BufferSpec<'_>> = job
            .buffers
            .iter()
            .zip(&writable)
            .map(|(buffer, writable)| BufferSpec::new(&buffer.name, &buffer.bytes, *writable))
            .collect();
        specs.push(BufferSpec {
            alignment: WORKSPACE_ALIGNMENT,
            ..BufferSpec::new("workspace", &workspace, true)
        });
        let environment =
            |error: std::io::Error| Status::Environment { message: format!("no memory for a call: {error}") };
        let placed = self.memory.place(&specs, placement).map_err(environment)?;
        let addresses: Vec<u64> = (0..specs.len()).map(|index| placed.address(index) as u64).collect();
        let at = Addresses { buffers: &addresses, stream: std::ptr::null_mut() };
        let mut call = args::call(job, &at);
        if let Call::Attention(args) = &mut call
            && !workspace.is_empty()
        {
            (args.workspace, args.workspace_bytes) =
                (placed.address(specs.len() - 1).cast(), workspace.len() as u64);
        }
        let mut watch =
            Watch { library, job, placed, call, workspace: workspace.len(), findings: Vec::new() };
        Ok(watch.run(&writable))
    }
}

/// Bytes that are NaN in every format.
fn poison(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| if at % 2 == 0 { 0xff } else { 0x7f }).collect()
}

/// One placed call and what has been found about it.
struct Watch<'a> {
    library: &'a Library,
    job: &'a Job,
    placed: Placed<'a>,
    call: Call,
    workspace: usize,
    findings: Vec<Finding>,
}

impl Watch<'_> {
    fn run(&mut self, writable: &[bool]) -> Ended {
        let before = State::now();
        let start = Instant::now();
        let (code, message) = self.make();
        let took = start.elapsed();
        let after = State::now();
        let outputs: Vec<usize> = (0..writable.len()).filter(|index| writable[*index]).collect();
        let left = self.contents(&outputs);
        self.lingering(code, &message, (&before, &after));
        self.damage();
        if self.job.device.checked {
            self.settle(&outputs, &left);
            // What has been found already would be found again, under other names.
            if code == abi::OK && took < SHORT && self.findings.is_empty() {
                self.after_a_refusal(&outputs);
                self.leaks();
                self.restore(&outputs, &left);
            }
        }
        let nanoseconds = timed(self.job, || {
            let start = Instant::now();
            let _ = self.make();
            Ok::<u64, Infallible>(start.elapsed().as_nanos() as u64)
        });
        let nanoseconds = nanoseconds.unwrap_or_else(|never| match never {});
        let status = match self.findings.is_empty() {
            true => status_of(code, message),
            false => Status::Findings { findings: std::mem::take(&mut self.findings) },
        };
        let position = |index: usize| outputs.iter().position(|output| *output == index);
        let read =
            |index: usize| position(index).map_or_else(|| self.placed.read(index), |at| left[at].clone());
        Ended { status, buffers: returned(self.job, &nanoseconds, read) }
    }

    fn make(&mut self) -> (i32, String) {
        let mut text = Text::default();
        let ended = self.call.make(self.library, &mut text);
        if text.overrun() {
            self.find(FindingKind::OutOfBounds, "wrote past the error_bytes of the message");
        }
        ended
    }

    fn find(&mut self, kind: FindingKind, message: impl Into<String>) {
        let new = finding(kind, message);
        match self.findings.iter_mut().find(|old| old.kind == new.kind && old.message == new.message) {
            Some(old) => old.count += 1,
            None => self.findings.push(new),
        }
    }

    fn contents(&self, outputs: &[usize]) -> Vec<Vec<u8>> {
        outputs.iter().map(|index| self.placed.read(*index)).collect()
    }

    /// A success that leaves an error behind, or another way of rounding.
    fn lingering(&mut self, code: i32, message: &str, (before, after): (&State, &State)) {
        if code == abi::OK && !message.is_empty() {
            self.find(
                FindingKind::LingeringError,
                format!("returned success and left the message `{message}`"),
            );
        }
        if before.float_control != after.float_control {
            let message = format!(
                "left the rounding or flush-to-zero mode of its caller changed ({:#x}, before {:#x})",
                after.float_control, before.float_control
            );
            self.find(FindingKind::LingeringError, message);
        }
    }

    fn damage(&mut self) {
        for Damage { name, bytes, first } in self.placed.damage() {
            let length = match self.job.buffers.iter().find(|buffer| buffer.name == name) {
                Some(buffer) => buffer.bytes.len(),
                None => self.workspace,
            } as i64;
            let place = match first < 0 {
                true => format!("before the start of {name}"),
                false => format!("past the end of {name} ({length} bytes)"),
            };
            self.find(FindingKind::OutOfBounds, format!("wrote {bytes} bytes {place}: first byte {first}"));
        }
    }

    /// When a call has returned its outputs are final.
    fn settle(&mut self, outputs: &[usize], left: &[Vec<u8>]) {
        std::thread::sleep(QUIET);
        // An output that does not look written is given more time, so that a late one is called late. Most of a cache stays as
        // it was.
        let is_attention = matches!(self.call, Call::Attention(_));
        let untouched = is_attention
            && outputs
                .iter()
                .zip(left)
                .any(|(index, left)| is_untouched(&self.job.buffers[*index].bytes, left));
        let end = Instant::now() + LATE;
        while untouched && Instant::now() < end && self.contents(outputs) == left {
            std::thread::sleep(QUIET);
        }
        let now = self.contents(outputs);
        for (index, (then, now)) in outputs.iter().zip(left.iter().zip(&now)) {
            let changed = then.iter().zip(now).filter(|(then, now)| then != now).count();
            if changed > 0 {
                let name = self.job.buffers[*index].name.clone();
                let message = format!("{changed} bytes of {name} changed after the call had returned");
                self.find(FindingKind::WorkAfterReturn, message);
            }
        }
    }

    /// A refused call must not make the next one fail.
    fn after_a_refusal(&mut self, outputs: &[usize]) {
        let mut text = Text::default();
        let (refused, _) = self.call.spoiled().make(self.library, &mut text);
        if refused == abi::OK {
            // Whether it refuses bad calls is for the cases that must be refused.
            return;
        }
        self.reset(outputs);
        let (code, message) = self.make();
        if code != abi::OK {
            let message = format!("a good call after a refused one returns {code}: {message}");
            self.find(FindingKind::LingeringError, message);
        }
    }

    /// Memory that grows with every call.
    fn leaks(&mut self) {
        // Nothing of this process may allocate between the readings.
        let mut grown = Vec::with_capacity(LEAK_CALLS);
        let mut text = Text::default();
        for _ in 0..LEAK_CALLS {
            let before = State::now();
            let _ = self.call.code(self.library, &mut text);
            let after = State::now();
            let growth = |before: u64, after: u64| after as i64 - before as i64;
            grown.push((
                growth(before.allocated_bytes, after.allocated_bytes),
                growth(before.mapped_bytes, after.mapped_bytes),
            ));
        }
        let steady = &grown[LEAK_CALLS - STEADY_CALLS..];
        let allocated = steady.iter().map(|(allocated, _)| *allocated).min().unwrap_or(0);
        let mapped = steady.iter().map(|(_, mapped)| *mapped).min().unwrap_or(0);
        if allocated > 0 || mapped > 0 {
            let message = format!("keeps {} bytes more of memory with every call", allocated.max(mapped));
            self.find(FindingKind::Leak, message);
        }
    }

    /// Outputs as they were before the first call.
    fn reset(&mut self, outputs: &[usize]) {
        for index in outputs {
            self.placed.rewrite(*index, &self.job.buffers[*index].bytes);
        }
    }

    fn restore(&mut self, outputs: &[usize], left: &[Vec<u8>]) {
        for (index, bytes) in outputs.iter().zip(left) {
            self.placed.rewrite(*index, bytes);
        }
    }
}

/// Whether a part of an output still is as it was before the call.
fn is_untouched(before: &[u8], after: &[u8]) -> bool {
    const PART: usize = 32;
    before.chunks(PART).zip(after.chunks(PART)).any(|(before, after)| before == after)
}
