//! Global memory: one reserved address range, cut into units, so that an address leads to its allocation in one step.
//!
//! An allocation ends flush (to 16 bytes) against an inaccessible page and is preceded by inaccessible pages;
//! freed memory becomes inaccessible, and its addresses are used again only when the range has been used up.

use std::collections::VecDeque;
use std::io;

use super::pages::{PAGE, Reservation, round_up};
use super::pattern::{self, Fill, Pattern};

/// Addresses are handed out in units of this many bytes.
const UNIT: usize = 64 << 10;
const UNIT_SHIFT: u32 = UNIT.trailing_zeros();
/// Length of the reserved range; the sum of live allocations must fit.
const RANGE: usize = 1 << 38;
/// Alignment of an allocation's start; the driver promises more, kernels must not need it.
const ALIGN: usize = 16;

/// One allocation, live or freed.
#[derive(Clone, Debug)]
pub(super) struct Allocation {
    pub start: usize,
    /// Bytes asked for.
    pub bytes: usize,
    pub live: bool,
    /// Its release is queued on a stream.
    pub free_queued: bool,
    units: (usize, usize),
}

impl Allocation {
    /// One past the last byte.
    pub fn end(&self) -> usize {
        self.start + self.bytes
    }

    fn first_page(&self) -> usize {
        self.start & !(PAGE - 1)
    }

    /// End of the mapped pages: the start of the guard page.
    fn mapped_end(&self) -> usize {
        self.start + round_up(self.bytes, ALIGN)
    }
}

/// The allocations of one device.
pub(super) struct Memory {
    range: Reservation,
    /// Allocation number plus one of every unit; zero where nothing ever was.
    owner: Reservation,
    allocations: Vec<Allocation>,
    vacant: Vec<usize>,
    next_unit: usize,
    freed: VecDeque<usize>,
    pattern: Pattern,
}

impl Memory {
    /// An empty memory whose fresh bytes hold `fill`.
    pub fn new(fill: Fill) -> io::Result<Self> {
        let owner_bytes = (RANGE / UNIT) * size_of::<u32>();
        let owner = Reservation::new(owner_bytes, PAGE)?;
        owner.open(owner.base(), owner_bytes)?;
        Ok(Self {
            range: Reservation::new(RANGE, UNIT)?,
            owner,
            allocations: Vec::new(),
            vacant: Vec::new(),
            next_unit: 0,
            freed: VecDeque::new(),
            pattern: Pattern::new(fill),
        })
    }

    /// First address and length of the range that holds every allocation.
    pub fn range(&self) -> (usize, usize) {
        (self.range.base(), RANGE)
    }

    /// Maps a fresh allocation; `None` if the address range has no room left.
    pub fn allocate(&mut self, bytes: usize) -> io::Result<Option<usize>> {
        if bytes > RANGE - UNIT {
            return Ok(None);
        }
        // At least the first page and the guard page.
        let units = round_up(round_up(bytes, ALIGN) + 2 * PAGE, UNIT) / UNIT;
        let Some(first) = self.take_units(units) else { return Ok(None) };
        let guard = self.range.base() + (first + units) * UNIT - PAGE;
        let allocation = Allocation {
            start: guard - round_up(bytes, ALIGN),
            bytes,
            live: true,
            free_queued: false,
            units: (first, first + units),
        };
        let page = allocation.first_page();
        self.pattern.map(&self.range, page, guard - page)?;
        self.write_canaries(&allocation);
        let start = allocation.start;
        let index = match self.vacant.pop() {
            Some(index) => {
                self.allocations[index] = allocation;
                index
            }
            None => {
                self.allocations.push(allocation);
                self.allocations.len() - 1
            }
        };
        self.set_owner(first, units, index as u32 + 1);
        Ok(Some(start))
    }

    /// Makes a live allocation inaccessible.
    pub fn free(&mut self, start: usize) -> io::Result<()> {
        let index = self.index_of(start).expect("the device frees only what it allocated");
        let allocation = &mut self.allocations[index];
        allocation.live = false;
        let (page, end) = (allocation.first_page(), allocation.mapped_end());
        self.freed.push_back(index);
        self.range.close(page, end - page)
    }

    /// The allocation whose units contain an address: the one it lies in, or the one it just misses.
    #[inline]
    pub fn find(&self, address: usize) -> Option<&Allocation> {
        self.index_of(address).map(|index| &self.allocations[index])
    }

    /// As [`Self::find`], to change it.
    pub fn find_mut(&mut self, address: usize) -> Option<&mut Allocation> {
        self.index_of(address).map(|index| &mut self.allocations[index])
    }

    /// Bytes of the pages under live allocations.
    pub fn mapped_bytes(&self) -> u64 {
        self.allocations.iter().filter(|a| a.live).map(|a| (a.mapped_end() - a.first_page()) as u64).sum()
    }

    /// The nearest live allocation below and above an address that belongs to none.
    pub fn neighbours(&self, address: usize) -> (Option<&Allocation>, Option<&Allocation>) {
        let live = || self.allocations.iter().filter(|a| a.live);
        (
            live().filter(|a| a.end() <= address).max_by_key(|a| a.end()),
            live().filter(|a| a.start > address).min_by_key(|a| a.start),
        )
    }

