//! Every code of every format, both ways, against a search over the list of values.

use oracle::{Format, OracleError, store_code};
use rstest::rstest;

/// A format of `exponent` and `mantissa` bits, decoded from the definition of a binary floating-point number.
fn by_definition(code: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1));
    let exponent = (code >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let sign = if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let bias = (1 << (exponent_bits - 1)) - 1;
    let steps = 2.0_f64.powi(mantissa_bits as i32);
    match exponent {
        0 => sign * mantissa / steps * 2.0_f64.powi(1 - bias),
        _ => sign * (1.0 + mantissa / steps) * 2.0_f64.powi(exponent - bias),
    }
}

fn bits(format: Format) -> (u32, u32) {
    match format {
        Format::F32 => (8, 23),
        Format::Bf16 => (8, 7),
        Format::F16 => (5, 10),
        Format::E4m3 => (4, 3),
        Format::E5m2 => (5, 2),
    }
}

fn is_nan_code(format: Format, code: u32) -> bool {
    let (exponent, mantissa) = bits(format);
    let magnitude = code & ((1 << (exponent + mantissa)) - 1);
    let infinity = ((1 << exponent) - 1) << mantissa;
    if format == Format::E4m3 { magnitude == 0x7f } else { magnitude > infinity }
}

fn is_infinite_code(format: Format, code: u32) -> bool {
    let (exponent, mantissa) = bits(format);
    format != Format::E4m3 && code & ((1 << (exponent + mantissa)) - 1) == ((1 << exponent) - 1) << mantissa
}

/// The code nearest to `x` found by looking at all finite codes of the sign of `x`; ties to the even code.
/// Values beyond the largest finite one are measured against the code after it, which then saturates or not.
struct Search {
    format: Format,
    /// Values of the non-negative codes in ascending order, with one more after the largest finite one.
    values: Vec<f64>,
}

impl Search {
    fn new(format: Format) -> Self {
        let (exponent, mantissa) = bits(format);
        let last = (0..1 << (exponent + mantissa))
            .rev()
            .find(|&code| !is_nan_code(format, code) && !is_infinite_code(format, code))
            .expect("a finite code");
        let values = (0..=last + 1).map(|code| by_definition(code, exponent, mantissa)).collect();
        Self { format, values }
    }

    fn largest(&self) -> u32 {
        self.values.len() as u32 - 2
    }

    fn encode(&self, x: f64) -> u32 {
        let sign_bit = u32::from(x.is_sign_negative()) << (self.format.size_bytes() * 8 - 1);
        let saturates = matches!(self.format, Format::E4m3 | Format::E5m2);
        let above = self.values.partition_point(|&value| value < x.abs()) as u32;
        let code = if above as usize == self.values.len() {
            above - 1
        } else if above == 0 {
            0
        } else {
            let below = above - 1;
            let (low, high) = (self.values[below as usize], self.values[above as usize]);
            let (to_low, to_high) = (x.abs() - low, high - x.abs());
            if to_low < to_high || (to_low == to_high && below.is_multiple_of(2)) { below } else { above }
        };
        sign_bit | if saturates { code.min(self.largest()) } else { code }
    }
}

#[rstest]
#[case::bf16(Format::Bf16)]
#[case::f16(Format::F16)]
#[case::e4m3(Format::E4m3)]
#[case::e5m2(Format::E5m2)]
fn every_code_decodes_to_its_definition_and_back(#[case] format: Format) {
    let (exponent, mantissa) = bits(format);
    for code in 0..1u32 << (format.size_bytes() * 8) {
        let value = format.decode(code);
        let sign = code >> (exponent + mantissa) == 1;
        assert_eq!(value.is_sign_negative(), sign, "{format} {code:#x}");
        if is_nan_code(format, code) {
            assert!(value.is_nan(), "{format} {code:#x}");
            assert!(is_nan_code(format, format.encode(value)), "{format} {code:#x}");
            assert_eq!(format.encode(value) >> (exponent + mantissa) == 1, sign, "{format} {code:#x}");
        } else if is_infinite_code(format, code) {
            assert!(value.is_infinite(), "{format} {code:#x}");
            let expected = if format == Format::E5m2 { code - 1 } else { code };
            assert_eq!(format.encode(value), expected, "{format} {code:#x}");
        } else {
            assert_eq!(f64::from(value), by_definition(code, exponent, mantissa), "{format} {code:#x}");
            assert_eq!(format.encode(value), code, "{format} {code:#x}");
            assert_eq!(format.round(f64::from(value)), f64::from(value), "{format} {code:#x}");
        }
    }
}

