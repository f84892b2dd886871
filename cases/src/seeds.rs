//! The committed ledger of generated cases: which seeds have been judged where, so that the total grows and nobody judges
//! a seed twice.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::generate;

/// Folder of the ledger and of the cases that failed, from the root of a checkout.
pub const FOLDER: &str = "cases/regressions";
/// The ledger's name in its folder.
pub const LEDGER: &str = "seed-ledger.toml";
/// The name of the file with cases that failed, in the same folder.
pub const FAILED: &str = "generated.txt";

const HEADER: &str = "\
# Seeds of generated cases that have been judged, and how many verdicts there are in all. Written by
# `attest verify --generated N --record-seeds`, which starts after the last seed of its device.

";

/// A run of consecutive seeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedRun {
    /// `simt` or `cuda`.
    pub device: String,
    /// What the device is, where that is a choice: the card's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Version of the generator.
    pub generator: u32,
    /// First seed.
    pub first: u64,
    /// One past the last seed.
    pub end: u64,
    /// Cases with a verdict.
    pub judged: u64,
    /// Cases that failed.
    pub failed: u64,
}

/// Verdicts of all runs on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Total {
    /// Cases with a verdict.
    pub judged: u64,
    /// Cases that failed.
    pub failed: u64,
}

/// The ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedLedger {
    /// Totals per device.
    #[serde(default)]
    pub total: BTreeMap<String, Total>,
    /// All runs, in the order in which they were made.
    #[serde(default)]
    pub run: Vec<SeedRun>,
}

/// A ledger that cannot be read or written, or says something impossible.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not a ledger.
    #[error("{}: {message}", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// Some seeds are in the ledger already.
    #[error(
        "seeds {first}..{end} on {device}: some are in the ledger already; accepted: seeds from {next} on"
    )]
    Repeated {
        /// The device.
        device: String,
        /// First seed.
        first: u64,
        /// One past the last.
        end: u64,
        /// The first seed that is free, with all after it.
        next: u64,
    },
}

impl SeedLedger {
    /// Reads the ledger in a folder; an empty one if there is none yet.
    ///
    /// # Errors
    /// If it cannot be read, or is no ledger.
    pub fn load(folder: &Path) -> Result<Self, LedgerError> {
        let path = folder.join(LEDGER);
        match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text)
                .map_err(|error| LedgerError::Syntax { path, message: error.message().to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(LedgerError::File { path, source }),
        }
    }

    /// Writes the ledger into a folder, whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), LedgerError> {
        let path = folder.join(LEDGER);
        let body = toml::to_string(self)
            .map_err(|error| LedgerError::Syntax { path: path.clone(), message: error.to_string() })?;
        let write = || {
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            io::Write::write_all(&mut file, format!("{HEADER}{body}").as_bytes())?;
            file.persist(&path).map_err(|error| error.error)
        };
        write().map(|_| ()).map_err(|source| LedgerError::File { path: path.clone(), source })
    }

    /// The first seed after all that a device has judged.
    #[must_use]
    pub fn next(&self, device: &str) -> u64 {
        self.runs(device).map(|run| run.end).max().unwrap_or(0)
    }

    fn runs<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a SeedRun> {
        self.run.iter().filter(move |run| run.device == device && run.generator == generate::VERSION)
    }

    /// Adds a run. One that continues the last run on the same device is joined to it.
    ///
    /// # Errors
    /// If some of its seeds have been judged before.
    pub fn add(&mut self, new: SeedRun) -> Result<(), LedgerError> {
        if self.runs(&new.device).any(|run| run.first < new.end && new.first < run.end) {
            let next = self.next(&new.device);
            let SeedRun { device, first, end, .. } = new;
            return Err(LedgerError::Repeated { device, first, end, next });
        }
        let total = self.total.entry(new.device.clone()).or_default();
        total.judged += new.judged;
        total.failed += new.failed;
        let continues = |run: &&mut SeedRun| {
            (run.end, run.generator) == (new.first, new.generator)
                && (&run.device, &run.detail) == (&new.device, &new.detail)
        };
        match self.run.iter_mut().find(continues) {
            Some(run) => {
                run.end = new.end;
                run.judged += new.judged;
                run.failed += new.failed;
            }
            None => self.run.push(new),
        }
        Ok(())
    }

    /// What the ledger says that cannot be: overlapping runs, totals that do not add up.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        let mut rebuilt = Self::default();
        let added = |run: &SeedRun| rebuilt.add(run.clone()).err().map(|error| error.to_string());
        let mut found: Vec<String> = self.run.iter().filter_map(added).collect();
        let empty = self.run.iter().filter(|run| run.first >= run.end || run.failed > run.judged);
        found.extend(empty.map(|run| format!("{run:?} has no seed, or more failures than verdicts")));
        if found.is_empty() && rebuilt.total != self.total {
            found.push(format!("the totals are {:?}, the runs add up to {:?}", self.total, rebuilt.total));
        }
        found
    }
}

