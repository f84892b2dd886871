//! Activations recorded from a real model, with an answer that another program computed.

use ndarray::{Array2, Array3};
use oracle::Format;
use safetensors::{Dtype, SafeTensors};

/// SmolLM2-135M-Instruct (Apache-2.0); see `vectors/README.md`.
const SMOLLM2: &[u8] = include_bytes!("../../vectors/smollm2-qkv.safetensors");

/// One recorded layer. Softmax scale 1/8, causal.
#[derive(Clone, Debug)]
pub struct Layer {
    /// `[token, 9, 64]`, rounded to bf16.
    pub q: Array3<f32>,
    /// `[token, 3, 64]`, after rope, rounded to bf16.
    pub k: Array3<f32>,
    /// `[token, 3, 64]`, rounded to bf16.
    pub v: Array3<f32>,
    /// Recorded answer in f64, `[token, 9, 64]`.
    pub out: Array3<f64>,
    /// Recorded lse in f64, natural logarithm, `[token, 9]`.
    pub lse: Array2<f64>,
}

/// A layer by its number; `None` if it was not recorded.
#[must_use]
pub fn layer(number: u32) -> Option<Layer> {
    let file = SafeTensors::deserialize(SMOLLM2).expect("the embedded vector is a safetensors file");
    let wide = |name: &str| tensor(&file, number, name, Dtype::F64, f64s);
    let narrow =
        |name: &str| tensor(&file, number, name, Dtype::BF16, |bytes| Format::Bf16.decode_bytes(bytes));
    let cube = |(shape, data): (Vec<usize>, Vec<f32>)| {
        Array3::from_shape_vec((shape[0], shape[1], shape[2]), data)
            .expect("the file states the shape of its data")
    };
    let (out_shape, out) = wide("out")?;
    let (lse_shape, lse) = wide("lse")?;
    Some(Layer {
        q: cube(narrow("q")?),
        k: cube(narrow("k")?),
        v: cube(narrow("v")?),
        out: Array3::from_shape_vec((out_shape[0], out_shape[1], out_shape[2]), out).ok()?,
        lse: Array2::from_shape_vec((lse_shape[0], lse_shape[1]), lse).ok()?,
    })
}

fn tensor<T>(
    file: &SafeTensors<'_>,
    layer: u32,
    name: &str,
    dtype: Dtype,
    decode: impl Fn(&[u8]) -> Vec<T>,
) -> Option<(Vec<usize>, Vec<T>)> {
    let view = file.tensor(&format!("layer{layer}.{name}")).ok()?;
    (view.dtype() == dtype).then(|| (view.shape().to_vec(), decode(view.data())))
}

fn f64s(bytes: &[u8]) -> Vec<f64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| f64::from_le_bytes(*word)).collect()
}
