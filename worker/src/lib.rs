//! The worker: one device thread, sessions of coordinators, and links to other workers.
//!
//! ```text
//! service.rs / Worker::open_session      commands in, events out
//!   -> executor/                         the device thread; owns every request's state
//!        schedule.rs                     who goes first: decode rounds or chunks
//!        chunk.rs                        a chunk through the engine's spine, behind its port
//!        decode.rs                       completions, a token at a time, between layers
//!        snapshots.rs                    what a prefix left, kept for others (snapshots/)
//!   -> link/{loopback,grpc,nccl}.rs      memory sets to the worker of the next chunk
//!   <- inbox.rs                          memory sets from the worker of the chunk before
//! ```
#![forbid(unsafe_code)]

pub mod config;
pub mod doorbell;
pub mod exchange;
mod executor;
mod gauge;
#[cfg(test)]
#[path = "../tests/cluster/in_process.rs"]
mod in_process;
pub mod inbox;
mod led;
mod ledger;
pub mod link;
mod lost;
pub mod metrics;
mod pulse;
mod refusals;
mod service;
mod snapshots;
mod tenures;
#[cfg(test)]
#[path = "../tests/cluster/tiny_model.rs"]
mod tiny_model;
mod ways;
mod worker;

pub use config::{HomeMemory, Scheduler, Scheduling, WorkerOptions};
pub use gauge::Stats;
pub use link::loopback::LoopbackHub;
pub use link::nccl::Direct;
pub use service::serve;
pub use snapshots::{DiskOptions, SnapshotOptions};
pub use worker::{StartError, Worker};
