//! The engine of `attest model` on a tiny random model: against a model written in f64 without any cache, in every way
//! of serving, and with kernels that are wrong.
#![cfg(feature = "model")]

#[path = "model_support/plain.rs"]
mod plain;
#[path = "model_support/mod.rs"]
mod support;

use cases::model::check::Checks;
use cases::model::claim::Standing;
use cases::model::engine::Work;
use cases::model::error::ModelError;
use cases::model::generate::{Plan, generate};
use cases::model::kv::Sequence;
use cases::model::perplexity::perplexity;
use cases::model::scenarios::Prompts;
use cases::model::session::{Served, Session};
use kernels::source::SourceSet;
use oracle::Format;
use support::{device, device_with, load, prompt, session};

const EIGHT: Plan<'static> = Plan { max_tokens: 8, chunk: None, ends: None };

/// Largest difference of logits from the plain model's, over the largest logit.
fn distance(session: &Session<'_>, format: Format, tokens: &[u32]) -> f64 {
    let want = plain::logits(tokens);
    let mut engine = session.engine(format, tokens.len(), None).unwrap();
    let mut sequence = Sequence::default();
    let rows = engine.step(&mut [Work { sequence: &mut sequence, tokens }], None).unwrap();
    let got = session.model.logits(&rows).unwrap();
    engine.finish(sequence);
    assert_eq!((got.len(), engine.judge.mismatches), (want.len(), 0), "{:?}", engine.judge.told);
    engine.release().unwrap();
    let scale = want.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    want.iter().zip(&got).fold(0.0, |most, (want, got)| f64::max(most, (want - f64::from(*got)).abs()))
        / scale
}

#[test]
fn logits_are_those_of_a_model_without_a_cache() {
    let model = load();
    let session = session(&model, device());
    let tokens = prompt(21, 1);
    let exact = distance(&session, Format::F32, &tokens);
    assert!(exact < 2e-5, "{exact:e}");
    // Rounding to bf16 shows, and stays rounding.
    let rounded = distance(&session, Format::Bf16, &tokens);
    assert!((1e-4..5e-2).contains(&rounded), "{rounded:e}");
}

fn failures(served: &Served) -> Vec<String> {
    let fails = |claim: &cases::model::claim::Claim| match &claim.standing {
        Standing::Fails(against) => Some(format!("{}: {against}", claim.what)),
        _ => None,
    };
    served.claims.iter().filter_map(fails).collect()
}

#[test]
fn every_way_of_serving_gives_the_same_tokens_and_every_call_is_judged() {
    let model = load();
    let session = session(&model, device());
    let (main, other) = (prompt(9, 2), prompt(20, 3));
    for format in [Format::Bf16, Format::E4m3] {
        let served = session.serve(format, &main, EIGHT).unwrap();
        assert_eq!(failures(&served), Vec::<String>::new());
        assert!(served.layers.iter().all(|layer| layer.calls == 8 && layer.worst_share > 0.0));
        assert!(served.peak_bytes > served.cache_bytes);
        let prompts = Prompts { main: &main, other: &other };
        let claims = session.scenarios(format, prompts, EIGHT, &served.generation).unwrap();
        let (holds, others): (Vec<_>, Vec<_>) =
            claims.into_iter().partition(|claim| claim.standing == Standing::Holds);
        // Chunks of 64 and 2048 need longer prompts.
        let skipped = others.iter().filter(|claim| matches!(claim.standing, Standing::Skipped(_))).count();
        assert_eq!((holds.len(), skipped, others.len()), (13, 2, 2), "{others:?}");
    }
}

#[test]
fn calibrated_scales_are_per_head_and_calls_are_judged_with_them() {
    let model = load();
    let session = Session { calibrate: true, ..session(&model, device()) };
    let served = session.serve(Format::E4m3, &prompt(12, 4), EIGHT).unwrap();
    assert_eq!(failures(&served), Vec::<String>::new());
    let scales = served.scales.unwrap();
    let all = scales.k.iter().chain(&scales.v).flatten();
    assert!(all.clone().count() == 2 * support::LAYERS * support::KV_HEADS);
    assert!(all.into_iter().all(|scale| *scale > 0.0 && *scale < 1.0), "{scales:?}");
    assert!(session.serve(Format::Bf16, &prompt(12, 4), EIGHT).unwrap().scales.is_none());
}

