//! Where an element of a paged cache lies: layouts, packings and strided views.

use std::fmt;
use std::str::FromStr;

use crate::OracleError;

/// Order of the axes inside one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheLayout {
    /// `[page_size, num_kv_heads, head_dim]`.
    Nhd,
    /// `[num_kv_heads, page_size, head_dim]`.
    Hnd,
}

/// How K and V share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Packing {
    /// Two tensors, `[pages, …]` each, in buffers of their own.
    Separate,
    /// The two halves of one tensor `[pages, 2, …]`: K and V of a page are neighbours.
    UnbindInner,
    /// The two halves of one tensor `[2, pages, …]`: all of K, then all of V.
    UnbindOuter,
}

impl CacheLayout {
    /// Both layouts.
    pub const ALL: [Self; 2] = [Self::Nhd, Self::Hnd];

    /// `NHD` or `HND`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nhd => "NHD",
            Self::Hnd => "HND",
        }
    }
}

impl Packing {
    /// All packings.
    pub const ALL: [Self; 3] = [Self::Separate, Self::UnbindInner, Self::UnbindOuter];

    /// `separate`, `unbind-inner` or `unbind-outer`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Separate => "separate",
            Self::UnbindInner => "unbind-inner",
            Self::UnbindOuter => "unbind-outer",
        }
    }
}

impl fmt::Display for CacheLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for CacheLayout {
    type Err = OracleError;

    fn from_str(name: &str) -> Result<Self, OracleError> {
        let unknown =
            || OracleError::UnknownName { argument: "layout", name: name.to_owned(), accepted: "NHD, HND" };
        Self::ALL.into_iter().find(|layout| layout.name() == name).ok_or_else(unknown)
    }
}

impl FromStr for Packing {
    type Err = OracleError;

    fn from_str(name: &str) -> Result<Self, OracleError> {
        let unknown = || OracleError::UnknownName {
            argument: "packing",
            name: name.to_owned(),
            accepted: "separate, unbind-inner, unbind-outer",
        };
        Self::ALL.into_iter().find(|packing| packing.name() == name).ok_or_else(unknown)
    }
}

/// Extents of a paged cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheShape {
    /// Pages of the cache.
    pub pages: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// KV heads.
    pub heads: usize,
    /// Elements of a key.
    pub k_dim: usize,
    /// Elements of a value; must equal `k_dim` unless K and V are separate tensors.
    pub v_dim: usize,
}

/// Elements that no token owns, to make strides larger than the extents need. All zero for a compact cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Padding {
    /// Elements before the first one of the buffer.
    pub base: usize,
    /// Elements after each row of `head_dim`.
    pub row: usize,
    /// Elements after each slot (NHD) or each head (HND).
    pub plane: usize,
    /// Elements after each page of K and each page of V.
    pub page: usize,
}

/// A strided view of K or of V inside its buffer. Offsets and strides count elements; `dim` has stride 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PagedView {
    /// Index of the first element.
    pub offset: usize,
    /// From one page to the next.
    pub page_stride: usize,
    /// From one slot of a page to the next.
    pub slot_stride: usize,
    /// From one head to the next.
    pub head_stride: usize,
    /// Pages.
    pub pages: usize,
    /// Slots of a page.
    pub page_size: usize,
    /// KV heads.
    pub heads: usize,
    /// Elements of a row.
    pub dim: usize,
}

/// The views of K and V, and the buffers they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheViews {
    /// The view of K.
    pub k: PagedView,
    /// The view of V: in the same buffer as K when an unbind packing was asked for, else in its own.
    pub v: PagedView,
    /// Elements of the buffer of K.
    pub k_elements: usize,
    /// Elements of the buffer of V; for the unbind packings it is K's buffer, so the same figure.
    pub v_elements: usize,
}

impl PagedView {
    /// Index of one element in the buffer.
    ///
    /// # Panics
    /// If an index is outside the view.
    #[must_use]
    pub fn index(&self, page: usize, slot: usize, head: usize, dim: usize) -> usize {
        assert!(
            page < self.pages && slot < self.page_size && head < self.heads && dim < self.dim,
            "element (page {page}, slot {slot}, head {head}, dim {dim}) is outside {self:?}"
        );
        self.offset + page * self.page_stride + slot * self.slot_stride + head * self.head_stride + dim
    }

    /// One past the largest index of the view: the least length of a buffer that holds it. 0 if it is empty.
    #[must_use]
    pub fn elements_spanned(&self) -> usize {
        if self.pages == 0 || self.page_size == 0 || self.heads == 0 || self.dim == 0 {
            return 0;
        }
        self.index(self.pages - 1, self.page_size - 1, self.heads - 1, self.dim - 1) + 1
    }
}

