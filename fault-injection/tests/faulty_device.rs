//! What the wrapped device does with each call: passes it on, fails it now, or fails it at the next wait.

use std::sync::Arc;

use fault_injection::{
    At, Call, CallKind, FaultPlan, FaultyDevice, HostDevice, InjectedFault, KindSet, Repeat,
};
use kernels::device::{Device, DeviceError, DeviceResult, LaunchConfig, StreamId};
use kernels::error::LaunchError;
use kernels::source::KernelSpec;

const STREAM: StreamId = StreamId::DEFAULT;

fn device() -> Arc<FaultyDevice<HostDevice>> {
    FaultyDevice::new(Arc::new(HostDevice::new(None)))
}

fn of(kind: CallKind, nth: u64) -> FaultPlan {
    FaultPlan::nth(nth).of(KindSet::only(kind))
}

fn injected<T>(result: DeviceResult<T>) -> InjectedFault {
    let Err(error) = result else { panic!("a fault was expected") };
    let error = LaunchError::from(error);
    InjectedFault::find(&error).expect("an injected fault").clone()
}

#[test]
fn without_a_plan_every_call_is_passed_on() {
    let device = device();
    let ptr = device.alloc(8, STREAM).unwrap();
    device.copy_to_device(ptr, &[1, 2, 3, 4, 5, 6, 7, 8], STREAM).unwrap();
    let other = device.create_stream().unwrap();
    let event = device.create_event().unwrap();
    device.record_event(event, STREAM).unwrap();
    device.wait_event(other, event).unwrap();
    device.copy_on_device(ptr.offset(4), ptr, 4, other).unwrap();
    let mut bytes = [0; 8];
    device.copy_to_host(&mut bytes, ptr, other).unwrap();
    assert_eq!(bytes, [1, 2, 3, 4, 1, 2, 3, 4]);
    device.synchronize(STREAM).unwrap();
    assert!(device.elapsed_ms(event, event).unwrap().abs() < f32::EPSILON);
    device.destroy_event(event).unwrap();
    device.destroy_stream(other).unwrap();
    device.free(ptr, STREAM).unwrap();
    assert_eq!(device.pool().unwrap().used, 0);
    assert_eq!(device.take_misuses(), []);
    assert_eq!(device.snapshot().bytes(), 0);
}

#[test]
fn the_host_device_has_as_much_memory_as_its_ceiling_says() {
    let device = HostDevice::new(Some(100));
    let first = device.alloc(60, STREAM).unwrap();
    for (bytes, fits) in [(41, false), (1 << 40, false), (40, true), (1, false)] {
        match device.alloc(bytes, STREAM) {
            Ok(_) => assert!(fits, "{bytes} bytes"),
            Err(DeviceError::OutOfMemory { requested, limit, .. }) => {
                assert_eq!((fits, requested, limit), (false, bytes, Some(100)));
            }
            Err(other) => panic!("{bytes} bytes: {other}"),
        }
    }
    device.free(first, STREAM).unwrap();
    device.alloc(60, STREAM).unwrap();
}

#[test]
fn the_host_device_counts_time_in_milliseconds() {
    let device = HostDevice::new(None);
    let [start, end] = [(); 2].map(|()| device.create_event().unwrap());
    device.record_event(start, STREAM).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    device.record_event(end, STREAM).unwrap();
    let elapsed_ms = device.elapsed_ms(start, end).unwrap();
    assert!((5.0..5000.0).contains(&elapsed_ms), "{elapsed_ms} ms");
}

#[test]
fn the_nth_call_of_a_kind_fails_once_and_has_no_effect() {
    let device = device();
    device.arm(of(CallKind::Alloc, 2));
    let first = device.alloc(8, STREAM).unwrap();
    device.memset(first, 0, 8, STREAM).unwrap();
    let fault = injected(device.alloc(8, STREAM));
    assert_eq!((fault.call, fault.number, fault.at), (Call::Alloc, 2, At::Call));
    assert_eq!(device.pool().unwrap().used, 8);
    device.alloc(8, STREAM).unwrap();
    assert_eq!(device.fired(), [fault]);
    assert_eq!(device.calls(), [Call::Alloc, Call::Memset, Call::Alloc, Call::Alloc]);
}

#[test]
fn a_persistent_fault_gives_every_call_its_own_token() {
    let device = device();
    device.arm(FaultPlan { repeat: Repeat::Persistent, ..of(CallKind::Alloc, 2) });
    device.alloc(8, STREAM).unwrap();
    let tokens = [(); 3].map(|()| injected(device.alloc(8, STREAM)).token);
    assert!(tokens[0] < tokens[1] && tokens[1] < tokens[2]);
    device.disarm();
    device.alloc(8, STREAM).unwrap();
}

#[test]
fn a_late_fault_surfaces_at_the_next_wait_of_its_own_stream() {
    let device = device();
    let other = device.create_stream().unwrap();
    let ptr = device.alloc(8, STREAM).unwrap();
    device.arm(FaultPlan { at: At::NextSynchronize, ..of(CallKind::Memset, 1) });
    device.memset(ptr, 1, 8, other).unwrap();
    device.synchronize(STREAM).unwrap();
    assert_eq!(device.fired(), []);
    let fault = injected(device.synchronize(other));
    assert_eq!((fault.call, fault.at), (Call::Memset, At::NextSynchronize));
    device.synchronize(other).unwrap();
}

