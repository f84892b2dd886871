//! One failure: what is wrong, where, by how much, and how to run it again.

use std::fmt::Write as _;

use super::escape;
use super::heat::figures;
use crate::case::Case;
use crate::events::Judged;
use crate::problem::Problem;
use crate::report::describe::{describe, describe_failure};
use crate::verdict::{Class, Failure, Verdict, WrongElement};

/// The article of a failure, the first of which has number 0.
pub(super) fn article(number: usize, judged: &Judged) -> String {
    let case = judged.line.parse::<Case>().ok();
    let problem = case.as_ref().map(|case| &case.problem);
    let kind = match judged.class {
        Class::UndeclaredSkip | Class::NoVerdict => "warn",
        _ => "bad",
    };
    let mut html = format!(
        "<article id=\"failure-{}\"><header><span class=\"word {kind}\">{}</span> <b>{}</b> on {} \
         <a class=\"self\" href=\"#failure-{}\">{}</a></header>",
        number + 1,
        judged.verdict.word(),
        escape(&judged.arm),
        escape(&judged.device),
        number + 1,
        escape(&judged.id),
    );
    if !judged.comment.is_empty() {
        let _ = write!(
            html,
            "<p class=\"comment\">{} <i>({})</i></p>",
            escape(&judged.comment),
            escape(&judged.group)
        );
    }
    match &judged.verdict {
        Verdict::Mismatch { failures } => {
            for failure in failures {
                html.push_str(&check(failure, problem));
            }
        }
        other => {
            let described = describe(other);
            html.push_str(&text(&described.headline, &described.details));
        }
    }
    let flags: String = judged.flags.iter().map(|flag| format!("<span>{}</span>", escape(flag))).collect();
    let _ = write!(
        html,
        "<p class=\"flags\">{flags}</p><pre class=\"replay\"><code>{}</code></pre></article>",
        escape(&judged.replay)
    );
    html
}

fn text(headline: &str, details: &[String]) -> String {
    let mut html = format!("<p class=\"headline\">{}</p>", escape(headline));
    if !details.is_empty() {
        let lines: Vec<String> = details.iter().map(|line| escape(line)).collect();
        let _ = write!(html, "<pre class=\"details\">{}</pre>", lines.join("\n"));
    }
    html
}

/// One failed check.
fn check(failure: &Failure, problem: Option<&Problem>) -> String {
    let (headline, details) = describe_failure(failure);
    match failure {
        Failure::Elements { worst, pattern, explanation, map, .. } => {
            let mut html = format!("<p class=\"headline\">{}</p>", escape(&headline));
            if let Some(pattern) = pattern {
                let _ = write!(html, "<p class=\"pattern\">Pattern: {}</p>", escape(pattern));
            }
            if let Some(explanation) = explanation {
                let _ = write!(html, "<p class=\"pattern\">{}</p>", escape(explanation));
            }
            html.push_str(&numbers(worst));
            html.extend(map.iter().map(|map| figures(map, problem, Some(&worst.place))));
            html
        }
        Failure::Depends { map, first, .. } => {
            let map: String = map.iter().map(|map| figures(map, problem, Some(first))).collect();
            text(&headline, &details) + &map
        }
        Failure::Cache { map, .. } => {
            let map: String = map.iter().map(|map| figures(map, problem, None)).collect();
            text(&headline, &details) + &map
        }
        _ => text(&headline, &details),
    }
}

/// The worst element.
fn numbers(worst: &WrongElement) -> String {
    let WrongElement { got, want, error, allowed, share, .. } = worst;
    let shares = format!("{share} × the bound");
    let pairs = [("got", got), ("want", want), ("error", error), ("allowed", allowed), ("that is", &shares)];
    let items: String = pairs
        .iter()
        .map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(value)))
        .collect();
    format!("<dl class=\"numbers\">{items}</dl>")
}