/// Appends failed cases to the file of regressions, one line each, as the catalogue reads them.
///
/// # Errors
/// If it cannot be written.
pub fn append_failed(folder: &Path, lines: &[String]) -> Result<(), LedgerError> {
    let path = folder.join(FAILED);
    let append = || {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(&path)?;
        lines.iter().try_for_each(|line| io::Write::write_all(&mut file, format!("{line}\n").as_bytes()))
    };
    append().map_err(|source| LedgerError::File { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(device: &str, first: u64, end: u64, failed: u64) -> SeedRun {
        SeedRun {
            device: device.to_owned(),
            detail: String::new(),
            generator: generate::VERSION,
            first,
            end,
            judged: end - first,
            failed,
        }
    }

    #[test]
    fn runs_join_and_totals_grow_per_device() {
        let mut ledger = SeedLedger::default();
        for new in [
            run("simt", 0, 100, 0),
            run("cuda", 0, 50, 1),
            run("simt", 100, 150, 2),
            run("simt", 400, 410, 0),
        ] {
            ledger.add(new).unwrap();
        }
        assert_eq!(ledger.run, [run("simt", 0, 150, 2), run("cuda", 0, 50, 1), run("simt", 400, 410, 0)]);
        assert_eq!(ledger.total["simt"], Total { judged: 160, failed: 2 });
        assert_eq!((ledger.next("simt"), ledger.next("cuda"), ledger.next("other")), (410, 50, 0));
        assert_eq!(ledger.contradictions(), Vec::<String>::new());
    }

    #[test]
    fn a_seed_is_not_judged_twice() {
        let mut ledger = SeedLedger::default();
        ledger.add(run("simt", 10, 20, 0)).unwrap();
        for (first, end) in [(10, 20), (0, 11), (19, 30), (12, 13), (0, 100)] {
            let error = ledger.add(run("simt", first, end, 0)).unwrap_err().to_string();
            assert!(error.contains("accepted: seeds from 20 on"), "{error}");
        }
        ledger.add(run("cuda", 10, 20, 0)).unwrap();
        ledger.add(run("simt", 0, 10, 0)).unwrap();
    }

    #[test]
    fn contradictions_are_named() {
        let mut ledger = SeedLedger::default();
        ledger.add(run("simt", 0, 10, 0)).unwrap();
        ledger.total.insert("simt".to_owned(), Total { judged: 11, failed: 0 });
        assert!(ledger.contradictions()[0].contains("totals"), "{:?}", ledger.contradictions());
        ledger.run.push(run("simt", 5, 15, 0));
        assert!(ledger.contradictions()[0].contains("already"), "{:?}", ledger.contradictions());
    }

    #[test]
    fn a_saved_ledger_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = SeedLedger::load(folder.path()).unwrap();
        assert_eq!(ledger, SeedLedger::default());
        ledger.add(run("simt", 0, 10, 3)).unwrap();
        ledger.save(folder.path()).unwrap();
        assert_eq!(SeedLedger::load(folder.path()).unwrap(), ledger);
        fs::write(folder.path().join(LEDGER), "total = 3").unwrap();
        assert!(SeedLedger::load(folder.path()).is_err());
    }
}
