//! Number formats: what every code means, and what values become.

use std::fmt::Write;

use oracle::{Format, store_code};

use crate::digest;

/// A float as short as it can be written and read back, with the sign of zeros and the payload of NaNs.
fn value(x: f32) -> String {
    match x {
        x if x.is_nan() => format!("NaN:{:08x}", x.to_bits()),
        x => format!("{x:?}"),
    }
}

/// All 256 codes of an 8-bit format, eight to a line.
#[must_use]
pub fn codes(format: Format) -> String {
    let mut text = String::new();
    for row in 0..32_u32 {
        let values: Vec<String> = (0..8).map(|column| value(format.decode(8 * row + column))).collect();
        let _ = writeln!(text, "{:02x}: {}", 8 * row, values.join(" "));
    }
    text
}

/// The digest of all 65,536 values of a 16-bit format, and a few of them.
#[must_use]
pub fn digest_of_codes(format: Format) -> String {
    let bytes: Vec<u8> = (0..=0xffff).flat_map(|code| format.decode(code).to_bits().to_le_bytes()).collect();
    let mut text = format!("{} {}\n", format.name(), digest(&bytes));
    for code in [
        0, 1, 0x7f, 0x80, 0x3ff, 0x400, 0x3c00, 0x3f80, 0x7bff, 0x7c00, 0x7f7f, 0x7f80, 0x7fc0, 0x8000,
        0xffff,
    ] {
        let _ = writeln!(text, "{code:04x}: {}", value(format.decode(code)));
    }
    text
}

/// What values at the edges become in every format: ties, the largest value and beyond, subnormals, zeros, NaN, infinity.
#[must_use]
pub fn encodings() -> String {
    let edges = [
        0.0,
        -0.0,
        1.0,
        1.0625,
        1.1875,
        0.001_953_125,
        0.000_976_562_5,
        0.000_976_562_6,
        447.0,
        448.0,
        449.0,
        464.0,
        465.0,
        57_344.0,
        61_440.0,
        61_441.0,
        65_504.0,
        65_520.0,
        3.4e38,
        1e-45,
        -1e-7,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
    ];
    let mut text = String::from("value: f32 bf16 f16 e4m3 e5m2\n");
    for x in edges {
        let codes: Vec<String> = Format::ALL
            .iter()
            .map(|format| format!("{:0width$x}", format.encode(x), width = 2 * format.size_bytes()))
            .collect();
        let _ = writeln!(text, "{x:?}: {}", codes.join(" "));
    }
    text.push_str("\nx / scale, by division and not by a reciprocal (e4m3 e5m2):\n");
    for (x, scale) in
        [(1.0, 3.0), (13.0, 0.7), (0.3, 0.1), (448.0, 1.0000001), (5.0, 1e-3), (-2.6, 0.013), (7.0, 49.0)]
    {
        let codes =
            [Format::E4m3, Format::E5m2].map(|format| format!("{:02x}", store_code(format, x, scale)));
        let _ = writeln!(text, "{x:?} / {scale:?}: {}", codes.join(" "));
    }
    text
}

/// Largest value and unit roundoff of every format.
#[must_use]
pub fn facts() -> String {
    let line = |format: &Format| {
        format!(
            "{}: {} bytes, largest {:e}, unit roundoff {:e}",
            format.name(),
            format.size_bytes(),
            format.max_finite(),
            format.unit_roundoff()
        )
    };
    Format::ALL.iter().map(line).collect::<Vec<_>>().join("\n")
}
