//! Keys that stay where they were computed: queries travel to them, partial states come back.
//!
//! [`prefill_sharded`] is the spine of a block whose past is in shards, [`ShardPort`] its door
//! to the workers that hold them, and [`ShardStore`] what such a worker holds and answers.

mod audit;
mod layer;
mod place;
mod port;
mod round;
mod spine;
mod states;
mod store;

pub(crate) use layer::{Asked, Merged};
pub use place::{Branch, ChunkEnds, Place, ShardKey, Slice};
pub use port::{Found, ShardPort, Spent};
pub use spine::{Past, prefill_sharded};
pub use states::{Masses, states_over};
pub use store::{Answer, ShardError, ShardStore, Shards, Standing, States};
