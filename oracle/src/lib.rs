//! What is right: number formats, page layouts, reference attention, error bound and comparison.
