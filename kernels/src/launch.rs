//! Running one attention call: validate, check that the arm serves it, launch.

use crate::args::AttentionArgs;
use crate::arm::Arm;
use crate::device::{DeviceRef, StreamId};
use crate::error::LaunchError;
use crate::scalar;
use crate::validate::validate_attention;

/// What a call put on the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The arm that serves the call.
    pub arm: Arm,
    /// Entry points in launch order; empty where there was nothing to compute.
    pub kernels: Vec<&'static str>,
}

/// Puts paged attention on a stream. The tensors must stay alive until the stream has passed it.
///
/// # Errors
/// [`LaunchError::Argument`] for arguments that nothing accepts, [`LaunchError::Unsupported`] for a valid call outside the arm's
/// support manifest, both before anything is queued; [`LaunchError::Device`] for what the device reports.
pub fn paged_attention(
    device: &DeviceRef,
    stream: StreamId,
    arm: Arm,
    args: &AttentionArgs,
) -> Result<Launched, LaunchError> {
    let shape = validate_attention(args)?;
    arm.supports(&shape)?;
    if shape.total_q == 0 || shape.num_requests == 0 || shape.max_query_len == 0 {
        return Ok(Launched { arm, kernels: Vec::new() });
    }
    let kernels = match arm {
        Arm::Scalar => scalar::launch(device, stream, args, &shape)?,
    };
    Ok(Launched { arm, kernels })
}
