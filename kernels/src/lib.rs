//! Attention states, column masses, selection, and the dense arithmetic around them.
//!
//! A leaf: no other crate of ours is imported here, and this is the only crate in which
//! `unsafe` may stand. [`Backend`] is the interface; [`mod@reference`] is the readable
//! implementation of every operation, [`cpu`] the fast one, and [`conformance`] what any
//! implementation must pass.
//!
//! Conventions, everywhere in this crate:
//! - H query heads, G KV heads, R = H / G; query head h belongs to KV head h / R.
//! - T rows (tokens) in a block, N keys, D elements in a head; shapes are written `[a, b, c]`,
//!   row-major, the last index fastest.
//! - Logits are scaled by `scale` and in natural units. A partial state is `(m, l, o)`: m the
//!   row maximum, l the sum of exp(z - m), o the sum of exp(z - m) v, not divided by l. The
//!   empty state is (-inf, 0, 0). Logits are never clamped.
//! - Positions are absolute; keys are rotated once, at their own position.
//! - Results do not depend on how many threads computed them.

pub mod array;
pub mod backend;
pub mod cells;
pub mod compare;
pub mod conformance;
pub mod cpu;
#[cfg_attr(
    not(any(feature = "cuda", feature = "cuda-emulator")),
    allow(dead_code, reason = "nothing is built on which kernels could run")
)]
pub mod cuda;
pub mod experts;
pub mod fabric;
pub mod fold;
#[cfg(unix)]
pub mod heap;
pub mod int8;
mod latent;
pub mod mapped;
pub mod memory;
pub mod pool;
pub mod recurrent;
pub mod reference;
pub mod select;
mod shapes;
pub mod shard;
pub mod state;
pub mod tensor;
pub mod weights;
mod window;

pub use array::{Array, Resident};
pub use backend::{
    Attended, AttentionOps, Backend, BackendError, Choice, LayerOps, MixerOps, Op, Qkv, Queries,
    Scope, Selected, SelectionOps, StateOps,
};
pub use cells::HeadRows;
pub use cpu::{Cpu, CpuError, CpuOptions, IsaLevel};
pub use cuda::{Cuda, CudaError, CudaOptions};
pub use fabric::{End, Fabric, FabricError, GroupId, Mark, Pair, SetShape};
pub use int8::Int8Rows;
pub use latent::{Latent, Raised};
pub use mapped::MappedFile;
pub use memory::{Keys, LEAVES, Leaves, MemorySet, Ranking, Rounding, Selection};
pub use pool::{Pool, PoolUsage};
pub use recurrent::{Convolution, Delta, GroupNorm, Recurred, Recurrent, Rule, Scan};
pub use reference::Reference;
pub use shard::{Candidate, Cutoff, Passed, Shard, Tally};
pub use state::AttentionState;
pub use tensor::{Heads, KvData, KvDtype, KvHeads, KvRow, Rows};
pub use weights::{
    Activation, Angles, Beside, Experts, FeedForward, Gated, LayerInput, LayerSpec, LayerWeights,
    Linear, Matrix, MatrixData, Ungated, Xielu,
};
pub use window::Window;
