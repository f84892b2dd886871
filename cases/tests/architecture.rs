//! Rules about the workspace that nobody should have to remember.

use std::collections::BTreeSet;
use std::path::Path;

/// What each crate may depend on inside the workspace, development dependencies included.
const ALLOWED: &[(&str, &[&str])] = &[
    ("oracle", &[]),
    ("kernels", &[]),
    ("fault-injection", &["kernels"]),
    ("cases", &["oracle", "kernels", "fault-injection"]),
    ("golden", &["oracle", "kernels", "fault-injection", "cases"]),
];

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace")
}

/// Crates of the workspace that a manifest names in any dependency table, under any name.
fn inner_dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect(manifest, &mut found);
    found
}

fn collect(table: &toml::Table, found: &mut BTreeSet<String>) {
    for (key, value) in table {
        let Some(inner) = value.as_table() else { continue };
        if ["dependencies", "dev-dependencies", "build-dependencies"].contains(&key.as_str()) {
            for (name, dependency) in inner {
                let renamed = dependency.get("package").and_then(toml::Value::as_str);
                let path = dependency.get("path").and_then(toml::Value::as_str);
                let by_path = path.and_then(|p| Path::new(p).file_name()).and_then(|n| n.to_str());
                let names = [Some(name.as_str()), renamed, by_path].into_iter().flatten();
                found.extend(names.filter(|n| ALLOWED.iter().any(|(c, _)| c == n)).map(str::to_owned));
            }
        } else {
            // Tables such as `target.'cfg(unix)'` hold dependency tables of their own.
            collect(inner, found);
        }
    }
}

fn manifest(path: &Path) -> toml::Table {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn crates_depend_on_each_other_in_one_direction_only() {
    let root = manifest(&workspace().join("Cargo.toml"));
    let members: Vec<&str> =
        root["workspace"]["members"].as_array().unwrap().iter().map(|m| m.as_str().unwrap()).collect();
    assert_eq!(
        members,
        ALLOWED.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        "a new crate needs a rule here"
    );
    for (name, allowed) in ALLOWED {
        let found = inner_dependencies(&manifest(&workspace().join(name).join("Cargo.toml")));
        let allowed = allowed.iter().map(ToString::to_string).collect();
        let extra: Vec<&String> = found.difference(&allowed).collect();
        assert!(extra.is_empty(), "{name} must not depend on {extra:?}");
    }
}

#[test]
fn the_direction_test_sees_renamed_and_development_dependencies() {
    let sneaky = "[dev-dependencies]\nreference = { package = \"oracle\", version = \"*\" }\n\
                  [target.'cfg(unix)'.dependencies]\nk = { path = \"../kernels\" }\n[dependencies]\ncases.workspace = true";
    let found = inner_dependencies(&sneaky.parse().unwrap());
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["cases", "kernels", "oracle"]);
}

#[test]
fn the_oracle_knows_no_device_and_the_kernels_no_reference() {
    for (name, foreign) in [("oracle", "kernels::"), ("kernels", "oracle::")] {
        let mut pending = vec![workspace().join(name).join("src")];
        while let Some(dir) = pending.pop() {
            for entry in std::fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    assert!(!text.contains(foreign), "{} names {foreign}", path.display());
                }
            }
        }
    }
}
