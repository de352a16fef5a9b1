//! Memory in pages of a pool: the same bits, no byte more than the policy needs, and none at the
//! end.

use std::path::Path;
use std::sync::Arc;

use aqueduct_core::{MemoryPolicy, TokenId};
use aqueduct_engine::{
    Block, EngineError, LoadOptions, LocalPort, Model, Sequence, Want, WeightDtype, prefill,
};
use aqueduct_kernels::pool::PAGE_CELLS;
use aqueduct_kernels::{Backend, BackendError, Cpu, CpuOptions, KvDtype, Leaves, Pool, Reference};

const LEAVES: Leaves = Leaves::of_chunks(16);

/// Two layers, two KV heads.
fn model(backend: Arc<dyn Backend>, kv: KvDtype) -> Model {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/llama31-bfloat16");
    let options = LoadOptions { kv, weights: WeightDtype::Auto, backend };
    Model::load(&dir, &options, &mut |_| {}).unwrap()
}

fn cpu() -> Arc<dyn Backend> {
    Arc::new(Cpu::new(CpuOptions { threads: 1, isa: None }).unwrap())
}

/// Pages for the keys of so many tokens, each KV head's on its own.
fn pages_of(model: &Model, tokens: usize) -> u64 {
    let heads = model.layers() * model.shape().kv_heads as usize;
    (2 * heads * tokens.div_ceil(PAGE_CELLS)) as u64
}

fn pool_for(model: &Model, tokens: usize) -> Pool {
    let whole_pages = tokens.next_multiple_of(PAGE_CELLS) as u64;
    model.pool(whole_pages * model.token_bytes()).unwrap().expect("the host has pages")
}

fn bounded() -> Vec<MemoryPolicy> {
    let h2o = MemoryPolicy::h2o(4, 24, 20);
    let (mut average, mut observed, mut aged) = (h2o, h2o, h2o);
    average.scoring.decay = 0.95;
    observed.scoring.window = 8;
    aged.scoring.age_normalised = true;
    vec![h2o, average, observed, aged, MemoryPolicy::window(4, 44)]
}

fn likeliest(logits: &[f32]) -> TokenId {
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    best.unwrap() as TokenId
}

#[test]
fn a_long_generation_keeps_its_bytes() {
    let model = model(cpu(), KvDtype::Bf16);
    for policy in bounded() {
        let budget = policy.budget_tokens().unwrap() as usize;
        let pool = pool_for(&model, budget);
        let mut port = LocalPort::empty_in(&pool, &model);
        let block = Block { tokens: &[1; 16], start: 0, leaves: LEAVES };
        let done = prefill(&model, block, &policy, &mut port, Want::Last).unwrap();
        let mut logits = model.logits(&done.hidden).unwrap().into_vec();
        let mut sequence = Sequence::new(&model, port.layers().to_vec(), LEAVES);
        drop(port);
        let mut at_1000 = None;
        for idx in 0..20_000 {
            let token = likeliest(&logits);
            logits = sequence.step(&model, token, &policy).unwrap();
            if idx >= 1000 {
                let seen = (sequence.bytes(), pool.usage());
                assert_eq!(*at_1000.get_or_insert(seen), seen, "token {idx} of {policy:?}");
            }
        }
        assert_eq!(pool.usage().used_pages, pages_of(&model, budget));
        assert_eq!(pool.usage().used_pages, pool.usage().peak_pages, "never more than that");
        drop(sequence);
        assert_eq!(pool.usage().used_pages, 0);
    }
}

/// Logits of every token, by `chunks`, then one at a time.
fn logits(model: &Model, port: &mut LocalPort, policy: &MemoryPolicy) -> Vec<u32> {
    let tokens: Vec<TokenId> = (0..170).map(|i| i * 37 % model.shape().vocab).collect();
    let (prompt, rest) = tokens.split_at(120);
    let mut bits = Vec::new();
    for block in prompt.chunks(50).chain(rest.chunks(1)) {
        let block = Block { tokens: block, start: port.end(), leaves: LEAVES };
        let done = prefill(model, block, policy, port, Want::All).unwrap();
        let logits = model.logits(&done.hidden).unwrap();
        bits.extend(logits.data().iter().map(|x| x.to_bits()));
    }
    bits
}

