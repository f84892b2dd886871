//! Every name that the page about kinds of bugs gives exists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cases::case::Relation;
use cases::catalogue::entries;
use cases::impostors::all;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// What stands between backquotes, line breaks removed.
fn names(text: &str) -> Vec<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(|name| name.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Whether a name exists; `None` if it is not a name of this page's kinds.
fn exists(name: &str) -> Option<bool> {
    if let Some((file, test)) = name.split_once("::") {
        let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        return (file != "path").then(|| text.contains(&format!("fn {test}(")));
    }
    let (kind, name) = name.split_once(' ')?;
    match kind {
        "impostor" => Some(all().iter().any(|impostor| impostor.name == name)),
        "relation" => Some(Relation::from_name(name).is_some()),
        "group" => Some(entries().unwrap().iter().any(|entry| entry.group == name)),
        _ => None,
    }
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/BUG-KINDS.md")).unwrap()
}

#[test]
fn every_name_on_the_page_exists() {
    let missing: Vec<String> =
        names(&page()).into_iter().filter(|name| exists(name) == Some(false)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn every_kind_is_there_and_names_something() {
    let page = page();
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let letters: Vec<&str> = sections.iter().map(|section| &section[..1]).collect();
    assert_eq!(letters.concat(), "ABCDEFGHIJKLMNOPQ");
    for section in sections {
        let named = names(section).iter().filter(|name| exists(name) == Some(true)).count();
        assert!(named >= 1, "{}", section.lines().next().unwrap());
    }
}

#[test]
fn every_relation_is_named_on_the_page() {
    let named: BTreeSet<String> = names(&page()).into_iter().collect();
    // Reordered and chunked batches belong to several kinds at once.
    let missing: Vec<&str> = Relation::ALL
        .iter()
        .map(|relation| relation.name())
        .filter(|name| *name != "chunks" && !named.contains(&format!("relation {name}")))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn a_name_that_is_gone_is_noticed() {
    assert_eq!(exists("cases/tests/bug_kinds.rs::a_name_that_is_gone_is_noticed"), Some(true));
    for gone in [
        "cases/tests/bug_kinds.rs::never_was",
        "no/file.rs::test",
        "impostor none",
        "relation none",
        "group none",
    ] {
        assert_eq!(exists(gone), Some(false), "{gone}");
    }
}
