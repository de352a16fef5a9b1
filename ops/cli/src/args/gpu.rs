//! Arguments of `aqueduct gpu`.

use clap::{Args, Subcommand};

/// What can be asked of a CUDA device.
#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// List the CUDA devices of this machine, and the files of NVIDIA's libraries
    Devices,
    /// Check every kernel on a CUDA device against its definition in f64
    Check(GpuCheckArgs),
    /// Time the kernels of a CUDA device, compared with the chip's limits
    Bench(GpuBenchArgs),
    /// Test NCCL: send memory sets from a device to itself and to another one
    Nccl(GpuArg),
}

/// Which device.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct GpuArg {
    /// Index of the device, as `aqueduct doctor` lists them
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    pub(crate) index: usize,
}

/// Arguments of `aqueduct gpu check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Runs the conformance suite of all backends three times: with device memory poisoned before use,
with few thread blocks, each of which then processes many items, and as workers use the device,
without waiting between operations. Then layers of random shapes and odd sizes: output, masses and
ranking are compared with f64, and bits must be equal when repeated and over scattered cells. Then
chunks of a model's size, by the chip's own kernels and by the generic ones. A failed check does not
stop the others unless the device is lost; --from continues after it.

Example:
  aqueduct gpu check --seeds 32 --json")]
pub(crate) struct GpuCheckArgs {
    #[command(flatten)]
    pub(crate) device: GpuArg,
    /// Number of layers of random shapes
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub(crate) seeds: u64,
    /// Most rows in a random layer
    #[arg(long, value_name = "ROWS", default_value_t = 300)]
    pub(crate) rows_max: usize,
    /// Only checks whose name contains this
    #[arg(long, value_name = "WORD")]
    pub(crate) filter: Option<String>,
    /// Skip the first N of these checks
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) from: usize,
    /// Print one JSON line per check, and one at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct gpu bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Uses an 8B-shaped model of random weights that are made on the device: chunks of 4096 rows over
1024 remembered keys, 32 query heads on 8 KV heads of 128, 32 layers, bf16. Times are the device's
own, medians over repetitions of work that is enqueued without waiting. The floor is the least time
that the chip needs, `over_floor` the measured time divided by it. Floors of products follow the
datasheet of an H100 or H200; those of memory and of the maps follow what is measured first:
copying, reading, one large product. A failed row does not stop the others unless the device is
lost; --from continues after it. The model takes 15 GB, everything together 30 GB.

Example:
  aqueduct gpu bench --json")]
pub(crate) struct GpuBenchArgs {
    #[command(flatten)]
    pub(crate) device: GpuArg,
    /// Number of repetitions, each of several calls
    #[arg(long, value_name = "R", default_value_t = 9)]
    pub(crate) reps: u32,
    /// Only rows whose name contains this
    #[arg(long, value_name = "WORD")]
    pub(crate) filter: Option<String>,
    /// Skip the first N of these rows
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) from: usize,
    /// Print one JSON line per row, and one at the end
    #[arg(long)]
    pub(crate) json: bool,
}
