//! Choosing cases by text.

use crate::case::Case;

/// A filter: a substring of the case line, or terms that must all occur.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(String);

impl Filter {
    /// A filter from what the user wrote.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// Whether a case of a group is chosen.
    #[must_use]
    pub fn matches(&self, case: &Case, group: &str) -> bool {
        let line = case.to_string();
        line.contains(&self.0) || self.0.split_whitespace().all(|term| term_matches(term, case, &line, group))
    }
}

fn term_matches(term: &str, case: &Case, line: &str, group: &str) -> bool {
    match term.split_once('=') {
        Some(("flag", name)) => case.flags().iter().any(|flag| flag.to_string() == name),
        Some(("group", name)) => group == name,
        Some(("id", id)) => case.id() == id,
        _ => line.split_whitespace().any(|word| word == term),
    }
}
