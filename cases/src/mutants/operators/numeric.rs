//! Scales, running softmax, bases, formats and rounding.

use super::{Edit, Site, grouped};

const SCALE_WORDS: &[&str] =
    &["scale", "softcap", "decay", "factor", "weight", "divisor", "to_base_2", "kLog2E", "kLn2"];

fn is_scale(site: &Site<'_>) -> bool {
    let name = site.innermost_name();
    SCALE_WORDS.iter().any(|word| name.contains(word))
}

pub(super) fn drop_scale(site: &Site<'_>) -> Vec<Edit> {
    if let Some((name, arguments)) = site.call() {
        return match (name, arguments.as_slice()) {
            ("__fdiv_rn", [value, divisor]) if is_scale(divisor) || divisor.source() == "sum" => {
                vec![site.replaced(format!("({})", value.source()))]
            }
            ("fmaf", [a, b, c]) if is_scale(b) => {
                vec![site.replaced(format!("({} + {})", grouped(a), grouped(c)))]
            }
            ("fmaf", [a, b, c]) if is_scale(a) => {
                vec![site.replaced(format!("({} + {})", grouped(b), grouped(c)))]
            }
            _ => Vec::new(),
        };
    }
    let Some((left, operator, right)) = site.binary() else { return Vec::new() };
    if site.kind() != "binary_expression" || operator.source() != "*" {
        return Vec::new();
    }
    let mut edits = Vec::new();
    if is_scale(&right) || right.source().contains("scales") {
        edits.push(site.replaced(left.source()));
    }
    if is_scale(&left) {
        edits.push(site.replaced(right.source()));
    }
    edits
}

/// What scales earlier sums down to a new maximum becomes 1.
pub(super) fn drop_rescale(site: &Site<'_>) -> Vec<Edit> {
    let (target, value) = match site.kind() {
        "init_declarator" => (site.field("declarator"), site.field("value")),
        "assignment_expression" if site.field("operator").is_some_and(|o| o.source() == "=") => {
            (site.field("left"), site.field("right"))
        }
        _ => return Vec::new(),
    };
    let (Some(target), Some(value)) = (target, value) else { return Vec::new() };
    let rescales =
        ["decay", "weight"].contains(&target.innermost_name()) && value.kind() == "call_expression";
    if rescales && value.source().contains("exp") { vec![value.replaced("1.0f")] } else { Vec::new() }
}

pub(super) fn finite_seed(site: &Site<'_>) -> Vec<Edit> {
    match site.call() {
        Some(("negative_infinity", _)) => vec![site.replaced("-1.0e4f")],
        _ => Vec::new(),
    }
}

const BASES: &[(&str, &str)] = &[
    ("exp_f32", "exp2_f32"),
    ("exp2_f32", "exp_f32"),
    ("exp2_weight", "exp_f32"),
    ("kLog2E", "1.0f"),
    ("kLn2", "1.0f"),
];

pub(super) fn exp_base(site: &Site<'_>) -> Vec<Edit> {
    if site.kind() != "identifier" {
        return Vec::new();
    }
    let declares = site.parent().is_some_and(|p| {
        matches!(p.kind(), "function_declarator")
            || (p.kind() == "init_declarator" && p.field("declarator").is_some_and(|d| d.node == site.node))
    });
    let other = BASES.iter().find(|(name, _)| *name == site.source() && !declares);
    other.map(|(_, to)| site.replaced(*to)).into_iter().collect()
}

pub(super) fn reciprocal(site: &Site<'_>) -> Vec<Edit> {
    match site.call() {
        Some(("__fdiv_rn", arguments)) if arguments.len() == 2 => {
            let (value, divisor) = (grouped(&arguments[0]), arguments[1].source());
            vec![site.replaced(format!("({value} * __fdiv_rn(1.0f, {divisor}))"))]
        }
        _ => Vec::new(),
    }
}

/// The last kept bit, which decides ties, becomes 1.
pub(super) fn rounding(site: &Site<'_>) -> Vec<Edit> {
    let Some((_, operator, right)) = site.binary() else { return Vec::new() };
    let in_sum = site.parent().and_then(|p| p.parent()).is_some_and(|p| p.source().contains('+'));
    if operator.source() == "&" && right.source() == "1u" && in_sum {
        vec![site.replaced("1u")]
    } else {
        Vec::new()
    }
}

const FORMAT_MACROS: &[&str] = &["KV_FORMAT", "SOURCE_FORMAT", "TO_FORMAT", "Q_FORMAT", "OUT_FORMAT"];

pub(super) fn format(site: &Site<'_>) -> Vec<Edit> {
    let is_name = matches!(site.kind(), "type_identifier" | "namespace_identifier" | "identifier");
    if !is_name || !FORMAT_MACROS.contains(&site.source()) || is_size(site) {
        return Vec::new();
    }
    match site.source() {
        "KV_FORMAT" => ["E4m3", "E5m2"].map(|other| site.replaced(other)).to_vec(),
        _ => ["Bf16", "F16"].map(|other| site.replaced(other)).to_vec(),
    }
}

/// `KV_FORMAT::bytes` is the same for both fp8 formats.
fn is_size(site: &Site<'_>) -> bool {
    site.parent().is_some_and(|p| p.source().ends_with("::bytes"))
}

pub(super) fn template(site: &Site<'_>) -> Vec<Edit> {
    let Some(parent) = site.parent().filter(|p| p.kind() == "template_argument_list") else {
        return Vec::new();
    };
    let of_wait = parent.parent().is_some_and(|p| p.source().starts_with("copy_async_wait"));
    if of_wait {
        return Vec::new();
    }
    match (site.kind(), site.source()) {
        (_, "true") => vec![site.replaced("false")],
        (_, "false") => vec![site.replaced("true")],
        ("number_literal", number) => {
            let value: Option<i64> = number.parse().ok();
            value.map(|n| [n - 1, n + 1].map(|n| site.replaced(n.to_string())).to_vec()).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}
