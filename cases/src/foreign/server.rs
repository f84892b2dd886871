//! The worker's side: runs jobs on a foreign kernel that this process has loaded.

mod args;
mod cuda;
mod host;

use std::ffi::c_char;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::FromRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use kernels::abi::types::{self as abi, AttentionArgs, StoreArgs};
use kernels::abi::{ForeignDevice, Library, LibraryError};
use kernels::device::{Finding, FindingKind};

pub(super) use args::{empty_attention, empty_store};

use crate::executor::protocol::{Reply, Status, read_job, write_reply};
use crate::executor::{Job, Operation, PoolUse};

/// A returned buffer of this name is filled with the nanoseconds of repeated calls, as 64-bit integers.
pub(super) const CLOCK: &str = "nanoseconds";

/// Time after which no further timed call is made, once there is one; what is not measured stays 0.
const TIMED: Duration = Duration::from_secs(1);

/// Most bytes of workspace that a call may ask for.
const MAX_WORKSPACE: u64 = 16 << 30;

/// Standard output for the protocol alone: whatever the kernel prints goes to standard error from now on.
///
/// # Errors
/// If the descriptors cannot be duplicated.
pub(super) fn keep_stdout() -> io::Result<File> {
    // SAFETY: only descriptors of this process are duplicated; the new one is owned by the file.
    unsafe {
        let kept = libc::dup(1);
        if kept < 0 || libc::dup2(2, 1) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(File::from_raw_fd(kept))
    }
}

/// Serves jobs from `input` until it ends.
///
/// # Errors
/// When a pipe breaks, a message is malformed or the kernel cannot be loaded.
pub fn serve(path: &Path, input: impl Read) -> io::Result<()> {
    let mut output = keep_stdout()?;
    kernels::abi::watch_faults();
    // SAFETY: this process exists for this; the parent survives whatever happens here.
    let library =
        unsafe { Library::load(path) }.map_err(|error: LibraryError| io::Error::other(error.to_string()))?;
    let mut input = BufReader::new(input);
    let mut server = Server { library, host: None, cuda: None };
    while let Some(job) = read_job(&mut input)? {
        write_reply(&mut output, &server.run(&job))?;
    }
    Ok(())
}

struct Server {
    library: Library,
    host: Option<host::Host>,
    cuda: Option<cuda::Cuda>,
}

impl Server {
    fn run(&mut self, job: &Job) -> Reply {
        let ended = match self.library.info().device {
            ForeignDevice::Host => {
                opened(&mut self.host, host::Host::open).and_then(|host| host.run(&self.library, job))
            }
            ForeignDevice::Cuda => {
                opened(&mut self.cuda, cuda::Cuda::open).and_then(|cuda| cuda.run(&self.library, job))
            }
        };
        let Ended { status, buffers } = ended.unwrap_or_else(|status| Ended { status, buffers: Vec::new() });
        Reply { status, launches: 0, pool: PoolUse::default(), buffers }
    }
}

fn opened<T>(slot: &mut Option<T>, open: impl FnOnce() -> Result<T, Status>) -> Result<&mut T, Status> {
    match slot {
        Some(open) => Ok(open),
        None => Ok(slot.insert(open()?)),
    }
}

/// How a job ended, with the buffers that go back.
struct Ended {
    status: Status,
    buffers: Vec<Vec<u8>>,
}

/// A place for the kernel's message, with bytes behind it that it must not touch.
pub(super) struct Text {
    bytes: Vec<u8>,
}

const TEXT_BYTES: usize = 512;
const TEXT_MARGIN: usize = 64;

impl Default for Text {
    fn default() -> Self {
        let mut bytes = vec![0; TEXT_BYTES];
        bytes.resize(TEXT_BYTES + TEXT_MARGIN, 0xa5);
        Self { bytes }
    }
}

impl Text {
    /// Address and size for the struct of a call.
    pub fn place(&mut self) -> (*mut c_char, u64) {
        (self.bytes.as_mut_ptr().cast(), TEXT_BYTES as u64)
    }

    /// What was written.
    fn message(&self) -> String {
        let text = &self.bytes[..TEXT_BYTES];
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(TEXT_BYTES);
        String::from_utf8_lossy(&text[..end]).into_owned()
    }

    fn overrun(&self) -> bool {
        self.bytes[TEXT_BYTES..].iter().any(|byte| *byte != 0xa5)
    }
}

/// One call of the kernel: the struct is complete but for the message.
enum Call {
    Attention(Box<AttentionArgs>),
    Store(Box<StoreArgs>),
}

impl Call {
    /// Makes the call; returns the code and the message.
    fn make(&mut self, library: &Library, text: &mut Text) -> (i32, String) {
        *text = Text::default();
        let code = self.code(library, text);
        (code, text.message())
    }

    /// Makes the call and allocates nothing; returns the code.
    fn code(&mut self, library: &Library, text: &mut Text) -> i32 {
        let (error, error_bytes) = text.place();
        // SAFETY: the struct follows the header; this process may die.
        unsafe {
            match self {
                Self::Attention(args) => {
                    (args.error, args.error_bytes) = (error, error_bytes);
                    library.attention(args)
                }
                Self::Store(args) => {
                    (args.error, args.error_bytes) = (error, error_bytes);
                    library.store(args).unwrap_or(abi::UNSUPPORTED)
                }
            }
        }
    }

    /// The same call, spoiled so that it must be refused: q (or k) has no type.
    fn spoiled(&self) -> Self {
        match self {
            Self::Attention(args) => {
                let mut args = args.clone();
                args.q.dtype = 0;
                Self::Attention(args)
            }
            Self::Store(args) => {
                let mut args = args.clone();
                args.k.dtype = 0;
                Self::Store(args)
            }
        }
    }
}

