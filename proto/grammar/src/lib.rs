//! Forms: what a caller wants an answer to look like and how long it may be thought about before,
//! and so which tokens may come next.
//!
//! The coordinator compiles a form to refuse a bad one before anything is prefilled, the
//! worker compiles it again to follow it while tokens are drawn; both do it here, within the
//! same limits, so what the one accepts the other can follow. The crate knows tokens as bytes:
//! those come from the coordinator, which alone knows tokenisers.
#![forbid(unsafe_code)]

mod compile;
mod follower;
mod numbers;
mod patterns;
mod schema;
mod thinker;
mod vocabulary;
mod work;

pub use follower::{Follower, Mask};
pub use schema::{lenient, narrowed};
pub use vocabulary::{Vocabulary, reason};
