//! Where an arm's time goes: a device that puts an event on either side of everything it queues.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kernels::device::{
    Device, DevicePtr, DeviceRef, DeviceResult, EventId, KernelId, LaunchConfig, StreamId,
};
use kernels::launch::paged_attention_with;
use kernels::source::KernelSpec;
use serde::{Deserialize, Serialize};

use super::data::Data;
use super::timing::knobs;
use super::{ArmRun, BenchError};

/// Calls that are measured; the median of each phase is reported.
const CALLS: usize = 7;

/// Median milliseconds of one phase of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// `alloc`, `table`, `free`, or a kernel's entry.
    pub name: String,
    /// Median over calls. Kernels and copies on the device's clock, allocation and free on the host's.
    pub ms: f64,
}

/// Forwards every call and times it.
struct TimedDevice {
    inner: DeviceRef,
    entries: Mutex<BTreeMap<u64, &'static str>>,
    log: Mutex<Vec<(&'static str, Mark)>>,
}

enum Mark {
    Device(EventId, EventId),
    HostMs(f64),
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TimedDevice {
    fn between(
        &self,
        name: &'static str,
        stream: StreamId,
        work: impl FnOnce() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let (start, end) = (self.inner.create_event()?, self.inner.create_event()?);
        lock(&self.log).push((name, Mark::Device(start, end)));
        self.inner.record_event(start, stream)?;
        work()?;
        self.inner.record_event(end, stream)
    }

    fn on_host<T>(&self, name: &'static str, work: impl FnOnce() -> DeviceResult<T>) -> DeviceResult<T> {
        let start = Instant::now();
        let result = work();
        lock(&self.log).push((name, Mark::HostMs(start.elapsed().as_secs_f64() * 1e3)));
        result
    }

    /// Milliseconds per phase since the last call of this.
    fn take(&self) -> DeviceResult<BTreeMap<&'static str, f64>> {
        let mut phases = BTreeMap::new();
        for (name, mark) in std::mem::take(&mut *lock(&self.log)) {
            let ms = match mark {
                Mark::HostMs(ms) => ms,
                Mark::Device(start, end) => {
                    let ms = self.inner.elapsed_ms(start, end);
                    self.inner.destroy_event(start)?;
                    self.inner.destroy_event(end)?;
                    f64::from(ms?)
                }
            };
            *phases.entry(name).or_default() += ms;
        }
        Ok(phases)
    }
}

impl Device for TimedDevice {
    fn alloc(&self, bytes: u64, stream: StreamId) -> DeviceResult<DevicePtr> {
        self.on_host("alloc", || self.inner.alloc(bytes, stream))
    }
    fn free(&self, ptr: DevicePtr, stream: StreamId) -> DeviceResult<()> {
        self.on_host("free", || self.inner.free(ptr, stream))
    }
    fn copy_to_device(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> DeviceResult<()> {
        self.between("table", stream, || self.inner.copy_to_device(dst, src, stream))
    }
    fn copy_on_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.between("copy", stream, || self.inner.copy_on_device(dst, src, bytes, stream))
    }
    fn memset(&self, dst: DevicePtr, value: u8, bytes: u64, stream: StreamId) -> DeviceResult<()> {
        self.between("memset", stream, || self.inner.memset(dst, value, bytes, stream))
    }
    fn load_kernel(&self, spec: &KernelSpec) -> DeviceResult<KernelId> {
        let id = self.inner.load_kernel(spec)?;
        lock(&self.entries).insert(id.0, spec.entry);
        Ok(id)
    }
    fn launch(
        &self,
        kernel: KernelId,
        config: LaunchConfig,
        params: &[u8],
        stream: StreamId,
    ) -> DeviceResult<()> {
        let name = lock(&self.entries).get(&kernel.0).copied().unwrap_or("launch");
        self.between(name, stream, || self.inner.launch(kernel, config, params, stream))
    }

    kernels::forward_device! { inner:
        info create_stream destroy_stream copy_to_host launch_counts create_event destroy_event
        record_event wait_event elapsed_ms begin_capture end_capture launch_graph destroy_graph pool
        reset_high_water synchronize
    }
}

/// The phases of a call that owns its scratch, in the order of their names.
pub(super) fn measure(device: &DeviceRef, data: &Data, run: ArmRun) -> Result<Vec<Phase>, BenchError> {
    let timed =
        Arc::new(TimedDevice { inner: device.clone(), entries: Mutex::default(), log: Mutex::default() });
    let as_device: DeviceRef = timed.clone();
    let mut seen: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for call in 0..=CALLS {
        let args = data.args(run, call);
        paged_attention_with(&as_device, StreamId::DEFAULT, Some(run.arm), &args, &knobs(data), None)?;
        device.synchronize(StreamId::DEFAULT)?;
        let phases = timed.take()?;
        // The first call loads kernels and grows the pool.
        if call > 0 {
            phases.into_iter().for_each(|(name, ms)| seen.entry(name).or_default().push(ms));
        }
    }
    let median = |mut ms: Vec<f64>| {
        ms.sort_by(f64::total_cmp);
        ms[ms.len() / 2]
    };
    Ok(seen.into_iter().map(|(name, ms)| Phase { name: name.to_owned(), ms: median(ms) }).collect())
}
