//! Running one attention call: validate, find its route, launch.

use crate::args::AttentionArgs;
use crate::arm::Arm;
use crate::dense;
use crate::device::{DeviceRef, StreamId};
use crate::error::LaunchError;
use crate::mma::{self, Cast};
use crate::route::{Capability, Knobs, Route, plan_arm, route};
use crate::scalar;
use crate::validate::{AttentionShape, validate_attention};
use crate::workspace::{ScratchSource, Workspace};

/// What a call put on the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The arm that serves the call.
    pub arm: Arm,
    /// Entry points in launch order; empty where there was nothing to compute.
    pub kernels: Vec<&'static str>,
    /// Why a faster arm was passed over, if the route was free to choose and one was.
    pub fallback: Option<String>,
}

/// Puts paged attention on a stream through a given arm. The tensors must stay alive until the stream has passed it.
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
    paged_attention_with(device, stream, Some(arm), args, &Knobs::default(), None)
}

/// The same with knobs, an arm left to the route (`None`), and scratch that outlives the call.
///
/// Without a workspace, scratch is allocated and freed in stream order within the call, which a capturing stream does
/// not allow. The workspace must belong to the same stream.
///
/// # Errors
/// As [`paged_attention`]; a call that no arm serves is unsupported by the scalar one. Whatever fails, scratch of the call
/// has been freed and the first error is returned.
pub fn paged_attention_with(
    device: &DeviceRef,
    stream: StreamId,
    arm: Option<Arm>,
    args: &AttentionArgs,
    knobs: &Knobs,
    workspace: Option<&mut Workspace>,
) -> Result<Launched, LaunchError> {
    let shape = validate_attention(args)?;
    let capability = Capability::of(&device.info());
    let route = match arm {
        Some(arm) => plan_arm(arm, &shape, &capability, knobs)?,
        None => {
            let route = route(&shape, &capability, knobs);
            route.arm.supports(&shape)?;
            route
        }
    };
    let mut launched = Launched { arm: route.arm, kernels: Vec::new(), fallback: route.fallback.clone() };
    if nothing_to_compute(&shape) {
        return Ok(launched);
    }
    let mut scratch = ScratchSource::new(device, stream, workspace);
    launched.kernels = launch(device, stream, args, &shape, (&route, &capability, knobs), &mut scratch)?;
    scratch.finish()?;
    Ok(launched)
}

/// Whether a valid call has no output to compute.
pub(crate) fn nothing_to_compute(shape: &AttentionShape) -> bool {
    shape.total_q == 0 || shape.num_requests == 0 || shape.max_query_len == 0
}

/// How an arm's tensor-core kernel casts the cache that it is given.
pub(crate) fn cast_of(arm: Arm) -> Cast {
    match arm {
        Arm::Fp8StagedSoft => Cast::Software,
        Arm::Fp8StagedHw => Cast::Hardware,
        _ => Cast::None,
    }
}

fn launch(
    device: &DeviceRef,
    stream: StreamId,
    args: &AttentionArgs,
    shape: &AttentionShape,
    (route, capability, knobs): (&Route, &Capability, &Knobs),
    scratch: &mut ScratchSource<'_>,
) -> Result<Vec<&'static str>, LaunchError> {
    let cast = cast_of(route.arm);
    match (route.arm, &route.mma) {
        (Arm::Fp8Dense | Arm::Bf16Dense, _) => {
            dense::launch(device, stream, (route.arm, args, shape), capability, knobs, scratch)
        }
        (_, Some(plan)) => mma::launch(device, stream, args, shape, (plan, cast), scratch),
        (_, None) => scalar::launch(device, stream, args, shape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missing_extent_leaves_nothing_to_compute() {
        let full = AttentionShape::example();
        assert!(!nothing_to_compute(&full));
        assert!(nothing_to_compute(&AttentionShape { total_q: 0, ..full.clone() }));
        assert!(nothing_to_compute(&AttentionShape { num_requests: 0, ..full.clone() }));
        assert!(nothing_to_compute(&AttentionShape { max_query_len: 0, ..full }));
    }

    #[test]
    fn staged_arms_cast_and_no_other() {
        for arm in Arm::ALL.iter().copied() {
            let wanted = match arm {
                Arm::Fp8StagedSoft => Cast::Software,
                Arm::Fp8StagedHw => Cast::Hardware,
                _ => Cast::None,
            };
            assert_eq!(cast_of(arm), wanted, "{arm}");
        }
    }
}
