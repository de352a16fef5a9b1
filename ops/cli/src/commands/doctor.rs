//! `aqueduct doctor`: what the machine has, and whether a model can be served on it.

use std::path::Path;

use aqueduct_coordinator::text::TextModel;
use aqueduct_core::KvDtype;
use aqueduct_kernels::cuda::nccl;
use aqueduct_kernels::{Cpu, CpuOptions, Cuda, IsaLevel};
use serde::Serialize;

use crate::args::{DeviceArgs, DoctorArgs, IsaArg, ModelArgs};
use crate::loading::{self, Loaded};
use crate::machine::{self, Machine};
use crate::{lines, report};

#[derive(Debug, Serialize)]
#[serde(tag = "check", rename_all = "snake_case")]
enum Finding {
    Machine {
        #[serde(flatten)]
        machine: Machine,
        instruction_set: String,
        instruction_sets: Vec<String>,
        threads: usize,
        /// At least one, unless `cuda_missing` says why not.
        cuda_devices: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cuda_missing: Option<String>,
        /// What takes memory sets from device to device, or why nothing does; where a device is.
        #[serde(skip_serializing_if = "Option::is_none")]
        nccl: Option<String>,
        commit: &'static str,
    },
    Model {
        model: String,
        device: String,
        fingerprint: String,
        layers: u32,
        vocab: u32,
        max_positions: u32,
        kv_bytes_per_token: u64,
        eos: Vec<u32>,
    },
}

/// Looks at the machine and, if asked, at a model.
///
/// # Errors
/// What is wrong with the model.
pub(crate) async fn run(args: DoctorArgs) -> anyhow::Result<()> {
    show(&look_at_machine(args.device.isa)?, args.json)?;
    if let Some(model) = &args.model {
        show(&look_at_model(model, args.device).await?, args.json)?;
    }
    Ok(())
}

fn look_at_machine(isa: IsaArg) -> anyhow::Result<Finding> {
    let cpu = Cpu::new(CpuOptions { isa: isa.isa, ..CpuOptions::default() })?;
    let (cuda_devices, cuda_missing) = match Cuda::devices() {
        Ok(devices) => (devices, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let nccl = cuda_missing.is_none().then(|| match nccl::name() {
        Ok(name) => name,
        Err(error) => error.to_string(),
    });
    Ok(Finding::Machine {
        machine: Machine::look(),
        instruction_set: cpu.isa().to_string(),
        instruction_sets: IsaLevel::available().map(|level| level.to_string()).collect(),
        threads: cpu.threads(),
        cuda_devices,
        cuda_missing,
        nccl,
        commit: machine::COMMIT,
    })
}

async fn look_at_model(path: &Path, device: DeviceArgs) -> anyhow::Result<Finding> {
    let args = ModelArgs::plain(path.into(), device);
    let Loaded { model, device, .. } = loading::load(&args, 0).await?;
    let text = TextModel::load(path)?;
    let shape = model.shape();
    Ok(Finding::Model {
        model: path.display().to_string(),
        device,
        fingerprint: model.fingerprint().to_owned(),
        layers: shape.layers,
        vocab: shape.vocab,
        max_positions: shape.max_positions,
        kv_bytes_per_token: shape.kv_bytes(1, KvDtype::Bf16),
        eos: text.eos().to_vec(),
    })
}

fn show(finding: &Finding, json: bool) -> std::io::Result<()> {
    if json {
        return lines::print(finding);
    }
    lines::say(&match finding {
        Finding::Machine {
            machine,
            instruction_set,
            instruction_sets,
            threads,
            cuda_devices,
            cuda_missing,
            nccl,
            commit,
        } => {
            let memory = machine.memory_bytes.map_or("unknown".into(), report::bytes);
            let cuda = cuda_missing.clone().unwrap_or_else(|| cuda_devices.join("; "));
            let nccl = nccl.iter().map(|nccl| format!("NCCL          {nccl}\n"));
            format!(
                "processor     {}\n\
                 cores         {}, {threads} compute threads\n\
                 instructions  {instruction_set} (there are {})\n\
                 memory        {memory}\n\
                 CUDA          {cuda}\n\
                 {}commit        {commit}\n",
                machine.cpu,
                machine.cores,
                instruction_sets.join(", "),
                nccl.collect::<String>(),
            )
        }
        Finding::Model {
            model,
            device,
            fingerprint,
            layers,
            vocab,
            max_positions,
            kv_bytes_per_token,
            ..
        } => format!(
            "model         {model}: ok on {device}, fingerprint {fingerprint}\n\
             {:14}{layers} layers, {vocab} tokens, {max_positions} positions\n\
             keys, values  {} a token, {} for all positions\n",
            "",
            report::bytes(*kv_bytes_per_token),
            report::bytes(kv_bytes_per_token * u64::from(*max_positions)),
        ),
    })
}
