//! Streams, events, graphs and captures are given back on every way out, and a release reports a failure.

mod support;

use std::sync::{Arc, Mutex};

use kernels::device::{Device, DeviceError, DeviceRef, DeviceResult, GraphId};
use kernels::guards::{Capture, OwnedEvent, OwnedStream};
use support::{STREAM, checked};

#[track_caller]
fn gone<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
    let error = result.expect_err("the handle must be unknown");
    assert!(matches!(error, DeviceError::InvalidArgument { .. }), "{error}");
}

#[test]
fn dropping_and_releasing_destroy_the_handle() {
    let device = checked();
    for release in [false, true] {
        let (stream, event) = (OwnedStream::new(&device).unwrap(), OwnedEvent::new(&device).unwrap());
        let background = OwnedStream::background(&device).unwrap();
        let ids = (stream.id(), background.id(), event.id());
        assert_ne!(ids.0, ids.1);
        device.record_event(ids.2, ids.0).unwrap();
        if release {
            stream.release().unwrap();
            background.release().unwrap();
            event.release().unwrap();
        } else {
            drop((stream, background, event));
        }
        gone(device.synchronize(ids.0));
        gone(device.synchronize(ids.1));
        gone(device.record_event(ids.2, STREAM));
    }
}

#[test]
fn a_release_reports_that_the_handle_is_unknown_and_a_drop_does_not() {
    let device = checked();
    let [released, dropped] = [0, 1].map(|_| OwnedStream::new(&device).unwrap());
    device.destroy_stream(released.id()).unwrap();
    device.destroy_stream(dropped.id()).unwrap();
    gone(released.release());
    drop(dropped);
}

/// Remembers which graphs were destroyed.
struct Graphs {
    inner: DeviceRef,
    destroyed: Mutex<Vec<GraphId>>,
}

impl Device for Graphs {
    fn destroy_graph(&self, graph: GraphId) -> DeviceResult<()> {
        self.destroyed.lock().unwrap().push(graph);
        self.inner.destroy_graph(graph)
    }

    kernels::forward_device! { inner:
        info create_stream destroy_stream alloc free copy_to_device copy_to_host copy_on_device memset load_kernel launch
        launch_counts create_event destroy_event record_event wait_event elapsed_ms begin_capture end_capture
        launch_graph pool reset_high_water synchronize
    }
}

#[test]
fn a_capture_that_is_given_up_stops_recording_and_leaves_no_graph() {
    let graphs = Arc::new(Graphs { inner: checked(), destroyed: Mutex::default() });
    let device = graphs.clone() as DeviceRef;
    drop(Capture::begin(&device, STREAM).unwrap());
    assert_eq!(graphs.destroyed.lock().unwrap().len(), 1);
    device.synchronize(STREAM).expect("the stream does not record any more");
    assert!(matches!(device.end_capture(STREAM), Err(DeviceError::Capture { .. })));
}

#[test]
fn a_capture_that_ends_leaves_one_graph_which_goes_with_its_owner() {
    let graphs = Arc::new(Graphs { inner: checked(), destroyed: Mutex::default() });
    let device = graphs.clone() as DeviceRef;
    let graph = Capture::begin(&device, STREAM).unwrap().end().unwrap();
    let id = graph.id();
    device.launch_graph(id, STREAM).unwrap();
    assert_eq!(*graphs.destroyed.lock().unwrap(), []);
    drop(graph);
    assert_eq!(*graphs.destroyed.lock().unwrap(), [id]);
    gone(device.launch_graph(id, STREAM));
}

#[test]
fn the_end_of_a_capture_that_somebody_else_ended_is_reported_once() {
    let device = checked();
    let capture = Capture::begin(&device, STREAM).unwrap();
    let graph = device.end_capture(STREAM).unwrap();
    assert!(matches!(capture.end(), Err(DeviceError::Capture { .. })));
    device.destroy_graph(graph).unwrap();
    device.synchronize(STREAM).unwrap();
}
