//! The paged cache of one model: device memory of every layer, and which pages belong to which sequence.

use kernels::args::{KvStore, PagedCache, Scale};
use kernels::device::{DeviceRef, DeviceResult, StreamId};
use kernels::scratch::Scratch;
use kernels::tensor::{Allocation, DType, DeviceTensor};
use oracle::{CacheLayout, CacheShape, CacheViews, Format, Packing, Padding, PagedView};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::calibrate::Scales;
use super::error::ModelError;
use super::gguf::Config;
use crate::job::dtype;

/// A byte that makes a NaN in every cache format when repeated: fresh pages are poisoned with it.
pub(super) const POISON: u8 = 0xff;

/// How a cache is built.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheOptions {
    /// Format of the stored codes.
    pub format: Format,
    /// Tokens of a page.
    pub page_size: usize,
    /// Tokens that all sequences together may have.
    pub capacity: usize,
    /// Seed of the order in which pages are handed out.
    pub seed: u64,
    /// Scales per layer and KV head; `None` stores the values themselves.
    pub scales: Option<Scales>,
}

/// One request's tokens in the cache.
#[derive(Debug, Default)]
pub struct Sequence {
    pages: Vec<i32>,
    len: usize,
}

impl Sequence {
    /// Tokens stored.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is stored yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its pages, in order of position.
    #[must_use]
    pub fn pages(&self) -> &[i32] {
        &self.pages
    }

    /// Forgets the tokens from position `len` on: their slots will be written again.
    pub fn rewind(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(super) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}

/// One layer's part of the cache: the two halves of a tensor `[2, pages, page_size, num_kv_heads, head_dim]`.
pub struct LayerCache {
    memory: Scratch,
    scales: Option<[Scratch; 2]>,
    /// The views and scales that launches get.
    pub cache: PagedCache,
    /// Scales of K and V as the reference takes them: one, or one per KV head.
    pub host_scales: [Vec<f32>; 2],
}

impl LayerCache {
    /// The bytes of the layer as they are on the device now. Waits for the stream.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read(&self, device: &DeviceRef, stream: StreamId) -> Result<Vec<u8>, ModelError> {
        let mut bytes = vec![0; self.memory.bytes() as usize];
        device.copy_to_host(&mut bytes, self.memory.ptr(), stream)?;
        Ok(bytes)
    }
}

/// The cache of all layers.
pub struct KvCache {
    /// One per decoder layer.
    pub layers: Vec<LayerCache>,
    /// Where K and V of a token lie in the bytes of a layer, in elements.
    pub views: CacheViews,
    /// Format of the codes.
    pub format: Format,
    free: Vec<i32>,
}

impl KvCache {
    /// Allocates and poisons the cache of every layer.
    ///
    /// # Errors
    /// If the options describe no possible cache, or the device cannot give the memory.
    pub fn new(
        device: &DeviceRef,
        stream: StreamId,
        config: &Config,
        options: &CacheOptions,
    ) -> Result<Self, ModelError> {
        let pages = options.capacity.div_ceil(options.page_size.max(1)).max(1);
        let shape = CacheShape {
            pages,
            page_size: options.page_size,
            heads: config.num_kv_heads,
            k_dim: config.head_dim,
            v_dim: config.head_dim,
        };
        let views = CacheViews::new(CacheLayout::Nhd, Packing::UnbindOuter, shape, Padding::default())?;
        let layers = (0..config.layers)
            .map(|layer| new_layer(device, stream, &views, options, layer))
            .collect::<Result<_, _>>()?;
        let count = i32::try_from(pages).map_err(|_| ModelError::Argument {
            argument: "capacity",
            value: options.capacity.to_string(),
            accepted: format!("at most {} pages of {} tokens", i32::MAX, options.page_size),
        })?;
        let mut free: Vec<i32> = (0..count).collect();
        free.shuffle(&mut ChaCha8Rng::seed_from_u64(options.seed));
        Ok(Self { layers, views, format: options.format, free })
    }

    /// The format in which the model hands over queries, keys and values.
    #[must_use]
    pub fn presents(&self) -> Format {
        match (KvStore { dtype: dtype(self.format) }).presents() {
            DType::Bf16 => Format::Bf16,
            DType::F16 => Format::F16,
            _ => Format::F32,
        }
    }

