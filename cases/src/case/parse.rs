//! Parsing a case line. Terms after the operation may come in any order, each at most once.

use std::collections::BTreeMap;
use std::str::FromStr;

use oracle::{CacheLayout, Format, Packing, Padding};

use super::{Case, Data, Defect, Expectation, Paging, Relation};
use crate::problem::{Op, Options, Problem, Scale, Sinks};

/// Largest length, head count, dimension or seed-independent size a line may name. Larger figures are typing errors
/// that would only show as an attempt to allocate terabytes.
const MAX_SIZE: usize = 1 << 24;
/// Largest number of entries of a list.
const MAX_LIST: usize = 1 << 16;

/// A case line that does not parse: where, what stands there, and what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("case line, column {column}: {term} is {value}; accepted: {accepted}")]
pub struct ParseError {
    /// First column of the term, counted from 1.
    pub column: usize,
    /// The term's name.
    pub term: String,
    /// What the line has there, quoted, or `missing`.
    pub value: String,
    /// What would be accepted.
    pub accepted: String,
}

/// One word of the line and where it starts.
#[derive(Clone, Copy)]
struct Word<'a> {
    column: usize,
    text: &'a str,
}

impl Word<'_> {
    fn error(self, term: &str, value: &str, accepted: impl Into<String>) -> ParseError {
        ParseError {
            column: self.column,
            term: term.to_owned(),
            value: format!("`{value}`"),
            accepted: accepted.into(),
        }
    }
}

/// The line's terms by name, each with the word it came from and its value.
struct Terms<'a> {
    by_name: BTreeMap<&'static str, (Word<'a>, &'a str)>,
    end_column: usize,
}

const BARE: [&str; 9] =
    ["NHD", "HND", "separate", "unbind-inner", "unbind-outer", "causal", "alibi", "sinks", "nolse"];
const KEYS: [&str; 22] = [
    "kv", "pad", "vpad", "win", "softcap", "sinks", "scale", "q", "slots", "kscale", "vscale", "data", "mag",
    "shift", "paging", "bad", "expect", "relation", "within", "seed", "h", "d",
];

impl FromStr for Case {
    type Err = ParseError;

    fn from_str(line: &str) -> Result<Self, ParseError> {
        let terms = Terms::read(line)?;
        let case = Self {
            problem: problem(&terms)?,
            data: terms.optional("data", Data::ACCEPTED, Data::from_name)?.unwrap_or_default(),
            magnitude: terms.float("mag")?.unwrap_or(1.0),
            logit_shift: terms.float("shift")?.unwrap_or(0.0),
            paging: terms
                .optional("paging", "shuffled, identity, descending", |text| {
                    Paging::ALL.into_iter().find(|p| p.name() == text)
                })?
                .unwrap_or_default(),
            seed: terms.required("seed", "a whole number", |text| text.parse().ok())?,
            defect: terms.optional("bad", &Defect::accepted(), Defect::from_name)?,
            expectation: terms
                .optional("expect", "reject:ARGUMENT", |text| {
                    let argument = text.strip_prefix("reject:").filter(|a| !a.is_empty())?.to_owned();
                    Some(Expectation::Reject { argument })
                })?
                .unwrap_or_default(),
            relation: terms.optional("relation", &Relation::accepted(), Relation::from_name)?,
            within: terms.optional("within", "a positive number", |text| {
                text.parse().ok().filter(|limit: &f32| limit.is_finite() && *limit > 0.0)
            })?,
        };
        consistent(&case, &terms)?;
        Ok(case)
    }
}

impl<'a> Terms<'a> {
    fn read(line: &'a str) -> Result<Self, ParseError> {
        let mut terms = Self { by_name: BTreeMap::new(), end_column: line.chars().count() + 1 };
        for (index, word) in words(line).enumerate() {
            let (name, value) = match index {
                0 => ("operation", word.text),
                1 => ("query format", word.text),
                _ => classify(word)?,
            };
            if terms.by_name.insert(name, (word, value)).is_some() {
                return Err(word.error(name, word.text, "each term once"));
            }
        }
        Ok(terms)
    }

    fn missing(&self, name: &str, accepted: &str) -> ParseError {
        ParseError {
            column: self.end_column,
            term: name.to_owned(),
            value: "missing".to_owned(),
            accepted: accepted.to_owned(),
        }
    }

