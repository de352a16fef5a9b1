//! Loads a model, with a bar on a terminal.

use std::sync::Arc;

use aqueduct_core::{KvDtype, Refusal, limits};
use aqueduct_engine::{LoadOptions, LoadProgress, Model, WeightDtype};
use aqueduct_kernels::{Backend, Cpu, CpuOptions};

use crate::args::{ModelArgs, WeightsArg};
use crate::progress;

/// A model and the threads that compute with it.
#[derive(Clone)]
pub(crate) struct Loaded {
    /// Shared by all workers of the process.
    pub(crate) model: Arc<Model>,
    /// Compute threads of all workers together.
    pub(crate) threads: usize,
}

/// Loads the model for a backend of `threads` threads, one for each core when 0.
///
/// # Errors
/// What is wrong with the model, by file and field; threads that the system refuses.
pub(crate) async fn load(args: &ModelArgs, threads: usize) -> anyhow::Result<Loaded> {
    let args = args.clone();
    tokio::task::spawn_blocking(move || load_on(&args, threads, |cpu| Arc::new(cpu))).await?
}

/// Loads the model for the backend that `backend` makes of the processor. Blocks.
///
/// # Errors
/// As [`load`] has it.
pub(crate) fn load_on(
    args: &ModelArgs,
    threads: usize,
    backend: impl FnOnce(Cpu) -> Arc<dyn Backend>,
) -> anyhow::Result<Loaded> {
    Refusal::unless_within("threads", threads, 0, limits::THREADS_MAX)?;
    let cpu = Cpu::new(CpuOptions { threads, isa: args.isa.isa })?;
    let threads = cpu.threads();
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
        backend: backend(cpu),
    };
    let bar = progress::model_bar();
    let model = Model::load(&args.model, &options, &mut |at: LoadProgress| {
        bar.set_length(at.bytes);
        bar.set_position(at.bytes_done);
    })?;
    bar.finish_and_clear();
    Ok(Loaded { model: Arc::new(model), threads })
}
