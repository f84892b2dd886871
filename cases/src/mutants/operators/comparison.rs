//! Comparisons and logical operators.

use super::arithmetic::swapped;
use super::{Edit, Site};

pub(super) fn boundary(site: &Site<'_>) -> Vec<Edit> {
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
