//! The place in the source that made a device call.
//!
//! Calls arrive through a trait object, where `#[track_caller]` names the interface and not the caller. So the stack is
//! walked when something is made, which takes microseconds, and turned into text only when somebody asks.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use backtrace::Backtrace;

/// Where a call came from.
#[derive(Clone)]
pub struct Site(Arc<Backtrace>);

/// Files that only pass a call on: the reader wants to know who asked them.
const PASSES_ON: [&str; 3] = ["kernels/src/scratch.rs", "kernels/src/workspace.rs", "kernels/src/device.rs"];

impl Site {
    /// The caller of the device.
    pub(crate) fn here() -> Self {
        Self(Arc::new(Backtrace::new_unresolved()))
    }

    /// `file:line` of the innermost caller that is neither this crate's device nor a guard, else what is known.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut trace = Backtrace::clone(&self.0);
        trace.resolve();
        let mut fallback = None;
        for symbol in trace.frames().iter().flat_map(backtrace::BacktraceFrame::symbols) {
            let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno()) else { continue };
            let Some(file) = shorten(file) else { continue };
            let place = format!("{file}:{line}");
            if !PASSES_ON.contains(&file.as_str()) {
                return place;
            }
            fallback.get_or_insert(place);
        }
        fallback.unwrap_or_else(|| "an unknown place (no debug information)".to_owned())
    }
}

/// The path from the workspace's root on; `None` for the standard library, dependencies and this crate's own device.
fn shorten(file: &Path) -> Option<String> {
    let text = file.to_str()?.replace('\\', "/");
    if text.starts_with("/rustc/") || text.contains("/rustlib/") || text.contains("/registry/src/") {
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::to_str).unwrap_or_default();
    let short = text.strip_prefix(root).map_or(text.as_str(), |rest| rest.trim_start_matches('/'));
    let own = ["faulty.rs", "faulty/device.rs", "site.rs", "ledger.rs"];
    let is_own =
        own.iter().any(|name| short.strip_prefix("fault-injection/src/").is_some_and(|rest| rest == *name));
    (!is_own).then(|| short.to_owned())
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(file: &str) -> Option<String> {
        shorten(Path::new(file))
    }

    #[test]
    fn places_in_the_workspace_are_given_from_its_root_on() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::to_str).expect("a root");
        for file in
            ["kernels/src/dense.rs", "fault-injection/src/drops.rs", "fault-injection/tests/ledger.rs"]
        {
            assert_eq!(shown(&format!("{root}/{file}")).as_deref(), Some(file));
            assert_eq!(shown(file).as_deref(), Some(file), "a path that is relative already");
        }
    }

    #[test]
    fn the_standard_library_dependencies_and_the_device_itself_are_passed_over() {
        for file in [
            "/rustc/59807616e1fa/library/core/src/ops/function.rs",
            "/home/user/toolchains/stable/lib/rustlib/src/rust/library/std/src/thread/mod.rs",
            "/home/user/registry/src/index/backtrace-0.3.77/src/capture.rs",
            "fault-injection/src/faulty/device.rs",
            "fault-injection/src/ledger.rs",
        ] {
            assert_eq!(shown(file), None);
        }
    }
}
