//! Kernel text as a C++ parser can read it: the same length byte for byte, so that places in the tree are places in
//! the file.
//!
//! Preprocessor lines, the branches that the `simt` build never compiles, and the project's macros are overwritten
//! with blanks or with plain C++ of equal length.

/// The text with everything replaced that a C++ parser would stumble over.
#[must_use]
pub fn masked(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    blank_preprocessor(text, &mut bytes);
    let plain = text_of(&bytes);
    for (at, _) in plain.match_indices("ATTEST_") {
        let (name_end, end) = end_of_macro(&plain, at);
        // Without arguments it is a qualifier; with arguments most macros read like calls.
        if end == name_end || plain[at..name_end].starts_with("ATTEST_UNROLL") {
            blank(&mut bytes, at, end);
        }
    }
    for (at, _) in plain.match_indices("_KERNEL(") {
        mask_kernel(&plain, &mut bytes, at);
    }
    mask_hexadecimal_floats(&plain, &mut bytes);
    text_of(&bytes)
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Overwrites a range with blanks; line ends stay.
fn blank(bytes: &mut [u8], from: usize, to: usize) {
    for byte in &mut bytes[from..to] {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

/// The end of `NAME`, and of `NAME(…)` where arguments follow.
fn end_of_macro(text: &str, at: usize) -> (usize, usize) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = at + text[at..].find(|c| !is_name(c)).unwrap_or(text.len() - at);
    if !text[end..].starts_with('(') {
        return (end, end);
    }
    (end, text[end..].find(')').map_or(end, |close| end + close + 1))
}

/// A kernel's header, `X_KERNEL(name, …)` at the start of a line with a body behind it, by the place of its `_KERNEL(`:
/// start of the line, open and close parenthesis.
fn kernel_header(text: &str, underscore: usize) -> Option<(usize, usize, usize)> {
    let line = text[..underscore].rfind('\n').map_or(0, |at| at + 1);
    let open = underscore + "_KERNEL".len();
    let prefix_is_name = text[line..underscore].chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let close = open + text[open..].find(')')?;
    let has_body = text[close + 1..].trim_start().starts_with('{');
    (prefix_is_name && has_body).then_some((line, open, close))
}

/// Where the bodies of a file's kernels start: the byte after each open brace.
#[must_use]
pub fn kernel_bodies(text: &str) -> Vec<usize> {
    let headers = text.match_indices("_KERNEL(").filter_map(|(at, _)| kernel_header(text, at));
    headers.filter_map(|(_, _, close)| text[close..].find('{').map(|brace| close + brace + 1)).collect()
}

/// `X_KERNEL(name, Params, 256)` at the start of a line becomes `void name()`.
fn mask_kernel(text: &str, bytes: &mut [u8], underscore: usize) {
    let Some((line, open, close)) = kernel_header(text, underscore) else { return };
    let name = text[open + 1..close].split(',').next().unwrap_or("").trim();
    let header = format!("void {name}()");
    if header.len() <= close + 1 - line {
        blank(bytes, line, close + 1);
        bytes[line..line + header.len()].copy_from_slice(header.as_bytes());
    }
}

/// `0x1.62e430p-1f` becomes a decimal literal of the same length.
fn mask_hexadecimal_floats(text: &str, bytes: &mut [u8]) {
    for (at, _) in text.match_indices("0x1") {
        let rest = &text[at..];
        let digits =
            rest[2..].find(|c: char| !c.is_ascii_hexdigit() && c != '.').map_or(rest.len(), |n| n + 2);
        if !rest[digits..].starts_with('p') {
            continue;
        }
        let exponent = digits + 1 + usize::from(rest[digits + 1..].starts_with(['+', '-']));
        let end = rest[exponent..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| n + exponent);
        bytes[at..at + end].fill(b'0');
        bytes[at + 1] = b'.';
    }
}

/// What a condition of the preprocessor says about the `simt` build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Active {
    Yes,
    No,
    /// It depends on the instance.
    Maybe,
}

/// One `#if` that is open.
struct Level {
    /// Whether lines of the present branch can be compiled.
    active: bool,
    /// Whether an earlier branch is taken for certain.
    taken: bool,
}

fn blank_preprocessor(text: &str, bytes: &mut [u8]) {
    let mut levels: Vec<Level> = Vec::new();
    let mut at = 0;
    let mut continued = false;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim_start();
        let directive = !continued && trimmed.starts_with('#');
        if directive {
            follow(trimmed, &mut levels);
        }
        let in_directive = directive || continued;
        if in_directive || levels.iter().any(|level| !level.active) {
            blank(bytes, at, at + line.len());
        }
        continued = in_directive && line.trim_end().ends_with('\\');
        at += line.len();
    }
}

