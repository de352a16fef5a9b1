//! Attention and masses of many rows on sm_90a (`attention90.cu`, `masses90.cu`).

use std::sync::Arc;

use bytemuck::Zeroable;

use super::Shared;
use super::device::{Address, Launch, Properties, TensorMap, TensorMapSpec};
use super::fast::{
    self, ByShape, Columns, Fast, Goal, Pass, Rows, Shape, StateAt, Stretch, Weighing,
};
use super::params::attention::StateArrays;
use super::params::attention90::{AddHeads, HopperAttention, HopperMasses};
use super::resident::OnDevice;
use crate::backend::BackendError;

/// Kernels for heads of one size and narrower ones. Figures are those of the `Form`s in the
/// sources.
struct Kernels {
    head_dim: usize,
    attention: ByShape,
    /// Warpgroups that have 64 rows each.
    consumers: usize,
    /// Keys of a tile of attention.
    tile: usize,
    /// Buffers of queries.
    query_buffers: usize,
    masses: ByShape,
    /// Buffers of 256 keys, and stages of 64 rows.
    key_buffers: usize,
    row_stages: usize,
}

const KERNELS: [Kernels; 3] = [
    Kernels {
        head_dim: 64,
        attention: ByShape { whole: "attention90_64", any: "attention90_64_any" },
        consumers: 3,
        tile: 128,
        query_buffers: 2,
        masses: ByShape { whole: "masses90_64", any: "masses90_64_any" },
        key_buffers: 2,
        row_stages: 5,
    },
    Kernels {
        head_dim: 128,
        attention: ByShape { whole: "attention90_128", any: "attention90_128_any" },
        consumers: 2,
        tile: 128,
        query_buffers: 2,
        masses: ByShape { whole: "masses90_128", any: "masses90_128_any" },
        key_buffers: 2,
        row_stages: 5,
    },
    Kernels {
        head_dim: 256,
        attention: ByShape { whole: "attention90_256", any: "attention90_256_any" },
        consumers: 2,
        tile: 64,
        query_buffers: 1,
        masses: ByShape { whole: "masses90_256", any: "masses90_256_any" },
        key_buffers: 1,
        row_stages: 2,
    },
];

/// Threads of a warpgroup.
const WARPGROUP: u32 = 128;
/// Rows of a consumer of attention.
const CONSUMER_ROWS: u32 = 64;
/// Keys of a block of the masses' grid, and of one of its two consumers.
const BLOCK_KEYS: usize = 256;
const CONSUMER_KEYS: u32 = 128;
/// Elements of a box: a row of the 128-byte swizzle.
const BOX_COLUMNS: u32 = 64;
/// More than all barriers.
const BARRIERS_BYTES: usize = 256;
/// With fewer rows most of a tile is empty, and few blocks read keys.
const ROWS_MIN: usize = 17;

impl Kernels {
    fn for_size(head_dim: usize) -> Option<&'static Self> {
        KERNELS.iter().find(|it| fast::serves_heads(head_dim, it.head_dim))
    }

    /// Rows of a block of attention's grid.
    fn block_rows(&self) -> usize {
        self.consumers * CONSUMER_ROWS as usize
    }

    /// Bytes of so many rows of bf16.
    fn rows_bytes(&self, rows: usize) -> usize {
        rows * self.head_dim * 2
    }

    fn attention_bytes(&self) -> usize {
        let keys_and_values = 2 * 2 * self.tile;
        self.rows_bytes(self.query_buffers * self.block_rows() + keys_and_values) + BARRIERS_BYTES
    }

    fn masses_bytes(&self) -> usize {
        let rows = self.row_stages * CONSUMER_ROWS as usize;
        let terms_bytes = rows * 2 * size_of::<f32>();
        let sums_bytes = 4 * BLOCK_KEYS * size_of::<f32>();
        let tiles_bytes = self.rows_bytes(self.key_buffers * BLOCK_KEYS + rows);
        tiles_bytes + terms_bytes + sums_bytes + BARRIERS_BYTES
    }
}

