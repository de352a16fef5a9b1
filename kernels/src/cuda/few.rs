//! Decode steps: few rows over keys that lie anywhere (`few.cu`, `few_combine.cu`).

use std::sync::Arc;

use super::Shared;
use super::device::Launch;
use super::fast::{self, ByShape};
use super::operands::{Output, PlacedKeys, PlacedQueries, PlacedState, Votes};
use super::params::attention::{
    FewAttention, FewColumns, FewCombine, FewMasses, FewStretch, KeyArrays, StateArrays,
};
use super::resident::OnDevice;
use crate::array::Array;
use crate::backend::{BackendError, Queries};
use crate::tensor::KvDtype;

/// Rows of a KV head, at most: of one matrix instruction.
const ROWS: usize = 16;
/// Keys of one copy.
const TILE: usize = 16;
/// A split's keys are a multiple of this.
const SPLIT: usize = 128;
/// Splits of one stretch, at most.
const SPLITS_MAX: usize = 128;

/// Whether these kernels are for such rows.
pub(super) fn serves(queries: &Queries<'_>, kv_heads: usize, dtype: KvDtype) -> bool {
    let q = queries.q;
    dtype == KvDtype::Bf16
        && queries.softcap.is_none()
        && Plan::of(q.head_dim).is_some()
        && q.heads / kv_heads * q.tokens <= ROWS
}

/// The kernel for heads of one size and narrower ones, as `few.cu` has it.
struct Plan {
    kernel: ByShape,
    /// Of the widest.
    head_dim: usize,
    warps: usize,
    stages: usize,
}

impl Plan {
    fn of(head_dim: usize) -> Option<Self> {
        let named = |whole, any| ByShape { whole, any };
        let of_64 = named("few_attention_64", "few_attention_64_any");
        let of_128 = named("few_attention_128", "few_attention_128_any");
        let of_256 = named("few_attention_256", "few_attention_256_any");
        let all = [(of_64, 64, 4, 3), (of_128, 128, 4, 2), (of_256, 256, 2, 2)];
        let wide_enough = |widest: usize| fast::serves_heads(head_dim, widest);
        let (kernel, head_dim, warps, stages) =
            all.into_iter().find(|&(_, widest, _, _)| wide_enough(widest))?;
        Some(Self { kernel, head_dim, warps, stages })
    }

    /// Q, and for every tile on its way its positions, keys and values.
    fn shared_bytes(&self) -> usize {
        let row = 2 * self.head_dim;
        ROWS * row + self.warps * self.stages * TILE * (size_of::<u32>() + 2 * row)
    }
}

/// Keys of a split, and how many splits that makes: by the number of keys alone.
fn splits(keys: usize) -> (usize, usize) {
    let split_keys = keys.div_ceil(SPLIT * SPLITS_MAX).max(1) * SPLIT;
    (split_keys, keys.div_ceil(split_keys))
}

/// Rows over past and own keys (`None` where there are none), split by split.
pub(super) struct Few<'a> {
    shared: &'a Arc<Shared>,
    rows: &'a PlacedQueries<'a>,
    kv_heads: usize,
    splits: usize,
    parts: PlacedState,
    /// Of past and own keys: logits `[heads, tokens, keys]`, and keys.
    logits: [Option<(OnDevice<f32>, usize)>; 2],
}

