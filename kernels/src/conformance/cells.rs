//! Where keys lie changes no bit of what is computed from them.

use std::sync::Arc;

use crate::array::Array;
use crate::backend::Backend;
use crate::compare::identical;
use crate::memory::{Keys, MemorySet, Move};
use crate::pool::{PAGE_CELLS, Pool, page_bytes};
use crate::tensor::{KvDtype, KvHeads};
use crate::window::Window;

use super::attention::{masses, merged};
use super::chains::H2O;
use super::scene::{Random, Shape};

/// Cells `0..keys` of each KV head, shuffled.
fn shuffled(keys: &Keys) -> Vec<u32> {
    let count = keys.len();
    let mut random = Random::new(77);
    let mut table = Vec::new();
    for _ in 0..keys.kv_heads() {
        let mut cells: Vec<u32> = (0..count as u32).collect();
        (1..count).rev().for_each(|i| cells.swap(i, random.next() as usize % (i + 1)));
        table.extend(cells);
    }
    table
}

/// The same keys in shuffled cells, with `spare` cells of NaN behind them.
pub(super) fn scattered(keys: &Keys, spare: usize) -> Keys {
    let (count, kv_heads, width) = (keys.len(), keys.kv_heads(), keys.k.head_dim);
    let table = shuffled(keys);
    let cells = count + spare;
    let lay = |rows: &dyn Fn(usize) -> Vec<f32>, dtype: KvDtype| {
        let mut data = vec![f32::NAN; kv_heads * cells * width];
        for g in 0..kv_heads {
            for (row, &cell) in rows(g).chunks(width).zip(&table[g * count..]) {
                let to = (g * cells + cell as usize) * width;
                data[to..to + width].copy_from_slice(row);
            }
        }
        KvHeads::from_f32(kv_heads, cells, width, &data, dtype)
    };
    let k = lay(&|g| keys.k_rows(g).to_f32(), keys.k.dtype());
    let v = lay(&|g| keys.v_rows(g).to_f32(), keys.v.dtype());
    Keys::scattered(keys.positions.clone(), k, v, table)
}

/// A pool with room for some copies of the keys, its pages in no order and full of NaN.
fn pool_for(keys: &Keys) -> Pool {
    let (head_dim, dtype) = (keys.k.head_dim, keys.k.dtype());
    let pages = 8 * keys.kv_heads() * (keys.len() / PAGE_CELLS + 8);
    let pool = Pool::new(head_dim, dtype, (pages * page_bytes(head_dim, dtype)) as u64);
    let pool = pool.expect("pages fit");
    let mut taken = pool.take(pages).expect("nobody else takes any");
    for page in &mut taken {
        page.elements_mut().expect("nobody else has it").fill(u8::MAX);
    }
    while !taken.is_empty() {
        drop(taken.swap_remove(taken.len() / 3));
    }
    pool
}

/// The same keys in pages, in order and in shuffled cells.
fn paged(keys: &Keys) -> [Keys; 2] {
    let pool = pool_for(keys);
    let lain = keys.put_in(&pool).expect("the pool has room");
    let (count, table) = (keys.len(), shuffled(keys));
    let mut moves: Vec<Move> = (0..keys.kv_heads())
        .flat_map(|g| (0..count).map(move |j| (g, j)))
        .map(|(g, j)| Move::own(g, j, table[g * count + j] as usize))
        .collect();
    moves.sort_unstable_by_key(|moved| (moved.g, moved.to));
    let mut moved = keys.put_in(&pool).expect("the pool has room");
    moved.store(count, &moves, keys).expect("nobody shares them");
    moved.table = Some(table.into());
    [lain, moved]
}

/// Attention, masses and selection over scattered cells, side by side and in pages; blocks of one
/// token and of many.
pub fn scattered_cells_give_the_same_bits(backend: &dyn Backend) {
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        for (head_dim, window) in [(16, None), (80, None), (128, Some(Window::Last(90)))] {
            for (past, tokens) in [(41, 1), (300, 1), (150, 3), (70, 65)] {
                let shape = Shape { heads: 6, head_dim, kv, window, ..Shape::default() };
                check(backend, shape, past, tokens);
            }
        }
    }
}

fn check(backend: &dyn Backend, shape: Shape, past: usize, tokens: usize) {
    let block = shape.block(2 * past as u32, tokens);
    let lain = shape.past(past);
    let side_by_side = [0, 5].map(|spare| scattered(&lain, spare));
    for moved in side_by_side.into_iter().chain(paged(&lain)) {
        assert_eq!(moved, lain);
        let (a, b) = (merged(backend, &lain, &block), merged(backend, &moved, &block));
        identical("m", &b.m, &a.m).unwrap();
        identical("l", &b.l, &a.l).unwrap();
        identical("o", &b.o, &a.o).unwrap();
        let weights = vec![1.0; tokens];
        let (want, own) = masses(backend, &lain, &block, &weights);
        let (seen, _) = masses(backend, &moved, &block, &weights);
        identical("masses", &seen, &want).unwrap();
        let select = |keys: &Keys| {
            let none = Array::from(vec![0.0; want.len()]);
            let end = 2 * past as u32;
            let set = MemorySet {
                keys: keys.clone(),
                score: none.clone(),
                votes: none,
                state: Array::default(),
                end,
            };
            backend.select(Arc::new(set), &block.keys, (&want, &own), &H2O).expect("fits").memory
        };
        assert_eq!(select(&moved), select(&lain));
    }
}
