//! Which keys a query row sees.

/// The visibility rule of one request, in 64-bit integers throughout.
///
/// Row i of `q_len` stands at position p = kv_len − q_len + i, so the last row stands at the last key whatever
/// the lengths; p is negative for the first rows when `q_len` exceeds `kv_len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Query rows.
    pub q_len: i64,
    /// Keys.
    pub kv_len: i64,
    /// Whether keys after the row's position are hidden.
    pub causal: bool,
    /// Keys before p that are visible; `None` is unlimited.
    pub window_left: Option<i64>,
    /// Keys after p that are visible; `None` is unlimited.
    pub window_right: Option<i64>,
}

impl Mask {
    /// Position of a row among the keys.
    #[must_use]
    pub fn position(&self, row: usize) -> i64 {
        self.kv_len - self.q_len + row as i64
    }

    /// Whether the row at position `p` sees key `j`: the definition, term by term.
    #[must_use]
    pub fn is_visible(&self, p: i64, j: i64) -> bool {
        0 <= j
            && j < self.kv_len
            && (!self.causal || j <= p)
            && self.window_left.is_none_or(|left| j >= p.saturating_sub(left))
            && self.window_right.is_none_or(|right| j <= p.saturating_add(right))
    }

    /// The keys that the row at position `p` sees, as one range (every rule above cuts off an end).
    #[must_use]
    pub fn visible_keys(&self, p: i64) -> std::ops::Range<usize> {
        let left = self.window_left.map_or(0, |left| p.saturating_sub(left));
        let right = self.window_right.map_or(i64::MAX, |right| p.saturating_add(right));
        let last = if self.causal { right.min(p) } else { right };
        let end = last.min(self.kv_len - 1) + 1;
        let start = left.max(0).min(end.max(0));
        start as usize..end.max(start) as usize
    }
}
