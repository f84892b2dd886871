//! What atomic operations compute. Lanes of a launch run on one thread, so a plain read and write is atomic.

/// Codes of the prelude: 0 add, 1 min, 2 max, 3 exchange, 4 compare and swap, 5 and, 6 or, 7 xor;
/// `kind` 0 int, 1 unsigned, 2 float.
pub(super) fn combine32(operation: i32, kind: i32, old: u32, value: u32, compare: u32) -> u32 {
    let (signed_old, signed_value) = (old as i32, value as i32);
    match (operation, kind) {
        (0, 2) => (f32::from_bits(old) + f32::from_bits(value)).to_bits(),
        (1, 0) => signed_old.min(signed_value) as u32,
        (2, 0) => signed_old.max(signed_value) as u32,
        _ => combine64(operation, old.into(), value.into(), compare.into()) as u32,
    }
}

/// The same for unsigned 64-bit operands.
pub(super) fn combine64(operation: i32, old: u64, value: u64, compare: u64) -> u64 {
    match operation {
        0 => old.wrapping_add(value),
        1 => old.min(value),
        2 => old.max(value),
        3 => value,
        4 if old == compare => value,
        4 => old,
        5 => old & value,
        6 => old | value,
        _ => old ^ value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_follow_their_type() {
        assert_eq!(combine32(0, 0, 5, u32::MAX, 0), 4);
        assert_eq!(f32::from_bits(combine32(0, 2, 1.5_f32.to_bits(), 2.0_f32.to_bits(), 0)), 3.5);
        assert_eq!(combine32(1, 0, 1, -3_i32 as u32, 0) as i32, -3);
        assert_eq!(combine32(1, 1, 1, -3_i32 as u32, 0), 1);
        assert_eq!(combine32(2, 0, 1, -3_i32 as u32, 0), 1);
        assert_eq!(combine32(3, 2, 1, 9, 0), 9);
        assert_eq!((combine32(4, 1, 1, 9, 1), combine32(4, 1, 1, 9, 2)), (9, 1));
        assert_eq!((combine32(5, 1, 6, 3, 0), combine32(6, 1, 6, 3, 0), combine32(7, 1, 6, 3, 0)), (2, 7, 5));
        assert_eq!(combine64(0, 1 << 40, 1, 0), (1 << 40) + 1);
    }
}
