//! The binary `attest`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cases::cli::main()
}
