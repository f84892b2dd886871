//! What a person sees while mutants are tried: a bar with counts and the time left, or plain lines.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::outcome::Counts;

/// Distance of plain progress lines.
const PLAIN_PROGRESS: Duration = Duration::from_secs(20);

/// Progress on standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    last: Mutex<Instant>,
    start: Instant,
}

impl Progress {
    /// A bar where standard error is a terminal and `CI` is not set, else plain lines; nothing if `quiet`.
    pub fn new(quiet: bool) -> Self {
        let on_terminal = !quiet && io::stderr().is_terminal() && std::env::var_os("CI").is_none();
        let bar = on_terminal.then(|| {
            let bar = ProgressBar::new(0);
            let style =
                ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed} elapsed, {eta} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar, quiet, last: Mutex::new(Instant::now()), start: Instant::now() }
    }

    /// A line of diagnosis.
    pub fn say(&self, text: &str) {
        match &self.bar {
            _ if self.quiet => {}
            Some(bar) => bar.suspend(|| anstream::eprintln!("{text}")),
            None => anstream::eprintln!("{text}"),
        }
    }

    /// So many of so many mutants are done.
    pub fn mutants(&self, counts: &Counts, done: usize, of: usize) {
        self.step(done, of, &counts.in_words());
    }

    fn step(&self, done: usize, of: usize, message: &dyn std::fmt::Display) {
        if let Some(bar) = &self.bar {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
            bar.set_message(message.to_string());
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.quiet && last.elapsed() >= PLAIN_PROGRESS {
            *last = Instant::now();
            let elapsed = self.start.elapsed().as_secs();
            anstream::eprintln!("{done}/{of}  {message}  {elapsed} s");
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