#[rstest]
fn every_16_bit_pattern_encodes_to_the_nearest_code(
    #[values(Format::Bf16, Format::F16)] from: Format,
    #[values(Format::E4m3, Format::E5m2, Format::F16, Format::Bf16)] to: Format,
) {
    let search = Search::new(to);
    for bits in 0..=0xffff_u32 {
        let value = from.decode(bits);
        if value.is_nan() {
            assert!(is_nan_code(to, to.encode(value)), "{to}({value}) from {from} {bits:#06x}");
            assert_eq!(to.decode(to.encode(value)).is_sign_negative(), value.is_sign_negative());
            continue;
        }
        let code = to.encode(value);
        assert_eq!(code, search.encode(f64::from(value)), "{to}({value}) from {from} {bits:#06x}");
        let rounded = to.round(f64::from(value));
        assert_eq!(rounded, f64::from(to.decode(code)), "{to}.round({value})");
        assert_eq!(rounded.is_sign_negative(), value.is_sign_negative(), "{to}.round({value})");
    }
}

/// All midpoints between neighbouring values, and the f32 just below and just above each.
#[rstest]
#[case::bf16(Format::Bf16)]
#[case::f16(Format::F16)]
#[case::e4m3(Format::E4m3)]
#[case::e5m2(Format::E5m2)]
fn midpoints_go_to_the_even_code(#[case] format: Format) {
    let search = Search::new(format);
    for code in 0..=search.largest() {
        let middle = (search.values[code as usize] + search.values[code as usize + 1]) / 2.0;
        let as_f32 = middle as f32;
        assert_eq!(f64::from(as_f32), middle, "midpoints are exact in f32");
        for x in [as_f32.next_down(), as_f32, as_f32.next_up()] {
            for x in [x, -x] {
                assert_eq!(format.encode(x), search.encode(f64::from(x)), "{format}({x:e})");
            }
        }
        for x in [middle.next_down(), middle, middle.next_up()] {
            let code = search.encode(x);
            let expected =
                if code > search.largest() { f64::INFINITY } else { f64::from(format.decode(code)) };
            assert_eq!(format.round(x), expected, "{format}.round({x:e})");
            assert_eq!(format.round(-x), -expected, "{format}.round({:e})", -x);
        }
    }
}

