//! Shapes for kernels that work on tiles with matrix instructions: bf16 keys, the head sizes of
//! the families served, rows and keys in numbers around tiles.

use crate::backend::{Attended, AttentionOps, Backend, Scope};
use crate::compare::{Tolerance, close, identical};
use crate::memory::{Keys, Leaves};
use crate::tensor::KvDtype;

use super::attention::check_block;
use super::cells::scattered;
use super::mass::{Want, check_one_pass};
use super::oracle::{self, Truth};
use super::scene::{Block, Shape};

const HEAD_SIZES: [usize; 6] = [64, 128, 256, 40, 80, 192];
/// What the output may be off, relative to its norm: a rounding to bf16 is up to 2^-9 of each
/// element, and one of each probability is in it.
const OUTPUT_OFF: f64 = 5e-3;
/// What the masses may sum to beside what the rows have to spend, in proportion.
const SPENT_OFF: f64 = 1e-5;

pub(super) fn shape(head_dim: usize) -> Shape {
    Shape { heads: 2, kv_heads: 1, head_dim, kv: KvDtype::Bf16, ..Shape::default() }
}

fn scene(shape: Shape, past: usize, tokens: usize) -> (Keys, Block) {
    (shape.past(past), shape.block(2 * past as u32, tokens))
}

fn attended(
    backend: &dyn AttentionOps,
    past: &Keys,
    block: &Block,
    row_weights: &[f32],
) -> Attended {
    let (leaves, own, row_weights) = (Leaves::ONE, &block.keys, Some(row_weights));
    let (sinks, outputs) = (block.sinks.as_ref(), block.keys.len());
    let scope = Scope { past, leaves, own, row_weights, sinks, outputs, rounded: true };
    backend.attend_all(block.queries(), scope).expect("fits")
}

/// Past masses, then own masses, of KV head `g`.
fn mass_of(attended: &Attended, kv_heads: usize, g: usize) -> Vec<f32> {
    let head = |mass: &[f32]| {
        let keys = mass.len() / kv_heads;
        mass[g * keys..(g + 1) * keys].to_vec()
    };
    [head(&attended.past_mass), head(&attended.own_mass)].concat()
}

fn check_output(name: &str, attended: &Attended, truth: &Truth) {
    let pairs = || attended.output.data().iter().zip(&truth.output);
    let off: f64 = pairs().map(|(&seen, want)| (f64::from(seen) - want.value).powi(2)).sum();
    let norm: f64 = pairs().map(|(_, want)| want.value.powi(2)).sum();
    assert_eq!(attended.output.data().len(), truth.output.len());
    let off = (off / norm).sqrt();
    assert!(off <= OUTPUT_OFF, "{name}: the output is off by {off:.2e} of its norm");
}

/// Output and masses of rows that weigh `row_weights`, against the definition.
fn check(backend: &dyn AttentionOps, shape: Shape, past: usize, row_weights: &[f32]) {
    let (past, block) = scene(shape, past, row_weights.len());
    check_over(backend, shape, (&past, &block), row_weights);
}

/// The same of `block` over `past`.
pub(super) fn check_over(
    backend: &dyn AttentionOps,
    shape: Shape,
    (past, block): (&Keys, &Block),
    row_weights: &[f32],
) {
    let tokens = row_weights.len();
    let keys = oracle::joined(&oracle::entries(past), &oracle::entries(&block.keys));
    let wide: Vec<f64> = row_weights.iter().map(|&weight| weight.into()).collect();
    let truth = oracle::attention(&block.queries(), &keys, &wide);
    let seen = attended(backend, past, block, row_weights);
    let name = format!("{tokens} rows over {} remembered keys, {shape:?}", past.len());
    check_output(&name, &seen, &truth);
    let has: f64 = wide.iter().sum::<f64>() * (shape.heads / shape.kv_heads) as f64;
    for (g, want) in truth.mass.iter().enumerate() {
        let seen = mass_of(&seen, shape.kv_heads, g);
        close(&format!("mass, {name}"), &seen, want, truth.tolerance()).unwrap();
        let spent: f64 = seen.iter().map(|&mass| f64::from(mass)).sum();
        let tolerance = Tolerance::new(SPENT_OFF * has, 0.0);
        close(&format!("spent, {name}"), &[spent], &[has], tolerance).unwrap();
    }
}

/// Rows and keys in numbers around multiples of 64 and 128, either number alone.
pub fn rows_and_keys_around_a_tile(backend: &dyn Backend) {
    for head_dim in HEAD_SIZES {
        for (past, tokens) in [(0, 65), (1, 63), (64, 1), (63, 128), (65, 129), (130, 33)] {
            check(backend, shape(head_dim), past, &vec![1.0; tokens]);
        }
    }
}

/// Halves that are merged as states, each against nothing but the definition.
pub fn states_of_halves(backend: &dyn Backend) {
    for head_dim in HEAD_SIZES {
        for (past, tokens) in [(0, 64), (63, 17), (129, 66)] {
            let (past, block) = scene(shape(head_dim), past, tokens);
            check_block(backend, &past, &block);
        }
    }
}

