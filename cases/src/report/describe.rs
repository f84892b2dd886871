//! Verdicts in words: the text that terminal and JUnit share.

use kernels::device::{Finding, FindingKind};

use crate::verdict::{Failure, Place, Verdict, WrongElement};

/// The first line's ending and the lines below it, without colours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// What stands after `WORD  arm on device`.
    pub headline: String,
    /// Further lines.
    pub details: Vec<String>,
}

/// Describes a verdict.
#[must_use]
pub fn describe(verdict: &Verdict) -> Description {
    match verdict {
        Verdict::Pass { worst_share } => line(format!("worst share of the bound {worst_share:.2}")),
        Verdict::Mismatch { failures } => mismatch(failures),
        Verdict::Rejected { argument, message } => Description {
            headline: format!("a valid case was refused for {argument}"),
            details: vec![message.clone()],
        },
        Verdict::Unsupported { what, declared: true } => line(what.clone()),
        Verdict::Unsupported { what, declared: false } => Description {
            headline: what.clone(),
            details: vec!["the support manifest does not say so".to_owned()],
        },
        Verdict::Skipped { reason } => line(reason.clone()),
        Verdict::KnownFailure { was, reason, issue } => {
            Description { headline: format!("{reason} ({was})"), details: vec![issue.clone()] }
        }
        Verdict::KnownFailurePasses { reason, issue } => Description {
            headline: format!("although it is known to fail: {reason}"),
            details: vec![format!("delete its entry from the ledger of known failures, and close {issue}")],
        },
        Verdict::DeviceError { findings, error } => device_error(findings, error.as_deref()),
        Verdict::Crashed { signal, detail } => {
            Description { headline: signal.clone(), details: detail.lines().map(str::to_owned).collect() }
        }
        Verdict::TimedOut { limit_ms } => {
            line(format!("no answer in {:.1} s; killed", *limit_ms as f64 / 1e3))
        }
        Verdict::Environment { message } => {
            let mut lines = message.lines().map(str::to_owned);
            Description { headline: lines.next().unwrap_or_default(), details: lines.collect() }
        }
    }
}

fn line(headline: String) -> Description {
    Description { headline, details: Vec::new() }
}

/// Findings that are shown; a report file has all.
const SHOWN_FINDINGS: usize = 5;

/// Rank of a finding among others: a race or a stray access is the cause, uninitialised reads are often its consequence.
fn rank(kind: FindingKind) -> u8 {
    match kind {
        FindingKind::SharedRace | FindingKind::GlobalRace => 0,
        FindingKind::OutOfBounds
        | FindingKind::UseAfterFree
        | FindingKind::Misaligned
        | FindingKind::Canary => 1,
        FindingKind::Divergence | FindingKind::Deadlock => 2,
        FindingKind::Uninitialised => 3,
        FindingKind::Interface
        | FindingKind::InputWritten
        | FindingKind::WorkAfterReturn
        | FindingKind::Leak
        | FindingKind::LingeringError => 4,
    }
}

fn device_error(findings: &[Finding], error: Option<&str>) -> Description {
    let mut description = Description::default();
    let mut findings: Vec<&Finding> = findings.iter().collect();
    findings.sort_by_key(|finding| rank(finding.kind));
    if let Some(first) = findings.first() {
        description.headline = match findings.len() {
            1 => finding_word(first.kind).to_owned(),
            n => format!("{} and {} more", finding_word(first.kind), n - 1),
        };
    }
    for finding in findings.iter().take(SHOWN_FINDINGS) {
        let times = if finding.count > 1 { format!(" ({} times)", finding.count) } else { String::new() };
        description.details.push(format!("{}: {}{times}", finding_word(finding.kind), finding.message));
        description.details.extend(finding.site.iter().map(|site| format!("  at {site}")));
        description.details.extend(finding.other_site.iter().map(|site| format!("  and {site}")));
    }
    if findings.len() > SHOWN_FINDINGS {
        description.details.push(format!("… and {} more places", findings.len() - SHOWN_FINDINGS));
    }
    if let Some(error) = error {
        let mut lines = error.lines();
        description.headline = lines.next().unwrap_or_default().to_owned();
        description.details.extend(lines.map(str::to_owned));
    }
    description
}

