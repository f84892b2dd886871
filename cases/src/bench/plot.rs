//! Time against length, one line per arm, as SVG.

use std::fmt::Write as _;

use super::BenchReport;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
const MARGIN: (f64, f64, f64, f64) = (30.0, 150.0, 50.0, 70.0);
const COLOURS: [&str; 7] = ["#0b6e99", "#c2410c", "#15803d", "#7e22ce", "#b91c1c", "#4b5563", "#a16207"];

/// Both axes are logarithmic.
struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

impl Axes {
    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        let (top, right, bottom, left) = MARGIN;
        let part = |v: f64, (low, high): (f64, f64)| (v.log2() - low) / (high - low).max(1e-9);
        let across = left + part(x, self.x) * (WIDTH - left - right);
        let down = HEIGHT - bottom - part(y, self.y) * (HEIGHT - top - bottom);
        (across, down)
    }
}

/// Length and milliseconds of every arm that has a time, by arm.
fn series(report: &BenchReport) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut all: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for problem in &report.problems {
        for (arm, ms) in problem.arms.iter().filter_map(|arm| Some((&arm.arm, arm.ms?))) {
            let point = (problem.kv_len as f64, ms);
            match all.iter_mut().find(|(name, _)| name == arm) {
                Some((_, points)) => points.push(point),
                None => all.push((arm.clone(), vec![point])),
            }
        }
    }
    all
}

/// The plot, or `None` if nothing has a time.
#[must_use]
pub fn svg(report: &BenchReport) -> Option<String> {
    let series = series(report);
    let points = || series.iter().flat_map(|(_, points)| points);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v.log2()), high.max(v.log2()))
        })
    };
    points().next()?;
    let (x, y) = (range(&mut points().map(|p| p.0)), range(&mut points().map(|p| p.1)));
    let axes = Axes { x: (x.0.floor(), x.1.ceil()), y: (y.0.floor(), y.1.ceil()) };
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"18\" font-size=\"14\">Time of one call against length, {}</text>\n",
        MARGIN.3, report.device.name
    );
    grid(&mut text, &axes);
    for (i, (name, points)) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let places: Vec<(f64, f64)> = points.iter().map(|p| axes.place(p.0, p.1)).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in &places {
            let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let line = MARGIN.0 + 16.0 * (i as f64 + 1.0);
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{line}\" fill=\"{colour}\">{name}</text>",
            WIDTH - MARGIN.1 + 12.0
        );
    }
    text.push_str("</svg>\n");
    Some(text)
}

fn grid(text: &mut String, axes: &Axes) {
    for n in axes.x.0 as i32..=axes.x.1 as i32 {
        let ((x, bottom), (_, top)) =
            (axes.place(2f64.powi(n), 2f64.powf(axes.y.0)), axes.place(2f64.powi(n), 2f64.powf(axes.y.1)));
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom:.1}\" y2=\"{top:.1}\" stroke=\"#e5e7eb\"/>"
        );
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            1_u64 << n
        );
    }
    for n in axes.y.0 as i32..=axes.y.1 as i32 {
        let ((left, y), (right, _)) =
            (axes.place(2f64.powf(axes.x.0), 2f64.powi(n)), axes.place(2f64.powf(axes.x.1), 2f64.powi(n)));
        let _ = writeln!(
            text,
            "<line x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e5e7eb\"/>"
        );
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.3} ms</text>",
            left - 6.0,
            y + 4.0,
            2f64.powi(n)
        );
    }
    let (x, y) = axes.place(2f64.powf(axes.x.0.midpoint(axes.x.1)), 2f64.powf(axes.y.0));
    let _ = writeln!(text, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">keys</text>", y + 36.0);
}
