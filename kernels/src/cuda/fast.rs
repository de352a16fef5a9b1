//! Attention of many rows on tensor cores: what is asked of the kernels that a chip has of its
//! own (`attention90.rs`, `attention80.rs`).
//!
//! Everything here is bf16 beside f32 sums, without caps and slopes. Addresses are those of arrays
//! in device memory, row-major, aligned to 256 bytes. Rows see own keys causally and all past keys,
//! of either only a tail where windows or blocks bound it; who stands behind this seam reads no
//! position and no table.

use std::sync::Arc;

use super::Shared;
use super::attention80::Ampere;
use super::attention90::Hopper;
use super::device::{Address, Properties};
use crate::backend::BackendError;

/// Sizes that decide which kernel can do the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// H.
    pub(super) heads: usize,
    /// G; divides H, and query head h belongs to KV head h / (H / G).
    pub(super) kv_heads: usize,
    /// T, at least 1.
    pub(super) tokens: usize,
    /// D, at most that of a kernel.
    pub(super) head_dim: usize,
}

/// Queries and what multiplies their products with keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) shape: Shape,
    /// `[heads, tokens, head_dim]` bf16.
    pub(super) q: Address,
    /// A logit is `scale` (q . k), in natural units.
    pub(super) scale: f32,
}

/// What rows see of keys where a window or blocks bound it: which keys are too far back. Both
/// arrays are u32 and never fall along a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sight {
    /// `[kv_heads, tokens]`: the first key that each row sees; as many as keys for none.
    pub(super) first: Address,
    /// `[kv_heads, keys]`: the first row that does not see a key any more.
    pub(super) end: Address,
}

/// Keys with their values: at least one, key j of KV head g in row `g * cells + j`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    /// `[kv_heads, cells, head_dim]` bf16.
    pub(super) k: Address,
    /// `[kv_heads, cells, head_dim]` bf16.
    pub(super) v: Address,
    /// Keys of each KV head.
    pub(super) keys: usize,
    /// Rows of each KV head, at least `keys`; what is behind the keys may be NaN.
    pub(super) cells: usize,
    /// `None`: no key is too far back.
    pub(super) sight: Option<Sight>,
}

impl Stretch {
    /// What [`Sight::first`] is of each, own and past; 0 where there is none.
    pub(super) fn firsts(parts: [Option<Self>; 2]) -> [u64; 2] {
        parts.map(|part| part.and_then(|it| it.sight).map_or(0, |it| it.first.0))
    }

    /// The same of [`Sight::end`].
    pub(super) fn ends(parts: [Option<Self>; 2]) -> [u64; 2] {
        parts.map(|part| part.and_then(|it| it.sight).map_or(0, |it| it.end.0))
    }
}

/// A partial state ([`crate::AttentionState`]), f32.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateAt {
    /// `[heads, tokens]`.
    pub(super) m: Address,
    /// `[heads, tokens]`.
    pub(super) l: Address,
    /// `[heads, tokens, head_dim]`.
    pub(super) o: Address,
}

/// What a [`Pass`] leaves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    /// m, l and o.
    State(StateAt),
    /// o / l, and m + ln l; zero and -inf for a row that saw nothing.
    Output {
        /// `[tokens, heads * head_dim]` bf16.
        output: Address,
        /// `[heads, tokens]` f32.
        lse: Address,
    },
}

