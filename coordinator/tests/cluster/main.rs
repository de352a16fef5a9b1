//! The coordinator from outside, with workers that follow a script instead of a model.

mod dispatch;
mod fake;
mod journal;
mod peers;
mod prefix;
mod quality;
mod runtime;
mod service;
