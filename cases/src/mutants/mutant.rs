//! One mutant of one kernel file.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::operators::Operator;

/// A place in a file, both from 1; columns count bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

/// One small change of one kernel file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// `file:line:column operator`, with ` #2` and so on where one operator makes several mutants of one place.
    pub id: String,
    /// File in the kernel directory.
    pub file: String,
    /// The function it lies in, or empty.
    pub function: String,
    /// What kind of change.
    pub operator: Operator,
    /// First byte that changes.
    pub from: usize,
    /// End of the bytes that change.
    pub to: usize,
    /// Where the change starts.
    pub start: Position,
    /// Where it ends.
    pub end: Position,
    /// What stands there.
    pub original: String,
    /// What stands there instead.
    pub replacement: String,
}

impl Mutant {
    /// The file with the change made. What follows stays on its line: machine code may contain line numbers.
    #[must_use]
    pub fn apply(&self, text: &str) -> String {
        let lines = |text: &str| text.matches('\n').count();
        let lost = lines(&self.original).saturating_sub(lines(&self.replacement));
        let mut changed = String::with_capacity(text.len() + self.replacement.len() + lost);
        changed.push_str(&text[..self.from]);
        changed.push_str(&self.replacement);
        changed.push_str(&"\n".repeat(lost));
        changed.push_str(&text[self.to..]);
        changed
    }

    /// The change on one line, for lists: `scalar.cu:331:9: replace `__syncthreads();` with `;` in scalar_attention`.
    #[must_use]
    pub fn describe(&self) -> String {
        let Position { line, column } = self.start;
        let what = match (self.original.as_str(), self.replacement.as_str()) {
            ("", insertion) => format!("insert `{}`", insertion.trim()),
            (original, ";") => format!("delete `{}`", one_line(original)),
            (original, replacement) => {
                format!("replace `{}` with `{}`", one_line(original), one_line(replacement))
            }
        };
        let place = if self.function.is_empty() { String::new() } else { format!(" in {}", self.function) };
        format!("{}:{line}:{column}: {what}{place} [{}]", self.file, self.operator)
    }

    /// A unified diff of the change with three lines of context.
    #[must_use]
    pub fn diff(&self, text: &str, directory: &str) -> String {
        let changed = self.apply(text);
        let (before, after): (Vec<&str>, Vec<&str>) = (text.lines().collect(), changed.lines().collect());
        let first = self.start.line - 1;
        let removed = self.end.line - first;
        let added = (removed + after.len()).saturating_sub(before.len());
        let (context, tail) = (first.saturating_sub(3), (first + removed + 3).min(before.len()));
        let mut diff = format!("--- a/{directory}/{0}\n+++ b/{directory}/{0}\n", self.file);
        let lengths = (tail - context, tail - context + added - removed);
        let _ = writeln!(diff, "@@ -{},{} +{},{} @@", context + 1, lengths.0, context + 1, lengths.1);
        let mut put = |sign: char, lines: &[&str]| {
            for line in lines {
                let _ = writeln!(diff, "{sign}{line}");
            }
        };
        put(' ', &before[context..first]);
        put('-', &before[first..first + removed]);
        put('+', &after[first..first + added]);
        put(' ', &before[first + removed..tail]);
        diff
    }
}

fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(90) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::super::discover::mutants_of;
    use super::*;

    #[test]
    fn what_follows_a_change_stays_on_its_line() {
        let text = "void f() {\n    a(1,\n      2);\n    b();\n}\n";
        let mutants = mutants_of("f.cu", text).unwrap();
        let dropped = mutants.iter().find(|mutant| mutant.original.starts_with("a(1")).unwrap();
        assert_eq!(dropped.apply(text), "void f() {\n    ;\n\n    b();\n}\n");
    }

    #[test]
    fn a_diff_has_its_context_and_both_lines() {
        let text = "int f() {\n    a();\n    b();\n    return 1 + 2;\n}\n";
        let mutants = mutants_of("f.cu", text).unwrap();
        let sum = mutants.iter().find(|mutant| mutant.operator == Operator::Arithmetic).unwrap();
        assert_eq!(sum.id, "f.cu:4:14 arithmetic");
        assert_eq!(sum.describe(), "f.cu:4:14: replace `+` with `-` in f [arithmetic]");
        assert_eq!(
            sum.diff(text, "kernels/cuda"),
            "--- a/kernels/cuda/f.cu\n+++ b/kernels/cuda/f.cu\n@@ -1,5 +1,5 @@\n int f() {\n     a();\n     b();\n\
             -    return 1 + 2;\n+    return 1 - 2;\n }\n"
        );
    }
}
