//! Comparing what a device returned with what the reference allows. Pure functions of bytes.

mod attention;
mod probe;
mod store;

pub use attention::{AttentionOutput, differences, judge_attention};
pub use store::judge_store;

use crate::executor::Job;
use crate::verdict::Failure;

/// Buffers that came back although they are inputs, and differ from what was sent. `outputs` are left out.
#[must_use]
pub fn modified_inputs(job: &Job, returned: &[Vec<u8>], outputs: &[usize]) -> Vec<Failure> {
    let sent = job.buffers.iter().enumerate().filter(|(_, buffer)| buffer.returned);
    let pairs = sent.zip(returned).filter(|((index, _), _)| !outputs.contains(index));
    pairs
        .filter_map(|((_, buffer), after)| {
            let changed = || buffer.bytes.iter().zip(after).enumerate().filter(|(_, (a, b))| a != b);
            let (first, _) = changed().next()?;
            Some(Failure::Modified { buffer: buffer.name.clone(), bytes: changed().count(), first })
        })
        .collect()
}
