//! Shards: the answer depends on the chunks and not on who holds them, and is that of a memory
//! set which travels.

#[path = "support/stores.rs"]
mod stores;

use std::path::Path;
use std::sync::Arc;

use aqueduct_core::{MemoryPolicy, PolicyKind, Scoring};
use aqueduct_engine::{Block, LoadOptions, LocalPort, Model, Want, WeightDtype, prefill};
use aqueduct_kernels::{Backend, Cpu, CpuOptions, KvDtype, Reference, Rows};
use proptest::prelude::*;
use stores::Sharded;

/// Tokens decoded after the prompt.
const DECODED: usize = 6;

fn model(kv: KvDtype, backend: Arc<dyn Backend>) -> Model {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/llama31-bfloat16");
    let options = LoadOptions { kv, weights: WeightDtype::F32, backend };
    Model::load(&dir, &options, &mut |_| {}).unwrap()
}

fn tokens(model: &Model, count: usize, seed: u32) -> Vec<u32> {
    let vocab = model.shape().vocab;
    (0..count as u32).map(|i| (i * 37 + i * i * 11 + seed) % vocab).collect()
}

/// One sequence: chunks of the prompt, then some tokens.
struct Run {
    /// `[tokens, width]` hidden states, chunk after chunk.
    hidden: Vec<Rows>,
    /// Per layer and KV head.
    kept: Vec<Vec<Vec<(u32, f32)>>>,
    retained: Vec<f64>,
}

fn sharded(
    model: &Model,
    policy: MemoryPolicy,
    chunk: usize,
    places: &[usize],
    all: &[u32],
) -> Run {
    let (prompt, decoded) = all.split_at(all.len() - DECODED);
    let mut sequence = Sharded::new(model, policy, chunk as u32, places);
    let mut done: Vec<_> = prompt.chunks(chunk).map(|tokens| sequence.chunk(tokens)).collect();
    done.extend(decoded.iter().map(|&token| sequence.token(token, 0)));
    Run {
        kept: (0..model.layers() as u32).map(|layer| sequence.kept(layer)).collect(),
        retained: done
            .iter()
            .flat_map(|done| done.retained().unwrap())
            .map(|mass| mass.kept)
            .collect(),
        hidden: done.into_iter().map(|done| done.hidden).collect(),
    }
}

fn moved(model: &Model, policy: MemoryPolicy, chunk: usize, all: &[u32]) -> Run {
    let (prompt, decoded) = all.split_at(all.len() - DECODED);
    let mut port = LocalPort::empty(model);
    let mut run = Run { hidden: Vec::new(), kept: Vec::new(), retained: Vec::new() };
    for tokens in prompt.chunks(chunk).chain(decoded.chunks(1)) {
        let block = Block { tokens, start: port.end() };
        let done = prefill(model, block, &policy, &mut port, Want::All).unwrap();
        run.retained.extend(done.retained().unwrap().iter().map(|mass| mass.kept));
        run.hidden.push(done.hidden);
    }
    for set in port.layers() {
        let (n, heads) = (set.keys.len(), 0..set.keys.kv_heads());
        let head = |g: usize| {
            let scores = set.score[g * n..(g + 1) * n].iter().copied();
            set.keys.head_positions(g).iter().copied().zip(scores).collect()
        };
        run.kept.push(heads.map(head).collect());
    }
    run
}

fn bits(run: &Run) -> Vec<u32> {
    let hidden = run.hidden.iter().flat_map(|rows| rows.data()).map(|x| x.to_bits());
    let kept = run.kept.iter().flatten().flatten();
    hidden.chain(kept.flat_map(|&(position, score)| [position, score.to_bits()])).collect()
}

/// The largest difference, relative to the row's largest element.
fn difference(a: &Run, b: &Run) -> f32 {
    let rows = a.hidden.iter().zip(&b.hidden).flat_map(|(a, b)| {
        (0..a.rows()).map(move |row| {
            let scale = b.row(row).iter().fold(0f32, |max, x| max.max(x.abs()));
            let apart = a.row(row).iter().zip(b.row(row)).map(|(a, b)| (a - b).abs());
            apart.fold(0f32, f32::max) / scale
        })
    });
    rows.fold(0.0, f32::max)
}

/// Whether the same positions are kept, with the same scores.
fn same_memory(a: &Run, b: &Run) -> bool {
    let near = |(a, b): (&(u32, f32), &(u32, f32))| {
        a.0 == b.0 && (a.1 - b.1).abs() <= 1e-4 * b.1.abs().max(1e-2)
    };
    let heads = a.kept.iter().flatten().zip(b.kept.iter().flatten());
    heads.into_iter().all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(near))
}

