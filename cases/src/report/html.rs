//! The HTML report: one page that needs nothing else, for a person at a desk or on a phone.

mod capability;
mod failure;
mod heat;
mod page;

use std::io;
use std::path::PathBuf;

use crate::case::Case;
use crate::events::{Consumer, Event, Finished, Judged, Started};
use crate::verdict::{Class, Failure, Verdict};
use capability::Capabilities;

/// Failures that are shown; the others are counted.
const SHOWN_FAILURES: usize = 200;
/// Failures with maps: they are what makes a page large.
const SHOWN_MAPS: usize = 60;
/// Cases in the list of those that used most of their bound.
const SHOWN_WORST: usize = 20;

/// Writes one page when the run ends.
pub struct HtmlReport {
    path: PathBuf,
    content: Content,
}

/// What the page shows.
#[derive(Default)]
struct Content {
    started: Option<Started>,
    compile_errors: Vec<(String, String)>,
    aborted: Option<String>,
    capabilities: Capabilities,
    failures: Vec<Judged>,
    failures_left_out: usize,
    worst: Vec<Used>,
    shares: Vec<(String, Vec<f64>)>,
}

/// A case that passed, and how much of its bound it used.
#[derive(Clone, Debug)]
struct Used {
    share: f64,
    arm: String,
    line: String,
    comment: String,
}

impl HtmlReport {
    /// A report to a file.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, content: Content::default() }
    }
}

impl Content {
    fn judged(&mut self, judged: &Judged) {
        let failed = matches!(judged.class, Class::Failed | Class::UndeclaredSkip | Class::NoVerdict);
        let anchor = (failed && self.failures.len() < SHOWN_FAILURES).then_some(self.failures.len());
        if let Ok(case) = judged.line.parse::<Case>() {
            self.capabilities.add(&case, &judged.arm, judged.class, anchor);
        }
        if let Verdict::Pass { worst_share } = judged.verdict {
            self.passed(judged, worst_share);
        }
        match anchor {
            Some(number) => {
                let mut judged = judged.clone();
                if number >= SHOWN_MAPS {
                    drop_maps(&mut judged.verdict);
                }
                self.failures.push(judged);
            }
            None => self.failures_left_out += usize::from(failed),
        }
    }

    fn passed(&mut self, judged: &Judged, share: f64) {
        match self.shares.iter_mut().find(|(arm, _)| *arm == judged.arm) {
            Some((_, shares)) => shares.push(share),
            None => self.shares.push((judged.arm.clone(), vec![share])),
        }
        let used = Used {
            share,
            arm: judged.arm.clone(),
            line: judged.line.clone(),
            comment: judged.comment.clone(),
        };
        let at = self.worst.partition_point(|other| other.share >= share);
        self.worst.insert(at, used);
        self.worst.truncate(SHOWN_WORST);
    }
}

fn drop_maps(verdict: &mut Verdict) {
    let Verdict::Mismatch { failures } = verdict else { return };
    for failure in failures {
        if let Failure::Elements { map, .. } | Failure::Depends { map, .. } | Failure::Cache { map, .. } =
            failure
        {
            *map = None;
        }
    }
}

impl Consumer for HtmlReport {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        let content = &mut self.content;
        match event {
            Event::Started(started) => content.started = Some(started.clone()),
            Event::Prepared { .. } => {}
            Event::CompileFailed { kernel, message } => {
                content.compile_errors.push((kernel.clone(), message.clone()));
            }
            Event::Aborted { message } => content.aborted = Some(message.clone()),
            Event::Judged(judged) => content.judged(judged),
            Event::Finished(finished) => std::fs::write(&self.path, content.page(finished))?,
        }
        Ok(())
    }
}

impl Content {
    fn page(&self, finished: &Finished) -> String {
        page::write(self, finished)
    }
}

/// Text as HTML shows it.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
