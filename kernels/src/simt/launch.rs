//! Runs one launch from first block to last.

use std::ffi::c_void;

use super::block::{Block, BlockEnd};
use super::check::Checker;
use super::device::invalid;
use super::fiber::{Arena, MAX_LANES};
use super::global_shadow::GlobalShadow;
use super::memory::Memory;
use super::module::Module;
use super::options::{Mode, SimtOptions};
use super::schedule::Order;
use super::shared_shadow::SharedShadow;
use crate::device::{DeviceError, DeviceResult, Finding, FindingKind, LaunchConfig};

/// What a launch did wrong.
pub(super) struct Outcome {
    pub findings: Vec<Finding>,
    /// Whether the launch was stopped before its end.
    pub stopped: bool,
}

/// The limits of every device since compute capability 3.0, and those of this one.
pub(super) fn validate(
    options: &SimtOptions,
    module: &Module,
    config: LaunchConfig,
    params: &[u8],
) -> DeviceResult<()> {
    const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
    const BLOCK: [u32; 3] = [1024, 1024, 64];
    let within =
        |sizes: [u32; 3], limits: [u32; 3]| sizes.iter().zip(limits).all(|(&s, l)| (1..=l).contains(&s));
    if !within(config.grid, GRID) {
        return Err(invalid("launch", "grid", format!("{:?}", config.grid), format!("1 to {GRID:?}")));
    }
    let lanes: u64 = config.block.iter().map(|&b| u64::from(b)).product();
    let most = u64::from(module.max_threads.unwrap_or(MAX_LANES as u32)).min(MAX_LANES as u64);
    if !within(config.block, BLOCK) || lanes > most {
        let accepted = format!("1 to {BLOCK:?}, at most {most} threads");
        return Err(invalid("launch", "block", format!("{:?}", config.block), accepted));
    }
    if config.shared_bytes > options.max_shared_bytes {
        let accepted = format!("at most {}", options.max_shared_bytes);
        return Err(invalid("launch", "shared_bytes", config.shared_bytes, accepted));
    }
    if params.len() != module.params_bytes {
        let accepted = format!("the {} bytes of the parameters of {}", module.params_bytes, module.label);
        return Err(invalid("launch", "params", format!("{} bytes", params.len()), accepted));
    }
    Ok(())
}

/// Runs a launch. Arguments have been checked; an error is one of the surroundings.
pub(super) fn run(
    options: &SimtOptions,
    memory: &Memory,
    shadow: Option<&mut GlobalShadow>,
    module: &Module,
    config: LaunchConfig,
    params: &[u8],
    number: u64,
) -> DeviceResult<Outcome> {
    let lanes = config.block.iter().product::<u32>() as usize;
    let arena = Arena::get().and_then(|arena| arena.borrow(lanes));
    let segment = arena.map_err(|e| DeviceError::Environment(format!("cannot map fiber stacks: {e}")))?;
    let mut order = Order::new(options.schedule, number);
    let walk = order.blocks(config.grid.iter().map(|&g| u64::from(g)).product());
    let shared_bytes = config.shared_bytes as usize;
    let mut block = Block::new(config.block, config.grid, shared_bytes, segment, module, order);
    if let Some(global) = shadow {
        let reserve = |e| DeviceError::Environment(format!("cannot map the shadow of device memory: {e}"));
        global.start_launch(walk.len()).map_err(reserve)?;
        let shared = SharedShadow::new(shared_bytes, block.warps.len());
        let checker = Checker::new(memory, module, global, shared, block.shared as usize, config.grid, walk);
        block.checker = Some(Box::new(checker));
    }
    let params = AlignedBytes::new(params);
    let mut stopped = false;
    for index in walk.iter() {
        block.fill_shared(options.fill.byte());
        // SAFETY: the block lives on this frame and nothing else refers to it; the parameters were checked to have
        // the kernel's size.
        let end = unsafe { Block::run(&raw mut block, index, params.as_ptr()) };
        if end == BlockEnd::Stopped {
            stopped = true;
            break;
        }
    }
    let mut findings = std::mem::take(&mut block.findings).into_findings(module);
    if options.mode == Mode::Fast {
        findings.extend(broken_canaries(memory, module));
    }
    Ok(Outcome { findings, stopped })
}

/// Parameter bytes at an address that suits every parameter struct.
struct AlignedBytes(Vec<u128>);

impl AlignedBytes {
    fn new(bytes: &[u8]) -> Self {
        let words = bytes.chunks(16).map(|chunk| {
            let mut word = [0; 16];
            word[..chunk.len()].copy_from_slice(chunk);
            u128::from_ne_bytes(word)
        });
        Self(words.collect())
    }

    fn as_ptr(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }
}

fn broken_canaries(memory: &Memory, module: &Module) -> Vec<Finding> {
    let broken = memory.broken_canaries().into_iter().map(|(allocation, at)| {
        memory.write_canaries(&allocation);
        let place = if at < allocation.start {
            format!("{} bytes before the start", allocation.start - at)
        } else {
            format!("{} bytes past the end", at - allocation.end())
        };
        Finding {
            kind: FindingKind::Canary,
            message: format!(
                "a byte {place} of a {}-byte allocation changed during {}",
                allocation.bytes, module.label
            ),
            site: None,
            other_site: None,
            count: 1,
        }
    });
    broken.collect()
}
