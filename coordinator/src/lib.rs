//! The coordinator: takes prompts in, cuts them into chunks, lays the chunks over workers and
//! streams the answer back. It knows text, tokens and workers; it never sees a tensor.
#![forbid(unsafe_code)]

mod bodies;
pub mod config;
mod discovery;
pub mod dispatch;
pub mod generation;
pub mod http;
pub mod keys;
pub mod metrics;
pub mod operator;
pub mod peers;
mod request_id;
pub mod runtime;
pub mod service;
pub mod streams;
pub mod submit;
pub mod text;
mod turns;

pub use bodies::Room;
pub use config::Config;
pub use discovery::Members;
pub use dispatch::Session;
pub use runtime::{Candidate, Coordinator, Keeping, Leader, RequestHandle};