    fn optional<T>(
        &self,
        name: &'static str,
        accepted: &str,
        parse: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<Option<T>, ParseError> {
        match self.by_name.get(name) {
            None => Ok(None),
            Some((word, value)) => parse(value).map(Some).ok_or_else(|| word.error(name, value, accepted)),
        }
    }

    fn required<T>(
        &self,
        name: &'static str,
        accepted: &str,
        parse: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, ParseError> {
        self.optional(name, accepted, parse)?.ok_or_else(|| self.missing(name, accepted))
    }

    fn float(&self, name: &'static str) -> Result<Option<f32>, ParseError> {
        self.optional(name, "a number", |text| text.parse().ok())
    }

    fn has(&self, name: &'static str) -> bool {
        self.by_name.contains_key(name)
    }
}

/// Splits at white space, with columns counted in characters.
fn words(line: &str) -> impl Iterator<Item = Word<'_>> {
    line.split_whitespace().map(move |text| {
        let offset = text.as_ptr() as usize - line.as_ptr() as usize;
        Word { column: line[..offset].chars().count() + 1, text }
    })
}

/// The name under which a word is filed, and its value.
fn classify(word: Word<'_>) -> Result<(&'static str, &str), ParseError> {
    let text = word.text;
    if let Some((key, value)) = text.split_once('=') {
        let name = KEYS.iter().find(|k| **k == key).copied();
        return match name {
            Some("kv") if value.starts_with('[') => Ok(("kv lengths", value)),
            Some("kv") => Ok(("kv format", value)),
            Some(name) if name.len() > 1 || name == "q" => Ok((name, value)),
            _ => Err(unknown(word)),
        };
    }
    if let Some(name) = BARE.iter().find(|name| **name == text) {
        return Ok(match *name {
            "NHD" | "HND" => ("layout", text),
            "separate" | "unbind-inner" | "unbind-outer" => ("packing", text),
            "sinks" => ("sinks", ""),
            name => (name, ""),
        });
    }
    for (prefix, name) in [("page", "page"), ("h", "h"), ("d", "d")] {
        if let Some(value) = text.strip_prefix(prefix)
            && value.starts_with(|c: char| c.is_ascii_digit())
        {
            return Ok((name, value));
        }
    }
    Err(unknown(word))
}

fn unknown(word: Word<'_>) -> ParseError {
    let keys = KEYS.iter().filter(|k| k.len() > 1 || **k == "q").map(|k| format!("{k}="));
    let known: Vec<String> = ["hQ/KV", "dDIM[/DIM]", "pageN"]
        .iter()
        .map(ToString::to_string)
        .chain(BARE.iter().map(ToString::to_string))
        .chain(keys)
        .collect();
    word.error("term", word.text, known.join(", "))
}

fn problem(terms: &Terms<'_>) -> Result<Problem, ParseError> {
    let op_names = "prefill, decode, mixed, verify, store";
    let op = terms.required("operation", op_names, |t| Op::ALL.into_iter().find(|op| op.name() == t))?;
    let (num_q_heads, num_kv_heads) = terms.required("h", "hQ/KV, for example h32/4", |t| pair(t, false))?;
    let (head_dim, head_dim_v) =
        terms.required("d", "dDIM or dK/V, for example d128 or d192/128", |t| pair(t, true))?;
    let slots = terms.optional("slots", "[slot,slot,…] with −1 for a skipped row", list)?;
    let query_lens = match &slots {
        Some(_) => Vec::new(),
        None => terms.required("q", "[len,len,…]", sizes)?,
    };
    Ok(Problem {
        op,
        query_format: terms.required("query format", "f32, bf16, f16", query_format)?,
        cache_format: terms
            .required("kv format", "kv=f32, bf16, f16, e4m3, e5m2", |t| t.parse::<Format>().ok())?,
        num_q_heads,
        num_kv_heads,
        head_dim,
        head_dim_v,
        page_size: terms.required("page", "pageN", size)?,
        layout: terms.required("layout", "NHD, HND", |t| t.parse::<CacheLayout>().ok())?,
        packing: terms
            .optional("packing", "separate, unbind-inner, unbind-outer", |t| t.parse().ok())?
            .unwrap_or(Packing::Separate),
        padding: terms.optional("pad", "pad=BASE,ROW,PLANE,PAGE in elements", padding)?.unwrap_or_default(),
        v_padding: terms.optional("vpad", "vpad=BASE,ROW,PLANE,PAGE in elements", padding)?,
        options: options(terms)?,
        k_scale: terms.optional("kscale", SCALE_ACCEPTED, scale)?.unwrap_or_default(),
        v_scale: terms.optional("vscale", SCALE_ACCEPTED, scale)?.unwrap_or_default(),
        query_lens,
        kv_lens: terms.required("kv lengths", "kv=[len,len,…]", sizes)?,
        wants_lse: op != Op::Store && !terms.has("nolse"),
        slots,
    })
}

const SCALE_ACCEPTED: &str = "a number, or one per KV head: [s,s,…]";

fn options(terms: &Terms<'_>) -> Result<Options, ParseError> {
    let (window_left, window_right) =
        terms.optional("win", "win=LEFT,RIGHT with - for no limit", window)?.unwrap_or_default();
    Ok(Options {
        causal: terms.has("causal"),
        window_left,
        window_right,
        softcap: terms.float("softcap")?,
        alibi: terms.has("alibi"),
        sinks: terms
            .optional("sinks", "sinks or sinks=LOGIT", |t| match t {
                "" => Some(Sinks::Seeded),
                t => t.parse().ok().map(Sinks::Constant),
            })?
            .unwrap_or(Sinks::Absent),
        softmax_scale: terms.float("scale")?,
    })
}

/// Rules that span terms and without which no inputs can be made.
fn consistent(case: &Case, terms: &Terms<'_>) -> Result<(), ParseError> {
    let at = |name: &'static str, value: String, accepted: &str| {
        let column = terms.by_name.get(name).map_or(terms.end_column, |(word, _)| word.column);
        ParseError { column, term: name.to_owned(), value, accepted: accepted.to_owned() }
    };
    let problem = &case.problem;
    let is_store = problem.op == Op::Store;
    if problem.slots.is_none() && problem.query_lens.len() != problem.kv_lens.len() {
        let value = format!("of {} requests", problem.kv_lens.len());
        return Err(at("kv lengths", value, &format!("as many as q has, {}", problem.query_lens.len())));
    }
    if problem.slots.is_some() && !is_store {
        return Err(at("slots", "given".to_owned(), "only with the operation store"));
    }
    if problem.v_padding.is_some() && problem.packing != Packing::Separate {
        return Err(at("vpad", format!("with {}", problem.packing), "only with separate tensors of K and V"));
    }
    if case.logit_shift != 0.0 && case.data != Data::Grid {
        return Err(at(
            "shift",
            format!("{}", case.logit_shift),
            "only with data=grid, where logits are exact",
        ));
    }
    if case.data == Data::Edges && !is_store {
        return Err(at("data", case.data.to_string(), "only with the operation store"));
    }
    if let Some(limit) = case.within.filter(|_| is_store || case.must_reject()) {
        return Err(at("within", format!("{limit}"), "only with attention that is not refused"));
    }
    if let Data::Real { .. } = case.data {
        let shape = (problem.num_q_heads, problem.num_kv_heads, problem.head_dim, problem.head_dim_v);
        let fits = shape == (9, 3, 64, 64)
            && problem.kv_lens.iter().zip(&problem.query_lens).all(|(kv, q)| q <= kv && *kv <= 185);
        if !fits || is_store {
            return Err(at(
                "data",
                case.data.to_string(),
                "h9/3 d64, q not longer than kv, kv at most 185 (what was recorded)",
            ));
        }
    }
    Ok(())
}

