//! `aqueduct gpu devices`: the CUDA devices of this machine.

use aqueduct_kernels::cuda::Cuda;

use crate::lines;

/// Prints a line for each device: its index and name.
///
/// # Errors
/// There is none, and why.
pub(crate) async fn run() -> anyhow::Result<()> {
    for (index, name) in Cuda::devices()?.iter().enumerate() {
        lines::say(&format!("cuda:{index}  {name}\n"))?;
    }
    Ok(())
}
