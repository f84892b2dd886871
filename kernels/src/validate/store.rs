//! Checks of one `reshape_and_cache` call.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::tensor::{Checked, check_scale, check_vector};
use crate::args::{PagedCache, Scale, StoreArgs};
use crate::error::ArgumentError;
use crate::tensor::DType;

/// What a validated store asks for, without its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StoreShape {
    /// Type of the rows to store.
    pub source_dtype: DType,
    /// Type of the cache.
    pub kv_dtype: DType,
    /// Length of the slot mapping: rows that are looked at.
    pub num_stored: u64,
    /// KV heads.
    pub num_kv_heads: u64,
    /// Elements of a key.
    pub head_dim_k: u64,
    /// Elements of a value.
    pub head_dim_v: u64,
    /// Pages of the cache.
    pub num_pages: u64,
    /// Slots of a page.
    pub page_size: u64,
}

/// Checks every argument of a store.
///
/// # Errors
/// The first argument that is not acceptable.
pub fn validate_store(args: &StoreArgs) -> Result<StoreShape, ArgumentError> {
    Checked::new("k", &args.k).rank(3, "[num_tokens, num_kv_heads, head_dim_k]")?;
    Checked::new("v", &args.v).rank(3, "[num_tokens, num_kv_heads, head_dim_v]")?;
    Checked::new("k_cache", &args.cache.k).rank(4, "[num_pages, page_size, num_kv_heads, head_dim_k]")?;
    Checked::new("slot_mapping", &args.slot_mapping).rank(1, "[num_stored]")?;
    let (k, v) = (&args.k.shape, &args.v.shape);
    let shape = StoreShape {
        source_dtype: args.k.dtype,
        kv_dtype: args.cache.k.dtype,
        num_stored: args.slot_mapping.shape[0],
        num_kv_heads: k[1],
        head_dim_k: k[2],
        head_dim_v: v[2],
        num_pages: args.cache.k.shape[0],
        page_size: args.cache.k.shape[1],
    };
    for (name, value) in [
        ("num_kv_heads", shape.num_kv_heads),
        ("head_dim_k", shape.head_dim_k),
        ("head_dim_v", shape.head_dim_v),
        ("page_size", shape.page_size),
    ] {
        if value == 0 {
            return Err(ArgumentError::new(name, value, "1 or more"));
        }
    }
    check_source(args, &shape)?;
    check_cache(&args.cache, &shape)?;
    let axes = "[num_stored], i64";
    check_vector("slot_mapping", &args.slot_mapping, DType::I64, &[shape.num_stored], axes)?;
    if let Some(slots) = &args.host_slot_mapping {
        check_slots(slots, &shape)?;
    }
    Ok(shape)
}

fn check_source(args: &StoreArgs, shape: &StoreShape) -> Result<(), ArgumentError> {
    let k = Checked::new("k", &args.k);
    k.dtype(&DType::MODEL)?;
    k.extent()?;
    let v = Checked::new("v", &args.v);
    v.dtype(&[shape.source_dtype])?;
    v.shape(
        &[args.k.shape[0], shape.num_kv_heads, shape.head_dim_v],
        "[num_tokens, num_kv_heads] of k, then head_dim_v",
    )?;
    v.extent()?;
    if shape.num_stored > args.k.shape[0] {
        let accepted = format!("at most {}, the rows of k and v", args.k.shape[0]);
        return Err(ArgumentError::new("slot_mapping length", shape.num_stored, accepted));
    }
    Ok(())
}

fn check_cache(cache: &PagedCache, shape: &StoreShape) -> Result<(), ArgumentError> {
    let k = Checked::new("k_cache", &cache.k);
    k.dtype(&DType::CACHE)?;
    let axes = "[num_pages, page_size, then num_kv_heads and head_dim_k of k]";
    k.shape(&[shape.num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim_k], axes)?;
    k.extent()?;
    k.distinct()?;
    let v = Checked::new("v_cache", &cache.v);
    v.dtype(&[shape.kv_dtype])?;
    let axes = "[num_pages and page_size of k_cache, num_kv_heads and head_dim_v of v]";
    v.shape(&[shape.num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim_v], axes)?;
    v.extent()?;
    v.distinct()?;
    for (name, scale) in [("k_scale", &cache.k_scale), ("v_scale", &cache.v_scale)] {
        check_scale(name, scale, shape.num_kv_heads)?;
        if !shape.kv_dtype.is_fp8() && *scale != Scale::ONE {
            let value = match scale {
                Scale::PerTensor(value) => value.to_string(),
                Scale::PerHead(_) => "a scale per head".to_owned(),
            };
            return Err(ArgumentError::new(name, value, format!("1 for a cache of {}", shape.kv_dtype)));
        }
    }
    Ok(())
}

fn check_slots(slots: &[i64], shape: &StoreShape) -> Result<(), ArgumentError> {
    if slots.len() as u64 != shape.num_stored {
        let accepted = format!("{} (num_stored)", shape.num_stored);
        return Err(ArgumentError::new("host_slot_mapping length", slots.len(), accepted));
    }
    let capacity = shape.num_pages.saturating_mul(shape.page_size);
    let mut seen = HashMap::new();
    for (token, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != -1) {
        let name = || format!("slot_mapping[{token}]");
        if u64::try_from(*slot).map_or(true, |slot| slot >= capacity) {
            let accepted = format!("-1, or 0 or more and below {capacity} (num_pages * page_size)");
            return Err(ArgumentError::new(name(), slot, accepted));
        }
        if let Some(earlier) = seen.insert(*slot, token) {
            return Err(ArgumentError::new(
                name(),
                slot,
                format!("a slot of its own; token {earlier} has it too"),
            ));
        }
    }
    Ok(())
}
