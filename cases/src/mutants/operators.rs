//! What a mutant may change: each operator looks at one node of the syntax tree and offers edits.

mod addressing;
mod arithmetic;
mod comparison;
mod control;
mod numeric;
mod synchronisation;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use tree_sitter::Node;

/// One replacement of a stretch of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Bytes of the file.
    pub range: Range<usize>,
    /// What stands there instead.
    pub replacement: String,
}

/// A node with the text of its file.
#[derive(Clone, Copy)]
pub(super) struct Site<'t> {
    node: Node<'t>,
    text: &'t str,
}

impl<'t> Site<'t> {
    pub fn new(node: Node<'t>, text: &'t str) -> Self {
        Self { node, text }
    }

    fn kind(&self) -> &'t str {
        self.node.kind()
    }

    fn source(&self) -> &'t str {
        &self.text[self.node.byte_range()]
    }

    fn field(&self, name: &str) -> Option<Self> {
        self.node.child_by_field_name(name).map(|node| Self { node, text: self.text })
    }

    fn parent(&self) -> Option<Self> {
        self.node.parent().map(|node| Self { node, text: self.text })
    }

    fn children(&self) -> impl Iterator<Item = Self> + use<'t> {
        let text = self.text;
        let node = self.node;
        (0..node.named_child_count()).filter_map(move |i| node.named_child(i).map(|node| Self { node, text }))
    }

    /// The whole node replaced.
    fn replaced(&self, replacement: impl Into<String>) -> Edit {
        Edit { range: self.node.byte_range(), replacement: replacement.into() }
    }

    /// Left operand, operator and right operand of a binary expression or assignment.
    fn binary(&self) -> Option<(Self, Self, Self)> {
        if !matches!(self.kind(), "binary_expression" | "assignment_expression") {
            return None;
        }
        Some((self.field("left")?, self.field("operator")?, self.field("right")?))
    }

    /// Name and arguments of a call; the name is without template arguments.
    fn call(&self) -> Option<(&'t str, Vec<Self>)> {
        if self.kind() != "call_expression" {
            return None;
        }
        let function = self.field("function")?;
        let name = function.field("name").unwrap_or(function).source();
        let arguments = self.field("arguments")?.children().filter(|a| a.kind() != "comment").collect();
        Some((name, arguments))
    }

    /// Name and first template argument of a call such as `static_cast<i64>(x)`.
    fn template_arguments(&self) -> Vec<Self> {
        let function = self.field("function");
        let list = function.and_then(|f| f.field("arguments"));
        list.map(|l| l.children().collect()).unwrap_or_default()
    }

    /// The nearest enclosing node of a kind.
    fn ancestor(&self, kind: &str) -> Option<Self> {
        let mut at = self.parent();
        while let Some(site) = at {
            if site.kind() == kind {
                return Some(site);
            }
            at = site.parent();
        }
        None
    }

    /// Text of the innermost name: `work.kv_head` gives `kv_head`, `decay[m][r]` gives `decay`.
    fn innermost_name(&self) -> &'t str {
        match self.kind() {
            "field_expression" => self.field("field").map_or("", |f| f.source()),
            "subscript_expression" => self.field("argument").map_or("", |a| a.innermost_name()),
            "identifier" | "field_identifier" => self.source(),
            "parenthesized_expression" => self.children().next().map_or("", |inner| inner.innermost_name()),
            _ => "",
        }
    }
}

/// In parentheses where precedence asks for it.
fn grouped(site: &Site<'_>) -> String {
    match site.kind() {
        "binary_expression" | "conditional_expression" | "assignment_expression" | "unary_expression" => {
            format!("({})", site.source())
        }
        _ => site.source().to_owned(),
    }
}

macro_rules! operators {
    ($($variant:ident, $name:literal, $summary:literal, $edits:path;)*) => {
        named_kinds! {
            /// A kind of mutant. In the order in which mutants of one place are made.
            Operator: $($variant, $name, $summary;)*
        }

        impl Operator {
            pub(super) fn edits(self, site: &Site<'_>) -> Vec<Edit> {
                match self { $(Self::$variant => $edits(site),)* }
            }
        }
    };
}

operators! {
    Barrier, "drop-barrier", "removes `__syncthreads` or `__syncwarp`", synchronisation::drop_barrier;
    AsyncCopy, "drop-async", "removes the wait for or the commit of an asynchronous copy", synchronisation::drop_async;
    WaitLess, "wait-less", "waits for one group of asynchronous copies less", synchronisation::wait_less;
    Shuffle, "drop-shuffle", "keeps a lane's own value instead of exchanging it", synchronisation::drop_shuffle;
    Arithmetic, "arithmetic", "swaps + and -, * and /, / and %, += and -=", arithmetic::arithmetic;
    Bitwise, "bitwise", "swaps & and |, << and >>", arithmetic::bitwise;
    Boundary, "boundary", "makes a strict comparison lax or a lax one strict", comparison::boundary;
    Equality, "equality", "swaps == and !=", comparison::equality;
    Logical, "logical", "swaps && and ||, drops !", comparison::logical;
    Branch, "branch", "makes the condition of an `if` constant: a predicate on a store or a read is lost", control::branch;
    Ternary, "ternary", "always takes one side of `?:`", control::ternary;
    LoopToIf, "loop-to-if", "runs a loop's body at most once", control::loop_to_if;
    Statement, "drop-statement", "removes an assignment or a call", control::drop_statement;
    OffByOne, "off-by-one", "moves a tile, page, window or length bound by one", addressing::off_by_one;
    SwapIndex, "swap-index", "swaps two index dimensions, or x and y of an index variable", addressing::swap_index;
    SwapStride, "swap-stride", "uses the stride of another axis", addressing::swap_stride;
    SwapKv, "swap-kv", "uses K's stride, pointer, dimension or scale for V, or the reverse", addressing::swap_kv;
    DropTerm, "drop-term", "drops a stride, page or offset term of a sum", addressing::drop_term;
    HeadMapping, "head-mapping", "maps query heads to KV heads wrongly", addressing::head_mapping;
    NarrowInteger, "narrow", "drops a cast to 64 bits, or computes an offset in 32 bits", addressing::narrow;
    DropScale, "drop-scale", "drops a scale, soft cap or divisor", numeric::drop_scale;
    DropRescale, "drop-rescale", "leaves sums at an older maximum", numeric::drop_rescale;
    Seed, "finite-seed", "starts a maximum at a finite value instead of -inf", numeric::finite_seed;
    ExpBase, "exp-base", "takes the exponential or logarithm in another base", numeric::exp_base;
    Reciprocal, "reciprocal", "multiplies by a rounded reciprocal instead of dividing", numeric::reciprocal;
    Rounding, "rounding", "rounds ties away from even", numeric::rounding;
    Format, "format", "reads or writes one fp8 format as the other", numeric::format;
    TemplateLiteral, "template", "changes a literal for a template parameter", numeric::template;
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Operator {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|operator| operator.name() == name).ok_or_else(|| {
            let accepted: Vec<&str> = Self::ALL.iter().map(|operator| operator.name()).collect();
            format!("operator is `{name}`; accepted: {}", accepted.join(", "))
        })
    }
}
