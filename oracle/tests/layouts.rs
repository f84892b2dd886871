//! Where elements lie, against arrays sliced by ndarray.

use std::collections::HashSet;

use ndarray::{Array, ArrayD, Axis, IxDyn};
use oracle::{CacheLayout, CacheShape, CacheViews, OracleError, Packing, Padding, PagedView};
use rstest::rstest;

const SHAPE: CacheShape = CacheShape { pages: 3, page_size: 4, heads: 2, k_dim: 8, v_dim: 8 };

fn views(layout: CacheLayout, packing: Packing, padding: Padding) -> CacheViews {
    CacheViews::new(layout, packing, SHAPE, padding).expect("valid")
}

fn page_axes(layout: CacheLayout) -> [usize; 2] {
    match layout {
        CacheLayout::Nhd => [SHAPE.page_size, SHAPE.heads],
        CacheLayout::Hnd => [SHAPE.heads, SHAPE.page_size],
    }
}

/// The tensor that a framework would allocate, each element holding its own index in memory.
fn tensor(layout: CacheLayout, packing: Packing) -> ArrayD<usize> {
    let [outer, inner] = page_axes(layout);
    let extents = match packing {
        Packing::Separate => vec![SHAPE.pages, outer, inner, SHAPE.k_dim],
        Packing::UnbindInner => vec![SHAPE.pages, 2, outer, inner, SHAPE.k_dim],
        Packing::UnbindOuter => vec![2, SHAPE.pages, outer, inner, SHAPE.k_dim],
    };
    let elements = extents.iter().product();
    Array::from_iter(0..elements).into_shape_with_order(IxDyn(&extents)).expect("as many elements")
}

#[rstest]
fn views_are_those_of_unbind(
    #[values(CacheLayout::Nhd, CacheLayout::Hnd)] layout: CacheLayout,
    #[values(Packing::Separate, Packing::UnbindInner, Packing::UnbindOuter)] packing: Packing,
) {
    let views = views(layout, packing, Padding::default());
    let tensor = tensor(layout, packing);
    assert_eq!(views.k_elements, tensor.len());
    assert_eq!(views.v_elements, tensor.len());
    for (which, view) in [(0, views.k), (1, views.v)] {
        let unbound = match packing {
            Packing::Separate => tensor.view(),
            Packing::UnbindInner => tensor.index_axis(Axis(1), which),
            Packing::UnbindOuter => tensor.index_axis(Axis(0), which),
        };
        let strides: Vec<usize> = unbound.strides().iter().map(|&stride| stride as usize).collect();
        let (slot, head) = if layout == CacheLayout::Nhd { (1, 2) } else { (2, 1) };
        assert_eq!(
            [view.page_stride, view.slot_stride, view.head_stride],
            [strides[0], strides[slot], strides[head]]
        );
        for (place, &index) in unbound.indexed_iter() {
            assert_eq!(view.index(place[0], place[slot], place[head], place[3]), index, "{place:?}");
        }
        assert_eq!(view.elements_spanned(), unbound.iter().max().expect("elements") + 1);
    }
}

fn every_index(view: &PagedView) -> Vec<usize> {
    let mut indices = Vec::new();
    for page in 0..view.pages {
        for slot in 0..view.page_size {
            for head in 0..view.heads {
                indices.extend((0..view.dim).map(|dim| view.index(page, slot, head, dim)));
            }
        }
    }
    indices
}

/// Padding moves elements apart, never onto each other, and leaves the buffer's end where the strides say.
#[rstest]
fn padded_views_own_distinct_elements(
    #[values(CacheLayout::Nhd, CacheLayout::Hnd)] layout: CacheLayout,
    #[values(Packing::Separate, Packing::UnbindInner, Packing::UnbindOuter)] packing: Packing,
    #[values(
        Padding { base: 5, row: 0, plane: 0, page: 0 },
        Padding { base: 0, row: 3, plane: 0, page: 0 },
        Padding { base: 0, row: 0, plane: 7, page: 0 },
        Padding { base: 0, row: 0, plane: 0, page: 11 },
        Padding { base: 16, row: 8, plane: 24, page: 40 }
    )]
    padding: Padding,
) {
    let views = views(layout, packing, padding);
    let (k, v) = (every_index(&views.k), every_index(&views.v));
    let owned: HashSet<usize> = match packing {
        Packing::Separate => k.iter().copied().collect(),
        _ => k.iter().chain(&v).copied().collect(),
    };
    let elements = SHAPE.pages * SHAPE.page_size * SHAPE.heads * SHAPE.k_dim;
    assert_eq!(owned.len(), if packing == Packing::Separate { elements } else { 2 * elements });
    let halves = if packing == Packing::Separate { 1 } else { 2 };
    let [outer, inner] = page_axes(layout);
    let page = outer * (inner * (SHAPE.k_dim + padding.row) + padding.plane) + padding.page;
    assert_eq!(views.k_elements, padding.base + halves * SHAPE.pages * page);
    assert!(views.k.elements_spanned() <= views.k_elements && views.v.elements_spanned() <= views.v_elements);
    assert_eq!(k[0], padding.base);
}

