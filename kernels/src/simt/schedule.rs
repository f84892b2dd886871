//! The order in which blocks and lanes run.

/// Order of blocks and lanes of a launch. A result that depends on it is a fault of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// Lowest index first.
    #[default]
    Forward,
    /// Highest index first.
    Reverse,
    /// An order drawn from the seed, with lanes preempted between accesses in checked mode.
    Random(u64),
}

/// Draws the orders of one launch.
pub(super) struct Order {
    schedule: Schedule,
    state: u64,
}

impl Order {
    /// The order for a launch; equal arguments give equal orders.
    pub fn new(schedule: Schedule, launch: u64) -> Self {
        let seed = match schedule {
            Schedule::Random(seed) => seed,
            _ => 0,
        };
        Self { schedule, state: seed ^ launch.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Puts lanes that become ready at the same moment into order.
    pub fn arrange(&mut self, lanes: &mut [u16]) {
        match self.schedule {
            Schedule::Forward => {}
            Schedule::Reverse => lanes.reverse(),
            Schedule::Random(_) => {
                for i in (1..lanes.len()).rev() {
                    let j = self.below(i as u64 + 1) as usize;
                    lanes.swap(i, j);
                }
            }
        }
    }

    /// Whether lanes released together go before the ones already waiting to run.
    pub fn released_first(&mut self) -> bool {
        match self.schedule {
            Schedule::Random(_) => self.next() & 1 == 0,
            _ => true,
        }
    }

    /// Accesses until the running lane is preempted. Outside random schedules that is only for lanes that spin until
    /// another lane has done something.
    pub fn until_preemption(&mut self) -> u32 {
        const SPIN: u32 = 1 << 16;
        match self.schedule {
            Schedule::Random(_) => 1 + self.below(64) as u32,
            _ => SPIN,
        }
    }

    /// The order of `blocks` blocks, at least one.
    pub fn blocks(&mut self, blocks: u64) -> Walk {
        let (start, step) = match self.schedule {
            Schedule::Forward => (0, 1),
            Schedule::Reverse => (blocks - 1, blocks - 1),
            Schedule::Random(_) => {
                let start = self.below(blocks);
                let coprime = |s: &u64| gcd(*s, blocks) == 1;
                (start, (0..64).map(|_| 1 + self.below(blocks)).find(coprime).unwrap_or(1))
            }
        };
        Walk { start, step, blocks }
    }
}

/// A walk over `0..blocks` that visits each exactly once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    start: u64,
    step: u64,
    blocks: u64,
}

impl Walk {
    /// Number of blocks.
    pub fn len(&self) -> u64 {
        self.blocks
    }

    /// The block at a position of the walk.
    pub fn at(&self, position: u64) -> u64 {
        ((u128::from(position) * u128::from(self.step) + u128::from(self.start)) % u128::from(self.blocks))
            as u64
    }

    /// The whole walk.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        (0..self.blocks).map(move |position| self.at(position))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_walk_visits_every_block_once() {
        for schedule in [Schedule::Forward, Schedule::Reverse, Schedule::Random(1), Schedule::Random(99)] {
            for blocks in [1, 2, 3, 12, 64, 97, 360] {
                let mut seen: Vec<u64> = Order::new(schedule, 5).blocks(blocks).iter().collect();
                if schedule == Schedule::Reverse {
                    assert_eq!(seen[0], blocks - 1);
                }
                seen.sort_unstable();
                assert_eq!(seen, (0..blocks).collect::<Vec<_>>(), "{schedule:?} over {blocks}");
            }
        }
    }

    #[test]
    fn a_seed_fixes_the_order_and_another_seed_changes_it() {
        let draw = |seed| {
            let mut lanes: Vec<u16> = (0..32).collect();
            Order::new(Schedule::Random(seed), 0).arrange(&mut lanes);
            lanes
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
