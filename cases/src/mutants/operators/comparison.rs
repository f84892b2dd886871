//! Comparisons and logical operators.

use super::arithmetic::swapped;
use super::{Edit, Site};

/// None where the comparison chooses between what it compares, as a minimum does: at the boundary both are the same value.
pub(super) fn boundary(site: &Site<'_>) -> Vec<Edit> {
    if chooses_between_equals(site).unwrap_or(false) {
        return Vec::new();
    }
    swapped(site, &[("<", "<="), ("<=", "<"), (">", ">="), (">=", ">")])
}

pub(super) fn equality(site: &Site<'_>) -> Vec<Edit> {
    swapped(site, &[("==", "!="), ("!=", "==")])
}

pub(super) fn logical(site: &Site<'_>) -> Vec<Edit> {
    if site.kind() == "unary_expression" && site.source().starts_with('!') {
        return site.field("argument").map(|inner| site.replaced(inner.source())).into_iter().collect();
    }
    swapped(site, &[("&&", "||"), ("||", "&&")])
}

/// Whether a comparison, alone or with guards beside it, is the condition of a `?:` whose sides are the same once the
/// compared operands are: `a < b ? a : b`, or `a < b ? a - 1 : b - 1`.
fn chooses_between_equals(site: &Site<'_>) -> Option<bool> {
    let (left, _, right) = site.binary()?;
    let (left, right) = (left.source(), right.source());
    let mut condition = *site;
    let choice = loop {
        let parent = condition.parent()?;
        match parent.kind() {
            "conditional_expression" => break parent,
            "binary_expression" if matches!(parent.binary()?.1.source(), "&&" | "||") => condition = parent,
            _ => return None,
        }
    };
    if choice.field("condition")?.node.id() != condition.node.id() {
        return None;
    }
    let value = |side: &str| choice.field(side).map(|side| without_cast(side.source()));
    let (first, second) = (value("consequence")?, value("alternative")?);
    Some(first.replace(left, right) == second || second.replace(left, right) == first)
}

/// `static_cast<i32>(x)` is `x` as far as its value goes.
fn without_cast(text: &str) -> &str {
    let inner = text.strip_prefix("static_cast<").and_then(|rest| rest.split_once(">("));
    inner.and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(text)
}
