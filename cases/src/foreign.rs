//! Judging a kernel that nobody here wrote: a shared library with the interface of `attest_kernel.h`.
//!
//! The library is loaded in worker processes only. The parent asks what it serves, plans the cases inside that, and judges
//! each as it judges this project's own kernels, preceded by runs about the kernel's conduct.

mod bench;
mod capability;
mod conduct;
mod describe;
mod executor;
mod plan;
mod server;
mod support;

use std::path::{Path, PathBuf};

use kernels::abi::{ForeignDevice, ForeignInfo};
use kernels::device::DeviceKind;

use crate::case::{Case, Expectation};
use crate::executor::Executor;
use crate::reference::{FOREIGN_ARM, VARYING_ARM};
use crate::run::{Settings, must_refuse, run_prepared};
use crate::session::Item;
use crate::verdict::{Failure, Verdict};

pub use bench::{Timing, timings};
pub use capability::{capabilities_of, rank};
pub use describe::{Description, Undescribed, describe_here, describe_in_child, in_words};
pub use executor::ForeignExecutor;
pub use plan::{PROBES, items};
pub use server::serve;
pub use support::{adapted, gap};

/// A kernel from a shared library.
#[derive(Clone, Debug)]
pub struct ForeignKernel {
    /// The library.
    pub path: PathBuf,
    /// What it says of itself.
    pub info: ForeignInfo,
}

impl ForeignKernel {
    /// The kind of device that its calls run on.
    #[must_use]
    pub fn device(&self) -> DeviceKind {
        match self.info.device {
            ForeignDevice::Host => DeviceKind::Host,
            ForeignDevice::Cuda => DeviceKind::Cuda,
        }
    }

    /// Judges one case.
    pub fn judge(&self, item: &Item, executor: &mut dyn Executor, settings: &Settings) -> Verdict {
        let case = self.as_expected(&item.case);
        let group = item.group.as_str();
        let arm = match item.arm == FOREIGN_ARM && !self.info.batch_invariant {
            true => VARYING_ARM,
            false => item.arm.as_str(),
        };
        if let Some(what) = gap(&case, &self.info) {
            return match group == PROBES || group.is_empty() {
                true => refused_or_right(&case, arm, executor, settings),
                false => Verdict::Unsupported { what, declared: true },
            };
        }
        let verdict = match conduct::judge(&case, arm, executor, settings) {
            Some(verdict) => verdict,
            None => run_prepared(&case, arm, executor, settings, None),
        };
        match verdict {
            // Its own description promises the case.
            Verdict::Unsupported { what, .. } => Verdict::Rejected {
                argument: "want of support, which its info declares".to_owned(),
                message: what,
            },
            verdict => verdict,
        }
    }

    /// The case with the expectation that this kernel's description gives it: a head dim that no arm of this project serves
    /// may be one that this kernel does.
    fn as_expected(&self, case: &Case) -> Case {
        let mut case = case.clone();
        let about_dims =
            matches!(&case.expectation, Expectation::Reject { argument } if argument == "head_dim");
        if about_dims {
            case.expectation = Expectation::Valid;
        }
        case
    }

    /// The command that judges one case again.
    #[must_use]
    pub fn replay(&self, line: &str) -> String {
        format!("attest replay --kernel {} '{line}'", shown(&self.path))
    }
}

/// What a kernel does not declare it refuses, or serves rightly: views of one tensor, say, may look like two tensors.
fn refused_or_right(case: &Case, arm: &str, executor: &mut dyn Executor, settings: &Settings) -> Verdict {
    let verdict = must_refuse(case, arm, executor, settings);
    let accepted = |failure: &Failure| matches!(failure, Failure::NotRefused { .. });
    match &verdict {
        Verdict::Mismatch { failures } if failures.iter().any(accepted) => {
            match run_prepared(case, arm, executor, settings, None) {
                right @ Verdict::Pass { .. } => right,
                _ => verdict,
            }
        }
        _ => verdict,
    }
}

/// A path as a shell takes it.
fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+=".contains(c));
    if plain { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}
