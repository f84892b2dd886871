//! The `cuda` device: an NVIDIA GPU through the driver API, with kernels compiled by NVRTC.
//!
//! Both libraries are loaded at run time, so a binary with this module starts where there is no CUDA and says so.
mod device;
mod driver;
mod hold;
mod nvrtc;

pub use device::{CudaDevice, CudaOptions};
pub use hold::Hold;
pub use nvrtc::{CompiledKernel, ResourceUse, compile_to_cubin, compiler_version};
