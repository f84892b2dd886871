//! The error of a call that failed on purpose, recognisable however deep it is wrapped.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use kernels::device::DeviceError;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::plan::At;

/// Identifies one injected fault; no two faults of a process share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token(u64);

impl Token {
    fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// One fault that was injected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("injected fault {token}: {call}, counted call {number}{}", match .at { At::Call => "", At::NextSynchronize => ", reported late" })]
pub struct InjectedFault {
    /// What sets it apart from every other.
    pub token: Token,
    /// The call that was made to fail.
    pub call: Call,
    /// Its number among the calls that the plan counted, from 1.
    pub number: u64,
    /// When the failure shows.
    pub at: At,
}

impl InjectedFault {
    pub(crate) fn new(call: Call, number: u64, at: At) -> Self {
        Self { token: Token::unique(), call, number, at }
    }

    /// The error that a device reports for it, from the call in which it surfaces.
    pub(crate) fn error(&self, surfaced_in: Call) -> DeviceError {
        DeviceError::Other { call: surfaced_in.name(), source: Box::new(self.clone()) }
    }

    /// The injected fault that an error stands for, found by walking its causes.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(fault) = error.downcast_ref() {
                return Some(fault);
            }
            next = error.source();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::error::LaunchError;

    #[derive(Debug, thiserror::Error)]
    #[error("the request failed")]
    struct Wrapped(#[source] LaunchError);

    #[test]
    fn a_fault_is_found_through_every_layer() {
        let fault = InjectedFault::new(Call::Alloc, 3, At::Call);
        let error = Wrapped(LaunchError::from(fault.error(Call::Alloc)));
        assert_eq!(InjectedFault::find(&error), Some(&fault));
        assert_eq!(InjectedFault::find(&DeviceError::Environment(fault.to_string())), None);
    }

    #[test]
    fn no_two_faults_are_equal() {
        let new = || InjectedFault::new(Call::Alloc, 1, At::Call);
        assert_ne!(new(), new());
    }
}
