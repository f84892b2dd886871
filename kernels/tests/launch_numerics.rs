//! The device's number formats and elementary functions, against their definitions in f64.

mod support;

use std::fmt::Write;

use kernels::device::{DeviceRef, LaunchConfig};
use kernels::simt::Mode;
use kernels::source::{KernelSpec, SourceSet};
use kernels::tensor::DType;
use rstest::rstest;
use support::{STREAM, definition, device_with, download, upload};

// One block of 32 lanes, each of which takes a run of the inputs.
const PROBE: &str = r#"
#include "elementary.cuh"

struct ProbeParams {
    const u32* in;
    u32* out;
    i64 count;
};

ATTEST_KERNEL(probe, ProbeParams, 32) {
    const i64 run = (p.count + 31) / 32;
    const i64 end = (threadIdx.x + 1) * run < p.count ? (threadIdx.x + 1) * run : p.count;
    for (i64 i = threadIdx.x * run; i < end; ++i) {
        const u32 x = p.in[i];
        p.out[i] = OPERATION;
    }
}
"#;

fn probe_device() -> DeviceRef {
    device_with(Mode::Fast, SourceSet::load().unwrap().with_file("probe.cu", PROBE))
}

/// Applies a device expression of the word `x` to every input.
fn apply(device: &DeviceRef, operation: &str, inputs: &[u32]) -> Vec<u32> {
    let bytes: Vec<u8> = inputs.iter().flat_map(|x| x.to_le_bytes()).collect();
    let (from, to) = (upload(device, &bytes), upload(device, &vec![0; bytes.len()]));
    let spec =
        KernelSpec { file: "probe.cu", entry: "probe", defines: vec![("OPERATION", operation.to_owned())] };
    let kernel = device.load_kernel(&spec).expect("the probe compiles");
    let params: Vec<u8> =
        [from.ptr.0, to.ptr.0, inputs.len() as u64].iter().flat_map(|word| word.to_le_bytes()).collect();
    let config = LaunchConfig { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
    device.launch(kernel, config, &params, STREAM).expect("a launch");
    let out = download(device, to)
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect();
    for allocation in [from, to] {
        device.free(allocation.ptr, STREAM).expect("a free");
    }
    out
}

fn codec(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::Bf16 => "Bf16",
        DType::F16 => "F16",
        DType::E4m3 => "E4m3",
        DType::E5m2 => "E5m2",
        DType::I32 | DType::I64 => panic!("not a float"),
    }
}

/// Reports the first few differences, so that a failure shows its pattern.
#[track_caller]
fn assert_none(what: &str, differences: impl Iterator<Item = String>) {
    let mut text = String::new();
    let mut count = 0;
    for difference in differences {
        count += 1;
        if count <= 10 {
            writeln!(text, "  {difference}").unwrap();
        }
    }
    assert!(count == 0, "{what}: {count} differences\n{text}");
}

#[rstest]
fn every_code_decodes_exactly(#[values(DType::Bf16, DType::F16, DType::E4m3, DType::E5m2)] dtype: DType) {
    let definition = definition(dtype);
    let codes: Vec<u32> = (0..1 << (8 * dtype.size_bytes())).collect();
    let got = apply(&probe_device(), &format!("f32_bits({}::decode(x))", codec(dtype)), &codes);
    assert_none(
        "decode",
        codes.iter().zip(&got).filter_map(|(code, got)| {
            let (want, got) = (definition.decode(*code), f64::from(f32::from_bits(*got)));
            let same = if want.is_nan() {
                got.is_nan() && got.is_sign_negative() == want.is_sign_negative()
            } else {
                got == want && got.is_sign_negative() == want.is_sign_negative()
            };
            (!same).then(|| format!("code {code:#x} decodes to {got}, want {want}"))
        }),
    );
}