#[test]
fn pages_change_no_bit() {
    for backend in [cpu(), Arc::new(Reference)] {
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            let model = model(backend.clone(), kv);
            for policy in bounded().into_iter().chain([MemoryPolicy::dense()]) {
                let pool = pool_for(&model, 170);
                let mut paged = LocalPort::empty_in(&pool, &model);
                let mut plain = LocalPort::empty(&model);
                let seen = logits(&model, &mut paged, &policy);
                assert_eq!(seen, logits(&model, &mut plain, &policy), "{policy:?}");
                assert_eq!(paged.layers(), plain.layers());
                let tokens = policy.budget_tokens().map_or(170, |tokens| tokens as usize);
                assert_eq!(pool.usage().used_pages, pages_of(&model, tokens));
            }
        }
    }
}

#[test]
fn completions_share_what_none_of_them_changed() {
    let model = model(cpu(), KvDtype::F32);
    let policy = MemoryPolicy::h2o(4, 60, 64);
    let pool = pool_for(&model, 3 * 128);
    let mut port = LocalPort::empty_in(&pool, &model);
    let block = Block { tokens: &[7; 200], start: 0, leaves: LEAVES };
    prefill(&model, block, &policy, &mut port, Want::Last).unwrap();
    let all = pages_of(&model, 128);
    assert_eq!(pool.usage().used_pages, all);
    let memory = port.layers().to_vec();
    drop(port);
    let alone = |token: TokenId| {
        let in_order = memory.iter().map(|set| Arc::new(set.in_order())).collect();
        let mut sequence = Sequence::new(&model, in_order, LEAVES);
        (0..3).map(|_| sequence.step(&model, token, &policy).unwrap()).collect::<Vec<_>>()
    };
    let (want_a, want_b) = (alone(3), alone(5));
    let mut a = Sequence::new(&model, memory.clone(), LEAVES);
    let mut b = Sequence::new(&model, memory, LEAVES);
    for i in 0..3 {
        assert_eq!(a.step(&model, 3, &policy).unwrap(), want_a[i]);
        assert_eq!(b.step(&model, 5, &policy).unwrap(), want_b[i]);
    }
    // A step writes one row of each KV head.
    let heads = (model.layers() * model.shape().kv_heads as usize) as u64;
    let copied = pool.usage().used_pages - all;
    assert!((2 * heads..=2 * 2 * 3 * heads).contains(&copied), "{copied} pages were copied");
    drop(a);
    assert_eq!(pool.usage().used_pages, all);
    drop(b);
    assert_eq!(pool.usage().used_pages, 0);
}

#[test]
fn a_pool_that_is_full_is_an_error_and_others_go_on() {
    let model = model(cpu(), KvDtype::F32);
    let dense = MemoryPolicy::dense();
    let pool = pool_for(&model, 64);
    let mut first = LocalPort::empty_in(&pool, &model);
    let block = |port: &LocalPort, tokens| Block { tokens, start: port.end(), leaves: LEAVES };
    prefill(&model, block(&first, &[1; 40]), &dense, &mut first, Want::Last).unwrap();
    let before = (pool.usage().used_pages, first.layers().to_vec());
    let mut second = LocalPort::empty_in(&pool, &model);
    let refused = prefill(&model, block(&second, &[1; 40]), &dense, &mut second, Want::Last);
    let Err(EngineError::Backend(BackendError::Exhausted { bytes, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(bytes, pool.usage().bytes());
    drop(second);
    assert_eq!(pool.usage().used_pages, before.0);
    assert_eq!(first.layers(), before.1);
    drop(before);
    prefill(&model, block(&first, &[2; 20]), &dense, &mut first, Want::Last).unwrap();
    drop(first);
    assert_eq!(pool.usage().used_pages, 0);
}