fn policies() -> impl Strategy<Value = MemoryPolicy> {
    let scoring =
        (prop_oneof![Just(1.0f32), Just(0.95)], prop_oneof![Just(0u32), Just(3)], any::<bool>())
            .prop_map(|(decay, window, age_normalised)| Scoring { decay, window, age_normalised });
    let bounded =
        (0u32..4, 0u32..6, 0u32..6, scoring).prop_map(|(sinks, local, heavy, scoring)| {
            let kind = if heavy == 0 { PolicyKind::Window } else { PolicyKind::H2o };
            MemoryPolicy { kind, sinks, local, heavy, scoring }
        });
    prop_oneof![1 => Just(MemoryPolicy::dense()), 4 => bounded]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_answer_is_that_of_a_set_that_travels_and_of_any_placement(
        policy in policies(),
        chunk in 7usize..20,
        prompt in 1usize..90,
        places in prop::collection::vec(0usize..8, 13),
        seed in 0u32..1000,
        f32_keys: bool,
    ) {
        let kv = if f32_keys { KvDtype::F32 } else { KvDtype::Bf16 };
        let model = model(kv, Arc::new(Reference));
        let policy = policy.clamped(chunk as u32).0;
        let all = tokens(&model, prompt + DECODED, seed);
        let chunks = prompt.div_ceil(chunk);
        let alone = sharded(&model, policy, chunk, &[0], &all);
        let spread = sharded(&model, policy, chunk, &places[..chunks], &all);
        prop_assert_eq!(bits(&spread), bits(&alone));
        prop_assert_eq!(&spread.retained, &alone.retained);
        if !f32_keys {
            return Ok(()); // where sums differ, rounding to bf16 makes more of it
        }
        let travelled = moved(&model, policy, chunk, &all);
        if policy.keeps_all() || same_memory(&alone, &travelled) {
            let apart = difference(&alone, &travelled);
            prop_assert!(apart <= 1e-5, "{apart}");
        } else {
            // Rounding may turn a tie; nothing else may.
            prop_assert!(has_a_tie(&alone, &travelled), "{:?}\n{:?}", alone.kept, travelled.kept);
        }
    }
}

/// Whether the first layer in which the two kept different keys kept one for another of nearly
/// the same score.
fn has_a_tie(a: &Run, b: &Run) -> bool {
    let heads = a.kept.iter().flatten().zip(b.kept.iter().flatten());
    heads.into_iter().any(|(a, b)| {
        let only_a = a.iter().filter(|x| !b.iter().any(|y| y.0 == x.0));
        let only_b: Vec<_> = b.iter().filter(|x| !a.iter().any(|y| y.0 == x.0)).collect();
        only_a.into_iter().any(|x| only_b.iter().any(|y| (x.1 - y.1).abs() <= 1e-3 * y.1.abs()))
    })
}

#[test]
fn completions_go_their_own_ways() {
    let model = model(KvDtype::Bf16, Arc::new(Reference));
    for policy in [MemoryPolicy::dense(), MemoryPolicy::h2o(2, 4, 5)] {
        let all = tokens(&model, 40, 5);
        let run = |choice: u32, also: Option<u32>| {
            let mut prompt = Sharded::new(&model, policy, 16, &[0, 1, 2]);
            all.chunks(16).for_each(|tokens| drop(prompt.chunk(tokens)));
            let mut one = prompt.fork();
            let mut other = prompt.fork();
            let mut hidden = Vec::new();
            for i in 0..20 {
                hidden.push(one.token((i * 3 + choice) % 32, choice).hidden);
                if let Some(also) = also {
                    other.token((i * 7 + also) % 32, also);
                }
            }
            hidden
        };
        assert_eq!(run(1, None), run(1, Some(4)));
    }
}

#[test]
fn the_cpu_backend_too() {
    let cpu = |threads| Arc::new(Cpu::new(CpuOptions { threads, isa: None }).unwrap());
    for policy in [MemoryPolicy::dense(), MemoryPolicy::h2o(2, 8, 9)] {
        let (one, two) = (model(KvDtype::Bf16, cpu(1)), model(KvDtype::Bf16, cpu(2)));
        let all = tokens(&one, 150, 3);
        let alone = sharded(&one, policy, 32, &[0], &all);
        assert_eq!(bits(&sharded(&two, policy, 32, &[2, 0, 1, 2], &all)), bits(&alone));
        let apart = difference(&alone, &moved(&one, policy, 32, &all));
        assert!(apart <= 5e-2, "{apart}");
    }
}
