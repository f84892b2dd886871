//! `attest new-kernel`.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kernels::abi::HEADER;

use super::Failure;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest new-kernel --lang c mine       a project in C: cd mine && make
  attest new-kernel --lang cuda mine    in CUDA: needs nvcc
  attest new-kernel --lang rust mine    in Rust: cargo build --release";

/// Write a small project with a plain, correct kernel to start from.
///
/// It needs nothing but a compiler, and passes `attest judge`.
#[derive(Debug, Args)]
pub(super) struct NewKernel {
    /// The language.
    #[arg(long, value_name = "LANG")]
    lang: Language,
    /// The directory. It is made, and must not hold any of the files yet.
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    C,
    Cuda,
    Rust,
}

macro_rules! scaffold {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!("../../scaffold/", $file)))),*]
    };
}

impl Language {
    /// Files by their path in the scaffold directory, with their texts.
    fn files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::C => scaffold!["c/kernel.c", "c/Makefile", "c/README.md"],
            Self::Cuda => scaffold!["cuda/kernel.cu", "cuda/Makefile", "cuda/README.md"],
            Self::Rust => scaffold![
                "rust/Cargo.toml",
                "rust/README.md",
                "rust/src/lib.rs",
                "rust/src/check.rs",
                "rust/src/formats.rs"
            ],
        }
    }

    /// Files that several languages share, by the path that they get.
    fn shared(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::C | Self::Cuda => vec![
                ("attest_kernel.h", HEADER),
                ("attest_formats.h", include_str!("../../scaffold/shared/attest_formats.h")),
                ("attest_check.h", include_str!("../../scaffold/shared/attest_check.h")),
            ],
            Self::Rust => vec![("src/attest_kernel.rs", kernels::abi::RUST_TYPES)],
        }
    }

    fn build(self) -> &'static str {
        match self {
            Self::C => "make && attest judge ./libkernel.so --tier smoke",
            Self::Cuda => "make && attest judge ./libkernel.so --tier smoke   (on a machine with a card)",
            Self::Rust => "cargo build --release && attest judge target/release/libkernel.so --tier smoke",
        }
    }
}

impl NewKernel {
    pub fn run(self) -> Result<u8, Failure> {
        let own = self
            .lang
            .files()
            .iter()
            .map(|(path, text)| (path.split_once('/').map_or(*path, |(_, rest)| rest), *text));
        let files: Vec<(&str, &str)> = own.chain(self.lang.shared()).collect();
        if let Some(taken) =
            files.iter().map(|(path, _)| self.directory.join(path)).find(|path| path.exists())
        {
            let message =
                format!("{} exists; accepted: a directory without the files of a kernel", taken.display());
            return Err(Failure::usage(message));
        }
        for (path, text) in &files {
            let path = self.directory.join(path);
            let unwritable = |error: std::io::Error| {
                Failure::surroundings(format!("cannot write {}: {error}", path.display()))
            };
            std::fs::create_dir_all(path.parent().unwrap_or(&self.directory)).map_err(unwritable)?;
            std::fs::write(&path, text).map_err(unwritable)?;
        }
        let mut out = anstream::stdout().lock();
        writeln!(out, "{}: {} files. Now:", self.directory.display(), files.len())?;
        writeln!(out, "  cd {} && {}", self.directory.display(), self.lang.build())?;
        Ok(0)
    }
}
