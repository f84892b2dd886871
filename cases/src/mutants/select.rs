//! Choosing among mutants: by file, operator, changed lines, sample and shard.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sha2::{Digest, Sha256};

use super::change::Change;
use crate::shard::Shard;

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
    /// At most so many, drawn at random.
    pub sample: Option<usize>,
    /// At least so many: what is missing is drawn from all the others.
    pub at_least: usize,
    /// Seed of both draws.
    pub seed: u64,
    /// Only a part.
    pub shard: Option<Shard>,
}

impl Selection {
    /// The chosen mutants: in the order of their places, or in the order in which they were drawn, so that a run that
    /// ends early has tried a fair part. What is drawn only to fill up is nothing that `is_reviewed`: that it survives is known.
    #[must_use]
    pub fn apply(&self, changes: Vec<Change>, is_reviewed: &dyn Fn(&Change) -> bool) -> Vec<Change> {
        let listed = |list: &[String], value: &str| list.is_empty() || list.iter().any(|item| item == value);
        let (mut chosen, mut others): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(|change| {
            listed(&self.files, change.file())
                && listed(&self.operators, change.operator())
                && listed(&self.ids, &change.id())
                && self.touches(change)
        });
        if let Some(count) = self.sample {
            chosen = drawn(chosen, self.seed);
            chosen.truncate(count);
        }
        if let Some(shard) = self.shard {
            chosen = shard.of(chosen);
        }
        if chosen.len() < self.at_least {
            others.retain(|change| !is_reviewed(change));
            others = drawn(others, self.seed);
            others.truncate(self.at_least - chosen.len());
            chosen.append(&mut others);
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

/// Everything in random order. A mutant's rank follows from the seed and from what it changes, not from its line or from
/// how many others there are: after an edit somewhere else, the same sample is drawn again.
fn drawn(mut changes: Vec<Change>, seed: u64) -> Vec<Change> {
    let mut alike: HashMap<[u8; 32], u64> = HashMap::new();
    let mut rank = |change: &Change| {
        let nth = alike.entry(rank(change, seed, 0)).or_default();
        *nth += 1;
        rank(change, seed, *nth)
    };
    changes.sort_by_cached_key(|change| rank(change));
    changes
}

/// A hash of what the `nth` of several like changes changes.
fn rank(change: &Change, seed: u64, nth: u64) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(nth.to_le_bytes());
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    match change {
        Change::Launch(launch) => part(&launch.to_string()),
        Change::Kernel(mutant) => {
            for text in [&mutant.file, &mutant.function, &mutant.original, &mutant.replacement] {
                part(text);
            }
            part(mutant.operator.name());
        }
    }
    hash.finalize().into()
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
    use super::super::discover::mutants_of;
    use super::*;

    fn changes(text: &str) -> Vec<Change> {
        mutants_of("f.cu", text).unwrap().into_iter().map(Change::Kernel).collect()
    }

    fn what(changes: &[Change]) -> Vec<String> {
        let kernel = |change: &Change| match change {
            Change::Kernel(m) => format!("{} {} {}", m.function, m.original, m.replacement),
            Change::Launch(launch) => launch.to_string(),
        };
        changes.iter().map(kernel).collect()
    }

    const TEXT: &str =
        "int f(int a, int b) {\n    a = a + b;\n    a = a - b;\n    b = a * b;\n    return a + b;\n}\n";

    #[test]
    fn a_draw_is_stable_under_edits_elsewhere() {
        let select = |sample, seed| Selection { sample: Some(sample), seed, ..Selection::default() };
        let before = what(&select(5, 7).apply(changes(TEXT), &|_| false));
        assert_eq!(before.len(), 5);
        let moved = format!("int g(int c) {{\n    return c / 2;\n}}\n\n{TEXT}");
        let after: Vec<String> = what(&select(usize::MAX, 7).apply(changes(&moved), &|_| false));
        let of_f: Vec<String> = after.into_iter().filter(|m| m.starts_with('f')).take(5).collect();
        assert_eq!(of_f, before, "the same five, in the same order");
        assert_ne!(what(&select(5, 8).apply(changes(TEXT), &|_| false)), before, "another seed draws others");
    }

    #[test]
    fn what_is_missing_is_drawn_from_the_others() {
        let all = changes(TEXT);
        let ids = vec![all[3].id()];
        let few = Selection { ids, at_least: 4, ..Selection::default() }.apply(all.clone(), &|_| false);
        assert_eq!(few.len(), 4);
        assert_eq!(few[0], all[3], "what was asked for comes first");
        let distinct: BTreeSet<String> = few.iter().map(Change::id).collect();
        assert_eq!(distinct.len(), 4);
        let ids = vec![all[3].id()];
        let reviewed = |change: &Change| *change == few[1];
        let without = Selection { ids, at_least: 4, ..Selection::default() }.apply(all.clone(), &reviewed);
        assert!(without.len() == 4 && !without.contains(&few[1]), "it is known to survive");
        let enough = Selection { at_least: 4, ..Selection::default() }.apply(all.clone(), &|_| true);
        assert_eq!(enough, all);
    }

    #[test]
    fn a_diff_names_the_lines_it_changes() {
        let diff = "diff --git a/kernels/cuda/store.cu b/kernels/cuda/store.cu\n--- a/kernels/cuda/store.cu\n\
                    +++ b/kernels/cuda/store.cu\n@@ -10,3 +10,3 @@ f\n a\n-b\n+c\n d\n@@ -40,3 +40,2 @@\n e\n--- f\n g\n\
                    --- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-x\n+y\n";
        let lines = changed_lines(diff);
        assert_eq!(lines.keys().collect::<Vec<_>>(), ["store.cu"]);
        assert_eq!(lines["store.cu"].iter().copied().collect::<Vec<_>>(), [10, 11, 40, 41]);
    }
}
