//! The house rules as a test: `cargo test -p aqueduct-tidy`.
//!
//! Every rule is a function from what it reads (a Rust file, a manifest, the lock file, the
//! README) to findings. A finding names file, line, rule and reason. What was already too large
//! when a rule came stands in `ops/tidy/ratchet.toml` with a reason, and may only shrink.
#![forbid(unsafe_code)]

pub mod finding;
pub mod manifest;
pub mod ratchet;
pub mod rules;
pub mod rust_file;
pub mod tree;

pub use finding::Finding;
pub use ratchet::Ratchet;
pub use rust_file::RustFile;
pub use tree::Tree;
