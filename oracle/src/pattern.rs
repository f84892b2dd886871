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
    let bad_heads = outside.iter().map(|place| place.head as i64).collect();
    let bad_dims = outside.iter().map(|place| place.dim as i64).collect();
    let all_rows = rows.iter().map(|&row| row as i64).collect();
    let all_positions = positions.iter().copied().collect();
    let all_heads = (0..heads as i64).collect();
    let all_dims = (0..dims as i64).collect();

    let rows = Axis { name: "row", bad: &bad_rows, all: &all_rows };
    let positions = Axis { name: "position", bad: &bad_positions, all: &all_positions };
    let heads = Axis { name: "head", bad: &bad_heads, all: &all_heads };
    let dims = Axis { name: "dim", bad: &bad_dims, all: &all_dims };
    let box_size = indices.len() * bad_heads.len() * bad_dims.len();
    let parts: Vec<String> =
        [describe_rows(&rows, &positions), heads.describe(), dims.describe()].into_iter().flatten().collect();
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
fn describe_rows(rows: &Axis<'_>, positions: &Axis<'_>) -> Option<String> {
    if rows.bad == rows.all {
        return None;
    }
    let by_position = || positions.periodic().map(|words| format!("rows with {words}"));
    rows.single().or_else(|| rows.run()).or_else(by_position).or_else(|| rows.describe())
}

/// The values outside along one axis, among all values that were compared.
struct Axis<'a> {
    name: &'static str,
    bad: &'a BTreeSet<i64>,
    all: &'a BTreeSet<i64>,
}

