//! Speed of the reference, in GFLOP/s with causal attention counted as 4·Hq·D·T²/2, and of a row sample.
//!
//! `scripts/peers/reference_numpy.py` times NumPy and PyTorch on the same shapes.

use std::time::Instant;

use ndarray::Array3;
use oracle::{
    AttentionOptions, BoundModel, Format, Request, Rows, attend_f32, attend_f64, attend_f64_blocked,
    attend_f64_values,
};

const REPEATS: usize = 7;

struct Shape {
    q_heads: usize,
    kv_heads: usize,
    dim: usize,
    len: usize,
}

const SHAPES: [Shape; 3] = [
    Shape { q_heads: 8, kv_heads: 2, dim: 128, len: 1024 },
    Shape { q_heads: 8, kv_heads: 2, dim: 128, len: 4096 },
    Shape { q_heads: 32, kv_heads: 4, dim: 256, len: 1024 },
];

fn array(len: usize, heads: usize, dim: usize) -> Array3<f32> {
    let mut state = (len * 31 + heads * 7 + dim) as u32;
    Array3::from_shape_simple_fn((len, heads, dim), || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state as f32 / u32::MAX as f32 - 0.5
    })
}

/// Median of the repeats, in seconds, after one run to warm up.
fn median_seconds<T>(mut work: impl FnMut() -> T) -> f64 {
    std::hint::black_box(work());
    let mut seconds: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            std::hint::black_box(work());
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[REPEATS / 2]
}

fn main() {
    for shape in &SHAPES {
        let Shape { q_heads, kv_heads, dim, len } = *shape;
        let (q, k, v) = (array(len, q_heads, dim), array(len, kv_heads, dim), array(len, kv_heads, dim));
        let request = Request { q: q.view(), k: k.view(), v: v.view() };
        let options = AttentionOptions::causal(1.0 / (dim as f64).sqrt());
        let model = BoundModel::new(Format::Bf16, 64);
        let flop = 4.0 * (q_heads * dim) as f64 * (len as f64).powi(2) / 2.0;
        let report = |what: &str, seconds: f64| {
            println!(
                "{q_heads}/{kv_heads} d{dim} T {len:<5} {what:<22} {:9.1} ms {:7.1} GFLOP/s",
                seconds * 1e3,
                flop / seconds / 1e9
            );
        };
        report("f32", median_seconds(|| attend_f32(&request, &options, Rows::All).expect("valid")));
        report("f64", median_seconds(|| attend_f64_values(&request, &options, Rows::All).expect("valid")));
        let bounded = || attend_f64_blocked(&request, &options, &model, Rows::All).expect("valid");
        report("f64 with bound", median_seconds(bounded));
    }
    judge();
    sample();
}

/// The plain judge, on a shape as most cases have.
fn judge() {
    let (q, k, v) = (array(128, 8, 128), array(256, 2, 128), array(256, 2, 128));
    let request = Request { q: q.view(), k: k.view(), v: v.view() };
    let options = AttentionOptions::causal(0.088);
    let model = BoundModel::new(Format::Bf16, 64);
    let judge = median_seconds(|| attend_f64(&request, &options, &model, Rows::All).expect("valid"));
    let fast = median_seconds(|| attend_f64_blocked(&request, &options, &model, Rows::All).expect("valid"));
    println!("8/2 d128 q 128 of 256  judge {:.1} ms, f64 with bound {:.1} ms", judge * 1e3, fast * 1e3);
}

/// A long request checked on a sample of its rows.
fn sample() {
    let len = 32 * 1024;
    let (q, k, v) = (array(len, 32, 128), array(len, 8, 128), array(len, 8, 128));
    let request = Request { q: q.view(), k: k.view(), v: v.view() };
    let rows: Vec<usize> = (0..64).map(|i| i * (len - 1) / 63).collect();
    let options = AttentionOptions::causal(0.088);
    let model = BoundModel::new(Format::Bf16, 64);
    let start = Instant::now();
    attend_f64_blocked(&request, &options, &model, Rows::Sample(&rows)).expect("valid");
    println!("32/8 d128 T {len}  64 sampled rows with bound: {:.2} s", start.elapsed().as_secs_f64());
}
