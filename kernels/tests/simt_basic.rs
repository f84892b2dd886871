//! A kernel compiles, loads and computes the right result in both modes and under every schedule.

mod simt_support;

use kernels::simt::{Mode, Schedule, SimtDevice, SimtOptions};
use simt_support::{config, download, launch, options, spec, upload};

#[repr(C)]
#[derive(Clone, Copy)]
struct SumParams {
    input: u64,
    out: u64,
    n: i32,
    unused: i32,
}

fn block_sums(options: SimtOptions) -> Vec<f32> {
    let device = SimtDevice::new(options).unwrap();
    let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let input = upload(&*device, &values);
    let out = upload(&*device, &[0.0_f32; 3]);
    let params = SumParams { input: input.0, out: out.0, n: 1000, unused: 0 };
    launch(&*device, &spec("basic.cu", "block_sum"), config(3, 128, 16), &params).unwrap();
    download(&*device, out, 3)
}

#[test]
fn a_block_sum_is_exact_in_both_modes_and_every_schedule() {
    let want: Vec<f32> =
        (0..3).map(|b| (0..1000).filter(|i| i / 128 % 3 == b).map(|i| i as f32).sum()).collect();
    for mode in [Mode::Fast, Mode::Checked] {
        for schedule in [Schedule::Forward, Schedule::Reverse, Schedule::Random(1), Schedule::Random(2)] {
            let got = block_sums(SimtOptions { schedule, ..options(mode) });
            assert_eq!(got, want, "{mode:?} {schedule:?}");
        }
    }
}
