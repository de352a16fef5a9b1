//! `aqueduct doctor`: what the machine has, whether a model can be served on it, and what stands in
//! the way of a process that is to be started with the same flags.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aqueduct_coordinator::keys::Keys;
use aqueduct_coordinator::text::TextModel;
use aqueduct_core::{KvDtype, TokenId, limits};
use aqueduct_kernels::cuda::{libraries, nccl};
use aqueduct_kernels::{Cpu, CpuOptions, Cuda, IsaLevel};
use aqueduct_tls::Role;
use futures::future::{BoxFuture, FutureExt, join_all};
use serde::Serialize;

use crate::args::{DeviceArgs, DeviceChoice, DoctorArgs, IsaArg, ModelArgs};
use crate::doctor::{
    Check, State, cluster, disk, memory, open_files, ports, registry, tls, within, within_blocking,
};
use crate::loading::{self, Loaded};
use crate::machine::{self, Machine};
use crate::shown::{self, Shown, clean};
use crate::{exit, lines, report};

/// A large model is read for so long at most.
const MODEL_DEADLINE: Duration = Duration::from_secs(600);
/// What a journal comes to at most: its snapshot, a log as long, and beside both the next snapshot
/// until that is safe.
const JOURNAL_BYTES: u64 = 3 * (limits::JOURNAL_LIVE_BYTES_MAX + limits::JOURNAL_ENDED_BYTES_MAX);
/// One record of it, of the longest prompt.
const JOURNAL_RECORD_BYTES: u64 = limits::PROMPT_TOKENS_MAX as u64 * size_of::<TokenId>() as u64;

/// What is so, good or bad.
#[derive(Debug, Clone, Serialize)]
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
        /// The file of what multiplies many rows, or why there is none; where a device is.
        #[serde(skip_serializing_if = "Option::is_none")]
        cublaslt: Option<Library>,
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
        state_bytes: u64,
        eos: Vec<u32>,
    },
}

/// A library that need not be there.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Library {
    Found { file: PathBuf },
    Missing { missing: String },
}

/// All that was looked at.
#[derive(Debug, Serialize)]
struct Report {
    found: Vec<Finding>,
    checks: Vec<Check>,
}

/// One or more checks failed, which were shown.
#[derive(Debug, thiserror::Error)]
#[error("{failed} of {all} checks failed")]
struct Failed {
    failed: usize,
    all: usize,
}

/// Looks at all that the flags tell of.
///
/// # Errors
/// How many checks failed, after all were shown.
pub(crate) async fn run(args: DoctorArgs) -> anyhow::Result<()> {
    let mut report = Report { found: vec![look_at_machine(args.device.isa)?], checks: Vec::new() };
    report.checks.push(judge_devices(&report.found[0], args.device.choice()));
    report.checks.extend(judge_cublaslt(&report.found[0], args.device.choice()));
    if let Some(model) = &args.model {
        let (found, checks) = look_at_model(model, &args).await;
        report.found.extend(found);
        report.checks.extend(checks);
    }
    report.checks.extend(join_all(looks(&args)).await.into_iter().flatten());
    if args.json {
        report.found.iter().try_for_each(lines::print)?;
        report.checks.iter().try_for_each(lines::print)?;
    } else {
        lines::say(&shown::render(&report, args.output)?)?;
    }
    let failed = report.checks.iter().filter(|check| check.state == State::Fail).count();
    match failed {
        0 => Ok(()),
        _ => Err(Failed { failed, all: report.checks.len() }.into()),
    }
}

type Look = BoxFuture<'static, Vec<Check>>;

