//! What a run of a model looks like on the terminal: tables in plain text.

use std::fmt::Write;

use super::claim::{Claim, Standing, Tally};
use super::decoder::Decoder;
use super::error::ModelError;
use super::generate::Phase;
use super::perplexity::Perplexity;
use super::session::Served;
use super::tokenizer::Tokenizer;

/// One line about the model.
#[must_use]
pub fn model_line(model: &Decoder) -> String {
    let config = model.config();
    format!(
        "model: {}, {} layers, h{}/{} d{}, context {}",
        config.name, config.layers, config.num_q_heads, config.num_kv_heads, config.head_dim, config.context
    )
}

/// The generated tokens of each cache, side by side.
///
/// # Errors
/// If a token cannot be decoded.
pub fn tokens(all: &[Served], tokenizer: &Tokenizer) -> Result<String, ModelError> {
    let mut columns = Vec::new();
    for served in all {
        let mut column = vec![served.format.to_string()];
        for choice in &served.generation.choices {
            column.push(format!("{:?} {}", tokenizer.decode(&[choice.token])?, choice.token));
        }
        columns.push(column);
    }
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
    let numbers = (0..rows).map(|row| if row == 0 { "token".to_owned() } else { row.to_string() }).collect();
    columns.insert(0, numbers);
    Ok(table(&columns))
}

/// The largest share of its bound that any element of a layer used, per cache.
#[must_use]
pub fn shares(all: &[Served]) -> String {
    let layers = all.first().map_or(0, |served| served.layers.len());
    let mut columns = vec![
        ["layer".to_owned()]
            .into_iter()
            .chain((0..layers).map(|layer| layer.to_string()))
            .chain(["worst".to_owned()])
            .collect(),
    ];
    for served in all {
        let worst = served.layers.iter().fold(0.0, |worst: f64, layer| worst.max(layer.worst_share));
        let share =
            |calls: usize, share: f64| if calls == 0 { "-".to_owned() } else { format!("{share:.3}") };
        let judged = served.layers.iter().map(|layer| layer.calls).sum();
        let each = served.layers.iter().map(|layer| share(layer.calls, layer.worst_share));
        let name = [served.format.to_string()].into_iter();
        columns.push(name.chain(each).chain([share(judged, worst)]).collect());
    }
    table(&columns)
}

/// Speed and memory, one row per cache.
#[must_use]
pub fn speed(all: &[Served]) -> String {
    let heads = [
        "cache",
        "prefill tok/s",
        "prefill store ms",
        "prefill attention ms",
        "decode tok/s",
        "decode attention ms/token",
        "cache bytes",
        "peak bytes",
    ];
    let mut columns: Vec<Vec<String>> = heads.iter().map(|head| vec![(*head).to_owned()]).collect();
    for served in all {
        let (prefill, decode) = (&served.generation.prefill, &served.generation.decode);
        let row = [
            served.format.to_string(),
            per_second(prefill),
            format!("{:.3}", prefill.kernels.store_ms),
            format!("{:.3}", prefill.kernels.attention_ms),
            per_second(decode),
            format!("{:.3}", decode.kernels.attention_ms / decode.tokens.max(1) as f64),
            served.cache_bytes.to_string(),
            served.peak_bytes.to_string(),
        ];
        columns.iter_mut().zip(row).for_each(|(column, cell)| column.push(cell));
    }
    table(&columns)
}

fn per_second(phase: &Phase) -> String {
    if phase.tokens == 0 {
        return "-".to_owned();
    }
    format!("{:.1}", phase.tokens as f64 / phase.wall.as_secs_f64().max(1e-9))
}

/// Perplexities, with their differences from the first.
#[must_use]
pub fn perplexities(all: &[(String, Perplexity)]) -> String {
    let heads = ["cache", "perplexity", "nats/token", "difference"];
    let mut columns: Vec<Vec<String>> = heads.iter().map(|head| vec![(*head).to_owned()]).collect();
    let first = all.first().map_or(f64::NAN, |(_, sum)| sum.value());
    for (name, sum) in all {
        let difference = 100.0 * (sum.value() / first - 1.0);
        let row = [
            name.clone(),
            format!("{:.4}", sum.value()),
            format!("{:.6}", sum.nats_per_token()),
            format!("{difference:+.3}%"),
        ];
        columns.iter_mut().zip(row).for_each(|(column, cell)| column.push(cell));
    }
    table(&columns)
}

/// One line per claim, then why claims were skipped, then the count as the last line.
#[must_use]
pub fn claims(all: &[Claim]) -> String {
    let mut text = String::new();
    for claim in all {
        let line = match &claim.standing {
            Standing::Holds => format!("ok    {}", claim.what),
            Standing::Fails(against) => {
                format!("FAIL  {}\n        {}", claim.what, against.replace('\n', "\n        "))
            }
            Standing::Skipped(why) => format!("skip  {} ({why})", claim.what),
        };
        text.push_str(&line);
        text.push('\n');
    }
    let tally = Tally::of(all);
    if tally.skipped > 0 {
        text.push_str(&skipped(all));
    }
    let _ = write!(text, "{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    text
}

/// The reasons for skips, each with its count.
fn skipped(all: &[Claim]) -> String {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for claim in all {
        let Standing::Skipped(why) = &claim.standing else { continue };
        match reasons.iter_mut().find(|(reason, _)| reason == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((why, 1)),
        }
    }
    let reasons: Vec<String> = reasons.iter().map(|(why, count)| format!("{count} ({why})")).collect();
    format!("skipped: {}\n", reasons.join(", "))
}

/// Left-aligned columns, two spaces apart; the first cell of each is its head.
fn table(columns: &[Vec<String>]) -> String {
    let width = |column: &Vec<String>| column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = columns.iter().map(width).collect();
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
    let mut text = String::new();
    for row in 0..rows {
        let mut line = String::new();
        for (column, width) in columns.iter().zip(&widths) {
            let cell = column.get(row).map_or("", String::as_str);
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_short_ones_end_early() {
        let column = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        let text = table(&[column(&["a", "long"]), column(&["bb"]), column(&["c", "d"])]);
        assert_eq!(text, "a     bb  c\nlong      d\n");
    }

    #[test]
    fn the_last_line_counts_and_the_one_before_says_why() {
        let claims_made = [
            Claim::unless("one", None),
            Claim::unless("two", Some("because\nof this".to_owned())),
            Claim::skipped("three", "too short"),
            Claim::skipped("four", "too short"),
        ];
        let text = claims(&claims_made);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..4], ["ok    one", "FAIL  two", "        because", "        of this"]);
        assert_eq!(lines[6..], ["skipped: 2 (too short)", "1 passed, 1 failed, 2 skipped"]);
    }
}
