//! Rules of stream-ordered memory: each is noticed when broken, and nothing is said of code that keeps them.

use std::sync::Arc;

use fault_injection::{FaultPlan, FaultyDevice, HandleKind, HostDevice, MisuseKind};
use kernels::device::{Device, DevicePtr, KernelId, LaunchConfig, StreamId};
use kernels::source::KernelSpec;
use rstest::rstest;

const STREAM: StreamId = StreamId::DEFAULT;
const CONFIG: LaunchConfig = LaunchConfig { grid: [1; 3], block: [1; 3], shared_bytes: 0 };

struct Bench {
    device: Arc<FaultyDevice<HostDevice>>,
    other: StreamId,
    kernel: KernelId,
}

impl Bench {
    fn new() -> Self {
        let device = FaultyDevice::new(Arc::new(HostDevice::new(None)));
        let other = device.create_stream().unwrap();
        let kernel =
            device.load_kernel(&KernelSpec { file: "none.cu", entry: "none", defines: vec![] }).unwrap();
        Self { device, other, kernel }
    }

    fn alloc(&self) -> DevicePtr {
        self.device.alloc(64, STREAM).unwrap()
    }

    /// A launch that gets an address in the middle of the memory.
    fn launch(&self, ptr: DevicePtr, stream: StreamId) {
        let words = [7_u64, ptr.0 + 32, 0];
        let params: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        self.device.launch(self.kernel, CONFIG, &params, stream).unwrap();
    }

    /// Orders `later` after everything on `earlier` so far.
    fn order(&self, earlier: StreamId, later: StreamId) {
        let event = self.device.create_event().unwrap();
        self.device.record_event(event, earlier).unwrap();
        self.device.wait_event(later, event).unwrap();
        self.device.destroy_event(event).unwrap();
    }

    fn kinds(&self) -> Vec<MisuseKind> {
        self.device.take_misuses().into_iter().map(|misuse| misuse.kind).collect()
    }
}

#[test]
fn work_on_one_stream_is_in_order() {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.launch(ptr, STREAM);
    bench.device.memset(ptr, 0, 64, STREAM).unwrap();
    bench.device.free(ptr, STREAM).unwrap();
    assert_eq!(bench.kinds(), []);
}

#[test]
fn a_free_on_a_stream_that_is_not_ordered_after_the_allocation() {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.device.free(ptr, bench.other).unwrap();
    let misuses = bench.device.take_misuses();
    assert_eq!(misuses.len(), 1);
    assert_eq!(misuses[0].kind, MisuseKind::WrongStreamFree);
    assert!(misuses[0].site.starts_with("fault-injection/tests/ledger.rs:"), "{misuses:?}");
    assert!(misuses[0].message.contains("64 bytes allocated on stream 0"), "{misuses:?}");
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Event,
    Synchronize,
    CopyToHost,
    /// The host asks for the time between two events, which it gets only when both have happened.
    Elapsed,
}

#[rstest]
fn what_orders_streams_makes_a_free_elsewhere_right(
    #[values(Order::Event, Order::Synchronize, Order::CopyToHost, Order::Elapsed)] by: Order,
) {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.launch(ptr, STREAM);
    match by {
        Order::Event => bench.order(STREAM, bench.other),
        Order::Synchronize => bench.device.synchronize(STREAM).unwrap(),
        Order::CopyToHost => bench.device.copy_to_host(&mut [0; 4], ptr, STREAM).unwrap(),
        Order::Elapsed => {
            let event = bench.device.create_event().unwrap();
            bench.device.record_event(event, STREAM).unwrap();
            bench.device.elapsed_ms(event, event).unwrap();
        }
    }
    bench.launch(ptr, bench.other);
    bench.device.free(ptr, bench.other).unwrap();
    assert_eq!(bench.kinds(), []);
}

#[test]
fn an_event_covers_only_what_came_before_its_record() {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.order(STREAM, bench.other);
    bench.launch(ptr, STREAM);
    bench.device.free(ptr, bench.other).unwrap();
    assert_eq!(bench.kinds(), [MisuseKind::WrongStreamFree]);
}

#[test]
fn waiting_for_a_stream_covers_the_streams_it_had_waited_for() {
    let bench = Bench::new();
    let third = bench.device.create_stream().unwrap();
    let ptr = bench.alloc();
    bench.order(STREAM, bench.other);
    bench.launch(ptr, bench.other);
    bench.order(bench.other, third);
    bench.device.synchronize(third).unwrap();
    bench.device.free(ptr, STREAM).unwrap();
    assert_eq!(bench.kinds(), []);
}

#[test]
fn destroying_a_stream_waits_for_it() {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.order(STREAM, bench.other);
    bench.launch(ptr, bench.other);
    bench.device.destroy_stream(bench.other).unwrap();
    bench.device.free(ptr, STREAM).unwrap();
    assert_eq!(bench.kinds(), []);
}

#[test]
fn a_free_while_another_stream_still_uses_the_memory() {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.order(STREAM, bench.other);
    bench.launch(ptr, bench.other);
    bench.device.free(ptr, STREAM).unwrap();
    let misuses = bench.device.take_misuses();
    assert_eq!(misuses.len(), 1);
    assert_eq!(misuses[0].kind, MisuseKind::FreeBeforeLastUse);
    assert!(misuses[0].message.contains("launch on stream"), "{misuses:?}");
}

