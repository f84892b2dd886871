//! Pages that lie beyond what 32 bits address, and page numbers of every magnitude, are read and written where they are.

mod support;

use kernels::args::{AttentionArgs, BatchMetadata, PagedCache, Scale, StoreArgs};
use kernels::arm::Arm;
use kernels::device::DeviceRef;
use kernels::launch::paged_attention;
use kernels::simt::Mode;
use kernels::store::reshape_and_cache;
use kernels::tensor::{Allocation, DType, DeviceTensor};
use rstest::rstest;
use support::{STREAM, decode_all, device_as, download, encode_all, upload, upload_f32, upload_i32};

const DIM: u64 = 8;

/// A cache of e4m3 with one head: in every slot a K row, then a V row.
struct Far {
    device: DeviceRef,
    memory: Allocation,
    pages: u64,
    page_size: u64,
    slot_stride: u64,
}

impl Far {
    fn new(pages: u64, page_size: u64, slot_stride: u64) -> Self {
        let device = device_as(|options| options.mode = Mode::Fast);
        let bytes = (pages * page_size - 1) * slot_stride + 2 * DIM;
        let ptr = device.alloc(bytes, STREAM).expect("address space for the pool");
        Self { device, memory: Allocation { ptr, bytes }, pages, page_size, slot_stride }
    }

    fn cache(&self) -> PagedCache {
        let side = |offset| {
            let shape = [self.pages, self.page_size, 1, DIM];
            let strides =
                [(self.page_size * self.slot_stride) as i64, self.slot_stride as i64, DIM as i64, 1];
            DeviceTensor::strided(self.memory, offset, DType::E4m3, &shape, &strides)
        };
        PagedCache { k_scale: Scale::ONE, v_scale: Scale::ONE, k: side(0), v: side(DIM) }
    }

    /// Fills one slot's K with `k` and its V with `v`.
    fn write(&self, slot: u64, k: f64, v: f64) {
        let row = encode_all(DType::E4m3, [[k; DIM as usize], [v; DIM as usize]].concat());
        self.device.copy_to_device(self.memory.ptr.offset(slot * self.slot_stride), &row, STREAM).unwrap();
    }

    fn read(&self, slot: u64) -> Vec<f64> {
        let mut row = [0; 2 * DIM as usize];
        self.device.copy_to_host(&mut row, self.memory.ptr.offset(slot * self.slot_stride), STREAM).unwrap();
        decode_all(DType::E4m3, &row)
    }

    /// The mean of V over two keys of these pages: q is zero.
    fn mean(&self, pages: [u64; 2]) -> Vec<f64> {
        let device = &self.device;
        let q = upload_f32(device, &[1, 1, DIM], &[0.0; DIM as usize]);
        let out = upload_f32(device, &[1, 1, DIM], &[f32::NAN; DIM as usize]);
        let metadata = BatchMetadata {
            block_table: upload_i32(device, &[1, 2], &pages.map(|page| page as i32)),
            seq_lens: upload_i32(device, &[1], &[2]),
            query_start_loc: upload_i32(device, &[2], &[0, 1]),
            max_query_len: 1,
            max_seq_len: 2,
        };
        let args = AttentionArgs::causal(q, self.cache(), out.clone(), metadata);
        paged_attention(device, STREAM, Arm::Scalar, &args).expect("a launch");
        decode_all(DType::F32, &download(device, out.allocation))
    }

    /// Stores one token at a slot.
    fn store(&self, slot: u64, k: f32, v: f32) {
        let device = &self.device;
        let slots = upload(device, &(slot as i64).to_le_bytes());
        let args = StoreArgs {
            k: upload_f32(device, &[1, 1, DIM], &[k; DIM as usize]),
            v: upload_f32(device, &[1, 1, DIM], &[v; DIM as usize]),
            cache: self.cache(),
            slot_mapping: DeviceTensor::contiguous(slots, DType::I64, &[1]),
            host_slot_mapping: Some(vec![slot as i64]),
        };
        reshape_and_cache(device, STREAM, &args).expect("a launch");
    }
}

#[test]
fn a_pool_of_more_than_2_to_the_32_elements() {
    // Page 1 ends past 2^31, page 3 past 2^32: truncated offsets land in page 0 or before it.
    let far = Far::new(4, 1, (1 << 31) - 64);
    for page in 0..4 {
        far.write(page, 1.0, 2.0 + page as f64);
    }
    assert_eq!(far.mean([1, 3]), vec![4.0; DIM as usize]);
    assert_eq!(far.mean([2, 0]), vec![3.0; DIM as usize]);
    far.store(3, -1.0, 6.5);
    assert_eq!(far.read(3), [[-1.0; DIM as usize], [6.5; DIM as usize]].concat());
    assert_eq!(far.mean([3, 3]), vec![6.5; DIM as usize]);
}

#[test]
fn a_page_of_more_than_2_to_the_31_elements() {
    let far = Far::new(1, 2, (1 << 31) + 64);
    far.write(0, 1.0, 2.0);
    far.write(1, 1.0, 5.0);
    assert_eq!(far.mean([0, 0]), vec![3.5; DIM as usize]);
    far.store(1, -1.0, 6.0);
    assert_eq!(far.read(1), [[-1.0; DIM as usize], [6.0; DIM as usize]].concat());
    assert_eq!(far.mean([0, 0]), vec![4.0; DIM as usize]);
}

#[rstest]
fn page_numbers_of_every_magnitude(#[values(255, 256, 32_768, 65_535, 65_536, 1 << 24)] page: u64) {
    let far = Far::new(page + 1, 1, 2 * DIM);
    far.write(0, 1.0, 1.0);
    far.write(page & 0xffff, 1.0, 2.0);
    far.store(page, 1.0, 4.0);
    assert_eq!(far.mean([page, page]), vec![4.0; DIM as usize]);
}
