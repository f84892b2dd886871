//! A worker process: this binary again, running jobs from a pipe. It may crash or hang; the next job gets a new one.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, BufWriter, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::device_side::Devices;
use super::protocol::{Status, read_job, read_reply, write_job, write_reply};
use super::{Executor, Job, Outcome, Reply};

/// The hidden subcommand that makes a process a worker.
pub const SUBCOMMAND: &str = "worker";

/// Lines of the worker's standard error that a crash report shows.
const DETAIL_LINES: usize = 12;

/// How soon an interrupt is noticed.
const POLL: Duration = Duration::from_millis(50);

/// Runs jobs in a child process, which is reused while it is healthy.
pub struct Worker {
    binary: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    interrupted: Arc<AtomicBool>,
    child: Option<Running>,
}

enum Waited {
    Reply(Reply),
    Broken,
    TooLong,
    Interrupted,
}

struct Running {
    process: Child,
    stdin: BufWriter<ChildStdin>,
    replies: Receiver<io::Result<Option<Reply>>>,
    errors: Option<JoinHandle<String>>,
}

impl Worker {
    /// A worker that will run `binary worker`. Nothing is started before the first job. When `interrupted` is set, a job
    /// in flight is given up.
    #[must_use]
    pub fn new(binary: PathBuf, interrupted: Arc<AtomicBool>) -> Self {
        let arguments = vec![SUBCOMMAND.into()];
        Self { binary, arguments, environment: Vec::new(), interrupted, child: None }
    }

    /// The same, with other arguments: another subcommand that serves jobs.
    #[must_use]
    pub fn with_arguments(self, arguments: Vec<OsString>) -> Self {
        Self { arguments, ..self }
    }

    /// The same, with a variable added to its environment.
    #[must_use]
    pub fn with_variable(mut self, name: &'static str, value: OsString) -> Self {
        self.environment.push((name, value));
        self
    }

    /// Waits for the reply, looking up now and then whether someone has interrupted the run.
    fn wait(&self, running: &Running, limit: Duration) -> Waited {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match running.replies.recv_timeout(left.min(POLL)) {
                Ok(Ok(Some(reply))) => return Waited::Reply(reply),
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Waited::Broken,
                Err(RecvTimeoutError::Timeout) if self.interrupted.load(Ordering::Relaxed) => {
                    return Waited::Interrupted;
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Waited::TooLong,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn start(&self) -> io::Result<Running> {
        let mut command = Command::new(&self.binary);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = spawn_lasting(command)?;
        let (stdin, stdout, stderr) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(io::Error::other("a child with piped streams has all three"));
        };
        let (sender, replies) = channel();
        std::thread::spawn(move || forward_replies(stdout, &sender));
        let errors = Some(std::thread::spawn(move || last_lines(stderr)));
        Ok(Running { process, stdin: BufWriter::new(stdin), replies, errors })
    }
}

/// Starts a process from a thread that ends with this program only.
///
/// To Linux the parent in [`live_with_parent`] is the *thread* that started the process: a worker that is handed on would be
/// killed when the thread that first used it ends, and its next job would look like a crash.
fn spawn_lasting(command: Command) -> io::Result<Child> {
    type Request = (Command, Sender<io::Result<Child>>);
    static REQUESTS: LazyLock<Sender<Request>> = LazyLock::new(|| {
        let (sender, requests) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, answer) in requests {
                // Who asked has gone if this fails; the process then goes with it, since its pipes close.
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let ended = || io::Error::other("the thread that starts workers has ended");
    let (sender, answer) = channel();
    REQUESTS.send((command, sender)).map_err(|_| ended())?;
    answer.recv().map_err(|_| ended())?
}

impl Executor for Worker {
    fn run(&mut self, job: &Job, limit: Duration) -> Outcome {
        let mut running = match self.child.take() {
            Some(running) => running,
            None => match self.start() {
                Ok(running) => running,
                Err(error) => {
                    let message = format!("cannot start the worker {}: {error}", self.binary.display());
                    return Outcome::Unavailable { message };
                }
            },
        };
        if write_job(&mut running.stdin, job).is_err() {
            return running.crashed();
        }
        match self.wait(&running, limit) {
            Waited::Reply(reply) => {
                // A lost device stays lost for its process: the next job gets a fresh one.
                if !matches!(reply.status, Status::DeviceError { sticky: true, .. }) {
                    self.child = Some(running);
                }
                Outcome::Replied(reply)
            }
            Waited::TooLong => Outcome::TimedOut { limit },
            Waited::Interrupted => Outcome::Unavailable { message: "interrupted".to_owned() },
            Waited::Broken => running.crashed(),
        }
    }
}

impl Running {
    /// Collects what is known of a process that died or talks nonsense.
    fn crashed(mut self) -> Outcome {
        let status = self.process.kill_if_needed();
        let detail = self.errors.take().and_then(|t| t.join().ok()).unwrap_or_default();
        Outcome::Crashed { signal: describe(status), detail }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

trait KillIfNeeded {
    fn kill_if_needed(&mut self) -> io::Result<ExitStatus>;
}

impl KillIfNeeded for Child {
    /// The status of a process whose pipe broke: it is ending by itself, or it has only closed its pipe.
    fn kill_if_needed(&mut self) -> io::Result<ExitStatus> {
        for _ in 0..100 {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill()?;
        self.wait()
    }
}

/// The end of a process in words: `SIGSEGV (invalid memory access)` or `exit code 3`.
fn describe(status: io::Result<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    let status = match status {
        Ok(status) => status,
        Err(error) => return format!("unknown end ({error})"),
    };
    match (status.signal(), status.code()) {
        (Some(signal), _) => signal_name(signal),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "unknown end".to_owned(),
    }
}

pub(crate) fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGSEGV => "SIGSEGV (invalid memory access)",
        libc::SIGBUS => "SIGBUS (access beyond a mapping)",
        libc::SIGFPE => "SIGFPE (integer division by zero)",
        libc::SIGILL => "SIGILL (illegal instruction)",
        libc::SIGABRT => "SIGABRT (aborted)",
        libc::SIGTRAP => "SIGTRAP (trap)",
        libc::SIGKILL => "SIGKILL (killed)",
        libc::SIGTERM => "SIGTERM (terminated)",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

fn forward_replies(stdout: ChildStdout, sender: &std::sync::mpsc::Sender<io::Result<Option<Reply>>>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let reply = read_reply(&mut stdout);
        let last = !matches!(reply, Ok(Some(_)));
        if sender.send(reply).is_err() || last {
            return;
        }
    }
}

/// Reads to the end and keeps the last lines.
fn last_lines(stderr: ChildStderr) -> String {
    let mut lines = VecDeque::new();
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { break };
        if lines.len() == DETAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
    Vec::from(lines).join("\n")
}

/// Ties a worker to the process that started it: it dies with it, and leaves interrupts from the keyboard to it.
pub fn live_with_parent() {
    // SAFETY: both calls only change how this process treats signals.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        #[cfg(target_os = "linux")]
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Serves jobs from `input` until it ends.
///
/// # Errors
/// When a pipe breaks or a message is malformed.
pub fn serve(input: impl Read, mut output: impl io::Write) -> io::Result<()> {
    let mut input = BufReader::new(input);
    let mut devices = Devices::default();
    while let Some(job) = read_job(&mut input)? {
        let reply = devices.run(&job);
        write_reply(&mut output, &reply)?;
    }
    Ok(())
}
