//! The header is C11 and C++17, and both compilers see the structs as Rust does.

use std::path::Path;
use std::process::Command;

use kernels::abi::layout::layouts;

/// A program that prints `struct size` and `struct.field offset` lines.
fn program() -> String {
    let mut text = String::from(
        "#include \"attest_kernel.h\"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for layout in layouts() {
        let name = layout.name;
        text.push_str(&format!("  printf(\"{name} %d\\n\", (int)sizeof({name}));\n"));
        for (field, _) in &layout.fields {
            text.push_str(&format!("  printf(\"{name}.{field} %d\\n\", (int)offsetof({name}, {field}));\n"));
        }
    }
    text + "  return 0;\n}\n"
}

fn expected() -> String {
    let mut text = String::new();
    for layout in layouts() {
        text.push_str(&format!("{} {}\n", layout.name, layout.size));
        for (field, offset) in layout.fields {
            text.push_str(&format!("{}.{field} {offset}\n", layout.name));
        }
    }
    text
}

fn printed(compiler: &str, arguments: &[&str], source: &str) -> String {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (source_path, binary) = (dir.path().join(source), dir.path().join("layout"));
    std::fs::write(&source_path, program()).expect("the source");
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi");
    let compiled = Command::new(compiler)
        .args(arguments)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .args([&header, &source_path])
        .arg("-o")
        .arg(&binary)
        .output()
        .expect("the compiler starts");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&binary).output().expect("the program starts");
    String::from_utf8(ran.stdout).expect("text")
}

/// The C++ compiler that the `simt` device uses; it compiles C, too.
fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned())
}

#[test]
fn a_c11_compiler_sees_the_same_structs() {
    assert_eq!(printed(&compiler(), &["-x", "c", "-std=c11"], "layout.c"), expected());
}

#[test]
fn a_cpp17_compiler_sees_the_same_structs() {
    assert_eq!(printed(&compiler(), &["-std=c++17"], "layout.cpp"), expected());
}
