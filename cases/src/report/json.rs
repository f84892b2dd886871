//! The JSON report: one object with the run, its cases and its end.

use std::io;
use std::path::PathBuf;

use serde::Serialize;

use crate::events::{Consumer, Event, Finished, Judged, Started};

/// Version of the file's shape; raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// Writes one JSON object when the run ends.
pub struct JsonReport {
    path: PathBuf,
    file: File,
}

#[derive(Serialize)]
struct File {
    schema: u32,
    run: Option<Started>,
    kernels_compiled: Option<usize>,
    compile_seconds: Option<f64>,
    compile_errors: Vec<CompileError>,
    aborted: Option<String>,
    cases: Vec<Judged>,
    summary: Option<Finished>,
}

#[derive(Serialize)]
struct CompileError {
    kernel: String,
    message: String,
}

impl JsonReport {
    /// A report to a file.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let file = File {
            schema: SCHEMA,
            run: None,
            kernels_compiled: None,
            compile_seconds: None,
            compile_errors: Vec::new(),
            aborted: None,
            cases: Vec::new(),
            summary: None,
        };
        Self { path, file }
    }
}

impl Consumer for JsonReport {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        let file = &mut self.file;
        match event {
            Event::Started(started) => file.run = Some(started.clone()),
            Event::Prepared { kernels, seconds } => {
                file.kernels_compiled = Some(*kernels);
                file.compile_seconds = Some(*seconds);
            }
            Event::CompileFailed { kernel, message } => {
                file.compile_errors.push(CompileError { kernel: kernel.clone(), message: message.clone() });
            }
            Event::Aborted { message } => file.aborted = Some(message.clone()),
            Event::Judged(judged) => file.cases.push((**judged).clone()),
            Event::Finished(finished) => {
                file.summary = Some(finished.clone());
                let mut text = serde_json::to_string_pretty(file)?;
                text.push('\n');
                std::fs::write(&self.path, text)?;
            }
        }
        Ok(())
    }
}
