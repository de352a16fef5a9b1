//! The Rust SDK of a coordinator: prompts go in, typed events come out.
//!
//! ```no_run
//! use aqueduct_client::{Client, ClientOptions, GenerateEvent, GenerateOptions};
//! use futures::StreamExt;
//!
//! # async fn example() -> Result<(), aqueduct_client::ClientError> {
//! let client = Client::connect("http://127.0.0.1:7070", ClientOptions::default()).await?;
//! let mut events = client.generate(GenerateOptions::text("Once upon a time")).await?;
//! while let Some(event) = events.next().await {
//!     if let GenerateEvent::Token(token) = event? {
//!         print!("{}", token.text);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A stream whose connection is lost, because of the network or because the server was started
//! again, goes on where it was lost, and every token comes once. Dropping the stream cancels the
//! request on every worker. Every call has a deadline; an
//! error says whether the input was wrong, the server busy, away or late. A call is a span where
//! its caller has `tracing`, and the server's part of it is below that where the caller exports
//! spans with `tracing-opentelemetry`.
#![forbid(unsafe_code)]

mod answer;
mod client;
mod config;
mod error;
mod event;
mod generation;
pub mod operator;
mod options;
mod routes;
mod trace;
mod wire;

pub use answer::{Answer, Completion};
pub use aqueduct_core::work::{RetainedMass, TokenLogprob, Traffic};
pub use aqueduct_core::{
    BelowFloor, Exchange, Floor, Grammar, KvDtype, MemoryPolicy, ModelShape, PolicyKind, Quality,
    RequestId, Scoring, Session, SessionUse, TokenId, WireDtype,
};
pub use aqueduct_tls::{Identity, TlsFiles};
pub use client::Client;
pub use config::{ApiKey, ClientOptions};
pub use error::ClientError;
pub use event::{
    Accepted, ChoiceDone, Description, Escalated, GenerateEvent, Progress, PromptLogprob,
    StopReason, Summary, Token, Tokenized, WorkerProgress, WorkerStatus,
};
pub use generation::Generation;
pub use options::{ChatMessage, GenerateOptions, Prompt};
