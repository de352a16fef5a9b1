//! The CUDA backend passes the conformance suite: its kernels run on this processor.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use aqueduct_kernels::cuda::{Cuda, CudaOptions};

fn emulated(capability: u32) -> Cuda {
    let options = CudaOptions { checked: true, ..CudaOptions::default() };
    Cuda::emulated(capability, options).expect("kernels compile")
}

mod capability90 {
    aqueduct_kernels::conformance_tests!(Some(super::emulated(90)));
}

mod capability80 {
    aqueduct_kernels::conformance_tests!(Some(super::emulated(80)));
}
