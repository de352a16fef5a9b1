//! Loading models from disk, seen from outside.

mod files;
mod hostile;
mod support;
mod torch;
