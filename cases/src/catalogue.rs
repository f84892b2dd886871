//! The committed cases: data files with one case a line.
//!
//! A line is a tier, a case line, and ` # ` with a comment that says what the case is for. Lines that start with `#` and blank
//! lines are for readers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::case::{Case, ParseError};

/// How much is run. Each tier contains the ones before it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// At most 60 cases in about ten seconds.
    Smoke,
    /// What a gate runs.
    Standard,
    /// Everything.
    Full,
}

impl Tier {
    const ALL: [Self; 3] = [Self::Smoke, Self::Standard, Self::Full];

    /// The word in catalogue files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Standard => "standard",
            Self::Full => "full",
        }
    }
}

/// One line of the catalogue.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The smallest tier that runs it.
    pub tier: Tier,
    /// The file it stands in, without its extension.
    pub group: &'static str,
    /// What it is for.
    pub comment: String,
    /// The case.
    pub case: Case,
}

/// A line of a catalogue file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// The line does not start with a tier.
    #[error("{file}, line {line}: tier is `{value}`; accepted: smoke, standard, full")]
    Tier {
        /// Which file.
        file: &'static str,
        /// Line from 1.
        line: usize,
        /// What stands there.
        value: String,
    },
    /// The line has no comment.
    #[error("{file}, line {line}: comment is missing; accepted: ` # ` and what the case is for")]
    Comment {
        /// Which file.
        file: &'static str,
        /// Line from 1.
        line: usize,
    },
    /// The case line does not parse.
    #[error("{file}, line {line}: {source}")]
    Case {
        /// Which file.
        file: &'static str,
        /// Line from 1.
        line: usize,
        /// Why.
        source: ParseError,
    },
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../catalogue/", $name, ".txt")))),*];
    };
}
files!(
    "upstream",
    "models",
    "formats",
    "layouts",
    "pages",
    "dims",
    "heads",
    "options",
    "windows",
    "batches",
    "probes",
    "scales",
    "magnitudes",
    "real",
    "metamorphic",
    "codes",
    "store",
    "invalid",
);
/// Cases that failed once, in the same form.
const REGRESSIONS: (&str, &str) = ("regressions", include_str!("../regressions/generated.txt"));

const MINIMUM: &str = include_str!("../catalogue/minimum.toml");

/// Every committed case: those of lower tiers first, else in file order.
///
/// # Errors
/// The first line that cannot be read. The embedded files are read by a test, so that this cannot happen in a release.
pub fn entries() -> Result<Vec<Entry>, CatalogueError> {
    let mut all = Vec::new();
    for (name, text) in FILES.iter().chain([&REGRESSIONS]) {
        for (index, line) in text.lines().enumerate() {
            if !line.trim().is_empty() && !line.starts_with('#') {
                all.push(entry(name, index + 1, line)?);
            }
        }
    }
    all.sort_by_key(|entry| entry.tier);
    Ok(all)
}

fn entry(file: &'static str, line: usize, text: &str) -> Result<Entry, CatalogueError> {
    let (case, comment) = text.split_once(" # ").ok_or(CatalogueError::Comment { file, line })?;
    let (tier, case) = case.trim().split_once(' ').unwrap_or((case, ""));
    let found = Tier::ALL.into_iter().find(|t| t.name() == tier);
    let tier = found.ok_or_else(|| CatalogueError::Tier { file, line, value: tier.to_owned() })?;
    let case = case.parse().map_err(|source| CatalogueError::Case { file, line, source })?;
    Ok(Entry { tier, group: file, comment: comment.trim().to_owned(), case })
}

/// Fewest cases that a run of a tier must judge, per arm.
#[must_use]
pub fn minimum(tier: Tier) -> BTreeMap<String, usize> {
    let mut tiers: BTreeMap<String, BTreeMap<String, usize>> =
        toml::from_str(MINIMUM).expect("the embedded minimum parses: a test reads it");
    tiers.remove(tier.name()).unwrap_or_default()
}
