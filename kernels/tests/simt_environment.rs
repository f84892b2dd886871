//! What surrounds the device: the compiler, the cache, fresh memory, and the end of a process that runs wild.

mod simt_support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use kernels::device::{Device, DeviceError, DeviceResult};
use kernels::simt::{Fill, Mode, SimtDevice, SimtOptions};
use kernels::source::KernelSpec;
use simt_support::{STREAM, config, device, download, launch, options, spec, upload};

#[repr(C)]
#[derive(Clone, Copy)]
struct FaultParams {
    a: u64,
    b: u64,
    n: i32,
    fault: i32,
}

fn environment_error<T: std::fmt::Debug>(result: DeviceResult<T>) -> String {
    match result {
        Err(DeviceError::Environment(text)) => text,
        Err(other) => panic!("expected an error of the surroundings, got {other:?}"),
        Ok(_) => panic!("expected an error of the surroundings"),
    }
}

fn script(dir: &Path, text: &str) -> std::ffi::OsString {
    let path = dir.join("compiler");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.into()
}

fn with_compiler(compiler: std::ffi::OsString, cache: &Path) -> SimtOptions {
    SimtOptions { compiler: Some(compiler), cache_dir: Some(cache.to_owned()), ..options(Mode::Fast) }
}

#[test]
fn a_missing_compiler_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let options = with_compiler("no-such-compiler-here".into(), dir.path());
    let text = environment_error(SimtDevice::new(options).map(|_| ()));
    assert!(text.contains("no C++ compiler") && text.contains("no-such-compiler-here"), "{text}");
}

#[test]
fn a_broken_compiler_is_not_the_kernels_fault() {
    let dir = tempfile::tempdir().unwrap();
    let silent = script(dir.path(), "echo 'cannot find cc1plus' >&2; exit 1");
    let text = environment_error(SimtDevice::new(with_compiler(silent, dir.path())).map(|_| ()));
    assert!(text.contains("broken C++ compiler") && text.contains("cannot find cc1plus"), "{text}");

    let dir = tempfile::tempdir().unwrap();
    let talks =
        "if [ \"$1\" = --version ]; then echo 'g++ 99'; exit 0; fi; echo 'internal error' >&2; exit 1";
    let broken = script(dir.path(), talks);
    let device = SimtDevice::new(with_compiler(broken, dir.path())).unwrap();
    let text = environment_error(device.load_kernel(&spec("basic.cu", "block_sum")));
    assert!(text.contains("broken C++ compiler") && text.contains("internal error"), "{text}");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    let device =
        SimtDevice::new(SimtOptions { cache_dir: Some(file.clone()), ..options(Mode::Fast) }).unwrap();
    let text = environment_error(device.load_kernel(&spec("basic.cu", "block_sum")));
    assert!(text.contains("not writable") && text.contains(file.to_str().unwrap()), "{text}");
}

/// Libraries in a cache directory.
fn libraries(cache: &Path) -> usize {
    let entries = std::fs::read_dir(cache.join("simt")).unwrap();
    entries.filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|x| x == "so")).count()
}

#[test]
fn the_cache_knows_what_a_kernel_depends_on() {
    let cache = tempfile::tempdir().unwrap();
    let load = |change: &dyn Fn(SimtOptions) -> SimtOptions| {
        let base = SimtOptions { cache_dir: Some(cache.path().to_owned()), ..options(Mode::Fast) };
        let device = SimtDevice::new(change(base)).unwrap();
        device.load_kernel(&spec("basic.cu", "block_sum")).unwrap();
        libraries(cache.path())
    };
    let edit = |file: &'static str| {
        move |o: SimtOptions| {
            let text = format!("{}\n// edited\n", o.sources.get(file).unwrap());
            SimtOptions { sources: o.sources.with_file(file, &text), ..o }
        }
    };
    assert_eq!(load(&|o| o), 1);
    assert_eq!(load(&|o| o), 1, "the same again");
    assert_eq!(load(&edit("faults.cu")), 1, "another kernel changed");
    assert_eq!(load(&edit("arch.cuh")), 2, "a header changed");
    assert_eq!(load(&edit("basic.cu")), 3, "the kernel changed");
    assert_eq!(load(&|o| SimtOptions { mode: Mode::Checked, ..o }), 4, "another mode");
    assert_eq!(load(&|o| SimtOptions { fill: Fill::Large, ..o }), 4, "nothing that is compiled changed");
}

#[test]
fn kernels_are_prepared_ahead_and_each_failure_is_its_own() {
    let cache = tempfile::tempdir().unwrap();
    let base = options(Mode::Fast);
    let sources = base.sources.with_file("bad.cu", "this is no kernel\n");
    let device = SimtDevice::new(SimtOptions {
        sources,
        cache_dir: Some(cache.path().to_owned()),
        ..options(Mode::Fast)
    })
    .unwrap();
    let specs: Vec<KernelSpec> =
        [("basic.cu", "block_sum"), ("bad.cu", "x"), ("matrix.cu", "multiply_tile"), ("none.cu", "x")]
            .map(|(file, entry)| spec(file, entry))
            .to_vec();
    let results = device.prepare(&specs, 2);
    assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
    let Err(DeviceError::Compile { log, kernel, .. }) = &results[1] else { panic!("{:?}", results[1]) };
    assert!(log.contains("bad.cu:1") && kernel.contains("bad.cu"), "{log}");
    assert!(
        matches!(results[3], Err(DeviceError::InvalidArgument { argument: "file", .. })),
        "{:?}",
        results[3]
    );
    assert_eq!(libraries(cache.path()), 2);
    device.load_kernel(&specs[2]).unwrap();
    assert_eq!(libraries(cache.path()), 2);
}

#[test]
fn fresh_memory_holds_the_chosen_pattern() {
    for (fill, byte) in [(Fill::Nan, 0xff), (Fill::Large, 0x71)] {
        let device = SimtDevice::new(SimtOptions { fill, ..options(Mode::Fast) }).unwrap();
        for bytes in [100, 40 << 20] {
            let a = device.alloc(bytes, STREAM).unwrap();
            let got = download::<u8>(&*device, a, bytes as usize);
            assert!(got.iter().all(|&b| b == byte), "{fill:?}, {bytes} bytes");
            device.free(a, STREAM).unwrap();
        }
    }
    assert!(f32::from_bits(0xffff_ffff).is_nan());
    let large = f32::from_bits(0x7171_7171);
    assert!((2.0_f32.powi(99)..2.0_f32.powi(101)).contains(&large), "{large:e}");
}

const CHILD: &str = "SIMT_TEST_RUN_WILD";

/// In the child process: reads far past an allocation in fast mode.
#[test]
fn a_fast_kernel_that_reads_unmapped_memory_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        let device = device(Mode::Fast);
        let (a, b) = (upload(&*device, &[1.0_f32; 4]), upload(&*device, &[0.0_f32; 64]));
        let params = FaultParams { a: a.0, b: b.0, n: 5, fault: 0 };
        let _ = launch(&*device, &spec("faults.cu", "past_the_end"), config(1, 5, 0), &params);
        return;
    }
    let this = std::env::current_exe().unwrap();
    let name = "a_fast_kernel_that_reads_unmapped_memory_ends_the_process";
    let status = Command::new(this).args([name, "--exact"]).env(CHILD, "1").output().unwrap().status;
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status:?}");
}
