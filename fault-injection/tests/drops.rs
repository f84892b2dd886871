//! Guards dropped in odd places give their bytes back, and the check would notice if they did not.

use std::sync::{Arc, Mutex};

use fault_injection::drops::{DropPlace, leave_to_process_exit};
use fault_injection::{FaultyDevice, HostDevice, Outcome, WithoutFrees};
use kernels::device::{Device, DeviceError, DeviceRef, StreamId};
use kernels::scratch::Scratch;
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::SourceSet;
use rstest::rstest;

fn host() -> DeviceRef {
    Arc::new(HostDevice::new(None))
}

fn simt() -> DeviceRef {
    let sources = SourceSet::load().expect("kernel sources");
    SimtDevice::new(SimtOptions { mode: Mode::Checked, ..SimtOptions::new(sources) }).expect("a simt device")
}

#[rstest]
fn the_pool_gets_its_bytes_back(
    #[values(host, simt)] device: fn() -> DeviceRef,
    #[values(DropPlace::OnAnotherThread, DropPlace::AfterTheStream, DropPlace::WhileUnwinding)]
    place: DropPlace,
) {
    let outcomes = place.check(&FaultyDevice::new(device())).expect("a verdict");
    assert_eq!(outcomes, [Outcome::Contained], "{}", place.name());
}

#[rstest]
fn a_guard_that_does_not_free_is_noticed(
    #[values(DropPlace::OnAnotherThread, DropPlace::AfterTheStream, DropPlace::WhileUnwinding)]
    place: DropPlace,
) {
    let device = FaultyDevice::new(WithoutFrees::wrap(&host()));
    let outcomes = place.check(&device).expect("a verdict");
    let [Outcome::LeakedBytes { baseline: 0, held: 4120, .. }, ..] = outcomes.as_slice() else {
        panic!("{outcomes:?}")
    };
}

#[test]
fn a_stream_destroyed_too_early_is_still_reported_by_release() {
    let device = host();
    let stream = device.create_stream().unwrap();
    let scratch = Scratch::new(&device, 16, stream).unwrap();
    device.destroy_stream(stream).unwrap();
    let error = scratch.release().unwrap_err();
    assert!(matches!(error, DeviceError::InvalidArgument { argument: "stream", .. }), "{error}");
    assert_eq!(device.pool().unwrap().used, 0, "the memory went back all the same");
}

/// On any other thread its end stands for that of the main thread.
#[test]
fn guards_left_to_process_exit_outlive_the_call_and_some_their_thread() {
    let device = FaultyDevice::new(host());
    let handle = device.handle();
    let left = std::thread::spawn(move || leave_to_process_exit(&handle).map(|()| handle.pool())).join();
    assert_eq!(left.unwrap().unwrap().unwrap().used, 2 * 4120);
    assert_eq!(device.snapshot().bytes(), 4120);
}

/// Guards are made on some threads and dropped on others, all at once.
#[test]
fn guards_of_many_threads_balance() {
    let device = FaultyDevice::new(simt());
    let handle = device.handle();
    let dropped_elsewhere = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (handle, dropped_elsewhere) = (&handle, &dropped_elsewhere);
            scope.spawn(move || {
                for round in 0..25 {
                    let scratch = Scratch::new(handle, 16 * (thread + 1) + round, StreamId::DEFAULT).unwrap();
                    handle.memset(scratch.ptr(), 1, scratch.bytes(), StreamId::DEFAULT).unwrap();
                    let other = {
                        let mut shelf = dropped_elsewhere.lock().unwrap();
                        shelf.push(scratch);
                        if shelf.len() > 3 { Some(shelf.remove(0)) } else { None }
                    };
                    drop(other);
                }
            });
        }
    });
    drop(dropped_elsewhere);
    device.synchronize(StreamId::DEFAULT).unwrap();
    assert_eq!(device.pool().unwrap().used, 0);
    assert_eq!(device.snapshot().bytes(), 0);
    assert_eq!(device.take_misuses(), []);
}
