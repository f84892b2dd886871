//! The two failures that this crate began with: of the identity table's allocation when the dense scratch exists, and of the
//! table's copy when both exist.
//!
//! The call is an fp8 prefill of two requests whose dense scratch takes 12288 bytes and whose table takes 8, and so much
//! else is live that the pool holds 12288 bytes before it.

use std::sync::Arc;

use kernels::arm::Arm;
use kernels::device::{Device, DeviceRef, StreamId};
use kernels::error::LaunchError;
use kernels::route::Knobs;
use kernels::scratch::Scratch;

use super::Run;
use super::batch::Batch;
use super::catalogue::TWO_REQUESTS;
use crate::call::{CallKind, KindSet};
use crate::faulty::FaultyDevice;
use crate::plan::FaultPlan;
use crate::sweep::{Step, inject};
use crate::trial::{BoxError, SweepError};
use crate::without_frees::WithoutFrees;

/// Bytes that the pool holds before the call.
pub const BASELINE_BYTES: u64 = 12288;

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Founding {
    /// The identity table cannot be allocated; the dense scratch exists.
    IdentityTableAllocation,
    /// The identity table cannot be filled; both allocations exist.
    IdentityCopy,
}

impl Founding {
    /// Both.
    pub const ALL: [Self; 2] = [Self::IdentityTableAllocation, Self::IdentityCopy];

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IdentityTableAllocation => "identity-table allocation after the dense scratch",
            Self::IdentityCopy => "identity copy after both allocations",
        }
    }

    fn plan(self) -> FaultPlan {
        match self {
            Self::IdentityTableAllocation => FaultPlan::nth(2).of(KindSet::only(CallKind::Alloc)),
            Self::IdentityCopy => FaultPlan::nth(1).of(KindSet::only(CallKind::Copy)),
        }
    }

    /// Makes the call fail and judges what is left.
    ///
    /// # Errors
    /// As [`inject`]; also when the inputs cannot be uploaded.
    pub fn check<D: Device + ?Sized + 'static>(
        self,
        device: &Arc<FaultyDevice<D>>,
    ) -> Result<Option<Step>, SweepError> {
        let mut run = prepare(&device.handle()).map_err(failed)?;
        inject(device, self.plan(), |device: &DeviceRef| run(device))
    }

    /// The same with every free of the call thrown away, as if its guards did not free: proof that the check would notice.
    ///
    /// # Errors
    /// As [`Founding::check`].
    pub fn check_without_frees<D: Device + ?Sized + 'static>(
        self,
        device: &Arc<FaultyDevice<D>>,
    ) -> Result<Option<Step>, SweepError> {
        let mut run = prepare(&device.handle()).map_err(failed)?;
        inject(device, self.plan(), |device: &DeviceRef| run(&WithoutFrees::wrap(device)))
    }
}

fn failed(error: LaunchError) -> SweepError {
    SweepError::Baseline { source: BoxError::from(error) }
}

fn prepare(device: &DeviceRef) -> Result<Run, LaunchError> {
    let batch = Batch::new(device, &TWO_REQUESTS)?;
    let others = Scratch::new(device, BASELINE_BYTES - batch.bytes(), StreamId::DEFAULT)?;
    let knobs = Knobs::default();
    Ok(Box::new(move |device| {
        // Live for as long as the inputs are.
        let _ = &others;
        batch.attend(device, StreamId::DEFAULT, (Arm::Fp8Dense, &knobs), None)?;
        Ok(batch.read(device, StreamId::DEFAULT)?)
    }))
}
