//! What a person sees: failures and the summary on standard output, progress and diagnostics on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::describe::describe;
use crate::events::{Capability, Consumer, Event, Finished, Judged, Started};
use crate::verdict::Class;

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Failures and the summary.
    Quiet,
    /// Also progress.
    #[default]
    Normal,
    /// Also every case.
    Verbose,
}

/// Distance of plain progress lines.
const PLAIN_PROGRESS: Duration = Duration::from_secs(10);

const RED: Style = AnsiColor::Red.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();
const GREEN: Style = AnsiColor::Green.on_default();

/// Writes to the terminal or to whatever the two streams are.
pub struct Terminal {
    verbosity: Verbosity,
    progress: Progress,
    started: Instant,
    planned: usize,
    seen: usize,
    failed: usize,
}

enum Progress {
    None,
    Bar(ProgressBar),
    Plain { last: Instant },
}

impl Terminal {
    /// A consumer for the process's own streams. A bar is drawn where standard error is a terminal and `CI` is not set.
    #[must_use]
    pub fn new(verbosity: Verbosity) -> Self {
        let on_terminal = io::stderr().is_terminal() && std::env::var_os("CI").is_none();
        let progress = match verbosity {
            Verbosity::Quiet => Progress::None,
            _ if on_terminal => Progress::Bar(bar()),
            _ => Progress::Plain { last: Instant::now() },
        };
        Self { verbosity, progress, started: Instant::now(), planned: 0, seen: 0, failed: 0 }
    }

    /// Runs `write` with the bar out of the way.
    fn print(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let mut stdout = anstream::stdout().lock();
        let go = || -> io::Result<()> {
            write(&mut stdout)?;
            stdout.flush()
        };
        match &self.progress {
            Progress::Bar(bar) => bar.suspend(go),
            Progress::None | Progress::Plain { .. } => go(),
        }
    }

    fn diagnose(&self, text: &str) {
        if self.verbosity > Verbosity::Quiet {
            let say = || anstream::eprintln!("{text}");
            match &self.progress {
                Progress::Bar(bar) => bar.suspend(say),
                Progress::None | Progress::Plain { .. } => say(),
            }
        }
    }

    fn start(&mut self, started: &Started) {
        self.planned = started.planned;
        let arms = started.arms.join(", ");
        let tier = started.tier.as_ref().map(|tier| format!("tier {tier}, ")).unwrap_or_default();
        self.diagnose(&format!(
            "attest {}: {tier}{} cases on {} ({}), arms: {arms}, {} at once",
            started.version, started.planned, started.device, started.device_detail, started.jobs
        ));
        if let Progress::Bar(bar) = &self.progress {
            bar.set_length(started.planned as u64);
            bar.set_message("compiling kernels");
        }
    }

    fn judged(&mut self, judged: &Judged) -> io::Result<()> {
        self.seen += 1;
        self.failed += usize::from(judged.class == Class::Failed);
        let shown = match judged.class {
            Class::Passed | Class::Skipped => self.verbosity == Verbosity::Verbose,
            Class::Failed | Class::UndeclaredSkip | Class::NoVerdict => true,
        };
        if shown {
            self.print(|out| write_judged(out, judged))?;
        }
        match &mut self.progress {
            Progress::Bar(bar) => {
                bar.set_message(format!("{} failed", self.failed));
                bar.inc(1);
            }
            Progress::Plain { last } if last.elapsed() >= PLAIN_PROGRESS => {
                *last = Instant::now();
                let (seen, planned, failed) = (self.seen, self.planned, self.failed);
                let elapsed = self.started.elapsed().as_secs();
                self.diagnose(&format!("{seen} of {planned} cases, {failed} failed, {elapsed} s"));
            }
            Progress::Plain { .. } | Progress::None => {}
        }
        Ok(())
    }

