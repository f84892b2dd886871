//! Scratch memory returns to the pool on every path, and reports a failed free only where it is the first error.

mod support;

use kernels::device::{DeviceError, DeviceRef};
use kernels::scratch::Scratch;
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
