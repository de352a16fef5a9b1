//! Random completions to be decoded.

use aqueduct_core::work::{Begun, DecodeSpec, HandedOver};
use aqueduct_core::{Epoch, MemoryPolicy, RequestId, limits};
use proptest::prelude::*;

use super::{constraint, sampling, steering, trace};

pub(super) fn spec() -> impl Strategy<Value = DecodeSpec> {
    let request = any::<u64>().prop_map(RequestId);
    let tokens = || prop::collection::vec(0..limits::VOCAB_MAX, 0..4);
    let words = prop::collection::btree_set(0..limits::VOCAB_MAX, 0..4);
    let counts = (1..=limits::CHOICES_MAX, 4..=limits::OUTPUT_TOKENS_MAX);
    let begun = prop::collection::btree_map(0..limits::CHOICES_MAX, tokens(), 0..4);
    let bent = (sampling(), steering(), prop::option::of(constraint()));
    let begun = (begun, prop::option::of(handed_over()));
    (request, bent, counts, (tokens(), words), begun).prop_map(
        |(request, bent, (choices, max_tokens), (eos, words), (begun, handed_over))| {
            let (sampling, steering, constraint) = bent;
            let begun = begun.into_iter().filter(|(choice, _)| *choice < choices);
            let one = |(choice, tokens): (u32, Vec<_>)| {
                let ended = tokens.is_empty();
                Begun { choice, tokens, ended }
            };
            DecodeSpec {
                request,
                sampling,
                steering,
                constraint,
                prompt_vocabulary: words.into_iter().collect(),
                choices,
                max_tokens,
                eos,
                begun: begun.map(one).collect(),
                keeps: max_tokens % 2 == 1,
                trace: trace(max_tokens.into()),
                shows: max_tokens % 3 == 1,
                handed_over,
                gathers: max_tokens % 5 == 1,
            }
        },
    )
}

fn handed_over() -> impl Strategy<Value = HandedOver> {
    (0..limits::CHUNK_TOKENS_MAX, any::<u32>(), 1..1000u32).prop_map(|(chunk_idx, epoch, more)| {
        HandedOver {
            chunk_idx,
            epoch: Epoch(epoch),
            prompt_tokens: chunk_idx + more,
            policy: MemoryPolicy::h2o(1, 2, 3),
            chunk_tokens: more,
        }
    })
}
