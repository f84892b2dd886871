//! The one error type of the crate.

/// A refused argument. Nothing in this crate fails in any other way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OracleError {
    /// A format name that names none of the formats.
    #[error("format is {name:?}; accepted: f32, bf16, f16, e4m3 (e4m3fn), e5m2")]
    UnknownFormat {
        /// The name as given.
        name: String,
    },
    /// An fnuz variant: its exponent bias differs, so its codes mean other values than those of e4m3fn or e5m2.
    #[error("format is {name:?}, an fnuz variant with another exponent bias; accepted: e4m3 (e4m3fn), e5m2")]
    FnuzFormat {
        /// The name as given.
        name: String,
    },
    /// A layout or packing name that names none.
    #[error("{argument} is {name:?}; accepted: {accepted}")]
    UnknownName {
        /// What was being named.
        argument: &'static str,
        /// The name as given.
        name: String,
        /// The names that exist.
        accepted: &'static str,
    },
    /// An array whose shape does not fit the others.
    #[error("{argument} has shape {shape:?}; accepted: {accepted}")]
    Shape {
        /// Which array.
        argument: &'static str,
        /// Its shape.
        shape: Vec<usize>,
        /// What would be accepted.
        accepted: String,
    },
    /// A value outside its range.
    #[error("{argument} is {value}; accepted: {accepted}")]
    Value {
        /// Which argument, with its index where it is one element of many.
        argument: String,
        /// Its value.
        value: String,
        /// What would be accepted.
        accepted: String,
    },
}

impl OracleError {
    pub(crate) fn value(
        argument: impl Into<String>,
        value: impl ToString,
        accepted: impl Into<String>,
    ) -> Self {
        Self::Value { argument: argument.into(), value: value.to_string(), accepted: accepted.into() }
    }

    pub(crate) fn shape(argument: &'static str, shape: &[usize], accepted: impl Into<String>) -> Self {
        Self::Shape { argument, shape: shape.to_vec(), accepted: accepted.into() }
    }
}
