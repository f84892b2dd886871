//! Where things lie: bounds, strides, index dimensions, head mapping, integer widths.

use super::{Edit, Site, grouped};

/// Words in the names of values that bound something or say where it lies.
const BOUND_WORDS: &[&str] = &[
    "begin",
    "end",
    "tile",
    "page",
    "slot",
    "column",
    "len",
    "position",
    "first",
    "last",
    "packed",
    "index",
    "row",
    "key",
    "token",
    "share",
    "split",
    "rows_here",
];

pub(super) fn off_by_one(site: &Site<'_>) -> Vec<Edit> {
    match site.kind() {
        "init_declarator" => moved_declaration(site),
        "binary_expression" => moved_limit(site),
        _ => Vec::new(),
    }
}

/// `const i32 key = tile + slot` by one up and one down.
fn moved_declaration(site: &Site<'_>) -> Vec<Edit> {
    let (Some(name), Some(value)) = (site.field("declarator"), site.field("value")) else {
        return Vec::new();
    };
    let is_integer = site
        .ancestor("declaration")
        .and_then(|d| d.field("type"))
        .is_some_and(|t| matches!(t.source(), "i32" | "i64" | "int" | "u32"));
    let is_bound = BOUND_WORDS.iter().any(|word| name.source().split('_').any(|part| part == *word));
    let in_loop_header =
        site.ancestor("declaration").and_then(|d| d.parent()).is_some_and(|p| p.kind() == "for_statement");
    if !is_integer || !is_bound || in_loop_header {
        return Vec::new();
    }
    ["+", "-"].map(|sign| value.replaced(format!("({}) {sign} 1", value.source()))).to_vec()
}

/// `< limit` becomes `< limit - 1`; one more is what the boundary operator makes.
fn moved_limit(site: &Site<'_>) -> Vec<Edit> {
    let Some((_, operator, right)) = site.binary() else { return Vec::new() };
    let is_limit = matches!(operator.source(), "<" | "<=") && right.kind() != "number_literal";
    let is_float = right.source().contains("infinity") || right.source().contains("magnitude");
    if is_limit && !is_float { vec![right.replaced(format!("{} - 1", grouped(&right)))] } else { Vec::new() }
}

pub(super) fn swap_index(site: &Site<'_>) -> Vec<Edit> {
    match site.kind() {
        "subscript_expression" => swapped_subscripts(site),
        "field_expression" if matches!(site.source(), "blockIdx.x" | "threadIdx.x") => {
            vec![site.replaced(site.source().replace(".x", ".y"))]
        }
        "field_expression" if site.source() == "blockIdx.y" => vec![site.replaced("blockIdx.x")],
        _ => Vec::new(),
    }
}

/// `a[i][j]` becomes `a[j][i]`.
fn swapped_subscripts(site: &Site<'_>) -> Vec<Edit> {
    // Places computed from loop counters in register arrays are fragments, not dimensions.
    let is_name = |i: &Site<'_>| i.children().all(|inner| inner.kind() == "identifier");
    let index = |s: &Site<'_>| s.field("indices").filter(is_name).map(|i| i.node.byte_range());
    let Some(inner) = site.field("argument").filter(|a| a.kind() == "subscript_expression") else {
        return Vec::new();
    };
    let (Some(first), Some(second)) = (index(&inner), index(site)) else { return Vec::new() };
    let (a, b) = (&site.text[first.clone()], &site.text[second.clone()]);
    if a == b {
        return Vec::new();
    }
    vec![Edit { range: first.start..second.end, replacement: format!("{b}{a}") }]
}

/// Strides of other axes that could be meant.
const STRIDES: &[(&str, &str)] = &[
    ("page_stride", "slot_stride"),
    ("slot_stride", "page_stride"),
    ("head_stride", "slot_stride"),
    ("row_stride", "head_stride"),
    ("token_stride", "source_head_stride"),
    ("block_table_stride", "k_page_stride"),
];

pub(super) fn swap_stride(site: &Site<'_>) -> Vec<Edit> {
    let Some(name) = used_name(site) else { return Vec::new() };
    let mut edits = Vec::new();
    for (from, to) in STRIDES {
        // q, out and lse have rows and heads; only caches have pages and slots.
        let of_rows = ["q_", "out_", "lse_", "source_"].iter().any(|prefix| name.starts_with(prefix));
        let to = match (*from, of_rows) {
            ("head_stride", true) => {
                if name.starts_with("source_") {
                    "token_stride"
                } else {
                    "row_stride"
                }
            }
            _ => to,
        };
        let Some(prefix) = name.strip_suffix(from) else { continue };
        if !prefix.is_empty() && !prefix.ends_with('_') {
            continue;
        }
        let prefix = if prefix == "source_" { "" } else { prefix };
        edits.push(site.replaced(format!("{prefix}{to}")));
        break;
    }
    edits
}

/// The text of an identifier that is used rather than declared.
fn used_name<'t>(site: &Site<'t>) -> Option<&'t str> {
    let parent = site.parent()?;
    let used = match site.kind() {
        "field_identifier" => parent.kind() == "field_expression",
        "identifier" => {
            !matches!(
                parent.kind(),
                "parameter_declaration"
                    | "init_declarator"
                    | "declaration"
                    | "function_declarator"
                    | "pointer_declarator"
            ) || parent.field("value").is_some_and(|v| v.node == site.node)
        }
        _ => false,
    };
    used.then(|| site.source())
}

