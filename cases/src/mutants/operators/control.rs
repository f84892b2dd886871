//! Branches, loops and statements.

use super::{Edit, Site};

pub(super) fn branch(site: &Site<'_>) -> Vec<Edit> {
    if site.kind() != "if_statement" {
        return Vec::new();
    }
    let Some(condition) = site.field("condition").and_then(|clause| clause.field("value")) else {
        return Vec::new();
    };
    ["true", "false"].map(|constant| condition.replaced(constant)).to_vec()
}

pub(super) fn ternary(site: &Site<'_>) -> Vec<Edit> {
    if site.kind() != "conditional_expression" {
        return Vec::new();
    }
    let sides = [site.field("consequence"), site.field("alternative")];
    sides.into_iter().flatten().map(|side| site.replaced(format!("({})", side.source()))).collect()
}

/// `break;` at the end of the body: the loop becomes an `if`.
pub(super) fn loop_to_if(site: &Site<'_>) -> Vec<Edit> {
    if !matches!(site.kind(), "for_statement" | "while_statement") {
        return Vec::new();
    }
    let Some(body) = site.field("body").filter(|body| body.kind() == "compound_statement") else {
        return Vec::new();
    };
    let close = body.node.end_byte() - 1;
    vec![Edit { range: close..close, replacement: "break; ".to_owned() }]
}

/// Barriers and copies have operators of their own.
const NOT_STATEMENTS: &[&str] = &["__syncthreads", "__syncwarp", "copy_async_commit", "copy_async_wait"];

pub(super) fn drop_statement(site: &Site<'_>) -> Vec<Edit> {
    if site.kind() != "expression_statement" {
        return Vec::new();
    }
    let Some(expression) = site.children().next() else { return Vec::new() };
    let droppable = match expression.kind() {
        "assignment_expression" => true,
        "call_expression" => expression
            .call()
            .is_some_and(|(name, _)| !NOT_STATEMENTS.contains(&name) && !name.starts_with("ATTEST_")),
        _ => false,
    };
    if droppable { vec![site.replaced(";")] } else { Vec::new() }
}
