//! How many parts the keys of a decode are split into.

/// Parts into which the keys of each query tile are split so that the card is busy.
///
/// The count follows the rule of public split-KV kernels: one part when the query work alone fills 80% of the
/// multiprocessors; otherwise the smallest count whose last wave is at least 85% as full as the best count's. Counts
/// that leave every part as long as a smaller count does are passed over.
///
/// * `query_blocks`: thread blocks of one split, over requests, KV heads and row tiles
/// * `multiprocessors`: of the card
/// * `key_blocks`: key tiles of the longest request
/// * `max_splits`: upper limit, at least 1
#[must_use]
pub fn split_count(query_blocks: u64, multiprocessors: u64, key_blocks: u64, max_splits: u64) -> u64 {
    if query_blocks.saturating_mul(10) >= 8 * multiprocessors {
        return 1;
    }
    let most = max_splits.min(multiprocessors).min(key_blocks).max(1);
    let useful = |splits: u64| splits == 1 || key_blocks.div_ceil(splits) != key_blocks.div_ceil(splits - 1);
    // Filled share of all waves, as a fraction so that no rounding decides.
    let share = |splits: u64| {
        let blocks = query_blocks * splits;
        (blocks, blocks.div_ceil(multiprocessors) * multiprocessors)
    };
    let Some(best) =
        (1..=most).filter(|&s| useful(s)).map(share).max_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)))
    else {
        return 1;
    };
    let good_enough = |(filled, slots): (u64, u64)| 100 * filled * best.1 >= 85 * best.0 * slots;
    (1..=most).find(|&s| useful(s) && good_enough(share(s))).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::split_count;
    use rstest::rstest;

    #[rstest]
    #[case(32, 40, 18, 128, 1)]
    #[case(4, 40, 18, 128, 9)]
    #[case(8, 40, 32, 128, 5)]
    #[case(4, 40, 18, 2, 2)]
    #[case(1, 40, 1, 128, 1)]
    fn published_values(
        #[case] blocks: u64,
        #[case] sms: u64,
        #[case] keys: u64,
        #[case] max: u64,
        #[case] want: u64,
    ) {
        assert_eq!(split_count(blocks, sms, keys, max), want);
    }

    #[test]
    fn never_zero_never_over_its_limits() {
        for blocks in 0..50 {
            for keys in 0..70 {
                for max in 1..12 {
                    let splits = split_count(blocks, 17, keys, max);
                    assert!(
                        splits >= 1 && splits <= max.max(1) && splits <= keys.max(1),
                        "{blocks} {keys} {max}: {splits}"
                    );
                }
            }
        }
    }
}