/// Bytes of workspace for a call. A call that is refused here is made all the same, without workspace.
fn workspace_bytes(library: &Library, call: &Call) -> Result<u64, Status> {
    let Call::Attention(args) = call else { return Ok(0) };
    let mut args = args.clone();
    let mut text = Text::default();
    (args.error, args.error_bytes) = text.place();
    // SAFETY: the struct follows the header; this process may die.
    let bytes = unsafe { library.workspace_size(&args) }.unwrap_or(0);
    if bytes > MAX_WORKSPACE {
        let message = format!("attest_workspace_size says {bytes} bytes; accepted: at most {MAX_WORKSPACE}");
        return Err(Status::DeviceError { message, sticky: false });
    }
    Ok(bytes)
}

/// What a returned code means.
fn status_of(code: i32, message: String) -> Status {
    match code {
        abi::OK => Status::Completed,
        abi::INVALID_ARGUMENT => Status::Refused { argument: named_argument(&message), message },
        abi::UNSUPPORTED => Status::Unsupported { message },
        abi::FAILED => {
            Status::DeviceError { message: format!("the kernel failed: {message}"), sticky: false }
        }
        other => Status::DeviceError {
            message: format!("the kernel returned {other}; accepted: 0 to 3 of attest_kernel.h"),
            sticky: false,
        },
    }
}

/// Names of arguments as messages may have them, with the name that cases expect.
const ARGUMENTS: [(&str, &str); 33] = [
    ("q", "q"),
    ("k", "k"),
    ("v", "v"),
    ("k_cache", "k_cache"),
    ("v_cache", "v_cache"),
    ("out", "out"),
    ("lse", "lse"),
    ("block_table", "block_table"),
    ("host_block_table", "block_table"),
    ("seq_lens", "seq_lens"),
    ("host_seq_lens", "seq_lens"),
    ("query_start_loc", "query_start_loc"),
    ("host_query_start_loc", "query_start_loc"),
    ("slot_mapping", "slot_mapping"),
    ("host_slot_mapping", "slot_mapping"),
    ("k_scale", "k_scale"),
    ("k_scales", "k_scale"),
    ("v_scale", "v_scale"),
    ("v_scales", "v_scale"),
    ("alibi_slopes", "alibi_slopes"),
    ("sinks", "sinks"),
    ("max_query_len", "max_query_len"),
    ("max_seq_len", "max_seq_len"),
    ("window_left", "window_left"),
    ("window_right", "window_right"),
    ("softmax_scale", "softmax_scale"),
    ("softcap", "softcap"),
    ("num_q_heads", "num_q_heads"),
    ("num_kv_heads", "num_kv_heads"),
    ("head_dim", "head_dim"),
    ("head_dim_v", "head_dim"),
    ("page_size", "page_size"),
    ("workspace", "workspace"),
];

/// The first argument that a message names, or its first word.
fn named_argument(message: &str) -> String {
    let words =
        || message.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let known = words().find_map(|word| ARGUMENTS.iter().find(|(name, _)| *name == word));
    known.map_or_else(|| words().next().unwrap_or("nothing").to_owned(), |(_, name)| (*name).to_owned())
}

fn finding(kind: FindingKind, message: impl Into<String>) -> Finding {
    Finding { kind, message: message.into(), site: None, other_site: None, count: 1 }
}

/// Buffers that the kernel may write: the outputs of the operation.
fn writable(job: &Job) -> Vec<bool> {
    let outputs: Vec<usize> = match &job.operation {
        Operation::Attention { call, .. } => {
            let lse = call.lse.as_ref().map(|lse| lse.buffer);
            [Some(call.out.buffer), lse].into_iter().flatten().collect()
        }
        Operation::Store(call) => vec![call.cache.k.buffer, call.cache.v.buffer],
    };
    (0..job.buffers.len()).map(|index| outputs.contains(&index)).collect()
}

/// The buffers that go back, the clock's filled with `nanoseconds`.
fn returned(job: &Job, nanoseconds: &[u64], mut read: impl FnMut(usize) -> Vec<u8>) -> Vec<Vec<u8>> {
    let indices = job.buffers.iter().enumerate().filter(|(_, buffer)| buffer.returned);
    let contents = indices.map(|(index, buffer)| match buffer.name == CLOCK {
        true => nanoseconds.iter().flat_map(|n| n.to_le_bytes()).collect(),
        false => read(index),
    });
    contents.collect()
}

/// Makes the timed calls that a job asks for; each gives its nanoseconds.
fn timed<E>(job: &Job, mut call: impl FnMut() -> Result<u64, E>) -> Result<Vec<u64>, E> {
    let calls =
        job.buffers.iter().find(|buffer| buffer.name == CLOCK).map_or(0, |buffer| buffer.bytes.len() / 8);
    let mut nanoseconds = vec![0; calls];
    let start = Instant::now();
    for slot in &mut nanoseconds {
        *slot = call()?.max(1);
        if start.elapsed() > TIMED {
            break;
        }
    }
    Ok(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_argument_that_a_message_names_is_found() {
        assert_eq!(named_argument("softcap is 0; accepted: above 0"), "softcap");
        assert_eq!(named_argument("bad value in seq_lens[1]: -1"), "seq_lens");
        assert_eq!(named_argument("head_dim_v is 20"), "head_dim");
        assert_eq!(named_argument("k_scales: length 3"), "k_scale");
        assert_eq!(named_argument("Nope."), "Nope");
        assert_eq!(named_argument(""), "nothing");
    }

    #[test]
    fn a_message_that_runs_over_its_place_is_noticed() {
        let mut text = Text::default();
        assert!(!text.overrun());
        text.bytes[TEXT_BYTES] = 0;
        assert!(text.overrun());
    }
}
