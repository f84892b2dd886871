//! Heat maps as SVG: one path per level, edges drawn over them. No script, so that it prints and needs no colours of its own.

use std::fmt::Write as _;

use super::escape;
use crate::problem::Problem;
use crate::verdict::{ErrorMap, Grid, Level, Place, RowBin, RowKind, RowPlace};

/// Keys that most kernels take at once, these here among them.
const KEY_TILE: i64 = 64;

const LEFT: f64 = 46.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 34.0;
const RIGHT: f64 = 8.0;
const WIDTH: f64 = 300.0;

/// A line between two cells.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Edge {
    /// The cell after it.
    before: usize,
    /// Its class in the style sheet.
    class: &'static str,
}

/// One side of a map.
struct Axis {
    cells: usize,
    title: &'static str,
    /// Labels of some cells.
    ticks: Vec<(usize, String)>,
    edges: Vec<Edge>,
}

/// The maps of one failure with their captions.
pub(super) fn figures(map: &ErrorMap, problem: Option<&Problem>, worst: Option<&Place>) -> String {
    let rows = row_axis(map, problem);
    let heads = head_axis(map, problem);
    let dims = dim_axis(map);
    let bin = worst.and_then(|place| map.rows.iter().position(|bin| holds(bin, place)));
    let head = worst.map(|place| place.head / map.heads_per_cell);
    let dim = worst.and_then(|place| place.dim).map(|dim| dim / map.dims_per_cell);
    let row_word = match map.kind {
        RowKind::Query => "rows",
        RowKind::Slot => "cache slots",
    };
    let mut html = String::from("<div class=\"maps\">");
    let mut figure = |title: &str, grid: &Grid, axes: (&Axis, &Axis), mark: Option<(usize, usize)>| {
        let svg = svg(title, grid, axes.0, axes.1, mark);
        let _ = write!(html, "<figure><figcaption>{title}</figcaption>{svg}</figure>");
    };
    figure(&format!("{row_word} × heads"), &map.rows_heads, (&rows, &heads), bin.zip(head));
    if map.num_dims > 1 {
        figure(&format!("{row_word} × dims"), &map.rows_dims, (&rows, &dims), bin.zip(dim));
        figure("heads × dims", &map.heads_dims, (&heads, &dims), head.zip(dim));
    }
    html.push_str("</div>");
    let _ = write!(
        html,
        "<p class=\"key\"><span>{}</span>{}</p>",
        escape(&row_words(map)),
        drawn_edges(&rows, &heads)
    );
    html
}

/// What the labels of the rows mean.
fn row_words(map: &ErrorMap) -> String {
    let (Some(first), Some(last)) = (map.rows.first(), map.rows.last()) else { return String::new() };
    match (map.kind, last.last.request) {
        (RowKind::Slot, _) => "slots of the whole pool, from top to bottom".to_owned(),
        (RowKind::Query, 0) => {
            let RowPlace { row, position, .. } = first.first;
            format!("rows from top to bottom; row {row} stands at position {position}")
        }
        (RowKind::Query, _) => "request:row from top to bottom".to_owned(),
    }
}

fn holds(bin: &RowBin, place: &Place) -> bool {
    bin.first.request == place.request && (bin.first.row..=bin.last.row).contains(&place.row)
}

fn row_axis(map: &ErrorMap, problem: Option<&Problem>) -> Axis {
    let requests = map.rows.last().map_or(0, |bin| bin.last.request) + 1;
    let label = |bin: &RowBin| match requests {
        1 => bin.first.row.to_string(),
        _ => format!("{}:{}", bin.first.request, bin.first.row),
    };
    let ticks = spread(map.rows.len(), 9).map(|at| (at, label(&map.rows[at]))).collect();
    Axis { cells: map.rows.len(), title: "row", ticks, edges: row_edges(map, problem) }
}