/// Other things that come as a pair.
const KV_PAIRS: &[(&str, &str)] = &[
    ("k", "v"),
    ("head_dim_k", "head_dim_v"),
    ("dense_k", "dense_v"),
    ("raw_k", "raw_v"),
    ("from_k", "from_v"),
    ("start_k", "start_v"),
    ("k_tile", "v_tile"),
];

pub(super) fn swap_kv(site: &Site<'_>) -> Vec<Edit> {
    let Some(name) = used_name(site) else { return Vec::new() };
    let exact = KV_PAIRS.iter().find_map(|(k, v)| match name {
        name if name == *k => Some((*v).to_owned()),
        name if name == *v => Some((*k).to_owned()),
        _ => None,
    });
    let prefixed = || {
        let other = name.strip_prefix("k_").map(|rest| format!("v_{rest}"));
        other.or_else(|| name.strip_prefix("v_").map(|rest| format!("k_{rest}")))
    };
    let Some(other) = exact.or_else(prefixed) else { return Vec::new() };
    // `v.x` of four values is no V, nor is a field of `Quad v`.
    let is_known = site.text.contains(&other) && !is_component(site);
    if is_known { vec![site.replaced(other)] } else { Vec::new() }
}

fn is_component(site: &Site<'_>) -> bool {
    let parent = site.parent();
    let field = parent.filter(|p| p.kind() == "field_expression").and_then(|p| p.field("field"));
    let component = field.is_some_and(|f| matches!(f.source(), "x" | "y" | "z" | "w") && f.node != site.node);
    component || (site.kind() == "identifier" && matches!(site.source(), "k" | "v") && field.is_none())
}

/// Words of terms that say where something lies.
const TERM_WORDS: &[&str] = &[
    "stride", "page", "slot", "head", "offset", "Shared::", "tile", "begin", "first", "split", "entry",
    "kv_len", "column",
];

pub(super) fn drop_term(site: &Site<'_>) -> Vec<Edit> {
    let Some((left, operator, right)) = site.binary() else { return Vec::new() };
    if site.kind() != "binary_expression" || operator.source() != "+" {
        return Vec::new();
    }
    let places = |s: &Site<'_>| TERM_WORDS.iter().any(|word| s.source().contains(word));
    let mut edits = Vec::new();
    if places(&right) {
        edits.push(site.replaced(grouped(&left)));
    }
    // The left end of a longer sum may be a pointer, which cannot be dropped; inner sums offer their own terms.
    let left_is_product =
        left.kind() == "binary_expression" && left.binary().is_some_and(|(_, o, _)| o.source() == "*");
    if places(&left) && left_is_product {
        edits.push(site.replaced(grouped(&right)));
    }
    edits
}

/// Arrays with one value per head.
const PER_HEAD: &[&str] = &["k_scales", "v_scales", "scales", "sinks", "alibi_slopes"];

pub(super) fn head_mapping(site: &Site<'_>) -> Vec<Edit> {
    if site.kind() == "subscript_expression" {
        let array = site.field("argument").map_or("", |a| a.innermost_name());
        let Some(index) = site.field("indices").filter(|_| PER_HEAD.contains(&array)) else {
            return Vec::new();
        };
        return vec![index.replaced("[0]")];
    }
    let Some((left, operator, right)) = site.binary() else { return Vec::new() };
    let heads = (left.innermost_name(), right.innermost_name());
    match (operator.source(), heads) {
        ("/", ("num_q_heads", "num_kv_heads")) => vec![site.replaced("1")],
        ("*", ("kv_head", "group")) => vec![site.replaced(left.source())],
        // Interleaved instead of grouped heads.
        ("+", _) if is_grouped_head(&left, &right) => {
            let Some((kv_head, _, group)) = left.binary() else { return Vec::new() };
            let Some((packed, _, _)) = right.binary() else { return Vec::new() };
            let (packed, group) = (packed.source(), group.source());
            vec![site.replaced(format!("{} + {packed} % {group} * 2", kv_head.source()))]
        }
        _ => Vec::new(),
    }
}

/// `kv_head * group + packed % group`.
fn is_grouped_head(left: &Site<'_>, right: &Site<'_>) -> bool {
    let operator_of = |s: &Site<'_>, name: &str| {
        s.binary().is_some_and(|(_, o, r)| o.source() == name && r.innermost_name() == "group")
    };
    operator_of(left, "*") && operator_of(right, "%")
}

pub(super) fn narrow(site: &Site<'_>) -> Vec<Edit> {
    if let Some(("static_cast", arguments)) = site.call() {
        let wide = site.template_arguments().first().is_some_and(|t| matches!(t.source(), "i64" | "u64"));
        return arguments
            .first()
            .filter(|_| wide)
            .map(|a| site.replaced(format!("({})", a.source())))
            .into_iter()
            .collect();
    }
    let declares = matches!(site.kind(), "declaration" | "function_definition" | "parameter_declaration");
    let kind = site.field("type").filter(|t| declares && t.source() == "i64");
    // A parameter struct's layout is the host's business; only values are narrowed.
    kind.map(|t| t.replaced("i32")).into_iter().collect()
}
