//! Finding mutants: every operator at every node of every kernel file.

use std::collections::HashSet;

use kernels::source::SourceSet;
use tree_sitter::{Node, Parser, Tree};

use super::masked::masked;
use super::mutant::{Mutant, Position};
use super::operators::{Operator, Site};

/// Why mutants could not be found.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// The grammar and the parser do not fit together.
    #[error("the C++ grammar cannot be loaded: {0}")]
    Grammar(String),
    /// A file is not C++ even after masking.
    #[error("{file}:{line}: kernel text that the parser does not understand: `{text}`")]
    Syntax {
        /// The file.
        file: String,
        /// Line from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
}

/// Nodes that no operator looks into: nothing in them runs.
const INERT: &[&str] = &[
    "comment",
    "static_assert_declaration",
    "string_literal",
    "alias_declaration",
    "template_parameter_list",
];

/// Every mutant of every file, by file and place, duplicates folded.
///
/// # Errors
/// When a file cannot be parsed.
pub fn discover(sources: &SourceSet) -> Result<Vec<Mutant>, DiscoverError> {
    let mut all = Vec::new();
    for (file, text) in sources.iter() {
        all.extend(mutants_of(file, text)?);
    }
    Ok(all)
}

/// The mutants of one file in the order of their places.
///
/// # Errors
/// When the file cannot be parsed.
pub fn mutants_of(file: &str, text: &str) -> Result<Vec<Mutant>, DiscoverError> {
    let plain = masked(text);
    let tree = parsed(text)?;
    let mut found = Finder { file, text, plain: &plain, seen: HashSet::new(), mutants: Vec::new() };
    found.visit(tree.root_node())?;
    found.mutants.sort_by_key(|m| (m.from, m.to));
    number(&mut found.mutants);
    Ok(found.mutants)
}

/// The syntax tree of a file, with places as in the file.
pub(super) fn parsed(text: &str) -> Result<Tree, DiscoverError> {
    let mut parser = Parser::new();
    parser
        .set_language(&tree_sitter_cpp::LANGUAGE.into())
        .map_err(|error| DiscoverError::Grammar(error.to_string()))?;
    let tree = parser.parse(masked(text), None);
    tree.ok_or_else(|| DiscoverError::Grammar("the parser gave no tree".to_owned()))
}

struct Finder<'a> {
    file: &'a str,
    text: &'a str,
    /// The text as it was parsed: names of kernels are in its headers only.
    plain: &'a str,
    /// Edits that were made already: two operators may agree.
    seen: HashSet<(usize, usize, String)>,
    mutants: Vec<Mutant>,
}

impl Finder<'_> {
    fn visit(&mut self, node: Node<'_>) -> Result<(), DiscoverError> {
        if node.is_error() || node.is_missing() {
            let text = self.text[node.byte_range()].chars().take(60).collect();
            return Err(DiscoverError::Syntax {
                file: self.file.to_owned(),
                line: node.start_position().row + 1,
                text,
            });
        }
        if INERT.contains(&node.kind()) {
            return Ok(());
        }
        for operator in Operator::ALL {
            for edit in operator.edits(&Site::new(node, self.text)) {
                let (from, to) = (edit.range.start, edit.range.end);
                if self.text[from..to] != edit.replacement
                    && self.seen.insert((from, to, edit.replacement.clone()))
                {
                    let mutant = self.mutant(node, *operator, from, to, edit.replacement);
                    self.mutants.push(mutant);
                }
            }
        }
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            self.visit(child)?;
        }
        Ok(())
    }

    fn mutant(
        &self,
        node: Node<'_>,
        operator: Operator,
        from: usize,
        to: usize,
        replacement: String,
    ) -> Mutant {
        Mutant {
            id: String::new(),
            file: self.file.to_owned(),
            function: function_of(node, self.plain),
            operator,
            from,
            to,
            start: position(self.text, from),
            end: position(self.text, to),
            original: self.text[from..to].to_owned(),
            replacement,
        }
    }
}

pub(super) fn position(text: &str, at: usize) -> Position {
    let line_start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    Position { line: text[..at].matches('\n').count() + 1, column: at - line_start + 1 }
}

/// `E4m3::encode` or `stage_keys`: the function that a node lies in, with its struct.
fn function_of(node: Node<'_>, text: &str) -> String {
    let mut names = Vec::new();
    let mut at = Some(node);
    while let Some(node) = at {
        let name = match node.kind() {
            "function_definition" => node.child_by_field_name("declarator").and_then(declared_name),
            "struct_specifier" => node.child_by_field_name("name"),
            _ => None,
        };
        if let Some(name) = name {
            names.push(&text[name.byte_range()]);
        }
        at = node.parent();
    }
    names.reverse();
    names.join("::")
}

fn declared_name(declarator: Node<'_>) -> Option<Node<'_>> {
    let mut at = declarator;
    while let Some(inner) = at.child_by_field_name("declarator") {
        at = inner;
    }
    Some(at)
}

/// Names every mutant by its place and operator.
fn number(mutants: &mut [Mutant]) {
    let mut seen = std::collections::HashMap::new();
    for mutant in mutants {
        let Position { line, column } = mutant.start;
        let id = format!("{}:{line}:{column} {}", mutant.file, mutant.operator);
        let count = seen.entry(id.clone()).and_modify(|n| *n += 1).or_insert(1_usize);
        mutant.id = if *count == 1 { id } else { format!("{id} #{count}") };
    }
}

#[cfg(test)]
mod tests;
