//! `attest list`.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use kernels::arm::Arm;
use kernels::device::{DeviceInfo, DeviceKind};

use super::Failure;
use crate::catalogue::{self, Entry, Tier};
use crate::devices;
use crate::executor::DeviceSpec;
use crate::filter::Filter;
use crate::run::STORE_ARM;
use crate::support;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest list                        an overview
  attest list cases 'kv=e5m2'        case lines with tier, group and comment
  attest list arms                   what each arm does and what it does not serve
  attest list devices                what can be used here, and what cannot and why
  attest list records                what has been seen on cards, and whether it is stale";

/// Show what there is.
#[derive(Debug, Args)]
pub(super) struct List {
    /// What to show. Default: arms, devices, and the number of cases.
    what: Option<What>,
    /// Show only cases that match (as for verify).
    filter: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Case lines.
    Cases,
    /// Arms and what each supports.
    Arms,
    /// Devices.
    Devices,
    /// Recorded runs on cards, and whether the kernels have changed since.
    Records,
}

impl List {
    pub fn run(self) -> Result<u8, Failure> {
        let entries = catalogue::entries().map_err(|error| Failure::surroundings(error.to_string()))?;
        let mut out = anstream::stdout().lock();
        let written = match self.what {
            Some(What::Cases) => self.cases(&entries, &mut out),
            Some(What::Arms) => arms(&mut out),
            Some(What::Devices) => list_devices(&mut out),
            Some(What::Records) => super::agreement::list_records(&mut out),
            None => overview(&entries, &mut out),
        };
        match written {
            // Whoever reads the list may stop before its end.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
            other => other.map(|()| 0).map_err(Failure::from),
        }
    }

    fn cases(&self, entries: &[Entry], out: &mut impl Write) -> io::Result<()> {
        let filters: Vec<Filter> = self.filter.iter().map(|text| Filter::new(text)).collect();
        for entry in entries {
            if filters.iter().all(|filter| filter.matches(&entry.case, entry.group)) {
                let (tier, case) = (entry.tier.name(), &entry.case);
                let flags: Vec<String> = case.flags().iter().map(ToString::to_string).collect();
                writeln!(out, "{case}")?;
                writeln!(
                    out,
                    "    {} {tier} {}: {} [{}]",
                    case.id(),
                    entry.group,
                    entry.comment,
                    flags.join(" ")
                )?;
            }
        }
        Ok(())
    }
}

fn arms(out: &mut impl Write) -> io::Result<()> {
    let store =
        (STORE_ARM, "reshape_and_cache: f32, bf16 or f16 rows into a cache of any format, slot -1 skipped");
    let all = Arm::ALL.iter().map(|arm| (arm.name(), arm.summary())).chain([store]);
    for (name, summary) in all {
        writeln!(out, "{name:16} {summary}")?;
        if let Some(support) = support::manifests().iter().find(|support| support.name == name) {
            writeln!(out, "{:16} serves: {}", "", support.in_words())?;
        }
    }
    Ok(())
}

fn list_devices(out: &mut impl Write) -> io::Result<()> {
    for kind in [DeviceKind::Cuda, DeviceKind::Simt] {
        let spec = DeviceSpec { kind, checked: true, schedule: None };
        let name = kind.name();
        match devices::open(&spec).map(|device| device.info()) {
            Ok(info) => writeln!(out, "{name:6} available: {}", facts(&info))?,
            Err(error) => {
                let text = error.to_string();
                writeln!(out, "{name:6} not available: {}", text.lines().next().unwrap_or_default())?;
            }
        }
    }
    Ok(())
}

fn facts(info: &DeviceInfo) -> String {
    let (major, minor) = info.capability;
    format!(
        "{}, capability {major}.{minor}, {} multiprocessors, {} bytes of shared memory per block, {}",
        info.name, info.multiprocessors, info.max_shared_bytes, info.versions
    )
}

fn overview(entries: &[Entry], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "arms")?;
    arms(out)?;
    writeln!(out, "\ndevices")?;
    list_devices(out)?;
    writeln!(out, "\ncases")?;
    for tier in [Tier::Smoke, Tier::Standard, Tier::Full] {
        let cases = entries.iter().filter(|entry| entry.tier <= tier).count();
        let minimum: Vec<String> =
            catalogue::minimum(tier).into_iter().map(|(arm, n)| format!("{n} on {arm}")).collect();
        let least =
            if minimum.is_empty() { String::new() } else { format!(" (at least {})", minimum.join(", ")) };
        writeln!(out, "{:9} {cases} cases{least}", tier.name())?;
    }
    Ok(())
}
