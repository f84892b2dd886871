//! Arguments corrupted on purpose, after valid inputs were made, to see them refused.

/// One corrupted argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Defect {
    /// `query_start_loc` has one entry too few.
    QueryStartLocShort,
    /// `query_start_loc` decreases.
    QueryStartLocUnsorted,
    /// `query_start_loc` does not start at 0.
    QueryStartLocOffset,
    /// `query_start_loc` ends past the query rows.
    QueryStartLocPast,
    /// `seq_lens` has one entry too few.
    SeqLensShort,
    /// `seq_lens` holds 64-bit integers.
    SeqLensI64,
    /// A negative entry in `seq_lens`.
    SeqLensNegative,
    /// An entry of `seq_lens` needs more pages than the table has columns.
    SeqLensPastTable,
    /// A block id of −1 where a page is needed.
    BlockTableNegative,
    /// A block id equal to the number of pages.
    BlockTablePast,
    /// `query_start_loc` holds 64-bit integers.
    QueryStartLocI64,
    /// `block_table` holds 64-bit integers.
    BlockTableI64,
    /// `slot_mapping` of a store holds 32-bit integers.
    SlotMappingI32,
}

impl Defect {
    /// Every defect.
    pub const ALL: [Self; 13] = [
        Self::QueryStartLocShort,
        Self::QueryStartLocUnsorted,
        Self::QueryStartLocOffset,
        Self::QueryStartLocPast,
        Self::SeqLensShort,
        Self::SeqLensI64,
        Self::SeqLensNegative,
        Self::SeqLensPastTable,
        Self::BlockTableNegative,
        Self::BlockTablePast,
        Self::QueryStartLocI64,
        Self::BlockTableI64,
        Self::SlotMappingI32,
    ];

    /// The word in a case line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueryStartLocShort => "query_start_loc:short",
            Self::QueryStartLocUnsorted => "query_start_loc:unsorted",
            Self::QueryStartLocOffset => "query_start_loc:offset",
            Self::QueryStartLocPast => "query_start_loc:past",
            Self::SeqLensShort => "seq_lens:short",
            Self::SeqLensI64 => "seq_lens:i64",
            Self::SeqLensNegative => "seq_lens:negative",
            Self::SeqLensPastTable => "seq_lens:past-table",
            Self::BlockTableNegative => "block_table:negative",
            Self::BlockTablePast => "block_table:past",
            Self::QueryStartLocI64 => "query_start_loc:i64",
            Self::BlockTableI64 => "block_table:i64",
            Self::SlotMappingI32 => "slot_mapping:i32",
        }
    }

    /// Parses a word of a case line.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|defect| defect.name() == name)
    }

    /// Accepted words, for messages.
    #[must_use]
    pub fn accepted() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}
