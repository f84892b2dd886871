//! Allocation, copies, and the pool's accounts.

use super::{Check, Outcome, Probe, bytes, ensure, ensure_refused, read};
use crate::device::{DeviceError, DevicePtr, DeviceRef, StreamId};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "the device describes itself", run: describes_itself },
    Check { name: "copies keep every byte at odd offsets", run: copies_keep_bytes },
    Check { name: "a copy from the host reads its source before it returns", run: host_copies_snapshot },
    Check { name: "memset and device copies run in stream order", run: fills_and_copies_in_order },
    Check { name: "allocations are aligned and apart", run: allocations_are_apart },
    Check { name: "the pool counts what is used", run: pool_is_exact },
    Check { name: "the high-water mark follows use and can be reset", run: high_water },
    Check { name: "memory freed in stream order serves the work before", run: free_after_work },
    Check { name: "an impossible allocation is out of memory and harmless", run: out_of_memory },
];

const S: StreamId = StreamId::DEFAULT;

fn describes_itself(device: &DeviceRef) -> Outcome {
    let info = device.info();
    ensure!(!info.name.is_empty(), "the name is empty");
    ensure!(info.multiprocessors > 0, "no multiprocessors");
    ensure!(info.max_shared_bytes >= 48 << 10, "shared memory of {} bytes", info.max_shared_bytes);
    ensure!(info.capability.0 >= 7, "compute capability {:?}", info.capability);
    Ok(())
}

fn copies_keep_bytes(device: &DeviceRef) -> Outcome {
    let sent: Vec<u8> = (0..1001_u32).map(|i| (i * 7 + i / 256) as u8).collect();
    let a = device.alloc(1001, S)?;
    device.copy_to_device(a, &sent, S)?;
    for (offset, length) in [(0, 1001), (1, 1000), (13, 1), (999, 2), (500, 501)] {
        let mut got = vec![0; length];
        device.copy_to_host(&mut got, a.offset(offset as u64), S)?;
        ensure!(got == sent[offset..offset + length], "{length} bytes at {offset} came back changed");
    }
    device.free(a, S)?;
    Ok(device.synchronize(S)?)
}

fn host_copies_snapshot(device: &DeviceRef) -> Outcome {
    let a = device.alloc(4, S)?;
    let mut source = bytes(&[41]);
    device.copy_to_device(a, &source, S)?;
    source.fill(0);
    let got = read(&**device, a, 1, S)?;
    ensure!(got == [41], "the value is {got:?}, as if the source had been read later");
    device.free(a, S)?;
    Ok(device.synchronize(S)?)
}

fn fills_and_copies_in_order(device: &DeviceRef) -> Outcome {
    let (a, b) = (device.alloc(64, S)?, device.alloc(64, S)?);
    device.memset(a, 1, 64, S)?;
    device.copy_on_device(b, a, 64, S)?;
    device.memset(a, 2, 64, S)?;
    device.copy_on_device(b.offset(16), a.offset(8), 8, S)?;
    let mut got = [0; 64];
    device.copy_to_host(&mut got, b, S)?;
    let want: Vec<u8> = (0..64).map(|i| if (16..24).contains(&i) { 2 } else { 1 }).collect();
    ensure!(got[..] == want[..], "bytes are {got:?}");
    device.free(a, S)?;
    device.free(b, S)?;
    Ok(device.synchronize(S)?)
}

fn allocations_are_apart(device: &DeviceRef) -> Outcome {
    let sizes = [1_u64, 3, 16, 17, 255, 4096, 70_000];
    let mut spans = Vec::new();
    for size in sizes {
        let ptr = device.alloc(size, S)?;
        ensure!(ptr.0.is_multiple_of(16), "{size} bytes at {:#x}, not aligned to 16", ptr.0);
        spans.push((ptr.0, ptr.0 + size));
    }
    spans.sort_unstable();
    ensure!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "allocations overlap: {spans:x?}");
    for (ptr, _) in spans {
        device.free(DevicePtr(ptr), S)?;
    }
    Ok(device.synchronize(S)?)
}

fn pool_is_exact(device: &DeviceRef) -> Outcome {
    device.synchronize(S)?;
    let before = device.pool()?.used;
    let (a, b) = (device.alloc(1000, S)?, device.alloc(1 << 20, S)?);
    let during = device.pool()?;
    let added = during.used - before;
    ensure!(added >= 1000 + (1 << 20), "used grew by {added}");
    ensure!(during.reserved >= during.used, "reserved {} of {} used", during.reserved, during.used);
    device.free(a, S)?;
    device.synchronize(S)?;
    let between = device.pool()?.used - before;
    ensure!(between >= 1 << 20 && between < added, "used is {between} after freeing the smaller of two");
    device.free(b, S)?;
    device.synchronize(S)?;
    let after = device.pool()?.used;
    ensure!(after == before, "used is {after} after everything was freed, {before} before");
    Ok(())
}

fn high_water(device: &DeviceRef) -> Outcome {
    device.synchronize(S)?;
    device.reset_high_water()?;
    let base = device.pool()?;
    ensure!(base.high_water == base.used, "after a reset the mark is {}, use {}", base.high_water, base.used);
    // Freed before the next is taken: the mark is that of one.
    for _ in 0..3 {
        let a = device.alloc(1 << 20, S)?;
        device.free(a, S)?;
        device.synchronize(S)?;
    }
    let rise = device.pool()?.high_water - base.used;
    ensure!((1 << 20..2 << 20).contains(&rise), "the mark rose by {rise} for one MiB at a time");
    device.reset_high_water()?;
    let mark = device.pool()?.high_water;
    ensure!(mark == base.used, "the mark is {mark} after a reset, use {}", base.used);
    Ok(())
}

fn free_after_work(device: &DeviceRef) -> Outcome {
    let kept = device.alloc(400, S)?;
    let probe = Probe::new(&**device, S, 100, 5)?;
    probe.launch(3, 1, S)?;
    device.copy_on_device(kept, probe.values, 400, S)?;
    device.free(probe.values, S)?;
    // A new allocation may take the place; the copy was before it.
    let next = device.alloc(400, S)?;
    device.memset(next, 0, 400, S)?;
    let got = read(&**device, kept, 100, S)?;
    ensure!(got.iter().all(|&v| v == 16), "values are {:?}…, want 16", &got[..4]);
    device.free(next, S)?;
    device.free(kept, S)?;
    Ok(device.synchronize(S)?)
}

fn out_of_memory(device: &DeviceRef) -> Outcome {
    let before = device.pool()?.used;
    for bytes in [1_u64 << 50, u64::MAX] {
        ensure_refused!(device.alloc(bytes, S), DeviceError::OutOfMemory { .. });
    }
    let after = device.pool()?.used;
    ensure!(after == before, "a refused allocation changed use from {before} to {after}");
    let a = device.alloc(16, S)?;
    device.free(a, S)?;
    Ok(device.synchronize(S)?)
}
