//! Strategies for cases.

use cases::case::Case;
use cases::support;
use proptest::prelude::*;
use proptest::sample::select;

/// A case, and an arm that serves it.
#[derive(Clone, Debug)]
pub struct Drawn {
    pub case: Case,
    pub arm: &'static str,
}

/// Page sizes of the property tests.
const PAGES: [usize; 10] = [1, 4, 5, 8, 16, 32, 48, 64, 128, 256];
/// Query heads per KV head.
const GROUPS: [usize; 9] = [1, 2, 3, 4, 5, 7, 8, 12, 16];
/// Head dims of the scalar kernel.
const DIMS: [usize; 10] = [8, 40, 64, 72, 80, 96, 112, 128, 160, 192];

/// A length near an edge of something: pages, tiles of 16 and 64 keys, splits.
fn length(page: usize) -> BoxedStrategy<usize> {
    let edge = select(vec![page, 16, 32, 64]);
    let near = (edge, 1..4_usize, 0..3_usize).prop_map(|(edge, n, off)| (edge * n + off).saturating_sub(1));
    prop_oneof![4 => near, 2 => 1..40_usize, 1 => Just(0_usize)].prop_map(|len| len.min(200)).boxed()
}

/// Query and key lengths of one request: prefill from the start, prefill of a chunk, decode, verify, empty, more rows than
/// keys.
fn request(page: usize) -> BoxedStrategy<(usize, usize)> {
    length(page)
        .prop_flat_map(|kv| {
            prop_oneof![
                Just((kv.min(24), kv)),
                Just((1, kv.max(1))),
                (2..9_usize).prop_map(move |q| (q, kv.max(q))),
                Just((0, kv)),
                (1..6_usize).prop_map(move |more| ((kv + more).min(20), kv.min(12))),
            ]
        })
        .boxed()
}

/// The batch as case terms, and the operation that it is.
fn batch(page: usize, largest: usize) -> BoxedStrategy<(&'static str, String)> {
    prop::collection::vec(request(page), 1..=largest)
        .prop_map(|requests| {
            let q: Vec<usize> = requests.iter().map(|(q, _)| *q).collect();
            let kv: Vec<usize> = requests.iter().map(|(_, kv)| *kv).collect();
            let op = match q[..] {
                _ if q.iter().all(|q| *q == 1) => "decode",
                [_] => "prefill",
                _ => "mixed",
            };
            let list = |lens: Vec<usize>| lens.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            (op, format!("q=[{}] kv=[{}]", list(q), list(kv)))
        })
        .boxed()
}

/// A term that is there in about a third of the cases.
fn maybe(term: impl Strategy<Value = String> + 'static) -> BoxedStrategy<String> {
    prop_oneof![2 => Just(String::new()), 1 => term].boxed()
}

fn fixed(term: &'static str) -> BoxedStrategy<String> {
    maybe(Just(term.to_owned()))
}

/// Every option of a call, each alone or with others.
pub fn options() -> BoxedStrategy<String> {
    let limit = || prop_oneof![Just("-".to_owned()), (0..70_u32).prop_map(|keys| keys.to_string())];
    let window = (limit(), limit()).prop_map(|(left, right)| format!("win={left},{right}"));
    let sinks = prop_oneof![Just("sinks".to_owned()), Just("sinks=-3".to_owned())];
    (
        fixed("causal"),
        maybe(window),
        maybe(select(vec!["softcap=5", "softcap=30", "softcap=0.5"]).prop_map(str::to_owned)),
        fixed("alibi"),
        maybe(sinks),
        fixed("scale=0.3"),
        fixed("nolse"),
    )
        .prop_map(|(a, b, c, d, e, f, g)| [a, b, c, d, e, f, g].join(" "))
        .boxed()
}

/// Layout terms whose rows stay aligned to `step` elements.
pub fn layout(step: usize, equal_dims: bool) -> BoxedStrategy<String> {
    let order = select(vec!["NHD", "HND"]);
    let packing = if equal_dims { vec!["", "", "unbind-inner", "unbind-outer"] } else { vec![""] };
    let pad = move |name: &'static str| {
        (0..4_usize, 0..3_usize, 0..3_usize, 0..4_usize).prop_map(move |(a, b, c, d)| {
            format!("{name}={},{},{},{}", a * step, b * step, c * step, d * step)
        })
    };
    let paging = select(vec!["", "", "paging=identity", "paging=descending"]);
    (order, select(packing), maybe(pad("pad")), maybe(pad("vpad")), paging)
        .prop_map(|(order, packing, pad, v_pad, paging)| {
            // One tensor has one set of strides.
            let v_pad = if packing.is_empty() { v_pad.as_str() } else { "" };
            format!("{order} {packing} {pad} {v_pad} {paging}")
        })
        .boxed()
}