#[test]
fn a_late_fault_surfaces_in_a_copy_to_the_host_and_in_destroying_the_stream() {
    let device = device();
    let ptr = device.alloc(8, STREAM).unwrap();
    device.arm(FaultPlan { at: At::NextSynchronize, ..of(CallKind::Memset, 1) });
    device.memset(ptr, 1, 8, STREAM).unwrap();
    injected(device.copy_to_host(&mut [0; 8], ptr, STREAM));

    let other = device.create_stream().unwrap();
    device.arm(FaultPlan { at: At::NextSynchronize, ..of(CallKind::Memset, 1) });
    device.memset(ptr, 1, 8, other).unwrap();
    injected(device.destroy_stream(other));
    assert!(device.destroy_stream(other).is_err(), "it was destroyed all the same");
}

#[test]
fn a_stream_reports_its_first_late_fault() {
    let device = device();
    let ptr = device.alloc(8, STREAM).unwrap();
    device.arm(FaultPlan { at: At::NextSynchronize, repeat: Repeat::Persistent, ..of(CallKind::Memset, 1) });
    device.memset(ptr, 1, 8, STREAM).unwrap();
    device.memset(ptr, 2, 8, STREAM).unwrap();
    assert_eq!(injected(device.synchronize(STREAM)).number, 1);
    device.synchronize(STREAM).unwrap();
}

#[test]
fn a_late_fault_of_recorded_work_surfaces_when_the_graph_has_run() {
    let device = device();
    let ptr = device.alloc(8, STREAM).unwrap();
    device.arm(FaultPlan { at: At::NextSynchronize, ..of(CallKind::Memset, 1) });
    device.begin_capture(STREAM).unwrap();
    device.memset(ptr, 1, 8, STREAM).unwrap();
    let graph = device.end_capture(STREAM).unwrap();
    device.synchronize(STREAM).unwrap();
    device.launch_graph(graph, STREAM).unwrap();
    assert_eq!(injected(device.synchronize(STREAM)).call, Call::Memset);
}

#[test]
fn an_end_of_capture_that_fails_has_ended_the_capture() {
    let device = device();
    device.begin_capture(STREAM).unwrap();
    device.arm(of(CallKind::Graph, 1));
    assert_eq!(injected(device.end_capture(STREAM)).call, Call::EndCapture);
    device.synchronize(STREAM).unwrap();
    let before = FaultyDevice::new(Arc::new(HostDevice::new(None))).snapshot();
    assert_eq!(device.snapshot().handles_since(&before), []);
}

#[test]
fn frees_and_destroys_fail_only_where_asked_for() {
    let device = device();
    let event = device.create_event().unwrap();
    let ptr = device.alloc(8, STREAM).unwrap();
    device.arm(FaultPlan { repeat: Repeat::Persistent, ..FaultPlan::nth(1) });
    device.free(ptr, STREAM).unwrap();
    device.destroy_event(event).unwrap();
    device.disarm();
    let ptr = device.alloc(8, STREAM).unwrap();
    device.arm(FaultPlan { fail_frees: true, ..FaultPlan::nth(1) });
    assert_eq!(injected(device.free(ptr, STREAM)).call, Call::Free);
    device.free(ptr, STREAM).unwrap();
}

#[test]
fn every_kind_of_call_can_be_made_to_fail() {
    for kind in CallKind::ALL {
        let device = device();
        let ptr = device.alloc(8, STREAM).unwrap();
        device.arm(FaultPlan { fail_frees: true, ..of(kind, 1) });
        let spec = KernelSpec { file: "none.cu", entry: "none", defines: vec![] };
        let config = LaunchConfig { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
        let results = [
            device.alloc(8, STREAM).map(drop),
            device.memset(ptr, 0, 8, STREAM),
            device.copy_to_device(ptr, &[0; 8], STREAM),
            device.load_kernel(&spec).and_then(|kernel| device.launch(kernel, config, &[], STREAM)),
            device.create_event().map(drop),
            device.begin_capture(STREAM).and_then(|()| device.end_capture(STREAM)).map(drop),
            device.create_stream().map(drop),
            device.synchronize(STREAM),
            device.free(ptr, STREAM),
        ];
        let failed: Vec<_> = results.into_iter().filter(Result::is_err).collect();
        assert_eq!(failed.len(), 1, "{kind}");
        assert_eq!(device.fired().iter().map(|fault| fault.call.kind()).collect::<Vec<_>>(), [kind]);
    }
}

#[test]
fn a_device_behind_a_trait_object_can_be_wrapped() {
    let inner: kernels::device::DeviceRef = Arc::new(HostDevice::new(None));
    let device = FaultyDevice::new(inner);
    device.arm(FaultPlan::nth(1));
    injected(device.handle().alloc(8, STREAM));
}
