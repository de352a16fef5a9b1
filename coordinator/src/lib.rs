//! The coordinator: takes prompts in, cuts them into chunks, lays the chunks over workers and
//! streams the answer back. It knows text, tokens and workers; it never sees a tensor.
#![forbid(unsafe_code)]

pub mod generation;
pub mod http;
pub mod metrics;
pub mod submit;
pub mod text;
