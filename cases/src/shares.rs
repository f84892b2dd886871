//! The committed record of how much of the error bound each arm uses: a correct kernel that starts to use twice as much, or
//! half, has changed in a way that somebody should look at.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};

use crate::events::{Consumer, Event};
use crate::verdict::Verdict;

/// Largest factor between the recorded share and the one seen.
pub const DRIFT: f64 = 2.0;

/// Worst share of the bound by arm.
pub type Shares = BTreeMap<String, f64>;

/// The record: by device and tier (`simt-smoke`), then by arm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShareRecord {
    /// Worst shares.
    #[serde(flatten)]
    pub runs: BTreeMap<String, Shares>,
}

impl ShareRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// If the text is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
    }

    /// Arms whose worst share is not within a factor of [`DRIFT`] of the recorded one, in words; arms that are missing on
    /// either side count as well.
    #[must_use]
    pub fn drifts(&self, run: &str, seen: &Shares) -> Vec<String> {
        let Some(recorded) = self.runs.get(run) else {
            return vec![format!("nothing is recorded for {run}")];
        };
        let mut found = Vec::new();
        for (arm, share) in seen {
            match recorded.get(arm) {
                None => found.push(format!("{arm} used {share:.3} of its bound; nothing is recorded")),
                Some(before) if *share > before * DRIFT || *share < before / DRIFT => {
                    found.push(format!("{arm} used {share:.3} of its bound; {before:.3} is recorded"));
                }
                Some(_) => {}
            }
        }
        let missing = recorded.keys().filter(|arm| !seen.contains_key(*arm));
        found.extend(missing.map(|arm| format!("{arm} is recorded, but was not judged")));
        found
    }
}

/// Collects the worst share of every arm from the events of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShareMeter {
    /// What was seen so far.
    pub shares: Shares,
}

impl Consumer for ShareMeter {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        if let Event::Judged(judged) = event
            && let Verdict::Pass { worst_share } = judged.verdict
        {
            let worst = self.shares.entry(judged.arm.clone()).or_insert(0.0);
            *worst = worst.max(worst_share);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(arms: &[(&str, f64)]) -> Shares {
        arms.iter().map(|(arm, share)| ((*arm).to_owned(), *share)).collect()
    }

    #[test]
    fn a_factor_of_two_either_way_is_a_drift() {
        let record =
            ShareRecord { runs: BTreeMap::from([("simt-smoke".to_owned(), shares(&[("mma", 0.4)]))]) };
        for (share, drifts) in [(0.4, 0), (0.79, 0), (0.21, 0), (0.81, 1), (0.19, 1), (0.0, 1)] {
            assert_eq!(record.drifts("simt-smoke", &shares(&[("mma", share)])).len(), drifts, "{share}");
        }
        assert_eq!(record.drifts("simt-smoke", &shares(&[("mma", 0.4), ("scalar", 0.1)])).len(), 1);
        assert_eq!(record.drifts("simt-smoke", &shares(&[])), ["mma is recorded, but was not judged"]);
        assert_eq!(record.drifts("simt-full", &shares(&[])), ["nothing is recorded for simt-full"]);
    }
}
