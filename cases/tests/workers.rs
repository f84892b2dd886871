//! Workers and the threads that use them.

use std::sync::Arc;
use std::time::Duration;

use cases::executor::{DeviceSpec, Executor, Job, Outcome, Worker};
use cases::inputs::StoreInputs;
use cases::job::store_job;
use kernels::device::DeviceKind;

const LIMIT: Duration = Duration::from_secs(60);

fn job() -> Job {
    let case = "store bf16 kv=bf16 h2/2 d16 page4 NHD q=[3] kv=[8] seed=9".parse().unwrap();
    let device = DeviceSpec { kind: DeviceKind::Simt, checked: false, schedule: None };
    store_job(&case, &StoreInputs::generate(&case).unwrap(), &device)
}

/// Pools hand workers from thread to thread. That the first one has ended says nothing about the kernel of the next job.
#[test]
fn a_worker_outlives_the_thread_that_started_it() {
    let first = std::thread::spawn(|| {
        let mut worker = Worker::new(env!("CARGO_BIN_EXE_attest").into(), Arc::default());
        let outcome = worker.run(&job(), LIMIT);
        assert!(matches!(outcome, Outcome::Replied(_)), "{outcome:?}");
        worker
    });
    let mut worker = first.join().unwrap();
    // Long enough for a signal to arrive.
    std::thread::sleep(Duration::from_millis(200));
    let outcome = worker.run(&job(), LIMIT);
    assert!(matches!(outcome, Outcome::Replied(_)), "{outcome:?}");
}
