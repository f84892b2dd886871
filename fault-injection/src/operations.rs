//! The operations of this project that are swept: every arm and every composite, on inputs of a few kilobytes.

pub mod batch;
mod catalogue;
pub mod founding;

use kernels::arm::Arm;
use kernels::device::DeviceRef;
use kernels::error::LaunchError;

/// An operation with its inputs on the device: runs it once and returns its results as bytes.
///
/// The inputs go back to the pool when it is dropped.
pub type Run = Box<dyn FnMut(&DeviceRef) -> Result<Vec<u8>, LaunchError>>;

/// One operation.
#[derive(Clone, Copy)]
pub struct Operation {
    /// Name in reports.
    pub name: &'static str,
    /// The arm that serves it; `None` for the store alone.
    pub arm: Option<Arm>,
    prepare: fn(&DeviceRef) -> Result<Run, LaunchError>,
}

impl Operation {
    /// Every operation: the store, each arm by itself, then the composites.
    pub const ALL: &[Self] = &[
        Self::new("store", None, catalogue::store),
        Self::new("scalar prefill", Some(Arm::Scalar), catalogue::scalar),
        Self::new("mma prefill", Some(Arm::Mma), catalogue::mma),
        Self::new("fp8-dense prefill", Some(Arm::Fp8Dense), catalogue::fp8_dense),
        Self::new("fp8-dense prefill, f32 query", Some(Arm::Fp8Dense), catalogue::fp8_dense_f32),
        Self::new("fp8-staged-soft decode", Some(Arm::Fp8StagedSoft), catalogue::fp8_staged_soft),
        Self::new("fp8-staged-hw split decode", Some(Arm::Fp8StagedHw), catalogue::fp8_staged_hw),
        Self::new("bf16-dense prefill", Some(Arm::Bf16Dense), catalogue::bf16_dense),
        Self::new("split-KV decode", Some(Arm::Mma), catalogue::split_kv_decode),
        Self::new("store then attend", Some(Arm::Fp8Dense), catalogue::store_then_attend),
        Self::new("graph capture and replay", Some(Arm::Fp8Dense), catalogue::graph),
        Self::new("two-request batch", Some(Arm::Fp8Dense), catalogue::two_request_batch),
        Self::new("two streams", Some(Arm::Fp8Dense), catalogue::two_streams),
        Self::new("two layers, the second dequantised ahead", Some(Arm::Fp8Dense), catalogue::ahead),
    ];

    pub(crate) const fn new(
        name: &'static str,
        arm: Option<Arm>,
        prepare: fn(&DeviceRef) -> Result<Run, LaunchError>,
    ) -> Self {
        Self { name, arm, prepare }
    }

    /// The arm's name, or `store`.
    #[must_use]
    pub fn arm_name(&self) -> &'static str {
        self.arm.map_or("store", Arm::name)
    }

    /// Uploads the inputs and waits until they are there.
    ///
    /// # Errors
    /// What the device reports.
    pub fn prepare(&self, device: &DeviceRef) -> Result<Run, LaunchError> {
        (self.prepare)(device)
    }
}