impl<'a> Few<'a> {
    /// Goes over all keys; keeps logits where masses will be asked for.
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        rows: &'a PlacedQueries<'a>,
        keys: [Option<&PlacedKeys>; 2],
        weighs: bool,
    ) -> Result<Self, BackendError> {
        let q = rows.queries.q;
        let plan = Plan::of(q.head_dim).expect("asked before by `serves`");
        let all_rows = q.heads * q.tokens;
        let logits = |keys: &Option<&PlacedKeys>| match keys {
            Some(keys) if weighs => {
                Ok(Some((OnDevice::room(shared, all_rows * keys.len())?, keys.len())))
            }
            _ => Ok(None),
        };
        let logits = [logits(&keys[0])?, logits(&keys[1])?];
        let stretches = [stretch(keys[0], &logits[0]), stretch(keys[1], &logits[1])];
        let splits = stretches.iter().map(|it| it.splits as usize).sum();
        let parts = PlacedState::parts(shared, &rows.queries, splits)?;
        let kv_heads = keys.iter().flatten().map(|keys| keys.kv_heads()).next().unwrap_or(1);
        let params = FewAttention { queries: rows.array(), stretches, parts: parts.arrays() };
        shared.run(&Launch {
            kernel: plan.kernel.of(q.head_dim == plan.head_dim),
            grid: [splits as u32, kv_heads as u32, 1],
            threads: 32 * plan.warps as u32,
            shared_bytes: plan.shared_bytes(),
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(Self { shared, rows, kv_heads, splits, parts, logits })
    }

    /// The partial state over all keys.
    pub(super) fn state(&self, to: &PlacedState) -> Result<(), BackendError> {
        self.combine(to.arrays(), None, (0, 0), false)
    }

    /// What the rows make of all keys, and of sinks.
    pub(super) fn output(
        &self,
        sinks: Option<&OnDevice<f32>>,
        to: &Output,
    ) -> Result<(), BackendError> {
        let (at, rounds) = ((to.address(), to.lse.address()), to.of_dtype(false, true));
        self.combine(StateArrays::NONE, sinks, at, rounds)
    }

    fn combine(
        &self,
        to: StateArrays,
        sinks: Option<&OnDevice<f32>>,
        (output, lse): (u64, u64),
        rounds: bool,
    ) -> Result<(), BackendError> {
        const THREADS: usize = 256;
        let q = self.rows.queries.q;
        let params = FewCombine {
            parts: self.parts.arrays(),
            to,
            sinks: sinks.map_or(0, OnDevice::address),
            output,
            lse,
            broken: self.shared.broken_at(),
            heads: q.heads as u32,
            tokens: q.tokens as u32,
            head_dim: q.head_dim as u32,
            splits: self.splits as u32,
            rounds: rounds.into(),
            unused: 0,
        };
        self.shared.run(&Launch {
            kernel: "few_combine",
            grid: [(q.heads * q.tokens) as u32, 1, 1],
            threads: THREADS as u32,
            shared_bytes: (4 * THREADS + self.splits) * size_of::<f32>(),
            params: bytemuck::bytes_of(&params),
        })
    }

    /// What the rows spend on past and on own keys.
    pub(super) fn masses(&self, votes: &Votes<'_>) -> Result<[Array<f32>; 2], BackendError> {
        const COLUMNS: usize = 128;
        let mut masses = [None, None];
        let mut stretches = [FewColumns { logits: 0, mass: 0, keys: 0, unused: 0 }; 2];
        for ((logits, to), columns) in self.logits.iter().zip(&mut masses).zip(&mut stretches) {
            let Some((logits, keys)) = logits else { continue };
            let mass = OnDevice::room(self.shared, self.kv_heads * keys)?;
            let (logits, keys) = (logits.address(), *keys as u32);
            *columns = FewColumns { logits, mass: mass.address(), keys, unused: 0 };
            *to = Some(mass);
        }
        let q = self.rows.queries.q;
        let params = FewMasses {
            stretches,
            lse: votes.lse.address(),
            row_weights: votes.row_weights.address(),
            broken: self.shared.broken_at(),
            group: (q.heads / self.kv_heads) as u32,
            tokens: q.tokens as u32,
        };
        let most = stretches.iter().map(|it| it.keys).max().unwrap_or(0);
        self.shared.run(&Launch {
            kernel: "few_masses",
            grid: [most.div_ceil(COLUMNS as u32), self.kv_heads as u32, 2],
            threads: COLUMNS as u32,
            shared_bytes: 0,
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(masses.map(|mass| mass.map_or_else(Array::default, OnDevice::into_array)))
    }
}

fn stretch(keys: Option<&PlacedKeys>, logits: &Option<(OnDevice<f32>, usize)>) -> FewStretch {
    let (split_keys, splits) = splits(keys.map_or(0, PlacedKeys::len));
    FewStretch {
        keys: keys.map_or(KeyArrays::NONE, PlacedKeys::arrays),
        logits: logits.as_ref().map_or(0, |(logits, _)| logits.address()),
        splits: splits as u32,
        split_keys: split_keys as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_whole_multiples_and_not_too_many() {
        for keys in [0, 1, 128, 129, 16_384, 16_385, 32_768, 1 << 20] {
            let (split_keys, count) = splits(keys);
            assert!(split_keys.is_multiple_of(SPLIT) && count <= SPLITS_MAX, "{keys}");
            assert!(count * split_keys >= keys && keys + split_keys > count * split_keys, "{keys}");
        }
        assert_eq!((splits(300), splits(32_768)), ((128, 3), (256, 128)));
    }
}
