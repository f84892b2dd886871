//! Consumers of the event stream.

pub mod describe;
mod html;
mod json;
mod junit;
mod record;
mod terminal;

use std::io;
use std::path::PathBuf;
use std::str::FromStr;

pub use html::HtmlReport;
pub use json::JsonReport;
pub use junit::JunitReport;
pub use record::{ArmRecord, CardRecord, CardRecorder, source_hash};
pub use terminal::{Terminal, Verbosity, write_capabilities, write_judged};

use crate::events::{Consumer, Event};

/// A report file and its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportTarget {
    format: ReportFormat,
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportFormat {
    Json,
    Junit,
    Html,
}

impl FromStr for ReportTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let accepted = "json=FILE, junit=FILE, html=FILE";
        let (format, path) = text.split_once('=').ok_or_else(|| format!("accepted: {accepted}"))?;
        let format = match format {
            "json" => ReportFormat::Json,
            "junit" => ReportFormat::Junit,
            "html" => ReportFormat::Html,
            other => return Err(format!("report format is `{other}`; accepted: {accepted}")),
        };
        if path.is_empty() {
            return Err(format!("the file is missing; accepted: {accepted}"));
        }
        Ok(Self { format, path: PathBuf::from(path) })
    }
}

impl ReportTarget {
    /// Opens the report. The file is made at once, so that a path that cannot be written is known before the run.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn open(&self) -> io::Result<Box<dyn Consumer>> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display()));
        std::fs::write(&self.path, "").map_err(named)?;
        Ok(match self.format {
            ReportFormat::Json => Box::new(JsonReport::new(self.path.clone())),
            ReportFormat::Junit => Box::new(JunitReport::new(self.path.clone())),
            ReportFormat::Html => Box::new(HtmlReport::new(self.path.clone())),
        })
    }
}

/// Passes every event to several consumers.
#[derive(Default)]
pub struct Fanout {
    /// The consumers, in the order in which they are told.
    pub consumers: Vec<Box<dyn Consumer>>,
}

impl Consumer for Fanout {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        self.consumers.iter_mut().try_for_each(|consumer| consumer.take(event))
    }
}
