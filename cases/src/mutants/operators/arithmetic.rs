//! Arithmetic and bit operators.

use super::{Edit, Site};

/// Replaces the operator of a binary expression or assignment by the one the table pairs it with.
pub(super) fn swapped(site: &Site<'_>, pairs: &[(&str, &str)]) -> Vec<Edit> {
    let Some((_, operator, _)) = site.binary() else { return Vec::new() };
    let found = pairs.iter().filter(|(from, _)| *from == operator.source());
    found.map(|(_, to)| operator.replaced(*to)).collect()
}

pub(super) fn arithmetic(site: &Site<'_>) -> Vec<Edit> {
    let mut edits = swapped(
        site,
        &[
            ("+", "-"),
            ("-", "+"),
            ("*", "/"),
            ("/", "%"),
            ("%", "/"),
            ("+=", "-="),
            ("-=", "+="),
            ("*=", "/="),
        ],
    );
    // `%` has no meaning for floats.
    for edit in edits.iter_mut().filter(|edit| edit.replacement == "%" && is_float(site)) {
        edit.replacement = "*".to_owned();
    }
    edits
}

fn is_float(site: &Site<'_>) -> bool {
    let Some((left, _, right)) = site.binary() else { return false };
    [left, right].iter().any(|side| side.source().ends_with('f') && side.kind() == "number_literal")
}

pub(super) fn bitwise(site: &Site<'_>) -> Vec<Edit> {
    swapped(site, &[("&", "|"), ("|", "&"), ("^", "|"), ("<<", ">>"), (">>", "<<")])
}
