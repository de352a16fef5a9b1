//! Which model, and how it is held.

use std::path::PathBuf;

use aqueduct_core::KvDtype;
use aqueduct_kernels::IsaLevel;
use clap::{Args, ValueEnum};

use super::DeviceArgs;

/// The model of an embedded cluster or a worker.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// Model: Hugging Face folder (config.json, tokenizer.json, *.safetensors) or GGUF file
    #[arg(long, value_name = "PATH")]
    pub(crate) model: PathBuf,
    /// KV cache type: f32 or bf16
    #[arg(long, value_name = "DTYPE", default_value_t = KvDtype::Bf16)]
    pub(crate) kv: KvDtype,
    /// Type of weights in memory: auto, f32, bf16 or int8. With --kv bf16, auto is bf16 for a bf16
    /// file, int8 for a quantised GGUF and f32 for the rest; with --kv f32, auto is f32, exact
    #[arg(long, value_name = "DTYPE", hide_possible_values = true,
          value_enum, default_value_t = WeightsArg::Auto)]
    pub(crate) weights: WeightsArg,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

impl ModelArgs {
    /// The model at `path`, held as --weights auto says unless somebody says otherwise.
    pub(crate) fn plain(path: PathBuf, device: DeviceArgs) -> Self {
        Self { model: path, kv: KvDtype::Bf16, weights: WeightsArg::Auto, device }
    }
}

/// Which of its instruction sets the processor computes with.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct IsaArg {
    /// CPU instruction set: portable, neon, avx2, avxvnni, avx512, avx512vnni, avx512bf16 or amx
    /// [default: the fastest that the CPU has]
    #[arg(long, value_name = "ISA", env = "AQUEDUCT_ISA", hide_env_values = true)]
    pub(crate) isa: Option<IsaLevel>,
}

/// How weights are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightsArg {
    Auto,
    F32,
    Bf16,
    Int8,
}

impl WeightsArg {
    /// The word that a user writes.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}
