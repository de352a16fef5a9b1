//! Prefill attention and column masses on the matrix instructions that every chip since sm_80
//! has: what a chip without kernels of its own gets.

use std::sync::Arc;

use bytemuck::Zeroable;

use super::Shared;
use super::device::{Launch, Properties};
use super::fast::{self, ByShape, Columns, Fast, Goal, Pass, Shape, StateAt, Stretch, Weighing};
use super::params::attention::StateArrays;
use super::params::attention80::{Attention80, Columns80, Masses80, Stretch80};
use crate::backend::BackendError;

/// Rows of a tile of queries, of either kernel.
const ATTENTION_ROWS: usize = 128;
const MASS_ROWS: usize = 64;
/// Keys of a tile in `masses80.cu`.
const MASS_KEYS: usize = 128;

/// How the kernels of heads of one size, and of narrower ones, are launched; `kernels/cu` says
/// the same in its last lines.
struct Kernels {
    head_dim: usize,
    attention: ByShape,
    /// Keys of a tile in `attention80.cu`.
    keys: usize,
    masses: ByShape,
    threads: u32,
}

const KERNELS: [Kernels; 3] = [
    Kernels {
        head_dim: 64,
        attention: ByShape { whole: "attention80_64", any: "attention80_64_any" },
        keys: 64,
        masses: ByShape { whole: "masses80_64", any: "masses80_64_any" },
        threads: 128,
    },
    Kernels {
        head_dim: 128,
        attention: ByShape { whole: "attention80_128", any: "attention80_128_any" },
        keys: 64,
        masses: ByShape { whole: "masses80_128", any: "masses80_128_any" },
        threads: 128,
    },
    Kernels {
        head_dim: 256,
        attention: ByShape { whole: "attention80_256", any: "attention80_256_any" },
        keys: 64,
        masses: ByShape { whole: "masses80_256", any: "masses80_256_any" },
        threads: 256,
    },
];

impl Kernels {
    fn of(head_dim: usize) -> Option<&'static Self> {
        KERNELS.iter().find(|it| fast::serves_heads(head_dim, it.head_dim))
    }

    /// A tile of queries, one of keys and one of values, bf16.
    fn attention_bytes(&self) -> usize {
        (ATTENTION_ROWS + 2 * self.keys) * self.head_dim * 2
    }

    /// Two tiles of queries, bf16, and two f32 of each of their rows.
    fn masses_bytes(&self) -> usize {
        2 * MASS_ROWS * (self.head_dim * 2 + 2 * size_of::<f32>())
    }
}

/// The kernels of `attention80.cu` and `masses80.cu`.
pub(super) struct Ampere;

impl Fast for Ampere {
    fn since(&self) -> u32 {
        80
    }

    fn fits(&self, device: &Properties, shape: &Shape) -> bool {
        let room = |kernels: &Kernels| kernels.attention_bytes() <= device.shared_bytes;
        device.capability >= 80 && Kernels::of(shape.head_dim).is_some_and(room)
    }

    fn attend(&self, shared: &Arc<Shared>, pass: &Pass) -> Result<(), BackendError> {
        let shape = pass.rows.shape;
        let kernels = Kernels::of(shape.head_dim).expect("only what fits is asked for");
        let (to, output, lse) = match pass.goal {
            Goal::State(to) => (arrays(to), 0, 0),
            Goal::Output { output, lse } => (StateArrays::zeroed(), output.0, lse.0),
        };
        let first = Stretch::firsts([pass.own, pass.past]);
        let params = Attention80 {
            q: pass.rows.q.0,
            own: pass.own.map_or(Stretch80::zeroed(), stretch),
            past: pass.past.map_or(Stretch80::zeroed(), stretch),
            from: pass.from.map_or(StateArrays::zeroed(), arrays),
            to,
            output,
            lse,
            broken: shared.broken_at(),
            heads: shape.heads as u32,
            group: (shape.heads / shape.kv_heads) as u32,
            tokens: shape.tokens as u32,
            scale: pass.rows.scale,
            first,
            head_dim: shape.head_dim as u32,
            unused: 0,
        };
        let launch = Launch {
            kernel: kernels.attention.of(shape.head_dim == kernels.head_dim && first == [0; 2]),
            grid: [params.heads, shape.tokens.div_ceil(ATTENTION_ROWS) as u32, 1],
            threads: kernels.threads,
            shared_bytes: kernels.attention_bytes(),
            params: bytemuck::bytes_of(&params),
        };
        shared.run(&launch)
    }

    fn weigh(&self, shared: &Arc<Shared>, weighing: &Weighing<'_>) -> Result<(), BackendError> {
        let shape = weighing.rows.shape;
        let kernels = Kernels::of(shape.head_dim).expect("only what fits is asked for");
        let silent = weighing.weights.iter().take_while(|&&weight| weight == 0.0).count();
        let end = Stretch::ends([weighing.own, weighing.past].map(|it| it.map(|it| it.keys)));
        let params = Masses80 {
            q: weighing.rows.q.0,
            own: weighing.own.map_or(Columns80::zeroed(), columns),
            past: weighing.past.map_or(Columns80::zeroed(), columns),
            lse: weighing.lse.0,
            row_weights: weighing.row_weights.0,
            broken: shared.broken_at(),
            group: (shape.heads / shape.kv_heads) as u32,
            tokens: shape.tokens as u32,
            // A block writes its masses even where no row counts.
            first_row: silent.min(shape.tokens - 1) as u32,
            scale: weighing.rows.scale,
            end,
            head_dim: shape.head_dim as u32,
            unused: 0,
        };
        let tiles = |columns: Columns80| columns.keys.div_ceil(MASS_KEYS as u32);
        let launch = Launch {
            kernel: kernels.masses.of(shape.head_dim == kernels.head_dim && end == [0; 2]),
            grid: [shape.kv_heads as u32, tiles(params.past) + tiles(params.own), 1],
            threads: kernels.threads,
            shared_bytes: kernels.masses_bytes(),
            params: bytemuck::bytes_of(&params),
        };
        shared.run(&launch)
    }
}

fn arrays(state: StateAt) -> StateArrays {
    StateArrays { m: state.m.0, l: state.l.0, o: state.o.0 }
}

fn stretch(stretch: Stretch) -> Stretch80 {
    let (keys, cells) = (stretch.keys as u32, stretch.cells as u32);
    Stretch80 { k: stretch.k.0, v: stretch.v.0, keys, cells }
}

fn columns(columns: Columns) -> Columns80 {
    let Stretch { k, keys, cells, .. } = columns.keys;
    Columns80 { k: k.0, mass: columns.mass.0, keys: keys as u32, cells: cells as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(capability: u32, shared_kib: usize, head_dim: usize, fits: bool) {
        let device = Properties {
            name: "chip".into(),
            capability,
            multiprocessors: 108,
            shared_bytes: shared_kib << 10,
        };
        let shape = Shape { heads: 8, kv_heads: 2, tokens: 1, head_dim };
        assert_eq!(Ampere.fits(&device, &shape), fits, "{device:?}, {shape:?}");
    }

    #[test]
    fn what_fits() {
        for head_dim in [64, 128, 256] {
            check(80, 163, head_dim, true);
            check(90, 227, head_dim, true);
            check(75, 163, head_dim, false);
        }
        check(86, 99, 128, true);
        check(86, 99, 256, false);
        check(86, 99, 192, false);
        for (head_dim, fits) in [(8, true), (80, true), (248, true), (84, false), (264, false)] {
            check(80, 163, head_dim, fits);
        }
    }
}
