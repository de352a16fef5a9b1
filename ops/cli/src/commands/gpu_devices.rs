//! `aqueduct gpu devices`: the CUDA devices of this machine, and NVIDIA's libraries.

use aqueduct_kernels::cuda::{Cuda, NvidiaLibrary, libraries};

use crate::lines;

/// Prints a line for each device: its index and name; then one for each library beside the driver:
/// its name, and its file or why there is none.
///
/// # Errors
/// There is none, and why.
pub(crate) async fn run() -> anyhow::Result<()> {
    for (index, name) in Cuda::devices()?.iter().enumerate() {
        lines::say(&format!("cuda:{index}  {name}\n"))?;
    }
    for NvidiaLibrary { name, file } in libraries() {
        let file = file.map_or_else(|why| format!("none: {why}"), |it| it.display().to_string());
        lines::say(&format!("{name:8}  {file}\n"))?;
    }
    Ok(())
}
