//! What one operation costs on the `simt` device, in checked and in fast mode, and the scalar kernel as a whole.
//!
//! `cargo bench -p kernels`. Times are processor time of the calling thread, which does all the work, the best of several
//! runs; in nanoseconds per lane and operation unless said otherwise. Every kernel runs one block of 128 lanes.

#[path = "../tests/support/attention.rs"]
mod attention;
#[path = "../tests/simt_support/mod.rs"]
mod simt_support;
#[path = "../tests/support/mod.rs"]
mod support;

use attention::{Batch, Problem};
use kernels::arm::Arm;
use kernels::device::Device;
use kernels::launch::paged_attention;
use kernels::simt::{Mode, SimtDevice};
use kernels::source::SourceSet;
use kernels::tensor::DType;
use simt_support::{STREAM, bytes_of, config, device, spec, upload};

const LANES: u32 = 128;
const REPEATS: usize = 7;

#[repr(C)]
#[derive(Clone, Copy)]
struct BenchParams {
    input: u64,
    out: u64,
    rounds: i32,
    unused: i32,
}

/// Processor time of this thread so far, in nanoseconds: other processes do not count.
fn thread_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the record.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Best time of a run, in nanoseconds.
fn best_ns(mut run: impl FnMut()) -> f64 {
    let times = (0..REPEATS).map(|_| {
        let start = thread_ns();
        run();
        thread_ns() - start
    });
    times.fold(f64::INFINITY, f64::min)
}

/// Nanoseconds per lane and round, the cost of an empty launch taken off.
fn per_operation(device: &SimtDevice, entry: &'static str, rounds: i32) -> f64 {
    let (input, out) = (upload(device, &[1.0_f32; 1024]), upload(device, &[0.0_f32; LANES as usize]));
    let time = |entry, rounds| {
        let kernel = device.load_kernel(&spec("bench.cu", entry)).expect("a kernel");
        let params = BenchParams { input: input.0, out: out.0, rounds, unused: 0 };
        best_ns(|| {
            device.launch(kernel, config(1, LANES, 4096), bytes_of(&params), STREAM).expect("a launch");
            device.synchronize(STREAM).expect("no findings");
        })
    };
    (time(entry, rounds) - time("bench_nothing", 0)) / (f64::from(rounds) * f64::from(LANES))
}

/// Microseconds of an empty launch with this many blocks and bytes of shared memory.
fn launch_us(device: &SimtDevice, blocks: u32, shared_bytes: u32) -> f64 {
    let kernel = device.load_kernel(&spec("bench.cu", "bench_nothing")).expect("a kernel");
    let params = BenchParams { input: 0, out: 0, rounds: 0, unused: 0 };
    best_ns(|| {
        device
            .launch(kernel, config(blocks, LANES, shared_bytes), bytes_of(&params), STREAM)
            .expect("a launch");
        device.synchronize(STREAM).expect("no findings");
    }) / 1e3
}

fn attention_ms(mode: Mode) -> f64 {
    let device = support::device_with(mode, SourceSet::load().expect("kernel sources"));
    let mut problem = Problem::new(DType::F32, DType::F32, (1, 1), 64).lens(&[64], &[64]);
    problem.page_size = 16;
    let batch = Batch::new(&device, problem, 1);
    let run = || {
        paged_attention(&device, STREAM, Arm::Scalar, &batch.args).expect("a launch");
        device.synchronize(STREAM).expect("no findings");
    };
    run();
    best_ns(run) / 1e6
}

fn main() {
    let (checked, fast) = (device(Mode::Checked), device(Mode::Fast));
    println!("{:<34} {:>10} {:>10} {:>8}", "ns per lane and operation", "checked", "fast", "ratio");
    for (name, entry, rounds) in [
        ("16-byte read, shared", "bench_shared_read", 2000),
        ("4-byte write, shared", "bench_shared_write", 2000),
        ("4-byte read, global", "bench_global_read", 2000),
        ("__syncthreads", "bench_barrier", 500),
        ("shuffle", "bench_shuffle", 500),
        ("mma.m16n8k16", "bench_mma", 200),
        ("ldmatrix.x4", "bench_ldmatrix", 200),
    ] {
        let (slow, quick) = (per_operation(&checked, entry, rounds), per_operation(&fast, entry, rounds));
        println!("{name:<34} {slow:>10.1} {quick:>10.1} {:>8.1}", slow / quick);
    }
    for (name, blocks) in [("empty launch, 1 block (µs)", 1), ("empty launch, 100 blocks (µs)", 100)] {
        let (slow, quick) = (launch_us(&checked, blocks, 96 << 10), launch_us(&fast, blocks, 96 << 10));
        println!("{name:<34} {slow:>10.1} {quick:>10.1} {:>8.1}", slow / quick);
    }
    let (slow, quick) = (attention_ms(Mode::Checked), attention_ms(Mode::Fast));
    let name = "scalar, T 64, dim 64, 1 head (ms)";
    println!("{name:<34} {slow:>10.2} {quick:>10.2} {:>8.1}", slow / quick);
}
