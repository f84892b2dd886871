//! Calls over device memory: the context is current, the stream is this process's own, and every buffer lies in one arena
//! with margins that must stay as they are.

mod arena;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::abi::types as abi;
use kernels::abi::{Library, State};
use kernels::cuda::{CudaDevice, CudaOptions};
use kernels::device::{Device, DeviceError, DeviceResult, Finding, FindingKind, StreamId};
use kernels::source::SourceSet;

use super::args::{self, Addresses};
use super::{Call, Ended, Text, finding, returned, status_of, timed, workspace_bytes, writable};
use crate::executor::Job;
use crate::executor::protocol::Status;
use arena::{Arena, Image};

/// Calls that follow each other when memory is watched.
const LEAK_CALLS: usize = 6;
/// Growth of the memory in use on the whole card that counts: the driver hands it out in pieces of 2 MiB.
const CARD_STEP: u64 = 2 << 20;
/// A first call that takes longer is not repeated, and a later one is not repeated often.
const LONG: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_millis(100);
/// How long the stream is held back while the outputs are watched: a call that waits for the stream takes as long.
const HELD: Duration = Duration::from_millis(500);
/// How long work on another stream is given to show.
const QUIET: Duration = Duration::from_millis(3);

/// A card for the calls of this process.
pub(super) struct Cuda {
    device: Arc<CudaDevice>,
    stream: StreamId,
    /// For looking at memory while the other stream is held back.
    observer: StreamId,
    arena: Option<Arena>,
    fresh: u64,
}

fn failed(error: &DeviceError) -> Status {
    match error {
        DeviceError::Environment(message) => Status::Environment { message: message.clone() },
        DeviceError::Driver { sticky, .. } => {
            Status::DeviceError { message: error.to_string(), sticky: *sticky }
        }
        other => Status::DeviceError { message: other.to_string(), sticky: false },
    }
}

impl Cuda {
    pub fn open() -> Result<Self, Status> {
        let sources =
            SourceSet::load().map_err(|error| Status::Environment { message: error.to_string() })?;
        let options = CudaOptions { ordinal: 0, sources, cache_dir: None, memory_limit: None };
        let opened = || -> DeviceResult<Self> {
            let device = CudaDevice::new(options)?;
            let (stream, observer) = (device.create_stream()?, device.create_stream()?);
            Ok(Self { device, stream, observer, arena: None, fresh: 0 })
        };
        opened().map_err(|error| failed(&error))
    }

    pub fn run(&mut self, library: &Library, job: &Job) -> Result<Ended, Status> {
        self.fresh += 1;
        let seed = job.device.schedule.unwrap_or(self.fresh << 32);
        // The size of the workspace follows from the description alone: these addresses are never read.
        let nowhere = vec![Arena::ALIGNMENT; job.buffers.len()];
        self.device.make_current().map_err(|error| failed(&error))?;
        let described = args::call(job, &Addresses { buffers: &nowhere, stream: std::ptr::null_mut() });
        let workspace = workspace_bytes(library, &described)?;
        let image = Image::new(job, workspace, seed);
        let arena =
            Arena::at_least(self.arena.take(), &self.device, image.len()).map_err(|error| failed(&error))?;
        let arena = self.arena.insert(arena);
        let base = arena.place(seed);
        let addresses = image.addresses(base);
        let stream = self.device.raw_stream(self.stream).map_err(|error| failed(&error))?;
        let mut call = args::call(job, &Addresses { buffers: &addresses, stream });
        if let Call::Attention(args) = &mut call
            && workspace > 0
        {
            (args.workspace, args.workspace_bytes) =
                (image.workspace(base) as *mut std::ffi::c_void, workspace);
        }
        let mut watch = Watch {
            device: &self.device,
            streams: (self.stream, self.observer),
            library,
            job,
            image: &image,
            arena,
            base,
            call,
            findings: Vec::new(),
        };
        watch.run().map_err(|error| failed(&error))
    }
}

/// One placed call and what has been found about it.
struct Watch<'a> {
    device: &'a CudaDevice,
    streams: (StreamId, StreamId),
    library: &'a Library,
    job: &'a Job,
    image: &'a Image,
    arena: &'a Arena,
    base: u64,
    call: Call,
    findings: Vec<Finding>,
}