/// The kernels of sm_90a: they use what only that chip has.
pub(super) struct Hopper;

impl Fast for Hopper {
    fn since(&self) -> u32 {
        90
    }

    fn fits(&self, device: &Properties, shape: &Shape) -> bool {
        let within = |kernels: &Kernels| {
            kernels.attention_bytes().max(kernels.masses_bytes()) <= device.shared_bytes
        };
        device.capability == 90
            && shape.tokens >= ROWS_MIN
            && Kernels::for_size(shape.head_dim).is_some_and(within)
    }

    fn attend(&self, shared: &Arc<Shared>, pass: &Pass) -> Result<(), BackendError> {
        let Rows { shape, scale, .. } = pass.rows;
        let Some(kernels) = Kernels::for_size(shape.head_dim) else { return Ok(()) };
        let maps = Maps { shared, rows: &pass.rows };
        let parts = [pass.own, pass.past];
        let (tile, first) = (kernels.tile as u32, Stretch::firsts(parts));
        let (to, output, lse) = match pass.goal {
            Goal::State(state) => (arrays(Some(state)), TensorMap::zeroed(), 0),
            Goal::Output { output, lse } => (arrays(None), maps.output(output)?, lse.0),
        };
        let params = HopperAttention {
            q: maps.queries()?,
            k: maps.of_both(&parts, |part| (part.k, tile))?,
            v: maps.of_both(&parts, |part| (part.v, tile))?,
            output,
            from: arrays(pass.from),
            to,
            lse,
            broken: shared.broken_at(),
            keys: parts.map(|part| part.map_or(0, |part| part.keys as u32)),
            heads: shape.heads as u32,
            group: (shape.heads / shape.kv_heads) as u32,
            tokens: shape.tokens as u32,
            scale,
            first,
            head_dim: shape.head_dim as u32,
            unused: [0; 5],
        };
        let items = shape.heads * shape.tokens.div_ceil(kernels.block_rows());
        shared.run(&Launch {
            kernel: kernels.attention.of(shape.head_dim == kernels.head_dim && first == [0; 2]),
            grid: [blocks(shared, items), 1, 1],
            threads: (1 + kernels.consumers as u32) * WARPGROUP,
            shared_bytes: kernels.attention_bytes(),
            params: bytemuck::bytes_of(&params),
        })
    }

    fn weigh(&self, shared: &Arc<Shared>, weighing: &Weighing<'_>) -> Result<(), BackendError> {
        let Rows { shape, scale, .. } = weighing.rows;
        let Some(kernels) = Kernels::for_size(shape.head_dim) else { return Ok(()) };
        let maps = Maps { shared, rows: &weighing.rows };
        let parts = [weighing.own, weighing.past];
        let stretches = parts.map(|part| part.map(|part| part.keys));
        let sums = Sums::new(shared, &shape, &parts)?;
        let (first, end) = (Stretch::firsts(stretches), Stretch::ends(stretches));
        let weighs = |&weight: &f32| weight != 0.0;
        let first_row = weighing.weights.iter().position(weighs).unwrap_or(0);
        let end_row = weighing.weights.iter().rposition(weighs).map_or(0, |row| row + 1);
        let params = HopperMasses {
            q: maps.queries()?,
            k: maps.of_both(&stretches, |part| (part.k, CONSUMER_KEYS))?,
            columns: sums.addresses(),
            lse: weighing.lse.0,
            row_weights: weighing.row_weights.0,
            broken: shared.broken_at(),
            keys: stretches.map(|part| part.map_or(0, |part| part.keys as u32)),
            first_row: first_row as u32,
            end_row: end_row as u32,
            heads: shape.heads as u32,
            group: (shape.heads / shape.kv_heads) as u32,
            tokens: shape.tokens as u32,
            scale,
            first,
            end,
            unused: [0; 6],
        };
        let tiles = |part: &Stretch| part.keys.div_ceil(BLOCK_KEYS);
        let items = shape.heads * stretches.iter().flatten().map(tiles).sum::<usize>();
        shared.run(&Launch {
            // Narrower heads are the copy engine's affair alone.
            kernel: kernels.masses.of(first == [0; 2]),
            grid: [blocks(shared, items), 1, 1],
            threads: 3 * WARPGROUP,
            shared_bytes: kernels.masses_bytes(),
            params: bytemuck::bytes_of(&params),
        })?;
        sums.add(shared, &shape)
    }
}

