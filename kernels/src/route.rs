//! Which arm serves a call, and how it is launched: a pure function of the shape, the card and the knobs.

use serde::{Deserialize, Serialize};

use crate::arm::Arm;
use crate::dense;
use crate::device::DeviceInfo;
use crate::error::{ArgumentError, Unsupported};
use crate::mma::{self, MmaPlan};
use crate::validate::AttentionShape;

/// What a card can do, as far as routes depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capability {
    /// Compute capability, major.
    pub major: u32,
    /// Compute capability, minor.
    pub minor: u32,
    /// Largest dynamic shared memory of a block in bytes.
    pub max_shared_bytes: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

impl Capability {
    /// Of a device.
    #[must_use]
    pub fn of(info: &DeviceInfo) -> Self {
        let (major, minor) = info.capability;
        let (max_shared_bytes, multiprocessors) = (info.max_shared_bytes, info.multiprocessors);
        Self { major, minor, max_shared_bytes, multiprocessors }
    }

    fn at_least(&self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

/// Settings that change which arm serves a call or how it is launched, never its result beyond rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Knobs {
    /// Whether an fp8 prefill is dequantised once; off restores decoding at each read.
    pub fp8_dense: bool,
    /// Most bytes of dense scratch for one call.
    pub scratch_budget_bytes: u64,
    /// Upper limit of the split count.
    pub max_splits: u64,
    /// A fixed split count instead of the rule.
    pub splits: Option<u64>,
    /// The caller's promise that every request has exactly this many query rows (speculative verify).
    pub uniform_query_len: Option<u64>,
    /// Whether such batches are served as decodes.
    pub verify_as_decode: bool,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            fp8_dense: true,
            scratch_budget_bytes: 4 << 30,
            max_splits: 128,
            splits: None,
            uniform_query_len: None,
            verify_as_decode: true,
        }
    }
}

impl Knobs {
    /// The defaults as the environment changes them: `VT_ATTN_FP8_DENSE=0` turns the dense route off.
    ///
    /// # Errors
    /// A value other than 0 or 1.
    pub fn from_env() -> Result<Self, ArgumentError> {
        let fp8_dense = match std::env::var("VT_ATTN_FP8_DENSE").as_deref() {
            Err(_) | Ok("" | "1") => true,
            Ok("0") => false,
            Ok(other) => return Err(ArgumentError::new("VT_ATTN_FP8_DENSE", other, "0 or 1")),
        };
        Ok(Self { fp8_dense, ..Self::default() })
    }
}

/// The way a call takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Route {
    /// The arm.
    pub arm: Arm,
    /// Launch of the tensor-core kernel, if the arm uses it.
    pub mma: Option<MmaPlan>,
    /// Bytes of dense scratch.
    pub dense_bytes: u64,
    /// Why a faster arm was passed over, if one was.
    pub fallback: Option<String>,
}

/// Chooses the arm of a validated call.
///
/// fp8 decode casts while it stages, since every byte is read once; fp8 prefill is dequantised once, since every byte
/// is read once per row tile. What the tensor-core kernel does not serve takes the scalar one, which has limits of its own
/// ([`Arm::supports`]).
#[must_use]
pub fn route(shape: &AttentionShape, capability: &Capability, knobs: &Knobs) -> Route {
    let planned = preferred(shape, capability, knobs).map(|arm| plan_arm(arm, shape, capability, knobs));
    let fallback = match planned {
        Some(Ok(route)) => return route,
        Some(Err(unsupported)) => Some(unsupported.to_string()),
        None => None,
    };
    Route { arm: Arm::Scalar, mma: None, dense_bytes: 0, fallback }
}

/// The arm that is better than the scalar one wherever it serves.
fn preferred(shape: &AttentionShape, capability: &Capability, knobs: &Knobs) -> Option<Arm> {
    if !shape.kv_dtype.is_fp8() {
        return Some(Arm::Mma);
    }
    let staged = if capability.at_least(8, 9) { Arm::Fp8StagedHw } else { Arm::Fp8StagedSoft };
    match (mma::is_decode(shape, knobs), knobs.fp8_dense) {
        (true, _) => Some(staged),
        (false, true) => Some(Arm::Fp8Dense),
        (false, false) => None,
    }
}

/// The route of one given arm.
///
/// # Errors
/// What the arm lacks for this call or on this card.
pub fn plan_arm(
    arm: Arm,
    shape: &AttentionShape,
    capability: &Capability,
    knobs: &Knobs,
) -> Result<Route, Unsupported> {
    arm.supports(shape)?;
    let plain = Route { arm, mma: None, dense_bytes: 0, fallback: None };
    if arm == Arm::Scalar {
        return Ok(plain);
    }
    let lacks = |what: String, accepted: String| Err(Unsupported { arm, what, accepted });
    let needed = if arm == Arm::Fp8StagedHw { (8, 9) } else { (8, 0) };
    let uses_tensor_cores = !arm.is_dense() || dense::inner_is_mma(arm, shape);
    if uses_tensor_cores && !capability.at_least(needed.0, needed.1) {
        let what = format!("compute capability {}.{}", capability.major, capability.minor);
        return lacks(what, format!("{}.{} or later", needed.0, needed.1));
    }
    match arm {
        Arm::Fp8Dense | Arm::Bf16Dense => {
            let dense_bytes = dense::scratch_bytes(shape);
            if dense_bytes > knobs.scratch_budget_bytes {
                return lacks(
                    format!("{dense_bytes} bytes of dense scratch"),
                    format!("at most {} (scratch_budget_bytes)", knobs.scratch_budget_bytes),
                );
            }
            let inner = dense::inner_shape(shape);
            let mma = dense::inner_is_mma(arm, shape)
                .then(|| mma::plan(arm, &inner, false, capability, knobs))
                .transpose()?;
            Ok(Route { mma, dense_bytes, ..plain })
        }
        _ => {
            let casts = arm != Arm::Mma;
            Ok(Route { mma: Some(mma::plan(arm, shape, casts, capability, knobs)?), ..plain })
        }
    }
}
