//! A fixture's model on every backend, with keys of both types.

use std::path::Path;
use std::sync::Arc;

use aqueduct_engine::{LoadOptions, Model, WeightDtype};
use aqueduct_kernels::{Backend, KvDtype};

use crate::backends::backends;

pub(crate) fn load(fixture: &str, backend: Arc<dyn Backend>, kv: KvDtype) -> Model {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(fixture);
    let options = LoadOptions { kv, weights: WeightDtype::Auto, backend };
    Model::load(&dir, &options, &mut |_| {}).unwrap()
}

pub(crate) fn models(fixture: &str) -> Vec<Model> {
    let kinds = [KvDtype::F32, KvDtype::Bf16];
    let each = backends().into_iter().flat_map(|it| kinds.map(|kv| (it.clone(), kv)));
    each.map(|(backend, kv)| load(fixture, backend, kv)).collect()
}
