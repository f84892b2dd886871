//! Flags: what a case exercises, derived from its content so that they cannot go stale.

use std::fmt;

use oracle::{CacheLayout, Format, Packing};

use super::{Case, Data, Paging};
use crate::problem::{Op, Scale, Sinks};

/// One thing a case exercises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flag {
    /// More than one request, of different lengths.
    Varlen,
    /// A request with no query row.
    EmptyQuery,
    /// A request with no key.
    EmptyKv,
    /// A request with more query rows than keys.
    QueryPastKv,
    /// A causal mask.
    Causal,
    /// A finite window on either side.
    Window,
    /// A logit soft cap.
    Softcap,
    /// ALiBi slopes.
    Alibi,
    /// Attention sinks.
    Sinks,
    /// Several query heads per KV head.
    Gqa,
    /// One KV head.
    Mqa,
    /// K and V of different head_dim.
    UnequalDims,
    /// An 8-bit cache.
    Fp8,
    /// K or V scales other than one.
    Scaled,
    /// A scale per KV head.
    PerHeadScale,
    /// HND order.
    Hnd,
    /// K and V as views of one tensor.
    Interleaved,
    /// Padded strides or a base offset.
    Padded,
    /// V padded otherwise than K.
    VPadded,
    /// A page size that is no power of two.
    OddPage,
    /// More than one page in a request.
    PageSpanning,
    /// A probe whose answer is exact.
    Probe,
    /// Recorded activations.
    Real,
    /// Pages in order.
    IdentityPaging,
    /// The store kernel.
    Store,
    /// Must be refused.
    Invalid,
}

impl fmt::Display for Flag {
    /// Lower-case words joined by hyphens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{self:?}");
        for (i, c) in name.chars().enumerate() {
            if c.is_uppercase() && i > 0 {
                f.write_str("-")?;
            }
            write!(f, "{}", c.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

pub(super) fn flags_of(case: &Case) -> Vec<Flag> {
    let mut flags = Vec::new();
    let mut set = |flag, on: bool| {
        if on {
            flags.push(flag);
        }
    };
    let p = &case.problem;
    let requests = || p.query_lens.iter().zip(&p.kv_lens);
    let unequal = |lens: &[usize]| lens.windows(2).any(|w| w[0] != w[1]);
    set(Flag::Varlen, unequal(&p.query_lens) || unequal(&p.kv_lens));
    set(Flag::EmptyQuery, p.query_lens.contains(&0));
    set(Flag::EmptyKv, p.kv_lens.contains(&0));
    set(Flag::QueryPastKv, requests().any(|(q, kv)| q > kv));
    set(Flag::Causal, p.options.causal);
    set(Flag::Window, p.options.window_left.is_some() || p.options.window_right.is_some());
    set(Flag::Softcap, p.options.softcap.is_some());
    set(Flag::Alibi, p.options.alibi);
    set(Flag::Sinks, p.options.sinks != Sinks::Absent);
    set(Flag::Gqa, p.num_q_heads > p.num_kv_heads);
    set(Flag::Mqa, p.num_kv_heads == 1 && p.num_q_heads > 1);
    set(Flag::UnequalDims, p.head_dim != p.head_dim_v);
    set(Flag::Fp8, matches!(p.cache_format, Format::E4m3 | Format::E5m2));
    set(Flag::Scaled, p.k_scale != Scale::default() || p.v_scale != Scale::default());
    let per_head = |s: &Scale| matches!(s, Scale::PerHead(_));
    set(Flag::PerHeadScale, per_head(&p.k_scale) || per_head(&p.v_scale));
    set(Flag::Hnd, p.layout == CacheLayout::Hnd);
    set(Flag::Interleaved, p.packing != Packing::Separate);
    set(Flag::Padded, p.is_padded());
    set(Flag::VPadded, p.v_padding.is_some_and(|padding| padding != p.padding));
    set(Flag::OddPage, !p.page_size.is_power_of_two());
    set(Flag::PageSpanning, p.kv_lens.iter().any(|kv| *kv > p.page_size));
    set(Flag::Probe, matches!(case.data, Data::UniformQ0 | Data::HeadId | Data::Needle(_)));
    set(Flag::Real, matches!(case.data, Data::Real { .. }));
    set(Flag::IdentityPaging, case.paging == Paging::Identity);
    set(Flag::Store, p.op == Op::Store);
    set(Flag::Invalid, case.must_reject());
    flags
}