#[test]
fn work_on_a_stream_that_is_not_ordered_after_the_allocation() {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.launch(ptr, bench.other);
    assert_eq!(bench.kinds(), [MisuseKind::UseBeforeAllocation]);
}

#[test]
fn a_second_free_and_a_free_of_nothing() {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.device.free(ptr, STREAM).unwrap();
    assert!(bench.device.free(ptr, STREAM).is_err());
    assert!(bench.device.free(ptr.offset(8), STREAM).is_err());
    let misuses = bench.device.take_misuses();
    let kinds: Vec<_> = misuses.iter().map(|misuse| misuse.kind).collect();
    assert_eq!(kinds, [MisuseKind::DoubleFree, MisuseKind::UnknownFree]);
    let text = misuses[0].to_string();
    assert!(text.starts_with("double free: 64 bytes, freed again on stream 0"), "{text}");
}

#[test]
fn a_free_that_the_stream_does_not_allow_now_is_no_misuse() {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.device.begin_capture(STREAM).unwrap();
    assert!(bench.device.free(ptr, STREAM).is_err());
    bench.device.end_capture(STREAM).unwrap();
    bench.device.free(ptr, STREAM).unwrap();
    assert_eq!(bench.kinds(), []);
}

#[test]
fn copies_and_launches_after_the_free() {
    let bench = Bench::new();
    let (ptr, live) = (bench.alloc(), bench.alloc());
    bench.device.free(ptr, STREAM).unwrap();
    bench.launch(ptr, STREAM);
    bench.device.copy_on_device(live, ptr, 8, STREAM).unwrap();
    assert!(bench.device.copy_to_host(&mut [0; 4], live, STREAM).is_err());
    let misuses = bench.device.take_misuses();
    let kinds: Vec<_> = misuses.iter().map(|misuse| misuse.kind).collect();
    assert_eq!(kinds, [MisuseKind::UseAfterFree, MisuseKind::UseAfterFree]);
    assert!(misuses[0].message.contains("byte 32 of 64 bytes"), "{misuses:?}");
    assert!(misuses[0].other_site.is_some());
}

/// The words of a launch are searched for addresses, and by chance one may be where something lay in an earlier run.
#[test]
fn a_run_does_not_answer_for_what_was_freed_before_it() {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.device.free(ptr, STREAM).unwrap();
    bench.launch(ptr, STREAM);
    assert_eq!(bench.kinds(), [MisuseKind::UseAfterFree]);
    bench.device.arm(FaultPlan::nth(u64::MAX));
    bench.launch(ptr, STREAM);
    assert_eq!(bench.kinds(), []);
}

#[test]
fn a_graph_uses_its_memory_when_it_runs() {
    let bench = Bench::new();
    let ptr = bench.alloc();
    bench.device.begin_capture(STREAM).unwrap();
    bench.launch(ptr, STREAM);
    let graph = bench.device.end_capture(STREAM).unwrap();
    bench.device.launch_graph(graph, STREAM).unwrap();
    bench.device.free(ptr, STREAM).unwrap();
    assert_eq!(bench.kinds(), []);
    bench.device.launch_graph(graph, STREAM).unwrap();
    assert_eq!(bench.kinds(), [MisuseKind::UseAfterFree]);
}

#[test]
fn a_snapshot_counts_every_live_allocation() {
    let bench = Bench::new();
    let empty = bench.device.snapshot();
    let (first, _second) = (bench.alloc(), bench.device.alloc(100, bench.other).unwrap());
    let both = bench.device.snapshot();
    assert_eq!((empty.bytes(), both.bytes(), both.allocations_since(&empty).len()), (0, 164, 2));
    bench.device.free(first, STREAM).unwrap();
    let one = bench.device.snapshot();
    let [left] = one.allocations_since(&empty).try_into().unwrap();
    assert_eq!((one.bytes(), left.bytes, left.stream), (100, 100, bench.other.0));
    assert_eq!(one.missing_since(&both).iter().map(|gone| gone.bytes).collect::<Vec<_>>(), [64]);
}

#[test]
fn what_is_made_is_live_until_it_is_destroyed() {
    let bench = Bench::new();
    let empty = bench.device.snapshot();
    let stream = bench.device.create_stream().unwrap();
    let event = bench.device.create_event().unwrap();
    bench.device.begin_capture(stream).unwrap();
    let live = |bench: &Bench| -> Vec<_> {
        bench.device.snapshot().handles_since(&empty).into_iter().map(|handle| handle.kind).collect()
    };
    assert_eq!(live(&bench), [HandleKind::Stream, HandleKind::Event, HandleKind::OpenCapture]);
    let graph = bench.device.end_capture(stream).unwrap();
    assert_eq!(live(&bench), [HandleKind::Stream, HandleKind::Event, HandleKind::Graph]);
    bench.device.destroy_graph(graph).unwrap();
    bench.device.destroy_event(event).unwrap();
    assert_eq!(live(&bench), [HandleKind::Stream]);
    bench.device.destroy_stream(stream).unwrap();
    assert_eq!(live(&bench), []);
}

#[test]
fn guards_are_named_by_who_asked_them() {
    let bench = Bench::new();
    let empty = bench.device.snapshot();
    let line = line!() + 1;
    let _scratch = kernels::scratch::Scratch::new(&bench.device.handle(), 64, STREAM).unwrap();
    let live = bench.device.snapshot().allocations_since(&empty);
    assert_eq!(live[0].site, format!("fault-injection/tests/ledger.rs:{line}"));
}