fn query_format(text: &str) -> Option<Format> {
    text.parse().ok().filter(|f| matches!(f, Format::F32 | Format::Bf16 | Format::F16))
}

fn size(text: &str) -> Option<usize> {
    text.parse().ok().filter(|n| *n <= MAX_SIZE)
}

/// `A/B`; with `one_is_both` also `A`, which stands for `A/A`.
fn pair(text: &str, one_is_both: bool) -> Option<(usize, usize)> {
    match text.split_once('/') {
        Some((a, b)) => Some((size(a)?, size(b)?)),
        None if one_is_both => size(text).map(|a| (a, a)),
        None => None,
    }
}

fn padding(text: &str) -> Option<Padding> {
    let parts: Vec<usize> = text.split(',').map(size).collect::<Option<_>>()?;
    match parts[..] {
        [base, row, plane, page] => Some(Padding { base, row, plane, page }),
        _ => None,
    }
}

fn window(text: &str) -> Option<(Option<i64>, Option<i64>)> {
    let (left, right) = text.split_once(',')?;
    Some((limit(left)?, limit(right)?))
}

/// `-` is no limit; `-1`, as the C interface writes no limit, means the same.
fn limit(text: &str) -> Option<Option<i64>> {
    match text {
        "-" | "-1" => Some(None),
        other => other.parse().ok().map(Some),
    }
}

fn scale(text: &str) -> Option<Scale> {
    if !text.starts_with('[') {
        return text.parse().ok().map(Scale::PerTensor);
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let all: Vec<f32> = inner.split(',').map(|s| s.parse().ok()).collect::<Option<_>>()?;
    Some(Scale::PerHead(all))
}

fn sizes(text: &str) -> Option<Vec<usize>> {
    list(text).filter(|all: &Vec<usize>| all.iter().all(|n| *n <= MAX_SIZE))
}

/// `[1,2,3]`, where `7x3` stands for three sevens; `[]` is empty.
fn list<T: FromStr + Clone>(text: &str) -> Option<Vec<T>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let mut items = Vec::new();
    for item in inner.split(',').filter(|_| !inner.is_empty()) {
        let (value, count) = match item.split_once('x') {
            Some((value, count)) => (value, count.parse::<usize>().ok()?),
            None => (item, 1),
        };
        if count == 0 || items.len() + count > MAX_LIST {
            return None;
        }
        items.resize(items.len() + count, value.parse().ok()?);
    }
    Some(items)
}
