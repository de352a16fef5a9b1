//! Loads a model onto what computes, with a bar on a terminal.

use std::sync::Arc;

use anyhow::Context;
use aqueduct_core::{KvDtype, Refusal, limits};
use aqueduct_engine::{LoadOptions, LoadProgress, Model, WeightDtype};
use aqueduct_kernels::{Backend, Cpu, CpuOptions, Cuda, CudaError, CudaOptions};

use crate::args::{DeviceChoice, ModelArgs, WeightsArg};
use crate::progress;

/// A model and what computes with it.
#[derive(Clone)]
pub(crate) struct Loaded {
    /// Shared by all workers of the process.
    pub(crate) model: Arc<Model>,
    /// `cpu` or `cuda:N`.
    pub(crate) device: String,
    /// Compute threads of all workers together.
    pub(crate) threads: usize,
}

impl Loaded {
    /// Whether the processor computes.
    pub(crate) fn on_cpu(&self) -> bool {
        self.device == DeviceChoice::Cpu.to_string()
    }
}

/// Loads the model onto the device that `args` choose; on the processor `threads` threads
/// compute, one for each core when 0.
///
/// # Errors
/// What is wrong with the model, by file and field; a device that is not there; threads that the
/// system refuses.
pub(crate) async fn load(args: &ModelArgs, threads: usize) -> anyhow::Result<Loaded> {
    let args = args.clone();
    tokio::task::spawn_blocking(move || load_on_choice(&args, threads)).await?
}

/// Loads the model for the backend that `backend` makes of the processor. Blocks.
///
/// # Errors
/// As [`load`] has it.
pub(crate) fn load_on_cpu(
    args: &ModelArgs,
    threads: usize,
    backend: impl FnOnce(Cpu) -> Arc<dyn Backend>,
) -> anyhow::Result<Loaded> {
    check(threads)?;
    let cpu = Cpu::new(CpuOptions { threads, isa: args.device.isa.isa })?;
    let threads = cpu.threads();
    let model = load_with(args, backend(cpu))?;
    Ok(Loaded { model, device: DeviceChoice::Cpu.to_string(), threads })
}

fn load_on_choice(args: &ModelArgs, threads: usize) -> anyhow::Result<Loaded> {
    check(threads)?;
    let choice = args.device.choice();
    let on_cuda = match choice {
        DeviceChoice::Cpu => None,
        DeviceChoice::Cuda(index) => {
            let loaded = load_on_cuda(args, index);
            Some(loaded.with_context(|| format!("device = {choice}"))?)
        }
        DeviceChoice::Auto => load_on_cuda_if_sure(args).map_err(|why| say_why_not(&why)).ok(),
    };
    match on_cuda {
        Some(loaded) => Ok(loaded),
        None => load_on_cpu(args, threads, |cpu| Arc::new(cpu)),
    }
}

fn check(threads: usize) -> Result<usize, Refusal> {
    Refusal::unless_within("threads", threads, 0, limits::THREADS_MAX)
}

fn load_on_cuda(args: &ModelArgs, index: usize) -> anyhow::Result<Loaded> {
    let memory_bytes = args.device.device_memory_mib.map(|mib| (mib as usize) << 20);
    let cuda = Cuda::open(index, CudaOptions { memory_bytes, ..CudaOptions::default() })?;
    let model = load_with(args, Arc::new(cuda))?;
    Ok(Loaded { model, device: DeviceChoice::Cuda(index).to_string(), threads: 1 })
}

/// Whether a device computes although nobody asked for it. Its kernels have passed every test on
/// the emulator, and have never run on a device: true once `ops/gpu/check` has passed on one.
const SURE_OF_CUDA: bool = false;

fn load_on_cuda_if_sure(args: &ModelArgs) -> anyhow::Result<Loaded> {
    let devices = Cuda::devices()?;
    if !SURE_OF_CUDA {
        let name = devices.join(", ");
        anyhow::bail!("{name}: used with --device cuda alone, until kernels have been tried on it");
    }
    load_on_cuda(args, 0)
}

fn say_why_not(error: &anyhow::Error) {
    match error.downcast_ref() {
        Some(CudaError::None { .. }) => tracing::info!("{error}: the processor computes"),
        _ => tracing::warn!("{error:#}: the processor computes"),
    }
}

fn load_with(args: &ModelArgs, backend: Arc<dyn Backend>) -> anyhow::Result<Arc<Model>> {
    let options = LoadOptions {
        kv: match args.kv {
            KvDtype::F32 => aqueduct_kernels::KvDtype::F32,
            KvDtype::Bf16 => aqueduct_kernels::KvDtype::Bf16,
        },
        weights: match args.weights {
            WeightsArg::Auto => WeightDtype::Auto,
            WeightsArg::F32 => WeightDtype::F32,
            WeightsArg::Bf16 => WeightDtype::Bf16,
            WeightsArg::Int8 => WeightDtype::Int8,
        },
        backend,
    };
    let bar = progress::model_bar();
    let model = Model::load(&args.model, &options, &mut |at: LoadProgress| {
        bar.set_length(at.bytes);
        bar.set_position(at.bytes_done);
    })?;
    bar.finish_and_clear();
    Ok(Arc::new(model))
}
