//! What computes: the reference, every instruction set of the processor, and emulated devices.

use std::sync::Arc;

use aqueduct_kernels::{Backend, Cpu, CpuOptions, IsaLevel, Reference};

pub(crate) fn backends() -> Vec<Arc<dyn Backend>> {
    let mut all: Vec<Arc<dyn Backend>> = vec![Arc::new(Reference)];
    for isa in IsaLevel::available() {
        let options = CpuOptions { threads: 2, isa: Some(isa) };
        all.push(Arc::new(Cpu::new(options).unwrap()));
    }
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    for capability in [80, 90] {
        let cuda = aqueduct_kernels::cuda::Cuda::emulated(capability, Default::default());
        all.push(Arc::new(cuda.unwrap()));
    }
    all
}
