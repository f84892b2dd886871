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
}