/// Everything but machine and model, in the order in which it is shown.
fn looks(args: &DoctorArgs) -> Vec<Look> {
    let deadline = args.deadline();
    let mut looks: Vec<Look> = vec![std::future::ready(config(args)).boxed()];
    let mut quick = |check: &'static str, look: Box<dyn FnOnce() -> Check + Send>| {
        looks.push(within_blocking(check, deadline, move || vec![look()]).boxed());
    };
    let addresses = [("http", &args.http), ("grpc", &args.grpc), ("listen", &args.listen)];
    for (flag, address) in addresses {
        let address = address.clone();
        quick("port", Box::new(move || ports::look(flag, &address)));
    }
    let folders = [
        ("data-dir", &args.data_dir, JOURNAL_RECORD_BYTES..JOURNAL_BYTES),
        // Who cannot keep snapshots there computes prompts again.
        ("snapshot-dir", &args.snapshot_dir, 0..args.snapshot_disk_bytes.0),
    ];
    for (flag, folder, bytes) in folders {
        if let Some(folder) = folder.clone() {
            quick("disk", Box::new(move || disk::look(flag, &folder, bytes)));
        }
    }
    quick("open files", Box::new(open_files::look));
    let (members, anybody): (&[Role], &[Role]) = (&[Role::Coordinator, Role::Worker], &[]);
    let planes = [
        ("api", args.server.files(), anybody),
        ("cluster", args.cluster_tls.files(), members),
        ("etcd", args.etcd.files(), anybody),
    ];
    for (plane, (identity, ca), roles) in planes {
        if let Some(identity) = identity {
            let roles: Vec<_> = roles.iter().map(|role| role.name()).collect();
            let look = move || tls::look(plane, &identity, ca.as_deref(), &roles);
            quick("certificate", Box::new(look));
        }
    }
    if let Ok(Some(etcd)) = args.etcd.etcd(&Default::default()) {
        looks.push(within("etcd", deadline, registry::look(etcd)).boxed());
    }
    if let Ok(Some((url, options))) = args.server.named() {
        looks.push(within("server", deadline, cluster::look(url, options)).boxed());
    }
    looks
}

/// Whether flags and files fit together.
fn config(args: &DoctorArgs) -> Vec<Check> {
    let keys = || args.api_keys.as_deref().map(Keys::open).transpose().map(drop);
    let settings = [
        ("config of contexts", args.server.named().map(drop)),
        ("config of the API", args.server.check_pair().map_err(anyhow::Error::from)),
        ("config of etcd", args.etcd.etcd(&Default::default()).map(drop)),
        ("config of the group", args.group.group().map(drop).map_err(anyhow::Error::from)),
        ("config of API keys", keys().map_err(anyhow::Error::from)),
        ("config of the pool", args.pool.bytes().map(drop).map_err(anyhow::Error::from)),
    ];
    let failed = |(check, error): (&str, anyhow::Error)| {
        Check::fail(check, exit::one_line(&error), "mend the flag, variable or file that it names")
    };
    let wrong = settings.into_iter().filter_map(|(check, it)| it.err().map(|error| (check, error)));
    let mut checks: Vec<_> = wrong.map(failed).collect();
    if checks.is_empty() {
        checks.push(Check::ok("config", "flags, variables and files fit together"));
    }
    checks
}

fn judge_devices(machine: &Finding, wanted: DeviceChoice) -> Check {
    let Finding::Machine { cuda_devices, cuda_missing, .. } = machine else {
        return Check::ok("gpu", "not looked for");
    };
    match (cuda_missing, wanted) {
        (Some(missing), DeviceChoice::Cuda(_)) => {
            let next = "install NVIDIA's driver, and run containers with --gpus; or --device cpu";
            Check::fail("gpu", missing, next)
        }
        (None, DeviceChoice::Cuda(index)) if index >= cuda_devices.len() => {
            let found = format!("device {index} of {}", cuda_devices.len());
            Check::fail("gpu", found, "give --device one that there is, counted from 0")
        }
        (Some(missing), _) => Check::ok("gpu", format!("{missing}: the processor computes")),
        (None, _) => Check::ok("gpu", cuda_devices.join("; ")),
    }
}

/// Without it a device works, and takes longer for a chunk.
fn judge_cublaslt(machine: &Finding, wanted: DeviceChoice) -> Option<Check> {
    let Finding::Machine { cublaslt: Some(library), .. } = machine else { return None };
    match library {
        _ if wanted == DeviceChoice::Cpu => None,
        Library::Found { file } => Some(Check::ok("cuBLASLt", file.display().to_string())),
        Library::Missing { missing } => {
            let next = "install NVIDIA's cuBLAS (Python: nvidia-cublas-cu12), and name its folder \
                        in LD_LIBRARY_PATH; our own kernels multiply without it, more slowly";
            Some(Check::warn("cuBLASLt", missing, next))
        }
    }
}

fn look_at_cublaslt() -> Library {
    let [cublaslt, ..] = libraries();
    match cublaslt.file {
        Ok(file) => Library::Found { file },
        Err(missing) => Library::Missing { missing },
    }
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
    let cublaslt = cuda_missing.is_none().then(look_at_cublaslt);
    Ok(Finding::Machine {
        machine: Machine::look(),
        instruction_set: cpu.isa().to_string(),
        instruction_sets: IsaLevel::available().map(|level| level.to_string()).collect(),
        threads: cpu.threads(),
        cuda_devices,
        cuda_missing,
        nccl,
        cublaslt,
        commit: machine::COMMIT,
    })
}

