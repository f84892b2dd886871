//! What is under test: CUDA sources, the devices that run them, launch code, routes and scratch.
pub mod cuda;
pub mod device;
pub mod source;
