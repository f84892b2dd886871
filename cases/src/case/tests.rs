use oracle::{CacheLayout, Format, Packing, Padding};
use proptest::prelude::*;
use rstest::rstest;

use super::{Case, Data, Defect, Expectation, NeedleAt, Paging, Relation};
use crate::problem::{Op, Options, Problem, Scale, Sinks};

const EXAMPLE: &str =
    "prefill bf16 kv=e4m3 h32/4 d256 page32 NHD causal q=[2048] kv=[32768] kscale=0.25 vscale=0.5 seed=7";

#[test]
fn the_documented_example_prints_as_it_was_read() {
    let case: Case = EXAMPLE.parse().unwrap();
    assert_eq!(case.to_string(), EXAMPLE);
    assert_eq!((case.problem.num_q_heads, case.problem.num_kv_heads), (32, 4));
    assert_eq!(case.problem.k_scale, Scale::PerTensor(0.25));
    assert_eq!(case.seed, 7);
}

#[test]
fn terms_may_come_in_any_order_and_runs_are_folded() {
    let case: Case =
        "decode f16 seed=1 kv=[9,9,9,4] q=[1x4] HND page8 d64 h8/1 kv=f16 win=-1,3 sinks softcap=30"
            .parse()
            .unwrap();
    let line = "decode f16 kv=f16 h8/1 d64 page8 HND win=-,3 softcap=30 sinks q=[1x4] kv=[9x3,4] seed=1";
    assert_eq!(case.to_string(), line);
}

#[rstest]
#[case::unknown_op(
    "prefil bf16",
    "case line, column 1: operation is `prefil`; accepted: prefill, decode, mixed, verify, store"
)]
#[case::unknown_format(
    "prefill bf16 kv=e4m4 h1/1 d8 page4 NHD q=[1] kv=[1] seed=1",
    "case line, column 14: kv format is `e4m4`; accepted: kv=f32, bf16, f16, e4m3, e5m2"
)]
#[case::fp8_query(
    "prefill e4m3 kv=e4m3 h1/1 d8 page4 NHD q=[1] kv=[1] seed=1",
    "case line, column 9: query format is `e4m3`; accepted: f32, bf16, f16"
)]
#[case::no_seed(
    "prefill bf16 kv=e4m3 h1/1 d8 page4 NHD q=[1] kv=[1]",
    "case line, column 52: seed is missing; accepted: a whole number"
)]
#[case::twice(
    "prefill bf16 kv=e4m3 h1/1 d8 page4 NHD causal causal q=[1] kv=[1] seed=1",
    "case line, column 47: causal is `causal`; accepted: each term once"
)]
#[case::lengths_disagree(
    "prefill bf16 kv=e4m3 h1/1 d8 page4 NHD q=[1,2] kv=[1] seed=1",
    "case line, column 48: kv lengths is of 1 requests; accepted: as many as q has, 2"
)]
#[case::real_needs_its_shape(
    "prefill bf16 kv=bf16 h4/2 d64 page16 NHD q=[5] kv=[5] data=real:layer0 seed=1",
    "case line, column 55: data is real:layer0; accepted: h9/3 d64, q not longer than kv, kv at most 185 (what was recorded)"
)]
#[case::one_tensor_has_one_padding(
    "prefill bf16 kv=bf16 h4/2 d64 page16 NHD unbind-inner vpad=0,8,0,0 q=[5] kv=[5] seed=1",
    "case line, column 55: vpad is with unbind-inner; accepted: only with separate tensors of K and V"
)]
#[case::padding_has_four_parts(
    "prefill bf16 kv=bf16 h4/2 d64 page16 NHD vpad=0,8,0 q=[5] kv=[5] seed=1",
    "case line, column 42: vpad is `0,8,0`; accepted: vpad=BASE,ROW,PLANE,PAGE in elements"
)]
#[case::huge_list(
    "prefill bf16 kv=bf16 h4/2 d64 page16 NHD q=[1x99999999] kv=[5] seed=1",
    "case line, column 42: q is `[1x99999999]`; accepted: [len,len,…]"
)]
fn a_malformed_line_names_column_term_value_and_what_is_accepted(#[case] line: &str, #[case] message: &str) {
    assert_eq!(line.parse::<Case>().unwrap_err().to_string(), message);
}

#[test]
fn an_unknown_term_lists_the_known_ones() {
    let error = format!("{EXAMPLE} colour=red").parse::<Case>().unwrap_err();
    assert_eq!((error.column, error.value.as_str()), (EXAMPLE.len() + 2, "`colour=red`"));
    assert!(error.accepted.contains("softcap="), "{error}");
}

/// Numbers as they stand in lines: short, long, tiny and huge.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![
        Just(0.25),
        Just(50.0),
        Just(1.0e-30),
        Just(3.0e20),
        any::<f32>().prop_filter("a number", |x| x.is_finite())
    ]
}

