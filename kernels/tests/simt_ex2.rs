//! Kernels reach the bit-exact power of two, in both modes.

mod simt_support;

use kernels::simt::{Mode, ex2_approx_ftz};
use simt_support::{config, device, download, launch, spec, upload};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    arguments: u64,
    results: u64,
    count: i32,
    unused: i32,
}

#[test]
fn a_kernel_gets_the_bits_of_the_instruction() {
    // Signs, exponents, subnormals, infinity and NaN.
    let mut arguments: Vec<u32> = (0..4000_u32).map(|i| i.wrapping_mul(0x9e37_79b1)).collect();
    arguments.extend([0.0, -0.0, 0.5, -0.3, 127.9, -126.0, f32::INFINITY, f32::NAN].map(f32::to_bits));
    let want: Vec<u32> = arguments.iter().map(|&x| ex2_approx_ftz(f32::from_bits(x)).to_bits()).collect();
    for mode in [Mode::Fast, Mode::Checked] {
        let device = device(mode);
        let results = upload(&*device, &vec![0_u32; arguments.len()]);
        let params = Params {
            arguments: upload(&*device, &arguments).0,
            results: results.0,
            count: arguments.len() as i32,
            unused: 0,
        };
        launch(&*device, &spec("ex2.cu", "power_of_two"), config(1, 128, 0), &params).unwrap();
        assert_eq!(download::<u32>(&*device, results, arguments.len()), want, "{mode:?}");
    }
}
