//! Where pages lie in the pool, and the block table that says so.

use rand_chacha::ChaCha8Rng;

use super::values::below;
use crate::case::{Case, Paging};

/// Entry of the block table beyond a request's last page: far outside every pool, so that using it shows.
pub const TABLE_POISON: i32 = 0x7fff_fff7;

/// The physical pages of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageMap {
    /// Pages of the pool.
    pub num_pages: usize,
    /// Columns of the block table.
    pub width: usize,
    /// Slots of a page.
    pub page_size: usize,
    /// Physical pages of each request, in logical order.
    pub requests: Vec<Vec<usize>>,
}

impl PageMap {
    pub(super) fn place(case: &Case, rng: &mut ChaCha8Rng) -> Self {
        let page_size = case.problem.page_size.max(1);
        let needs: Vec<usize> = case.problem.kv_lens.iter().map(|kv| kv.div_ceil(page_size)).collect();
        let total: usize = needs.iter().sum();
        let (num_pages, mut free) = match case.paging {
            Paging::Identity => (total.max(1), (0..total).collect::<Vec<_>>()),
            Paging::Descending => (total + 2, (2..total + 2).rev().collect()),
            Paging::Shuffled => {
                // Page 0 belongs to nobody and some pages stay unused, so no request can have the identity table.
                let num_pages = total + 2 + total / 8;
                (num_pages, shuffled(1..num_pages, rng))
            }
        };
        let width = needs.iter().max().copied().unwrap_or(0) + 1 + below(rng, 3);
        let mut next = free.drain(..);
        let requests = needs.iter().map(|n| next.by_ref().take(*n).collect()).collect();
        Self { num_pages, width, page_size, requests }
    }

    /// Physical page and slot of one key of a request.
    #[must_use]
    pub fn locate(&self, request: usize, position: usize) -> (usize, usize) {
        (self.requests[request][position / self.page_size], position % self.page_size)
    }

    /// The block table `[num_requests, width]`; entries past a request's pages are poison.
    #[must_use]
    pub fn block_table(&self) -> Vec<i32> {
        let mut table = vec![TABLE_POISON; self.requests.len() * self.width];
        for (row, pages) in table.chunks_exact_mut(self.width).zip(&self.requests) {
            for (entry, page) in row.iter_mut().zip(pages) {
                *entry = i32::try_from(*page).expect("a pool held in memory has fewer than 2^31 pages");
            }
        }
        table
    }
}

/// Fisher-Yates.
fn shuffled(pages: std::ops::Range<usize>, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut pages: Vec<usize> = pages.collect();
    for last in (1..pages.len()).rev() {
        pages.swap(last, below(rng, last + 1));
    }
    pages
}
