//! Calls spoilt as bytes say, and what an accepted call must be like: computed in wide integers, element by element, and not
//! as the validation computes it.

use std::collections::HashSet;

use kernels::args::{AttentionArgs, Scale, StoreArgs};
use kernels::device::DevicePtr;
use kernels::tensor::{DType, DeviceTensor};

use crate::bad_input::{ATTENTION_TENSORS, STORE_TENSORS};

/// Values at which integers, lengths and offsets go wrong.
const EDGES: [i64; 24] = [
    0,
    1,
    -1,
    2,
    3,
    5,
    15,
    16,
    17,
    64,
    96,
    127,
    255,
    -2,
    65_536,
    i32::MAX as i64,
    i32::MAX as i64 - 1024,
    i32::MAX as i64 + 1,
    u32::MAX as i64,
    i32::MIN as i64,
    1 << 62,
    i64::MAX,
    i64::MIN,
    i64::MAX - 15,
];
const DTYPES: [DType; 7] =
    [DType::F32, DType::Bf16, DType::F16, DType::E4m3, DType::E5m2, DType::I32, DType::I64];
/// Elements up to which all addresses of a tensor are listed.
const LISTED: u128 = 1 << 14;

/// A stream of choices; zeros once it is used up.
pub(super) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// An edge, or any number.
    fn value(&mut self) -> i64 {
        match self.byte() {
            byte if byte < 240 => EDGES[usize::from(byte) % EDGES.len()],
            _ => i64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    fn float(&mut self) -> f32 {
        match self.byte() % 8 {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => -1.0,
            3 => 0.0,
            4 => f32::MIN_POSITIVE / 2.0,
            _ => f32::from_bits(self.value() as u32),
        }
    }

    fn is_used_up(&self) -> bool {
        self.0.is_empty()
    }
}

pub(super) fn spoil_attention(args: &mut AttentionArgs, bytes: &mut Bytes<'_>) {
    while !bytes.is_used_up() {
        match bytes.byte() % 16 {
            0 => args.max_query_len = bytes.value() as u64,
            1 => args.max_seq_len = bytes.value() as u64,
            2 => args.window_left = Some(bytes.value()),
            3 => args.window_right = Some(bytes.value()),
            4 => args.softmax_scale = bytes.float(),
            5 => args.softcap = Some(bytes.float()),
            6 => args.cache.k_scale = Scale::PerTensor(bytes.float()),
            7 => args.cache.v_scale = Scale::PerTensor(bytes.float()),
            8 => drop_something(args, bytes),
            9 => spoil_list(&mut args.host.block_table, bytes),
            10 => spoil_list(&mut args.host.seq_lens, bytes),
            11 => spoil_list(&mut args.host.query_start_loc, bytes),
            _ => {
                let (_, access) = bytes.pick(&ATTENTION_TENSORS);
                access(args).into_iter().for_each(|tensor| spoil_tensor(tensor, bytes));
            }
        }
    }
}

fn drop_something(args: &mut AttentionArgs, bytes: &mut Bytes<'_>) {
    match bytes.byte() % 6 {
        0 => args.lse = None,
        1 => args.alibi_slopes = None,
        2 => args.sinks = None,
        3 => args.host.block_table = None,
        4 => args.host.seq_lens = None,
        _ => args.host.query_start_loc = None,
    }
}

pub(super) fn spoil_store(args: &mut StoreArgs, bytes: &mut Bytes<'_>) {
    while !bytes.is_used_up() {
        match bytes.byte() % 8 {
            0 => args.cache.k_scale = Scale::PerTensor(bytes.float()),
            1 => args.cache.v_scale = Scale::PerTensor(bytes.float()),
            2 | 3 => spoil_list(&mut args.host_slot_mapping, bytes),
            _ => {
                let (_, access) = bytes.pick(&STORE_TENSORS);
                access(args).into_iter().for_each(|tensor| spoil_tensor(tensor, bytes));
            }
        }
    }
}

fn spoil_list<T: TryFrom<i64> + Default>(list: &mut Option<Vec<T>>, bytes: &mut Bytes<'_>) {
    let Some(list) = list else { return };
    let value = T::try_from(bytes.value()).unwrap_or_default();
    let at = usize::from(bytes.byte());
    match (bytes.byte() % 8, list.len()) {
        (0, _) => list.push(value),
        (1, _) => drop(list.pop()),
        (_, 0) => {}
        (_, len) => list[at % len] = value,
    }
}

fn spoil_tensor(tensor: &mut DeviceTensor, bytes: &mut Bytes<'_>) {
    let (kind, axis, value) = (bytes.byte() % 10, usize::from(bytes.byte()), bytes.value());
    let (rank, strides) = (tensor.shape.len(), tensor.strides.len());
    match kind {
        0 | 1 if rank > 0 => tensor.shape[axis % rank] = value as u64,
        2 | 3 if strides > 0 => tensor.strides[axis % strides] = value,
        4 => tensor.offset = value as u64,
        5 => tensor.allocation.bytes = value as u64,
        6 => tensor.allocation.ptr = DevicePtr(value as u64),
        7 => tensor.dtype = DTYPES[axis % DTYPES.len()],
        8 => {
            tensor.shape.push(value as u64);
            tensor.strides.push(1);
        }
        _ => {
            tensor.shape.pop();
            tensor.strides.truncate(axis % 5);
        }
    }
}

/// Every element lies within the allocation and is aligned.
fn lies_inside(name: &str, tensor: &DeviceTensor) {
    if tensor.shape.contains(&0) {
        return;
    }
    assert_eq!(tensor.shape.len(), tensor.strides.len(), "{name}");
    let size = i128::from(tensor.dtype.size_bytes());
    let reach = |sign: i128| -> i128 {
        let axes = tensor.shape.iter().zip(&tensor.strides);
        axes.map(|(n, stride)| (i128::from(*n) - 1) * i128::from(*stride)).filter(|r| r * sign > 0).sum()
    };
    let offset = i128::from(tensor.offset);
    let (first, end) = (offset + reach(-1) * size, offset + (reach(1) + 1) * size);
    let bytes = i128::from(tensor.allocation.bytes);
    assert!(first >= 0 && end <= bytes, "{name}: bytes {first}..{end} of {bytes}: {tensor:?}");
    let base = i128::from(tensor.allocation.ptr.0);
    assert!(base > 0 && base + end <= 1 << 64, "{name}: {tensor:?}");
    assert_eq!((base + offset) % size, 0, "{name} is not aligned: {tensor:?}");
}

/// No two elements of a tensor that is written share an address.
fn is_distinct(name: &str, tensor: &DeviceTensor) {
    let elements = tensor.shape.iter().fold(1u128, |product, n| product.saturating_mul(u128::from(*n)));
    if elements > LISTED {
        return;
    }
    let mut places: Vec<i128> = vec![0];
    for (extent, stride) in tensor.shape.iter().zip(&tensor.strides) {
        let steps = |place: &i128| {
            (0..*extent).map(|n| place + i128::from(n) * i128::from(*stride)).collect::<Vec<_>>()
        };
        places = places.iter().flat_map(steps).collect();
    }
    let distinct: HashSet<i128> = places.iter().copied().collect();
    assert_eq!(distinct.len(), places.len(), "{name}: two elements share an address: {tensor:?}");
}

/// What an accepted attention call must be like: every tensor in its allocation, aligned, and host copies that lead nowhere else.
///
/// # Panics
/// If it is not.
pub fn attention_is_sound(args: &AttentionArgs) {
    let mut call = args.clone();
    for (name, access) in ATTENTION_TENSORS {
        access(&mut call).into_iter().for_each(|tensor| lies_inside(name, tensor));
    }
    is_distinct("out", &args.out);
    args.lse.iter().for_each(|lse| is_distinct("lse", lse));
    let (k, heads) = (&args.cache.k.shape, [args.q.shape[1], args.cache.k.shape[2]]);
    assert!(heads[1] > 0 && heads[0].is_multiple_of(heads[1]), "{heads:?}");
    assert!(args.softmax_scale.is_finite() && args.softmax_scale > 0.0);
    let (requests, width) = (args.seq_lens.shape[0] as usize, args.block_table.shape[1] as usize);
    if let Some(lens) = &args.host.seq_lens {
        let capacity = i128::from(width as u64) * i128::from(k[1]);
        let fits = |len: &i32| (0..=capacity.min(args.max_seq_len.into())).contains(&i128::from(*len));
        assert!(lens.len() == requests && lens.iter().all(fits), "{lens:?}");
    }
    if let Some(starts) = &args.host.query_start_loc {
        assert!(starts.len() == requests + 1 && starts.is_sorted() && starts[0] == 0, "{starts:?}");
        assert_eq!(starts[requests] as u64, args.q.shape[0], "{starts:?}");
    }
    if let (Some(table), Some(lens)) = (&args.host.block_table, &args.host.seq_lens) {
        for (row, len) in table.chunks(width.max(1)).zip(lens) {
            let used = (*len as u64).div_ceil(k[1]) as usize;
            assert!(row[..used].iter().all(|page| (0..k[0] as i64).contains(&i64::from(*page))), "{table:?}");
        }
    }
}

/// What an accepted store must be like: every tensor in its allocation, aligned, and slots of the cache, each at most once.
///
/// # Panics
/// If it is not.
pub fn store_is_sound(args: &StoreArgs) {
    let mut call = args.clone();
    for (name, access) in STORE_TENSORS {
        access(&mut call).into_iter().for_each(|tensor| lies_inside(name, tensor));
    }
    is_distinct("k_cache", &args.cache.k);
    is_distinct("v_cache", &args.cache.v);
    let cache = &args.cache.k.shape;
    let slots = args.host_slot_mapping.iter().flatten().filter(|slot| **slot != -1);
    let written: Vec<i64> = slots.copied().collect();
    let capacity = i128::from(cache[0]) * i128::from(cache[1]);
    assert!(written.iter().all(|slot| (0..capacity).contains(&i128::from(*slot))), "{written:?}");
    assert_eq!(written.iter().collect::<HashSet<_>>().len(), written.len(), "{written:?}");
    assert!(args.slot_mapping.shape[0] <= args.k.shape[0]);
}
