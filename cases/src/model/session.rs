//! One model on one device: engines for each cache format, and what a run of each showed.

use kernels::device::{DeviceRef, StreamId};
use oracle::Format;

use super::calibrate::Scales;
use super::check::{Checks, Judge, LayerRecord};
use super::claim::Claim;
use super::decoder::Decoder;
use super::engine::{Engine, Launching};
use super::error::ModelError;
use super::generate::{Generation, Plan, generate};
use super::kv::CacheOptions;
use super::tokenizer::Tokenizer;

/// A model, a device, and how caches and launches are set up.
pub struct Session<'m> {
    /// The model.
    pub model: &'m Decoder,
    /// Its tokenizer.
    pub tokenizer: &'m Tokenizer,
    /// Where kernels run.
    pub device: DeviceRef,
    /// How attention is launched.
    pub launching: Launching,
    /// Which attention calls are judged.
    pub checks: Checks,
    /// Tokens of a page.
    pub page_size: usize,
    /// Seed of the order of pages.
    pub seed: u64,
    /// Whether fp8 caches get scales from a first pass.
    pub calibrate: bool,
}

/// What one request over one cache showed.
pub struct Served {
    /// Format of the cache.
    pub format: Format,
    /// The answer.
    pub generation: Generation,
    /// What the judge found, layer by layer.
    pub layers: Vec<LayerRecord>,
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Most bytes of the pool in use at once, the cache included.
    pub peak_bytes: u64,
    /// Scales of the cache, if it was calibrated.
    pub scales: Option<Scales>,
    /// What was claimed.
    pub claims: Vec<Claim>,
}

impl<'m> Session<'m> {
    /// An engine whose cache holds so many tokens.
    ///
    /// # Errors
    /// If the cache cannot be allocated.
    pub fn engine(
        &self,
        format: Format,
        capacity: usize,
        scales: Option<Scales>,
    ) -> Result<Engine<'m>, ModelError> {
        self.engine_on(&self.device, format, capacity, scales)
    }

    /// The same on another device.
    ///
    /// # Errors
    /// If the cache cannot be allocated.
    pub fn engine_on(
        &self,
        device: &DeviceRef,
        format: Format,
        capacity: usize,
        scales: Option<Scales>,
    ) -> Result<Engine<'m>, ModelError> {
        let options = CacheOptions { format, page_size: self.page_size, capacity, seed: self.seed, scales };
        let judge = Judge::new(self.checks, self.model.config());
        Engine::new(self.model, device, &options, self.launching, judge)
    }

    /// Scales for an fp8 cache: a bf16 cache sees the prompt, and the magnitudes of its keys and values give the scales.
    ///
    /// # Errors
    /// What stops the first pass.
    pub fn scales(&self, format: Format, prompt: &[u32]) -> Result<Option<Scales>, ModelError> {
        if !self.calibrate || format.size_bytes() != 1 {
            return Ok(None);
        }
        let mut engine = self.engine(Format::Bf16, prompt.len(), None)?;
        generate(&mut engine, prompt, Plan { max_tokens: 0, chunk: None, ends: None })?;
        let scales = engine.magnitudes.scales(format);
        engine.release()?;
        Ok(Some(scales))
    }

    /// Serves one request on a fresh cache, and says what can be said about it alone.
    ///
    /// # Errors
    /// What stops the request.
    pub fn serve(&self, format: Format, prompt: &[u32], plan: Plan<'_>) -> Result<Served, ModelError> {
        let scales = self.scales(format, prompt)?;
        self.device.synchronize(StreamId::DEFAULT)?;
        let baseline = self.device.pool()?.used;
        self.device.reset_high_water()?;
        let mut engine = self.engine(format, prompt.len() + plan.max_tokens, scales.clone())?;
        let generation =
            generate(&mut engine, prompt, plan).map_err(|error| match engine.judge.accusation() {
                // A wrong attention may well end in logits that are no numbers: the cause says more than the effect.
                Some(told) => ModelError::Accused { told, source: Box::new(error) },
                None => error,
            })?;
        self.device.synchronize(StreamId::DEFAULT)?;
        let pool = self.device.pool()?;
        let cache_bytes = (engine.cache().views.k_elements * format.size_bytes()) as u64;
        let cache_bytes = cache_bytes * self.model.config().layers as u64;
        let mut claims = vec![judged(&format.to_string(), &engine.judge)];
        let layers = engine.judge.layers.clone();
        engine.release()?;
        let left = self.device.pool()?.used;
        claims.push(Claim::unless(
            format!("{format}: the pool returns to its baseline"),
            (left != baseline).then(|| format!("{left} bytes in use, {baseline} before the request")),
        ));
        let peak_bytes = pool.high_water - baseline;
        Ok(Served { format, generation, layers, cache_bytes, peak_bytes, scales, claims })
    }
}

/// The claim that a judge can make.
#[must_use]
pub fn judged(name: &str, judge: &Judge) -> Claim {
    let what = format!(
        "{name}: {} of {} attention calls judged, {} elements within their bound, stored codes bit for bit",
        judge.judged(),
        judge.calls,
        judge.elements()
    );
    if judge.judged() == 0 {
        return Claim::skipped(
            format!("{name}: attention calls judged"),
            "--check none, or too few calls to sample",
        );
    }
    Claim::unless(what, judge.accusation())
}