/// One, two, four and eight query heads to a KV head.
pub fn groups_of_query_heads(backend: &dyn Backend) {
    for (heads, kv_heads) in [(2, 2), (4, 2), (4, 1), (8, 1)] {
        check(backend, Shape { heads, kv_heads, ..shape(64) }, 40, &[1.0; 33]);
    }
}

/// Where only the last rows count, those before them are not looked at and nothing changes.
pub fn only_the_last_rows_vote(backend: &dyn Backend) {
    for (head_dim, tokens, voting) in
        [(64, 150, 16), (128, 130, 1), (256, 70, 69), (96, 150, 16), (200, 70, 1)]
    {
        let mut row_weights = vec![0.0; tokens];
        for (age, weight) in row_weights.iter_mut().rev().take(voting).enumerate() {
            *weight = 0.05 * 0.95_f32.powi(age as i32);
        }
        check(backend, shape(head_dim), 70, &row_weights);
    }
}

/// Own keys first and the past later give the bits of both at once, as do two runs.
pub fn halves_and_wholes_meet_bit_for_bit(backend: &dyn Backend) {
    for head_dim in HEAD_SIZES {
        for (past, tokens) in [(70, 66), (0, 33), (129, 1)] {
            let shape = shape(head_dim);
            let row_weights = vec![1.0; tokens];
            let want = Want { row_weights: Some(&row_weights), rounded: true };
            check_one_pass(backend, shape, (past, tokens), want);
            let (past, block) = scene(shape, past, tokens);
            check_same_bits(backend, [&past, &past], &block);
        }
    }
}

/// Where remembered keys lie changes no bit of what many rows make of them.
pub fn many_rows_over_scattered_cells(backend: &dyn Backend) {
    for (head_dim, past, spare) in
        [(64, 70, 0), (128, 130, 5), (256, 33, 1), (80, 70, 3), (248, 40, 2)]
    {
        let shape = Shape { heads: 4, kv_heads: 2, ..shape(head_dim) };
        let (past, block) = scene(shape, past, 40);
        check_same_bits(backend, [&past, &scattered(&past, spare)], &block);
    }
}

pub(super) fn check_same_bits(backend: &dyn AttentionOps, pasts: [&Keys; 2], block: &Block) {
    let run = |past| attended(backend, past, block, &vec![1.0; block.tokens()]);
    let [a, b] = pasts.map(run);
    identical("output", b.output.data(), a.output.data()).unwrap();
    identical("past mass", &b.past_mass, &a.past_mass).unwrap();
    identical("own mass", &b.own_mass, &a.own_mass).unwrap();
}

/// The keys of most mass are those of the definition, but for one in two hundred.
pub fn heavy_hitters_are_the_definitions(backend: &dyn Backend) {
    const HEAVY: usize = 100;
    let shape = Shape { heads: 4, kv_heads: 4, spread: 2.0, ..shape(64) };
    let (past, block) = scene(shape, 128, 192);
    let keys = oracle::joined(&oracle::entries(&past), &oracle::entries(&block.keys));
    let truth = oracle::attention(&block.queries(), &keys, &[1.0; 192]);
    let seen = attended(backend, &past, &block, &[1.0; 192]);
    let both = (0..shape.kv_heads).map(|g| {
        let wide: Vec<f64> = mass_of(&seen, 4, g).into_iter().map(f64::from).collect();
        let (seen, want) = (heaviest(&wide, HEAVY), heaviest(&truth.mass[g], HEAVY));
        seen.iter().filter(|key| want.contains(key)).count()
    });
    let both: usize = both.sum();
    assert!(both * 200 >= shape.kv_heads * HEAVY * 199, "{both} of {}", shape.kv_heads * HEAVY);
}

fn heaviest(mass: &[f64], count: usize) -> Vec<usize> {
    let mut keys: Vec<usize> = (0..mass.len()).collect();
    keys.sort_by(|&a, &b| mass[b].total_cmp(&mass[a]).then(a.cmp(&b)));
    keys.truncate(count);
    keys
}

/// A key or a value that is not finite is refused wherever it stands in a tile.
pub fn broken_numbers_in_a_tile(backend: &dyn Backend) {
    for (head_dim, broken) in
        [(64, f32::NAN), (128, f32::INFINITY), (256, f32::NAN), (112, f32::NAN)]
    {
        let shape = shape(head_dim);
        let block = shape.block(160, 40);
        for at in [0, 79, 128] {
            let lift = |_, position: u32| if position / 2 == at { broken } else { 0.0 };
            let keys = shape.lifted_past(80, lift);
            let swapped = Keys::new(keys.positions.clone(), keys.v.clone(), keys.k.clone());
            for keys in [keys, swapped] {
                let result = backend.attend(block.queries(), &keys);
                assert_eq!(result.is_err(), at < 80, "{broken} at {at}, head size {head_dim}");
            }
        }
    }
}
