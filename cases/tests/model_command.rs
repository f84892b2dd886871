//! `attest model` as its users meet it.

#[cfg(feature = "model")]
#[path = "model_support/mod.rs"]
mod support;

use std::process::{Command, Output};

fn attest(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_attest"))
        .args(arguments)
        .env_remove("ATTEST_DEVICE")
        .output()
        .expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(not(feature = "model"))]
#[test]
fn without_the_feature_it_says_how_to_build_with_it() {
    let output = attest(&["model", "any.gguf"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("--features model"), "{}", text(&output.stderr));
}

#[test]
fn wrong_options_are_usage_errors() {
    for arguments in [
        &["model"][..],
        &["model", "any.gguf", "--kv", "f8"],
        &["model", "any.gguf", "--chunk", "0"],
        &["model", "any.gguf", "--window", "3"],
        &["model", "any.gguf", "--prompt", "a", "--prompt-file", "b"],
    ] {
        let output = attest(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[cfg(feature = "model")]
mod with_the_feature {
    use std::process::Command;

    use super::{attest, support, text};

    #[test]
    fn a_file_that_is_no_model_is_a_usage_error() {
        let output = attest(&["model", "no-such-file.gguf", "--device", "simt"]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("no-such-file.gguf"), "{}", text(&output.stderr));
    }

    #[test]
    fn two_caches_side_by_side() {
        let file = tempfile::NamedTempFile::new().unwrap();
        support::write(file.path(), &[]);
        let book = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(book.path(), "the cat and the dog and the hat").unwrap();
        let (model, book) = (file.path().to_str().unwrap(), book.path().to_str().unwrap());
        let options = ["--device", "simt", "--check", "all", "--perplexity", book, "--window", "8"];
        let output =
            attest(&[&["model", model, "--prompt", "the bat", "--max-tokens", "3"][..], &options].concat());
        let stdout = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{stdout}{}", text(&output.stderr));
        assert!(stdout.contains("model: tiny, 2 layers, h2/1 d64"), "{stdout}");
        assert!(stdout.contains("ok    bf16 and e4m3 give the same 3 tokens"), "{stdout}");
        assert!(stdout.contains("bf16: 6 of 6 attention calls judged"), "{stdout}");
        assert!(["bf16 ", "e4m3 ", "e5m2 "].iter().all(|name| stdout.lines().any(|l| l.starts_with(name))));
        assert_eq!(stdout.lines().last(), Some("8 passed, 0 failed, 0 skipped"), "{stdout}");
    }

    /// A copy of the kernel sources with one text replaced.
    fn broken_kernels(file: &str, from: &str, to: &str) -> tempfile::TempDir {
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/cuda")).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
        let path = copy.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file} no longer contains `{from}`");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        copy
    }

    fn run_with(kernels: &std::path::Path) -> (Option<i32>, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        support::write(file.path(), &[]);
        let output = Command::new(env!("CARGO_BIN_EXE_attest"))
            .args(["model", file.path().to_str().unwrap(), "--prompt", "the bat", "--max-tokens", "2"])
            .args(["--device", "simt", "--check", "all", "--kv", "bf16"])
            .env("ATTEST_KERNEL_DIR", kernels)
            .output()
            .unwrap();
        (output.status.code(), text(&output.stdout))
    }

    #[test]
    fn a_kernel_that_crashes_is_the_verdict() {
        let kernels = broken_kernels("store.cu", "side.cache + to", "side.cache + (i64(1) << 44) + to");
        let (code, stdout) = run_with(kernels.path());
        assert_eq!(code, Some(1), "{stdout}");
        assert!(stdout.contains("FAIL  the kernels do not crash"), "{stdout}");
        assert_eq!(stdout.lines().last(), Some("0 passed, 1 failed, 0 skipped"), "{stdout}");
    }

    #[test]
    fn a_kernel_that_stores_a_wrong_code_fails_the_run() {
        let kernels =
            broken_kernels("store.cu", "token * side.token_stride", "(token & ~1ll) * side.token_stride");
        let (code, stdout) = run_with(kernels.path());
        assert_eq!(code, Some(1), "{stdout}");
        assert!(stdout.contains("stored codes differ"), "{stdout}");
    }
}
