//! Reports of a fixed run with every kind of verdict: terminal, JSON and JUnit.

use cases::events::{Capability, Consumer, Event, Finished, Judged, Skipped, Started};
use cases::report::{JsonReport, JunitReport, write_capabilities, write_judged};
use cases::verdict::{Failure, Place, Verdict, WrongElement};
use kernels::device::{Finding, FindingKind};

const LINE: &str = "prefill bf16 kv=e4m3 h32/8 d128 page16 NHD causal q=[70] kv=[300] kscale=0.25 seed=7";

fn place(dim: Option<usize>) -> Place {
    Place { request: 2, row: 5, head: 7, dim }
}

fn failures() -> Vec<Failure> {
    let worst = WrongElement {
        place: place(Some(12)),
        got: "1.250000e-1".to_owned(),
        want: "1.318000e-1".to_owned(),
        error: "6.8e-3".to_owned(),
        allowed: "1.1e-3".to_owned(),
        share: "6.2".to_owned(),
    };
    vec![
        Failure::Elements {
            output: "out".to_owned(),
            wrong: 37,
            of: 12_288,
            worst: worst.clone(),
            first: Place { row: 4, head: 0, ..place(Some(0)) },
            pattern: Some("only rows with position % 64 == 63".to_owned()),
            explanation: Some("read page 7 slot 3, expected page 12 slot 3".to_owned()),
            map: None,
        },
        Failure::Elements {
            output: "lse".to_owned(),
            wrong: 1,
            of: 96,
            worst: WrongElement { place: place(None), ..worst },
            first: place(None),
            pattern: None,
            explanation: None,
            map: None,
        },
        Failure::Unwritten { output: "out".to_owned(), elements: 128, of: 12_288, first: place(Some(0)) },
        Failure::Depends {
            on: "unowned bytes (NaN or infinity)".to_owned(),
            output: "lse".to_owned(),
            elements: 3,
            of: 96,
            first: place(None),
            map: None,
        },
        Failure::Remembered { output: "out".to_owned(), elements: 12_000, of: 12_288 },
        Failure::Probe { message: "head 5 has head 4's value".to_owned(), wrong: 64, of: 512 },
        Failure::Modified { buffer: "block_table".to_owned(), bytes: 4, first: 8 },
        Failure::Cache {
            tensor: "k".to_owned(),
            wrong: 1,
            of: 4_096,
            first: "page 3, slot 2, head 1, dim 7: 3c, expected 3d".to_owned(),
            map: None,
        },
        Failure::NotRefused { argument: "softcap".to_owned() },
        Failure::WrongRefusal {
            expected: "k_scale".to_owned(),
            message: "v_scale is 0; accepted: above 0".to_owned(),
        },
        Failure::LaunchedThoughRefused { launches: 2 },
    ]
}

fn verdicts() -> Vec<Verdict> {
    let finding = |kind, message: &str, other: Option<&str>, count| Finding {
        kind,
        message: message.to_owned(),
        site: Some("mma.cu:120".to_owned()),
        other_site: other.map(str::to_owned),
        count,
    };
    let mut all = vec![Verdict::Pass { worst_share: 0.625 }];
    all.extend(failures().into_iter().map(|failure| Verdict::Mismatch { failures: vec![failure] }));
    all.extend([
        Verdict::Mismatch { failures: failures().split_off(8) },
        Verdict::Rejected {
            argument: "seq_lens[1]".to_owned(),
            message: "seq_lens[1] is 49; accepted: at most 48".to_owned(),
        },
        Verdict::Unsupported { what: "mma: head_dim 72".to_owned(), declared: true },
        Verdict::Unsupported { what: "mma does not support head_dim 64".to_owned(), declared: false },
        Verdict::Skipped { reason: "no softcap".to_owned() },
        Verdict::KnownFailure {
            was: "MISMATCH".to_owned(),
            reason: "the last tile is read twice".to_owned(),
            issue: "https://example.org/issues/12".to_owned(),
        },
        Verdict::KnownFailurePasses {
            reason: "the last tile is read twice".to_owned(),
            issue: "https://example.org/issues/12".to_owned(),
        },
        Verdict::DeviceError {
            findings: vec![
                finding(FindingKind::SharedRace, "lane 3 wrote bytes 64..68", Some("mma.cu:98"), 12),
                finding(FindingKind::OutOfBounds, "lane 0 read 4 bytes past k_cache", None, 1),
            ],
            error: None,
        },
        Verdict::DeviceError {
            findings: vec![
                finding(
                    FindingKind::WorkAfterReturn,
                    "64 bytes of out changed after the call had returned",
                    None,
                    1,
                ),
                finding(FindingKind::Leak, "keeps 112 bytes more of memory with every call", None, 1),
            ],
            error: None,
        },
        Verdict::DeviceError {
            findings: Vec::new(),
            error: Some("launch: out of memory\nof 4 GiB".to_owned()),
        },
        Verdict::Crashed { signal: "SIGSEGV".to_owned(), detail: "thread 'main'\nat decode.cu".to_owned() },
        Verdict::TimedOut { limit_ms: 60_000 },
        Verdict::Environment { message: "no C++ compiler: g++\nset CXX".to_owned() },
    ]);
    all
}

