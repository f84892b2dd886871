//! Choosing among mutants: by file, operator, changed lines, sample and shard.

use std::collections::{BTreeMap, BTreeSet};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::change::Change;

/// The K-th of N parts, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// K.
    pub index: usize,
    /// N.
    pub count: usize,
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match parsed {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Self { index, count }),
            _ => Err("accepted: K/N with 1 ≤ K ≤ N".to_owned()),
        }
    }
}

/// Which mutants a run is about.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only these files; all if empty.
    pub files: Vec<String>,
    /// Only these operators; all if empty.
    pub operators: Vec<String>,
    /// Only these mutants; all if empty.
    pub ids: Vec<String>,
    /// Only mutants that touch these lines, by file.
    pub lines: Option<BTreeMap<String, BTreeSet<usize>>>,
    /// At most so many, drawn with this seed.
    pub sample: Option<(usize, u64)>,
    /// Only a part.
    pub shard: Option<Shard>,
}

impl Selection {
    /// The chosen mutants, in their order.
    #[must_use]
    pub fn apply(&self, changes: Vec<Change>) -> Vec<Change> {
        let listed = |list: &[String], value: &str| list.is_empty() || list.iter().any(|item| item == value);
        let mut chosen: Vec<Change> = changes
            .into_iter()
            .filter(|change| listed(&self.files, change.file()))
            .filter(|change| listed(&self.operators, change.operator()))
            .filter(|change| listed(&self.ids, &change.id()))
            .filter(|change| self.touches(change))
            .collect();
        if let Some((count, seed)) = self.sample {
            chosen = sampled(chosen, count, seed);
        }
        if let Some(Shard { index, count }) = self.shard {
            chosen = chosen.into_iter().skip(index - 1).step_by(count).collect();
        }
        chosen
    }

    fn touches(&self, change: &Change) -> bool {
        let Some(lines) = &self.lines else { return true };
        let Change::Kernel(mutant) = change else { return false };
        let changed = lines.get(&mutant.file);
        changed.is_some_and(|set| set.range(mutant.start.line..=mutant.end.line).next().is_some())
    }
}

/// A sample without replacement, in the original order.
fn sampled(changes: Vec<Change>, count: usize, seed: u64) -> Vec<Change> {
    let mut indices: Vec<usize> = (0..changes.len()).collect();
    indices.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    let kept: BTreeSet<usize> = indices.into_iter().take(count).collect();
    changes
        .into_iter()
        .enumerate()
        .filter(|(index, _)| kept.contains(index))
        .map(|(_, change)| change)
        .collect()
}

/// Lines that a unified diff adds or changes, by the name of the kernel file.
///
/// A hunk that only removes lines counts as a change of the line before and the line after.
#[must_use]
pub fn changed_lines(diff: &str) -> BTreeMap<String, BTreeSet<usize>> {
    let mut changed: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let mut file = None;
    let mut hunk = Hunk::default();
    for text in diff.lines() {
        if hunk.is_over() {
            if let Some(path) = text.strip_prefix("+++ ") {
                let path = path.split('\t').next().unwrap_or(path).trim();
                file = is_kernel(path).then(|| path.rsplit('/').next().unwrap_or(path).to_owned());
            } else if let Some(header) = text.strip_prefix("@@ -") {
                hunk = Hunk::parse(header).unwrap_or_default();
            }
            continue;
        }
        let touched = hunk.step(text);
        if let Some(file) = &file {
            changed.entry(file.clone()).or_default().extend(touched);
        }
    }
    changed
}

/// What is still to come of a hunk. Counting is the only way to tell the header `--- a/file` from a removed line `-- a/file`.
#[derive(Debug, Default)]
struct Hunk {
    old_left: usize,
    new_left: usize,
    line: usize,
}

impl Hunk {
    /// `1,5 +7,6 @@ …`: 5 old lines, 6 new ones from line 7 on. A count that is left out is 1.
    fn parse(header: &str) -> Option<Self> {
        let mut sides = header.split(' ');
        let (_, old_left) = Self::side(sides.next()?)?;
        let (line, new_left) = Self::side(sides.next()?.strip_prefix('+')?)?;
        Some(Self { old_left, new_left, line })
    }

    fn side(text: &str) -> Option<(usize, usize)> {
        match text.split_once(',') {
            Some((first, count)) => Some((first.parse().ok()?, count.parse().ok()?)),
            None => Some((text.parse().ok()?, 1)),
        }
    }

    fn is_over(&self) -> bool {
        self.old_left == 0 && self.new_left == 0
    }

    /// The new file's lines that this line of the hunk changes.
    fn step(&mut self, text: &str) -> Vec<usize> {
        match text.chars().next() {
            Some('+') => {
                self.new_left = self.new_left.saturating_sub(1);
                self.line += 1;
                vec![self.line - 1]
            }
            Some('-') => {
                self.old_left = self.old_left.saturating_sub(1);
                vec![self.line.saturating_sub(1).max(1), self.line]
            }
            // "\ No newline at end of file" is no line.
            Some('\\') => Vec::new(),
            _ => {
                self.old_left = self.old_left.saturating_sub(1);
                self.new_left = self.new_left.saturating_sub(1);
                self.line += 1;
                Vec::new()
            }
        }
    }
}

fn is_kernel(path: &str) -> bool {
    path.contains("kernels/cuda/") && (path.ends_with(".cu") || path.ends_with(".cuh"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_names_the_lines_it_changes() {
        let diff = "diff --git a/kernels/cuda/store.cu b/kernels/cuda/store.cu\n--- a/kernels/cuda/store.cu\n\
                    +++ b/kernels/cuda/store.cu\n@@ -10,3 +10,3 @@ f\n a\n-b\n+c\n d\n@@ -40,3 +40,2 @@\n e\n--- f\n g\n\
                    --- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-x\n+y\n";
        let lines = changed_lines(diff);
        assert_eq!(lines.keys().collect::<Vec<_>>(), ["store.cu"]);
        assert_eq!(lines["store.cu"].iter().copied().collect::<Vec<_>>(), [10, 11, 40, 41]);
    }

    #[test]
    fn shards_are_written_k_of_n() {
        assert_eq!("2/3".parse(), Ok(Shard { index: 2, count: 3 }));
        for wrong in ["0/3", "4/3", "1", "a/b", "1/0"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