/// One block for every multiprocessor, or as many as the options allow, each of which takes item
/// after item.
fn blocks(shared: &Shared, items: usize) -> u32 {
    let multiprocessors = shared.device.properties().multiprocessors;
    let most = shared.options.blocks_max.map_or(multiprocessors, |most| most.max(1));
    items.min(multiprocessors.min(most) as usize) as u32
}

fn arrays(state: Option<StateAt>) -> StateArrays {
    match state {
        Some(StateAt { m, l, o }) => StateArrays { m: m.0, l: l.0, o: o.0 },
        None => StateArrays { m: 0, l: 0, o: 0 },
    }
}

/// What the copy engine is told of arrays.
struct Maps<'a> {
    shared: &'a Shared,
    rows: &'a Rows,
}

impl Maps<'_> {
    fn map(&self, spec: &TensorMapSpec) -> Result<TensorMap, BackendError> {
        self.shared.device.tensor_map(spec).map_err(|it| self.shared.fault(it))
    }

    /// Bytes of one head of one token.
    fn row_bytes(&self) -> u64 {
        self.rows.shape.head_dim as u64 * 2
    }

    fn queries(&self) -> Result<TensorMap, BackendError> {
        let Shape { heads, tokens, head_dim, .. } = self.rows.shape;
        self.map(&TensorMapSpec {
            address: self.rows.q,
            size: [head_dim, tokens, heads].map(|it| it as u64),
            stride_bytes: [self.row_bytes(), self.row_bytes() * tokens as u64],
            box_size: [BOX_COLUMNS, CONSUMER_ROWS, 1],
        })
    }

    /// `[tokens, heads, head_dim]`: strides of a map ascend.
    fn output(&self, address: Address) -> Result<TensorMap, BackendError> {
        let Shape { heads, tokens, head_dim, .. } = self.rows.shape;
        self.map(&TensorMapSpec {
            address,
            size: [head_dim, heads, tokens].map(|it| it as u64),
            stride_bytes: [self.row_bytes(), self.row_bytes() * heads as u64],
            box_size: [BOX_COLUMNS, 1, CONSUMER_ROWS],
        })
    }

    /// Keys or values of own and past keys, in boxes of so many keys.
    fn of_both(
        &self,
        parts: &[Option<Stretch>; 2],
        array: impl Fn(&Stretch) -> (Address, u32),
    ) -> Result<[TensorMap; 2], BackendError> {
        let Shape { kv_heads, head_dim, .. } = self.rows.shape;
        let mut maps = [TensorMap::zeroed(); 2];
        for (map, part) in maps.iter_mut().zip(parts) {
            let Some(part) = part else { continue };
            let (address, keys) = array(part);
            *map = self.map(&TensorMapSpec {
                address,
                size: [head_dim, part.keys, kv_heads].map(|it| it as u64),
                stride_bytes: [self.row_bytes(), self.row_bytes() * part.cells as u64],
                box_size: [BOX_COLUMNS, keys, 1],
            })?;
        }
        Ok(maps)
    }
}

/// What query heads spend on own and past keys, `[heads, keys]`: the masses themselves where a
/// KV head has one query head.
struct Sums {
    parts: [Option<(Columns, Option<OnDevice<f32>>)>; 2],
}