#[rstest]
// 448 is the largest e4m3 value; the next would be 480, the midpoint 464 and ties go to even, all saturating.
#[case(Format::E4m3, 448.0, 0x7e)]
#[case(Format::E4m3, 449.0, 0x7e)]
#[case(Format::E4m3, 464.0, 0x7e)]
#[case(Format::E4m3, 465.0, 0x7e)]
#[case(Format::E4m3, -465.0, 0xfe)]
#[case(Format::E4m3, f32::MAX, 0x7e)]
#[case(Format::E4m3, f32::INFINITY, 0x7e)]
#[case(Format::E4m3, f32::NEG_INFINITY, 0xfe)]
#[case(Format::E4m3, 0.0, 0x00)]
#[case(Format::E4m3, -0.0, 0x80)]
#[case(Format::E4m3, 1.0, 0x38)]
// Subnormals count in steps of 2^-9; half a step ties to zero, three halves to two steps.
#[case(Format::E4m3, 1.0 / 512.0, 0x01)]
#[case(Format::E4m3, 1.0 / 1024.0, 0x00)]
#[case(Format::E4m3, -1.0 / 1024.0, 0x80)]
#[case(Format::E4m3, 1.0001 / 1024.0, 0x01)]
#[case(Format::E4m3, 3.0 / 1024.0, 0x02)]
#[case(Format::E4m3, 7.0 / 512.0, 0x07)]
#[case(Format::E4m3, 15.0 / 1024.0, 0x08)]
#[case(Format::E4m3, f32::MIN_POSITIVE, 0x00)]
#[case(Format::E4m3, f32::NAN, 0x7f)]
#[case(Format::E4m3, -f32::NAN, 0xff)]
#[case(Format::E5m2, 57344.0, 0x7b)]
#[case(Format::E5m2, 61440.0, 0x7b)]
#[case(Format::E5m2, 65536.0, 0x7b)]
#[case(Format::E5m2, f32::INFINITY, 0x7b)]
#[case(Format::E5m2, f32::NEG_INFINITY, 0xfb)]
#[case(Format::E5m2, 1.0, 0x3c)]
#[case(Format::E5m2, 448.0, 0x5f)]
#[case(Format::E5m2, 1.0 / 65536.0, 0x01)]
#[case(Format::E5m2, 1.0 / 131072.0, 0x00)]
#[case(Format::E5m2, 3.0 / 131072.0, 0x02)]
#[case(Format::E5m2, f32::NAN, 0x7f)]
#[case(Format::E5m2, -f32::NAN, 0xff)]
#[case(Format::F16, 65504.0, 0x7bff)]
#[case(Format::F16, 65519.996, 0x7bff)]
#[case(Format::F16, 65520.0, 0x7c00)]
#[case(Format::Bf16, f32::MAX, 0x7f80)]
#[case(Format::Bf16, 1.0 + 1.0 / 256.0, 0x3f80)]
#[case(Format::Bf16, 1.0 + 3.0 / 256.0, 0x3f82)]
#[case(Format::F32, 1.5, 0x3fc0_0000)]
fn boundary_values(#[case] format: Format, #[case] x: f32, #[case] code: u32) {
    assert_eq!(format.encode(x), code, "{format}({x:e})");
    if !x.is_nan() {
        assert_eq!(format.round(f64::from(x)), f64::from(format.decode(code)), "{format}.round({x:e})");
    }
}

#[test]
fn rounding_from_f64_does_not_stop_at_f32() {
    // Just above a bf16 midpoint by less than an f32 step: through f32 it would become the tie and go down.
    let x = 1.0 + 1.0 / 256.0 + 1.0e-12;
    assert_eq!(Format::Bf16.encode(x as f32), 0x3f80);
    assert_eq!(Format::Bf16.round(x), 1.0078125);
    assert_eq!(Format::F16.round(1.0 + 1.0 / 2048.0 + 1.0e-12), 1.0009765625);
    assert_eq!(Format::F32.round(1.0 + 0.5_f64.powi(24) + 0.5_f64.powi(50)), 1.0 + 0.5_f64.powi(23));
    assert_eq!(Format::F32.round(1.0 + 0.5_f64.powi(24)), 1.0);
    assert_eq!(Format::F32.round(f64::from(f32::MAX) * 1.1), f64::INFINITY);
    assert_eq!(Format::F32.round(f64::MIN_POSITIVE), 0.0);
    assert!(Format::F32.round(f64::NAN).is_nan());
    assert_eq!(Format::E5m2.round(f64::NEG_INFINITY), -57344.0);
}

