//! Relations between runs that hold whatever the right answer is.

/// A relation that a case's runs must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// The placement of pages does not matter, bit for bit.
    PermutePages,
    /// Neither does the page size.
    Repage,
    /// Nor the order of requests.
    Reorder,
    /// Nor the other requests of the batch.
    Solo,
    /// A prefill in two chunks gives what the whole gives, within the bound.
    Chunks,
    /// A decode of the last row gives what the prefill gives, within the bound.
    LastRow,
    /// Any number of splits gives the same, within the bound.
    Splits,
    /// A constant added to all logits leaves the output and moves lse, within the bound.
    Shift,
    /// A power of two moved from the softmax scale to k_scale changes nothing, bit for bit.
    KScale,
    /// A power of two on v_scale comes out on the output, bit for bit.
    VScale,
    /// Every option of the case changes the output where it changes the right answer.
    Live,
    /// An unlimited window is no window, bit for bit.
    Unlimited,
    /// One KV head with its query heads alone gives its part of the whole, bit for bit.
    Heads,
}

impl Relation {
    /// Every relation.
    pub const ALL: [Self; 13] = [
        Self::PermutePages,
        Self::Repage,
        Self::Reorder,
        Self::Solo,
        Self::Chunks,
        Self::LastRow,
        Self::Splits,
        Self::Shift,
        Self::KScale,
        Self::VScale,
        Self::Live,
        Self::Unlimited,
        Self::Heads,
    ];

    /// The word in a case line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PermutePages => "permute-pages",
            Self::Repage => "repage",
            Self::Reorder => "reorder",
            Self::Solo => "solo",
            Self::Chunks => "chunks",
            Self::LastRow => "last-row",
            Self::Splits => "splits",
            Self::Shift => "shift",
            Self::KScale => "k-scale",
            Self::VScale => "v-scale",
            Self::Live => "live",
            Self::Unlimited => "unlimited",
            Self::Heads => "heads",
        }
    }

    /// Parses a word of a case line.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|relation| relation.name() == name)
    }

    /// Accepted words, for messages.
    #[must_use]
    pub fn accepted() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}
