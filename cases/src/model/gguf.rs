//! Reading a GGUF file: the model's dimensions, its weights, and what the tokenizer is made from.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use candle_core::quantized::{QTensor, gguf_file};
use candle_core::{Device, Tensor};

use super::error::ModelError;

/// Dimensions of a llama model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The name that the file gives itself.
    pub name: String,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub embedding: usize,
    /// Width of the feed-forward layers.
    pub feed_forward: usize,
    /// Query heads.
    pub num_q_heads: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Tokens that a sequence may have.
    pub context: usize,
    /// Base of the rotary embedding.
    pub rope_base: f32,
    /// Added to the mean square in the norms.
    pub norm_epsilon: f32,
}

/// An open GGUF file.
pub struct Gguf {
    path: PathBuf,
    reader: BufReader<File>,
    content: gguf_file::Content,
}

impl Gguf {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If the file cannot be read or is not GGUF.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let cannot = |source| ModelError::File { path: path.to_owned(), source };
        let mut reader = BufReader::new(File::open(path).map_err(cannot)?);
        let content = gguf_file::Content::read(&mut reader)
            .map_err(ModelError::tensor(format!("{} is not a GGUF file", path.display())))?;
        Ok(Self { path: path.to_owned(), reader, content })
    }

    /// The model's dimensions.
    ///
    /// # Errors
    /// If the architecture is not llama, or dimensions are missing or do not fit each other.
    pub fn config(&self) -> Result<Config, ModelError> {
        let architecture = self.string("general.architecture")?;
        if architecture != "llama" {
            return Err(ModelError::metadata("general.architecture", architecture, "llama"));
        }
        let name = self.string("general.name").unwrap_or("unnamed").to_owned();
        let embedding = self.size("llama.embedding_length")?;
        let num_q_heads = self.size("llama.attention.head_count")?;
        let num_kv_heads = self.size("llama.attention.head_count_kv").unwrap_or(num_q_heads);
        for (key, value, of) in [
            ("llama.attention.head_count", num_q_heads, embedding),
            ("llama.attention.head_count_kv", num_kv_heads, num_q_heads),
        ] {
            if value == 0 || of % value != 0 {
                return Err(ModelError::metadata(key, value, format!("a divisor of {of}")));
            }
        }
        let head_dim = embedding / num_q_heads;
        let rotated = self.size("llama.rope.dimension_count").unwrap_or(head_dim);
        if rotated != head_dim || !head_dim.is_multiple_of(2) {
            let accepted = format!("{head_dim}, the whole head_dim, and even");
            return Err(ModelError::metadata("llama.rope.dimension_count", rotated, accepted));
        }
        Ok(Config {
            name,
            layers: self.size("llama.block_count")?,
            embedding,
            feed_forward: self.size("llama.feed_forward_length")?,
            num_q_heads,
            num_kv_heads,
            head_dim,
            context: self.size("llama.context_length")?,
            rope_base: self.float("llama.rope.freq_base").unwrap_or(10_000.0),
            norm_epsilon: self.float("llama.attention.layer_norm_rms_epsilon")?,
        })
    }

    /// Whether the file has a tensor.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.content.tensor_infos.contains_key(name)
    }

    /// A weight matrix `[outputs, inputs]`, as it is stored.
    ///
    /// # Errors
    /// If the file has no such tensor or it has another shape.
    pub fn matrix(&mut self, name: &str, (outputs, inputs): (usize, usize)) -> Result<QTensor, ModelError> {
        let tensor = self.tensor(name)?;
        let dims = tensor.shape().dims().to_vec();
        if dims != [outputs, inputs] {
            return Err(ModelError::metadata(name, format!("{dims:?}"), format!("[{outputs}, {inputs}]")));
        }
        Ok(tensor)
    }

    /// A vector of weights in f32.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        let tensor = self.tensor(name)?;
        let dims = tensor.shape().dims().to_vec();
        if dims != [length] {
            return Err(ModelError::metadata(name, format!("{dims:?}"), format!("[{length}]")));
        }
        let values = tensor.dequantize(&Device::Cpu).and_then(|t: Tensor| t.to_vec1());
        values.map_err(ModelError::tensor(name))
    }

    /// First dimension of a tensor: the vocabulary, for the embedding.
    ///
    /// # Errors
    /// If the file has no such tensor.
    pub fn rows(&self, name: &str) -> Result<usize, ModelError> {
        let info = self.content.tensor_infos.get(name);
        let rows = info.and_then(|info| info.shape.dims().first().copied());
        rows.ok_or_else(|| ModelError::metadata(name, "absent", "a tensor of that name"))
    }

    fn tensor(&mut self, name: &str) -> Result<QTensor, ModelError> {
        if !self.has(name) {
            return Err(ModelError::metadata(name, "absent", "a tensor of that name"));
        }
        let what = format!("tensor {name} of {}", self.path.display());
        self.content.tensor(&mut self.reader, name, &Device::Cpu).map_err(ModelError::tensor(what))
    }

    /// A metadata string.
    ///
    /// # Errors
    /// If it is absent or not a string.
    pub fn string(&self, key: &str) -> Result<&str, ModelError> {
        let value = self.content.metadata.get(key).and_then(|value| value.to_string().ok());
        value.map(String::as_str).ok_or_else(|| ModelError::metadata(key, "absent", "a string"))
    }

    /// A metadata list of strings.
    ///
    /// # Errors
    /// If it is absent or holds something else.
    pub fn strings(&self, key: &str) -> Result<Vec<String>, ModelError> {
        self.list(key, "a list of strings", |value| value.to_string().ok().cloned())
    }

    /// A metadata list of integers.
    ///
    /// # Errors
    /// If it is absent or holds something else.
    pub fn integers(&self, key: &str) -> Result<Vec<i32>, ModelError> {
        self.list(key, "a list of 32-bit integers", |value| value.to_i32().ok())
    }

    /// A metadata flag; absent is false.
    #[must_use]
    pub fn flag(&self, key: &str) -> bool {
        self.content.metadata.get(key).and_then(|value| value.to_bool().ok()).unwrap_or(false)
    }

    /// A metadata count or index.
    ///
    /// # Errors
    /// If it is absent or not a non-negative integer.
    pub fn size(&self, key: &str) -> Result<usize, ModelError> {
        let value = self.content.metadata.get(key);
        let size = value.and_then(|value| usize::try_from(value.to_u32().ok()?).ok());
        size.ok_or_else(|| {
            let value = value.map_or("absent".to_owned(), |value| format!("{value:?}"));
            ModelError::metadata(key, value, "a 32-bit count")
        })
    }

    fn float(&self, key: &str) -> Result<f32, ModelError> {
        let value = self.content.metadata.get(key);
        value
            .and_then(|value| value.to_f32().ok())
            .ok_or_else(|| ModelError::metadata(key, "absent", "a 32-bit float"))
    }

    fn list<T>(
        &self,
        key: &str,
        accepted: &str,
        convert: impl Fn(&gguf_file::Value) -> Option<T>,
    ) -> Result<Vec<T>, ModelError> {
        let values = self.content.metadata.get(key).and_then(|value| value.to_vec().ok());
        let converted = values.and_then(|values| values.iter().map(convert).collect());
        converted.ok_or_else(|| ModelError::metadata(key, "absent or of another type", accepted))
    }
}
