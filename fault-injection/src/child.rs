//! What must happen in a process of its own, because it ends the process or loses its context.

use std::fmt;
use std::str::FromStr;

use kernels::device::{DeviceRef, DeviceResult};
use kernels::source::SourceSet;

use crate::drops::leave_to_process_exit;
use crate::operations::Operation;
use crate::sticky;

/// A task for a fresh process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// Run one operation and print its result.
    Plain,
    /// Lose the context to a trapping kernel and use it once more.
    Sticky,
    /// Leave guards for the end of the process.
    Exit,
}

/// A name that is no task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task is {value}; accepted: plain, sticky or exit")]
pub struct UnknownChild {
    /// The name.
    pub value: String,
}

impl Child {
    const ALL: [Self; 3] = [Self::Plain, Self::Sticky, Self::Exit];

    /// What the tasks run.
    pub(crate) const OPERATION: Operation = Operation::ALL[3];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Sticky => "sticky",
            Self::Exit => "exit",
        }
    }

    /// Does it. The process is to print what is returned and end by returning from its main function.
    ///
    /// # Errors
    /// What was not as it must be.
    pub fn run(
        self,
        open: impl FnOnce(SourceSet) -> DeviceResult<DeviceRef>,
        sources: SourceSet,
    ) -> Result<String, String> {
        let text = |error: &dyn fmt::Display| error.to_string();
        let device = open(sticky::sources(sources)).map_err(|error| text(&error))?;
        match self {
            Self::Plain => {
                let mut run = Self::OPERATION.prepare(&device).map_err(|error| text(&error))?;
                let bytes = run(&device).map_err(|error| text(&error))?;
                Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
            }
            Self::Sticky => {
                let sticky = sticky::provoke(&device, &Self::OPERATION)?;
                Ok(format!("reported {}, then {}", sticky.reported, sticky.later))
            }
            Self::Exit => {
                leave_to_process_exit(&device).map_err(|error| text(&error))?;
                Ok("left".to_owned())
            }
        }
    }
}

impl FromStr for Child {
    type Err = UnknownChild;

    fn from_str(name: &str) -> Result<Self, UnknownChild> {
        let found = Self::ALL.into_iter().find(|child| child.name() == name);
        found.ok_or_else(|| UnknownChild { value: name.to_owned() })
    }
}