impl Watch<'_> {
    fn run(&mut self) -> DeviceResult<Ended> {
        self.arena.upload(self.image, self.base, self.streams.0)?;
        let before = State::now();
        let start = Instant::now();
        let (code, message) = self.make();
        self.device.synchronize(self.streams.0)?;
        let took = start.elapsed();
        let after = State::now();
        let left = self.arena.download(self.image, self.base, self.streams.0)?;
        self.lingering(code, &message, (&before, &after));
        self.damage(&left);
        if self.job.device.checked && code == abi::OK && took < LONG && self.findings.is_empty() {
            // The first call of a process also loads the kernel; the next one tells how long a call takes.
            let start = Instant::now();
            let _ = self.make();
            self.device.synchronize(self.streams.0)?;
            if start.elapsed() < SHORT {
                self.other_streams()?;
                self.after_a_refusal()?;
                self.leaks()?;
            }
        }
        let nanoseconds = timed(self.job, || self.timed())?;
        let status = match self.findings.is_empty() {
            true => status_of(code, message),
            false => Status::Findings { findings: std::mem::take(&mut self.findings) },
        };
        let buffers = returned(self.job, &nanoseconds, |index| self.image.part(&left, index).to_vec());
        Ok(Ended { status, buffers })
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
        self.findings.push(finding(kind, message));
    }

    fn lingering(&mut self, code: i32, message: &str, (before, after): (&State, &State)) {
        if code == abi::OK && !message.is_empty() {
            self.find(
                FindingKind::LingeringError,
                format!("returned success and left the message `{message}`"),
            );
        }
        if before.float_control != after.float_control {
            self.find(
                FindingKind::LingeringError,
                "left the rounding or flush-to-zero mode of its caller changed",
            );
        }
    }

    /// Margins and inputs that are not what they were.
    fn damage(&mut self, left: &[u8]) {
        let writable = writable(self.job);
        for (bytes, place) in self.image.damage(left) {
            self.find(FindingKind::OutOfBounds, format!("wrote {bytes} bytes {place}"));
        }
        for (index, buffer) in self.job.buffers.iter().enumerate().filter(|(index, _)| !writable[*index]) {
            let now = self.image.part(left, index);
            let changed = buffer.bytes.iter().zip(now).filter(|(a, b)| a != b).count();
            if changed > 0 {
                let message = format!("wrote {changed} bytes of {}, which is an input", buffer.name);
                self.find(FindingKind::InputWritten, message);
            }
        }
    }

    /// While the stream of the call is held back, nothing may happen to any buffer. Inputs are in place, so that work on
    /// another stream shows as a written output and not as a fault.
    fn other_streams(&mut self) -> DeviceResult<()> {
        self.arena.upload(self.image, self.base, self.streams.0)?;
        let hold = self.device.hold(self.streams.0, HELD)?;
        let _ = self.make();
        std::thread::sleep(QUIET);
        let seen = self.arena.download(self.image, self.base, self.streams.1);
        let held = hold.release();
        self.device.synchronize(self.streams.0)?;
        let changed = self.image.changed(&seen?);
        // A call that waits for its stream outlasts the hold: then there is nothing to see.
        if held && changed > 0 {
            let message = format!(
                "work ran on another stream: {changed} bytes changed while the given one was held back"
            );
            self.find(FindingKind::WorkAfterReturn, message);
        }
        Ok(())
    }

    /// A refused call must not make the next one fail.
    fn after_a_refusal(&mut self) -> DeviceResult<()> {
        let mut text = Text::default();
        let (refused, _) = self.call.spoiled().make(self.library, &mut text);
        self.device.synchronize(self.streams.0)?;
        if refused == abi::OK {
            // Whether it refuses bad calls is for the cases that must be refused.
            return Ok(());
        }
        let (code, message) = self.make();
        self.device.synchronize(self.streams.0)?;
        if code != abi::OK {
            let message = format!("a good call after a refused one returns {code}: {message}");
            self.find(FindingKind::LingeringError, message);
        }
        Ok(())
    }

    /// Device memory that grows with every call.
    fn leaks(&mut self) -> DeviceResult<()> {
        let mut taken = vec![self.device.taken_bytes()?];
        for _ in 0..LEAK_CALLS {
            let _ = self.make();
            self.device.synchronize(self.streams.0)?;
            taken.push(self.device.taken_bytes()?);
        }
        // The first call may still set something up.
        let steady = &taken[1..];
        let pool = steady.windows(2).map(|pair| pair[1].1.saturating_sub(pair[0].1)).min().unwrap_or(0);
        let card = steady[steady.len() - 1].0.saturating_sub(steady[0].0);
        if pool > 0 || card >= CARD_STEP {
            let each = pool.max(card / (LEAK_CALLS as u64 - 1));
            self.find(
                FindingKind::Leak,
                format!("keeps about {each} bytes more of device memory with every call"),
            );
        }
        Ok(())
    }

    fn timed(&mut self) -> DeviceResult<u64> {
        let (start, end) = (self.device.create_event()?, self.device.create_event()?);
        self.device.record_event(start, self.streams.0)?;
        let _ = self.make();
        self.device.record_event(end, self.streams.0)?;
        self.device.synchronize(self.streams.0)?;
        let elapsed = self.device.elapsed_ms(start, end);
        self.device.destroy_event(start)?;
        self.device.destroy_event(end)?;
        Ok((f64::from(elapsed?) * 1e6) as u64)
    }
}
