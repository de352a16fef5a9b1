//! The coordinators' journal: what was accepted, emitted and ended, agreed by raft and safe on
//! disk before anybody counts on it. One coordinator is a group of one; three survive the loss
//! of one.
//!
//! - [`State`]: what the records come to; the same on every member.
//! - [`Node`]: one member without clock, disk or network: time, messages and records in, what is
//!   to be written and sent out. It can be simulated, and is (`tests/simulation`).
//! - [`Store`]: its log on disk.
//! - [`Journal`]: the two of them at work in a task of their own; an [`Ear`] hears what other
//!   members say, which [`encode`] and [`decode`] make bytes of.
#![forbid(unsafe_code)]

mod ask;
mod config;
mod ear;
mod journal;
mod letter;
mod log;
mod logger;
mod node;
mod shelf;
mod state;
mod store;

pub use config::{Bounds, Identity, Options};
pub use ear::Ear;
pub use journal::{AppendError, Journal, OpenError, Transport};
pub use letter::{bytes_of, decode, encode};
pub use log::{Cut, Entry, Frozen, Hard, Point, Saved, Write};
pub use node::{Applied, Broken, Member, Node, Standing, Ticket, Unable, Work};
pub use raft::eraftpb::{Message, MessageType};
pub use state::{Misfit, State};
pub use store::{Store, StoreError};
