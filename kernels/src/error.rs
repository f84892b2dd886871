//! What can go wrong before a kernel runs.

use crate::arm::Arm;
use crate::device::DeviceError;

/// An argument of a launch that cannot be accepted: which, its value, and what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{argument} is {value}; accepted: {accepted}")]
pub struct ArgumentError {
    /// The argument's name as callers know it, with an index where one element is at fault: `seq_lens[2]`.
    pub argument: String,
    /// Its value.
    pub value: String,
    /// What would be accepted.
    pub accepted: String,
}

impl ArgumentError {
    /// An error about one argument.
    pub fn new(argument: impl Into<String>, value: impl ToString, accepted: impl Into<String>) -> Self {
        Self { argument: argument.into(), value: value.to_string(), accepted: accepted.into() }
    }
}

/// A valid request that an arm does not serve. The set of these is the arm's support manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{arm} does not support {what}; accepted: {accepted}")]
pub struct Unsupported {
    /// The arm.
    pub arm: Arm,
    /// What it lacks, with its value: `head_dim_k 20`.
    pub what: String,
    /// What it serves.
    pub accepted: String,
}

/// A launch that did not take place, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// An argument is not acceptable to any arm.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The arm does not serve this shape.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
