//! Owners of streams, events, graphs and captures: each gives its handle back, on every way out.
//!
//! As with [`crate::scratch::Scratch`], dropping reports nothing, since on the way out of a failure the first error is the
//! one that counts; `release` is the checked path of success.

use crate::device::{DeviceError, DeviceRef, EventId, GraphId, StreamId};

macro_rules! guard {
    ($(#[$doc:meta])* $name:ident, $id:ty, $destroy:ident) => {
        $(#[$doc])*
        pub struct $name {
            device: DeviceRef,
            id: Option<$id>,
        }

        impl $name {
            fn own(device: &DeviceRef, id: $id) -> Self {
                Self { device: DeviceRef::clone(device), id: Some(id) }
            }

            /// The handle.
            #[must_use]
            pub fn id(&self) -> $id {
                self.id.expect("a guard holds its handle until it is released")
            }

            /// Gives the handle back.
            ///
            /// # Errors
            /// What the device reports.
            pub fn release(mut self) -> Result<(), DeviceError> {
                self.id.take().map_or(Ok(()), |id| self.device.$destroy(id))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if let Some(id) = self.id.take() {
                    let _ = self.device.$destroy(id);
                }
            }
        }
    };
}

guard!(/// Owns a stream.
    OwnedStream, StreamId, destroy_stream);
guard!(/// Owns an event.
    OwnedEvent, EventId, destroy_event);
guard!(/// Owns a graph.
    OwnedGraph, GraphId, destroy_graph);

impl OwnedStream {
    /// A new stream.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(device: &DeviceRef) -> Result<Self, DeviceError> {
        device.create_stream().map(|id| Self::own(device, id))
    }

    /// A new stream whose work gives way to that of others.
    ///
    /// # Errors
    /// What the device reports.
    pub fn background(device: &DeviceRef) -> Result<Self, DeviceError> {
        device.create_background_stream().map(|id| Self::own(device, id))
    }
}

impl OwnedEvent {
    /// A new event.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(device: &DeviceRef) -> Result<Self, DeviceError> {
        device.create_event().map(|id| Self::own(device, id))
    }
}

/// A stream that is recording. Dropped without [`Capture::end`], it stops recording and throws the graph away.
pub struct Capture {
    device: DeviceRef,
    stream: StreamId,
    open: bool,
}

impl Capture {
    /// Starts recording a stream.
    ///
    /// # Errors
    /// What the device reports.
    pub fn begin(device: &DeviceRef, stream: StreamId) -> Result<Self, DeviceError> {
        device.begin_capture(stream)?;
        Ok(Self { device: DeviceRef::clone(device), stream, open: true })
    }

    /// Stops recording.
    ///
    /// # Errors
    /// What the device reports; the stream is not recording any more in that case either.
    pub fn end(mut self) -> Result<OwnedGraph, DeviceError> {
        self.open = false;
        self.device.end_capture(self.stream).map(|id| OwnedGraph::own(&self.device, id))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.open
            && let Ok(graph) = self.device.end_capture(self.stream)
        {
            let _ = self.device.destroy_graph(graph);
        }
    }
}
