//! An executor that answers jobs with what an impostor computes: no device, no kernel, the same judgement.

use std::sync::Arc;
use std::time::Duration;

use kernels::device::{DeviceInfo, DeviceRef};
use ndarray::s;

use super::call::{Call, format};
use super::recipe::{Answer, HONEST, cook};
use super::storing::{HONEST_STORE, store};
use super::{Behaviour, Impostor};
use crate::executor::device_side::Devices;
use crate::executor::protocol::{AttentionCall, Status};
use crate::executor::{Executor, Job, Operation, Outcome, PoolUse, Reply};
use crate::job::runs;
use crate::session::recorder::Recorder;

/// Answers as an impostor does, or rightly.
pub struct ImpostorExecutor<'a> {
    impostor: Option<&'a Impostor>,
    /// What the launch code is told about the card when it validates a call that it must refuse.
    info: DeviceInfo,
    /// Whether jobs are given to the launch code's validation first, as for cases that must be refused.
    validates: bool,
}

impl<'a> ImpostorExecutor<'a> {
    /// Answers as `impostor` does.
    #[must_use]
    pub fn new(impostor: &'a Impostor, info: DeviceInfo, validates: bool) -> Self {
        Self { impostor: Some(impostor), info, validates }
    }

    /// Answers every job rightly, computed in f64: what no check may reject.
    #[must_use]
    pub fn honest(info: DeviceInfo, validates: bool) -> Self {
        Self { impostor: None, info, validates }
    }

    fn refusal(&self, job: &Job) -> Option<Reply> {
        if !self.validates {
            return None;
        }
        let device: DeviceRef = Arc::new(Recorder::new(self.info.clone()));
        let reply = Devices::with(job.device.clone(), device).run(job);
        // The recorder's memory holds nothing; a refused call leaves every buffer as it was.
        (reply.status != Status::Completed).then(|| Reply { buffers: untouched(job), ..reply })
    }
}

impl Executor for ImpostorExecutor<'_> {
    fn run(&mut self, job: &Job, _limit: Duration) -> Outcome {
        let mut reply = self.refusal(job).unwrap_or_else(|| computed(self.impostor, job));
        if let Some(Impostor { behaviour: Behaviour::Reply(change), .. }) = self.impostor {
            change(job, &mut reply);
        }
        Outcome::Replied(reply)
    }
}

fn untouched(job: &Job) -> Vec<Vec<u8>> {
    job.buffers.iter().filter(|buffer| buffer.returned).map(|buffer| buffer.bytes.clone()).collect()
}

fn computed(impostor: Option<&Impostor>, job: &Job) -> Reply {
    let mut all: Vec<Vec<u8>> = job.buffers.iter().map(|buffer| buffer.bytes.clone()).collect();
    let behaviour = impostor.map(|impostor| impostor.behaviour);
    match &job.operation {
        Operation::Attention { call, .. } => {
            let recipe = match behaviour {
                Some(Behaviour::Attention(recipe)) => recipe,
                _ => HONEST,
            };
            let answer = cook(&recipe, &Call::new(job, call));
            write_answer(call, &answer, &mut all);
        }
        Operation::Store(call) => {
            let recipe = match behaviour {
                Some(Behaviour::Store(recipe)) => recipe,
                _ => HONEST_STORE,
            };
            store(&recipe, job, call, &mut all);
        }
    }
    let returned = job.buffers.iter().zip(all).filter(|(buffer, _)| buffer.returned);
    Reply {
        status: Status::Completed,
        launches: 1,
        pool: PoolUse::default(),
        buffers: returned.map(|(_, bytes)| bytes).collect(),
    }
}

/// Rounds the answer to the formats of `out` and `lse` and writes what the kernel writes.
fn write_answer(call: &AttentionCall, answer: &Answer, buffers: &mut [Vec<u8>]) {
    let out = format(call.out.dtype);
    let heads = answer.out.dim().1;
    let rows = runs(&call.out);
    for ((place, head), written) in answer.writes_out.indexed_iter() {
        if *written {
            let values: Vec<f32> =
                answer.out.slice(s![place, head, ..]).iter().map(|x| out.round(*x) as f32).collect();
            let row = rows[place * heads + head].clone();
            buffers[call.out.buffer][row].copy_from_slice(&out.encode_to_bytes(&values));
        }
    }
    let Some(lse) = &call.lse else { return };
    let values: Vec<usize> = runs(lse).into_iter().flat_map(|run| run.step_by(4)).collect();
    for ((place, head), written) in answer.writes_lse.indexed_iter() {
        if *written {
            let at = values[place * heads + head];
            let value = answer.lse[[place, head]] as f32;
            buffers[lse.buffer][at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
    }
}
