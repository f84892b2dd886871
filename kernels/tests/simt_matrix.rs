//! Matrix instructions give the bits that a card gives; ldmatrix and movmatrix deliver what the instruction set says.
//!
//! The recorded tiles hold A, B, C and the D that an H200 computed: forty tiles a format, four of each of these kinds:
//! normal; exponents spread by 24; every finite exponent; mostly zeros; many subnormals; overflowing; results below the
//! smallest normal f32; every exponent with infinities and NaN; zeros against huge partners; sums that cancel to zero
//! with C of either sign.

mod simt_support;

use kernels::device::{Device, FindingKind};
use kernels::simt::Mode;
use simt_support::{STREAM, config, device, download, launch, line, only_finding, spec, upload};

const TILE_BYTES: usize = 1792;
const D_OFFSET: usize = 1280;
const RECORDED: [(&[u8], i32); 2] = [
    (include_bytes!("vectors/mma_m16n8k16_bf16.bin"), 0),
    (include_bytes!("vectors/mma_m16n8k16_f16.bin"), 1),
];

#[repr(C)]
#[derive(Clone, Copy)]
struct MatrixParams {
    tiles: u64,
    out: u64,
    is_f16: i32,
    unused: i32,
}

#[test]
fn recorded_tiles_come_out_bit_for_bit() {
    for (recorded, is_f16) in RECORDED {
        let tiles = recorded.len() / TILE_BYTES;
        assert_eq!(tiles, 40);
        let mut blank = recorded.to_vec();
        for tile in blank.chunks_mut(TILE_BYTES) {
            tile[D_OFFSET..].fill(0xee);
        }
        for mode in [Mode::Checked, Mode::Fast] {
            let device = device(mode);
            let memory = upload(&*device, &blank);
            let params = MatrixParams { tiles: memory.0, out: 0, is_f16, unused: 0 };
            launch(&*device, &spec("matrix.cu", "multiply_tile"), config(tiles as u32, 32, 0), &params)
                .unwrap();
            let got = download::<u8>(&*device, memory, recorded.len());
            let differ = got.iter().zip(recorded).position(|(g, w)| g != w);
            assert_eq!(differ.map(|at| (at / TILE_BYTES, at % TILE_BYTES)), None, "f16 {is_f16}, {mode:?}");
        }
    }
}

#[test]
fn ldmatrix_delivers_rows_and_columns() {
    let element = |matrix: u32, row: u32, column: u32| 256 * matrix + 16 * row + column;
    for mode in [Mode::Checked, Mode::Fast] {
        let device = device(mode);
        let out = device.alloc(4 * 320, STREAM).unwrap();
        let params = MatrixParams { tiles: 0, out: out.0, is_f16: 0, unused: 0 };
        launch(&*device, &spec("matrix.cu", "load_fragments"), config(1, 32, 32 * 48), &params).unwrap();
        let got = download::<u32>(&*device, out, 320);
        for lane in 0..32 {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            for m in 0..4 {
                let plain = element(m, row, column) | element(m, row, column + 1) << 16;
                let transposed = element(m, column, row) | element(m, column + 1, row) << 16;
                let at = |i: u32| got[(10 * lane + i) as usize];
                assert_eq!((at(m), at(4 + m)), (plain, transposed), "lane {lane} matrix {m}");
                if m < 2 {
                    assert_eq!(at(8 + m), plain, "lane {lane} matrix {m}");
                }
            }
        }
    }
}

#[test]
fn a_transposed_matrix_has_rows_for_columns() {
    for mode in [Mode::Checked, Mode::Fast] {
        let device = device(mode);
        let out = device.alloc(4 * 32, STREAM).unwrap();
        let params = MatrixParams { tiles: 0, out: out.0, is_f16: 0, unused: 0 };
        launch(&*device, &spec("matrix.cu", "transpose_pairs"), config(1, 32, 0), &params).unwrap();
        let wanted = |lane: u32| {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            (16 * column + row) | (16 * (column + 1) + row) << 16
        };
        assert_eq!(download::<u32>(&*device, out, 32), (0..32).map(wanted).collect::<Vec<_>>());
    }
}

#[test]
fn ldmatrix_orders_no_memory() {
    let device = device(Mode::Checked);
    let out = device.alloc(128, STREAM).unwrap();
    let params = MatrixParams { tiles: 0, out: out.0, is_f16: 0, unused: 0 };
    let result = launch(&*device, &spec("matrix.cu", "load_unsynchronised"), config(1, 32, 512), &params);
    let finding = only_finding(result, FindingKind::SharedRace);
    assert_eq!(finding.site, line("matrix.cu", "row read"));
    assert_eq!(finding.other_site, line("matrix.cu", "row write"));
}

#[test]
fn a_matrix_instruction_needs_the_whole_warp() {
    let device = device(Mode::Checked);
    let out = device.alloc(128, STREAM).unwrap();
    let params = MatrixParams { tiles: 0, out: out.0, is_f16: 0, unused: 0 };
    let result = launch(&*device, &spec("matrix.cu", "partial_warp"), config(1, 32, 0), &params);
    let finding = only_finding(result, FindingKind::Divergence);
    assert_eq!(finding.site, line("matrix.cu", "partial mma"));
    assert!(finding.message.contains("only 0x01ffffff arrived"), "{}", finding.message);
}
