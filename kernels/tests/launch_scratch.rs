//! Scratch memory returns to the pool on every path, and reports a failed free only where it is the first error.

#[path = "support/attention.rs"]
mod attention;
mod support;

use attention::{Batch, Problem};
use kernels::device::{DeviceError, DeviceRef, StreamId};
use kernels::error::LaunchError;
use kernels::launch::paged_attention_with;
use kernels::route::Knobs;
use kernels::scratch::Scratch;
use kernels::tensor::DType;
use kernels::workspace::Workspace;
use rstest::rstest;
use support::{RefusesFrees, STREAM, checked};

fn used(device: &DeviceRef) -> u64 {
    device.synchronize(STREAM).expect("a clean stream");
    device.pool().expect("pool figures").used
}

#[test]
fn dropping_and_releasing_give_every_byte_back() {
    let device = checked();
    let before = used(&device);
    let dropped = Scratch::new(&device, 12_288, STREAM).unwrap();
    let released = Scratch::new(&device, 8, STREAM).unwrap();
    assert_ne!(dropped.ptr(), released.ptr());
    assert!(used(&device) >= before + 12_296);
    drop(dropped);
    released.release().unwrap();
    assert_eq!(used(&device), before);
}

#[test]
fn a_failure_in_between_gives_every_byte_back() {
    let device = checked();
    let before = used(&device);
    let attempt = || -> Result<(), DeviceError> {
        let _dense = Scratch::new(&device, 12_288, STREAM)?;
        let _table = Scratch::new(&device, 0, STREAM)?;
        Ok(())
    };
    let error = attempt().expect_err("zero bytes are refused");
    assert!(matches!(error, DeviceError::InvalidArgument { call: "alloc", .. }), "{error}");
    assert_eq!(used(&device), before);
}

#[test]
fn a_guard_outlives_the_handle_it_was_made_with() {
    let device = checked();
    let scratch = Scratch::new(&DeviceRef::clone(&device), 64, STREAM).unwrap();
    assert_eq!(scratch.bytes(), 64);
    drop(device);
    scratch.release().unwrap();
}

#[test]
fn release_reports_a_failed_free_and_drop_stays_silent() {
    let device = checked();
    let released = Scratch::new(&device, 64, STREAM).unwrap();
    let dropped = Scratch::new(&device, 64, STREAM).unwrap();
    for scratch in [&released, &dropped] {
        device.free(scratch.ptr(), STREAM).unwrap();
    }
    let error = released.release().expect_err("the memory is gone already");
    assert!(matches!(error, DeviceError::InvalidArgument { call: "free", .. }), "{error}");
    drop(dropped);
    device.synchronize(STREAM).unwrap();
}

fn refused(argument: &'static str) -> DeviceError {
    DeviceError::InvalidArgument { call: "free", argument, value: String::new(), accepted: String::new() }
}

fn failed(sticky: bool) -> DeviceError {
    DeviceError::Driver { call: "free", code: "CODE".to_owned(), message: String::new(), sticky }
}

#[rstest]
#[case::context_lost(|| failed(true), &[false])]
#[case::failed(|| failed(false), &[false, false])]
#[case::stream_gone(|| refused("stream"), &[false, true])]
#[case::refused(|| refused("ptr"), &[false, false])]
fn a_refused_free_is_asked_for_once_more_where_that_can_help(
    #[case] reason: fn() -> DeviceError,
    #[case] on_default: &[bool],
) {
    let inner = checked();
    let stream = inner.create_stream().unwrap();
    let device = RefusesFrees::new(inner, reason);
    let scratch = Scratch::new(&(device.clone() as DeviceRef), 64, stream).unwrap();
    assert_eq!(scratch.release().expect_err("a refused free").to_string(), reason().to_string());
    let wanted: Vec<_> =
        on_default.iter().map(|default| if *default { StreamId::DEFAULT } else { stream }).collect();
    assert_eq!(device.asked(), wanted);
}

/// A decode in two splits, which leave their sums in scratch.
fn split_decode(
    device: &DeviceRef,
    requests: usize,
    workspace: Option<&mut Workspace>,
) -> Result<(), LaunchError> {
    let problem = Problem::new(DType::Bf16, DType::Bf16, (4, 2), 64);
    let batch = Batch::new(device, problem.lens(&vec![1; requests], &vec![40; requests]), 1);
    let knobs = Knobs { splits: Some(2), ..Knobs::default() };
    paged_attention_with(device, STREAM, None, &batch.args, &knobs, workspace).map(drop)
}

#[test]
fn a_call_reports_that_its_scratch_was_not_taken_back() {
    let device = RefusesFrees::new(checked(), || failed(false));
    let error = split_decode(&(device.clone() as DeviceRef), 1, None).expect_err("a refused free");
    assert_eq!(error.to_string(), failed(false).to_string());
    assert_eq!(device.asked(), [STREAM; 2]);
}

#[test]
fn a_workspace_frees_nothing_until_its_release_which_tries_every_piece_and_reports() {
    let device = RefusesFrees::new(checked(), || failed(false));
    let shared = device.clone() as DeviceRef;
    let mut workspace = Workspace::new(&shared, STREAM);
    for requests in [1, 3] {
        split_decode(&shared, requests, Some(&mut workspace)).unwrap();
    }
    assert_eq!((workspace.pieces().len(), device.asked().len()), (2, 0));
    let error = workspace.release().expect_err("a refused free");
    assert_eq!(error.to_string(), failed(false).to_string());
    // Each piece is asked for twice.
    assert_eq!(device.asked(), [STREAM; 4]);
}
