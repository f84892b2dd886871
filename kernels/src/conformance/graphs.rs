//! Capture and replay.

use super::{Check, Outcome, Probe, ensure, ensure_refused, launches};
use crate::device::{DeviceError, DeviceRef, StreamId};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "a captured launch runs at replay, each time", run: replay },
    Check { name: "a graph replays on another stream, in its order", run: replay_elsewhere },
    Check { name: "capture refuses what waits or allocates", run: capture_refusals },
    Check { name: "capture begins and ends in pairs", run: capture_pairs },
    Check { name: "capture of one stream leaves the others alone", run: others_run },
];

const S: StreamId = StreamId::DEFAULT;

fn replay(device: &DeviceRef) -> Outcome {
    let stream = device.create_stream()?;
    let probe = Probe::new(&**device, stream, 40, 1)?;
    device.synchronize(stream)?;
    let before = launches(&**device);
    device.begin_capture(stream)?;
    probe.launch(2, 0, stream)?;
    probe.launch(1, 1, stream)?;
    let graph = device.end_capture(stream)?;
    probe.ensure_all(1, stream, "after capture")?;
    device.launch_graph(graph, stream)?;
    probe.ensure_all(3, stream, "after one replay")?;
    device.launch_graph(graph, stream)?;
    device.launch_graph(graph, stream)?;
    probe.ensure_all(15, stream, "after three replays")?;
    let counted = launches(&**device) - before;
    ensure!(counted == 6, "three replays of two launches counted as {counted}");
    device.destroy_graph(graph)?;
    ensure_refused!(device.launch_graph(graph, stream), DeviceError::InvalidArgument { .. });
    probe.free(stream)?;
    Ok(device.destroy_stream(stream)?)
}

fn replay_elsewhere(device: &DeviceRef) -> Outcome {
    let (recorder, player) = (device.create_stream()?, device.create_stream()?);
    let probe = Probe::new(&**device, player, 40, 9)?;
    device.synchronize(player)?;
    device.begin_capture(recorder)?;
    device.memset(probe.values, 0, 160, recorder)?;
    probe.launch(5, 3, recorder)?;
    probe.launch(5, 3, recorder)?;
    let graph = device.end_capture(recorder)?;
    device.launch_graph(graph, player)?;
    probe.launch(1, -8, player)?;
    probe.ensure_all(10, player, "after a replay and a launch")?;
    device.destroy_graph(graph)?;
    probe.free(player)?;
    device.destroy_stream(recorder)?;
    Ok(device.destroy_stream(player)?)
}

fn capture_refusals(device: &DeviceRef) -> Outcome {
    let stream = device.create_stream()?;
    let probe = Probe::new(&**device, stream, 4, 0)?;
    device.synchronize(stream)?;
    device.begin_capture(stream)?;
    ensure_refused!(device.alloc(16, stream), DeviceError::Capture { .. });
    ensure_refused!(device.synchronize(stream), DeviceError::Capture { .. });
    ensure_refused!(device.copy_to_host(&mut [0; 16], probe.values, stream), DeviceError::Capture { .. });
    ensure_refused!(device.begin_capture(stream), DeviceError::Capture { .. });
    // The refused calls left the capture intact.
    probe.launch(1, 4, stream)?;
    let graph = device.end_capture(stream)?;
    device.launch_graph(graph, stream)?;
    probe.ensure_all(4, stream, "after the replay")?;
    device.destroy_graph(graph)?;
    probe.free(stream)?;
    Ok(device.destroy_stream(stream)?)
}

fn capture_pairs(device: &DeviceRef) -> Outcome {
    let stream = device.create_stream()?;
    ensure_refused!(device.end_capture(stream), DeviceError::Capture { .. });
    device.begin_capture(stream)?;
    let empty = device.end_capture(stream)?;
    device.launch_graph(empty, stream)?;
    device.synchronize(stream)?;
    device.destroy_graph(empty)?;
    ensure_refused!(device.destroy_graph(empty), DeviceError::InvalidArgument { .. });
    Ok(device.destroy_stream(stream)?)
}

fn others_run(device: &DeviceRef) -> Outcome {
    let stream = device.create_stream()?;
    let probe = Probe::new(&**device, S, 4, 1)?;
    device.synchronize(S)?;
    device.begin_capture(stream)?;
    probe.launch(3, 0, S)?;
    probe.ensure_all(3, S, "beside a capture")?;
    let graph = device.end_capture(stream)?;
    device.destroy_graph(graph)?;
    probe.free(S)?;
    Ok(device.destroy_stream(stream)?)
}
