use oracle::Format;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::*;
use crate::case::Case;
use crate::verdict::{Failure, Verdict};

const LINE: &str = "mixed bf16 kv=e4m3 h4/2 d16/8 page4 HND pad=3,0,0,5 causal softcap=20 alibi sinks q=[3,0,1] kv=[9,4,6] \
                    kscale=[0.5,0.25] vscale=2 seed=11";

fn file(line: &str) -> Vec<u8> {
    let case: Case = line.parse().expect("a case");
    export(&case, "mma").expect("a file")
}

/// An output file made of tensors in f32.
fn output_file(tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, values)| Format::F32.encode_to_bytes(values)).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).expect("a view"))
    });
    safetensors::serialize(views, None).expect("a file")
}

/// What the file itself expects, rounded to f32.
fn expected(exported: &Exported) -> (Vec<f32>, Vec<f32>) {
    let f32s = |x: &f64| *x as f32;
    let out = exported.references.iter().flat_map(|reference| reference.out.iter().map(f32s)).collect();
    let lse = exported.references.iter().flat_map(|reference| reference.lse.iter().map(f32s)).collect();
    (out, lse)
}

fn verdict(exported: &Exported, out: &[f32], lse: &[f32]) -> Verdict {
    let output = output_file(&[("out", &[4, 4, 8], out), ("lse", &[4, 4], lse)]);
    judge(exported, &Output::read(&output, exported).expect("an output")).expect("a verdict")
}

#[test]
fn the_expected_output_passes_and_a_wrong_one_does_not() {
    let exported = Exported::read(&file(LINE)).expect("an exported case");
    let (out, lse) = expected(&exported);
    assert!(matches!(verdict(&exported, &out, &lse), Verdict::Pass { worst_share } if worst_share <= 1.0));

    let mut wrong = out.clone();
    wrong[8 * 4 + 13] += 0.25;
    let Verdict::Mismatch { failures } = verdict(&exported, &wrong, &lse) else { panic!("must fail") };
    let Failure::Elements { wrong, worst, .. } = &failures[0] else { panic!("{failures:?}") };
    assert_eq!((*wrong, worst.place.request, worst.place.row, worst.place.head), (1, 0, 1, 1));

    let base_2: Vec<f32> = lse.iter().map(|x| x * std::f32::consts::LOG2_E).collect();
    let Verdict::Mismatch { failures } = verdict(&exported, &out, &base_2) else { panic!("must fail") };
    assert!(matches!(&failures[0], Failure::Elements { output, .. } if output == "lse"), "{failures:?}");
}

#[test]
fn an_output_may_have_any_float_type_and_its_last_axes_as_one() {
    let exported = Exported::read(&file(LINE)).expect("an exported case");
    let (out, _) = expected(&exported);
    for (dtype, bytes) in [
        (Dtype::BF16, Format::Bf16.encode_to_bytes(&out)),
        (Dtype::F16, Format::F16.encode_to_bytes(&out)),
        (Dtype::F64, out.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect()),
    ] {
        let view = TensorView::new(dtype, vec![4, 32], &bytes).expect("a view");
        let file = safetensors::serialize([("out", view)], None).expect("a file");
        let output = Output::read(&file, &exported).expect("an output");
        let verdict = judge(&exported, &output).expect("a verdict");
        assert!(matches!(verdict, Verdict::Pass { .. }), "{dtype:?}: {verdict:?}");
    }
}

