//! What is right: number formats, page layouts, reference attention, error bound and comparison.
//!
//! Pure mathematics: nothing here knows of devices or kernels, does I/O, or holds state. A verdict is made in
//! three steps: [`attend`] computes output, lse and the error allowed to each element from the very bits
//! that the device reads; the device's answer is decoded with [`Format`]; [`compare`] and [`compare_lse`] say
//! which elements lie outside and what they have in common.

mod blocked;
mod bound;
mod compare;
mod error;
mod format;
mod judge;
mod layout;
mod mask;
mod merge;
mod pattern;
mod request;

pub use blocked::{attend, attend_f32, attend_f64_blocked, attend_f64_values};
pub use bound::BoundModel;
pub use compare::{Comparison, Deviation, compare, compare_lse, share};
pub use error::OracleError;
pub use format::{Format, store_code};
pub use judge::attend_f64;
pub use layout::{CacheLayout, CacheShape, CacheViews, Packing, Padding, PagedView};
pub use mask::Mask;
pub use merge::{MergedState, PartialState, merge_states};
pub use request::{Attention, AttentionOptions, Reference, Request, Rows};