fn scale() -> impl Strategy<Value = Scale> {
    prop_oneof![
        number().prop_map(Scale::PerTensor),
        prop::collection::vec(number(), 1..6).prop_map(Scale::PerHead)
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let limit =
        || prop_oneof![Just(None), (0_i64..5000).prop_map(Some), Just(Some(-2)), Just(Some(i64::MAX))];
    let sinks = prop_oneof![Just(Sinks::Absent), Just(Sinks::Seeded), number().prop_map(Sinks::Constant)];
    let maybe = || prop::option::of(number());
    (any::<bool>(), limit(), limit(), maybe(), any::<bool>(), sinks, maybe()).prop_map(
        |(causal, window_left, window_right, softcap, alibi, sinks, softmax_scale)| Options {
            causal,
            window_left,
            window_right,
            softcap,
            alibi,
            sinks,
            softmax_scale,
        },
    )
}

fn padding((base, row, plane, page): (usize, usize, usize, usize)) -> Padding {
    Padding { base, row, plane, page }
}

fn problem() -> impl Strategy<Value = Problem> {
    let formats = (
        prop::sample::select(vec![Format::F32, Format::Bf16, Format::F16]),
        prop::sample::select(Format::ALL.to_vec()),
    );
    let heads = (0_usize..70, 0_usize..9, 0_usize..600, 0_usize..600, 0_usize..300);
    let place = (
        prop::sample::select(CacheLayout::ALL.to_vec()),
        prop::sample::select(Packing::ALL.to_vec()),
        (0_usize..9, 0_usize..9, 0_usize..9, 0_usize..9),
        prop::option::of((0_usize..9, 0_usize..9, 0_usize..9, 0_usize..9)),
    );
    let lens = prop::collection::vec((0_usize..5000, 0_usize..70_000), 0..7);
    let op = prop::sample::select(Op::ALL.to_vec());
    let slots = prop::option::of(prop::collection::vec(-1_i64..99, 0..9));
    (op, formats, heads, place, lens, options(), scale(), scale(), any::<bool>(), slots).prop_map(
        |(
            op,
            (query_format, cache_format),
            heads,
            (layout, packing, pad, v_pad),
            lens,
            options,
            k_scale,
            v_scale,
            lse,
            slots,
        )| {
            let slots = slots.filter(|_| op == Op::Store);
            let (query_lens, kv_lens): (Vec<_>, Vec<_>) = lens.into_iter().unzip();
            Problem {
                op,
                query_format,
                cache_format,
                num_q_heads: heads.0,
                num_kv_heads: heads.1,
                head_dim: heads.2,
                head_dim_v: heads.3,
                page_size: heads.4,
                layout,
                packing,
                padding: padding(pad),
                v_padding: v_pad.filter(|_| packing == Packing::Separate).map(padding),
                options,
                k_scale,
                v_scale,
                query_lens: if slots.is_some() { Vec::new() } else { query_lens },
                kv_lens,
                wants_lse: lse && op != Op::Store,
                slots,
            }
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let data = prop_oneof![
        Just(Data::Random),
        Just(Data::Grid),
        Just(Data::UniformQ0),
        Just(Data::HeadId),
        Just(Data::Outlier),
        Just(Data::Lopsided),
        Just(Data::NanKey),
        Just(Data::Subnormal),
        prop_oneof![
            Just(NeedleAt::First),
            Just(NeedleAt::Last),
            Just(NeedleAt::PageEnd),
            any::<u32>().prop_map(NeedleAt::Key)
        ]
        .prop_map(Data::Needle),
    ];
    let defect = prop::option::of(prop::sample::select(Defect::ALL.to_vec()));
    let paging = prop::sample::select(Paging::ALL.to_vec());
    let reject = prop::option::of("[a-z_]{1,12}");
    let relation = prop::option::of(prop::sample::select(Relation::ALL.to_vec()));
    let within = prop::option::of(prop::sample::select(vec![1.9e-6_f32, 0.5]));
    (problem(), data, number(), number(), paging, any::<u64>(), defect, (reject, relation, within)).prop_map(
        |(problem, data, magnitude, shift, paging, seed, defect, (reject, relation, within))| Case {
            within: within.filter(|_| reject.is_none() && problem.op != Op::Store),
            problem,
            data,
            magnitude,
            logit_shift: if data == Data::Grid { shift } else { 0.0 },
            paging,
            seed,
            defect,
            expectation: reject.map_or(Expectation::Valid, |argument| Expectation::Reject { argument }),
            relation,
        },
    )
}

proptest! {
    #[test]
    fn printing_and_parsing_are_inverse(case in case()) {
        let line = case.to_string();
        let parsed = line.parse::<Case>().map_err(|e| TestCaseError::fail(format!("{line}: {e}")))?;
        prop_assert_eq!(parsed, case);
    }

    #[test]
    fn the_parser_never_panics(line in "[ -~]{0,120}") {
        let _ = line.parse::<Case>();
    }

    #[test]
    fn the_parser_never_panics_on_words_it_knows(words in prop::collection::vec("(prefill|store|bf16|kv=|q=|h|d|page|win=|pad=|vpad=|slots=|kscale=|seed=|[0-9]{1,9}|[\\[\\],x/=-]){1,8}", 0..12)) {
        let _ = words.join(" ").parse::<Case>();
    }
}
