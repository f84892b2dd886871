//! What can go wrong between a model file and a generated token.

use std::path::PathBuf;

use kernels::device::DeviceError;
use kernels::error::LaunchError;
use oracle::OracleError;

/// Why a model cannot be read, or a request not be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a GGUF file, or a tensor of it cannot be read or multiplied.
    #[error("{what}: {source}")]
    Tensor {
        /// What was being read or computed.
        what: String,
        /// Why it failed.
        #[source]
        source: candle_core::Error,
    },
    /// The file's metadata describe a model that is not served here.
    #[error("{key} is {value}; accepted: {accepted}")]
    Metadata {
        /// Metadata key, or name and dimension of a tensor.
        key: String,
        /// Its value, or `absent`.
        value: String,
        /// What would be accepted.
        accepted: String,
    },
    /// The tokenizer refuses.
    #[error("the tokenizer cannot {what}: {reason}")]
    Tokenizer {
        /// What was asked of it.
        what: &'static str,
        /// Its own words.
        reason: String,
    },
    /// A request or a setting that cannot be served.
    #[error("{argument} is {value}; accepted: {accepted}")]
    Argument {
        /// Which.
        argument: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        accepted: String,
    },
    /// The cache has too few free pages for a request.
    #[error("the cache is full: {wanted} pages wanted, {free} of {all} are free")]
    CacheFull {
        /// Pages that the request needs besides those it has.
        wanted: usize,
        /// Free pages.
        free: usize,
        /// Pages of the cache.
        all: usize,
    },
    /// The model's answer is not a number: a kernel left NaN or infinity behind.
    #[error("the logits of position {position} hold {value}")]
    NotFinite {
        /// Position in its sequence.
        position: usize,
        /// The value.
        value: f32,
    },
    /// A request stopped after the judge had found fault with attention calls.
    #[error("{source}; before that, {told}")]
    Accused {
        /// What the judge found.
        told: String,
        /// What stopped the request.
        #[source]
        source: Box<ModelError>,
    },
    /// Kernels could not be launched, or failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The reference refuses the problem that was just computed.
    #[error(transparent)]
    Oracle(#[from] OracleError),
}

impl ModelError {
    pub(crate) fn tensor(what: impl Into<String>) -> impl FnOnce(candle_core::Error) -> Self {
        move |source| Self::Tensor { what: what.into(), source }
    }

    pub(crate) fn metadata(
        key: impl Into<String>,
        value: impl ToString,
        accepted: impl Into<String>,
    ) -> Self {
        Self::Metadata { key: key.into(), value: value.to_string(), accepted: accepted.into() }
    }

    /// The device's error behind this one, if there is one.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceError> {
        match self {
            Self::Device(error) | Self::Launch(LaunchError::Device(error)) => Some(error),
            Self::Accused { source, .. } => source.device(),
            _ => None,
        }
    }
}
