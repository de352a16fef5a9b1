//! Where keys lie changes no bit of what is computed from them.

use std::sync::Arc;

use crate::array::Array;
use crate::backend::Backend;
use crate::compare::identical;
use crate::memory::{Keys, MemorySet};
use crate::tensor::{KvDtype, KvHeads};

use super::attention::{masses, merged};
use super::chains::H2O;
use super::scene::{Random, Shape};

/// The same keys in shuffled cells, with `spare` cells of NaN behind them.
pub(super) fn scattered(keys: &Keys, spare: usize) -> Keys {
    let (count, kv_heads, width) = (keys.len(), keys.kv_heads(), keys.k.head_dim);
    let mut random = Random::new(77);
    let mut table = Vec::new();
    for _ in 0..kv_heads {
        let mut cells: Vec<u32> = (0..count as u32).collect();
        (1..count).rev().for_each(|i| cells.swap(i, random.next() as usize % (i + 1)));
        table.extend(cells);
    }
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

/// Attention, masses and selection over scattered cells, blocks of one token and of many.
pub fn scattered_cells_give_the_same_bits(backend: &dyn Backend) {
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        for (head_dim, window) in [(16, None), (80, None), (128, Some(90))] {
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
    for spare in [0, 5] {
        let moved = scattered(&lain, spare);
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
            let set = MemorySet { keys: keys.clone(), score: none.clone(), votes: none, end };
            backend.select(Arc::new(set), &block.keys, (&want, &own), &H2O).expect("fits").memory
        };
        assert_eq!(select(&moved), select(&lain));
    }
}
