//! Scratch memory returns to the pool on every path, and reports a failed free only where it is the first error.

mod support;

use std::sync::{Arc, Mutex};

use kernels::device::{Device, DeviceError, DevicePtr, DeviceRef, DeviceResult, StreamId};
use kernels::scratch::Scratch;
use rstest::rstest;
use support::{STREAM, checked};

fn used(device: &DeviceRef) -> u64 {
    device.synchronize(STREAM).expect("a clean stream");
    device.pool().expect("pool figures").used
}

#[test]
fn dropping_and_releasing_give_every_byte_back() {
    let device = checked();
    let before = used(&device);
    let dropped = Scratch::new(&device, 12_288, STREAM).unwrap();
    let released = Scratch::new(&device, 8, STREAM).unwrap();
    assert_ne!(dropped.ptr(), released.ptr());
    assert!(used(&device) >= before + 12_296);
    drop(dropped);
    released.release().unwrap();
    assert_eq!(used(&device), before);
}

#[test]
fn a_failure_in_between_gives_every_byte_back() {
    let device = checked();
    let before = used(&device);
    let attempt = || -> Result<(), DeviceError> {
        let _dense = Scratch::new(&device, 12_288, STREAM)?;
        let _table = Scratch::new(&device, 0, STREAM)?;
        Ok(())
    };
    let error = attempt().expect_err("zero bytes are refused");
    assert!(matches!(error, DeviceError::InvalidArgument { call: "alloc", .. }), "{error}");
    assert_eq!(used(&device), before);
}

#[test]
fn a_guard_outlives_the_handle_it_was_made_with() {
    let device = checked();
    let scratch = Scratch::new(&DeviceRef::clone(&device), 64, STREAM).unwrap();
    assert_eq!(scratch.bytes(), 64);
    drop(device);
    scratch.release().unwrap();
}

#[test]
fn release_reports_a_failed_free_and_drop_stays_silent() {
    let device = checked();
    let released = Scratch::new(&device, 64, STREAM).unwrap();
    let dropped = Scratch::new(&device, 64, STREAM).unwrap();
    for scratch in [&released, &dropped] {
        device.free(scratch.ptr(), STREAM).unwrap();
    }
    let error = released.release().expect_err("the memory is gone already");
    assert!(matches!(error, DeviceError::InvalidArgument { call: "free", .. }), "{error}");
    drop(dropped);
    device.synchronize(STREAM).unwrap();
}

/// Refuses every free for the same reason, and remembers on which streams it was asked.
struct RefusesFrees {
    inner: DeviceRef,
    reason: fn() -> DeviceError,
    asked: Mutex<Vec<StreamId>>,
}

impl Device for RefusesFrees {
    fn free(&self, _ptr: DevicePtr, stream: StreamId) -> DeviceResult<()> {
        self.asked.lock().unwrap().push(stream);
        Err((self.reason)())
    }

    kernels::forward_device! { inner:
        info alloc create_stream destroy_stream copy_to_host copy_to_device copy_on_device memset load_kernel launch
        launch_counts create_event destroy_event record_event wait_event elapsed_ms begin_capture end_capture
        launch_graph destroy_graph pool reset_high_water synchronize
    }
}

fn refused(argument: &'static str) -> DeviceError {
    DeviceError::InvalidArgument { call: "free", argument, value: String::new(), accepted: String::new() }
}

fn failed(sticky: bool) -> DeviceError {
    DeviceError::Driver { call: "free", code: "CODE".to_owned(), message: String::new(), sticky }
}

#[rstest]
#[case::context_lost(|| failed(true), &[false])]
#[case::failed(|| failed(false), &[false, false])]
#[case::stream_gone(|| refused("stream"), &[false, true])]
#[case::refused(|| refused("ptr"), &[false, false])]
fn a_refused_free_is_asked_for_once_more_where_that_can_help(
    #[case] reason: fn() -> DeviceError,
    #[case] on_default: &[bool],
) {
    let inner = checked();
    let stream = inner.create_stream().unwrap();
    let device = Arc::new(RefusesFrees { inner, reason, asked: Mutex::default() });
    let scratch = Scratch::new(&(device.clone() as DeviceRef), 64, stream).unwrap();
    assert_eq!(scratch.release().expect_err("a refused free").to_string(), reason().to_string());
    let asked = device.asked.lock().unwrap();
    let wanted: Vec<_> =
        on_default.iter().map(|default| if *default { StreamId::DEFAULT } else { stream }).collect();
    assert_eq!(*asked, wanted);
}