impl Axis<'_> {
    /// `None` if every compared value is outside.
    fn describe(&self) -> Option<String> {
        if self.bad == self.all {
            return None;
        }
        let periodic = || self.periodic().map(|words| format!("{}s with {words}", self.name));
        let words = self.single().or_else(|| self.run()).or_else(periodic).or_else(|| self.between());
        words.or_else(|| Some(self.listed()))
    }

    fn single(&self) -> Option<String> {
        let [only] = self.bad.iter().collect::<Vec<_>>()[..] else { return None };
        let last = if self.ends_last() { " (the last)" } else { "" };
        Some(format!("{} {only}{last}", self.name))
    }

    /// Consecutive values.
    fn run(&self) -> Option<String> {
        let (first, last) = (self.bad.first()?, self.bad.last()?);
        let is_run = last - first + 1 == self.bad.len() as i64;
        let tail = if self.ends_last() { format!(" (the last {})", self.bad.len()) } else { String::new() };
        is_run.then(|| format!("{}s {first} to {last}{tail}", self.name))
    }

    /// Every compared value between two.
    fn between(&self) -> Option<String> {
        let (first, last) = (self.bad.first()?, self.bad.last()?);
        let is_every = self.all.range(first..=last).count() == self.bad.len();
        is_every.then(|| format!("every compared {} from {first} to {last}", self.name))
    }

    fn ends_last(&self) -> bool {
        self.bad.last() == self.all.last()
    }

    /// One residue, or a run of at most half of all, modulo the longest period that fits.
    fn periodic(&self) -> Option<String> {
        PERIODS.into_iter().find_map(|period| self.residues(period))
    }

    fn residues(&self, period: i64) -> Option<String> {
        let residue = |value: &i64| value.rem_euclid(period);
        let bad: BTreeSet<i64> = self.bad.iter().map(residue).collect();
        let (first, last) = (*bad.first()?, *bad.last()?);
        let is_run = last - first + 1 == bad.len() as i64 && 2 * bad.len() as i64 <= period;
        let periods: BTreeSet<i64> = self.bad.iter().map(|value| value.div_euclid(period)).collect();
        let with_residue = self.all.iter().filter(|value| bad.contains(&residue(value))).count();
        // Most of the values with these residues must be outside, or chance would find some period.
        if !is_run || periods.len() < 2 || 2 * self.bad.len() <= with_residue {
            return None;
        }
        let name = self.name;
        Some(match first == last {
            true => format!("{name} % {period} == {first}"),
            false => format!("{name} % {period} in {first}..={last}"),
        })
    }

    fn listed(&self) -> String {
        let shown: Vec<String> = self.bad.iter().take(6).map(i64::to_string).collect();
        let more = if self.bad.len() > shown.len() { ", …" } else { "" };
        format!("{} of {} {}s ({}{more})", self.bad.len(), self.all.len(), self.name, shown.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Describes what a predicate over (row, head, dim) leaves outside, of 200 rows at positions from 56 on.
    fn of(outside: impl Fn(usize, usize, usize) -> bool) -> Option<String> {
        of_rows(&(0..200).collect::<Vec<_>>(), outside)
    }

    fn of_rows(rows: &[usize], outside: impl Fn(usize, usize, usize) -> bool) -> Option<String> {
        let (heads, dims) = (8, 32);
        let mut places = Vec::new();
        for (index, &row) in rows.iter().enumerate() {
            for head in 0..heads {
                let dims = (0..dims).filter(|&dim| outside(row, head, dim));
                places.extend(dims.map(|dim| Place { index, head, dim }));
            }
        }
        let positions: Vec<i64> = rows.iter().map(|&row| row as i64 + 56).collect();
        describe(&places, (rows.len(), heads, dims), rows, &positions)
    }

    #[track_caller]
    fn check(outside: impl Fn(usize, usize, usize) -> bool, words: &str) {
        assert_eq!(of(outside).as_deref(), Some(words));
    }

    #[test]
    fn nothing_has_no_pattern() {
        assert_eq!(of(|_, _, _| false), None);
    }

    #[test]
    fn whole_axes() {
        check(|_, _, _| true, "every element");
        check(|_, head, _| head == 5, "only head 5");
        check(|_, head, _| head == 7, "only head 7 (the last)");
        check(|_, head, _| (2..4).contains(&head), "only heads 2 to 3");
        check(|row, _, _| row == 11, "only row 11");
        check(|row, _, _| row >= 192, "only rows 192 to 199 (the last 8)");
        check(|_, _, dim| dim >= 16, "only dims 16 to 31 (the last 16)");
        check(|row, head, _| row == 199 && head == 0, "only row 199 (the last), head 0");
    }

    #[test]
    fn periods() {
        check(|row, _, _| (row + 56) % 64 == 63, "only rows with position % 64 == 63");
        // Row 63 of a tile of 64 stands at position 119, which is 55 modulo 64: both say the same.
        check(|row, _, _| row % 64 == 63, "only rows with position % 64 == 55");
        check(|row, _, _| row % 16 >= 14, "only rows with position % 16 in 6..=7");
        check(|_, _, dim| dim % 8 == 3, "only dims with dim % 8 == 3");
        check(|_, head, _| head % 4 == 0, "only heads with head % 4 == 0");
        check(|_, _, dim| dim % 2 == 1, "only dims with dim % 2 == 1");
        check(|row, head, _| (row + 56) % 32 == 0 && head == 1, "only rows with position % 32 == 0, head 1");
    }

    #[test]
    fn parts_of_a_box() {
        check(
            |row, head, dim| head == 3 && (row + dim) % 2 == 0,
            "only head 3 (3200 of the 6400 elements there)",
        );
        check(
            |row, head, dim| (row + head + dim) % 5 == 0,
            "scattered over all rows, heads and dims (10240 of the 51200 elements there)",
        );
        check(|row, _, _| [3, 17, 40].contains(&row), "only 3 of 200 rows (3, 17, 40)");
        check(
            |row, _, _| [1, 2, 5, 9, 14, 20, 77].contains(&row),
            "only 7 of 200 rows (1, 2, 5, 9, 14, 20, …)",
        );
    }

    #[test]
    fn samples_of_rows() {
        let rows = [0, 7, 8, 71, 72, 135, 199];
        let words = of_rows(&rows, |row, _, _| [7, 71, 135].contains(&row));
        assert_eq!(words.as_deref(), Some("only rows with position % 64 == 63"));
        let words = of_rows(&rows, |row, _, _| row >= 72);
        assert_eq!(words.as_deref(), Some("only every compared row from 72 to 199"));
        assert_eq!(of_rows(&rows, |_, _, _| true).as_deref(), Some("every element"));
    }
}
