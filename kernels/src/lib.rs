//! What is under test: CUDA sources, the devices that run them, launch code, routes and scratch.
pub mod args;
pub mod arm;
pub mod cuda;
pub mod device;
pub mod error;
pub mod launch;
mod params;
mod scalar;
pub mod scratch;
pub mod source;
pub mod store;
pub mod tensor;
pub mod validate;
