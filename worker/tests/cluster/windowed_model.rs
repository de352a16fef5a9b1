//! A model most of whose layers do not see far.

use std::sync::Arc;

use aqueduct_engine::Model;
use aqueduct_kernels::{KvDtype, Reference, Window};

use crate::tiny_model::parts;

/// The tiny model, whose layer i has the window `windows[i % n]` of n.
pub(crate) fn windowed(windows: &[Option<Window>], kv: KvDtype) -> Arc<Model> {
    let mut parts = parts(("windowed", 8), kv, Arc::new(Reference), |_, _| None);
    for (window, of) in parts.windows.iter_mut().zip(windows.iter().cycle()) {
        *window = *of;
    }
    Arc::new(Model::new(parts).unwrap())
}
