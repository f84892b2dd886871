//! The committed vectors are what their cases say, and judge outputs rightly.

use cases::case::Case;
use cases::export::{Exported, Output, export, judge};
use cases::judge::AttentionOutput;
use cases::verdict::Verdict;
use golden::vectors::{VECTORS, path};
use oracle::Format;

fn committed(name: &str) -> Vec<u8> {
    let path = path(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Header and data of a safetensors file.
fn halves(file: &[u8]) -> (&[u8], &[u8]) {
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    file[8..].split_at(usize::try_from(length).expect("a small header"))
}

/// `ATTEST_BLESS=1` writes the files instead.
#[test]
fn the_committed_files_are_what_their_cases_say() {
    let bless = std::env::var_os("ATTEST_BLESS").is_some_and(|value| value == "1");
    for (name, line) in VECTORS {
        let case: Case = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        let now = export(&case, "mma").unwrap_or_else(|error| panic!("{line}: {error}"));
        if bless {
            std::fs::write(path(name), &now).expect("the vectors can be written");
        }
        let kept = committed(name);
        assert_eq!(halves(&kept).0, halves(&now).0, "{name}: tensors or metadata");
        let (kept, now) = (Exported::read(&kept).expect(name), Exported::read(&now).expect(name));
        assert_eq!(kept.description, now.description, "{name}");
        for (kept, now) in kept.references.iter().zip(&now.references) {
            // Another mathematics library may differ in the last bits.
            let near = |a: &f64, b: &f64| a == b || (a - b).abs() <= 1e-12 * b.abs().max(1e-3);
            assert!(kept.out.iter().zip(&now.out).all(|(a, b)| near(a, b)), "{name}: expected_out");
            assert!(kept.lse.iter().zip(&now.lse).all(|(a, b)| near(a, b)), "{name}: expected_lse");
            assert!(kept.bound.iter().zip(&now.bound).all(|(a, b)| near(a, b)), "{name}: out_bound");
            assert!(kept.lse_bound.iter().zip(&now.lse_bound).all(|(a, b)| near(a, b)), "{name}: lse_bound");
        }
    }
}

#[test]
fn no_file_is_without_its_case() {
    let dir = path("x").parent().expect("a directory").to_owned();
    let mut files: Vec<String> = std::fs::read_dir(dir)
        .expect("the vectors")
        .map(|entry| entry.expect("a file").file_name().into_string().expect("a name in UTF-8"))
        .collect();
    let mut expected: Vec<String> = VECTORS.iter().map(|(name, _)| format!("{name}.safetensors")).collect();
    files.sort();
    expected.sort();
    assert_eq!(files, expected);
}

fn output(exported: &Exported, change: impl Fn(f64, f64) -> f64) -> Output {
    let mut out = Vec::new();
    for reference in &exported.references {
        out.extend(
            reference.out.iter().zip(&reference.bound).map(|(want, bound)| change(*want, *bound) as f32),
        );
    }
    let bytes = AttentionOutput { out: Format::F32.encode_to_bytes(&out), lse: None };
    Output { format: Format::F32, bytes }
}

#[test]
fn each_accepts_its_expected_output_and_rejects_three_times_the_bound_and_zeros() {
    for (name, _) in VECTORS {
        let exported = Exported::read(&committed(name)).expect(name);
        let verdict = |change: fn(f64, f64) -> f64| judge(&exported, &output(&exported, change)).expect(name);
        assert!(matches!(verdict(|want, _| want), Verdict::Pass { .. }), "{name}");
        if name != "needle" {
            // The needle is held to an exact answer besides the bound.
            assert!(matches!(verdict(|want, bound| want + 0.9 * bound), Verdict::Pass { .. }), "{name}");
        }
        assert!(
            matches!(verdict(|want, bound| want + 3.0 * bound + 1e-5), Verdict::Mismatch { .. }),
            "{name}"
        );
        assert!(matches!(verdict(|_, _| 0.0), Verdict::Mismatch { .. }), "{name}");
    }
}