fn scales(kv_heads: usize) -> BoxedStrategy<String> {
    let one = || select(vec!["1", "0.5", "0.01", "3.5"]);
    let per_head = prop::collection::vec(one(), kv_heads).prop_map(|all| format!("[{}]", all.join(",")));
    let scale = move || prop_oneof![one().prop_map(str::to_owned), per_head.clone()];
    (maybe(scale().prop_map(|s| format!("kscale={s}"))), maybe(scale().prop_map(|s| format!("vscale={s}"))))
        .prop_map(|(k, v)| format!("{k} {v}"))
        .boxed()
}

fn data() -> BoxedStrategy<String> {
    let data =
        select(vec!["data=grid", "data=uniform-q0", "data=head-id", "data=needle", "data=outlier", "mag=10"]);
    maybe(data.prop_map(str::to_owned))
}

/// What is drawn besides options, layout and data.
#[derive(Clone, Debug)]
struct Shape {
    arm: &'static str,
    formats: &'static str,
    dims: String,
    equal_dims: bool,
    kv_heads: usize,
    group: usize,
    page: usize,
    /// Elements to which cache rows stay aligned.
    step: usize,
}

fn case(shape: impl Strategy<Value = Shape> + 'static, largest: usize) -> BoxedStrategy<Drawn> {
    shape
        .prop_flat_map(move |shape| {
            let parts = (
                batch(shape.page, largest),
                options(),
                layout(shape.step, shape.equal_dims),
                scales(shape.kv_heads),
                data(),
                0..1_000_000_u64,
            );
            (Just(shape), parts)
        })
        .prop_map(|(shape, ((op, lengths), options, layout, scales, data, seed))| {
            let Shape { arm, formats, dims, kv_heads, group, page, .. } = shape;
            let heads = format!("h{}/{kv_heads}", kv_heads * group);
            let line = format!(
                "{op} {formats} {heads} d{dims} page{page} {layout} {options} {lengths} {scales} {data} seed={seed}"
            );
            Drawn { case: line.parse().unwrap_or_else(|error| panic!("{line}: {error}")), arm }
        })
        .prop_filter("an arm serves it", |drawn| support::gap(&drawn.case, drawn.arm).is_none())
        .boxed()
}

/// Cases of the scalar kernel: any head dim in steps of 8, any alignment, K and V of different dims.
pub fn scalar() -> BoxedStrategy<Drawn> {
    let formats = select(vec!["f32 kv=f32", "bf16 kv=e4m3", "f16 kv=f16"]);
    let dims =
        (select(DIMS.to_vec()), prop_oneof![3 => Just(None), 1 => select(DIMS.to_vec()).prop_map(Some)]);
    let shape = (formats, dims, 1..4_usize, select(GROUPS.to_vec()), select(PAGES.to_vec()));
    let shape = shape.prop_map(|(formats, (k, v), kv_heads, group, page)| Shape {
        arm: "scalar",
        formats,
        dims: v.map_or_else(|| k.to_string(), |v| format!("{k}/{v}")),
        equal_dims: v.is_none_or(|v| v == k),
        kv_heads,
        group,
        page,
        step: 1,
    });
    case(shape, 4)
}

/// Cases of the tensor-core kernels, at the head dim of most models.
pub fn tensor_cores() -> BoxedStrategy<Drawn> {
    let arms =
        select(vec![("mma", "bf16 kv=bf16"), ("bf16-dense", "bf16 kv=bf16"), ("fp8-dense", "bf16 kv=e4m3")]);
    let shape = (arms, 1..4_usize, select(GROUPS.to_vec()), select(PAGES.to_vec()));
    let shape = shape.prop_map(|((arm, formats), kv_heads, group, page)| Shape {
        arm,
        formats,
        dims: "64".to_owned(),
        equal_dims: true,
        kv_heads,
        group,
        page,
        step: 16,
    });
    case(shape, 3)
}

/// Stores.
pub fn store() -> BoxedStrategy<Drawn> {
    let formats = select(vec!["f32 kv=e4m3", "bf16 kv=bf16"]);
    (formats, 1..4_usize, select(DIMS.to_vec()), select(PAGES.to_vec()), 0..30_usize, 0..60_usize)
        .prop_flat_map(|(formats, heads, dim, page, new, before)| {
            let fp8 = formats.ends_with("e4m3");
            let scales = if fp8 { scales(heads) } else { Just(String::new()).boxed() };
            (layout(1, true), scales, 0..1_000_000_u64).prop_map(move |(layout, scales, seed)| {
                let kv = before + new;
                let line = format!(
                    "store {formats} h{heads}/{heads} d{dim} page{page} {layout} q=[{new}] kv=[{kv}] {scales} seed={seed}"
                );
                let case = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
                Drawn { case, arm: "store" }
            })
        })
        .boxed()
}
