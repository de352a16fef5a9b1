//! What computes: the processor, or a CUDA device.

use std::fmt;
use std::str::FromStr;

use clap::Args;

use super::IsaArg;

/// What a model is computed on.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DeviceArgs {
    /// Device to compute on: auto, cpu, or cuda:N (cuda is cuda:0). For now auto is cpu: the CUDA
    /// kernels have not run on a device yet
    #[arg(long, value_name = "DEVICE", env = "AQUEDUCT_DEVICE", hide_env_values = true,
          default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Most memory of a CUDA device to use, in MiB, for weights, memory sets and computation
    /// [default: nine tenths of the memory free at start]
    #[arg(long, value_name = "MIB", env = "AQUEDUCT_DEVICE_MEMORY_MIB", hide_env_values = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) device_memory_mib: Option<u32>,
    #[command(flatten)]
    pub(crate) isa: IsaArg,
}

impl DeviceArgs {
    /// What was asked for. Who names an instruction set means the processor.
    pub(crate) fn choice(&self) -> DeviceChoice {
        match self.device {
            DeviceChoice::Auto if self.isa.isa.is_some() => DeviceChoice::Cpu,
            other => other,
        }
    }
}

/// What a user can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// The best that can serve the model.
    Auto,
    /// The processor.
    Cpu,
    /// The CUDA device of this index.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let index = match word {
            "auto" => return Ok(Self::Auto),
            "cpu" => return Ok(Self::Cpu),
            "cuda" => "0",
            other => other.strip_prefix("cuda:").unwrap_or_default(),
        };
        let index = index.bytes().all(|byte| byte.is_ascii_digit()).then(|| index.parse().ok());
        let refusal = || "must be auto, cpu, cuda or cuda:N".to_owned();
        index.flatten().map(Self::Cuda).ok_or_else(refusal)
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let check = |word: &str, want: Option<DeviceChoice>, shown: &str| {
            let choice = word.parse().ok();
            assert_eq!(choice, want, "{word:?}");
            assert_eq!(choice.map(|it: DeviceChoice| it.to_string()).unwrap_or_default(), shown);
        };
        check("auto", Some(DeviceChoice::Auto), "auto");
        check("cpu", Some(DeviceChoice::Cpu), "cpu");
        check("cuda", Some(DeviceChoice::Cuda(0)), "cuda:0");
        check("cuda:7", Some(DeviceChoice::Cuda(7)), "cuda:7");
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:x", "0", "CPU"] {
            check(wrong, None, "");
        }
    }
}
