//! Arguments of `aqueduct gpu`.

use clap::{Args, Subcommand};

/// What can be asked of a CUDA device.
#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Name the CUDA devices of this machine, and the files of NVIDIA's libraries
    Devices,
    /// Check every kernel on a CUDA device against its definition in f64
    Check(GpuCheckArgs),
    /// Time the kernels of a CUDA device beside what the chip could do
    Bench(GpuBenchArgs),
    /// Send memory sets through NCCL, from a device to itself and to another
    Nccl(GpuArg),
}

/// Which device.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct GpuArg {
    /// Index of the device, as `aqueduct doctor` counts them
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    pub(crate) index: usize,
}

/// Arguments of `aqueduct gpu check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Runs the conformance suite of all backends three times: with device memory that is poisoned before
it is used, with few blocks, each of which then takes many items, and as workers use the device,
which waits for nothing in between. Then layers of random shapes and odd sizes: output, masses and
ranking against f64, equal bits when repeated and over scattered cells. Then chunks of a model's
size, by the kernels of the chip and by those that every chip has. A check that fails does not stop
the others, unless the device is lost with it; --from goes on behind it.

Example:
  aqueduct gpu check --seeds 32 --json")]
pub(crate) struct GpuCheckArgs {
    #[command(flatten)]
    pub(crate) device: GpuArg,
    /// Layers of random shapes
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub(crate) seeds: u64,
    /// Most rows of a random layer
    #[arg(long, value_name = "ROWS", default_value_t = 300)]
    pub(crate) rows_max: usize,
    /// Only checks with this in their name
    #[arg(long, value_name = "WORD")]
    pub(crate) filter: Option<String>,
    /// Leave out so many of these checks, the first ones
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) from: usize,
    /// Print a JSON line for each check, and one at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `aqueduct gpu bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
An 8B-shaped model of random weights that are made on the device: chunks of 4096 rows over 1024
remembered keys, 32 query heads on 8 KV heads of 128, 32 layers, bf16. Times are the device's own,
medians over repetitions of work that is enqueued without waiting. The floor is what the chip needs
at least, `over_floor` the time taken over it. Floors of products are by the datasheet of an H100 or
H200, those of memory and of the maps by what is measured first: copying, reading, one large
product. A row that fails does not stop the others unless the device is lost with it; --from goes
on behind it. The whole model takes 15 GB, and 30 GB are needed with what is beside it.

Example:
  aqueduct gpu bench --json")]
pub(crate) struct GpuBenchArgs {
    #[command(flatten)]
    pub(crate) device: GpuArg,
    /// Repetitions, each of several calls
    #[arg(long, value_name = "R", default_value_t = 9)]
    pub(crate) reps: u32,
    /// Only rows with this in their name
    #[arg(long, value_name = "WORD")]
    pub(crate) filter: Option<String>,
    /// Leave out so many of these rows, the first ones
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) from: usize,
    /// Print a JSON line for each row, and one at the end
    #[arg(long)]
    pub(crate) json: bool,
}
