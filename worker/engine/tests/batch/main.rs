//! Who else is in a batch changes no bit of a sequence, and neither does how another one ends.

mod broken;
#[path = "../support/stores.rs"]
mod stores;

use std::path::Path;
use std::sync::Arc;

use aqueduct_core::{MemoryPolicy, PolicyKind, Scoring};
use aqueduct_engine::{
    Block, LoadOptions, LocalPort, Model, Past, Remembered, Sequence, Turn, Want, WeightDtype,
    decode, prefill,
};
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use aqueduct_kernels::{Backend, Cpu, CpuOptions, IsaLevel, KvDtype, Leaves, MemorySet, Reference};
use proptest::prelude::*;
use stores::Sharded;

const CHUNK: usize = 8;
const LEAVES: Leaves = Leaves::of_chunks(CHUNK as u32);

fn model(kv: KvDtype, weights: WeightDtype, backend: Arc<dyn Backend>) -> Model {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/llama31-bfloat16");
    Model::load(&dir, &LoadOptions { kv, weights, backend }, &mut |_| {}).unwrap()
}

/// One sequence of a batch: which prompt, what it remembers and where, and in which of the steps
/// it takes part.
#[derive(Debug, Clone)]
struct Plan {
    prompt: usize,
    seed: u32,
    policy: MemoryPolicy,
    /// Of each chunk; sets if empty.
    stores: Vec<usize>,
    joins: usize,
    tokens: usize,
}

/// A sequence under way.
enum Under<'m> {
    Sets(Sequence),
    Shards(Sharded<'m>),
}

/// What came of a sequence: bits of the logits of every step, and what it remembers at the end.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    logits: Vec<Vec<u32>>,
    sets: Vec<Arc<MemorySet>>,
    kept: Vec<Vec<Vec<(u32, f32)>>>,
}

impl Plan {
    fn tokens(&self, model: &Model) -> Vec<u32> {
        let vocab = model.shape().vocab;
        (0..self.prompt as u32).map(|i| (i * 37 + i * i * 11 + self.seed) % vocab).collect()
    }

    /// Of what is generated.
    fn leaves(&self) -> Leaves {
        LEAVES.going_on_behind(self.prompt as u32)
    }

    /// The prompt, prefilled.
    fn begin<'m>(&self, model: &'m Model) -> Under<'m> {
        let tokens = self.tokens(model);
        if !self.stores.is_empty() {
            let mut sharded = Sharded::new(model, self.policy, CHUNK as u32, &self.stores);
            tokens.chunks(CHUNK).for_each(|chunk| drop(sharded.chunk(chunk)));
            return Under::Shards(sharded.fork());
        }
        let mut port = LocalPort::empty(model);
        for chunk in tokens.chunks(CHUNK) {
            let block = Block { tokens: chunk, start: port.end(), leaves: LEAVES };
            prefill(model, block, &self.policy, &mut port, Want::Memory).unwrap();
        }
        Under::Sets(Sequence::new(model, port.layers().to_vec(), self.leaves()))
    }

    /// Token by token through the spine of prefill, and no batch.
    fn alone(&self, model: &Model) -> Outcome {
        let mut under = self.begin(model);
        let mut port = match &under {
            Under::Sets(sequence) => LocalPort::resume(sequence.memory().to_vec(), model),
            Under::Shards(_) => LocalPort::empty(model),
        };
        let (mut next, mut logits) = (self.seed % 7, Vec::new());
        for _ in 0..self.tokens {
            let done = match &mut under {
                Under::Sets(_) => {
                    let (start, leaves) = (port.end(), self.leaves());
                    let block = Block { tokens: &[next], start, leaves };
                    prefill(model, block, &self.policy, &mut port, Want::Last).unwrap()
                }
                Under::Shards(sharded) => sharded.token(next, 3),
            };
            let row = model.logits(&done.hidden).unwrap().into_vec();
            next = most_likely(&row);
            logits.push(bits(&row));
        }
        if let Under::Sets(_) = under {
            under = Under::Sets(Sequence::new(model, port.layers().to_vec(), self.leaves()));
        }
        under.outcome(model, self.policy.heavy, logits)
    }
}

impl Under<'_> {
    fn outcome(&self, model: &Model, heavy: u32, logits: Vec<Vec<u32>>) -> Outcome {
        match self {
            Self::Sets(sequence) => {
                let mut sets = sequence.memory().to_vec();
                for set in sets.iter_mut().filter(|_| heavy == 0) {
                    Arc::make_mut(set).score = Default::default(); // not counted in a step
                }
                Outcome { logits, sets, kept: Vec::new() }
            }
            Self::Shards(sharded) => {
                let kept = (0..model.layers() as u32).map(|layer| sharded.kept(layer)).collect();
                Outcome { logits, sets: Vec::new(), kept }
            }
        }
    }
}

fn most_likely(logits: &[f32]) -> u32 {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("a vocabulary").0 as u32
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|z| z.to_bits()).collect()
}