/// What the model is, where it can be loaded, and whether it fits.
async fn look_at_model(path: &Path, args: &DoctorArgs) -> (Option<Finding>, Vec<Check>) {
    let pool_bytes = args.pool.bytes().unwrap_or(0);
    let fits = memory::look(path, pool_bytes);
    let loaded = tokio::time::timeout(MODEL_DEADLINE, load_model(path, args.device)).await;
    let next = "give --model a folder or file that is whole; `aqueduct serve` would refuse it too";
    match loaded {
        Ok(Ok(found)) => {
            let fits = match &found {
                Finding::Model { state_bytes, .. } => memory::with_states(fits, *state_bytes),
                Finding::Machine { .. } => fits,
            };
            (Some(found), vec![Check::ok("model", "it can be served"), fits])
        }
        Ok(Err(error)) => (None, vec![Check::fail("model", exit::one_line(&error), next), fits]),
        Err(_) => {
            let found = format!("not loaded within {} s", MODEL_DEADLINE.as_secs());
            (None, vec![Check::fail("model", found, "take a disk that is quicker"), fits])
        }
    }
}

async fn load_model(path: &Path, device: DeviceArgs) -> anyhow::Result<Finding> {
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
        state_bytes: shape.state_bytes,
        eos: text.eos().to_vec(),
    })
}

impl Shown for Report {
    fn table(&self, _wide: bool) -> String {
        let found: String = self.found.iter().map(described).collect();
        let line = |check: &Check| {
            let Check { check, state, found, next } = check;
            let next = if next.is_empty() { String::new() } else { format!("      -> {next}\n") };
            format!("{:<4}  {check}: {}\n{next}", state.as_str(), clean(found))
        };
        found + "\n" + &self.checks.iter().map(line).collect::<String>()
    }
}

fn described(finding: &Finding) -> String {
    match finding {
        Finding::Machine {
            machine,
            instruction_set,
            instruction_sets,
            threads,
            cuda_devices,
            cuda_missing,
            nccl,
            commit,
            ..
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
            state_bytes,
            ..
        } => {
            let states = match state_bytes {
                0 => String::new(),
                bytes => format!("states        {}, however many tokens\n", report::bytes(*bytes)),
            };
            let (positions, all) = match max_positions {
                0 => ("any number of".to_owned(), String::new()),
                most => {
                    let bytes = kv_bytes_per_token * u64::from(*most);
                    (most.to_string(), format!(", {} for all positions", report::bytes(bytes)))
                }
            };
            format!(
                "model         {model}: ok on {device}, fingerprint {fingerprint}\n\
                 {:14}{layers} layers, {vocab} tokens, {positions} positions\n\
                 keys, values  {} a token{all}\n{states}",
                "",
                report::bytes(*kv_bytes_per_token),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cublaslt: Option<Library>) -> Finding {
        let Finding::Machine { machine, commit, .. } =
            look_at_machine(IsaArg { isa: None }).unwrap()
        else {
            unreachable!("that is what it looks at")
        };
        Finding::Machine {
            machine,
            instruction_set: String::new(),
            instruction_sets: Vec::new(),
            threads: 1,
            cuda_devices: vec!["H100".into()],
            cuda_missing: None,
            nccl: None,
            cublaslt,
            commit,
        }
    }

    #[test]
    fn a_device_without_cublaslt_is_a_warning() {
        let check = |cublaslt: Option<Library>, wanted, state: Option<State>| {
            let judged = judge_cublaslt(&machine(cublaslt), wanted);
            assert_eq!(judged.as_ref().map(|it| it.state), state, "{judged:?}");
        };
        let missing = || Some(Library::Missing { missing: "libcublasLt: none".into() });
        let found = || Some(Library::Found { file: "/lib/libcublasLt.so.12".into() });
        check(missing(), DeviceChoice::Auto, Some(State::Warn));
        check(missing(), DeviceChoice::Cuda(0), Some(State::Warn));
        check(found(), DeviceChoice::Cuda(0), Some(State::Ok));
        check(missing(), DeviceChoice::Cpu, None);
        check(None, DeviceChoice::Auto, None);
    }
}
