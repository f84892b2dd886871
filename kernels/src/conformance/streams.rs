//! The order of work on streams, events, and launches.

use super::{Check, Outcome, Probe, Violation, ensure, ensure_refused, launches, read, spec};
use crate::device::{Device, DeviceError, DeviceRef, StreamId};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "launches of a stream run in order", run: launches_in_order },
    Check { name: "loading a kernel twice gives the same handle", run: load_is_idempotent },
    Check { name: "every launch is counted", run: launches_are_counted },
    Check { name: "streams work independently", run: streams_are_independent },
    Check { name: "destroying a stream finishes its work", run: destroy_drains },
    Check { name: "an event orders one stream after another", run: event_orders_streams },
    Check { name: "a wait means the record before it", run: wait_means_last_record },
    Check { name: "waiting for an event never recorded is no wait", run: unrecorded_wait },
    Check { name: "time passes between events", run: elapsed_time },
    Check { name: "threads share a device", run: threads },
];

const S: StreamId = StreamId::DEFAULT;

fn launches_in_order(device: &DeviceRef) -> Outcome {
    let probe = Probe::new(&**device, S, 300, 1)?;
    probe.launch(10, 2, S)?;
    probe.launch(1, 5, S)?;
    probe.launch(100, 0, S)?;
    probe.ensure_all(1700, S, "three launches")?;
    Ok(probe.free(S)?)
}

fn load_is_idempotent(device: &DeviceRef) -> Outcome {
    let (first, second) = (device.load_kernel(&spec())?, device.load_kernel(&spec())?);
    ensure!(first == second, "{first:?} and {second:?}");
    Ok(())
}

fn launches_are_counted(device: &DeviceRef) -> Outcome {
    let probe = Probe::new(&**device, S, 10, 0)?;
    let before = launches(&**device);
    for _ in 0..3 {
        probe.launch(1, 1, S)?;
    }
    device.synchronize(S)?;
    let counted = launches(&**device) - before;
    ensure!(counted == 3, "3 launches counted as {counted}");
    Ok(probe.free(S)?)
}

fn streams_are_independent(device: &DeviceRef) -> Outcome {
    let (one, two) = (device.create_stream()?, device.create_stream()?);
    ensure!(one != two && one != S && two != S, "streams {one:?} and {two:?} are not distinct");
    let (a, b) = (Probe::new(&**device, one, 50, 1)?, Probe::new(&**device, two, 50, 2)?);
    a.launch(2, 0, one)?;
    b.launch(2, 0, two)?;
    a.launch(2, 1, one)?;
    b.ensure_all(4, two, "the second stream")?;
    a.ensure_all(5, one, "the first stream")?;
    a.free(one)?;
    b.free(two)?;
    device.destroy_stream(one)?;
    Ok(device.destroy_stream(two)?)
}

fn destroy_drains(device: &DeviceRef) -> Outcome {
    let stream = device.create_stream()?;
    let probe = Probe::new(&**device, stream, 50, 7)?;
    probe.launch(6, 0, stream)?;
    device.destroy_stream(stream)?;
    ensure_refused!(device.synchronize(stream), DeviceError::InvalidArgument { .. });
    probe.ensure_all(42, S, "after the stream was destroyed")?;
    Ok(probe.free(S)?)
}

fn event_orders_streams(device: &DeviceRef) -> Outcome {
    let (producer, consumer) = (device.create_stream()?, device.create_stream()?);
    let event = device.create_event()?;
    let probe = Probe::new(&**device, producer, 200, 1)?;
    let copy = device.alloc(800, consumer)?;
    probe.launch(3, 4, producer)?;
    device.record_event(event, producer)?;
    device.wait_event(consumer, event)?;
    device.copy_on_device(copy, probe.values, 800, consumer)?;
    let got = read(&**device, copy, 200, consumer)?;
    ensure!(got.iter().all(|&v| v == 7), "the consumer saw {:?}…, want 7", &got[..4]);
    device.free(copy, consumer)?;
    device.synchronize(consumer)?;
    probe.free(producer)?;
    device.destroy_event(event)?;
    device.destroy_stream(producer)?;
    Ok(device.destroy_stream(consumer)?)
}

fn wait_means_last_record(device: &DeviceRef) -> Outcome {
    let (producer, consumer) = (device.create_stream()?, device.create_stream()?);
    let event = device.create_event()?;
    let probe = Probe::new(&**device, producer, 8, 1)?;
    device.record_event(event, producer)?;
    probe.launch(1, 1, producer)?;
    device.record_event(event, producer)?;
    device.wait_event(consumer, event)?;
    // A later record does not move an earlier wait.
    device.record_event(event, consumer)?;
    probe.launch(10, 0, consumer)?;
    probe.ensure_all(20, consumer, "after the second record")?;
    probe.free(consumer)?;
    device.synchronize(producer)?;
    device.destroy_event(event)?;
    device.destroy_stream(producer)?;
    Ok(device.destroy_stream(consumer)?)
}

fn unrecorded_wait(device: &DeviceRef) -> Outcome {
    let event = device.create_event()?;
    device.wait_event(S, event)?;
    device.synchronize(S)?;
    Ok(device.destroy_event(event)?)
}

fn elapsed_time(device: &DeviceRef) -> Outcome {
    let (start, end) = (device.create_event()?, device.create_event()?);
    let probe = Probe::new(&**device, S, 1000, 0)?;
    device.record_event(start, S)?;
    for _ in 0..5 {
        probe.launch(1, 1, S)?;
    }
    device.record_event(end, S)?;
    device.synchronize(S)?;
    let (forward, backward) = (device.elapsed_ms(start, end)?, device.elapsed_ms(end, start)?);
    ensure!(forward > 0.0 && forward < 60_000.0, "five launches took {forward} ms");
    ensure!(backward <= 0.0, "backwards they took {backward} ms");
    let never = device.create_event()?;
    ensure!(device.elapsed_ms(start, never).is_err(), "a time was given for an event never recorded");
    for event in [start, end, never] {
        device.destroy_event(event)?;
    }
    Ok(probe.free(S)?)
}

fn threads(device: &DeviceRef) -> Outcome {
    let worker = |start: i32| -> Outcome {
        let device: &dyn Device = &**device;
        let stream = device.create_stream()?;
        for round in 0..4 {
            let probe = Probe::new(device, stream, 64, start)?;
            probe.launch(2, round, stream)?;
            probe.ensure_all(2 * start + round, stream, "in a thread")?;
            probe.free(stream)?;
        }
        Ok(device.destroy_stream(stream)?)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|start| scope.spawn(move || worker(start))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Violation::Broken("a thread panicked".to_owned()))?
        })
    })
}
