//! The JUnit report: one suite per arm, one test case per case line.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::describe::describe;
use crate::events::{Consumer, Event, Judged};
use crate::verdict::Class;

/// Writes a JUnit file when the run ends.
pub struct JunitReport {
    path: PathBuf,
    suites: BTreeMap<String, TestSuite>,
}

impl JunitReport {
    /// A report to a file.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, suites: BTreeMap::new() }
    }

    fn suite(&mut self, name: String) -> &mut TestSuite {
        self.suites.entry(name.clone()).or_insert_with(|| TestSuite::new(name))
    }
}

fn test_case(judged: &Judged) -> TestCase {
    let description = describe(&judged.verdict);
    let mut status = match judged.class {
        Class::Passed => TestCaseStatus::success(),
        Class::Failed | Class::UndeclaredSkip => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Class::NoVerdict => TestCaseStatus::non_success(NonSuccessKind::Error),
        Class::Skipped => TestCaseStatus::skipped(),
    };
    if judged.class != Class::Passed {
        status.set_message(format!("{} {}", judged.verdict.word(), description.headline));
        let mut text = description.details.join("\n");
        text.push_str(&format!("\nreplay: {}", judged.replay));
        status.set_description(text);
    }
    let mut case = TestCase::new(judged.line.clone(), status);
    case.set_classname(format!("{}.{}", judged.group, judged.id));
    case.set_time(Duration::from_secs_f64(judged.seconds));
    case
}

/// The environment's failure as a test case, so that an empty file does not read as success.
fn error_case(name: &str, message: &str) -> TestCase {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
    status.set_message(message.to_owned());
    TestCase::new(name.to_owned(), status)
}

impl Consumer for JunitReport {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Judged(judged) => {
                let case = test_case(judged);
                self.suite(format!("{} on {}", judged.arm, judged.device)).add_test_case(case);
            }
            Event::CompileFailed { kernel, message } => {
                self.suite("kernels".to_owned()).add_test_case(error_case(kernel, message));
            }
            Event::Aborted { message } => {
                self.suite("surroundings".to_owned()).add_test_case(error_case("setup", message));
            }
            Event::Finished(finished) => {
                let mut report = Report::new("attest");
                for shortfall in &finished.shortfalls {
                    self.suite("run".to_owned()).add_test_case(error_case("demand", shortfall));
                }
                report.add_test_suites(std::mem::take(&mut self.suites).into_values());
                let text = report.to_string().map_err(io::Error::other)?;
                std::fs::write(&self.path, text)?;
            }
            Event::Started(_) | Event::Prepared { .. } => {}
        }
        Ok(())
    }
}