#[test]
fn outputs_that_do_not_fit_are_named() {
    let exported = Exported::read(&file(LINE)).expect("an exported case");
    let error = |file: &[u8]| Output::read(file, &exported).expect_err("refused").to_string();
    let (out, lse) = expected(&exported);
    assert_eq!(
        error(&output_file(&[("output", &[4, 32], &out)])),
        "tensor out is missing; accepted: [4, 4, 8] or [4, 32] in f16, bf16, f32, f64"
    );
    assert_eq!(
        error(&output_file(&[("out", &[4, 8, 4], &out)])),
        "tensor out has shape [4, 8, 4]; accepted: [4, 4, 8] or [4, 32]"
    );
    assert_eq!(
        error(&output_file(&[("out", &[4, 32], &out), ("lse", &[16], &lse)])),
        "tensor lse has shape [16]; accepted: [4, 4]"
    );
    let codes = TensorView::new(Dtype::U8, vec![4, 32], &[0; 128]).expect("a view");
    let codes = safetensors::serialize([("out", codes)], None).expect("a file");
    assert_eq!(error(&codes), "tensor out has type U8; accepted: f16, bf16, f32, f64");
}

#[test]
fn the_paged_bytes_hold_the_dense_values() {
    let bytes = file(LINE);
    let exported = Exported::read(&bytes).expect("an exported case");
    let file = SafeTensors::deserialize(&bytes).expect("a file");
    let words = |name: &str| -> Vec<i32> {
        let data = file.tensor(name).expect("a tensor").data();
        data.as_chunks::<4>().0.iter().map(|word| i32::from_le_bytes(*word)).collect()
    };
    let (table, starts, lens) = (words("block_table"), words("kv_start_loc"), words("seq_lens"));
    let width = file.tensor("block_table").expect("a tensor").shape()[1];
    let Description { k_view, v_view, page_size, .. } = exported.description;
    for (dense, cache, view, dim) in [("k", "k_cache", k_view, 16), ("v", "v_cache", v_view, 8)] {
        let dense = Format::F32.decode_bytes(file.tensor(dense).expect("a tensor").data());
        let cache = Format::E4m3.decode_bytes(file.tensor(cache).expect("a tensor").data());
        for (request, len) in lens.iter().enumerate() {
            for key in 0..*len as usize {
                let page = table[request * width + key / page_size] as usize;
                for (head, d) in [(0, 0), (1, dim - 1)] {
                    let index = view.offset
                        + page * view.page_stride
                        + key % page_size * view.slot_stride
                        + head * view.head_stride
                        + d;
                    let row = starts[request] as usize + key;
                    assert_eq!(cache[index], dense[(row * 2 + head) * dim + d], "{request} {key} {head} {d}");
                }
            }
        }
    }
}

#[test]
fn equal_cases_give_equal_bytes() {
    assert_eq!(file(LINE), file(LINE));
}

#[test]
fn cases_without_an_expected_output_are_refused() {
    let error = |line: &str| {
        let case: Case = line.parse().expect("a case");
        export(&case, "mma").expect_err("refused").to_string()
    };
    assert!(error("store bf16 kv=bf16 h2/2 d8 page4 NHD q=[1] kv=[4] seed=1").contains("operation is store"));
    let refused = "prefill f32 kv=f32 h4/2 d8 page4 NHD softcap=0 q=[1] kv=[4] expect=reject:softcap seed=1";
    assert!(error(refused).contains("reject:softcap"));
    let unserved = "prefill f32 kv=f32 h4/2 d8 page4 NHD softcap=0 q=[1] kv=[4] seed=1";
    assert!(error(unserved).contains("softcap is 0"));
}

#[test]
fn damaged_files_are_refused_by_what_is_wrong() {
    let error = |bytes: &[u8]| Exported::read(bytes).expect_err("refused").to_string();
    assert!(error(b"nothing").contains("not a safetensors file"));
    assert!(error(&output_file(&[("out", &[1], &[0.0])])).contains("metadata entry `attest` is missing"));
    let bytes = file(LINE);
    let renamed = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect(from);
        let mut damaged = bytes.clone();
        damaged[at..at + to.len()].copy_from_slice(to.as_bytes());
        damaged
    };
    assert!(error(&renamed("out_bound", "out_limit")).contains("tensor out_bound is missing"));
    assert!(error(&renamed("\\\"schema\\\":1", "\\\"schema\\\":9")).contains("of schema 9"));
    assert!(error(&renamed("page4 HND", "page4 HDN")).contains("the file's case does not parse"));
}
