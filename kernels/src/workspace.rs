//! Where an arm's scratch comes from: guards of one call, or a workspace that outlives calls and captured graphs.

use crate::device::{DeviceError, DevicePtr, DeviceRef, StreamId};
use crate::scratch::Scratch;

/// What a piece of scratch is for. Pieces of different purpose never share memory within a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Dense 16-bit keys and values.
    Dense,
    /// Block table 0, 1, 2, … of the dense pages.
    IdentityTable,
    /// Partial sums and states of split keys.
    Partials,
}

/// Scratch that is kept between calls on one stream, so that a captured graph finds it where it was.
///
/// A piece that is too small is not replaced but joined by a larger one: a graph captured earlier may still use it.
/// Everything is freed on the workspace's stream when it is dropped, or by [`Workspace::release`].
pub struct Workspace {
    device: DeviceRef,
    stream: StreamId,
    pieces: Vec<(Purpose, Scratch)>,
}

impl Workspace {
    /// An empty workspace of one stream.
    #[must_use]
    pub fn new(device: &DeviceRef, stream: StreamId) -> Self {
        Self { device: DeviceRef::clone(device), stream, pieces: Vec::new() }
    }

    /// The stream that it belongs to.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Purpose and size in bytes of every piece, in the order of their allocation.
    #[must_use]
    pub fn pieces(&self) -> Vec<(Purpose, u64)> {
        self.pieces.iter().map(|(purpose, scratch)| (*purpose, scratch.bytes())).collect()
    }

    /// A piece of at least `bytes` bytes, filled if it is new. One that could not be filled is not kept.
    fn piece(
        &mut self,
        purpose: Purpose,
        bytes: u64,
        fill: impl FnOnce(DevicePtr) -> Result<(), DeviceError>,
    ) -> Result<DevicePtr, DeviceError> {
        let fits = |(p, s): &&(Purpose, Scratch)| *p == purpose && s.bytes() >= bytes;
        if let Some((_, found)) = self.pieces.iter().filter(fits).min_by_key(|(_, s)| s.bytes()) {
            return Ok(found.ptr());
        }
        let scratch = Scratch::new(&self.device, bytes, self.stream)?;
        let ptr = scratch.ptr();
        fill(ptr)?;
        self.pieces.push((purpose, scratch));
        Ok(ptr)
    }

    /// Frees everything in stream order and reports the first failure, after trying all.
    ///
    /// # Errors
    /// What the device reports for the first piece that it refuses to free.
    pub fn release(self) -> Result<(), DeviceError> {
        release_all(self.pieces.into_iter().map(|(_, scratch)| scratch))
    }
}

fn release_all(pieces: impl Iterator<Item = Scratch>) -> Result<(), DeviceError> {
    let mut first = Ok(());
    for piece in pieces {
        let released = piece.release();
        first = first.and(released);
    }
    first
}

/// Where one call takes its scratch from.
pub(crate) enum ScratchSource<'a> {
    /// Guards that end with the call; a failure on the way drops them.
    PerCall { device: DeviceRef, stream: StreamId, taken: Vec<Scratch> },
    /// A workspace that stays.
    Kept(&'a mut Workspace),
}

impl<'a> ScratchSource<'a> {
    pub(crate) fn new(device: &DeviceRef, stream: StreamId, workspace: Option<&'a mut Workspace>) -> Self {
        match workspace {
            Some(workspace) => Self::Kept(workspace),
            None => Self::PerCall { device: DeviceRef::clone(device), stream, taken: Vec::new() },
        }
    }

    /// Memory of at least `bytes` bytes.
    pub(crate) fn take(&mut self, purpose: Purpose, bytes: u64) -> Result<DevicePtr, DeviceError> {
        self.take_filled(purpose, bytes, |_| Ok(()))
    }

    /// The same, filled where its contents are new.
    pub(crate) fn take_filled(
        &mut self,
        purpose: Purpose,
        bytes: u64,
        fill: impl FnOnce(DevicePtr) -> Result<(), DeviceError>,
    ) -> Result<DevicePtr, DeviceError> {
        match self {
            Self::PerCall { device, stream, taken } => {
                let scratch = Scratch::new(device, bytes, *stream)?;
                let ptr = scratch.ptr();
                fill(ptr)?;
                taken.push(scratch);
                Ok(ptr)
            }
            Self::Kept(workspace) => workspace.piece(purpose, bytes, fill),
        }
    }

    /// The checked end of a successful call.
    pub(crate) fn finish(self) -> Result<(), DeviceError> {
        match self {
            Self::PerCall { taken, .. } => release_all(taken.into_iter()),
            Self::Kept(_) => Ok(()),
        }
    }
}
