//! What a run tries: a changed kernel text or a changed launch.

use std::collections::BTreeMap;

use kernels::source::SourceSet;

use super::checks::Check;
use super::discover::{DiscoverError, discover};
use super::launch::{LaunchChange, LaunchMutant};
use super::mutant::Mutant;

/// One mutant of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Of a kernel's text.
    Kernel(Mutant),
    /// Of how a kernel is launched.
    Launch(LaunchMutant),
}

/// The name under which launch mutants count as a file.
pub const LAUNCH_FILE: &str = "launch";

impl Change {
    /// Its name: what `--mutant` takes.
    #[must_use]
    pub fn id(&self) -> String {
        match self {
            Self::Kernel(mutant) => mutant.id.clone(),
            Self::Launch(launch) => launch.to_string(),
        }
    }

    /// The kernel file, or `launch`.
    #[must_use]
    pub fn file(&self) -> &str {
        match self {
            Self::Kernel(mutant) => &mutant.file,
            Self::Launch(_) => LAUNCH_FILE,
        }
    }

    /// Name of the operator.
    #[must_use]
    pub fn operator(&self) -> &'static str {
        match self {
            Self::Kernel(mutant) => mutant.operator.name(),
            Self::Launch(launch) => launch.change.name(),
        }
    }

    /// The change on one line.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Kernel(mutant) => mutant.describe(),
            Self::Launch(launch) => {
                format!("launch of {}: {} [{}]", launch.entry, launch.change.summary(), launch.change.name())
            }
        }
    }
}

/// Kernels that only measure: no result of theirs is judged, so no check could notice.
const MEASURING: &[&str] = &["peak.cu"];

/// Kernels whose calls take scratch.
const SCRATCH_ENTRIES: &[&str] = &["dequantise_dense", "combine_splits"];

/// Every mutant there is: of all kernel files whose results are judged, and of the launches that the checks make.
///
/// # Errors
/// When a kernel file cannot be parsed.
pub fn all(sources: &SourceSet, checks: &[Check]) -> Result<Vec<Change>, DiscoverError> {
    let judged = discover(sources)?.into_iter().filter(|mutant| !MEASURING.contains(&mutant.file.as_str()));
    let mut changes: Vec<Change> = judged.map(Change::Kernel).collect();
    let kernels: BTreeMap<&str, &str> =
        checks.iter().flat_map(|check| &check.kernels).map(|kernel| (kernel.entry, kernel.file)).collect();
    for (entry, file) in kernels {
        let takes_scratch = SCRATCH_ENTRIES.contains(&entry);
        // A kernel without dynamic shared memory is asked for none: there is nothing to take from.
        let shares = sources.get(file).is_some_and(|text| text.contains("ATTEST_SHARED("));
        let fits = |change: &LaunchChange| match change {
            LaunchChange::SharedLess => shares,
            change => takes_scratch || !change.is_of_scratch(),
        };
        let fitting = LaunchChange::ALL.iter().copied().filter(fits);
        changes
            .extend(fitting.map(|change| Change::Launch(LaunchMutant { entry: entry.to_owned(), change })));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use kernels::source::KernelSpec;

    use super::*;
    use crate::session::Item;

    #[test]
    fn launches_are_changed_in_what_they_have() {
        let kernels = [
            ("store.cu", "reshape_and_cache"),
            ("scalar.cu", "scalar_attention"),
            ("combine.cu", "combine_splits"),
        ];
        let line = "prefill f32 kv=f32 h1/1 d8 page1 NHD q=[1] kv=[1] seed=0";
        let item = Item {
            case: line.parse().unwrap(),
            arm: String::new(),
            group: String::new(),
            comment: String::new(),
        };
        let kernels = kernels.map(|(file, entry)| KernelSpec { file, entry, defines: Vec::new() });
        let check = Check { item, kernels: kernels.to_vec(), chosen: true };
        let changes = all(&SourceSet::embedded(), &[check]).unwrap();
        let made = |entry: &str, change| {
            changes.contains(&Change::Launch(LaunchMutant { entry: entry.to_owned(), change }))
        };
        let entries = ["reshape_and_cache", "scalar_attention", "combine_splits"];
        assert_eq!(entries.map(|entry| made(entry, LaunchChange::GridLess)), [true, true, true]);
        assert_eq!(entries.map(|entry| made(entry, LaunchChange::SharedLess)), [false, true, true]);
        assert_eq!(entries.map(|entry| made(entry, LaunchChange::ScratchKept)), [false, false, true]);
    }
}
