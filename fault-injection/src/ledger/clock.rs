//! Order between the streams of a device.

use std::collections::BTreeMap;

use kernels::device::StreamId;

/// How much of each stream's work is known to come before: a vector clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(BTreeMap<StreamId, u64>);

impl Clock {
    /// Work of `stream` that is covered.
    pub fn of(&self, stream: StreamId) -> u64 {
        self.0.get(&stream).copied().unwrap_or(0)
    }

    /// Counts one more piece of work of `stream` and returns its number.
    pub fn advance(&mut self, stream: StreamId) -> u64 {
        let time = self.0.entry(stream).or_default();
        *time += 1;
        *time
    }

    /// Covers what `other` covers as well.
    pub fn merge(&mut self, other: &Self) {
        for (stream, time) in &other.0 {
            let mine = self.0.entry(*stream).or_default();
            *mine = (*mine).max(*time);
        }
    }
}

/// One piece of work: a stream and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub stream: StreamId,
    pub time: u64,
}

impl Moment {
    /// Whether everything that `clock` belongs to comes after this piece of work.
    pub fn is_before(self, clock: &Clock) -> bool {
        clock.of(self.stream) >= self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_ordered_only_through_what_they_share() {
        let [a, b] = [StreamId(1), StreamId(2)];
        let (mut on_a, mut on_b) = (Clock::default(), Clock::default());
        let work = Moment { stream: a, time: on_a.advance(a) };
        on_b.advance(b);
        assert!(work.is_before(&on_a) && !work.is_before(&on_b));
        on_b.merge(&on_a);
        assert!(work.is_before(&on_b));
        let later = Moment { stream: a, time: on_a.advance(a) };
        assert!(!later.is_before(&on_b));
    }
}
