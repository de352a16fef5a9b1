//! The device's selection is the host's, bit for bit; on the emulator.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::sync::Arc;

use aqueduct_kernels::compare::identical;
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use aqueduct_kernels::select::select;
use aqueduct_kernels::{
    Array, Keys, KvDtype, KvHeads, MemorySet, Ranking, Selection, SelectionOps, Window,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Keys and values that tell their head and position.
fn told(positions: &[u32], shape: &Shape) -> Keys {
    let count = positions.len() / shape.kv_heads;
    let heads = |sign: f32| {
        let rows = positions.iter().enumerate().flat_map(|(i, &position)| {
            let head = (i / count) as f32;
            (0..shape.head_dim).map(move |d| sign * (position as f32 + 100.0 * head) + d as f32)
        });
        let data: Vec<f32> = rows.collect();
        KvHeads::from_f32(shape.kv_heads, count, shape.head_dim, &data, shape.kv)
    };
    Keys::new(positions.to_vec(), heads(1.0), heads(-1.0))
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    kv_heads: usize,
    head_dim: usize,
    kv: KvDtype,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let kv = prop_oneof![Just(KvDtype::F32), Just(KvDtype::Bf16)];
    (1..4_usize, prop_oneof![Just(1_usize), Just(2), Just(8), Just(20)], kv)
        .prop_map(|(kv_heads, head_dim, kv)| Shape { kv_heads, head_dim, kv })
}

/// Also such as hide all but a few keys.
fn windows() -> impl Strategy<Value = Option<Window>> {
    let last = (1..40_u32).prop_map(|count| Some(Window::Last(count)));
    let block = (1..40_u32).prop_map(|count| Some(Window::Block(count)));
    prop_oneof![4 => Just(None), 1 => last, 1 => block]
}

fn selections() -> impl Strategy<Value = Selection> {
    let ranking = (prop_oneof![Just(1.0_f32), Just(0.95)], 0..5_usize, any::<bool>());
    let budget = (0..6_u32, 0..12_u32, 0..20_usize, prop::bool::weighted(0.1));
    (ranking, budget, windows()).prop_map(
        |((decay, votes, age_normalised), (sinks, local, heavy, keep_all), window)| Selection {
            keep_all,
            sinks,
            local,
            heavy,
            ranking: Ranking { decay, window: votes, age_normalised },
            window,
        },
    )
}

/// Few values, so that ranks tie often, and what is no number.
fn masses() -> impl Strategy<Value = Vec<f32>> {
    let odd = prop_oneof![
        Just(f32::NAN),
        Just(-f32::NAN),
        Just(f32::INFINITY),
        Just(-0.0_f32),
        Just(1e-40)
    ];
    let mass = prop_oneof![20 => (0..4_u8).prop_map(f32::from), 10 => 0.0..1e4_f32, 1 => odd];
    vec(mass, 1..200)
}

/// One block: its tokens, its policy, what its keys are given, and whether somebody else holds
/// the set before it.
#[derive(Debug, Clone)]
struct Turn {
    tokens: usize,
    selection: Selection,
    masses: Vec<f32>,
    is_shared: bool,
}

fn turns(tokens: impl Strategy<Value = usize>, most: usize) -> impl Strategy<Value = Vec<Turn>> {
    let turn = (tokens, masses(), prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    (vec((turn, selections()), 1..most), selections()).prop_map(|(turns, usual)| {
        let turn = |((tokens, masses, is_shared, changes), other): (_, Selection)| Turn {
            tokens,
            selection: if changes { other } else { usual },
            masses,
            is_shared,
        };
        turns.into_iter().map(turn).collect()
    })
}

/// Bit for bit, but that processors write NaN in different ways.
fn same_sets(seen: &MemorySet, want: &MemorySet) {
    assert_eq!(seen.keys.positions, want.keys.positions);
    let plain = |tally: &[f32]| -> Vec<f32> {
        tally.iter().map(|&it| if it.is_nan() { f32::NAN } else { it }).collect()
    };
    identical("score", &plain(&seen.score), &plain(&want.score)).unwrap();
    identical("votes", &plain(&seen.votes), &plain(&want.votes)).unwrap();
    assert_eq!(seen.keys, want.keys);
    assert_eq!(seen.end, want.end);
}

fn same_sums(seen: &[f64], want: &[f64]) {
    for (&a, &b) in seen.iter().zip(want) {
        let near = a == b || (a - b).abs() <= 1e-6 * b.abs() || a.is_nan() && b.is_nan();
        assert!(near, "retained {a}, want {b}");
    }
}

fn advance(past: &MemorySet, turn: &Turn, shape: &Shape) -> (Keys, Array<f32>, Array<f32>) {
    let own: Vec<u32> = (past.end..).take(turn.tokens).collect();
    let own = told(&own.repeat(shape.kv_heads), shape);
    let voting = if turn.selection.keep_all { 0 } else { shape.kv_heads };
    let cycle = |skip: usize, count: usize| -> Array<f32> {
        turn.masses.iter().copied().cycle().skip(skip).take(voting * count).collect()
    };
    let masses = (cycle(0, past.keys.len()), cycle(7, turn.tokens));
    (own, masses.0, masses.1)
}

/// Blocks one after the other, on the device and on the host.
fn check(cuda: &Cuda, shape: Shape, turns: &[Turn]) {
    let empty = MemorySet::empty(shape.kv_heads, shape.head_dim, shape.kv);
    let (mut there, mut here) = (Arc::new(empty.clone()), Arc::new(empty));
    for turn in turns {
        let (own, past_mass, own_mass) = advance(&here, turn, &shape);
        let holder = turn.is_shared.then(|| (there.clone(), here.clone()));
        let masses = (&past_mass, &own_mass);
        let seen = cuda.select(there, &own, masses, &turn.selection).unwrap();
        let want = select(here, &own, (&past_mass, &own_mass), &turn.selection).unwrap();
        // Read on a copy: what is read of the set itself would be known without the device.
        same_sets(&seen.memory.clone(), &want.memory);
        same_sums(&seen.retained, &want.retained);
        (there, here) = (Arc::new(seen.memory), Arc::new(want.memory));
        if let Some((before_there, before_here)) = holder {
            same_sets(&before_there, &before_here); // what others hold was not changed
        }
    }
}

fn cuda(checked: bool) -> Cuda {
    Cuda::emulated(90, CudaOptions { checked, ..CudaOptions::default() }).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn blocks(
        shape in shapes(),
        turns in turns(prop_oneof![Just(1_usize), 0..40_usize], 8),
        checked: bool,
    ) {
        check(&cuda(checked), shape, &turns);
    }

    #[test]
    fn decode_steps(shape in shapes(), turns in turns(Just(1), 40), checked: bool) {
        check(&cuda(checked), shape, &turns);
    }
}

#[test]
fn sets_larger_than_a_block_of_threads() {
    let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
    let selection =
        Selection { keep_all: false, sinks: 4, local: 300, heavy: 1500, ranking, window: None };
    let shape = Shape { kv_heads: 2, head_dim: 8, kv: KvDtype::Bf16 };
    let turn = |tokens: usize, seed: u32| {
        let mixed = (0..9999_u32).map(|i| (i + seed).wrapping_mul(2_654_435_761));
        let masses = mixed.map(|x| (x >> 20) as f32 / 64.0).collect();
        Turn { tokens, selection, masses, is_shared: false }
    };
    let turns = [3000, 2100, 1, 1, 1, 40].iter().zip(0..).map(|(&t, seed)| turn(t, seed));
    check(&cuda(false), shape, &turns.collect::<Vec<_>>());
}

#[test]
fn sets_larger_than_shared_memory() {
    let ranking = Ranking { decay: 0.95, window: 0, age_normalised: true };
    let selection =
        Selection { keep_all: false, sinks: 4, local: 300, heavy: 60, ranking, window: None };
    let shape = Shape { kv_heads: 1, head_dim: 1, kv: KvDtype::Bf16 };
    let masses = (0..997).map(|i| (i * 7 % 13) as f32).collect();
    let turn = Turn { tokens: 60_000, selection, masses, is_shared: false };
    check(&cuda(false), shape, &[turn]);
}
