//! Worker processes that have loaded a foreign kernel.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kernels::abi::FAULT_MARK;
use kernels::device::{Finding, FindingKind};

use crate::executor::protocol::Status;
use crate::executor::{Executor, Job, Outcome, PoolUse, Reply, Worker};

/// Runs jobs on a foreign kernel, and gives a crash the name that the fault handler found for it.
pub struct ForeignExecutor {
    worker: Worker,
}

impl ForeignExecutor {
    /// An executor whose workers are `binary` with the kernel loaded.
    #[must_use]
    pub fn new(binary: PathBuf, kernel: &Path, interrupted: Arc<AtomicBool>) -> Self {
        let arguments = vec!["judge".into(), kernel.into(), "--serve".into()];
        Self { worker: Worker::new(binary, interrupted).with_arguments(arguments) }
    }
}

impl Executor for ForeignExecutor {
    fn run(&mut self, job: &Job, limit: Duration) -> Outcome {
        match self.worker.run(job, limit) {
            Outcome::Crashed { signal, detail } => match fault(&detail) {
                Some(finding) => Outcome::Replied(Reply {
                    status: Status::Findings { findings: vec![finding] },
                    launches: 0,
                    pool: PoolUse::default(),
                    buffers: Vec::new(),
                }),
                None => Outcome::Crashed { signal, detail },
            },
            other => other,
        }
    }
}

/// The finding that the fault handler wrote to the worker's standard error before the process died.
fn fault(detail: &str) -> Option<Finding> {
    let line = detail.lines().rev().find_map(|line| line.strip_prefix(FAULT_MARK))?;
    let (kind, rest) = line.split_once(':')?;
    let (message, site) = rest.split_once('|').map_or((rest, None), |(message, site)| (message, Some(site)));
    let kind = match kind {
        "out-of-bounds" => FindingKind::OutOfBounds,
        "input-written" => FindingKind::InputWritten,
        "work-after-return" => FindingKind::WorkAfterReturn,
        _ => return None,
    };
    Some(Finding {
        kind,
        message: message.to_owned(),
        site: site.map(str::to_owned),
        other_site: None,
        count: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_line_becomes_a_finding() {
        let detail = "noise\nattest-fault:out-of-bounds:wrote past the end of out (64 bytes): byte 68|attest_store+0x1f\n";
        let finding = fault(detail).expect("a finding");
        assert_eq!(finding.kind, FindingKind::OutOfBounds);
        assert_eq!(finding.message, "wrote past the end of out (64 bytes): byte 68");
        assert_eq!(finding.site.as_deref(), Some("attest_store+0x1f"));
        assert_eq!(fault("Segmentation fault"), None);
    }
}
