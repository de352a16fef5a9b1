//! The words that every Aqueduct crate speaks: ids, the chunk grid, the memory policy,
//! the shape of a model, sampling, limits and the error of a refused input.
//!
//! Standard library and `thiserror` only: nothing here knows a wire format, a device or a
//! runtime, so every other crate may depend on it.
#![forbid(unsafe_code)]

pub mod ask;
pub mod chunk;
pub mod clip;
pub mod error;
pub mod exchange;
pub mod grammar;
pub mod ids;
pub mod journal;
pub mod json;
pub mod limits;
pub mod model;
pub mod peers;
pub mod policy;
pub mod quality;
pub mod sampling;
pub mod session;
pub mod snapshot;
pub mod steering;
pub mod telling;
pub mod trace;
pub mod work;

pub use chunk::{ChunkGrid, ChunkSpan};
pub use clip::clipped;
pub use error::Refusal;
pub use exchange::{Carry, Directory, Exchange, WireDtype};
pub use grammar::{Constraint, Form, Grammar, Thinking, TokenBytes};
pub use ids::{ChunkKey, Epoch, RequestId, WorkerId, is_caller_id};
pub use json::plain_json;
pub use model::{ModelShape, WideHeads, WindowedLayers, scaled_positions};
pub use peers::{Addresses, Tenure};
pub use policy::{Clamp, MemoryPolicy, PolicyKind, Scoring};
pub use quality::{BelowFloor, Floor, Quality, QualityKind, Verdict};
pub use sampling::Sampling;
pub use session::{Session, SessionUse};
pub use snapshot::{SnapshotKey, SnapshotsHeld};
pub use steering::Steering;
pub use telling::{StartKey, Telling, ThoughtsTold};
pub use trace::TraceParent;

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// How remembered keys and values are stored, in a pool and on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvDtype {
    /// Four bytes an element; exact.
    F32,
    /// Two bytes an element; keys and values are rounded once, where they are computed.
    #[default]
    Bf16,
}

impl KvDtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// The name that users write: `f32` or `bf16`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl std::str::FromStr for KvDtype {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            _ => Err(Refusal::new("kv", text, "f32 or bf16")),
        }
    }
}

impl std::fmt::Display for KvDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
