//! When the memory of the past arrives changes no bit: at hand, both are attended in one pass;
//! late, own keys first.

#[path = "support/backends.rs"]
mod backends;
#[path = "support/late.rs"]
mod late;

use std::path::Path;
use std::sync::Arc;

use aqueduct_core::MemoryPolicy;
use aqueduct_engine::{Block, LoadOptions, LocalPort, Model, Want, WeightDtype, prefill};
use aqueduct_kernels::{Backend, KvDtype, Leaves};
use backends::backends;
use late::Late;

fn check(backend: Arc<dyn Backend>, kv: KvDtype, policy: &MemoryPolicy) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/llama31-bfloat16");
    let options = LoadOptions { kv, weights: WeightDtype::Auto, backend };
    let model = Model::load(&dir, &options, &mut |_| {}).unwrap();
    let (mut early, mut late) = (LocalPort::empty(&model), Late::empty(&model));
    let tokens: Vec<u32> = (0..90).map(|i| i * 37 % model.shape().vocab).collect();
    for chunk in [&tokens[..40], &tokens[40..80], &tokens[80..81], &tokens[81..]] {
        let block = Block { tokens: chunk, start: early.end(), leaves: Leaves::of_chunks(20) };
        let want = prefill(&model, block, policy, &mut early, Want::All).unwrap();
        let seen = prefill(&model, block, policy, &mut late, Want::All).unwrap();
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(seen.hidden.data()), bits(want.hidden.data()), "{kv:?}");
        assert_eq!(late.port.layers(), early.layers(), "{kv:?}");
        assert_eq!(seen.retained().unwrap(), want.retained().unwrap());
    }
}

#[test]
fn changes_no_bit_on_any_backend() {
    let h2o = MemoryPolicy::h2o(2, 8, 8);
    for backend in backends() {
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            check(backend.clone(), kv, &h2o);
            check(backend.clone(), kv, &MemoryPolicy::dense());
        }
    }
}