/// Rows over own keys, then over past keys.
///
/// What is asked for is one of: `own` to a state; `past` to a state; own and past to an output
/// ([`crate::AttentionOps::attend_all`]); `past` to an output, going on `from` the state over own
/// keys ([`crate::AttentionOps::attend_rest`]). Where nothing is remembered yet, the last two come
/// without `past`: `own` to an output, and `from` with no keys at all.
///
/// **The last two halves give the bits of the whole**: own to a state, then past from that state
/// to an output, is bit for bit own and past in one go. So own keys come first; between them and
/// the past, a row's registers must hold what its state in memory would. For that
/// - m is in natural units, `mul(largest q . k, scale)`, and what is subtracted in exponents is
///   computed from that m (`-m log2(e)`), not from the largest product;
/// - where a thread keeps its own part of l, the parts are summed there, and one thread goes on
///   from the sum;
/// - o is f32 and not divided by l.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    pub(super) rows: Rows,
    /// Where to go on; `None`: nothing has been seen.
    pub(super) from: Option<StateAt>,
    /// As many keys as rows, row t sees keys `0..=t` within sight.
    pub(super) own: Option<Stretch>,
    /// Every row sees every key within sight.
    pub(super) past: Option<Stretch>,
    pub(super) goal: Goal,
}

/// Where the column masses of a stretch go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    /// `v` is not read.
    pub(super) keys: Stretch,
    /// `[kv_heads, keys]` f32, every element written.
    pub(super) mass: Address,
}

/// Column masses ([`crate::AttentionOps::weigh`]) over own keys, past keys, or both: a grid over
/// both fills a chip that either alone does not. A column's bits do not depend on which it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weighing<'a> {
    pub(super) rows: Rows,
    /// As many keys as rows, row t sees keys `0..=t` within sight.
    pub(super) own: Option<Columns>,
    /// Every row sees every key within sight.
    pub(super) past: Option<Columns>,
    /// `[heads, tokens]` f32, of the merged state; a row of -inf spends nothing.
    pub(super) lse: Address,
    /// `[tokens]` f32 on the device.
    pub(super) row_weights: Address,
    /// The same on the host: rows of weight 0 at the front need not be looked at.
    pub(super) weights: &'a [f32],
}

/// One kernel twice: for heads of its own size over all keys, and for heads as wide or narrower
/// whose rows may lose sight of keys. They give the same bits.
pub(super) struct ByShape {
    pub(super) whole: &'static str,
    pub(super) any: &'static str,
}

/// Whether a kernel for heads of `widest` elements takes those of `head_dim`: rows are whole chunks
/// of 16 bytes.
pub(super) fn serves_heads(head_dim: usize, widest: usize) -> bool {
    (1..=widest).contains(&head_dim) && head_dim.is_multiple_of(8)
}

impl ByShape {
    pub(super) fn of(&self, is_whole: bool) -> &'static str {
        if is_whole { self.whole } else { self.any }
    }
}

/// A chip's own kernels. Both calls enqueue and return; sums that are not finite are reported
/// to `shared.broken_at()`, as [`super::Broken::Attend`] and [`super::Broken::Weigh`].
pub(super) trait Fast: Sync {
    /// The compute capability of the first chip that they are for.
    fn since(&self) -> u32;

    /// Whether passes and weighings of this shape can be done, whatever number of keys. The
    /// answer must not depend on anything else: halves and wholes have to meet.
    fn fits(&self, device: &Properties, shape: &Shape) -> bool;

    /// Rows over keys.
    fn attend(&self, shared: &Arc<Shared>, pass: &Pass) -> Result<(), BackendError>;

    /// What rows spend on keys.
    fn weigh(&self, shared: &Arc<Shared>, weighing: &Weighing<'_>) -> Result<(), BackendError>;
}

/// Best first. A chip's module adds itself here.
const ALL: [&dyn Fast; 2] = [&Hopper, &Ampere];

/// Whether kernels are for this chip and none before it.
pub(super) fn own(device: &Properties) -> bool {
    device.capability > 80 && ALL.iter().any(|it| it.since() == device.capability)
}

/// The fastest that can do it; `None` leaves it to the plain kernels.
pub(super) fn kernel_for(shared: &Shared, shape: &Shape) -> Option<&'static dyn Fast> {
    let most = shared.options.capability_max.unwrap_or(u32::MAX);
    let mut allowed = ALL.into_iter().filter(|it| it.since() <= most);
    allowed.find(|it| it.fits(shared.device.properties(), shape))
}
