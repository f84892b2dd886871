//! `reshape_and_cache` on the checked device: every byte of the cache, written or not, is what the definition says.

mod support;

use kernels::args::{PagedCache, Scale, StoreArgs};
use kernels::device::DeviceRef;
use kernels::store::reshape_and_cache;
use kernels::tensor::{Allocation, DType, DeviceTensor};
use rstest::rstest;
use support::{Random, STREAM, checked, decode_all, definition, download, encode_all, upload, upload_f32};

const PAGES: usize = 2;
const PAGE_SIZE: usize = 4;
const HEADS: usize = 2;
/// What every byte of the cache holds before.
const BEFORE: u8 = 0x5a;

/// Where one side's rows lie in the cache, in elements.
#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    page: usize,
    slot: usize,
    head: usize,
}

/// One side of a store: source rows `[token][head][dim]` in `source` elements from each other, and the place in the cache.
struct Side {
    rows: Vec<f64>,
    dim: usize,
    row_stride: usize,
    place: Place,
    scale: Vec<f32>,
}

impl Side {
    fn new(random: &mut Random, dtype: DType, tokens: usize, dim: usize, scale: &[f32]) -> Self {
        let values = (0..tokens * HEADS * dim).map(|_| random.value() * 3.0);
        let rows = decode_all(dtype, &encode_all(dtype, values));
        let place = Place { offset: 0, page: PAGE_SIZE * HEADS * dim, slot: HEADS * dim, head: dim };
        Self { rows, dim, row_stride: dim, place, scale: scale.to_vec() }
    }

    fn source(&self, device: &DeviceRef, dtype: DType) -> DeviceTensor {
        let heads = self.rows.chunks(self.dim);
        let padded =
            heads.flat_map(|row| row.iter().copied().chain((row.len()..self.row_stride).map(|_| f64::NAN)));
        let bytes = encode_all(dtype, padded);
        let tokens = (self.rows.len() / self.dim / HEADS) as u64;
        let strides = [HEADS * self.row_stride, self.row_stride, 1].map(|n| n as i64);
        DeviceTensor::strided(
            upload(device, &bytes),
            0,
            dtype,
            &[tokens, HEADS as u64, self.dim as u64],
            &strides,
        )
    }

    fn cache(&self, allocation: Allocation, dtype: DType) -> DeviceTensor {
        let shape = [PAGES, PAGE_SIZE, HEADS, self.dim].map(|n| n as u64);
        let Place { offset, page, slot, head } = self.place;
        let strides = [page, slot, head, 1].map(|n| n as i64);
        DeviceTensor::strided(allocation, offset as u64 * dtype.size_bytes(), dtype, &shape, &strides)
    }

    fn scale(&self, device: &DeviceRef) -> Scale {
        match self.scale[..] {
            [one] => Scale::PerTensor(one),
            _ => Scale::PerHead(upload_f32(device, &[HEADS as u64], &self.scale)),
        }
    }

    /// Writes the codes where they belong.
    fn expect(&self, dtype: DType, slots: &[i64], cache: &mut [u8]) {
        let size = dtype.size_bytes() as usize;
        for (token, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
            let (page, slot) = (*slot as usize / PAGE_SIZE, *slot as usize % PAGE_SIZE);
            for head in 0..HEADS {
                let scale = self.scale[if self.scale.len() == 1 { 0 } else { head }];
                for dim in 0..self.dim {
                    let x = self.rows[(token * HEADS + head) * self.dim + dim] as f32;
                    let code = definition(dtype).encode(f64::from(x / scale));
                    let place = self.place;
                    let at = place.offset + page * place.page + slot * place.slot + head * place.head + dim;
                    cache[at * size..][..size].copy_from_slice(&code.to_le_bytes()[..size]);
                }
            }
        }
    }
}

const SLOTS: [i64; 6] = [0, 5, -1, 7, 2, 1];

fn slot_tensor(device: &DeviceRef, slots: &[i64]) -> DeviceTensor {
    let bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
    DeviceTensor::contiguous(upload(device, &bytes), DType::I64, &[slots.len() as u64])
}

/// Stores both sides into one allocation of `elements` and compares all of its bytes.
#[track_caller]
fn check(source: DType, cache: DType, sides: [&Side; 2], elements: usize, slots: &[i64]) {
    let device = checked();
    let mut want = vec![BEFORE; elements * cache.size_bytes() as usize];
    let memory = upload(&device, &want);
    let args = StoreArgs {
        k: sides[0].source(&device, source),
        v: sides[1].source(&device, source),
        cache: PagedCache {
            k: sides[0].cache(memory, cache),
            v: sides[1].cache(memory, cache),
            k_scale: sides[0].scale(&device),
            v_scale: sides[1].scale(&device),
        },
        slot_mapping: slot_tensor(&device, slots),
        host_slot_mapping: Some(slots.to_vec()),
    };
    reshape_and_cache(&device, STREAM, &args).expect("a launch");
    device.synchronize(STREAM).expect("no findings");
    for side in sides {
        side.expect(cache, slots, &mut want);
    }
    let got = download(&device, memory);
    let differing: Vec<usize> = (0..got.len()).filter(|at| got[*at] != want[*at]).collect();
    assert!(
        differing.is_empty(),
        "{} bytes differ, first at {:?}",
        differing.len(),
        &differing[..differing.len().min(8)]
    );
}

