//! The `simt` device keeps what the device interface promises, and what only this device can promise.

mod simt_support;

use std::sync::Arc;

use kernels::conformance;
use kernels::device::{Device, DeviceError, DeviceRef, FindingKind, StreamId};
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use simt_support::{STREAM, config, device, download, launch, only_finding, options, spec, upload};

fn conforming(mode: Mode) -> DeviceRef {
    let base = options(mode);
    SimtDevice::new(SimtOptions { sources: conformance::sources(base.sources.clone()), ..base }).unwrap()
}

#[test]
fn every_check_passes_on_a_device_of_its_own_and_on_a_shared_one() {
    for mode in [Mode::Checked, Mode::Fast] {
        let shared = conforming(mode);
        let mut failed = Vec::new();
        for check in conformance::checks() {
            for device in [&conforming(mode), &shared] {
                if let Err(violation) = (check.run)(device) {
                    failed.push(format!("{mode:?}: {}: {violation}", check.name));
                }
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct FaultParams {
    a: u64,
    b: u64,
    n: i32,
    fault: i32,
}

/// Without the event, the consumer runs before the producer has.
#[test]
fn a_missing_dependency_between_streams_shows() {
    let device = device(Mode::Checked);
    let (producer, consumer) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let a = device.alloc(128, producer).unwrap();
    let b = device.alloc(128, consumer).unwrap();
    device.memset(a, 0, 128, producer).unwrap();
    let kernel = device.load_kernel(&spec("faults.cu", "reads_global")).unwrap();
    let params = FaultParams { a: a.0, b: b.0, n: 32, fault: 0 };
    let run = |device: &SimtDevice| {
        device.launch(kernel, config(1, 32, 0), simt_support::bytes_of(&params), consumer).unwrap();
        device.synchronize(consumer)
    };
    only_finding(run(&device), FindingKind::Uninitialised);
    let event = device.create_event().unwrap();
    device.record_event(event, producer).unwrap();
    device.wait_event(consumer, event).unwrap();
    run(&device).unwrap();
}

#[test]
fn a_free_that_overtakes_another_streams_work_shows() {
    let device = device(Mode::Checked);
    let (worker, other) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let (a, b) = (upload(&*device, &[1.0_f32; 32]), upload(&*device, &[1.0_f32; 32]));
    device.synchronize(STREAM).unwrap();
    let kernel = device.load_kernel(&spec("faults.cu", "reads_global")).unwrap();
    let params = FaultParams { a: a.0, b: b.0, n: 32, fault: 0 };
    device.launch(kernel, config(1, 32, 0), simt_support::bytes_of(&params), worker).unwrap();
    device.free(a, other).unwrap();
    device.synchronize(other).unwrap();
    only_finding(device.synchronize(worker), FindingKind::UseAfterFree);
}

#[test]
fn errors_of_a_stream_that_was_waited_for_are_reported_by_the_waiting_one() {
    let device = device(Mode::Checked);
    let producer = device.create_stream().unwrap();
    let a = device.alloc(128, producer).unwrap();
    let b = device.alloc(128, producer).unwrap();
    let kernel = device.load_kernel(&spec("faults.cu", "reads_global")).unwrap();
    let params = FaultParams { a: a.0, b: b.0, n: 32, fault: 0 };
    device.launch(kernel, config(1, 32, 0), simt_support::bytes_of(&params), producer).unwrap();
    let event = device.create_event().unwrap();
    device.record_event(event, producer).unwrap();
    device.wait_event(STREAM, event).unwrap();
    only_finding(device.synchronize(STREAM), FindingKind::Uninitialised);
    device.synchronize(producer).unwrap();
}

#[test]
fn work_after_a_stopped_launch_is_skipped_but_memory_is_still_freed() {
    let device = device(Mode::Checked);
    let before = device.pool().unwrap().used;
    let b = upload(&*device, &[5.0_f32; 32]);
    let kernel = device.load_kernel(&spec("faults.cu", "null_pointer")).unwrap();
    let params = FaultParams { a: 0, b: b.0, n: 0, fault: 1 };
    device.launch(kernel, config(1, 1, 0), simt_support::bytes_of(&params), STREAM).unwrap();
    let scratch = device.alloc(1000, STREAM).unwrap();
    device.memset(b, 0, 128, STREAM).unwrap();
    device.free(scratch, STREAM).unwrap();
    only_finding(device.synchronize(STREAM), FindingKind::OutOfBounds);
    assert_eq!(download::<f32>(&*device, b, 32), [5.0; 32]);
    device.free(b, STREAM).unwrap();
    device.synchronize(STREAM).unwrap();
    assert_eq!(device.pool().unwrap().used, before);
}

#[test]
fn the_memory_limit_counts_frees_queued_before() {
    let device = SimtDevice::new(SimtOptions { memory_limit: Some(1000), ..options(Mode::Fast) }).unwrap();
    let a = device.alloc(600, STREAM).unwrap();
    let refused = device.alloc(600, STREAM).unwrap_err();
    let DeviceError::OutOfMemory { requested: 600, used: 600, limit: Some(1000) } = refused else {
        panic!("{refused:?}")
    };
    device.free(a, STREAM).unwrap();
    let b = device.alloc(600, STREAM).unwrap();
    let other = device.create_stream().unwrap();
    assert!(device.alloc(600, other).is_err());
    device.free(b, STREAM).unwrap();
    device.synchronize(STREAM).unwrap();
    device.alloc(600, other).unwrap();
    assert_eq!(device.pool().unwrap().used, 600);
}

#[test]
fn an_allocation_beyond_four_billion_elements_costs_only_what_is_touched() {
    for mode in [Mode::Checked, Mode::Fast] {
        let device = device(mode);
        let bytes = (1_u64 << 33) + 4096;
        let a = device.alloc(bytes, STREAM).unwrap();
        let last = a.offset(bytes - 128);
        device.copy_to_device(last, &[1; 128], STREAM).unwrap();
        let b = upload(&*device, &[0.0_f32; 32]);
        let params = FaultParams { a: last.0, b: b.0, n: 32, fault: 0 };
        launch(&*device, &spec("faults.cu", "reads_global"), config(1, 32, 0), &params).unwrap();
        assert_eq!(download::<u8>(&*device, b, 128), [1; 128]);
        device.free(a, STREAM).unwrap();
        device.synchronize(STREAM).unwrap();
        assert_eq!(device.pool().unwrap().used, 128);
    }
}

#[test]
fn copies_outside_an_allocation_are_refused() {
    let device = device(Mode::Checked);
    let a = device.alloc(16, STREAM).unwrap();
    let refused = [
        device.copy_to_device(a, &[0; 17], STREAM),
        device.copy_to_host(&mut [0; 8], a.offset(9), STREAM),
        device.memset(a.offset(16), 0, 1, STREAM),
        device.copy_on_device(a, a.offset(8), 9, STREAM),
    ];
    for result in refused {
        assert!(matches!(result, Err(DeviceError::InvalidArgument { .. })), "{result:?}");
    }
    device.free(a, STREAM).unwrap();
    device.synchronize(STREAM).unwrap();
    assert!(matches!(device.memset(a, 0, 1, STREAM), Err(DeviceError::InvalidArgument { .. })));
}

#[test]
fn devices_do_not_share_handles_or_memory() {
    let (one, two): (Arc<dyn Device>, Arc<dyn Device>) = (device(Mode::Fast), device(Mode::Fast));
    let stream = one.create_stream().unwrap();
    assert!(two.synchronize(stream).is_err());
    let a = one.alloc(16, StreamId::DEFAULT).unwrap();
    assert!(two.memset(a, 0, 16, StreamId::DEFAULT).is_err());
}