    fn finish(&mut self, finished: &Finished) -> io::Result<()> {
        if let Progress::Bar(bar) = &self.progress {
            bar.finish_and_clear();
        }
        self.progress = Progress::None;
        self.diagnose(&format!(
            "{:.1} s; worst share of the bound {:.2}",
            finished.seconds, finished.worst_share
        ));
        self.print(|out| {
            for shortfall in &finished.shortfalls {
                writeln!(out, "{YELLOW}NOT ENOUGH{YELLOW:#}  {shortfall}")?;
            }
            let reasons: Vec<String> =
                finished.skips.iter().map(|skip| format!("{} ({})", skip.cases, skip.reason)).collect();
            if !reasons.is_empty() {
                writeln!(out, "skipped: {}", reasons.join("; "))?;
            }
            write_capabilities(out, &finished.capabilities)?;
            let style = if finished.exit_code == 0 { GREEN } else { RED };
            let Finished { passed, failed, skipped, .. } = finished;
            writeln!(out, "{style}{passed} passed, {failed} failed, {skipped} skipped{style:#}")
        })
    }
}

/// The table of what a foreign kernel serves: what is right on one line for each kind, what is wrong on lines of its own.
///
/// # Errors
/// As the stream has them.
pub fn write_capabilities(out: &mut dyn Write, capabilities: &[Capability]) -> io::Result<()> {
    let width = capabilities.iter().map(|capability| parts(&capability.name).0.len()).max().unwrap_or(0);
    for kind in capabilities.chunk_by(|a, b| parts(&a.name).0 == parts(&b.name).0) {
        let right = kind.iter().filter(|capability| capability.failed == 0);
        let right: Vec<String> = right
            .map(|capability| format!("{} ({})", parts(&capability.name).1, capability.judged))
            .collect();
        let name = parts(&kind[0].name).0;
        if !right.is_empty() {
            writeln!(out, "{name:width$}  {GREEN}right{GREEN:#}  {}", right.join(", "))?;
        }
        for Capability { name: whole, judged, failed, .. } in kind.iter().filter(|it| it.failed > 0) {
            let item = parts(whole).1;
            writeln!(out, "{name:width$}  {RED}wrong{RED:#}  {item} ({failed} of {judged})")?;
        }
    }
    Ok(())
}

/// A capability's kind and what is special about it: `attention bf16 kv=` and `e4m3`, `with` and `softcap`.
fn parts(name: &str) -> (&str, &str) {
    let after = |mark: &str| name.find(mark).map(|at| name.split_at(at + mark.len()));
    after("kv=").or_else(|| after("head dim ")).or_else(|| name.split_once(' ')).unwrap_or((name, ""))
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}  {elapsed} (left: {eta})")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Writes a verdict as a person reads it: what is wrong, where, by how much, and how to run it again.
///
/// # Errors
/// As the stream has them.
pub fn write_judged(out: &mut dyn Write, judged: &Judged) -> io::Result<()> {
    let description = describe(&judged.verdict);
    let style = match judged.class {
        Class::Passed => GREEN,
        Class::Skipped => Style::new(),
        Class::Failed => RED,
        Class::UndeclaredSkip | Class::NoVerdict => YELLOW,
    };
    let (word, arm, device) = (judged.verdict.word(), &judged.arm, &judged.device);
    writeln!(out, "{style}{word}{style:#}  {arm} on {device}   {}", description.headline)?;
    if judged.class == Class::Passed {
        return writeln!(out, "  {} ({:.2} s)", judged.line, judged.seconds);
    }
    for line in &description.details {
        writeln!(out, "  {line}")?;
    }
    if !judged.comment.is_empty() {
        writeln!(out, "  case: {} ({})", judged.comment, judged.group)?;
    }
    writeln!(out, "  replay: {}", judged.replay)
}

impl Consumer for Terminal {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Started(started) => self.start(started),
            Event::Prepared { kernels, seconds } => {
                self.diagnose(&format!("{kernels} kernel instances ready after {seconds:.1} s"));
            }
            Event::CompileFailed { message, .. } => {
                self.print(|out| writeln!(out, "{RED}DOES NOT COMPILE{RED:#}  {message}"))?;
            }
            Event::Aborted { message } => anstream::eprintln!("{RED}error:{RED:#} {message}"),
            Event::Judged(judged) => self.judged(judged)?,
            Event::Finished(finished) => self.finish(finished)?,
        }
        Ok(())
    }
}