/// Edges between rows: of requests, of pages and key tiles at the row's own position, and of key tiles at its window's left
/// end.
fn row_edges(map: &ErrorMap, problem: Option<&Problem>) -> Vec<Edge> {
    let between = |crosses: &dyn Fn(&RowBin, &RowBin) -> bool, class: &'static str| -> Vec<Edge> {
        let pairs = map.rows.windows(2).enumerate();
        let crossing = pairs.filter(|(_, pair)| crosses(&pair[0], &pair[1]));
        let edges: Vec<Edge> = crossing.map(|(at, _)| Edge { before: at + 1, class }).collect();
        // Edges at nearly every line would hide the cells and tell nothing.
        if 3 * edges.len() > map.rows.len().max(6) { Vec::new() } else { edges }
    };
    let same_request = |a: &RowBin, b: &RowBin| a.first.request == b.first.request;
    let every = |period: i64, shift: i64| {
        move |a: &RowBin, b: &RowBin| {
            let part = |position: i64| (position - shift).div_euclid(period);
            same_request(a, b) && part(a.last.position) != part(b.first.position)
        }
    };
    let mut edges = Vec::new();
    if let Some(problem) = problem {
        edges.extend(between(&every(problem.page_size as i64, 0), "page"));
    }
    if map.kind == RowKind::Query {
        edges.extend(between(&every(KEY_TILE, 0), "tile"));
        if let Some(left) = problem.and_then(|problem| problem.options.window_left) {
            // From position left + 1 on, the window hides key 0; every further tile hides that many more.
            let hides = every(KEY_TILE, left.saturating_add(1));
            let hides = |a: &RowBin, b: &RowBin| b.first.position > left && hides(a, b);
            edges.extend(between(&hides, "window"));
        }
        edges.extend(between(&|a, b| !same_request(a, b), "request"));
    }
    edges
}

fn head_axis(map: &ErrorMap, problem: Option<&Problem>) -> Axis {
    let cells = map.rows_heads.columns;
    let group = problem.map_or(0, |p| p.num_q_heads / p.num_kv_heads.max(1)) / map.heads_per_cell;
    let mut edges = Vec::new();
    if map.kind == RowKind::Query && group > 1 && group < cells {
        edges = (group..cells).step_by(group).map(|before| Edge { before, class: "group" }).collect();
    }
    let ticks = spread(cells, 8).map(|at| (at, (at * map.heads_per_cell).to_string())).collect();
    Axis { cells, title: "head", ticks, edges }
}

fn dim_axis(map: &ErrorMap) -> Axis {
    let cells = map.rows_dims.columns;
    let step = map.num_dims.div_ceil(8).next_power_of_two().max(1);
    let ticks = (0..map.num_dims).step_by(step).map(|dim| (dim / map.dims_per_cell, dim.to_string()));
    Axis { cells, title: "dim", ticks: ticks.collect(), edges: Vec::new() }
}

/// At most `most` of `cells` indices at equal distances of a round number, from 0.
fn spread(cells: usize, most: usize) -> impl Iterator<Item = usize> {
    let step = cells.div_ceil(most).next_power_of_two().max(1);
    (0..cells).step_by(step)
}

fn drawn_edges(rows: &Axis, heads: &Axis) -> String {
    let words = [
        ("request", "request edge"),
        ("page", "page edge"),
        ("tile", "key tile edge (64)"),
        ("window", "the window hides one more key tile from here on"),
        ("group", "KV head edge"),
    ];
    let drawn = |class| rows.edges.iter().chain(&heads.edges).any(|edge| edge.class == class);
    let mut html = String::new();
    for (class, words) in words.into_iter().filter(|(class, _)| drawn(*class)) {
        let _ = write!(
            html,
            "<span><svg class=\"line\" viewBox=\"0 0 18 8\"><path class=\"edge {class}\" d=\"M0 4H18\"/></svg> {words}</span> "
        );
    }
    html
}

/// Size of a cell in a map of this many lines and columns, in the units of the picture.
fn cell_size(rows: usize, columns: usize) -> (f64, f64) {
    let width = (WIDTH / columns.max(1) as f64).min(28.0);
    let height = (320.0 / rows.max(1) as f64).clamp(3.0, 16.0);
    (width, height)
}