/// Every f32 at which an encoder's answer can change: each code, the midpoints between neighbours, and their f32 neighbours.
fn boundaries(dtype: DType) -> Vec<u32> {
    let definition = definition(dtype);
    let mut points = vec![0_f32, f32::MIN_POSITIVE, f32::from_bits(1), f32::MAX, f32::INFINITY];
    for code in 0..=definition.largest_code() {
        let here = definition.decode(code);
        let next = if code == definition.largest_code() {
            2.0 * here - definition.decode(code - 1)
        } else {
            definition.decode(code + 1)
        };
        points.extend([here as f32, ((here + next) / 2.0) as f32, next as f32]);
    }
    points.extend([448.0, 449.0, 464.0, 465.0, 57344.0, 61439.0, 61440.0, 65504.0, 65519.996, 65520.0]);
    let mut words: Vec<u32> = points
        .iter()
        .map(|x| x.to_bits())
        .flat_map(|bits| [bits.saturating_sub(1), bits, bits + 1])
        .chain([0x7fc0_0000, 0x7f80_0001, 0x7fff_ffff])
        .flat_map(|bits| [bits, bits | 0x8000_0000])
        .collect();
    words.sort_unstable();
    words.dedup();
    words
}

#[rstest]
fn every_rounding_boundary_encodes_to_the_nearest_code(
    #[values(DType::Bf16, DType::F16, DType::E4m3, DType::E5m2)] dtype: DType,
) {
    let definition = definition(dtype);
    let words = boundaries(dtype);
    let got = apply(&probe_device(), &format!("{}::encode(make_f32(x))", codec(dtype)), &words);
    assert_none(
        "encode",
        words.iter().zip(&got).filter_map(|(word, got)| {
            let x = f32::from_bits(*word);
            let want = definition.encode(f64::from(x).copysign(if word >> 31 == 1 { -1.0 } else { 1.0 }));
            (*got != want).then(|| format!("{x} ({word:#x}) encodes to {got:#x}, want {want:#x}"))
        }),
    );
}

#[rstest]
fn every_16_bit_value_encodes_to_the_nearest_fp8_code(
    #[values(DType::Bf16, DType::F16)] source: DType,
    #[values(DType::E4m3, DType::E5m2)] dtype: DType,
) {
    let (from, to) = (definition(source), definition(dtype));
    let codes: Vec<u32> = (0..0x1_0000).collect();
    let operation = format!("{}::encode({}::decode(x))", codec(dtype), codec(source));
    let got = apply(&probe_device(), &operation, &codes);
    assert_none(
        "encode",
        codes.iter().zip(&got).filter_map(|(code, got)| {
            let want = to.encode(from.decode(*code));
            (*got != want).then(|| format!("{source} {code:#x} encodes to {got:#x}, want {want:#x}"))
        }),
    );
}

#[rstest]
fn codes_survive_decoding_and_encoding(
    #[values(DType::F32, DType::Bf16, DType::F16, DType::E4m3, DType::E5m2)] dtype: DType,
) {
    let codes: Vec<u32> = match dtype.size_bytes() {
        4 => (0..0x1_0000_u32).map(|i| i.wrapping_mul(65_537) ^ 0x3f80_0000).collect(),
        bytes => (0..1 << (8 * bytes)).collect(),
    };
    let got = apply(&probe_device(), &format!("{0}::encode({0}::decode(x))", codec(dtype)), &codes);
    let definition = definition(dtype);
    assert_none(
        "round trip",
        codes.iter().zip(&got).filter_map(|(code, got)| {
            let x = definition.decode(*code);
            // fp8 encoding saturates, so the infinities of e5m2 come back as the largest value.
            let same = got == code || x.is_nan() || (dtype == DType::E5m2 && x.is_infinite());
            (!same).then(|| format!("{code:#x} comes back as {got:#x}"))
        }),
    );
}

/// Error in units of the last place of an f32 near `want`.
fn ulps(got: f32, want: f64) -> f64 {
    if got.is_infinite() && want.abs() > f64::from(f32::MAX) {
        return 0.0;
    }
    let exponent = want.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor() as i32;
    (f64::from(got) - want).abs() / 2_f64.powi(exponent - 23)
}