fn finding_word(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::SharedRace => "race in shared memory",
        FindingKind::GlobalRace => "race between thread blocks",
        FindingKind::OutOfBounds => "out of bounds",
        FindingKind::UseAfterFree => "use after free",
        FindingKind::Misaligned => "misaligned access",
        FindingKind::Uninitialised => "uninitialised read",
        FindingKind::Divergence => "divergent barrier or shuffle",
        FindingKind::Deadlock => "deadlock",
        FindingKind::Canary => "write past an allocation",
        FindingKind::Interface => "does not keep to attest_kernel.h",
        FindingKind::InputWritten => "input written",
        FindingKind::WorkAfterReturn => "work outside the call's order",
        FindingKind::Leak => "leak",
        FindingKind::LingeringError => "lingering error",
    }
}

fn mismatch(failures: &[Failure]) -> Description {
    let mut description = Description::default();
    for (index, failure) in failures.iter().enumerate() {
        let (headline, details) = describe_failure(failure);
        if index == 0 {
            description.headline = headline;
        } else {
            description.details.push(format!("also: {headline}"));
        }
        description.details.extend(details);
    }
    description
}

/// The line and the further lines of one failed check.
pub(super) fn describe_failure(failure: &Failure) -> (String, Vec<String>) {
    match failure {
        Failure::Elements { output, wrong, of, worst, first, pattern, explanation, .. } => {
            let at = place(&worst.place);
            let headline = format!("{wrong} of {of} elements{}   worst at {at}", of_output(output));
            (headline, elements(worst, first, pattern.as_deref(), explanation.as_deref()))
        }
        Failure::Unwritten { output, elements, of, first } => {
            let at = place(first);
            (format!("{elements} of {of} elements of {output} were not written   first at {at}"), Vec::new())
        }
        Failure::Depends { on, output, elements, of, first, .. } => {
            let at = place(first);
            let details = vec![format!("depends on: {on}")];
            (format!("{elements} of {of} elements of {output} change   first at {at}"), details)
        }
        Failure::Remembered { output, elements, of } => (
            format!("{elements} of {of} elements of {output} are a remembered answer"),
            vec![
                "they belong to an earlier call at the same addresses, whose contents have changed since"
                    .to_owned(),
            ],
        ),
        Failure::Probe { message, wrong, of } => {
            (format!("{wrong} of {of} elements are not the exact answer"), vec![message.clone()])
        }
        Failure::Modified { buffer, bytes, first } => {
            (format!("{bytes} bytes of {buffer} were overwritten   first at byte {first}"), Vec::new())
        }
        Failure::Cache { tensor, wrong, of, first, .. } => {
            (format!("{wrong} of {of} cache elements ({tensor})"), vec![format!("first at {first}")])
        }
        Failure::NotRefused { argument } => {
            (format!("accepted, although {argument} must be refused"), Vec::new())
        }
        Failure::WrongRefusal { expected, message } => {
            (format!("refused, but not for {expected}"), vec![message.clone()])
        }
        Failure::LaunchedThoughRefused { launches } => {
            (format!("{launches} kernels were launched although the call was refused"), Vec::new())
        }
    }
}

fn of_output(output: &str) -> String {
    if output == "out" { String::new() } else { format!(" of {output}") }
}

fn elements(
    worst: &WrongElement,
    first: &Place,
    pattern: Option<&str>,
    explanation: Option<&str>,
) -> Vec<String> {
    let WrongElement { got, want, error, allowed, share, .. } = worst;
    let mut details = vec![format!(
        "got {got}   want {want}   error {error}   allowed {allowed} ({share}x)   first at {}",
        place(first)
    )];
    details.extend(pattern.map(|pattern| format!("pattern: {pattern}")));
    details.extend(explanation.map(str::to_owned));
    details
}

/// `request 2, row 5, head 7, dim 12`.
fn place(place: &Place) -> String {
    let Place { request, row, head, dim } = place;
    let dim = dim.map(|dim| format!(", dim {dim}")).unwrap_or_default();
    format!("request {request}, row {row}, head {head}{dim}")
}
