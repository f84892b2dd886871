//! `attest verify --shares`: how much of the bound each arm uses, against the record.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::Args;

use super::Failure;
use crate::events::{Consumer, Event};
use crate::shares::{ShareMeter, ShareRecord};

/// The record of worst shares.
#[derive(Debug, Args)]
pub(super) struct ShareOptions {
    /// Fail if the worst share of the bound of any arm is not within a factor of two of what this file records.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["filter", "impostors", "against", "budget", "shard"])]
    shares: Option<PathBuf>,
    /// Write the worst shares to the file instead.
    #[arg(long, requires = "shares")]
    record_shares: bool,
}

/// A meter that can be read after the run that it was part of.
#[derive(Clone, Default)]
pub(super) struct Meter(Rc<RefCell<ShareMeter>>);

impl Consumer for Meter {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        self.0.borrow_mut().take(event)
    }
}

impl ShareOptions {
    /// A meter, if shares are asked for.
    pub fn meter(&self) -> Option<Meter> {
        self.shares.is_some().then(Meter::default)
    }

    /// Compares or records what the meter saw in a run named `run`. Returns the exit code in place of `code`.
    pub fn settle(&self, meter: Option<&Meter>, run: &str, code: u8) -> Result<u8, Failure> {
        let (Some(path), Some(meter)) = (&self.shares, meter) else { return Ok(code) };
        let seen = meter.0.borrow().shares.clone();
        let mut record = read(path)?;
        if self.record_shares {
            if code == 0 {
                record.runs.insert(run.to_owned(), seen);
                write(path, &record)?;
            }
            return Ok(code);
        }
        let drifts = record.drifts(run, &seen);
        for drift in &drifts {
            anstream::eprintln!("DRIFT  {drift}");
        }
        Ok(if code == 0 && !drifts.is_empty() { 1 } else { code })
    }
}

const HEADER: &str = "\
# Worst share of the error bound that each arm used, by device and tier. A share above 1 is a failure; one that is not within
# a factor of two of this record is a change to look at. Written by `attest verify --shares FILE --record-shares`.

";

fn read(path: &Path) -> Result<ShareRecord, Failure> {
    let failed = |what: &dyn std::fmt::Display| Failure::surroundings(format!("{}: {what}", path.display()));
    match std::fs::read_to_string(path) {
        Ok(text) => ShareRecord::parse(&text).map_err(|error| failed(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ShareRecord::default()),
        Err(error) => Err(failed(&error)),
    }
}

fn write(path: &Path, record: &ShareRecord) -> Result<(), Failure> {
    let failed = |what: &dyn std::fmt::Display| Failure::surroundings(format!("{}: {what}", path.display()));
    let body = toml::to_string(record).map_err(|error| failed(&error))?;
    std::fs::write(path, format!("{HEADER}{body}")).map_err(|error| failed(&error))
}
