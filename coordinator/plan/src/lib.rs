//! The coordinator's decisions: events in, commands out. No clock (time comes in events), no
//! I/O, no randomness, so that a whole cluster can be simulated around it.
//!
//! # Why workers never wait for each other in a circle
//!
//! A worker runs its chunks first in, first out, and a running chunk blocks its device until
//! the chunk before it has given its memory. Two workers could therefore wait for each other:
//! one runs A1 in front of B0, the other B1 in front of A0. The plan makes that impossible by
//! one total order over all chunks, the order of their first dispatch: each is given a
//! *ticket* then, greater than all before it, and keeps it for as long as anything in flight
//! may wait for it.
//!
//! 1. Every worker's unfinished chunks stand in its queue in the order of tickets. A chunk that
//!    is dispatched for the first time goes to the end of a queue and is last in the order. When
//!    a lost chunk goes to a worker that already has later ones, those are assigned again
//!    behind it, in a new epoch, which replaces what the worker had of them. A chunk that can
//!    not be given its memory where it is does not stay there: its request leaves that worker.
//! 2. A chunk needs only the chunk before it, which was dispatched before it, so is earlier.
//! 3. A chunk that is done again while a later one is in flight that may wait for it goes out
//!    however much is in flight. There are never too many of these: where there would be, what
//!    waits for them is dropped by its workers first. Only a chunk without a ticket waits for what
//!    is in flight to end, and nothing in flight waits for that one.
//!
//! So the earliest unfinished chunk of all is the first in its worker's queue, and the chunk
//! before it is done and its memory held: it can always run, and by induction all of them do.
//! This holds in whatever order chunks of several requests are dispatched for the first time;
//! which of them is next is a question of fairness alone (`turns`).
//!
//! Where memory is handed on and is lost up to a chunk behind which nothing is in flight, there may
//! be thousands of chunks to do again, and nobody waits for them. They lose their tickets, and are
//! dispatched in turn as if for the first time. So is what is dropped because too much would have
//! to be done again before it, and what comes before that.
//!
//! What is done needs nothing before it. So a chunk may be done again for its report, or to have
//! its memory twice, while a later one is done and others run behind that: it has a later ticket
//! than these. If what was done between is lost, too, they would need a chunk that is behind them:
//! then they are dropped as well. And what needs a memory that waits for a worker to come, as that
//! of a session may, is dropped at once, and dispatched when that worker is there.
//!
//! Where keys stay in shards, a chunk needs all the chunks before it, which are earlier too. If
//! one of them is lost, or has to line up behind another, so is every chunk that still needs
//! it: workers are told to drop them, and as nothing in flight waits for them, they lose their
//! tickets and are dispatched as if for the first time. What is dropped blocks nobody, however
//! long that takes.
//!
//! A chunk that takes far longer than chunks do is given to an idle worker as well, and whoever
//! is first has done it. It is only ever the first of its request that is not done, so it needs
//! nothing but a memory that is held; what waits in its second queue is later, and lines up
//! behind it. Before anything earlier could come to stand behind it, the second worker becomes
//! its only one, and the rules above hold for it.
//!
//! A snapshot stands for its chunk in that order and for all before it. It is restored at once,
//! in nobody's queue; one that is lost leaves chunks to be done like any others that are lost.
//! Where keys stay in shards, a snapshot stands for its own chunk alone, wherever that is among
//! those that are computed.
#![forbid(unsafe_code)]

mod pace;
mod plan;
mod queue;
mod request;
mod room;
mod sets;
mod snapshots;
mod turns;
mod words;

pub use plan::Plan;
pub use words::{Busy, Command, End, Event, Failure, Job, Limits, Sharded, Shards, Windowed};
