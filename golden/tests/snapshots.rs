//! Every text against its reviewed snapshot; no snapshot unreviewed, none without its test.
//!
//! `cargo insta review` (or `INSTA_UPDATE=always cargo test -p golden`, then a look at the difference) accepts a change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use oracle::Format;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots")
}

/// One test for each snapshot, and the list of their names: neither can be without the other.
macro_rules! snapshots {
    ($($name:ident = $text:expr;)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                let mut settings = insta::Settings::clone_current();
                settings.set_snapshot_path(directory());
                settings.set_prepend_module_to_snapshot(false);
                settings.set_omit_expression(true);
                settings.bind(|| insta::assert_snapshot!(stringify!($name), $text));
            }
        )*
    };
}

snapshots! {
    formats = golden::formats::facts();
    codes_e4m3 = golden::formats::codes(Format::E4m3);
    codes_e5m2 = golden::formats::codes(Format::E5m2);
    codes_bf16 = golden::formats::digest_of_codes(Format::Bf16);
    codes_f16 = golden::formats::digest_of_codes(Format::F16);
    encodings = golden::formats::encodings();
    routes = golden::routes::routes();
    route_variations = golden::routes::variations();
    route_arms = golden::routes::arms();
    instances = golden::routes::every_instance();
    messages_attention = golden::messages::attention_arguments();
    messages_store = golden::messages::store_arguments();
    messages_case_lines = golden::messages::case_lines();
    messages_usage = golden::messages::usage();
    foreign_header = kernels::abi::HEADER;
    foreign_help = golden::messages::foreign_help();
    foreign_info = golden::messages::foreign_info();
    report_capabilities = golden::reports::capabilities();
    catalogue = golden::catalogue();
    references = golden::references::references_of_fixed_cases();
    report_terminal = golden::reports::terminal();
    report_json = golden::reports::json();
    report_junit = golden::reports::junit();
}

#[test]
fn no_snapshot_is_unreviewed_or_orphaned() {
    let files: BTreeSet<String> = std::fs::read_dir(directory())
        .expect("the snapshots")
        .map(|entry| entry.expect("a file").file_name().into_string().expect("a name in UTF-8"))
        .collect();
    let expected: BTreeSet<String> = NAMES.iter().map(|name| format!("{name}.snap")).collect();
    let surplus: Vec<_> = files.difference(&expected).collect();
    assert!(
        surplus.is_empty(),
        "unreviewed or orphaned: {surplus:?}; review them with `cargo insta review`, or delete them"
    );
    let missing: Vec<_> = expected.difference(&files).collect();
    assert!(missing.is_empty(), "never accepted: {missing:?}");
}

#[test]
fn nothing_that_must_be_refused_is_accepted() {
    for text in [
        golden::messages::attention_arguments(),
        golden::messages::store_arguments(),
        golden::messages::case_lines(),
        golden::messages::usage(),
    ] {
        let accepted: Vec<&str> = text.lines().filter(|line| line.contains("ACCEPTED")).collect();
        assert!(accepted.is_empty(), "{accepted:?}");
    }
}