fn judged(verdict: Verdict) -> Judged {
    Judged {
        id: "prefill-0badcafe".to_owned(),
        line: LINE.to_owned(),
        group: "formats".to_owned(),
        flags: vec!["causal".to_owned(), "fp8".to_owned()],
        comment: "e4m3 at prefill".to_owned(),
        arm: "fp8-dense".to_owned(),
        device: "simt".to_owned(),
        checked: true,
        class: verdict.class(),
        verdict,
        seconds: 0.25,
        replay: format!("attest replay --device simt --arm fp8-dense '{LINE}'"),
    }
}

fn events() -> Vec<Event> {
    let mut events = vec![
        Event::Started(Started {
            version: "0.0.0",
            device: "simt".to_owned(),
            device_detail: "g++ 12".to_owned(),
            arms: vec!["fp8-dense".to_owned()],
            tier: Some("smoke".to_owned()),
            planned: verdicts().len(),
            jobs: 2,
        }),
        Event::Prepared { kernels: 3, seconds: 1.5 },
        Event::CompileFailed {
            kernel: "mma.cu".to_owned(),
            message: "mma.cu:7: error: expected ';'".to_owned(),
        },
    ];
    events.extend(verdicts().into_iter().map(|verdict| Event::Judged(Box::new(judged(verdict)))));
    events.push(Event::Finished(Finished {
        passed: 1,
        failed: 17,
        skipped: 4,
        skips: vec![Skipped { reason: "outside the support manifest of mma".to_owned(), cases: 4 }],
        shortfalls: vec![
            "5 cases were judged on mma; the committed minimum of tier smoke demands 9".to_owned(),
        ],
        worst_share: 0.625,
        seconds: 4.5,
        exit_code: 1,
        capabilities: Vec::new(),
    }));
    events
}

/// Every verdict as the terminal shows it, without colours.
///
/// # Panics
/// Never: memory can be written.
#[must_use]
pub fn terminal() -> String {
    let mut text = Vec::new();
    for verdict in verdicts() {
        write_judged(&mut text, &judged(verdict)).expect("memory can be written");
    }
    plain(&String::from_utf8(text).expect("reports are UTF-8"))
}

/// The capability table of a foreign kernel.
///
/// # Panics
/// Never: memory can be written.
#[must_use]
pub fn capabilities() -> String {
    let names = [
        ("attention bf16 kv=bf16", 0),
        ("attention bf16 kv=e4m3", 3),
        ("head dim 64", 0),
        ("head dim 128", 0),
        ("head dim 192/128", 1),
        ("with softcap", 0),
        ("store bf16 kv=e4m3", 0),
        ("refuses invalid calls", 0),
    ];
    let capability = |(name, failed): (&str, usize)| Capability {
        name: name.to_owned(),
        judged: 12,
        failed,
        first_failure: (failed > 0).then(|| LINE.to_owned()),
    };
    let mut text = Vec::new();
    write_capabilities(&mut text, &names.map(capability)).expect("memory can be written");
    plain(&String::from_utf8(text).expect("reports are UTF-8"))
}

/// Without escape sequences.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain + rest
}

/// The file that a consumer leaves after the fixed run.
fn written(consumer: impl FnOnce(std::path::PathBuf) -> Box<dyn Consumer>) -> String {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("report");
    let mut consumer = consumer(path.clone());
    for event in events() {
        consumer.take(&event).expect("a file");
    }
    std::fs::read_to_string(path).expect("the report")
}

/// The JSON report.
#[must_use]
pub fn json() -> String {
    written(|path| Box::new(JsonReport::new(path)))
}

/// The JUnit report.
#[must_use]
pub fn junit() -> String {
    written(|path| Box::new(JunitReport::new(path)))
}
