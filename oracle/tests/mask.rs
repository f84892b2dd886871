//! The range of visible keys against the definition, key by key.

use oracle::Mask;

const LIMITS: [Option<i64>; 7] = [None, Some(0), Some(1), Some(3), Some(7), Some(1 << 40), Some(i64::MAX)];

#[test]
fn the_range_holds_exactly_the_visible_keys() {
    for kv_len in 0..9_i64 {
        for q_len in 0..9_i64 {
            for causal in [false, true] {
                for (window_left, window_right) in LIMITS.iter().flat_map(|&l| LIMITS.map(|r| (l, r))) {
                    let mask = Mask { q_len, kv_len, causal, window_left, window_right };
                    for row in 0..q_len as usize {
                        let p = mask.position(row);
                        let visible: Vec<usize> =
                            (0..kv_len).filter(|&j| mask.is_visible(p, j)).map(|j| j as usize).collect();
                        assert_eq!(mask.visible_keys(p).collect::<Vec<_>>(), visible, "{mask:?}, row {row}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_last_row_stands_at_the_last_key() {
    let mask = Mask { q_len: 3, kv_len: 5, causal: true, window_left: Some(1), window_right: None };
    assert_eq!([0, 1, 2].map(|row| mask.position(row)), [2, 3, 4]);
    assert_eq!([0, 1, 2].map(|row| mask.visible_keys(mask.position(row))), [1..3, 2..4, 3..5]);
    let longer = Mask { q_len: 5, kv_len: 3, window_left: None, ..mask };
    assert_eq!([0, 1, 2, 3, 4].map(|row| longer.position(row)), [-2, -1, 0, 1, 2]);
    assert_eq!([0, 1, 2, 3, 4].map(|row| longer.visible_keys(longer.position(row)).end), [0, 0, 1, 2, 3]);
}

#[test]
fn no_key_is_visible_outside_the_keys() {
    let mask = Mask { q_len: 4, kv_len: 4, causal: false, window_left: None, window_right: None };
    assert!(!mask.is_visible(0, -1) && !mask.is_visible(3, 4) && mask.is_visible(0, 3));
}

/// 32-bit arithmetic would wrap at these lengths and windows.
#[test]
fn positions_and_windows_beyond_32_bits() {
    let kv_len = 3_000_000_000;
    let mask = Mask {
        q_len: 1,
        kv_len,
        causal: true,
        window_left: Some(2_999_999_990),
        window_right: Some(i64::MAX),
    };
    let p = mask.position(0);
    assert_eq!(p, 2_999_999_999);
    assert_eq!(mask.visible_keys(p), 9..3_000_000_000);
    assert!(mask.is_visible(p, 9) && !mask.is_visible(p, 8));
}
