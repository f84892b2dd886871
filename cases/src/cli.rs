//! The command line of `attest`.

mod agreement;
mod bench;
mod check;
mod conformance;
mod cubins;
mod explain;
mod export;
mod faults;
mod generated;
mod header;
mod impostors;
mod judge;
mod list;
mod model;
mod mutants;
mod new_kernel;
mod options;
mod replay;
mod shares;
mod shrink;
mod verify;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::executor::serve;

/// Exit code for a usage error.
pub const USAGE: u8 = 2;
/// Exit code when the surroundings failed and there is no verdict.
pub const NO_VERDICT: u8 = 3;

const ENVIRONMENT: &str = "\
Environment:
  ATTEST_DEVICE      default of --device: auto, simt or cuda
  ATTEST_CACHE_DIR   where compiled kernels are kept (default: the user's cache directory)
  ATTEST_KERNEL_DIR  directory with the kernel sources to judge (default: the checkout, else the embedded ones)
  CXX                C++ compiler of the simt device (default: g++)
  NO_COLOR           no colours where set
  CI                 no progress bar where set
  VT_ATTN_FP8_DENSE  0 restores per-read dequantisation of fp8 caches

Exit codes:
  0  everything passed
  1  a verdict against something under test: mismatch, race, out of bounds, crash, time-out
  2  usage
  3  no verdict, because the surroundings failed: no compiler, device lost, cache not writable
  4  nothing ran, fewer cases than the committed minimum, or a skip that no manifest declares";

/// Judges paged-attention kernels against an independent reference.
///
/// A case says what to compute; the reference says what is right and how much rounding error is allowed; a device
/// runs the kernel; the verdict says where and by how much it is wrong, and how to run that one case again.
#[derive(Debug, Parser)]
#[command(name = "attest", version, propagate_version = true, after_long_help = ENVIRONMENT)]
struct Cli {
    /// Colours in the output.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: Colour,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Colour {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Judge kernels with the committed cases.
    #[command(after_help = verify::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", verify::EXAMPLES))]
    Verify(verify::Verify),
    /// Show what there is: cases, arms with their support, devices.
    #[command(after_help = list::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", list::EXAMPLES))]
    List(list::List),
    /// Judge one case, given as a line.
    #[command(after_help = replay::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", replay::EXAMPLES))]
    Replay(replay::Replay),
    #[command(after_help = judge::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", judge::EXAMPLES))]
    Judge(judge::Judge),
    /// Print `attest_kernel.h`, the interface of kernels that `attest judge` judges.
    #[command(after_help = header::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", header::EXAMPLES))]
    Header(header::Header),
    #[command(after_help = new_kernel::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", new_kernel::EXAMPLES))]
    NewKernel(new_kernel::NewKernel),
    #[command(after_help = model::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", model::EXAMPLES))]
    Model(model::Model),
    /// Make every device call fail in turn and check that nothing is left behind.
    #[command(after_help = faults::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", faults::EXAMPLES))]
    Faults(faults::Faults),
    /// Time arms that have just been proved right.
    #[command(after_help = bench::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", bench::EXAMPLES))]
    Bench(bench::Bench),
    /// Compile every kernel instance for real architectures, with no card.
    #[command(after_help = cubins::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", cubins::EXAMPLES))]
    Cubins(cubins::Cubins),
    /// Check that a device keeps the promises of the device interface.
    Conformance(conformance::Conformance),
    #[command(after_help = shrink::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", shrink::EXAMPLES))]
    Shrink(shrink::Shrink),
    #[command(after_help = explain::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", explain::EXAMPLES))]
    Explain(explain::Explain),
    #[command(after_help = export::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", export::EXAMPLES))]
    Export(export::Export),
    #[command(after_help = check::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", check::EXAMPLES))]
    Check(check::Check),
    /// Change kernels, one small mistake at a time, and show which mistakes no case notices.
    #[command(after_help = mutants::EXAMPLES, after_long_help = format!("{}\n\n{ENVIRONMENT}", mutants::EXAMPLES))]
    Mutants(mutants::Mutants),
    /// Run jobs from standard input: how the other commands run kernels apart from the judgement.
    #[command(hide = true)]
    Worker,
}

/// A command that ends without a verdict: what to say and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: USAGE }
    }

    pub(crate) fn surroundings(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: NO_VERDICT }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::surroundings(format!("cannot write: {error}"))
    }
}

/// The message with which wrong arguments are answered; `None` if they are not wrong as far as parsing goes.
#[must_use]
pub fn usage_error(arguments: &[&str]) -> Option<String> {
    let words = std::iter::once("attest").chain(arguments.iter().copied());
    let command = Cli::command().term_width(100);
    command.try_get_matches_from(words).err().map(|error| error.render().to_string())
}

/// Runs the command that the process's arguments name.
#[must_use]
pub fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.color {
        Colour::Auto => {}
        Colour::Always => anstream::ColorChoice::Always.write_global(),
        Colour::Never => anstream::ColorChoice::Never.write_global(),
    }
    let result = match cli.command {
        Command::Verify(verify) => verify.run(),
        Command::List(list) => list.run(),
        Command::Replay(replay) => replay.run(),
        Command::Shrink(shrink) => shrink.run(),
        Command::Explain(explain) => explain.run(),
        Command::Export(export) => export.run(),
        Command::Check(check) => check.run(),
        Command::Judge(judge) => judge.run(),
        Command::Header(header) => header.run(),
        Command::NewKernel(new_kernel) => new_kernel.run(),
        Command::Model(model) => model.run(),
        Command::Faults(faults) => faults.run(),
        Command::Bench(bench) => bench.run(),
        Command::Cubins(cubins) => cubins.run(),
        Command::Conformance(conformance) => conformance.run(),
        Command::Mutants(mutants) => mutants.run(),
        Command::Worker => worker(),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(Failure { message, code }) => {
            anstream::eprintln!("error: {message}");
            ExitCode::from(code)
        }
    }
}

fn worker() -> Result<u8, Failure> {
    crate::executor::live_with_parent();
    serve(std::io::stdin().lock(), std::io::stdout().lock())?;
    Ok(0)
}
