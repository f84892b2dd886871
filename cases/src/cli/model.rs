//! `attest model`.

#[cfg(feature = "model")]
mod run;

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use super::options::DeviceChoice;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest model MODEL.gguf                                     the same tokens with a bf16 and an e4m3 cache?
  attest model MODEL.gguf --kv e4m3 --calibrate --check all   scales per head from a first pass, every call judged
  attest model MODEL.gguf --scenarios --device simt           chunked, continued, speculative, batched, with faults
  attest model MODEL.gguf --perplexity book.txt               bf16, e4m3 and e5m2 over a text";

/// Run a small real model over the paged kernels: the same tokens with a bf16 and an fp8 cache?
///
/// Keys and values go through the store kernel into shuffled pages, attention through the routed arms. The model is a
/// llama-style GGUF file such as `scripts/fetch-model` gets.
#[derive(Debug, Args)]
#[cfg_attr(not(feature = "model"), allow(dead_code, reason = "without the feature, options are only parsed"))]
pub(super) struct Model {
    /// The model, a GGUF file of the llama architecture.
    file: PathBuf,
    /// The text to continue.
    #[arg(long, value_name = "TEXT", default_value = "The capital of France is")]
    prompt: String,
    /// Take the prompt from a file instead.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// Most tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 8)]
    max_tokens: usize,
    /// Format of the cache: `both` compares bf16 with e4m3.
    #[arg(long, value_name = "FORMAT", default_value = "both")]
    kv: Kv,
    /// Prefill in chunks of this many tokens. Default: the whole prompt at once.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    chunk: Option<usize>,
    /// Which attention calls are judged: none, one in eight with a sample of rows, or all.
    #[arg(long, value_name = "WHICH", default_value = "sampled")]
    check: CheckChoice,
    /// Give fp8 caches a scale per layer and KV head, from the magnitudes that a bf16 pass over the prompt sees.
    #[arg(long)]
    calibrate: bool,
    /// Also serve the request in every other way: in chunks, continued after decode, with drafted tokens verified four rows
    /// at once, in a batch with another request, and with injected faults. The answer must stay the same.
    #[arg(long)]
    scenarios: bool,
    /// The other request of `--scenarios`: served beside the first, and typed after its answer.
    #[arg(long, value_name = "TEXT", default_value = " The largest city of Japan, seen from the sea, is")]
    other: String,
    /// Also measure how well the model predicts a text with a bf16, an e4m3 and an e5m2 cache.
    #[arg(long, value_name = "FILE")]
    perplexity: Option<PathBuf>,
    /// Tokens of the text to use. Default: all.
    #[arg(long, value_name = "N", requires = "perplexity")]
    perplexity_tokens: Option<usize>,
    /// Tokens that see each other in `--perplexity`.
    #[arg(long, value_name = "N", default_value_t = 512, requires = "perplexity")]
    window: usize,
    /// Serve attention by this arm instead of the route's choice.
    #[arg(long, value_name = "ARM")]
    arm: Option<kernels::arm::Arm>,
    /// Tokens of a page.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    page_size: usize,
    /// Seed of the order in which pages are handed out.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where kernels run. `auto` takes a card if there is one, else `simt`, and says which.
    #[arg(long, value_name = "DEVICE", env = "ATTEST_DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// Check every access of every kernel (simt). Slow: a token takes minutes.
    #[arg(long)]
    checked: bool,
    /// Run kernels in this process instead of a child that may crash.
    #[arg(long, hide = true)]
    in_process: bool,
}

/// Formats of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[cfg_attr(not(feature = "model"), allow(dead_code, reason = "without the feature, options are only parsed"))]
enum Kv {
    Bf16,
    E4m3,
    E5m2,
    Both,
}

/// Which calls are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CheckChoice {
    None,
    Sampled,
    All,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "accepted: a whole number of at least 1".to_owned())
}

#[cfg(not(feature = "model"))]
impl Model {
    pub fn run(self) -> Result<u8, Failure> {
        Err(Failure::surroundings(
            "this binary was built without the feature `model`; build it with \
             `cargo build --release --features model`, or run \
             `cargo run --release --features model -- model FILE.gguf`",
        ))
    }
}