impl CacheViews {
    /// Lays out a cache whose K and V are padded alike.
    ///
    /// # Errors
    /// If an unbind packing is asked for and `k_dim` differs from `v_dim`, if an extent other than `pages` is 0,
    /// or if the cache does not fit the address space.
    pub fn new(
        layout: CacheLayout,
        packing: Packing,
        shape: CacheShape,
        padding: Padding,
    ) -> Result<Self, OracleError> {
        Self::padded_apart(layout, packing, shape, padding, padding)
    }

    /// Lays out a cache whose K is padded by `k_padding` and V by `v_padding`, so that no stride of one need be that of the
    /// other.
    ///
    /// # Errors
    /// As [`Self::new`], and if an unbind packing is asked for and the paddings differ: one tensor has one set of strides.
    pub fn padded_apart(
        layout: CacheLayout,
        packing: Packing,
        shape: CacheShape,
        k_padding: Padding,
        v_padding: Padding,
    ) -> Result<Self, OracleError> {
        let extents = [
            ("page_size", shape.page_size),
            ("num_kv_heads", shape.heads),
            ("k_dim", shape.k_dim),
            ("v_dim", shape.v_dim),
        ];
        if let Some((argument, extent)) = extents.into_iter().find(|&(_, extent)| extent == 0) {
            return Err(OracleError::value(argument, extent, "at least 1"));
        }
        if packing != Packing::Separate && shape.k_dim != shape.v_dim {
            let accepted = format!("{}, the k_dim, because {packing} is one tensor", shape.k_dim);
            return Err(OracleError::value("v_dim", shape.v_dim, accepted));
        }
        if packing != Packing::Separate && k_padding != v_padding {
            let accepted = format!("{k_padding:?}, that of K, because {packing} is one tensor");
            return Err(OracleError::value("padding of V", format!("{v_padding:?}"), accepted));
        }
        let too_large = || {
            let value = format!("{shape:?} with {k_padding:?} and {v_padding:?}");
            OracleError::value("cache shape", value, "a cache that fits the address space")
        };
        let (k, v) =
            (place(layout, shape, shape.k_dim, k_padding), place(layout, shape, shape.v_dim, v_padding));
        let (k, v) = (k.ok_or_else(too_large)?, v.ok_or_else(too_large)?);
        let views = match packing {
            Packing::Separate => separate(k, v),
            // [pages, 2, …]: each half skips the other, and V starts one page of K later.
            Packing::UnbindInner => {
                k.page_stride.checked_mul(2).and_then(|both| unbind(k, both, k.page_stride))
            }
            // [2, pages, …]: pages follow each other, and V starts after the last page of K.
            Packing::UnbindOuter => {
                k.page_stride.checked_mul(k.pages).and_then(|half| unbind(k, k.page_stride, half))
            }
        };
        views.ok_or_else(too_large)
    }
}

/// A tensor `[pages, …]` of its own. `None` on overflow, here and below.
fn place(layout: CacheLayout, shape: CacheShape, dim: usize, padding: Padding) -> Option<PagedView> {
    let row = dim.checked_add(padding.row)?;
    let (rows, planes) = match layout {
        CacheLayout::Nhd => (shape.heads, shape.page_size),
        CacheLayout::Hnd => (shape.page_size, shape.heads),
    };
    let plane = row.checked_mul(rows)?.checked_add(padding.plane)?;
    let (slot_stride, head_stride) = match layout {
        CacheLayout::Nhd => (plane, row),
        CacheLayout::Hnd => (row, plane),
    };
    Some(PagedView {
        offset: padding.base,
        page_stride: plane.checked_mul(planes)?.checked_add(padding.page)?,
        slot_stride,
        head_stride,
        pages: shape.pages,
        page_size: shape.page_size,
        heads: shape.heads,
        dim,
    })
}

fn separate(k: PagedView, v: PagedView) -> Option<CacheViews> {
    Some(CacheViews { k, v, k_elements: buffer_elements(&k)?, v_elements: buffer_elements(&v)? })
}

/// Two views of one buffer: both step by `page_stride`, and V starts `between` elements after K.
fn unbind(half: PagedView, page_stride: usize, between: usize) -> Option<CacheViews> {
    let k = PagedView { page_stride, ..half };
    let v = PagedView { offset: half.offset.checked_add(between)?, ..k };
    let elements = half.page_stride.checked_mul(half.pages)?.checked_mul(2)?.checked_add(half.offset)?;
    Some(CacheViews { k, v, k_elements: elements, v_elements: elements })
}

/// All elements of a tensor with the padding after its last page.
fn buffer_elements(view: &PagedView) -> Option<usize> {
    view.page_stride.checked_mul(view.pages)?.checked_add(view.offset)
}
