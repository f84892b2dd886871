//! The reviewed file: survivors that no check can kill, each with the reason.
//!
//! An entry names a mutant by what it changes, not by its line number, so that edits elsewhere do not move it.

use std::sync::LazyLock;

use serde::Deserialize;

use super::mutant::Mutant;

const FILE: &str = include_str!("../../mutants/reviewed.toml");

/// One explained survivor, or several that differ only in what is left open.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The kernel file.
    pub file: String,
    /// The function.
    pub function: String,
    /// The line of the file that the change starts in, blanks at its ends left out. One that ends with `…` need only start so.
    pub line: String,
    /// Name of the operator, or all of them.
    #[serde(default)]
    pub operator: Option<String>,
    /// What is replaced; anything if left out.
    #[serde(default)]
    pub original: Option<String>,
    /// What replaces it; anything if left out.
    #[serde(default)]
    pub replacement: Option<String>,
    /// Why nothing can notice.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reviewed {
    #[serde(default)]
    equivalent: Vec<Entry>,
}

static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let file: Reviewed = toml::from_str(FILE).expect("the embedded file parses: a test reads it");
    file.equivalent
});

/// Every entry.
#[must_use]
pub fn entries() -> &'static [Entry] {
    &ENTRIES
}

impl Entry {
    /// Whether the entry is about a mutant of a file with this text.
    #[must_use]
    pub fn explains(&self, mutant: &Mutant, text: &str) -> bool {
        let line = text.lines().nth(mutant.start.line - 1).unwrap_or("").trim();
        let line_fits = match self.line.strip_suffix('…') {
            Some(start) => line.starts_with(start),
            None => line == self.line,
        };
        let fits = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|w| w == found);
        self.file == mutant.file
            && self.function == mutant.function
            && line_fits
            && fits(&self.operator, mutant.operator.name())
            && fits(&self.original, &mutant.original)
            && fits(&self.replacement, &mutant.replacement)
    }
}

/// The reason why a mutant may survive, if there is one.
#[must_use]
pub fn reason(mutant: &Mutant, text: &str) -> Option<&'static str> {
    entries().iter().find(|entry| entry.explains(mutant, text)).map(|entry| entry.why.as_str())
}

#[cfg(test)]
mod tests {
    use kernels::source::SourceSet;

    use super::super::discover::discover;
    use super::*;

    /// An entry about nothing is a reason that no longer holds.
    #[test]
    fn every_entry_is_about_a_mutant_and_says_why() {
        let sources = SourceSet::embedded();
        let mutants = discover(&sources).unwrap();
        for entry in entries() {
            let about = |m: &Mutant| entry.explains(m, sources.get(&m.file).unwrap());
            assert!(mutants.iter().any(about), "no mutant fits {entry:?}");
            assert!(entry.why.len() > 20, "{entry:?} gives no reason");
        }
    }
}
