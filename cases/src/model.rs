//! A small real model over the paged kernels: does an fp8 cache give the same tokens as a bf16 cache?
//!
//! The decoder is written plainly and runs on the host, except for what this project is about: keys and values are stored
//! by `reshape_and_cache` into shuffled pages, and attention is served by the routed arms on a device. Any attention
//! call on the way can be judged like a case: the stored codes bit for bit, the output against the oracle.
//!
//! | module | what it knows |
//! | --- | --- |
//! | `gguf`, `tokenizer` | what is in a model file |
//! | `decoder` | the llama architecture, attention left open |
//! | `kv`, `batch`, `engine`, `timer` | pages, launches, steps of several requests |
//! | `check` | which calls are judged, and what was found |
//! | `calibrate` | scales from a first pass |
//! | `generate`, `speculate`, `perplexity` | what can be done with steps |
//! | `session`, `scenarios`, `claim`, `report` | what must be so, whether it is, and how it is told |

pub mod batch;
pub mod calibrate;
pub mod check;
pub mod claim;
pub mod decoder;
pub mod engine;
pub mod error;
pub mod generate;
pub mod gguf;
pub mod kv;
pub mod perplexity;
pub mod report;
pub mod scenarios;
pub mod session;
pub mod speculate;
pub mod timer;
pub mod tokenizer;
