//! What must hold for any bytes at all: the entry points of the fuzz targets in `cases/fuzz`, which tests call as well.

mod calls;

use std::fmt::Display;

use kernels::arm::Arm;
use kernels::error::ArgumentError;
use kernels::tensor::DType;
use kernels::validate::{validate_attention, validate_store};

use crate::bad_input;
use crate::case::Case;
use crate::support;
use calls::{Bytes, spoil_attention, spoil_store};
pub use calls::{attention_is_sound, store_is_sound};

/// A case line is a case or an error with a message; a case prints to a line that reads back as the same case, and can be
/// asked what a listing asks.
///
/// # Panics
/// If that does not hold.
pub fn case_line(bytes: &[u8]) {
    let Ok(line) = std::str::from_utf8(bytes) else { return };
    let case = match line.parse::<Case>() {
        Ok(case) => case,
        Err(error) => return says_something(&error),
    };
    let printed = case.to_string();
    let again =
        printed.parse::<Case>().unwrap_or_else(|error| panic!("{line:?} prints as {printed:?}: {error}"));
    assert_eq!(again.to_string(), printed, "{line:?}");
    // NaN, which some bad calls have, is equal to nothing.
    assert!(
        again == case || printed.contains("NaN"),
        "{line:?} prints as {printed:?}: {case:?} becomes {again:?}"
    );
    let _ = (case.flags(), case.id(), case.must_reject());
    let _ = (case.problem.pairs(), case.problem.total_query_rows(), case.problem.alibi_slopes());
    for arm in Arm::ALL {
        let _ = support::gap(&case, arm.name());
    }
}

fn says_something(error: &impl Display) {
    assert!(error.to_string().len() > 5, "an error without a message");
}

/// A call whose arguments were spoilt in any way is refused with an error that names an argument, or everything that a kernel
/// would touch lies where it may.
///
/// # Panics
/// If that does not hold.
pub fn metadata(bytes: &[u8]) {
    let mut bytes = Bytes::new(bytes);
    let q_dtype = bytes.pick(&DType::MODEL);
    let kv_dtype = bytes.pick(&DType::CACHE);
    if bytes.byte().is_multiple_of(3) {
        let mut args = bad_input::store(q_dtype, kv_dtype);
        spoil_store(&mut args, &mut bytes);
        match validate_store(&args) {
            Ok(_) => store_is_sound(&args),
            Err(error) => names_an_argument(&error),
        }
    } else {
        let mut args = bad_input::attention(q_dtype, kv_dtype);
        spoil_attention(&mut args, &mut bytes);
        match validate_attention(&args) {
            Ok(_) => attention_is_sound(&args),
            Err(error) => names_an_argument(&error),
        }
    }
}

fn names_an_argument(error: &ArgumentError) {
    let first = error.argument.chars().next();
    assert!(first.is_some_and(|c| c.is_ascii_lowercase()), "{error}");
    assert!(!error.value.is_empty() && !error.accepted.is_empty(), "{error}");
}