fn svg(title: &str, grid: &Grid, rows: &Axis, columns: &Axis, mark: Option<(usize, usize)>) -> String {
    let (w, h) = cell_size(rows.cells, columns.cells);
    let (right, bottom) = (LEFT + w * columns.cells as f64, TOP + h * rows.cells as f64);
    let (width, height) = ((right + RIGHT).max(140.0), bottom + BOTTOM);
    let mut svg = format!(
        "<svg class=\"heat\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\">",
        escape(&format!("errors over {title}"))
    );
    for level in Level::ALL {
        let path = cells(grid, level, (w, h));
        if !path.is_empty() {
            let _ = write!(svg, "<path class=\"l{}\" d=\"{path}\"/>", level as usize);
        }
    }
    let _ = write!(svg, "<path class=\"frame\" d=\"M{LEFT} {TOP}H{right:.1}V{bottom:.1}H{LEFT}Z\"/>");
    for edge in &rows.edges {
        let y = TOP + h * edge.before as f64;
        let _ =
            write!(svg, "<path class=\"edge {}\" d=\"M{:.1} {y:.1}H{right:.1}\"/>", edge.class, LEFT - 7.0);
    }
    for edge in &columns.edges {
        let x = LEFT + w * edge.before as f64;
        let _ = write!(svg, "<path class=\"edge {}\" d=\"M{x:.1} {TOP}V{:.1}\"/>", edge.class, bottom + 5.0);
    }
    if let Some((row, column)) = mark {
        let (x, y) = (LEFT + w * (column as f64 + 0.5), TOP + h * (row as f64 + 0.5));
        let _ = write!(svg, "<circle class=\"worst\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>");
    }
    labels(&mut svg, rows, columns, (w, h));
    svg.push_str("</svg>");
    svg
}

/// The path of all cells of a level, neighbours in a line joined.
fn cells(grid: &Grid, level: Level, (w, h): (f64, f64)) -> String {
    let mut path = String::new();
    for (row, line) in grid.levels.chunks(grid.columns.max(1)).enumerate() {
        let mut column = 0;
        for run in line.chunk_by(|a, b| a == b) {
            if run[0] == level {
                let (x, y) = (LEFT + w * column as f64, TOP + h * row as f64);
                let _ = write!(
                    path,
                    "M{x:.1} {y:.1}h{:.1}v{h:.1}h-{:.1}z",
                    w * run.len() as f64,
                    w * run.len() as f64
                );
            }
            column += run.len();
        }
    }
    path
}

fn labels(svg: &mut String, rows: &Axis, columns: &Axis, (w, h): (f64, f64)) {
    let bottom = TOP + h * rows.cells as f64;
    for (at, label) in &rows.ticks {
        let y = TOP + h * (*at as f64 + 0.5) + 3.5;
        let _ = write!(svg, "<text class=\"end\" x=\"{}\" y=\"{y:.1}\">{}</text>", LEFT - 9.0, escape(label));
    }
    for (at, label) in &columns.ticks {
        let x = LEFT + w * (*at as f64 + 0.5);
        let _ = write!(
            svg,
            "<text class=\"mid\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 14.0,
            escape(label)
        );
    }
    let _ = write!(
        svg,
        "<text class=\"axis\" x=\"{LEFT}\" y=\"{:.1}\">{} →</text>",
        bottom + 28.0,
        escape(columns.title)
    );
}

/// Colours and their meaning.
pub(super) fn legend() -> String {
    let mut html = String::from("<p class=\"legend\"><span>error / allowed:</span>");
    for level in Level::ALL {
        let _ = write!(
            html,
            "<span><svg class=\"swatch\" viewBox=\"0 0 12 12\"><path class=\"l{}\" d=\"M0 0H12V12H0Z\"/></svg> {}</span>",
            level as usize,
            escape(level.name())
        );
    }
    html.push_str("<span><svg class=\"swatch\" viewBox=\"0 0 12 12\"><circle class=\"worst\" cx=\"6\" cy=\"6\" r=\"4.5\"/></svg> worst element</span></p>");
    html
}