/// All of `plans` in the steps that they take part in.
fn together(model: &Model, plans: &[Plan]) -> Vec<Outcome> {
    let mut under: Vec<_> = plans.iter().map(|plan| plan.begin(model)).collect();
    let mut next: Vec<u32> = plans.iter().map(|plan| plan.seed % 7).collect();
    let mut logits = vec![Vec::new(); plans.len()];
    let last = plans.iter().map(|plan| plan.joins + plan.tokens).max().unwrap_or(0);
    for step in 0..last {
        let takes_part = |plan: &Plan| (plan.joins..plan.joins + plan.tokens).contains(&step);
        let idxs: Vec<usize> = (0..plans.len()).filter(|&i| takes_part(&plans[i])).collect();
        let mut ports: Vec<_> = under
            .iter_mut()
            .map(|under| match under {
                Under::Shards(sharded) => Some(sharded.port_for_token(3)),
                Under::Sets(_) => None,
            })
            .collect();
        let turns = under.iter_mut().zip(&mut ports).enumerate();
        let turns = turns.filter(|(idx, _)| idxs.contains(idx)).map(|(idx, (under, port))| {
            let (token, policy) = (next[idx], &plans[idx].policy);
            match under {
                Under::Sets(sequence) => sequence.turn(token, policy),
                Under::Shards(sharded) => {
                    let port = port.as_mut().expect("made above");
                    let past = Remembered::Shards(Past { chunks: sharded.chunks, port });
                    Turn { token, position: sharded.end, policy, past }
                }
            }
        });
        for (&idx, row) in idxs.iter().zip(decode(model, turns.collect())) {
            let row = row.unwrap();
            next[idx] = most_likely(&row);
            logits[idx].push(bits(&row));
            if let Under::Shards(sharded) = &mut under[idx] {
                sharded.after_token();
            }
        }
    }
    let each = under.iter().zip(plans).zip(logits);
    let outcome = |((under, plan), logits): ((&Under<'_>, &Plan), _)| {
        under.outcome(model, plan.policy.heavy, logits)
    };
    each.map(outcome).collect()
}

fn check(model: &Model, plans: &[Plan]) {
    for (plan, seen) in plans.iter().zip(together(model, plans)) {
        assert!(seen == plan.alone(model), "{plan:?}");
    }
}

fn policies() -> impl Strategy<Value = MemoryPolicy> {
    let scoring = (prop_oneof![Just(1.0f32), Just(0.95)], any::<bool>())
        .prop_map(|(decay, age_normalised)| Scoring { decay, window: 0, age_normalised });
    let bounded =
        (0u32..4, 1u32..6, 0u32..6, scoring).prop_map(|(sinks, local, heavy, scoring)| {
            let kind = if heavy == 0 { PolicyKind::Window } else { PolicyKind::H2o };
            MemoryPolicy { kind, sinks, local, heavy, scoring }.clamped(CHUNK as u32).0
        });
    prop_oneof![1 => Just(MemoryPolicy::dense()), 3 => bounded]
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let stores = prop::collection::vec(0usize..3, 0..4);
    let one = (1usize..40, 0u32..1000, policies(), stores, 0usize..4, 1usize..12);
    let plan = |(prompt, seed, policy, stores, joins, tokens)| Plan {
        prompt,
        seed,
        policy,
        stores,
        joins,
        tokens,
    };
    prop::collection::vec(one.prop_map(plan), 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_batch_gives_what_each_gives_alone(plans in plans(), f32_keys: bool) {
        let kv = if f32_keys { KvDtype::F32 } else { KvDtype::Bf16 };
        check(&model(kv, WeightDtype::F32, Arc::new(Reference)), &plans);
    }
}

/// Sets and shards of all policies, coming and going.
fn mixed(count: usize) -> Vec<Plan> {
    let policies = [
        MemoryPolicy::h2o(2, 3, 2),
        MemoryPolicy::dense(),
        MemoryPolicy::window(1, 4),
        MemoryPolicy::h2o(0, 4, 3),
    ];
    let plan = |i: usize| Plan {
        prompt: 1 + i * 7 % 30,
        seed: i as u32 * 13,
        policy: policies[i % 4],
        stores: if i % 3 == 1 { vec![i % 2, 0, 1] } else { Vec::new() },
        joins: i % 4,
        tokens: 2 + i % 5,
    };
    (0..count).map(plan).collect()
}

#[test]
fn on_every_instruction_set() {
    for isa in IsaLevel::available() {
        for (kv, weights) in [
            (KvDtype::Bf16, WeightDtype::Bf16),
            (KvDtype::Bf16, WeightDtype::Int8),
            (KvDtype::F32, WeightDtype::F32),
        ] {
            let cpu = Cpu::new(CpuOptions { threads: 2, isa: Some(isa) }).unwrap();
            check(&model(kv, weights, Arc::new(cpu)), &mixed(21));
        }
    }
}

#[test]
fn on_an_emulated_device() {
    for capability in [80, 90] {
        let cuda = Cuda::emulated(capability, CudaOptions::default()).unwrap();
        check(&model(KvDtype::Bf16, WeightDtype::Bf16, Arc::new(cuda)), &mixed(5));
    }
}
