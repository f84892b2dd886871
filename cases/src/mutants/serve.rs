//! The worker's side: runs jobs on a device whose kernels or launches carry one mutant.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use kernels::device::{Device, DeviceKind, DeviceRef, DeviceResult};
use kernels::simt::{Mode, Schedule, SimtDevice, SimtOptions};
use kernels::source::SourceSet;

use super::launch::{LaunchMutant, MutatingDevice};
use crate::executor::device_side::Devices;
use crate::executor::protocol::{Reply, Status, read_job, write_reply};
use crate::executor::{DeviceSpec, Job, PoolUse};

/// What the worker of one mutant runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Directory with every kernel source as the run found it.
    pub kernels: PathBuf,
    /// A file to replace: its name in the kernel directory, and where its changed text lies.
    pub overlay: Option<(String, PathBuf)>,
    /// A mistake in launches.
    pub launch: Option<LaunchMutant>,
}

impl Setup {
    /// The same as arguments of a worker process.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> =
            vec!["mutants".into(), "--serve".into(), self.kernels.clone().into()];
        if let Some((name, path)) = &self.overlay {
            arguments.extend(["--serve-overlay".into(), name.into(), path.into()]);
        }
        if let Some(launch) = &self.launch {
            arguments.extend(["--serve-launch".into(), launch.to_string().into()]);
        }
        arguments
    }

    /// The kernel sources with the overlay on top.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn sources(&self) -> io::Result<SourceSet> {
        let sources = SourceSet::from_dir(&self.kernels)?;
        match &self.overlay {
            Some((name, path)) => Ok(sources.with_file(name, &std::fs::read_to_string(path)?)),
            None => Ok(sources),
        }
    }
}

type Opened = (Devices, Option<Arc<MutatingDevice<dyn Device>>>);

/// Serves jobs from `input` until it ends.
///
/// # Errors
/// When a pipe breaks, a message is malformed or the kernel sources cannot be read.
pub fn serve(setup: &Setup, input: impl Read, mut output: impl Write) -> io::Result<()> {
    let sources = setup.sources()?;
    let mut input = BufReader::new(input);
    let mut opened: HashMap<DeviceSpec, Opened> = HashMap::new();
    while let Some(job) = read_job(&mut input)? {
        let reply = match device(setup, &sources, &job, &mut opened) {
            Ok((devices, mutating)) => {
                if let Some(mutating) = mutating {
                    mutating.begin_call(job.buffers.len());
                }
                devices.run(&job)
            }
            Err(error) => failed(&error.to_string()),
        };
        write_reply(&mut output, &reply)?;
    }
    Ok(())
}

fn failed(message: &str) -> Reply {
    let status = Status::Environment { message: message.to_owned() };
    Reply { status, launches: 0, pool: PoolUse::default(), buffers: Vec::new() }
}

fn device<'a>(
    setup: &Setup,
    sources: &SourceSet,
    job: &Job,
    opened: &'a mut HashMap<DeviceSpec, Opened>,
) -> DeviceResult<&'a mut Opened> {
    if !opened.contains_key(&job.device) {
        let new = open(setup, sources, &job.device)?;
        opened.insert(job.device.clone(), new);
    }
    Ok(opened.get_mut(&job.device).expect("inserted above"))
}

fn open(setup: &Setup, sources: &SourceSet, spec: &DeviceSpec) -> DeviceResult<Opened> {
    debug_assert_eq!(spec.kind, DeviceKind::Simt, "mutants are tried on the CPU");
    let mut options = SimtOptions::new(sources.clone());
    options.mode = if spec.checked { Mode::Checked } else { Mode::Fast };
    options.schedule = spec.schedule.map_or(Schedule::Forward, Schedule::Random);
    let device: DeviceRef = SimtDevice::new(options)?;
    Ok(match &setup.launch {
        None => (Devices::with(spec.clone(), device), None),
        Some(launch) => {
            let mutating = Arc::new(MutatingDevice::new(device, launch.clone()));
            (Devices::with(spec.clone(), mutating.clone()), Some(mutating))
        }
    })
}
