//! The page around it all.

use std::fmt::Write as _;

use super::failure::article;
use super::heat::legend;
use super::{Content, Used, escape};
use crate::events::Finished;

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(super) fn write(content: &Content, finished: &Finished) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>attest: {}</title><style>{STYLE}</style></head><body><main>",
        escape(&counts(finished))
    );
    html.push_str(&summary(content, finished));
    let tables = content.capabilities.html();
    if !tables.is_empty() {
        let _ = write!(
            html,
            "<section id=\"capabilities\"><h2>What was judged</h2><p class=\"note\">Cases by what they exercise, and by arm: \
             ✓ passed, ✗ failed of judged, – outside the support manifest.</p>{tables}</section>"
        );
    }
    html.push_str(&failures(content));
    html.push_str(&worst(content));
    html.push_str(&skips(finished));
    html.push_str("</main></body></html>\n");
    html
}

fn counts(finished: &Finished) -> String {
    let Finished { passed, failed, skipped, .. } = finished;
    format!("{passed} passed, {failed} failed, {skipped} skipped")
}

/// The verdict on the run in a word, and the class of its colour.
fn verdict(finished: &Finished) -> (&'static str, &'static str) {
    match finished.exit_code {
        0 => ("passed", "good"),
        1 => ("failed", "bad"),
        3 => ("no verdict", "warn"),
        _ => ("not enough", "warn"),
    }
}

fn summary(content: &Content, finished: &Finished) -> String {
    let (word, class) = verdict(finished);
    let mut html = format!(
        "<section id=\"summary\"><h1><span class=\"word {class}\">{word}</span> {}</h1>{}",
        escape(&counts(finished)),
        bar(finished)
    );
    let mut facts = Vec::new();
    if let Some(started) = &content.started {
        facts.push(("device", format!("{} ({})", started.device, started.device_detail)));
        facts.push(("arms", started.arms.join(", ")));
        facts.extend(started.tier.iter().map(|tier| ("tier", tier.clone())));
        facts.push(("attest", started.version.to_owned()));
    }
    facts.push(("time", format!("{:.1} s", finished.seconds)));
    facts.push(("worst share of the bound among what passed", format!("{:.2}", finished.worst_share)));
    if !content.failures.is_empty() {
        html.push_str(
            "<nav><a href=\"#failures\">failures</a> <a href=\"#capabilities\">what was judged</a>",
        );
        if !content.worst.is_empty() {
            html.push_str(" <a href=\"#worst\">closest to the bound</a>");
        }
        html.push_str("</nav>");
    }
    html.push_str("<dl class=\"facts\">");
    for (name, value) in facts {
        let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    html.push_str("</dl>");
    let notes = content.aborted.iter().chain(&finished.shortfalls);
    html.extend(notes.map(|note| format!("<p class=\"alert\">{}</p>", escape(note))));
    for (kernel, message) in &content.compile_errors {
        let _ = write!(
            html,
            "<details class=\"alert\" open><summary>{} does not compile</summary><pre class=\"details\">{}</pre></details>",
            escape(kernel),
            escape(message)
        );
    }
    html.push_str("</section>");
    html
}

/// Passed, failed and skipped as parts of a bar.
fn bar(finished: &Finished) -> String {
    let Finished { passed, failed, skipped, .. } = finished;
    let total = (passed + failed + skipped).max(1) as f64;
    let part = |count: &usize, class: &str| {
        format!("<span class=\"{class}\" style=\"flex-grow:{:.4}\"></span>", *count as f64 / total)
    };
    let parts: String = [(passed, "good"), (failed, "bad"), (skipped, "skipped")]
        .into_iter()
        .filter(|(count, _)| **count > 0)
        .map(|(count, class)| part(count, class))
        .collect();
    format!("<div class=\"bar\">{parts}</div>")
}

fn failures(content: &Content) -> String {
    if content.failures.is_empty() {
        return String::new();
    }
    let mut html = format!("<section id=\"failures\"><h2>Failures</h2>{}", legend());
    if content.failures.len() > 1 {
        html.push_str("<ol class=\"index\">");
        for (index, judged) in content.failures.iter().enumerate() {
            let _ = write!(
                html,
                "<li><a href=\"#failure-{}\">{} {}</a> <code>{}</code></li>",
                index + 1,
                judged.verdict.word(),
                escape(&judged.arm),
                escape(&judged.line)
            );
        }
        html.push_str("</ol>");
    }
    html.extend(content.failures.iter().enumerate().map(|(number, judged)| article(number, judged)));
    if content.failures_left_out > 0 {
        let _ = write!(
            html,
            "<p class=\"alert\">{} more failures are not shown; the JSON report has all.</p>",
            content.failures_left_out
        );
    }
    html.push_str("</section>");
    html
}

fn worst(content: &Content) -> String {
    if content.worst.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<section id=\"worst\"><h2>Closest to the bound</h2><p class=\"note\">Cases that passed, by the largest share of \
         its bound that any element used.</p>",
    );
    html.push_str(&histograms(content));
    html.push_str("<ol class=\"worst\">");
    for Used { share, arm, line, comment } in content.worst.iter().filter(|used| used.share > 0.0) {
        let _ = write!(
            html,
            "<li><span class=\"share\"><span style=\"width:{:.1}%\"></span></span><b>{share:.2}</b> {} <code>{}</code> <i>{}</i></li>",
            100.0 * share.min(1.0),
            escape(arm),
            escape(line),
            escape(comment)
        );
    }
    html.push_str("</ol></section>");
    html
}

/// Columns of a histogram.
const COLUMNS: usize = 20;

/// How the shares of each arm are spread over 0 to 1.
fn histograms(content: &Content) -> String {
    let mut html = String::from("<div class=\"histograms\">");
    for (arm, shares) in &content.shares {
        let used: Vec<f64> = shares.iter().copied().filter(|share| *share > 0.0).collect();
        if used.is_empty() {
            continue;
        }
        let mut columns = [0_usize; COLUMNS];
        for share in &used {
            columns[((share * COLUMNS as f64) as usize).min(COLUMNS - 1)] += 1;
        }
        let most = columns.iter().copied().max().unwrap_or(1) as f64;
        let bars: String = columns
            .iter()
            .enumerate()
            .map(|(at, count)| {
                let height = 36.0 * *count as f64 / most;
                format!("<path class=\"hist\" d=\"M{} 38v-{height:.1}h7v{height:.1}z\"/>", 8 * at)
            })
            .collect();
        let _ = write!(
            html,
            "<figure><figcaption>{} <i>{} cases</i></figcaption><svg viewBox=\"0 0 160 52\" role=\"img\" \
             aria-label=\"shares of the bound\">{bars}<path class=\"frame\" d=\"M0 38.5H160\"/>\
             <text x=\"0\" y=\"50\">0</text><text class=\"mid\" x=\"80\" y=\"50\">½</text>\
             <text class=\"end\" x=\"160\" y=\"50\">1</text></svg></figure>",
            escape(arm),
            used.len()
        );
    }
    html.push_str("</div>");
    html
}

fn skips(finished: &Finished) -> String {
    if finished.skips.is_empty() {
        return String::new();
    }
    let mut html = String::from("<section id=\"skipped\"><h2>Skipped</h2><ul class=\"skips\">");
    for skip in &finished.skips {
        let _ = write!(html, "<li><b>{}</b> {}</li>", skip.cases, escape(&skip.reason));
    }
    html.push_str("</ul></section>");
    html
}
