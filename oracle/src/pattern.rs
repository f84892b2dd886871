//! What the elements outside their bound have in common, in words.

use std::collections::BTreeSet;

/// Periods that kernels work in: vector widths, fragments, pages, tiles.
const PERIODS: [i64; 8] = [128, 64, 32, 16, 8, 4, 3, 2];

/// An element: index along the compared rows, head, dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub index: usize,
    pub head: usize,
    pub dim: usize,
}

/// Describes the places outside; `None` if there is none.
///
/// `shape` is that of the compared arrays, `rows` and `positions` give the row and the position of each index.
pub(crate) fn describe(
    outside: &[Place],
    shape: (usize, usize, usize),
    rows: &[usize],
    positions: &[i64],
) -> Option<String> {
    if outside.is_empty() {
        return None;
    }
    let (_, heads, dims) = shape;
    let indices: BTreeSet<usize> = outside.iter().map(|place| place.index).collect();
    let bad_rows = indices.iter().map(|&index| rows[index] as i64).collect();
    let bad_positions = indices.iter().map(|&index| positions[index]).collect();
    let bad_heads: BTreeSet<i64> = outside.iter().map(|place| place.head as i64).collect();
    let bad_dims: BTreeSet<i64> = outside.iter().map(|place| place.dim as i64).collect();
    let box_size = indices.len() * bad_heads.len() * bad_dims.len();

    let rows_in_words = describe_rows(&bad_rows, &rows.iter().map(|&row| row as i64).collect(), || {
        (bad_positions, positions.iter().copied().collect())
    });
    let parts: Vec<String> = [
        rows_in_words,
        Axis::new("head", &bad_heads, &(0..heads as i64).collect()).describe(),
        Axis::new("dim", &bad_dims, &(0..dims as i64).collect()).describe(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let density = match outside.len() == box_size {
        true => String::new(),
        false => format!(" ({} of the {box_size} elements there)", outside.len()),
    };
    Some(match (parts.is_empty(), density.is_empty()) {
        (true, true) => "every element".to_owned(),
        (true, false) => format!("scattered over all rows, heads and dims{density}"),
        (false, _) => format!("only {}{density}", parts.join(", ")),
    })
}

/// Rows are described by their index, or by their position where only that is regular.
fn describe_rows(
    bad: &BTreeSet<i64>,
    all: &BTreeSet<i64>,
    by_position: impl FnOnce() -> (BTreeSet<i64>, BTreeSet<i64>),
) -> Option<String> {
    if bad == all {
        return None;
    }
    let rows = Axis::new("row", bad, all);
    let (bad_positions, all_positions) = by_position();
    let positions = Axis::new("position", &bad_positions, &all_positions);
    let words = rows.single().or_else(|| positions.periodic().map(|words| format!("rows with {words}")));
    words.or_else(|| rows.describe())
}

/// The values outside along one axis, among all values that were compared.
struct Axis<'a> {
    name: &'static str,
    bad: &'a BTreeSet<i64>,
    all: &'a BTreeSet<i64>,
}

impl<'a> Axis<'a> {
    fn new(name: &'static str, bad: &'a BTreeSet<i64>, all: &'a BTreeSet<i64>) -> Self {
        Self { name, bad, all }
    }

    fn describe(&self) -> Option<String> {
        if self.bad == self.all {
            return None;
        }
        let periodic = || self.periodic().map(|words| format!("{}s with {words}", self.name));
        self.single().or_else(|| self.range()).or_else(periodic).or_else(|| Some(self.listed()))
    }

    fn single(&self) -> Option<String> {
        match self.bad.len() {
            1 => Some(format!("{} {}{}", self.name, self.bad.first()?, self.is_last()?)),
            _ => None,
        }
    }

    /// A run of neighbours among the compared values.
    fn range(&self) -> Option<String> {
        let (first, last) = (self.bad.first()?, self.bad.last()?);
        let between = self.all.range(first..=last).count();
        (between == self.bad.len())
            .then(|| format!("{}s {first} to {last}{}", self.name, self.is_last().unwrap_or_default()))
    }

    fn is_last(&self) -> Option<&'static str> {
        Some(if self.bad.last() == self.all.last() && self.all.len() > 1 { " (up to the last)" } else { "" })
    }

    /// One residue modulo a period, or a run of at most half of them, over at least two periods; the longest
    /// period that every value fits, and only if the compared values outside do not fit it too.
    fn periodic(&self) -> Option<String> {
        PERIODS.into_iter().find_map(|period| self.residues(period))
    }

    fn residues(&self, period: i64) -> Option<String> {
        let residue = |value: &i64| value.rem_euclid(period);
        let bad: BTreeSet<i64> = self.bad.iter().map(residue).collect();
        let (first, last) = (*bad.first()?, *bad.last()?);
        let is_run = last - first + 1 == bad.len() as i64 && 2 * bad.len() as i64 <= period;
        let periods: BTreeSet<i64> = self.bad.iter().map(|value| value.div_euclid(period)).collect();
        let explained = self.all.iter().filter(|value| bad.contains(&residue(value))).count();
        // A run of residues must account for most of the values that have them, or chance would find one.
        if !is_run || periods.len() < 2 || 2 * self.bad.len() <= explained {
            return None;
        }
        let name = if self.name == "position" { "position" } else { self.name };
        Some(match first == last {
            true => format!("{name} % {period} == {first}"),
            false => format!("{name} % {period} in {first}..={last}"),
        })
    }

    fn listed(&self) -> String {
        let shown: Vec<String> = self.bad.iter().take(6).map(i64::to_string).collect();
        let more = if self.bad.len() > 6 { ", …" } else { "" };
        format!("{} of {} {}s ({}{more})", self.bad.len(), self.all.len(), self.name, shown.join(", "))
    }
}
