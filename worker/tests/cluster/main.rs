//! Several workers in one process, commanded as a coordinator would: the answer does not depend
//! on how many there are, on what carries the memory, or on what fails meanwhile.

mod batch;
mod begun;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod emulated;
mod failures;
mod garbage;
mod identity;
mod in_process;
mod lost;
mod mixed_model;
mod refused;
mod rig;
mod scheduling;
mod shards;
mod shared_model;
mod snapshots;
mod states;
mod tenure;
mod tiny_model;
mod wide_model;
mod windowed_model;
