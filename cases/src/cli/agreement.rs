//! `attest verify --record` and `--against simt`: what has been seen on a card.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use kernels::device::DeviceKind;
use kernels::source::SourceSet;

use super::Failure;
use crate::agreement::{AgreementReport, compare_devices};
use crate::devices;
use crate::events::Consumer;
use crate::executor::Executor;
use crate::report::{CardRecord, CardRecorder};
use crate::session::Item;

/// Differences that are printed; the count is always complete.
const SHOWN: usize = 20;

/// A consumer that writes the record of a run on the card.
pub(super) fn recorder(path: &Path, kind: DeviceKind) -> Result<Box<dyn Consumer>, Failure> {
    if kind != DeviceKind::Cuda {
        return Err(Failure::usage("--record is for runs on a card: add --device cuda"));
    }
    let card = devices::cuda_info().map_err(|error| Failure::surroundings(error.to_string()))?;
    Ok(Box::new(CardRecorder::new(path.to_owned(), card, &sources()?)))
}

fn sources() -> Result<SourceSet, Failure> {
    SourceSet::load()
        .map_err(|error| Failure::surroundings(format!("the kernel sources cannot be read: {error}")))
}

/// Compares the card with `simt` over the items.
pub(super) fn run(
    items: &[Item],
    kind: DeviceKind,
    executor: &(dyn Fn() -> Box<dyn Executor> + Sync),
    (jobs, limit): (usize, Duration),
    record: Option<&Path>,
) -> Result<u8, Failure> {
    if kind != DeviceKind::Cuda {
        return Err(Failure::surroundings(
            "--against simt compares a card with the CPU: there is no card here",
        ));
    }
    let report = compare_devices(items, [DeviceKind::Cuda, DeviceKind::Simt], executor, jobs, limit);
    print(&report);
    if let Some(path) = record {
        add_to_record(path, &report)?;
    }
    let compared: usize = report.arms.values().map(|arm| arm.cases).sum();
    let skipped = items.len() - compared;
    if skipped > 0 {
        println!("skipped: {skipped} (outside the support manifest, or a case that must be refused)");
    }
    println!(
        "{} passed, {} failed, {skipped} skipped",
        compared - report.differences.len(),
        report.differences.len()
    );
    Ok(match (compared, report.differences.len()) {
        (0, _) => 4,
        (_, 0) => 0,
        _ => 1,
    })
}

fn print(report: &AgreementReport) {
    for difference in report.differences.iter().take(SHOWN) {
        println!("DIFFERS  {}   {}", difference.arm, difference.what);
        println!("  replay: attest replay --arm {} '{}'", difference.arm, difference.line);
    }
    if report.differences.len() > SHOWN {
        println!("... and {} more", report.differences.len() - SHOWN);
    }
    for (name, arm) in &report.arms {
        let share = 100.0 * arm.identical_elements as f64 / arm.elements.max(1) as f64;
        println!(
            "{name:<16} {} of {} cases identical, {share:.4}% of {} elements",
            arm.identical_cases, arm.cases, arm.elements
        );
    }
}

fn add_to_record(path: &Path, report: &AgreementReport) -> Result<(), Failure> {
    let mut record = CardRecord::read(path).map_err(|error| {
        Failure::usage(format!("--record {}: {error}; make it without --against first", path.display()))
    })?;
    if record.is_stale(&sources()?) {
        return Err(Failure::usage(format!(
            "--record {} is of other kernel sources; make it anew first",
            path.display()
        )));
    }
    for (name, agreement) in &report.arms {
        record.arms.entry(name.clone()).or_default().against_simt = Some(*agreement);
    }
    Ok(record.write(path)?)
}

/// The committed records. In a checkout they are read from disk.
fn records() -> io::Result<Vec<CardRecord>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/gpu");
    let mut paths: Vec<_> = match std::fs::read_dir(&dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    paths.retain(|path| path.extension().is_some_and(|e| e == "json"));
    paths.sort();
    paths.iter().map(|path| CardRecord::read(path)).collect()
}

/// Shows what has been seen on cards. A record of other kernel sources is called stale.
pub(super) fn list_records(out: &mut impl Write) -> io::Result<()> {
    let sources = SourceSet::load()?;
    let records = records()?;
    if records.is_empty() {
        return writeln!(out, "no recorded run on a card");
    }
    for record in records {
        let state =
            if record.is_stale(&sources) { "stale: the kernels have changed since" } else { "current" };
        writeln!(out, "{}, {} ({state})", record.card.name, record.card.versions)?;
        for (name, arm) in &record.arms {
            let bits = arm.against_simt.map_or_else(String::new, |a| {
                let share = 100.0 * a.identical_elements as f64 / a.elements.max(1) as f64;
                format!(
                    ", bits as on simt in {} of {} cases ({share:.4}% of elements)",
                    a.identical_cases, a.cases
                )
            });
            writeln!(
                out,
                "  {name:<16} {} passed, {} failed, worst share of the bound {:.2}{bits}",
                arm.passed, arm.failed, arm.worst_share
            )?;
        }
    }
    Ok(())
}