    /// Tokens of a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.views.k.page_size
    }

    /// Free pages.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Gives a sequence the pages that it needs for more tokens. A sequence that cannot have all of them gets none.
    ///
    /// # Errors
    /// [`ModelError::CacheFull`].
    pub fn reserve(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), ModelError> {
        let needed = (sequence.len + tokens).div_ceil(self.page_size());
        let wanted = needed.saturating_sub(sequence.pages.len());
        if wanted > self.free.len() {
            return Err(ModelError::CacheFull { wanted, free: self.free.len(), all: self.views.k.pages });
        }
        sequence.pages.extend(self.free.drain(self.free.len() - wanted..));
        Ok(())
    }

    /// Takes back the pages of a sequence that has ended, however it ended.
    pub fn finish(&mut self, sequence: Sequence) {
        self.free.extend(sequence.pages);
    }

    /// The slot of a position: `page * page_size + slot in the page`.
    #[must_use]
    pub fn slot(&self, sequence: &Sequence, position: usize) -> i64 {
        let size = self.page_size();
        i64::from(sequence.pages[position / size]) * size as i64 + (position % size) as i64
    }

    /// Frees the memory of all layers and reports the first failure, after trying all.
    ///
    /// # Errors
    /// What the device reports.
    pub fn release(self) -> Result<(), ModelError> {
        let all = self.layers.into_iter().flat_map(|layer| {
            let scales = layer.scales.into_iter().flatten();
            scales.chain([layer.memory])
        });
        Ok(release_all(all)?)
    }
}

/// Frees every piece, whatever becomes of the others, and reports the first failure.
pub(super) fn release_all(pieces: impl Iterator<Item = Scratch>) -> DeviceResult<()> {
    let results: Vec<DeviceResult<()>> = pieces.map(Scratch::release).collect();
    results.into_iter().collect()
}

fn new_layer(
    device: &DeviceRef,
    stream: StreamId,
    views: &CacheViews,
    options: &CacheOptions,
    layer: usize,
) -> Result<LayerCache, ModelError> {
    let bytes = (views.k_elements * options.format.size_bytes()) as u64;
    let memory = Scratch::new(device, bytes, stream)?;
    device.memset(memory.ptr(), POISON, bytes, stream)?;
    let mut cache = PagedCache::unscaled(
        view(&memory, &views.k, options.format),
        view(&memory, &views.v, options.format),
    );
    let mut host_scales = [vec![1.0], vec![1.0]];
    let mut scales = None;
    if let Some(all) = &options.scales {
        host_scales = [all.k[layer].clone(), all.v[layer].clone()];
        let [k, v] = [upload(device, stream, &host_scales[0])?, upload(device, stream, &host_scales[1])?];
        cache.k_scale = per_head(&k, views.k.heads);
        cache.v_scale = per_head(&v, views.v.heads);
        scales = Some([k, v]);
    }
    Ok(LayerCache { memory, scales, cache, host_scales })
}

fn view(memory: &Scratch, view: &PagedView, format: Format) -> DeviceTensor {
    let allocation = Allocation { ptr: memory.ptr(), bytes: memory.bytes() };
    let offset = (view.offset * format.size_bytes()) as u64;
    let shape = [view.pages, view.page_size, view.heads, view.dim].map(|n| n as u64);
    let strides = [view.page_stride, view.slot_stride, view.head_stride, 1].map(|n| n as i64);
    DeviceTensor::strided(allocation, offset, dtype(format), &shape, &strides)
}

fn upload(device: &DeviceRef, stream: StreamId, values: &[f32]) -> Result<Scratch, ModelError> {
    let bytes = Format::F32.encode_to_bytes(values);
    let memory = Scratch::new(device, bytes.len() as u64, stream)?;
    device.copy_to_device(memory.ptr(), &bytes, stream)?;
    Ok(memory)
}

fn per_head(memory: &Scratch, heads: usize) -> Scale {
    let allocation = Allocation { ptr: memory.ptr(), bytes: memory.bytes() };
    Scale::PerHead(DeviceTensor::contiguous(allocation, DType::F32, &[heads as u64]))
}
