//! Keys and values of bf16 laid out for products of pairs and of tiles, once for all rows.

use half::bf16;

use crate::cpu::lines::Lines;
use crate::cpu::simd::{LANES, Pair};
use crate::cpu::threads::Crew;
use crate::tensor::KvHeads;

/// Sixteen pairs: a line.
pub(super) type PairLanes = [Pair; LANES];

/// Elements of a line: those of D of a key, or keys of an element of the values. Keys of a
/// block of rows of a tile product too.
pub(super) const STEP: usize = 2 * LANES;

/// Keys of a task; a multiple of a step.
const TASK: usize = 256;

/// Rows of an odd `width` with a zero behind each.
pub(super) fn padded(rows: &[bf16], width: usize) -> Vec<bf16> {
    rows.chunks_exact(width).flat_map(|row| row.iter().copied().chain([bf16::ZERO])).collect()
}

/// The values of every two keys side by side, `[G, N / 2, D, 2]`.
pub(super) fn paired(crew: Crew, heads: &KvHeads, values: &[bf16]) -> Vec<bf16> {
    let KvHeads { tokens, head_dim, .. } = *heads;
    let size = tokens.next_multiple_of(2) * head_dim;
    let mut pairs = vec![bf16::ZERO; heads.kv_heads * size];
    let tasks = pairs
        .chunks_mut(size.max(1))
        .zip(values.chunks((tokens * head_dim).max(1)))
        .flat_map(|(to, from)| to.chunks_mut(TASK * head_dim).zip(from.chunks(TASK * head_dim)))
        .collect();
    crew.map(tasks, |(to, from): (&mut [bf16], &[bf16])| {
        for (to, from) in to.chunks_mut(2 * head_dim).zip(from.chunks(2 * head_dim)) {
            let (to, _) = to.as_chunks_mut();
            pair_up(from, head_dim, |d, pair| to[d] = pair);
        }
    });
    pairs
}

/// The pairs of one or two rows of `width` elements; zero stands for a second one.
#[inline(always)]
fn pair_up(rows: &[bf16], width: usize, mut put: impl FnMut(usize, Pair)) {
    let (even, odd) = rows.split_at(width);
    if odd.len() == width {
        even.iter().zip(odd).enumerate().for_each(|(d, (&even, &odd))| put(d, [even, odd]));
    } else {
        even.iter().enumerate().for_each(|(d, &even)| put(d, [even, bf16::ZERO]));
    }
}

/// Keys in blocks of 32, cut into steps of 32 elements: `[G, N / 32, D / 32, 32, 16]` pairs.
pub(super) fn cut(crew: Crew, heads: &KvHeads, keys: &[bf16]) -> Lines<Pair> {
    let steps = heads.head_dim.div_ceil(STEP);
    in_blocks(crew, heads, keys, STEP * steps, |from, to| {
        for (row, key) in from.chunks_exact(heads.head_dim).enumerate() {
            let (lines, rest) = key.as_chunks::<STEP>();
            for (step, line) in lines.iter().enumerate() {
                to[step * STEP + row].as_flattened_mut().copy_from_slice(line);
            }
            if !rest.is_empty() {
                to[lines.len() * STEP + row].as_flattened_mut()[..rest.len()].copy_from_slice(rest);
            }
        }
    })
}

/// Values transposed in blocks of 32 keys: `[G, N / 32, D, 16]` pairs.
pub(super) fn transposed(crew: Crew, heads: &KvHeads, values: &[bf16]) -> Lines<Pair> {
    let head_dim = heads.head_dim;
    in_blocks(crew, heads, values, head_dim, |from, to| {
        for (pair, rows) in from.chunks(2 * head_dim).enumerate() {
            pair_up(rows, head_dim, |d, both| to[d][pair] = both);
        }
    })
}

/// Blocks of 32 rows, each `lay`ed out in so many lines; those of a KV head's last block that
/// are missing are zero.
fn in_blocks(
    crew: Crew,
    heads: &KvHeads,
    rows: &[bf16],
    block_lines: usize,
    lay: impl Fn(&[bf16], &mut [PairLanes]) + Sync + Send,
) -> Lines<Pair> {
    let KvHeads { kv_heads, tokens, head_dim, .. } = *heads;
    let head_lines = tokens.div_ceil(STEP) * block_lines;
    let mut lines = Lines::left_over(kv_heads * head_lines);
    let (task_lines, task_elements) = (TASK / STEP * block_lines, TASK * head_dim);
    let tasks = lines
        .chunks_mut(head_lines.max(1))
        .zip(rows.chunks((tokens * head_dim).max(1)))
        .flat_map(|(to, from)| to.chunks_mut(task_lines).zip(from.chunks(task_elements)))
        .collect();
    crew.map(tasks, |(to, from): (&mut [PairLanes], &[bf16])| {
        for (to, from) in to.chunks_mut(block_lines).zip(from.chunks(STEP * head_dim)) {
            if from.len() < STEP * head_dim || !head_dim.is_multiple_of(STEP) {
                to.fill([[bf16::ZERO; 2]; LANES]);
            }
            lay(from, to);
        }
    });
    lines
}