/// What the judge says of a generation with one kernel changed.
fn accused(file: &str, from: &str, to: &str, calibrate: bool) -> String {
    let sources = SourceSet::load().unwrap();
    let text = sources.get(file).unwrap();
    assert!(text.contains(from), "{file} no longer contains `{from}`");
    let model = load();
    let changed = sources.clone().with_file(file, &text.replacen(from, to, 1));
    let mut session = Session { calibrate, ..session(&model, device_with(changed)) };
    session.launching.arm = Some(kernels::arm::Arm::Scalar);
    // A wrong cache may end in logits that are no numbers, and then the request's error carries what the judge found.
    match session.serve(Format::E4m3, &prompt(20, 5), EIGHT) {
        Ok(served) => failures(&served).join("\n"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_store_that_writes_to_the_wrong_page_is_named() {
    let accusation = accused(
        "store.cu",
        "store_side(p.v, token, slot / p.page_size",
        "store_side(p.v, token, slot / p.page_size ^ (slot % 7 == 3)",
        false,
    );
    assert!(
        accusation.contains("stored codes differ") && accusation.contains("first V page"),
        "{accusation}"
    );
}

#[test]
fn a_dropped_key_scale_is_named() {
    let accusation =
        accused("scalar.cu", "(a.k_scales ? a.k_scales[work.kv_head] : a.k_scale)", "1.0f", true);
    assert!(accusation.contains("scalar") && accusation.contains("out: "), "{accusation}");
    assert!(!accusation.contains("stored codes differ"), "{accusation}");
}

#[test]
fn a_sampled_run_judges_every_layer_in_turn() {
    let model = load();
    let session = Session { checks: Checks::Sampled, ..session(&model, device()) };
    let plan = Plan { max_tokens: 9, ..EIGHT };
    let served = session.serve(Format::Bf16, &prompt(5, 6), plan).unwrap();
    assert!(served.layers.iter().all(|layer| layer.calls == 1), "{:?}", served.layers);
}

#[test]
fn a_full_cache_refuses_a_request_and_serves_the_next() {
    let model = load();
    let session = session(&model, device());
    let mut engine = session.engine(Format::Bf16, 32, None).unwrap();
    let error = generate(&mut engine, &prompt(33, 7), EIGHT).unwrap_err();
    assert!(matches!(error, ModelError::CacheFull { wanted: 3, free: 2, all: 2 }), "{error}");
    // Runs out in mid-generation: the pages come back all the same.
    let error = generate(&mut engine, &prompt(30, 7), EIGHT).unwrap_err();
    assert!(matches!(error, ModelError::CacheFull { wanted: 1, free: 0, all: 2 }), "{error}");
    assert_eq!(engine.cache().free_pages(), 2);
    generate(&mut engine, &prompt(8, 7), EIGHT).unwrap();
    let error = generate(&mut engine, &[], EIGHT).unwrap_err();
    assert!(error.to_string().contains("prompt is empty"), "{error}");
}

#[test]
fn a_request_longer_than_the_context_is_refused() {
    let model = load();
    let session = session(&model, device());
    let mut engine = session.engine(Format::Bf16, 600, None).unwrap();
    let error = generate(&mut engine, &prompt(513, 8), EIGHT).unwrap_err();
    assert!(error.to_string().contains("513") && error.to_string().contains("512"), "{error}");
}

#[test]
fn perplexity_is_that_of_the_plain_model() {
    let model = load();
    let session = session(&model, device());
    let text = prompt(24, 9);
    let mut engine = session.engine(Format::F32, 16, None).unwrap();
    let got = perplexity(&mut engine, &text, 16, 7).unwrap();
    let want: f64 = [&text[..16], &text[16..]].into_iter().map(plain::surprise).sum();
    assert_eq!(got.tokens, 15 + 7);
    assert!((got.nats - want).abs() < 1e-4 * want, "{} {want}", got.nats);
    assert!(perplexity(&mut engine, &text[..1], 16, 7).is_err());
}
