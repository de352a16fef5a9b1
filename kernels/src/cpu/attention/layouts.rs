//! Keys and values of bf16 laid out for products of pairs and of tiles, once for all rows: by all
//! threads, from wherever they lie.

use half::bf16;

use crate::cells::{HeadRows, RowsOf};
use crate::cpu::lines::Lines;
use crate::cpu::simd::{LANES, Pair};
use crate::cpu::threads::Crew;
use crate::memory::LeafKeys;

/// Sixteen pairs: a line.
pub(super) type PairLanes = [Pair; LANES];

/// Elements of a line: those of D of a key, or keys of an element of the values. Keys of a
/// block of rows of a tile product too.
pub(super) const STEP: usize = 2 * LANES;

/// Keys of a task; a multiple of a step.
const TASK: usize = 256;

/// What is to be laid out.
pub(super) struct Laying<'a> {
    leaf: &'a LeafKeys<'a>,
    /// Per KV head.
    heads: Vec<RowsOf<'a, bf16>>,
    /// Keys that every KV head gets room for.
    len: usize,
    /// D.
    head_dim: usize,
}

impl<'a> Laying<'a> {
    /// The keys.
    pub(super) fn keys(leaf: &'a LeafKeys<'a>, len: usize) -> Self {
        Self::new(leaf, len, |g| leaf.of.k_rows(g))
    }

    /// The values.
    pub(super) fn values(leaf: &'a LeafKeys<'a>, len: usize) -> Self {
        Self::new(leaf, len, |g| leaf.of.v_rows(g))
    }

    /// # Panics
    /// Where they are not of bf16: a bug of the caller.
    fn new(leaf: &'a LeafKeys<'a>, len: usize, of: impl Fn(usize) -> HeadRows<'a>) -> Self {
        let bf16s = |rows| match rows {
            HeadRows::Bf16(rows) => rows,
            HeadRows::F32(_) => unreachable!("only bf16 is laid out"),
        };
        let heads = (0..leaf.of.kv_heads()).map(|g| bf16s(of(g))).collect();
        Self { leaf, heads, len, head_dim: leaf.of.k.head_dim }
    }

    /// Lays out all rows, of each KV head `TASK` at a time, which take `task` elements of `to`.
    fn each<T: Send>(
        &self,
        crew: Crew,
        (to, task): (&mut [T], usize),
        lay: impl Fn(&[&[bf16]], &mut [T]) + Sync + Send,
    ) {
        let head = (to.len() / self.heads.len().max(1)).max(1);
        let heads = to.chunks_mut(head).enumerate();
        let tasks = heads
            .flat_map(|(g, to)| to.chunks_mut(task.max(1)).enumerate().map(move |to| (g, to)))
            .collect();
        crew.map(tasks, |(g, (idx, to)): (usize, (usize, &mut [T]))| {
            let mut rows = Vec::with_capacity(TASK);
            for run in self.leaf.within(g, idx * TASK..(idx + 1) * TASK) {
                rows.extend(run.map(|j| self.heads[g].row(j)));
            }
            lay(&rows, to);
        });
    }
}

/// Rows one behind the other, `[G, N, D]`, with a zero behind each where D is odd.
pub(super) fn padded(crew: Crew, of: &Laying<'_>) -> Vec<bf16> {
    let width = of.head_dim.next_multiple_of(2);
    let mut all = vec![bf16::ZERO; of.heads.len() * of.len * width];
    of.each(crew, (&mut all, TASK * width), |rows, to| {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(width)) {
            to[..row.len()].copy_from_slice(row);
        }
    });
    all
}

/// The values of every two keys side by side, `[G, N / 2, D, 2]`.
pub(super) fn paired(crew: Crew, of: &Laying<'_>) -> Vec<bf16> {
    let width = of.head_dim;
    let mut pairs = vec![bf16::ZERO; of.heads.len() * of.len.next_multiple_of(2) * width];
    of.each(crew, (&mut pairs, TASK * width), |rows, to| {
        for (rows, to) in rows.chunks(2).zip(to.chunks_mut(2 * width)) {
            let (to, _) = to.as_chunks_mut();
            pair_up(rows, |d, pair| to[d] = pair);
        }
    });
    pairs
}

/// The pairs of one or two rows; zero stands for a second one.
#[inline(always)]
fn pair_up(rows: &[&[bf16]], mut put: impl FnMut(usize, Pair)) {
    match rows {
        [even, odd] => {
            even.iter().zip(*odd).enumerate().for_each(|(d, (&even, &odd))| put(d, [even, odd]));
        }
        rows => {
            let one = rows.iter().flat_map(|row| row.iter());
            one.enumerate().for_each(|(d, &even)| put(d, [even, bf16::ZERO]));
        }
    }
}

/// Keys in blocks of 32, cut into steps of 32 elements: `[G, N / 32, D / 32, 32, 16]` pairs.
pub(super) fn cut(crew: Crew, of: &Laying<'_>) -> Lines<Pair> {
    let steps = of.head_dim.div_ceil(STEP);
    in_blocks(crew, of, STEP * steps, |rows, to| {
        for (row, key) in rows.iter().enumerate() {
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
pub(super) fn transposed(crew: Crew, of: &Laying<'_>) -> Lines<Pair> {
    in_blocks(crew, of, of.head_dim, |rows, to| {
        for (pair, rows) in rows.chunks(2).enumerate() {
            pair_up(rows, |d, both| to[d][pair] = both);
        }
    })
}

/// Blocks of 32 rows, each `lay`ed out in so many lines; those of a KV head's last block that
/// are missing are zero. Blocks behind it, which others have, are never read.
fn in_blocks(
    crew: Crew,
    of: &Laying<'_>,
    block_lines: usize,
    lay: impl Fn(&[&[bf16]], &mut [PairLanes]) + Sync + Send,
) -> Lines<Pair> {
    let mut lines = Lines::left_over(of.heads.len() * of.len.div_ceil(STEP) * block_lines);
    of.each(crew, (&mut lines, TASK / STEP * block_lines), |rows, to| {
        for (rows, to) in rows.chunks(STEP).zip(to.chunks_mut(block_lines)) {
            if rows.len() < STEP || !of.head_dim.is_multiple_of(STEP) {
                to.fill([[bf16::ZERO; 2]; LANES]);
            }
            lay(rows, to);
        }
    });
    lines
}
