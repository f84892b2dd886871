//! Where the errors of one output lie, small enough to draw: the worst share of the bound over rows × heads, rows × dims and
//! heads × dims, with neighbouring rows, heads and dims put together where there are many.

/// How far an element is from its bound. Ordered: a cell shows the worst of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No error at all.
    Exact,
    /// At most a quarter of the bound.
    Quarter,
    /// At most half of the bound.
    Half,
    /// Within the bound.
    Within,
    /// At most twice the bound.
    Twice,
    /// At most ten times the bound.
    Ten,
    /// At most a hundred times the bound.
    Hundred,
    /// Further away.
    Far,
    /// No bound would do: NaN, an infinity, or bits that must be equal and are not.
    Never,
}

impl Level {
    /// Every level, the best first.
    pub const ALL: [Self; 9] = [
        Self::Exact,
        Self::Quarter,
        Self::Half,
        Self::Within,
        Self::Twice,
        Self::Ten,
        Self::Hundred,
        Self::Far,
        Self::Never,
    ];

    /// The level of a share of the bound.
    #[must_use]
    pub fn of(share: f64) -> Self {
        let steps = [(0.0, Self::Exact), (0.25, Self::Quarter), (0.5, Self::Half), (1.0, Self::Within)];
        let beyond = [(2.0, Self::Twice), (10.0, Self::Ten), (100.0, Self::Hundred), (f64::MAX, Self::Far)];
        let level = steps.into_iter().chain(beyond).find(|(limit, _)| share <= *limit);
        level.map_or(Self::Never, |(_, level)| level)
    }

    /// What it means, for a legend.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Quarter => "≤ ¼",
            Self::Half => "≤ ½",
            Self::Within => "≤ 1",
            Self::Twice => "≤ 2",
            Self::Ten => "≤ 10",
            Self::Hundred => "≤ 100",
            Self::Far => "> 100",
            Self::Never => "NaN, ∞ or differs",
        }
    }
}

/// What the rows of a map are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Query rows; a row's position is that among the keys.
    Query,
    /// Slots of the cache; a slot's position is page · page_size + slot.
    Slot,
}

/// A row that was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPlace {
    /// Request; 0 for slots.
    pub request: usize,
    /// Row of the request, or slot of the pool.
    pub row: usize,
    /// Position among the keys, or slot of the pool.
    pub position: i64,
}

/// Neighbouring rows of one request that share a line of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBin {
    /// The first of them.
    pub first: RowPlace,
    /// The last of them.
    pub last: RowPlace,
}

/// Levels over two axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Cells along the second axis.
    pub columns: usize,
    /// Level of each cell, the second axis running fastest.
    pub levels: Vec<Level>,
}

impl Grid {
    fn new(rows: usize, columns: usize) -> Self {
        Self { columns, levels: vec![Level::Exact; rows * columns] }
    }

    fn raise(&mut self, row: usize, column: usize, level: Level) {
        let cell = &mut self.levels[row * self.columns + column];
        *cell = level.max(*cell);
    }

    /// Cells along the first axis.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.levels.len() / self.columns.max(1)
    }
}

/// Where the errors lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorMap {
    /// What the rows are.
    pub kind: RowKind,
    /// Lines of the row axis, in the order of the batch.
    pub rows: Vec<RowBin>,
    /// Heads that were compared.
    pub num_heads: usize,
    /// Heads to a cell.
    pub heads_per_cell: usize,
    /// Dims that were compared; 1 for lse.
    pub num_dims: usize,
    /// Dims to a cell.
    pub dims_per_cell: usize,
    /// The worst over all dims.
    pub rows_heads: Grid,
    /// The worst over all heads.
    pub rows_dims: Grid,
    /// The worst over all rows.
    pub heads_dims: Grid,
}

/// Most lines and columns of a map: what a screen shows, and what bounds a report's size.
const MAX_ROWS: usize = 96;
const MAX_HEADS: usize = 64;
const MAX_DIMS: usize = 128;

impl ErrorMap {
    /// A map of `share(index, head, dim)` over the compared rows.
    #[must_use]
    pub fn new(
        kind: RowKind,
        places: &[RowPlace],
        (num_heads, num_dims): (usize, usize),
        share: impl Fn(usize, usize, usize) -> f64,
    ) -> Self {
        let (rows, bin_of) = bins(places);
        let heads_per_cell = num_heads.div_ceil(MAX_HEADS).max(1);
        let dims_per_cell = num_dims.div_ceil(MAX_DIMS).max(1);
        let (heads, dims) = (num_heads.div_ceil(heads_per_cell), num_dims.div_ceil(dims_per_cell));
        let mut map = Self {
            kind,
            rows_heads: Grid::new(rows.len(), heads),
            rows_dims: Grid::new(rows.len(), dims),
            heads_dims: Grid::new(heads, dims),
            rows,
            num_heads,
            heads_per_cell,
            num_dims,
            dims_per_cell,
        };
        for (index, bin) in bin_of.into_iter().enumerate() {
            for head in 0..num_heads {
                for dim in 0..num_dims {
                    let level = Level::of(share(index, head, dim));
                    let (head, dim) = (head / heads_per_cell, dim / dims_per_cell);
                    map.rows_heads.raise(bin, head, level);
                    map.rows_dims.raise(bin, dim, level);
                    map.heads_dims.raise(head, dim, level);
                }
            }
        }
        map
    }
}

