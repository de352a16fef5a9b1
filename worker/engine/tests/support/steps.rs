//! Steps of sequences in a batch, of each alone, and as chunks of one token.

use aqueduct_core::MemoryPolicy;
use aqueduct_engine::{Block, EngineError, LocalPort, Model, Sequence, Want, decode, prefill};
use aqueduct_kernels::Leaves;

/// All three give the same bits; `ports` have the prompts, behind which `leaves` go on.
pub(crate) fn check(
    model: &Model,
    policy: &MemoryPolicy,
    mut ports: Vec<LocalPort>,
    leaves: Leaves,
) {
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let sequence = |port: &LocalPort| Sequence::new(model, port.layers().to_vec(), leaves);
    let mut batch: Vec<_> = ports.iter().map(sequence).collect();
    let mut alone = batch.clone();
    for step in 0..5 {
        let token = |idx: usize| (7 * step + idx as u32 * 5) % model.shape().vocab;
        let each = batch.iter_mut().enumerate();
        let turns = each.map(|(idx, it)| it.turn(token(idx), policy)).collect();
        let together: Result<Vec<_>, EngineError> = decode(model, turns).into_iter().collect();
        for (idx, logits) in together.unwrap().into_iter().enumerate() {
            let one = alone[idx].step(model, token(idx), policy).unwrap();
            assert_eq!(bits(&logits), bits(&one), "{policy:?}");
            let (start, port) = (ports[idx].end(), &mut ports[idx]);
            let block = Block { tokens: &[token(idx)], start, leaves };
            let done = prefill(model, block, policy, port, Want::Last).unwrap();
            let spine = model.logits(&done.hidden).unwrap();
            assert_eq!(bits(&logits), bits(spine.data()), "{policy:?}");
            assert_eq!(batch[idx].memory(), alone[idx].memory(), "{policy:?}");
        }
    }
}
