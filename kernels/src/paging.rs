//! What kernels need to find a key row in a paged cache, in 32 bits: which page holds it, and where its row lies.

use num_integer::gcd;

use crate::error::ArgumentError;
use crate::tensor::DeviceTensor;

/// `PageDivider` of `pages.cuh`: division of a key's position by the page size.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageDivider {
    multiplier: u32,
    shift: i32,
}

impl PageDivider {
    /// The divider of a page size that validation has found to be 1 to `i32::MAX`.
    pub(crate) fn of(page_size: u64) -> Self {
        let shift = page_size.next_power_of_two().trailing_zeros();
        let multiplier = (1 << (31 + shift)) / page_size + 1;
        Self { multiplier: narrow(multiplier), shift: shift.cast_signed() }
    }
}

/// `RowSteps` of `packed.cuh`: the strides of a cache `[num_pages, page_size, num_kv_heads, head_dim]` in steps of the
/// largest number of bytes that divides them all, rows of a contiguous cache being one step apart. The strides of axes with
/// one entry, which nothing steps over, are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowSteps {
    bytes: u32,
    page: u32,
    slot: u32,
    head: u32,
}

impl RowSteps {
    /// Of a launch whose kernel does not read them.
    pub(crate) const UNUSED: Self = Self { bytes: 0, page: 0, slot: 0, head: 0 };

    /// The steps of a validated cache.
    ///
    /// # Errors
    /// When its last row is 2^32 steps or more from its first: 64 GiB at the least, for rows are aligned to 16 bytes.
    pub(crate) fn of(name: &str, cache: &DeviceTensor) -> Result<Self, ArgumentError> {
        let axes = [0, 1, 2].map(|axis| {
            let stride = cache.strides[axis].unsigned_abs() * cache.dtype.size_bytes();
            (if cache.shape[axis] > 1 { stride } else { 0 }, cache.shape[axis].saturating_sub(1))
        });
        let divisor = axes.iter().fold(0, |divisor, &(stride, _)| gcd(divisor, stride));
        // A multiplier of 32 bits; any divisor of a divisor serves as well.
        let bytes = match u32::try_from(divisor) {
            Ok(divisor) => u64::from(divisor.max(1)),
            Err(_) => 1 << divisor.trailing_zeros().min(31),
        };
        let last = axes.iter().fold(0_u64, |last, &(stride, steps)| {
            last.saturating_add((stride / bytes).saturating_mul(steps))
        });
        if last > u64::from(u32::MAX) {
            let value = format!("{:?} for {:?}", cache.strides, cache.shape);
            let accepted = format!("rows within 2^32 times the {bytes} bytes that divide all strides");
            return Err(ArgumentError::new(format!("{name}.strides"), value, accepted));
        }
        let [page, slot, head] = axes.map(|(stride, _)| narrow(stride / bytes));
        Ok(Self { bytes: narrow(bytes), page, slot, head })
    }
}

/// A number that has been bounded.
fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("no multiplier and no stride that is checked with its span exceeds 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DevicePtr;
    use crate::tensor::{Allocation, DType};

    /// `page_of_key` of `pages.cuh`.
    fn page_of_key(pages: PageDivider, key: u32) -> u32 {
        ((u64::from(key << 1) * u64::from(pages.multiplier)) >> 32) as u32 >> pages.shift
    }

    #[test]
    fn keys_beside_every_page_boundary_divide_as_they_should() {
        let powers = (0..31).flat_map(|l| [(1_u32 << l) - 1, 1 << l, (1 << l) + 1]);
        for page_size in
            (1..3000).chain(powers).chain([i32::MAX as u32 - 1, i32::MAX as u32]).filter(|&d| d > 0)
        {
            let pages = PageDivider::of(u64::from(page_size));
            let last = i32::MAX as u32 / page_size;
            let boundaries =
                [0, 1, 2, last / 3, last / 2, last - last.min(1), last].map(|page| page * page_size);
            let keys =
                boundaries.into_iter().flat_map(|key| [key.saturating_sub(1), key, key.saturating_add(1)]);
            for key in keys.chain([i32::MAX as u32]).filter(|&key| key <= i32::MAX as u32) {
                assert_eq!(page_of_key(pages, key), key / page_size, "{key} / {page_size}: {pages:?}");
            }
        }
    }

    fn cache(shape: [u64; 4], strides: [i64; 4], dtype: DType) -> DeviceTensor {
        let allocation = Allocation { ptr: DevicePtr(1 << 20), bytes: u64::MAX >> 1 };
        DeviceTensor { strides: strides.to_vec(), ..DeviceTensor::contiguous(allocation, dtype, &shape) }
    }

    #[test]
    fn the_rows_of_a_contiguous_cache_are_one_step_apart() {
        let steps = RowSteps::of("k_cache", &cache([7, 16, 3, 80], [3840, 240, 80, 1], DType::Bf16)).unwrap();
        assert_eq!(steps, RowSteps { bytes: 160, page: 48, slot: 3, head: 1 });
    }

    #[test]
    fn padded_strides_are_counted_in_what_divides_them_all() {
        let steps = RowSteps::of("k_cache", &cache([7, 16, 3, 64], [1280, 72, 24, 1], DType::Bf16)).unwrap();
        assert_eq!(steps, RowSteps { bytes: 16, page: 160, slot: 9, head: 3 });
    }

    #[test]
    fn an_axis_with_one_entry_does_not_count() {
        let steps = RowSteps::of("k_cache", &cache([1, 16, 1, 64], [7, 64, 3, 1], DType::E4m3)).unwrap();
        assert_eq!(steps, RowSteps { bytes: 64, page: 0, slot: 1, head: 0 });
        let one_row = RowSteps::of("k_cache", &cache([1, 1, 1, 64], [64, 64, 64, 1], DType::E4m3)).unwrap();
        assert_eq!(one_row, RowSteps { bytes: 1, page: 0, slot: 0, head: 0 });
    }

    #[test]
    fn steps_of_more_than_32_bits_are_made_smaller() {
        // Two slots 5 * 2^32 bytes apart.
        let far = cache([1, 2, 1, 64], [1, 5 << 31, 1, 1], DType::Bf16);
        let steps = RowSteps::of("k_cache", &far).unwrap();
        assert_eq!(steps, RowSteps { bytes: 1 << 31, page: 0, slot: 10, head: 0 });
    }

    #[test]
    fn the_last_row_may_be_the_last_step_and_no_further() {
        let pages = |pages| cache([pages, 1, 1, 8], [8, 8, 8, 1], DType::Bf16);
        assert!(RowSteps::of("v_cache", &pages(1 << 32)).is_ok());
        let error = RowSteps::of("v_cache", &pages((1 << 32) + 1)).unwrap_err().to_string();
        assert!(error.contains("v_cache.strides") && error.contains("4294967297"), "{error}");
        assert!(error.contains("2^32 times the 16 bytes"), "{error}");
        // Each axis is near enough alone.
        let both = cache([1 << 31, (1 << 31) + 2, 1, 8], [8, 8, 8, 1], DType::Bf16);
        assert!(RowSteps::of("v_cache", &both).is_err());
    }
}
