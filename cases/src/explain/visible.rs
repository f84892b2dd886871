//! Which keys the rows of a batch see.

use oracle::Mask;

use crate::problem::{Problem, Sinks};

/// Most requests that are described.
const REQUESTS: usize = 8;

/// A few lines for each request: where its rows stand and what the first, the last and the odd ones between see.
pub(super) fn lines(problem: &Problem) -> Vec<String> {
    let mut lines = Vec::new();
    let lens = problem.query_lens.iter().zip(&problem.kv_lens);
    for (request, (q_len, kv_len)) in lens.take(REQUESTS).enumerate() {
        of_request(problem, request, *q_len, *kv_len, &mut lines);
    }
    if problem.num_requests() > REQUESTS {
        lines.push(format!("and {} requests more", problem.num_requests() - REQUESTS));
    }
    lines
}

fn of_request(problem: &Problem, request: usize, q_len: usize, kv_len: usize, lines: &mut Vec<String>) {
    if q_len == 0 {
        lines.push(format!("request {request}: no query row"));
        return;
    }
    let mask = Mask {
        q_len: q_len as i64,
        kv_len: kv_len as i64,
        causal: problem.options.causal,
        window_left: problem.options.window_left,
        window_right: problem.options.window_right,
    };
    let seen = |row: usize| mask.visible_keys(mask.position(row));
    let first = mask.position(0);
    let rows = if q_len == 1 { "1 row".to_owned() } else { format!("{q_len} rows") };
    lines.push(format!("request {request}: {rows} over {kv_len} keys, the first at position {first}"));
    let nothing = match problem.options.sinks {
        Sinks::Absent => "out is 0, lse is −∞",
        _ => "out is 0, lse is the sink",
    };
    if (0..q_len).all(|row| seen(row).is_empty()) {
        lines.push(format!("  no row sees a key: {nothing}"));
        return;
    }
    if (1..q_len).all(|row| seen(row) == seen(0)) {
        lines.push(format!("  every row sees {}", range(&seen(0))));
        return;
    }
    let blind = (0..q_len).filter(|row| seen(*row).is_empty()).count();
    if blind > 0 {
        lines.push(format!("  {blind} rows see no key: {nothing}"));
    }
    let sighted: Vec<usize> = (0..q_len).filter(|row| !seen(*row).is_empty()).collect();
    let edges = [sighted.first(), sighted.last()];
    for row in edges.into_iter().flatten() {
        let keys = seen(*row);
        let pages = [keys.start / problem.page_size, (keys.end - 1) / problem.page_size];
        lines.push(format!(
            "  row {row} sees {}, pages {} to {} of its table",
            range(&keys),
            pages[0],
            pages[1]
        ));
    }
}

/// `keys 3..=8 (6)`.
fn range(keys: &std::ops::Range<usize>) -> String {
    match keys.len() {
        0 => "no key".to_owned(),
        1 => format!("key {} alone", keys.start),
        n => format!("keys {}..={} ({n})", keys.start, keys.end - 1),
    }
}
