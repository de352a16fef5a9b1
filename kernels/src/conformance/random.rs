//! One layer of a random shape and size, as a device meets it, against the definition in f64.

use std::sync::Arc;

use crate::array::Array;
use crate::backend::{Attended, Backend, Scope};
use crate::compare::identical;
use crate::memory::{Keys, Leaves, MemorySet, Selection};
use crate::tensor::KvDtype;

use super::cells::scattered;
use super::chains::CUMULATIVE;
use super::oracle;
use super::scene::{Block, Random, Shape};

/// What a run was off.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Heads, rows and keys, for people.
    pub what: String,
    /// Of attention's output: length of the difference over length of the truth.
    pub output_error: f64,
    /// Of the column masses.
    pub mass_error: f64,
    /// What a KV head's rows spent, off what they had, of that.
    pub spent_error: f64,
    /// Keys that a ranking by definition keeps.
    pub kept: usize,
    /// Those of them that were kept.
    pub agreed: usize,
}

/// Sizes of one run.
struct Sizes {
    shape: Shape,
    past: usize,
    tokens: usize,
}

impl Sizes {
    /// Odd sizes as often as round ones.
    fn of(seed: u64, tokens_max: usize) -> Self {
        let mut random = Random::new(seed);
        let mut below = |bound: usize| random.next() as usize % bound;
        let head_dim = [64, 128, 256, 80][below(4)];
        let (kv_heads, group) = (1 + below(2), [1, 2, 3, 4][below(4)]);
        let kv = if below(4) == 0 { KvDtype::F32 } else { KvDtype::Bf16 };
        let tokens = if below(4) == 0 { 1 } else { 1 + below(tokens_max) };
        let past = below(2 * tokens_max);
        let heads = kv_heads * group;
        let (sinks, softcap) = (below(4) == 0, (below(6) == 0).then_some(20.0));
        let (window, slopes, spread) = (None, below(6) == 0, 2.0);
        let shape = Shape { heads, kv_heads, head_dim, kv, window, softcap, slopes, sinks, spread };
        Self { shape, past, tokens }
    }
}

fn attended(backend: &dyn Backend, block: &Block, past: &Keys, weights: &[f32]) -> Attended {
    let (leaves, own, row_weights) = (Leaves::ONE, &block.keys, Some(weights));
    let (sinks, outputs) = (block.sinks.as_ref(), block.keys.len());
    let scope = Scope { past, leaves, own, row_weights, sinks, outputs, rounded: true };
    backend.attend_all(block.queries(), scope).expect("fits")
}

/// Length of the difference over length of what was wanted.
fn relative_error(seen: &[f32], want: impl Iterator<Item = f64>) -> f64 {
    let (mut off, mut whole) = (0.0_f64, 0.0_f64);
    for (&seen, want) in seen.iter().zip(want) {
        off += (f64::from(seen) - want).powi(2);
        whole += want * want;
    }
    (off / whole.max(f64::MIN_POSITIVE)).sqrt()
}

/// Attention, masses and selection of a block of at most `tokens_max` rows: twice, to the bit,
/// over keys in order and in shuffled cells; and how far it is from the definition.
///
/// # Panics
/// When bits differ that must not, or a number is not one.
pub fn layer(backend: &dyn Backend, seed: u64, tokens_max: usize) -> Figures {
    let Sizes { shape, past: count, tokens } = Sizes::of(seed, tokens_max);
    let (past, block) = (shape.past(count), shape.block(2 * count as u32, tokens));
    let weights = vec![1.0; tokens];
    let seen = attended(backend, &block, &past, &weights);
    for other in [&past, &scattered(&past, 3)] {
        let again = attended(backend, &block, other, &weights);
        identical("output", again.output.data(), seen.output.data()).unwrap();
        identical("past masses", &again.past_mass, &seen.past_mass).unwrap();
        identical("own masses", &again.own_mass, &seen.own_mass).unwrap();
    }
    let keys = oracle::joined(&oracle::entries(&past), &oracle::entries(&block.keys));
    let (queries, sinks) = (block.queries(), block.sinks.as_deref());
    let truth = oracle::attention_beside(&queries, sinks, &keys, &vec![1.0; tokens]);
    let masses = by_head(&seen, &shape, count, tokens);
    let spent_error = |(head, want): (&Vec<f32>, &Vec<f64>)| {
        let spent: f64 = head.iter().map(|&mass| f64::from(mass)).sum();
        let had: f64 = want.iter().sum();
        (spent - had).abs() / had
    };
    let spent_error = masses.iter().zip(&truth.mass).map(spent_error).fold(0.0, f64::max);
    let (kept, agreed) = ranked(backend, (&past, &block), &seen, &truth.mass);
    Figures {
        what: format!(
            "{} heads on {} of {}, {:?}{}{}{}, {tokens} rows, {count} past keys",
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.kv,
            if shape.sinks { ", sinks" } else { "" },
            if shape.softcap.is_some() { ", capped" } else { "" },
            if shape.slopes { ", falling" } else { "" },
        ),
        output_error: relative_error(seen.output.data(), truth.output.iter().map(|it| it.value)),
        mass_error: relative_error(&masses.concat(), truth.mass.into_iter().flatten()),
        spent_error,
        kept,
        agreed,
    }
}

/// Masses of each KV head, past keys first.
fn by_head(seen: &Attended, shape: &Shape, past: usize, own: usize) -> Vec<Vec<f32>> {
    let head = |g: usize| {
        let past = &seen.past_mass[g * past..(g + 1) * past];
        [past, &seen.own_mass[g * own..(g + 1) * own]].concat()
    };
    (0..shape.kv_heads).map(head).collect()
}

/// Keys that the f64 masses keep, and how many of them the backend kept.
fn ranked(
    backend: &dyn Backend,
    (past, block): (&Keys, &Block),
    seen: &Attended,
    truth: &[Vec<f64>],
) -> (usize, usize) {
    let all = past.len() + block.tokens();
    let (local, heavy) = (all as u32 / 8, all / 4);
    let selection =
        Selection { keep_all: false, sinks: 4, local, heavy, ranking: CUMULATIVE, window: None };
    let none = Array::from(vec![0.0; past.positions.len()]);
    let set = MemorySet {
        keys: past.clone(),
        score: none.clone(),
        votes: none,
        state: Array::default(),
        end: block.start,
    };
    let masses = (&seen.past_mass, &seen.own_mass);
    let memory = backend.select(Arc::new(set), &block.keys, masses, &selection).expect("fits");
    let memory = memory.memory;
    let mut entries = oracle::joined(&oracle::entries(past), &oracle::entries(&block.keys));
    let (mut kept, mut agreed) = (0, 0);
    for (g, (head, mass)) in entries.iter_mut().zip(truth).enumerate() {
        head.iter_mut().zip(mass).for_each(|(entry, &mass)| entry.score = mass);
        let positions = memory.keys.head_positions(g);
        for entry in oracle::kept(head, memory.end, &selection) {
            kept += 1;
            agreed += usize::from(positions.binary_search(&entry.position).is_ok());
        }
    }
    (kept, agreed)
}
