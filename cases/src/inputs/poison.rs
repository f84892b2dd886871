//! What stands in bytes that nobody owns.

use oracle::Format;

/// Contents of every byte that no request owns. A correct kernel gives the same bits for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Poison {
    /// All bits zero.
    Zero,
    /// NaN in the cache's format.
    Nan,
    /// Infinity, or the largest finite value where the format has none.
    Infinity,
    /// 2^100, or the largest finite value where the format ends below.
    Huge,
}

impl Poison {
    /// The poisons in the order they are tried.
    pub const ALL: [Self; 4] = [Self::Nan, Self::Infinity, Self::Huge, Self::Zero];

    /// The word in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Nan => "NaN",
            Self::Infinity => "infinity",
            Self::Huge => "2^100",
        }
    }

    /// The code of one poisoned element.
    #[must_use]
    pub fn code(self, format: Format) -> u32 {
        match (self, format) {
            (Self::Zero, _) => 0,
            (Self::Nan, _) => format.encode(f32::NAN),
            // Encoding saturates, so the infinity of e5m2 has to be named.
            (Self::Infinity, Format::E5m2) => 0x7c,
            (Self::Infinity, _) => format.encode(f32::INFINITY),
            (Self::Huge, _) => format.encode((100.0_f32).exp2().min(format.max_finite() as f32)),
        }
    }

    pub(super) fn fill(self, format: Format, elements: usize) -> Vec<u8> {
        self.code(format).to_le_bytes()[..format.size_bytes()].repeat(elements)
    }
}