/// K then V, each dense, with a scale per tensor that only fp8 has.
fn dense(source: DType, cache: DType, dims: [usize; 2]) -> ([Side; 2], usize) {
    let mut random = Random(11);
    let scales = if cache.is_fp8() { [0.004, 0.011] } else { [1.0, 1.0] };
    let [k, mut v] = [0, 1].map(|i| Side::new(&mut random, source, SLOTS.len(), dims[i], &[scales[i]]));
    v.place.offset = PAGES * k.place.page;
    let elements = v.place.offset + PAGES * v.place.page;
    ([k, v], elements)
}

#[rstest]
fn every_pair_of_formats(
    #[values(DType::F32, DType::Bf16, DType::F16)] source: DType,
    #[values(DType::F32, DType::Bf16, DType::F16, DType::E4m3, DType::E5m2)] cache: DType,
) {
    let ([k, v], elements) = dense(source, cache, [16, 16]);
    check(source, cache, [&k, &v], elements, &SLOTS);
}

#[rstest]
fn head_dims_of_every_kind(
    #[values(1, 3, 8, 20, 256)] dk: usize,
    #[values(5, 12, 64)] dv: usize,
    #[values(DType::Bf16, DType::E4m3)] cache: DType,
) {
    let ([k, v], elements) = dense(DType::F32, cache, [dk, dv]);
    check(DType::F32, cache, [&k, &v], elements, &SLOTS);
}

#[rstest]
fn the_strided_view_of_a_combined_cache(#[values(DType::Bf16, DType::E4m3)] cache: DType) {
    let ([mut k, mut v], elements) = dense(DType::Bf16, cache, [16, 16]);
    let page = k.place.page;
    (k.place.page, v.place.page, v.place.offset) = (2 * page, 2 * page, page);
    check(DType::Bf16, cache, [&k, &v], elements, &SLOTS);
}

#[rstest]
fn heads_before_slots_with_padding(#[values(DType::F16, DType::E5m2)] cache: DType) {
    let ([mut k, mut v], _) = dense(DType::F16, cache, [16, 16]);
    for (side, offset) in [(&mut k, 3), (&mut v, 1000)] {
        let (slot, head) = (side.dim + 1, PAGE_SIZE * (side.dim + 1) + 5);
        side.place = Place { offset, page: HEADS * head + 7, slot, head };
    }
    check(DType::F16, cache, [&k, &v], 2000, &SLOTS);
}

#[test]
fn padded_source_rows() {
    let ([mut k, mut v], elements) = dense(DType::Bf16, DType::E4m3, [16, 16]);
    (k.row_stride, v.row_stride) = (24, 17);
    check(DType::Bf16, DType::E4m3, [&k, &v], elements, &SLOTS);
}

#[test]
fn a_scale_per_head() {
    let ([mut k, mut v], elements) = dense(DType::F32, DType::E4m3, [16, 16]);
    (k.scale, v.scale) = (vec![0.004, 0.5], vec![2.0, 0.011]);
    check(DType::F32, DType::E4m3, [&k, &v], elements, &SLOTS);
}

#[test]
fn fewer_slots_than_rows() {
    let ([k, v], elements) = dense(DType::Bf16, DType::E4m3, [16, 16]);
    check(DType::Bf16, DType::E4m3, [&k, &v], elements, &SLOTS[..4]);
}

#[rstest]
fn values_at_the_edges_of_fp8(#[values(DType::E4m3, DType::E5m2)] cache: DType) {
    let ([mut k, mut v], elements) = dense(DType::F32, cache, [16, 16]);
    let edges = [
        448.0,
        449.0,
        464.0,
        465.0,
        57344.0,
        61439.0,
        61440.0,
        65536.0,
        f64::INFINITY,
        f64::NAN,
        0.0,
        2f64.powi(-10),
        2f64.powi(-9),
        2f64.powi(-17),
        2f64.powi(-16),
        1.0625,
    ];
    for side in [&mut k, &mut v] {
        side.scale = vec![1.0];
        side.rows.iter_mut().zip(edges.iter().cycle()).enumerate().for_each(|(i, (x, edge))| {
            *x = if i / 16 % 2 == 0 { *edge } else { -*edge };
        });
    }
    check(DType::F32, cache, [&k, &v], elements, &SLOTS);
}

#[rstest]
fn the_scale_divides_and_is_not_multiplied_by_its_reciprocal(#[values(16, 17)] row_stride: usize) {
    // Values at which the two differ by a code, found by search, so that the test bites whatever the formats.
    let scale = 0.011_f32;
    let e4m3 = definition(DType::E4m3);
    let encode = |x: f32| e4m3.encode(f64::from(x));
    let mut random = Random(5);
    let mut found = Vec::new();
    while found.len() < SLOTS.len() * HEADS * 16 {
        // Near the midpoint of two codes, in steps of one last place.
        let code = random.below(0x7d) as u32;
        let middle = ((e4m3.decode(code) + e4m3.decode(code + 1)) / 2.0) as f32 * scale;
        for step in -2..=2 {
            let x = f32::from_bits((middle.to_bits() as i32 + step) as u32);
            if encode(x / scale) != encode(x * (1.0 / scale)) {
                found.push(f64::from(x));
            }
        }
    }
    let ([mut k, mut v], elements) = dense(DType::F32, DType::E4m3, [16, 16]);
    for side in [&mut k, &mut v] {
        side.row_stride = row_stride;
        side.scale = vec![scale];
        side.rows.copy_from_slice(&found[..SLOTS.len() * HEADS * 16]);
    }
    check(DType::F32, DType::E4m3, [&k, &v], elements, &SLOTS);
}
