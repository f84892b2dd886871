//! One piece of device memory in which all buffers of a call lie, at places that a seed draws.

use std::ops::Range;
use std::sync::Arc;

use kernels::cuda::CudaDevice;
use kernels::device::{Device, DevicePtr, DeviceResult, StreamId};

use crate::executor::Job;

/// Bytes before and after every buffer.
const MARGIN: usize = 4096;
/// Room to move in: places that a call can start at.
const PLACES: usize = 1 << 12;
/// Bytes of margins and of untouched outputs: NaN in every 8-bit and 16-bit format.
const CANARY: [u8; 2] = [0xff, 0x7f];

/// The buffers of one call with their margins, as one run of bytes.
pub(super) struct Image {
    bytes: Vec<u8>,
    /// Where each buffer lies, and the workspace behind the last.
    parts: Vec<Range<usize>>,
    names: Vec<String>,
}

fn rounded(bytes: usize) -> usize {
    bytes.div_ceil(Arena::ALIGNMENT as usize) * Arena::ALIGNMENT as usize
}

fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    *state >> 20
}

impl Image {
    /// Lays the job's buffers and a workspace out in the order that a seed draws.
    pub fn new(job: &Job, workspace: u64, seed: u64) -> Self {
        let mut names: Vec<String> = job.buffers.iter().map(|buffer| buffer.name.clone()).collect();
        names.push("workspace".to_owned());
        let mut sizes: Vec<usize> = job.buffers.iter().map(|buffer| buffer.bytes.len()).collect();
        sizes.push(workspace as usize);
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        let mut random = seed;
        for last in (1..order.len()).rev() {
            order.swap(last, draw(&mut random) as usize % (last + 1));
        }
        let mut parts = vec![0..0; sizes.len()];
        let mut at = MARGIN;
        for index in order {
            parts[index] = at..at + sizes[index];
            at += rounded(sizes[index]) + MARGIN;
        }
        let mut bytes: Vec<u8> = (0..at).map(|at| CANARY[at % 2]).collect();
        for (buffer, part) in job.buffers.iter().zip(&parts) {
            bytes[part.clone()].copy_from_slice(&buffer.bytes);
        }
        Self { bytes, parts, names }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Address of every buffer, when the image lies at `base`.
    pub fn addresses(&self, base: u64) -> Vec<u64> {
        self.parts.iter().map(|part| base + part.start as u64).collect()
    }

    pub fn workspace(&self, base: u64) -> u64 {
        base + self.parts[self.parts.len() - 1].start as u64
    }

    /// Bytes that differ from what was sent.
    pub fn changed(&self, all: &[u8]) -> usize {
        self.bytes.iter().zip(all).filter(|(sent, seen)| sent != seen).count()
    }

    /// A buffer's part of what has come back.
    pub fn part<'a>(&self, all: &'a [u8], buffer: usize) -> &'a [u8] {
        &all[self.parts[buffer].clone()]
    }

    /// Bytes of margins that have changed: how many, and where in words.
    pub fn damage(&self, all: &[u8]) -> Vec<(usize, String)> {
        let half = MARGIN / 2;
        let around =
            |part: &Range<usize>| [part.start - half..part.start, part.end..rounded(part.end) + half];
        let mut found = Vec::new();
        for (name, part) in self.names.iter().zip(&self.parts) {
            for margin in around(part) {
                let wrong = |at: &usize| all[*at] != CANARY[*at % 2];
                if let Some(first) = margin.clone().find(wrong) {
                    let at = first as i64 - part.start as i64;
                    let place = match at < 0 {
                        true => format!("before the start of {name}: first byte {at}"),
                        false => format!("past the end of {name} ({} bytes): first byte {at}", part.len()),
                    };
                    found.push((margin.filter(wrong).count(), place));
                }
            }
        }
        found
    }
}

/// Device memory for the calls of a process.
pub(super) struct Arena {
    device: Arc<CudaDevice>,
    memory: DevicePtr,
    bytes: usize,
}

impl Arena {
    pub const ALIGNMENT: u64 = 256;

    /// The arena if it is large enough, else a new one in its place.
    pub fn at_least(old: Option<Self>, device: &Arc<CudaDevice>, bytes: usize) -> DeviceResult<Self> {
        if let Some(arena) = old.filter(|arena| arena.bytes >= bytes) {
            return Ok(arena);
        }
        let bytes = bytes.next_power_of_two().max(64 << 20);
        let whole = (bytes + PLACES * Self::ALIGNMENT as usize) as u64;
        let memory = device.alloc(whole, StreamId::DEFAULT)?;
        // Owned from here on: a failure on the way frees it.
        let arena = Self { device: device.clone(), memory, bytes };
        device.synchronize(StreamId::DEFAULT)?;
        Ok(arena)
    }

    /// Where an image of a seed goes.
    pub fn place(&self, seed: u64) -> u64 {
        let mut random = seed ^ 0x9e37_79b9_7f4a_7c15;
        self.memory.0 + (draw(&mut random) % PLACES as u64) * Self::ALIGNMENT
    }

    pub fn upload(&self, image: &Image, base: u64, stream: StreamId) -> DeviceResult<()> {
        self.device.copy_to_device(DevicePtr(base), &image.bytes, stream)?;
        self.device.synchronize(stream)
    }

    pub fn download(&self, image: &Image, base: u64, stream: StreamId) -> DeviceResult<Vec<u8>> {
        let mut bytes = vec![0; image.len()];
        self.device.copy_to_host(&mut bytes, DevicePtr(base), stream)?;
        Ok(bytes)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // The process ends with its arena, or replaces it: a failed free has nobody to be told.
        let _ = self.device.free(self.memory, StreamId::DEFAULT);
    }
}

#[cfg(test)]
mod tests {
    use kernels::device::DeviceKind;

    use super::*;
    use crate::executor::DeviceSpec;
    use crate::job::store_job;

    fn job() -> Job {
        let case =
            "store f32 kv=e4m3 h2/2 d16 page4 NHD slots=[0,5,-1,7] kv=[8] seed=1".parse().expect("a case");
        let inputs = crate::inputs::StoreInputs::generate(&case).expect("inputs");
        store_job(&case, &inputs, &DeviceSpec { kind: DeviceKind::Cuda, checked: false, schedule: None })
    }

    #[test]
    fn an_image_holds_every_buffer_apart_and_notices_bytes_beside_them() {
        let job = job();
        let image = Image::new(&job, 1000, 3);
        assert_eq!(image.damage(&image.bytes), []);
        for (index, buffer) in job.buffers.iter().enumerate() {
            assert_eq!(image.part(&image.bytes, index), buffer.bytes);
            assert!(image.addresses(1 << 20)[index].is_multiple_of(Arena::ALIGNMENT));
        }
        let mut all = image.bytes.clone();
        assert_eq!(image.changed(&all), 0);
        let end = image.parts[0].end;
        all[end] = 0;
        all[image.parts[1].start - 5] = 0;
        let name = |index: usize| &job.buffers[index].name;
        let bytes = job.buffers[0].bytes.len();
        let past = format!("past the end of {} ({bytes} bytes): first byte {bytes}", name(0));
        let before = format!("before the start of {}: first byte -5", name(1));
        assert_eq!(image.damage(&all), [(1, past), (1, before)]);
    }

    #[test]
    fn seeds_draw_the_order() {
        let job = job();
        let starts = |seed| Image::new(&job, 0, seed).addresses(0);
        assert_eq!(starts(1), starts(1));
        assert!((2..20).any(|seed| starts(seed) != starts(1)));
    }
}
