//! What travels between the parent and its workers.

use std::io::BufReader;

use cases::executor::protocol::{Status, read_job, read_reply, write_job, write_reply};
use cases::executor::{DeviceSpec, Job, PoolUse, Reply};
use cases::inputs::{Inputs, Poison, StoreInputs};
use cases::job::{Variant, attention_job, store_job};
use kernels::device::{DeviceKind, Finding, FindingKind};
use proptest::prelude::*;

fn device() -> DeviceSpec {
    DeviceSpec { kind: DeviceKind::Simt, checked: true, schedule: Some(3) }
}

/// A job with every kind of tensor, and NaN and infinity among its numbers.
fn jobs() -> Vec<Job> {
    let line = "mixed f32 kv=e4m3 h4/2 d32 page4 NHD causal win=3,- softcap=NaN alibi sinks scale=inf q=[3,2] kv=[9,6] kscale=[1,2] vscale=-inf seed=1";
    let attention = line.parse().unwrap();
    let variant = Variant { returns_inputs: true, ..Variant::plain(Poison::Nan) };
    let store = "store bf16 kv=e5m2 h2/2 d16 page4 NHD q=[3] kv=[8] seed=9".parse().unwrap();
    vec![
        attention_job(&attention, &Inputs::generate(&attention).unwrap(), "scalar", &device(), variant).job,
        store_job(&store, &StoreInputs::generate(&store).unwrap(), &device()),
    ]
}

#[test]
fn jobs_arrive_as_they_were_sent() {
    let mut stream = Vec::new();
    for job in jobs() {
        write_job(&mut stream, &job).unwrap();
    }
    let mut reader = BufReader::new(stream.as_slice());
    for job in jobs() {
        assert_eq!(read_job(&mut reader).unwrap(), Some(job));
    }
    assert_eq!(read_job(&mut reader).unwrap(), None);
}

#[test]
fn a_truncated_job_is_an_error_and_not_a_shorter_job() {
    let mut stream = Vec::new();
    write_job(&mut stream, &jobs()[0]).unwrap();
    for length in [1, 10, stream.len() / 2, stream.len() - 1] {
        assert!(read_job(&mut BufReader::new(&stream[..length])).is_err(), "{length} bytes");
    }
}

fn status() -> impl Strategy<Value = Status> {
    let finding =
        (any::<String>(), any::<Option<String>>(), any::<u64>()).prop_map(|(message, site, count)| Finding {
            kind: FindingKind::OutOfBounds,
            message,
            site: site.clone(),
            other_site: site,
            count,
        });
    prop_oneof![
        Just(Status::Completed),
        any::<(String, String)>().prop_map(|(argument, message)| Status::Refused { argument, message }),
        any::<String>().prop_map(|message| Status::Unsupported { message }),
        prop::collection::vec(finding, 0..4).prop_map(|findings| Status::Findings { findings }),
        any::<(String, bool)>().prop_map(|(message, sticky)| Status::DeviceError { message, sticky }),
        any::<String>().prop_map(|message| Status::Environment { message }),
    ]
}

proptest! {
    #[test]
    fn replies_arrive_as_they_were_sent(
        status in status(),
        launches in any::<u64>(),
        (before_bytes, after_bytes) in any::<(u64, u64)>(),
        buffers in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..4),
    ) {
        let pool = PoolUse { before_bytes, after_bytes };
        let reply = Reply { status, launches, pool, buffers };
        let mut stream = Vec::new();
        write_reply(&mut stream, &reply).unwrap();
        let mut reader = BufReader::new(stream.as_slice());
        prop_assert_eq!(read_reply(&mut reader).unwrap(), Some(reply));
        prop_assert_eq!(read_reply(&mut reader).unwrap(), None);
    }

    #[test]
    fn noise_is_an_error_and_no_panic(noise in prop::collection::vec(any::<u8>(), 1..200)) {
        let _ = read_job(&mut BufReader::new(noise.as_slice()));
        let _ = read_reply(&mut BufReader::new(noise.as_slice()));
    }
}
