//! Time on the device, between events.

use kernels::device::{DeviceRef, DeviceResult, EventId, StreamId};

/// Three marks of one stream: before the store, between store and attention, and after it.
pub struct Timer {
    device: DeviceRef,
    marks: Vec<EventId>,
}

/// Milliseconds that a layer's kernels took on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelTimes {
    /// Of the store.
    pub store_ms: f64,
    /// Of attention: every kernel of the arm.
    pub attention_ms: f64,
}

impl std::ops::AddAssign for KernelTimes {
    fn add_assign(&mut self, other: Self) {
        self.store_ms += other.store_ms;
        self.attention_ms += other.attention_ms;
    }
}

impl Timer {
    /// Makes the events.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(device: &DeviceRef) -> DeviceResult<Self> {
        let mut timer = Self { device: device.clone(), marks: Vec::new() };
        for _ in 0..3 {
            timer.marks.push(device.create_event()?);
        }
        Ok(timer)
    }

    /// Sets the mark 0, 1 or 2.
    ///
    /// # Errors
    /// What the device reports.
    pub fn mark(&self, index: usize, stream: StreamId) -> DeviceResult<()> {
        self.device.record_event(self.marks[index], stream)
    }

    /// The times between the marks, once the stream has passed them.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read(&self) -> DeviceResult<KernelTimes> {
        let between =
            |a: usize, b: usize| self.device.elapsed_ms(self.marks[a], self.marks[b]).map(f64::from);
        Ok(KernelTimes { store_ms: between(0, 1)?, attention_ms: between(1, 2)? })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        for mark in self.marks.drain(..) {
            // Nobody is left to tell, and an event holds no memory of the pool.
            let _ = self.device.destroy_event(mark);
        }
    }
}
