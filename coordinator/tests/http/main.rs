//! The HTTP API over a real socket, in front of a scripted runtime.

mod anthropic;
mod channels;
mod chat;
mod client;
mod completions;
mod console;
mod errors;
mod keys;
mod origins;
mod responses;
mod resume;
mod script;
mod service;
mod start;
mod thoughts;
mod tokens;
mod tools;
