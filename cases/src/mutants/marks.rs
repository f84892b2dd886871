//! Kernel text that marks which of its blocks are entered: what a check never enters, no mutant in it can show.
//!
//! Every block of every function gets a call at its start that sets one byte of a file shared with the parent process.
//! The rest of the text stays as it is, so what a kernel computes does not change.

use std::collections::BTreeMap;

use kernels::source::SourceSet;
use tree_sitter::Node;

use super::discover::{DiscoverError, parsed};

/// Names the file that a worker's kernels mark, of [`Marked::len`] bytes.
pub const MARKS_VARIABLE: &str = "ATTEST_MUTANT_MARKS";

/// Kernel sources with marks.
#[derive(Clone, Debug)]
pub struct Marked {
    /// The changed text.
    pub sources: SourceSet,
    /// Byte ranges of the original text that each mark stands for, by file, in the order of the marks.
    blocks: BTreeMap<String, Vec<Block>>,
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    mark: usize,
    from: usize,
    to: usize,
}

impl Marked {
    /// Puts marks into all kernel sources.
    ///
    /// # Errors
    /// When a file cannot be parsed.
    pub fn new(sources: &SourceSet) -> Result<Self, DiscoverError> {
        let mut blocks = BTreeMap::new();
        let mut len = 0;
        for (file, text) in sources.iter() {
            let of_file = blocks_of(text, len)?;
            len += of_file.len();
            blocks.insert(file.to_owned(), of_file);
        }
        let mut marked = sources.clone();
        for (file, text) in sources.iter() {
            let mut changed = text.to_owned();
            // From the end, so that earlier places stay.
            for block in blocks[file].iter().rev() {
                changed.insert_str(block.from, &format!(" attest_mark({});", block.mark));
            }
            if file.ends_with(".cu") {
                changed.insert_str(0, &prologue(len));
            }
            marked = marked.with_file(file, &changed);
        }
        Ok(Self { sources: marked, blocks, len })
    }

    /// Number of marks.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "kernels have blocks")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The mark of the innermost block around a change; none for text outside of functions, such as constants, which
    /// concerns every user of the file.
    #[must_use]
    pub fn around(&self, file: &str, from: usize, to: usize) -> Option<usize> {
        let blocks = self.blocks.get(file)?.iter();
        let around = blocks.filter(|block| block.from <= from && to <= block.to);
        around.min_by_key(|block| block.to - block.from).map(|block| block.mark)
    }
}

/// Blocks in the order of their places; a mark belongs at the start of each.
fn blocks_of(text: &str, first_mark: usize) -> Result<Vec<Block>, DiscoverError> {
    let tree = parsed(text)?;
    let mut ranges = Vec::new();
    visit(tree.root_node(), false, &mut ranges);
    ranges.sort_unstable();
    let numbered = ranges.into_iter().enumerate();
    Ok(numbered.map(|(n, (from, to))| Block { mark: first_mark + n, from, to }).collect())
}

fn visit(node: Node<'_>, in_function: bool, ranges: &mut Vec<(usize, usize)>) {
    let in_function = in_function || node.kind() == "function_definition";
    match node.kind() {
        "compound_statement" if in_function => ranges.push((node.start_byte() + 1, node.end_byte() - 1)),
        // Falling through from the case above runs the statements, too: the mark goes before the first of them.
        "case_statement" => {
            let value = node.child_by_field_name("value");
            let mut cursor = node.walk();
            let mut statements = node.named_children(&mut cursor).filter(|child| Some(*child) != value);
            if let Some(first) = statements.find(|child| child.kind() != "comment") {
                ranges.push((first.start_byte(), node.end_byte()));
            }
        }
        _ => {}
    }
    let mut cursor = node.walk();
    for child in node.children(&mut cursor) {
        visit(child, in_function, ranges);
    }
}

/// What a marked translation unit starts with. Only numbers that Linux fixes: O_RDWR is 2, PROT_READ | PROT_WRITE is 3,
/// MAP_SHARED is 1. The checks of memory accesses must not see the marks.
fn prologue(len: usize) -> String {
    format!(
        r#"extern "C" {{ char* getenv(const char*); int open(const char*, int, ...);
void* mmap(void*, unsigned long, int, int, int, long); }}
static unsigned char attest_unmarked[{len}];
static unsigned char* attest_marks = attest_unmarked;
__attribute__((constructor, no_sanitize("thread"))) static void attest_open_marks() {{
    const char* const file = getenv("{MARKS_VARIABLE}");
    const int opened = file ? open(file, 2) : -1;
    void* const mapped = opened < 0 ? nullptr : mmap(nullptr, {len}, 3, 1, opened, 0);
    if (mapped && mapped != reinterpret_cast<void*>(-1)) attest_marks = static_cast<unsigned char*>(mapped);
}}
__attribute__((noinline, no_sanitize("thread"))) static void attest_mark(int mark) {{ attest_marks[mark] = 1; }}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "constexpr int n = 3;\nint f(int a) {\n    if (a > n) {\n        return 1;\n    }\n    switch (a) {\n        \
                        case 1: a = 2; break;\n        default: a = 3;\n    }\n    return a;\n}\n";

    fn marked() -> Marked {
        Marked::new(&SourceSet::embedded().with_file("combine.cu", TEXT)).unwrap()
    }

    fn around(marked: &Marked, what: &str) -> Option<usize> {
        let at = TEXT.find(what).unwrap();
        marked.around("combine.cu", at, at + what.len())
    }

    #[test]
    fn every_block_has_a_mark_of_its_own_and_the_innermost_counts() {
        let marked = marked();
        let body = around(&marked, "return a;").unwrap();
        assert_eq!(around(&marked, "a > n"), Some(body));
        assert_eq!(around(&marked, "return 1;"), Some(body + 1));
        assert_eq!(around(&marked, "a = 2"), Some(body + 3));
        assert_eq!(around(&marked, "a = 3"), Some(body + 4));
        assert_eq!(around(&marked, "int n = 3"), None, "a constant belongs to no block");
    }

    #[test]
    fn the_text_between_the_marks_is_the_original() {
        let marked = marked();
        let text = marked.sources.get("combine.cu").unwrap();
        assert!(text.ends_with("return a;\n}\n"), "{text}");
        let body = &text[text.find("constexpr int n").unwrap()..];
        let (start, marked_rest) = body.split_once(" attest_mark(").unwrap();
        let rest = marked_rest.split(" attest_mark(").map(|part| part.split_once(");").unwrap().1);
        assert_eq!(format!("{start}{}", rest.collect::<String>()), TEXT);
        assert!(!marked.sources.get("formats.cuh").unwrap().contains("getenv"), "once per translation unit");
    }
}