impl Sums {
    fn new(
        shared: &Arc<Shared>,
        shape: &Shape,
        parts: &[Option<Columns>; 2],
    ) -> Result<Self, BackendError> {
        let mut sums = Self { parts: [None, None] };
        for (sum, part) in sums.parts.iter_mut().zip(parts) {
            let Some(part) = *part else { continue };
            let room = match shape.heads == shape.kv_heads {
                true => None,
                false => Some(OnDevice::room(shared, shape.heads * part.keys.keys)?),
            };
            *sum = Some((part, room));
        }
        Ok(sums)
    }

    fn addresses(&self) -> [u64; 2] {
        let address = |(part, room): &(Columns, Option<OnDevice<f32>>)| {
            room.as_ref().map_or(part.mass.0, OnDevice::address)
        };
        [0, 1].map(|part| self.parts[part].as_ref().map_or(0, address))
    }

    /// Adds the query heads of every KV head.
    fn add(&self, shared: &Shared, shape: &Shape) -> Result<(), BackendError> {
        const THREADS: usize = 256;
        for (part, room) in self.parts.iter().flatten() {
            let Some(room) = room else { continue };
            let keys = part.keys.keys;
            let params = AddHeads {
                columns: room.address(),
                mass: part.mass.0,
                keys: keys as u32,
                group: (shape.heads / shape.kv_heads) as u32,
            };
            shared.run(&Launch {
                kernel: "add_heads",
                grid: [keys.div_ceil(THREADS) as u32, shape.kv_heads as u32, 1],
                threads: THREADS as u32,
                shared_bytes: 0,
                params: bytemuck::bytes_of(&params),
            })?;
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "cuda-emulator", target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;
    use crate::compare::{Tolerance, close, identical};
    use crate::cuda::fast::kernel_for;
    use crate::cuda::{Cuda, CudaOptions};
    use crate::{
        Attended, AttentionOps, Heads, Keys, KvDtype, KvHeads, Leaves, Queries, Reference, Scope,
    };

    /// A block's queries with its own keys, and a past.
    struct Scene {
        q: Heads,
        past: Keys,
        own: Keys,
    }

    impl Scene {
        fn new(shape: Shape, past_keys: usize) -> Self {
            let Shape { heads, kv_heads, tokens, head_dim } = shape;
            let mut seed = 1_u64;
            let mut uniforms = |count: usize| -> Vec<f32> {
                let mut next = || {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
                };
                (0..count).map(|_| 2.0 * next()).collect()
            };
            let q = uniforms(heads * tokens * head_dim).into();
            let mut keys = |start: u32, count: usize| {
                let positions: Vec<u32> = (start..).take(count).collect();
                let mut rows = || {
                    let data = uniforms(kv_heads * count * head_dim);
                    KvHeads::from_f32(kv_heads, count, head_dim, &data, KvDtype::Bf16)
                };
                Keys::new(positions.repeat(kv_heads), rows(), rows())
            };
            let (past, own) = (keys(0, past_keys), keys(past_keys as u32, tokens));
            Self { q: Heads { heads, tokens, head_dim, data: q }, past, own }
        }

        fn queries(&self) -> Queries<'_> {
            let scale = 1.0 / (self.q.head_dim as f32).sqrt();
            Queries {
                q: &self.q,
                start: self.past.len() as u32,
                scale,
                window: None,
                softcap: None,
                slopes: None,
            }
        }
    }

    /// Both halves at once and one after the other, and what the definition says.
    fn check(shape: Shape, past_keys: usize, row_weights: &[f32]) {
        check_with(None, shape, past_keys, row_weights);
    }

    /// The same with so many blocks at most.
    fn check_with(blocks_max: Option<u32>, shape: Shape, past_keys: usize, row_weights: &[f32]) {
        let options = CudaOptions { checked: true, blocks_max, ..CudaOptions::default() };
        let cuda = Cuda::emulated(90, options).unwrap();
        assert!(Hopper.fits(cuda.shared.device.properties(), &shape), "{shape:?}");
        let scene = Scene::new(shape, past_keys);
        let scope = Scope {
            past: &scene.past,
            leaves: Leaves::ONE,
            own: &scene.own,
            row_weights: Some(row_weights),
            sinks: None,
            outputs: scene.own.len(),
            rounded: true,
        };
        let whole = cuda.attend_all(scene.queries(), scope).unwrap();
        let own = cuda.attend(scene.queries(), &scene.own).unwrap();
        let halves = cuda.attend_rest(scene.queries(), scope, &own).unwrap();
        let want = Reference.attend_all(scene.queries(), scope).unwrap();
        let parts = |it: &Attended| {
            [it.output.data().to_vec(), it.past_mass.to_vec(), it.own_mass.to_vec()]
        };
        // Probabilities and outputs are rounded to bf16, masses are not.
        let offs = [(4e-3, 8e-3), (1e-5, 1e-4), (1e-5, 1e-4)];
        let names = ["output", "past mass", "own mass"];
        let compared = parts(&whole).into_iter().zip(parts(&halves)).zip(parts(&want));
        for (((whole, halves), want), ((abs, rel), name)) in
            compared.zip(offs.into_iter().zip(names))
        {
            let name = format!("{name} of {shape:?} over {past_keys}");
            identical(&name, &halves, &whole).unwrap();
            close(&name, &whole, &want, Tolerance::new(abs, rel)).unwrap();
        }
    }

    #[test]
    fn lengths_around_a_tile() {
        for (tokens, past_keys) in [(17, 0), (64, 128), (129, 127), (193, 1), (130, 257)] {
            for head_dim in [64, 128, 256, 56, 80, 136, 192] {
                let shape = Shape { heads: 2, kv_heads: 1, tokens, head_dim };
                check(shape, past_keys, &vec![1.0; tokens]);
            }
        }
    }

    #[test]
    fn more_items_than_multiprocessors() {
        let shape = Shape { heads: 6, kv_heads: 2, tokens: 200, head_dim: 64 };
        check(shape, 300, &[1.0; 200]);
    }

    /// One block has all items, so that buffers and barriers go from each to the next.
    #[test]
    fn one_block_for_all_items() {
        let shape = Shape { heads: 2, kv_heads: 1, tokens: 300, head_dim: 128 };
        check_with(Some(1), shape, 200, &[1.0; 300]);
    }

    #[test]
    fn options_choose_blocks_and_kernels() {
        let shape = Shape { heads: 2, kv_heads: 1, tokens: 64, head_dim: 128 };
        let chosen = |blocks_max, capability_max| {
            let options = CudaOptions { blocks_max, capability_max, ..CudaOptions::default() };
            let cuda = Cuda::emulated(90, options).unwrap();
            let kernels = kernel_for(&cuda.shared, &shape).map(Fast::since);
            (blocks(&cuda.shared, 1000), blocks(&cuda.shared, 1), kernels)
        };
        assert_eq!(chosen(None, None), (4, 1, Some(90)), "an emulated chip has four");
        assert_eq!(chosen(Some(0), Some(89)), (1, 1, Some(80)));
        assert_eq!(chosen(Some(3), Some(80)), (3, 1, Some(80)));
        assert_eq!(chosen(Some(9), Some(0)), (4, 1, None));
    }

    #[test]
    fn a_query_head_for_each_kv_head() {
        let shape = Shape { heads: 3, kv_heads: 3, tokens: 70, head_dim: 128 };
        check(shape, 40, &[1.0; 70]);
    }

    #[test]
    fn rows_that_have_no_weight() {
        let shape = Shape { heads: 2, kv_heads: 1, tokens: 300, head_dim: 128 };
        for weighed in [270..300, 0..300, 100..120, 0..0] {
            let weight = |row| if weighed.contains(&row) { 0.5 } else { 0.0 };
            check(shape, 70, &(0..300).map(weight).collect::<Vec<_>>());
        }
    }
}