fn follow(directive: &str, levels: &mut Vec<Level>) {
    let words = directive[1..].trim();
    let (name, condition) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    let condition = condition.trim();
    let mut open =
        |state: Active| levels.push(Level { active: state != Active::No, taken: state == Active::Yes });
    match name {
        "if" => open(evaluate(condition)),
        "ifdef" => open(evaluate(&format!("defined({condition})"))),
        "ifndef" => open(evaluate(&format!("!defined({condition})"))),
        "elif" => {
            if let Some(level) = levels.last_mut() {
                let state = evaluate(condition);
                level.active = !level.taken && state != Active::No;
                level.taken |= state == Active::Yes;
            }
        }
        "else" => {
            if let Some(level) = levels.last_mut() {
                level.active = !level.taken;
            }
        }
        "endif" => {
            levels.pop();
        }
        _ => {}
    }
}

/// A condition in the `simt` build: `ATTEST_SIMT` is defined, everything else depends on the instance.
fn evaluate(condition: &str) -> Active {
    if let Some((left, right)) = condition.split_once("||") {
        return match (evaluate(left), evaluate(right)) {
            (Active::Yes, _) | (_, Active::Yes) => Active::Yes,
            (Active::No, Active::No) => Active::No,
            _ => Active::Maybe,
        };
    }
    if let Some((left, right)) = condition.split_once("&&") {
        return match (evaluate(left), evaluate(right)) {
            (Active::No, _) | (_, Active::No) => Active::No,
            (Active::Yes, Active::Yes) => Active::Yes,
            _ => Active::Maybe,
        };
    }
    match condition.trim() {
        "defined(ATTEST_SIMT)" => Active::Yes,
        "!defined(ATTEST_SIMT)" => Active::No,
        _ => Active::Maybe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(masked(text), expected, "of {text:?}");
    }

    #[test]
    fn lengths_and_line_ends_stay() {
        for (_, text) in kernels::source::SourceSet::embedded().iter() {
            let result = masked(text);
            assert_eq!(result.len(), text.len());
            let ends = |t: &str| t.match_indices('\n').map(|(at, _)| at).collect::<Vec<_>>();
            assert_eq!(ends(&result), ends(text));
        }
    }

    #[test]
    fn macros_become_plain_text() {
        check("ATTEST_DEVICE int f() {}", "              int f() {}");
        check("ATTEST_UNROLL(4)\nfor (;;) {}", "                \nfor (;;) {}");
        check("ATTEST_UNROLL_FULL\n", "                  \n");
        check("ATTEST_KERNEL(f, P, 256) {}", "void f()                 {}");
        check("x = 0x1.5p-3f + 0x10u;", "x = 0.000000f + 0x10u;");
    }

    #[test]
    fn every_kernel_file_has_a_body() {
        let sources = kernels::source::SourceSet::embedded();
        for (name, text) in sources.iter().filter(|(name, _)| name.ends_with(".cu")) {
            let bodies = kernel_bodies(text);
            assert_eq!(bodies.len(), 1, "{name}");
            assert!(text[..bodies[0]].ends_with('{'), "{name}");
        }
    }

    #[test]
    fn only_branches_of_the_simt_build_stay() {
        check("#ifdef ATTEST_SIMT\na;\n#else\nb;\n#endif\n", "                  \na;\n     \n  \n      \n");
        check("#ifndef ATTEST_SIMT\na;\n#endif\nb;", "                   \n  \n      \nb;");
        check(
            "#if CODES == 16\na;\n#elif defined(COPY)\nb;\n#else\nc;\n#endif\n",
            "               \na;\n                   \nb;\n     \nc;\n      \n",
        );
        check(
            "#if defined(X) && !defined(ATTEST_SIMT)\na;\n#endif\n",
            "                                       \n  \n      \n",
        );
        check("#define F(x) \\\n  (x)\ny;", "              \n     \ny;");
    }
}
