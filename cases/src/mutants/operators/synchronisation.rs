//! Barriers, asynchronous copies and exchanges between lanes.

use super::{Edit, Site};

/// A call that stands alone as a statement, removed together with nothing else.
fn dropped_call(site: &Site<'_>, names: &[&str]) -> Vec<Edit> {
    if site.kind() != "expression_statement" {
        return Vec::new();
    }
    let call = site.children().next().and_then(|expression| expression.call());
    match call {
        Some((name, _)) if names.contains(&name) => vec![site.replaced(";")],
        _ => Vec::new(),
    }
}

pub(super) fn drop_barrier(site: &Site<'_>) -> Vec<Edit> {
    dropped_call(site, &["__syncthreads", "__syncwarp"])
}

pub(super) fn drop_async(site: &Site<'_>) -> Vec<Edit> {
    dropped_call(site, &["copy_async_commit", "copy_async_wait"])
}

pub(super) fn wait_less(site: &Site<'_>) -> Vec<Edit> {
    let Some(("copy_async_wait", _)) = site.call() else { return Vec::new() };
    let pending = site.template_arguments().into_iter().next();
    let number = pending.and_then(|p| Some((p, p.source().parse::<u32>().ok()?)));
    number.map(|(pending, groups)| pending.replaced((groups + 1).to_string())).into_iter().collect()
}

pub(super) fn drop_shuffle(site: &Site<'_>) -> Vec<Edit> {
    match site.call() {
        Some((name, arguments)) if name.starts_with("__shfl") && arguments.len() > 1 => {
            vec![site.replaced(format!("({})", arguments[1].source()))]
        }
        Some((name, arguments)) if matches!(name, "__all_sync" | "__any_sync") && arguments.len() > 1 => {
            vec![site.replaced(format!("({})", arguments[1].source()))]
        }
        _ => Vec::new(),
    }
}
