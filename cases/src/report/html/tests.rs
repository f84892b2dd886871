use super::*;
use crate::events::Skipped;
use crate::verdict::{ErrorMap, Place, RowKind, RowPlace, WrongElement};

const LINE: &str =
    "prefill bf16 kv=e4m3 h32/8 d128 page16 NHD causal win=100,- q=[70] kv=[300] kscale=0.25 seed=7";

/// A map in which every cell differs from its neighbours: the largest picture there is.
fn checkered() -> ErrorMap {
    let places: Vec<RowPlace> =
        (0..96).map(|row| RowPlace { request: 0, row, position: 230 + row as i64 }).collect();
    ErrorMap::new(RowKind::Query, &places, (64, 128), |row, head, dim| {
        [0.1, 5.0, 0.4, f64::INFINITY][(row + head + dim) % 4]
    })
}

fn failure(comment: &str) -> Verdict {
    let place = Place { request: 0, row: 5, head: 7, dim: Some(12) };
    let worst = WrongElement {
        place: place.clone(),
        got: "NaN".to_owned(),
        want: "1.3e-1".to_owned(),
        error: "NaN".to_owned(),
        allowed: "1.1e-3".to_owned(),
        share: "inf".to_owned(),
    };
    let elements = Failure::Elements {
        output: "out".to_owned(),
        wrong: 37,
        of: 12_288,
        worst,
        first: place,
        pattern: Some("only rows with position % 64 == 63".to_owned()),
        explanation: Some(comment.to_owned()),
        map: Some(Box::new(checkered())),
    };
    Verdict::Mismatch { failures: vec![elements] }
}

fn judged(verdict: Verdict) -> Event {
    Event::Judged(Box::new(Judged {
        id: "prefill-0badcafe".to_owned(),
        line: LINE.to_owned(),
        group: "formats".to_owned(),
        flags: vec!["causal".to_owned()],
        comment: "a <b> & \"c\"".to_owned(),
        arm: "fp8-dense".to_owned(),
        device: "simt".to_owned(),
        checked: true,
        class: verdict.class(),
        verdict,
        seconds: 0.25,
        replay: format!("attest replay --device simt --arm fp8-dense '{LINE}'"),
    }))
}

fn page(events: Vec<Event>, finished: Finished) -> String {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut report = HtmlReport::new(file.path().to_owned());
    for event in events.iter().chain([&Event::Finished(finished)]) {
        report.take(event).expect("the file can be written");
    }
    std::fs::read_to_string(file.path()).expect("the page")
}

#[test]
fn text_cannot_become_markup() {
    assert_eq!(escape("a < b & \"c\" > 'd'"), "a &lt; b &amp; &quot;c&quot; &gt; &#39;d&#39;");
    let html = page(vec![judged(failure("<script>alert(1)</script>"))], Finished::default());
    assert!(!html.contains("<script") && html.contains("&lt;script&gt;alert(1)"), "{html}");
    assert!(html.contains("a &lt;b&gt; &amp; &quot;c&quot;"), "{html}");
}

#[test]
fn nothing_comes_from_elsewhere() {
    let html =
        page(vec![judged(failure("x")), judged(Verdict::Pass { worst_share: 0.5 })], Finished::default());
    for outside in ["http", "url(", "@import", " src=", "<link", "<script"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn a_page_of_many_failures_stays_small_and_says_what_it_leaves_out() {
    let html = page((0..300).map(|_| judged(failure("x"))).collect(), Finished::default());
    assert!(html.len() < 60_000_000, "{} bytes", html.len());
    assert!(html.contains("100 more failures are not shown"));
    assert_eq!(html.matches("<article").count(), SHOWN_FAILURES);
    assert_eq!(html.matches("rows × dims").count(), 2 * SHOWN_MAPS, "a caption and a label each");
    assert!(html.contains("<a href=\"#failure-1\">✗ 300 of 300</a>"));
}

#[test]
fn skips_shortfalls_and_what_does_not_compile_are_said() {
    let finished = Finished {
        passed: 2,
        skipped: 4,
        skips: vec![Skipped { reason: "no softcap".to_owned(), cases: 4 }],
        shortfalls: vec!["2 cases were judged on mma; the minimum is 9".to_owned()],
        exit_code: 4,
        ..Finished::default()
    };
    let compile =
        Event::CompileFailed { kernel: "mma.cu".to_owned(), message: "mma.cu:7: expected ';'".to_owned() };
    let html = page(vec![compile, judged(Verdict::Pass { worst_share: 0.25 })], finished);
    for words in
        ["not enough</span> 2 passed, 0 failed, 4 skipped", "<b>4</b> no softcap", "the minimum is 9"]
    {
        assert!(html.contains(words), "{words}");
    }
    assert!(html.contains("mma.cu does not compile") && html.contains("expected &#39;;&#39;"));
    assert!(!html.contains("id=\"failures\"") && html.contains("✓ 1"));
}

#[test]
fn the_cases_closest_to_the_bound_come_first_and_only_so_many() {
    let shares = (0..50).map(|n| judged(Verdict::Pass { worst_share: f64::from(n * 7 % 50) / 50.0 }));
    let html = page(shares.collect(), Finished::default());
    let listed: Vec<&str> = html.split("</span></span><b>").skip(1).map(|rest| &rest[..4]).collect();
    assert_eq!(listed.len(), SHOWN_WORST);
    assert_eq!((listed[0], listed[1], listed[SHOWN_WORST - 1]), ("0.98", "0.96", "0.60"));
}
