//! Running the binary as its users do.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the binary said and how it ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The last line of standard output: the summary, for commands that judge.
    pub fn summary(&self) -> &str {
        self.stdout.lines().last().unwrap_or_default()
    }

    /// Asserts the exit code, and shows everything if it is another one.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Asserts that standard output contains a text.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(
            self.stdout.contains(text),
            "`{text}` is not in stdout:\n{}\nstderr:\n{}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts that standard error contains a text.
    #[track_caller]
    pub fn complains(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "`{text}` is not in stderr:\n{}", self.stderr);
        self
    }
}

/// The binary with a known environment: `simt`, and a kernel cache that the tests share.
pub fn attest<I: IntoIterator<Item: AsRef<OsStr>>>(arguments: I) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_attest"));
    command.args(arguments).stdin(Stdio::null());
    for name in ["CXX", "CI", "NO_COLOR", "ATTEST_KERNEL_DIR", "VT_ATTN_FP8_DENSE"] {
        command.env_remove(name);
    }
    command.env("ATTEST_DEVICE", "simt").env("ATTEST_CACHE_DIR", shared_cache());
    command
}

pub fn shared_cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-cache")
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Ended {
    let output = command.output().expect("the binary starts");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A copy of the kernel sources.
pub struct KernelSources {
    dir: tempfile::TempDir,
}

impl KernelSources {
    pub fn copy() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/cuda");
        for entry in std::fs::read_dir(sources).expect("the kernel sources are there") {
            let path = entry.expect("a directory entry").path();
            std::fs::copy(&path, dir.path().join(path.file_name().expect("a file name"))).expect("a copy");
        }
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(file)).expect("a kernel source")
    }

    pub fn write(&self, file: &str, text: &str) {
        std::fs::write(self.dir.path().join(file), text).expect("a kernel source");
    }

    /// Replaces the `nth` occurrence (from 0) of a text in a file, and demands that there is one.
    #[track_caller]
    pub fn with_change(self, file: &str, nth: usize, from: &str, to: &str) -> Self {
        let text = self.read(file);
        let (at, _) = text
            .match_indices(from)
            .nth(nth)
            .unwrap_or_else(|| panic!("{file} has no `{from}` number {nth}"));
        self.write(file, &format!("{}{to}{}", &text[..at], &text[at + from.len()..]));
        self
    }
}
