//! What logits fall by with distance ([`Queries::slopes`]).

use super::pass::Span;
use super::rows::{Lanes, RowTile};
use crate::backend::Queries;
use crate::cpu::simd::{LANES, Simd, Vector};
use crate::memory::LeafKeys;

/// Of the rows of a tile.
pub(super) struct Fall {
    /// KV head.
    g: usize,
    /// Logits from dot products, or what capped ones are multiplied by: 1.
    scale: f32,
    panels: Vec<Panel>,
}

/// Sixteen rows.
struct Panel {
    /// Less than 0; 0 in lanes without a row.
    slopes: Lanes,
    /// Where they stand.
    positions: [u32; LANES],
}

impl Fall {
    /// By `slopes`, those of all heads.
    pub(super) fn new(queries: &Queries<'_>, slopes: &[f32], rows: &RowTile) -> Self {
        let mut panels = Vec::with_capacity(rows.panels());
        for (idx, slopes) in rows.lanes(0.0, |head, _| -slopes[head]).into_iter().enumerate() {
            let mut positions = [0; LANES];
            for (lane, position) in positions.iter_mut().enumerate() {
                let row = idx * LANES + lane;
                let t = if row < rows.len() { rows.origin(row).1 } else { 0 };
                *position = queries.start + t as u32;
            }
            panels.push(Panel { slopes, positions });
        }
        let scale = if queries.softcap.is_some() { 1.0 } else { queries.scale };
        Self { g: rows.g, scale, panels }
    }

    /// Dot products of keys `first..last`, `[keys, panels, 16]`, become logits; those of keys that
    /// a row does not see, or that the head does not have, become anything.
    #[inline(always)]
    pub(super) fn apply<S: Simd>(
        &self,
        simd: S,
        keys: &LeafKeys<'_>,
        (first, last): Span,
        dots: &mut [Lanes],
    ) {
        let (scale, positions) = (simd.splat(self.scale), keys.of.head_positions(self.g));
        let mut each = dots.chunks_exact_mut(self.panels.len());
        for run in keys.within(self.g, first..last) {
            for (&position, lanes) in positions[run].iter().zip(each.by_ref()) {
                for (panel, lanes) in self.panels.iter().zip(lanes) {
                    // Of whole numbers: exact wherever both stand, and however rows are cut.
                    let mut distance = [0.0; LANES];
                    for (to, own) in distance.iter_mut().zip(&panel.positions) {
                        *to = own.wrapping_sub(position) as f32;
                    }
                    let fallen = simd.load(&distance) * simd.load(&panel.slopes);
                    simd.load(lanes).fma(scale, fallen).store(lanes);
                }
            }
        }
    }
}
