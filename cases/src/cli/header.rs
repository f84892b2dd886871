//! `attest header`.

use std::io::Write;

use clap::Args;

use super::Failure;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest header > attest_kernel.h      the interface, for a kernel of your own
  attest new-kernel --lang c mine      a whole project that has it already";

/// Print the header.
#[derive(Debug, Args)]
pub(super) struct Header {}

impl Header {
    pub fn run(self) -> Result<u8, Failure> {
        std::io::stdout().lock().write_all(kernels::abi::HEADER.as_bytes())?;
        Ok(0)
    }
}
