//! Scratch that outlives a failed call: the next call on it is right all the same.

use fault_injection::operations::batch::{Batch, BatchShape};
use fault_injection::{FaultPlan, FaultyDevice, KindSet};
use kernels::ahead::DenseAhead;
use kernels::arm::Arm;
use kernels::device::{DeviceRef, StreamId};
use kernels::error::LaunchError;
use kernels::route::Knobs;
use kernels::simt::{SimtDevice, SimtOptions};
use kernels::source::SourceSet;
use kernels::tensor::DType;
use kernels::workspace::Workspace;

const STREAM: StreamId = StreamId::DEFAULT;
const SHAPE: BatchShape = BatchShape {
    q_lens: &[5, 6],
    kv_lens: &[12, 6],
    heads: (2, 2),
    head_dim: 64,
    page_size: 4,
    q_dtype: DType::Bf16,
    kv_dtype: DType::E4m3,
};

/// Fails each call of `attend` in turn, then asks again, on the same scratch, without a fault.
fn every_failure_is_forgotten(attend: impl Fn(&DeviceRef, &Batch) -> Box<Attend>) {
    let simt = SimtDevice::new(SimtOptions::new(SourceSet::load().expect("kernel sources"))).unwrap();
    let faulty = FaultyDevice::new(simt);
    let device: DeviceRef = faulty.handle();
    let batch = Batch::new(&device, &SHAPE).unwrap();
    let clear = || batch.clear(&device, STREAM).unwrap();
    clear();
    attend(&device, &batch)(&batch).unwrap();
    let want = batch.read(&device, STREAM).unwrap();
    let mut failed = 0;
    for nth in 1.. {
        let mut attend = attend(&device, &batch);
        clear();
        faulty.arm(FaultPlan::nth(nth).of(KindSet::ALL));
        let first = attend(&batch);
        let fired = !faulty.fired().is_empty();
        faulty.disarm();
        if !fired {
            first.unwrap();
            break;
        }
        first.unwrap_err();
        failed += 1;
        clear();
        attend(&batch).unwrap();
        assert!(batch.read(&device, STREAM).unwrap() == want, "after call {nth} had failed");
    }
    assert!(failed >= 5, "{failed} calls could fail");
}

type Attend = dyn FnMut(&Batch) -> Result<(), LaunchError>;

#[test]
fn a_workspace() {
    every_failure_is_forgotten(|device, _| {
        let (device, mut workspace) = (DeviceRef::clone(device), Workspace::new(device, STREAM));
        Box::new(move |batch| {
            kernels::launch::paged_attention_with(
                &device,
                STREAM,
                Some(Arm::Fp8Dense),
                &batch.args,
                &Knobs::default(),
                Some(&mut workspace),
            )
            .map(drop)
        })
    });
}

/// The call is announced to itself, so that the second attempt may find it dequantised ahead, or only thinks so.
#[test]
fn areas_of_calls_dequantised_ahead() {
    every_failure_is_forgotten(|device, _| {
        let mut ahead = DenseAhead::new(device, STREAM).unwrap();
        Box::new(move |batch| ahead.attend(&batch.args, &Knobs::default(), Some(&batch.args)).map(drop))
    });
}