/// Puts rows together: the lines, and the line of each row. A line ends where a power of two of positions does, so that the
/// edges of pages and tiles stay edges of lines, and no line spans two requests.
fn bins(places: &[RowPlace]) -> (Vec<RowBin>, Vec<usize>) {
    let mut positions_per_bin = 1;
    loop {
        let same = |a: &RowPlace, b: &RowPlace| {
            let part = |place: &RowPlace| place.position.div_euclid(positions_per_bin);
            a.request == b.request && part(a) == part(b)
        };
        let groups: Vec<&[RowPlace]> = places.chunk_by(same).collect();
        // Requests are never put together, so a batch of many of them has as many lines.
        let requests = places.chunk_by(|a, b| a.request == b.request).count();
        if groups.len() <= MAX_ROWS.max(requests) {
            let bins = groups.iter().map(|group| RowBin { first: group[0], last: group[group.len() - 1] });
            let numbers = groups.iter().enumerate().flat_map(|(bin, group)| group.iter().map(move |_| bin));
            return (bins.collect(), numbers.collect());
        }
        positions_per_bin *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(request: usize, count: usize, start: i64) -> impl Iterator<Item = RowPlace> {
        (0..count).map(move |row| RowPlace { request, row, position: start + row as i64 })
    }

    #[test]
    fn levels_follow_the_bound() {
        let of = |shares: &[f64]| shares.iter().map(|share| Level::of(*share)).collect::<Vec<_>>();
        assert_eq!(of(&[0.0, 0.2, 0.5, 1.0]), [Level::Exact, Level::Quarter, Level::Half, Level::Within]);
        assert_eq!(of(&[1.0_f64.next_up(), 10.0, 99.0]), [Level::Twice, Level::Ten, Level::Hundred]);
        assert_eq!(of(&[1e300, f64::INFINITY, f64::NAN]), [Level::Far, Level::Never, Level::Never]);
        assert!(Level::ALL.is_sorted());
    }

    #[test]
    fn few_rows_keep_a_line_each() {
        let places: Vec<RowPlace> = rows(0, 3, 10).chain(rows(1, 2, 0)).collect();
        let map = ErrorMap::new(RowKind::Query, &places, (2, 4), |index, head, dim| {
            if (index, head, dim) == (3, 1, 2) { 5.0 } else { 0.3 }
        });
        assert_eq!((map.rows.len(), map.rows_heads.rows(), map.heads_dims.rows()), (5, 5, 2));
        let wrong =
            |grid: &Grid| grid.levels.iter().position(|level| *level == Level::Ten).expect("an error");
        assert_eq!((wrong(&map.rows_heads), wrong(&map.rows_dims), wrong(&map.heads_dims)), (7, 14, 6));
        assert!(map.rows_heads.levels.iter().filter(|level| **level == Level::Half).count() == 9);
    }

    #[test]
    fn many_rows_share_lines_that_end_at_powers_of_two_and_with_requests() {
        let places: Vec<RowPlace> = rows(0, 300, 21).chain(rows(1, 1, 99)).collect();
        let map = ErrorMap::new(RowKind::Query, &places, (200, 513), |index, head, dim| {
            if (index, head, dim) == (299, 199, 512) { f64::INFINITY } else { 0.0 }
        });
        assert!(map.rows.len() <= MAX_ROWS, "{}", map.rows.len());
        let last = map.rows[map.rows.len() - 1];
        assert_eq!((last.first.request, last.last.position), (1, 99));
        assert!(map.rows[1..map.rows.len() - 1].iter().all(|bin| bin.first.position % 4 == 0));
        assert_eq!((map.heads_per_cell, map.dims_per_cell), (4, 5));
        let wrong = map.rows_dims.levels.iter().position(|level| *level == Level::Never);
        assert_eq!(
            wrong,
            Some((map.rows.len() - 2) * map.rows_dims.columns + 102),
            "the last row of request 0"
        );
    }

    #[test]
    fn a_large_batch_has_a_line_for_every_request() {
        let places: Vec<RowPlace> = (0..256).flat_map(|request| rows(request, 1, 7)).collect();
        let map = ErrorMap::new(RowKind::Query, &places, (1, 1), |_, _, _| 0.0);
        assert_eq!(map.rows.len(), 256);
    }
}