    /// Live allocations with bytes around them that changed, and the address of the first such byte.
    pub fn broken_canaries(&self) -> Vec<(Allocation, usize)> {
        let live = self.allocations.iter().filter(|a| a.live);
        live.filter_map(|a| self.broken_canary(a).map(|at| (a.clone(), at))).collect()
    }

    /// Writes an allocation's canaries again.
    pub fn write_canaries(&self, allocation: &Allocation) {
        for (from, to) in canary_ranges(allocation) {
            // SAFETY: the pages around a live allocation's bytes are mapped.
            unsafe { pattern::write_canary(from, to) };
        }
    }

    fn broken_canary(&self, allocation: &Allocation) -> Option<usize> {
        // SAFETY: as above.
        canary_ranges(allocation)
            .into_iter()
            .find_map(|(from, to)| unsafe { pattern::broken_canary(from, to) })
    }

    #[inline]
    fn index_of(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.range.base());
        if offset >= RANGE {
            return None;
        }
        // SAFETY: the owner table has an entry for every unit of the range.
        let owner = unsafe { *(self.owner.base() as *const u32).add(offset >> UNIT_SHIFT) };
        (owner as usize).checked_sub(1)
    }

    fn set_owner(&mut self, first: usize, units: usize, owner: u32) {
        // SAFETY: as above.
        let table = unsafe { std::slice::from_raw_parts_mut(self.owner.base() as *mut u32, RANGE / UNIT) };
        table[first..first + units].fill(owner);
    }

    /// Fresh addresses while there are any, then those of the allocations freed longest ago.
    fn take_units(&mut self, units: usize) -> Option<usize> {
        if self.next_unit + units <= RANGE / UNIT {
            self.next_unit += units;
            return Some(self.next_unit - units);
        }
        let fits = |i: &usize| {
            let (from, to) = self.allocations[*i].units;
            to - from >= units
        };
        let position = self.freed.iter().position(fits)?;
        let index = self.freed.remove(position)?;
        let (from, to) = self.allocations[index].units;
        self.set_owner(from, to - from, 0);
        if to - from > units {
            // The tail stays available under the old number.
            self.allocations[index].units = (from + units, to);
            self.set_owner(from + units, to - from - units, index as u32 + 1);
            self.freed.push_front(index);
        } else {
            self.vacant.push(index);
        }
        Some(from)
    }
}

/// Mapped bytes before and after an allocation.
fn canary_ranges(allocation: &Allocation) -> [(usize, usize); 2] {
    [(allocation.first_page(), allocation.start), (allocation.end(), allocation.mapped_end())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_its_allocation() {
        let mut memory = Memory::new(Fill::Nan).unwrap();
        let a = memory.allocate(100).unwrap().unwrap();
        let b = memory.allocate(UNIT * 3 + 5).unwrap().unwrap();
        assert_eq!(a % ALIGN, 0);
        assert_eq!(memory.find(a).unwrap().start, a);
        assert_eq!(memory.find(a + 99).unwrap().start, a);
        assert_eq!(memory.find(a + 200).unwrap().start, a, "just past the end");
        assert_eq!(memory.find(b + UNIT).unwrap().start, b);
        assert!(memory.find(a - 2 * UNIT).is_none());
        assert_eq!((a + round_up(100, ALIGN)) % PAGE, 0, "ends at a page");
    }

    #[test]
    fn fresh_bytes_hold_the_pattern_and_canaries_notice_a_write() {
        let mut memory = Memory::new(Fill::Nan).unwrap();
        let a = memory.allocate(100).unwrap().unwrap();
        // SAFETY: 112 bytes from `a` are mapped.
        unsafe {
            assert_eq!(*(a as *const u8).add(99), 0xff);
            assert!(memory.broken_canaries().is_empty());
            *(a as *mut u8).add(103) = 3;
            assert_eq!(memory.broken_canaries()[0].1, a + 103);
            memory.write_canaries(&memory.find(a).unwrap().clone());
            assert!(memory.broken_canaries().is_empty());
            *(a as *mut u8).sub(1) = 3;
            assert_eq!(memory.broken_canaries()[0].1, a - 1);
        }
    }

    #[test]
    fn a_large_allocation_holds_the_pattern_without_being_filled() {
        let mut memory = Memory::new(Fill::Large).unwrap();
        let bytes = (1_usize << 33) + 24;
        let a = memory.allocate(bytes).unwrap().unwrap();
        for offset in [0, 1 << 20, (1 << 32) + 1, bytes - 1] {
            // SAFETY: inside the allocation.
            assert_eq!(unsafe { *(a as *const u8).add(offset) }, 0x71);
        }
        memory.free(a).unwrap();
        assert!(!memory.find(a).unwrap().live);
    }

    #[test]
    fn addresses_are_used_again_only_when_the_range_is_used_up() {
        let mut memory = Memory::new(Fill::Nan).unwrap();
        let big = RANGE / 4 - UNIT;
        let first = memory.allocate(big).unwrap().unwrap();
        memory.free(first).unwrap();
        let mut starts = vec![];
        for _ in 0..3 {
            starts.push(memory.allocate(big).unwrap().unwrap());
        }
        assert!(!starts.contains(&first));
        let small = memory.allocate(10 * UNIT).unwrap().unwrap();
        let again = memory.allocate(big / 2).unwrap().unwrap();
        assert_eq!(memory.find(again).unwrap().start, again);
        assert!(again < starts[0] && small != again);
        assert!(memory.allocate(big).unwrap().is_none());
    }
}
