//! Shards: the answer depends on the chunks and not on who holds them, and is that of a memory
//! set which travels.

#[path = "support/stores.rs"]
mod stores;

use std::path::Path;
use std::sync::Arc;

use aqueduct_core::{MemoryPolicy, PolicyKind, Scoring};
use aqueduct_engine::{Block, LoadOptions, LocalPort, Model, Want, WeightDtype, prefill};
use aqueduct_kernels::{Backend, Cpu, CpuOptions, IsaLevel, KvDtype, Leaves, Reference, Rows};
use proptest::prelude::*;
use stores::Sharded;

/// Tokens decoded after the prompt.
const DECODED: usize = 6;

/// Of one kind of attention each: products alone, something besides keys, a cap, what falls with
/// distance.
const KINDS: [&str; 4] =
    ["llama31-bfloat16", "gpt-oss-bfloat16", "gemma2-Q8_0.gguf", "bloom-odd-bfloat16"];

fn model(kv: KvDtype, backend: Arc<dyn Backend>) -> Model {
    model_of(KINDS[0], kv, backend)
}

fn model_of(kind: &str, kv: KvDtype, backend: Arc<dyn Backend>) -> Model {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(kind);
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
    run(Sharded::new(model, policy, chunk as u32, places), chunk, all)
}

fn run(mut sequence: Sharded<'_>, chunk: usize, all: &[u32]) -> Run {
    let (prompt, decoded) = all.split_at(all.len() - DECODED);
    let model = sequence.model;
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
    let of_prompt = Leaves::of_chunks(chunk as u32);
    let of_decoded = of_prompt.going_on_behind(prompt.len() as u32);
    let prompt = prompt.chunks(chunk).map(|tokens| (tokens, of_prompt));
    for (tokens, leaves) in prompt.chain(decoded.chunks(1).map(|token| (token, of_decoded))) {
        let block = Block { tokens, start: port.end(), leaves };
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
        (seed, kind) in (0u32..1000, prop::sample::select(KINDS.to_vec())),
        f32_keys: bool,
    ) {
        let kv = if f32_keys { KvDtype::F32 } else { KvDtype::Bf16 };
        let model = model_of(kind, kv, Arc::new(Reference));
        let policy = policy.clamped(chunk as u32).0;
        let all = tokens(&model, prompt + DECODED, seed);
        let chunks = prompt.div_ceil(chunk);
        let alone = sharded(&model, policy, chunk, &[0], &all);
        let spread = sharded(&model, policy, chunk, &places[..chunks], &all);
        prop_assert_eq!(bits(&spread), bits(&alone));
        prop_assert_eq!(&spread.retained, &alone.retained);
        let mut asking = Sharded::new(&model, policy, chunk as u32, &places[..chunks]);
        asking.asks_all = true;
        prop_assert_eq!(bits(&run(asking, chunk, &all)), bits(&alone), "all shards are asked");
        let travelled = moved(&model, policy, chunk, &all);
        if !policy.keeps_all() {
            prop_assert_eq!(bits(&alone), bits(&travelled));
        } else if f32_keys {
            // One set of all keys is a sum in another order, and no request's.
            let apart = difference(&alone, &travelled);
            prop_assert!(apart <= 1e-5, "{apart}");
        }
    }
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
    let policies = [
        MemoryPolicy::dense(),
        MemoryPolicy::h2o(2, 8, 9),
        MemoryPolicy::h2o(4, 10, 20),
        MemoryPolicy::window(3, 30),
    ];
    for isa in IsaLevel::available() {
        let cpu = |threads| Arc::new(Cpu::new(CpuOptions { threads, isa: Some(isa) }).unwrap());
        for (idx, policy) in policies.into_iter().enumerate() {
            let (kv, kind) = ([KvDtype::Bf16, KvDtype::F32][idx % 2], KINDS[idx % 3]);
            let (one, two) = (model_of(kind, kv, cpu(1)), model_of(kind, kv, cpu(2)));
            let all = tokens(&one, 200, 3);
            let alone = sharded(&one, policy, 32, &[0], &all);
            for places in [&[2, 0, 1, 2][..], &[0, 1, 2, 3, 0, 1, 2], &[0, 1, 0, 1, 0, 1, 0]] {
                let spread = sharded(&two, policy, 32, places, &all);
                assert_eq!(bits(&spread), bits(&alone), "{isa:?} {policy}");
            }
            let moved = moved(&one, policy, 32, &all);
            match policy.keeps_all() {
                true => assert!(difference(&alone, &moved) <= 5e-2),
                false => assert_eq!(bits(&moved), bits(&alone), "{isa:?} {policy}"),
            }
        }
    }
}
