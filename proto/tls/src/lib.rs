//! Who may speak to whom: TLS 1.3 from PEM files that may change at any time, and the roles that
//! certificates name.
//!
//! A process that is given no files speaks plaintext, as on a loopback device. Given files, it
//! never falls back: what is not encrypted, signed by somebody else, expired or of the wrong role
//! is refused, counted by reason ([`Refusals`]) and logged once.
//!
//! - [`Listener`] accepts: [`Listener::incoming`] for gRPC, [`Door`] and [`ServerTls::accept`] for
//!   the rest. [`Counted`] says which connections a server that ends waits for.
//! - [`connect`] dials, and proves with [`ClientTls`] whom it has reached.
//!   Where the name service is away, it goes to the last addresses that were heard of, as [`dial`]
//!   does for whoever speaks something else.
//! - Both look at their files again when a connection is made, at most every second; [`rewrite`]
//!   is for files of that kind that we write ourselves.
#![forbid(unsafe_code)]

mod client;
mod conn;
mod door;
mod files;
mod fresh;
mod inspect;
mod names;
mod refusals;
mod rewrite;
mod role;
mod server;
mod socket;
mod under_way;

pub use client::{ClientTls, Expected, connect, is_refusal, scheme_of};
pub use conn::Conn;
pub use door::{Closing, Door, Visit};
pub use files::{Identity, TlsError, TlsFiles};
pub use fresh::Fresh;
pub use inspect::{Inspected, inspect};
pub use names::dial;
pub use refusals::{Reason, Refusals};
pub use rewrite::{alone, rewrite};
pub use role::{Caller, Role};
pub use server::{Asked, Listener, ServerTls};
pub use under_way::{Counted, UnderWay};