type Reference = fn(f64) -> f64;

#[rstest]
#[case::exp2_negative("exp2_f32", f64::exp2, 0x8000_0000..0xc316_0000, 1.0)]
#[case::exp2_positive("exp2_f32", f64::exp2, 0..0x4300_0000, 1.0)]
#[case::exp_negative("exp_f32", f64::exp, 0x8000_0000..0xc2d0_0000, 1.0)]
#[case::exp_positive("exp_f32", f64::exp, 0..0x42b1_7000, 1.0)]
#[case::ln("ln_f32", f64::ln, 1..0x7f80_0000, 1.0)]
#[case::ln_near_one("ln_f32", f64::ln, 0x3f70_0000..0x3f90_0000, 1.0)]
#[case::tanh("tanh_f32", f64::tanh, 0..0x4200_0000, 1.5)]
#[case::tanh_negative("tanh_f32", f64::tanh, 0x8000_0000..0xc200_0000, 1.5)]
fn elementary_functions_are_accurate(
    #[case] name: &str,
    #[case] reference: Reference,
    #[case] range: std::ops::Range<u32>,
    #[case] allowed_ulps: f64,
) {
    // A prime step, so that every exponent meets mantissas of every kind.
    let step = ((range.end - range.start) / 500_000) | 1;
    let words: Vec<u32> = range.step_by(step as usize).collect();
    let got = apply(&probe_device(), &format!("f32_bits({name}(make_f32(x)))"), &words);
    assert_none(
        name,
        words.iter().zip(&got).filter_map(|(word, got)| {
            let (x, got) = (f32::from_bits(*word), f32::from_bits(*got));
            let want = reference(f64::from(x));
            let error = ulps(got, want);
            // Written so that a NaN is a difference.
            let close = error <= allowed_ulps;
            (!close).then(|| format!("{name}({x:e}) is {got:e}, want {want:e}: {error:.2} ulp"))
        }),
    );
}

#[test]
fn exp2_is_exact_at_integers() {
    let words: Vec<u32> = (-149..=127).map(|n| (n as f32).to_bits()).collect();
    let got = apply(&probe_device(), "f32_bits(exp2_f32(make_f32(x)))", &words);
    for (n, got) in (-149..=127).zip(got) {
        assert_eq!(f64::from(f32::from_bits(got)), 2_f64.powi(n), "2^{n}");
    }
}

#[rstest]
#[case("exp2_f32", &[(f32::NEG_INFINITY, 0.0), (f32::INFINITY, f32::INFINITY), (f32::NAN, f32::NAN), (-1e30, 0.0), (1e30, f32::INFINITY), (128.0, f32::INFINITY), (-150.5, 0.0)])]
#[case("exp_f32", &[(f32::NEG_INFINITY, 0.0), (f32::INFINITY, f32::INFINITY), (f32::NAN, f32::NAN), (0.0, 1.0), (-0.0, 1.0), (89.0, f32::INFINITY), (-1e30, 0.0)])]
#[case("ln_f32", &[(0.0, f32::NEG_INFINITY), (-0.0, f32::NEG_INFINITY), (1.0, 0.0), (f32::INFINITY, f32::INFINITY), (f32::NAN, f32::NAN), (-1.0, f32::NAN)])]
#[case("tanh_f32", &[(f32::INFINITY, 1.0), (f32::NEG_INFINITY, -1.0), (f32::NAN, f32::NAN), (0.0, 0.0), (-0.0, -0.0), (1e-40, 1e-40), (30.0, 1.0)])]
fn elementary_functions_at_their_edges(#[case] name: &str, #[case] pairs: &[(f32, f32)]) {
    let words: Vec<u32> = pairs.iter().map(|(x, _)| x.to_bits()).collect();
    let got = apply(&probe_device(), &format!("f32_bits({name}(make_f32(x)))"), &words);
    for ((x, want), got) in pairs.iter().zip(got) {
        let got = f32::from_bits(got);
        let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(same, "{name}({x}) is {got}, want {want}");
    }
}