#[test]
fn separate_tensors_may_differ_in_head_dim() {
    let shape = CacheShape { k_dim: 24, v_dim: 16, ..SHAPE };
    let views =
        CacheViews::new(CacheLayout::Hnd, Packing::Separate, shape, Padding::default()).expect("valid");
    assert_eq!((views.k_elements, views.v_elements), (3 * 4 * 2 * 24, 3 * 4 * 2 * 16));
    assert_eq!((views.k.slot_stride, views.v.slot_stride), (24, 16));
    for packing in [Packing::UnbindInner, Packing::UnbindOuter] {
        let error = CacheViews::new(CacheLayout::Nhd, packing, shape, Padding::default());
        let words = format!("v_dim is 16; accepted: 24, the k_dim, because {packing} is one tensor");
        assert_eq!(error.expect_err("one tensor has one head_dim").to_string(), words);
    }
}

#[test]
fn v_may_be_padded_by_itself_in_a_tensor_of_its_own() {
    let (of_k, of_v) =
        (Padding { base: 1, row: 2, plane: 3, page: 4 }, Padding { base: 5, row: 6, plane: 7, page: 8 });
    for layout in CacheLayout::ALL {
        let apart = CacheViews::padded_apart(layout, Packing::Separate, SHAPE, of_k, of_v).expect("valid");
        let (like_k, like_v) =
            (views(layout, Packing::Separate, of_k), views(layout, Packing::Separate, of_v));
        assert_eq!((apart.k, apart.k_elements), (like_k.k, like_k.k_elements));
        assert_eq!((apart.v, apart.v_elements), (like_v.v, like_v.v_elements));
        for packing in [Packing::UnbindInner, Packing::UnbindOuter] {
            let error = CacheViews::padded_apart(layout, packing, SHAPE, of_k, of_v);
            let words = error.expect_err("one tensor has one set of strides").to_string();
            assert!(words.starts_with("padding of V is Padding { base: 5,"), "{words}");
            assert!(words.ends_with(&format!("that of K, because {packing} is one tensor")), "{words}");
            assert_eq!(
                CacheViews::padded_apart(layout, packing, SHAPE, of_k, of_k).expect("valid"),
                views(layout, packing, of_k)
            );
        }
    }
}

#[rstest]
#[case(CacheShape { page_size: 0, ..SHAPE }, "page_size is 0; accepted: at least 1")]
#[case(CacheShape { heads: 0, ..SHAPE }, "num_kv_heads is 0; accepted: at least 1")]
#[case(CacheShape { k_dim: 0, ..SHAPE }, "k_dim is 0; accepted: at least 1")]
#[case(CacheShape { v_dim: 0, ..SHAPE }, "v_dim is 0; accepted: at least 1")]
fn empty_extents_are_refused(#[case] shape: CacheShape, #[case] words: &str) {
    for packing in Packing::ALL {
        let error = CacheViews::new(CacheLayout::Nhd, packing, shape, Padding::default());
        assert_eq!(error.expect_err("an extent of 0").to_string(), words);
    }
}

#[test]
fn a_cache_may_have_no_page_but_not_more_than_memory() {
    let none = CacheShape { pages: 0, ..SHAPE };
    let views =
        CacheViews::new(CacheLayout::Nhd, Packing::UnbindOuter, none, Padding::default()).expect("valid");
    assert_eq!((views.k_elements, views.k.elements_spanned()), (0, 0));
    let huge = CacheShape { pages: usize::MAX / 32, ..SHAPE };
    for packing in Packing::ALL {
        let error = CacheViews::new(CacheLayout::Nhd, packing, huge, Padding::default());
        assert!(
            matches!(error, Err(OracleError::Value { ref argument, .. }) if argument == "cache shape"),
            "{error:?}"
        );
    }
}

#[test]
#[should_panic(expected = "slot 4")]
fn an_index_outside_the_view_panics() {
    let _ = views(CacheLayout::Nhd, Packing::Separate, Padding::default()).k.index(0, 4, 0, 0);
}

#[test]
fn names_parse_back() {
    for layout in CacheLayout::ALL {
        assert_eq!(layout.to_string().parse(), Ok(layout));
    }
    for packing in Packing::ALL {
        assert_eq!(packing.to_string().parse(), Ok(packing));
    }
    assert!(matches!("nhd".parse::<CacheLayout>(), Err(OracleError::UnknownName { argument: "layout", .. })));
    assert!(matches!("unbind".parse::<Packing>(), Err(OracleError::UnknownName { argument: "packing", .. })));
}
