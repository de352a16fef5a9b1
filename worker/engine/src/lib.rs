//! One node's model mathematics: a decoder, the spine of prefill, decode and sampling.
//!
//! Synchronous, and blind to the network: what the past hands to the future passes through
//! [`MemoryPort`] and nothing else. No tokio, tonic, wire types or etcd here.
#![forbid(unsafe_code)]

pub mod decode;
pub mod error;
pub mod inputs;
pub mod load;
pub mod model;
pub mod port;
pub mod positions;
pub mod prefill;
pub mod rope;
pub mod sample;
pub mod seen;
pub mod shards;
pub mod want;

pub use decode::{Remembered, Sequence, Turn, decode};
pub use error::{EngineError, LoadError, PortError};
pub use inputs::TokenInputs;
pub use load::{LoadOptions, LoadProgress, WeightDtype};
pub use model::{Hurry, Model, ModelParts};
pub use port::{LocalPort, MemoryPort};
pub use prefill::{Block, Prefilled, prefill};
pub use rope::{Rope, Temperature};
pub use sample::{Sampled, Sampler, logprob_of, sample};
pub use shards::{Found, Past, ShardPort, ShardStore, prefill_sharded};
pub use want::Want;
