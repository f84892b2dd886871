//! Tables: every head ratio, head dim, page size and pair of options at least once, whatever is drawn.

use cases::case::Case;
use rstest::rstest;

use crate::judge::judge;
use cases::verdict::Class;

#[track_caller]
fn passes(line: &str, arm: &str) {
    let case: Case = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
    let verdict = judge(&case, arm);
    assert_eq!(verdict.class(), Class::Passed, "{arm}: {line}\n{verdict:?}");
}

#[rstest]
fn head_ratios(
    #[values(1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 32)] group: usize,
    #[values(1, 2)] kv: usize,
) {
    let heads = format!("h{}/{kv}", group * kv);
    passes(
        &format!("mixed f32 kv=f32 {heads} d8 page4 NHD causal q=[3,1] kv=[9,17] data=head-id seed={group}"),
        "scalar",
    );
}

#[rstest]
fn head_dims(#[values(40, 72, 80, 96, 112, 160, 192)] dim: usize) {
    passes(&format!("mixed f32 kv=f32 h4/2 d{dim} page16 NHD causal q=[3,1] kv=[9,17] seed={dim}"), "scalar");
    passes(&format!("decode f32 kv=f32 h4/2 d{dim}/64 page16 HND q=[1] kv=[33] seed={dim}"), "scalar");
    passes(&format!("decode f32 kv=f32 h4/2 d64/{dim} page16 HND q=[1] kv=[33] seed={dim}"), "scalar");
}

#[rstest]
fn a_head_dim_of_111_is_refused_by_name(
    #[values(("scalar", "f32 kv=f32"), ("mma", "bf16 kv=bf16"))] arm: (&str, &str),
) {
    let line = format!("prefill {} h4/2 d111 page16 NHD q=[3] kv=[9] expect=reject:head_dim seed=1", arm.1);
    passes(&line, arm.0);
}

#[rstest]
fn page_sizes(#[values(1, 4, 5, 8, 16, 32, 48, 64, 128, 256)] page: usize) {
    let lens = format!("q=[1,2,4] kv=[{},{page},{}]", page + 1, (2 * page - 1).max(4));
    passes(&format!("mixed f32 kv=f32 h2/1 d16 page{page} NHD causal {lens} seed={page}"), "scalar");
    passes(&format!("mixed f32 kv=f32 h2/1 d16 page{page} HND data=needle {lens} seed={page}"), "scalar");
}

#[test]
fn options_alone_and_in_pairs() {
    const OPTIONS: [&str; 9] = [
        "causal",
        "win=7,-",
        "win=-,2",
        "softcap=5",
        "alibi",
        "sinks",
        "scale=0.3",
        "kscale=[0.5,2]",
        "vscale=0.25",
    ];
    let key = |term: &str| term.split('=').next().unwrap_or(term).to_owned();
    let mut judged = 0;
    for (index, first) in OPTIONS.iter().enumerate() {
        for second in &OPTIONS[index..] {
            let both = match (*first, *second) {
                (a, b) if a == b => a.to_owned(),
                ("win=7,-", "win=-,2") => "win=7,2".to_owned(),
                (a, b) if key(a) == key(b) => panic!("{a} and {b} have no common form"),
                (a, b) => format!("{a} {b}"),
            };
            passes(
                &format!("mixed bf16 kv=e4m3 h4/2 d16 page4 NHD {both} q=[4,1] kv=[13,20] seed={judged}"),
                "scalar",
            );
            judged += 1;
        }
    }
    println!("{judged} of {} options and pairs", OPTIONS.len() * (OPTIONS.len() + 1) / 2);
    assert_eq!(judged, OPTIONS.len() * (OPTIONS.len() + 1) / 2);
}
