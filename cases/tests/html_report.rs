//! The HTML report of a kernel that is broken on purpose, opened in a browser: what does a person see, at a desk and on a phone?

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{KernelSources, attest, run};
use serde_json::Value;

/// Positions 110 to 199: rows 17 and 81 stand at the last key of a tile, 127 and 191.
const CASE: &str = "prefill bf16 kv=bf16 h4/2 d64 page16 NHD causal win=100,- q=[90] kv=[200] seed=3";

/// Where a browser may be; `CHROMIUM` names another place.
fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome-headless-shell"];
    let places = std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name)));
    named.into_iter().chain(places).find(|path| path.is_file())
}

/// Opens the report in frames of several widths and writes what is seen there, as JSON, into the page.
const LOOK: &str = r##"<!doctype html><meta charset="utf-8"><body><pre id="seen"></pre><script>
const report = REPORT;
const look = (frame) => {
  const page = frame.contentDocument, seen = {};
  seen.overflow = page.documentElement.scrollWidth - frame.contentWindow.innerWidth;
  seen.title = page.querySelector("h1").innerText;
  const style = frame.contentWindow.getComputedStyle(page.body);
  seen.paper = style.backgroundColor; seen.ink = style.color;
  seen.article = page.querySelector("#failure-1").innerText;
  seen.cells = [...page.querySelectorAll("td.bad")].map((cell) => cell.closest("tr").innerText.replace("\t", ": "));
  const map = page.querySelector("#failure-1 svg.heat"), box = map.querySelector(".frame").getBoundingClientRect();
  seen.map = { width: box.width, height: box.height, right: map.getBoundingClientRect().right };
  const classOf = (element) => element.getAttribute("class") || "";
  seen.rows = [...Array(90).keys()].map((row) => {
    // The middle of the first head's cell: away from the mark of the worst element, which is found through it anyway.
    const at = [box.left + box.width / 8, box.top + (box.height * (row + 0.5)) / 90];
    return page.elementsFromPoint(...at).map(classOf).find((name) => /^l\d$/.test(name)) || "nothing";
  });
  const fill = (level) => frame.contentWindow.getComputedStyle(map.querySelector("." + level)).fill;
  seen.fills = Object.fromEntries([...new Set(seen.rows)].filter((l) => l !== "nothing").map((l) => [l, fill(l)]));
  const edge = (line) => Math.round((90 * (line.getBoundingClientRect().top - box.top)) / box.height);
  seen.edges = Object.fromEntries(["page", "tile", "window"].map((kind) =>
    [kind, [...map.querySelectorAll(".edge." + kind)].map(edge)]));
  return seen;
};
Promise.all([390, 1280].map((width) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:9000px;border:0`;
  frame.onload = () => done([width, look(frame)]);
  frame.srcdoc = report;
  document.body.append(frame);
}))).then((all) => { document.querySelector("#seen").textContent = JSON.stringify(Object.fromEntries(all)); });
</script>"##;

/// What the browser shows, by width in pixels.
fn seen(browser: &Path, report: &Path, dark: bool) -> Value {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let html = std::fs::read_to_string(report).expect("the report");
    let script = serde_json::to_string(&html).expect("text is JSON").replace("</", "<\\/");
    let page = dir.path().join("look.html");
    std::fs::write(&page, LOOK.replacen("REPORT", &script, 1)).expect("a page");
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=20000"])
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    let dom = String::from_utf8_lossy(&output.stdout);
    let text = dom.split("<pre id=\"seen\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let text = text.unwrap_or_default().replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    })
}

/// Red, green and blue of `rgb(1, 2, 3)`, added up.
fn brightness(colour: &Value) -> u32 {
    let text = colour.as_str().unwrap_or_default();
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok()).take(3).sum()
}

fn report_of_a_broken_kernel(dir: &Path) -> PathBuf {
    let defect = "end = position + 1;\n        if (position % 64 == 63) { end = position; }";
    let sources = KernelSources::copy().with_change("attention.cuh", 0, "end = position + 1;", defect);
    let report = dir.join("report.html");
    let option = format!("--report=html={}", report.display());
    run(attest(["replay", "--arm", "scalar", "--fast", &option, CASE])
        .env("ATTEST_KERNEL_DIR", sources.path()))
    .expect(1)
    .says("pattern: only rows with position % 64 == 63");
    report
}

#[test]
fn a_browser_shows_which_rows_are_wrong_and_where_the_edges_are() {
    let Some(browser) = chromium() else {
        eprintln!("skipped: no Chromium was found; CHROMIUM names one");
        return;
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let report = report_of_a_broken_kernel(dir.path());
    let light = seen(&browser, &report, false);
    for width in ["390", "1280"] {
        let page = &light[width];
        assert_eq!(page["overflow"], 0, "{width}: the page is wider than the screen");
        assert!(page["map"]["right"].as_f64().unwrap() <= width.parse().unwrap(), "{width}: {}", page["map"]);
        assert!(page["map"]["height"].as_f64().unwrap() > 150.0, "{width}: {}", page["map"]);
        assert_eq!(page["title"], "failed 0 passed, 1 failed, 0 skipped");
        let wrong = |level: &Value| level.as_str().is_some_and(|level| ("l4"..="l8").contains(&level));
        let rows = page["rows"].as_array().expect("rows");
        let bad: Vec<usize> = (0..90).filter(|row| wrong(&rows[*row])).collect();
        assert_eq!(bad, [17, 81], "{width}: {rows:?}");
        assert!(rows.iter().all(|level| level != "nothing"), "{width}: {rows:?}");
        let fills = page["fills"].as_object().expect("fills");
        assert!(
            fills.values().all(|fill| fills.values().filter(|other| *other == fill).count() == 1),
            "{fills:?}"
        );
        assert_eq!(page["edges"]["page"], serde_json::json!([2, 18, 34, 50, 66, 82]), "{width}");
        assert_eq!(page["edges"]["tile"], serde_json::json!([18, 82]), "{width}");
        assert_eq!(page["edges"]["window"], serde_json::json!([55]), "{width}: position 165 hides key 64");
        let article = page["article"].as_str().unwrap_or_default();
        for words in [
            "MISMATCH scalar on simt",
            "Pattern: only rows with position % 64 == 63",
            "row 0 stands at position 110",
            &format!("attest replay --device simt --arm scalar --fast '{CASE}'"),
        ] {
            assert!(article.contains(words), "{words} is not in:\n{article}");
        }
        let cells = page["cells"].to_string();
        assert!(cells.contains("bf16 over bf16: ✗ 1 of 1") && cells.contains("window: ✗ 1 of 1"), "{cells}");
    }
    let dark = seen(&browser, &report, true);
    let colours = |page: &Value| (brightness(&page["390"]["paper"]), brightness(&page["390"]["ink"]));
    let ((paper, ink), (night_paper, night_ink)) = (colours(&light), colours(&dark));
    assert!(paper > 600 && ink < 200, "light: {paper} {ink}");
    assert!(night_paper < 200 && night_ink > 600, "dark: {night_paper} {night_ink}");
    assert_eq!(dark["1280"]["rows"], light["1280"]["rows"]);
}