#[test]
fn storing_divides_and_does_not_multiply_by_the_reciprocal() {
    // 3.171875 / 7 is 0.453125, midway between two e4m3 values; the product with 1/7 falls beside it.
    let pinned: [(Format, f32, f32, u32, u32); 8] = [
        (Format::E4m3, 3.171875, 7.0, 0x2e, 0x2f),
        (Format::E4m3, 5.078_125_5e-5, 0.004, 0x07, 0x06),
        (Format::E4m3, 1.074_218_8e-5, 0.011, 0x01, 0x00),
        (Format::E4m3, 0.003_027_343_7, 0.1, 0x0f, 0x10),
        (Format::E5m2, 0.710_937_5, 7.0, 0x2e, 0x2f),
        (Format::E5m2, 3.967_285_5e-7, 0.004, 0x07, 0x06),
        (Format::E5m2, 8.392_335e-8, 0.011, 0x01, 0x00),
        (Format::E5m2, 4.806_518_7e-5, 0.7, 0x04, 0x05),
    ];
    for (format, x, scale, divided, multiplied) in pinned {
        assert_eq!(store_code(format, x, scale), divided, "{format} {x:e}/{scale:e}");
        assert_eq!(format.encode(x * (1.0 / scale)), multiplied, "{format} {x:e}*(1/{scale:e})");
        assert_ne!(divided, multiplied);
    }
    // The quotient is rounded to f32 before it is encoded: here to a midpoint, whose tie goes up to the even code
    // although the exact quotient lies below it.
    assert!(1.171875e-5_f32 as f64 / f64::from(0.004_f32) < 0.002_929_687_5);
    assert_eq!(store_code(Format::E4m3, 1.171875e-5, 0.004), 0x02);
}

#[rstest]
fn bytes_are_little_endian_and_round_trip(
    #[values(Format::F32, Format::Bf16, Format::F16, Format::E4m3, Format::E5m2)] format: Format,
) {
    let values = [0.0, -0.0, 1.0, -2.5, 448.0, 0.001953125, 96.0];
    let bytes = format.encode_to_bytes(&values);
    assert_eq!(bytes.len(), values.len() * format.size_bytes());
    for (index, &value) in values.iter().enumerate() {
        let code = &bytes[index * format.size_bytes()..][..format.size_bytes()];
        let assembled = code.iter().rev().fold(0, |code, &byte| code << 8 | u32::from(byte));
        assert_eq!(assembled, format.encode(value), "{format}({value})");
    }
    let expected: Vec<f32> = values.iter().map(|&value| format.decode(format.encode(value))).collect();
    assert_eq!(format.decode_bytes(&bytes), expected);
    assert_eq!(format.decode_bytes(&[]), [0.0_f32; 0]);
}

#[rstest]
#[case::bf16(Format::Bf16)]
#[case::f16(Format::F16)]
#[case::e4m3(Format::E4m3)]
#[case::e5m2(Format::E5m2)]
fn neighbours_step_through_every_value(#[case] format: Format) {
    let search = Search::new(format);
    let mut values: Vec<f32> = (0..=search.largest()).map(|code| format.decode(code)).collect();
    if !matches!(format, Format::E4m3 | Format::E5m2) {
        values.push(f32::INFINITY);
    }
    for pair in values.windows(2) {
        assert_eq!(format.next_up(pair[0]), pair[1]);
        assert_eq!(format.next_down(pair[1]), pair[0]);
        assert_eq!(format.next_up(-pair[1]), -pair[0]);
        assert_eq!(format.next_down(-pair[0]), -pair[1]);
    }
    let last = values[values.len() - 1];
    assert_eq!(format.next_up(last), last, "nothing is above the largest value");
    assert!(format.next_up(f32::NAN).is_nan());
}

#[test]
fn unit_roundoff_is_half_the_step_above_one() {
    for format in Format::ALL {
        assert_eq!(format.unit_roundoff(), f64::from(format.next_up(1.0) - 1.0) / 2.0, "{format}");
    }
}

#[test]
fn names_parse_back_and_fnuz_is_refused_by_name() {
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
        assert_eq!(format.to_string(), format.name());
    }
    assert_eq!("e4m3fn".parse(), Ok(Format::E4m3));
    for name in ["e4m3fnuz", "e5m2fnuz", "float8_e4m3fnuz"] {
        assert_eq!(name.parse::<Format>(), Err(OracleError::FnuzFormat { name: name.to_owned() }));
    }
    for name in ["", "E4M3", "fp8", "float32"] {
        assert_eq!(name.parse::<Format>(), Err(OracleError::UnknownFormat { name: name.to_owned() }));
    }
}
