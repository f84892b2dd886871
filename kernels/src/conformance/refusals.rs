//! What must be refused, by argument, leaving the device as it was.

use super::{Check, Outcome, Probe, ensure, ensure_refused, launches, spec};
use crate::device::{DeviceError, DevicePtr, DeviceRef, EventId, GraphId, KernelId, LaunchConfig, StreamId};
use crate::source::KernelSpec;

pub(super) const CHECKS: &[Check] = &[
    Check { name: "unknown handles are refused", run: unknown_handles },
    Check { name: "handles are refused once destroyed", run: destroyed_handles },
    Check { name: "only an allocation's own address can be freed, once", run: frees },
    Check { name: "the default stream stays", run: default_stream_stays },
    Check { name: "launches outside the limits are refused before anything runs", run: launch_limits },
    Check { name: "a kernel that does not exist or compile is named", run: bad_kernels },
];

const S: StreamId = StreamId::DEFAULT;

fn unknown_handles(device: &DeviceRef) -> Outcome {
    let (stream, event) = (StreamId(u64::MAX), EventId(u64::MAX));
    ensure_refused!(device.destroy_stream(stream), DeviceError::InvalidArgument { argument: "stream", .. });
    ensure_refused!(device.synchronize(stream), DeviceError::InvalidArgument { argument: "stream", .. });
    ensure_refused!(device.alloc(16, stream), DeviceError::InvalidArgument { argument: "stream", .. });
    ensure_refused!(device.begin_capture(stream), DeviceError::InvalidArgument { argument: "stream", .. });
    ensure_refused!(device.destroy_event(event), DeviceError::InvalidArgument { argument: "event", .. });
    ensure_refused!(device.record_event(event, S), DeviceError::InvalidArgument { argument: "event", .. });
    ensure_refused!(device.wait_event(S, event), DeviceError::InvalidArgument { argument: "event", .. });
    let graph = GraphId(u64::MAX);
    ensure_refused!(device.launch_graph(graph, S), DeviceError::InvalidArgument { argument: "graph", .. });
    ensure_refused!(device.destroy_graph(graph), DeviceError::InvalidArgument { argument: "graph", .. });
    let config = LaunchConfig { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
    let launch = device.launch(KernelId(u64::MAX), config, &[], S);
    ensure_refused!(launch, DeviceError::InvalidArgument { argument: "kernel", .. });
    Ok(())
}

fn destroyed_handles(device: &DeviceRef) -> Outcome {
    let event = device.create_event()?;
    device.destroy_event(event)?;
    ensure_refused!(device.record_event(event, S), DeviceError::InvalidArgument { .. });
    ensure_refused!(device.destroy_event(event), DeviceError::InvalidArgument { .. });
    let stream = device.create_stream()?;
    device.destroy_stream(stream)?;
    ensure_refused!(device.destroy_stream(stream), DeviceError::InvalidArgument { .. });
    Ok(())
}

fn frees(device: &DeviceRef) -> Outcome {
    let before = device.pool()?.used;
    let a = device.alloc(64, S)?;
    ensure_refused!(device.free(a.offset(16), S), DeviceError::InvalidArgument { .. });
    ensure_refused!(device.free(DevicePtr::NULL, S), DeviceError::InvalidArgument { .. });
    device.free(a, S)?;
    ensure_refused!(device.free(a, S), DeviceError::InvalidArgument { .. });
    device.synchronize(S)?;
    ensure_refused!(device.free(a, S), DeviceError::InvalidArgument { .. });
    let after = device.pool()?.used;
    ensure!(after == before, "use went from {before} to {after}");
    ensure_refused!(device.alloc(0, S), DeviceError::InvalidArgument { argument: "bytes", .. });
    Ok(())
}

fn default_stream_stays(device: &DeviceRef) -> Outcome {
    ensure_refused!(device.destroy_stream(S), DeviceError::InvalidArgument { .. });
    Ok(device.synchronize(S)?)
}

fn launch_limits(device: &DeviceRef) -> Outcome {
    let probe = Probe::new(&**device, S, 16, 1)?;
    let before = launches(&**device);
    let good = probe.config();
    let params = probe.params(2, 0);
    let shared_bytes = device.info().max_shared_bytes + 1;
    for (config, name) in [
        (LaunchConfig { grid: [0, 1, 1], ..good }, "grid"),
        (LaunchConfig { grid: [1, 65_536, 1], ..good }, "grid"),
        (LaunchConfig { block: [0, 1, 1], ..good }, "block"),
        (LaunchConfig { block: [1025, 1, 1], ..good }, "block"),
        (LaunchConfig { block: [32, 32, 2], ..good }, "block"),
        (LaunchConfig { shared_bytes, ..good }, "shared_bytes"),
    ] {
        match device.launch(probe.kernel, config, &params, S) {
            Err(DeviceError::InvalidArgument { argument, .. }) if argument == name => {}
            other => ensure!(false, "{config:?} gives {other:?}, want a refusal that names {name}"),
        }
    }
    let short = device.launch(probe.kernel, good, &params[..8], S);
    ensure_refused!(short, DeviceError::InvalidArgument { argument: "params", .. });
    let counted = launches(&**device) - before;
    ensure!(counted == 0, "{counted} refused launches were counted");
    probe.ensure_all(1, S, "after refused launches")?;
    Ok(probe.free(S)?)
}

fn bad_kernels(device: &DeviceRef) -> Outcome {
    let missing_file = KernelSpec { file: "no_such_file.cu", ..spec() };
    let missing_entry = KernelSpec { entry: "no_such_entry", ..spec() };
    ensure_refused!(device.load_kernel(&missing_file), DeviceError::InvalidArgument { argument: "file", .. });
    ensure_refused!(
        device.load_kernel(&missing_entry),
        DeviceError::InvalidArgument { argument: "entry", .. }
    );
    let broken = KernelSpec { defines: vec![("CONFORMANCE_BROKEN", "1".to_owned())], ..spec() };
    match device.load_kernel(&broken) {
        Err(DeviceError::Compile { kernel, log, .. }) => {
            ensure!(kernel.contains("conformance.cu"), "the error names {kernel}");
            ensure!(log.contains("broken on purpose"), "the log is {log}");
        }
        other => ensure!(false, "a kernel that does not compile gives {other:?}"),
    }
    device.load_kernel(&spec())?;
    Ok(())
}
