//! Which keys a row sees: because positions ascend, a range.

use std::ops::Range;

use super::rows::{Lanes, RowTile};
use crate::backend::Queries;
use crate::cpu::simd::{LANES, Simd, Vector};
use crate::memory::LeafKeys;

/// What a tile of rows sees of one KV head's keys.
pub(super) struct Sight {
    /// Per token: the keys it sees.
    tokens: Vec<Range<usize>>,
}

impl Sight {
    /// What `rows` see of `keys`.
    pub(super) fn new(queries: &Queries<'_>, rows: &RowTile, keys: &LeafKeys<'_>) -> Self {
        let positions = keys.of.head_positions(rows.g);
        let (mut of_set, mut of_keys) = (0..0, 0..0);
        let mut tokens = Vec::with_capacity(rows.tokens.len());
        for t in rows.tokens.clone() {
            let seen = range_in_sight(queries, t, positions);
            // Most rows see of the past what those before them see.
            if seen != of_set {
                (of_keys, of_set) = (those_of(keys, rows.g, &seen), seen);
            }
            tokens.push(of_keys.clone());
        }
        Self { tokens }
    }

    /// The keys that any row sees, all between the two ends.
    pub(super) fn reach(&self) -> Range<usize> {
        let seen = || self.tokens.iter().filter(|range| !range.is_empty());
        let first = seen().map(|range| range.start).min().unwrap_or(0);
        first..seen().map(|range| range.end).max().unwrap_or(first)
    }

    /// What each lane sees of keys `first..last`; `None` where every row sees all of them.
    pub(super) fn mask(&self, rows: &RowTile, first: usize, last: usize) -> Option<Vec<Bounds>> {
        if self.tokens.iter().all(|range| range.start <= first && range.end >= last) {
            return None;
        }
        let mut bounds = vec![Bounds { low: [0.0; LANES], high: [0.0; LANES] }; rows.panels()];
        for row in 0..rows.len() {
            let seen = within(&self.tokens[row % self.tokens.len()], first, last);
            bounds[row / LANES].low[row % LANES] = seen.start as f32;
            bounds[row / LANES].high[row % LANES] = seen.end as f32;
        }
        Some(bounds)
    }
}

/// Per lane, the keys of a tile that it sees: those from `low` up to below `high`.
#[derive(Clone)]
pub(super) struct Bounds {
    low: Lanes,
    high: Lanes,
}

impl Bounds {
    /// `dot` of key `key` where it is in sight, else -inf.
    #[inline(always)]
    pub(super) fn apply<S: Simd>(&self, simd: S, key: usize, dot: S::V) -> S::V {
        let (key, unseen) = (simd.splat(key as f32), simd.splat(f32::NEG_INFINITY));
        let dot = key.below(simd.load(&self.high), dot, unseen);
        key.below(simd.load(&self.low), unseen, dot)
    }
}

/// Which of the keys that KV head `g` has in `keys` row `t` sees.
pub(super) fn in_sight(
    queries: &Queries<'_>,
    t: usize,
    keys: &LeafKeys<'_>,
    g: usize,
) -> Range<usize> {
    those_of(keys, g, &range_in_sight(queries, t, keys.of.head_positions(g)))
}

/// Which of the keys that KV head `g` has in `keys` are among these of the set.
fn those_of(keys: &LeafKeys<'_>, g: usize, of_set: &Range<usize>) -> Range<usize> {
    keys.before(g, of_set.start)..keys.before(g, of_set.end)
}

/// Indices into `positions`, ascending, that row `t` sees.
fn range_in_sight(queries: &Queries<'_>, t: usize, positions: &[u32]) -> Range<usize> {
    let seen = queries.sight(t);
    // Most rows see everything, or everything from the start on, and need no search.
    let end = match positions.last() {
        Some(last) if last > seen.end() => positions.partition_point(|at| at <= seen.end()),
        _ => positions.len(),
    };
    let start = match positions.first() {
        Some(first) if first < seen.start() => positions.partition_point(|at| at < seen.start()),
        _ => 0,
    };
    start.min(end)..end
}

/// The part of the tile `first..last` that lies in `range`, counted from `first`.
fn within(range: &Range<usize>, first: usize, last: usize) -> Range<usize> {
    range.start.clamp(first, last) - first..range.end.clamp(first, last) - first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Heads;
    use crate::window::Window;

    #[test]
    fn agrees_with_the_rule_of_sight() {
        let q = Heads::zeros(1, 4, 2);
        let positions = [0, 3, 9, 10, 11, 12, 13, 20];
        let last = [1, 2, 5, 100].map(Window::Last);
        let blocks = [1, 3, 11, 12].map(Window::Block);
        for window in [None].into_iter().chain(last.map(Some)).chain(blocks.map(Some)) {
            let queries =
                Queries { q: &q, start: 10, scale: 1.0, window, softcap: None, slopes: None };
            for t in 0..4 {
                let sight = queries.sight(t);
                let want: Vec<usize> =
                    (0..positions.len()).filter(|&j| sight.contains(&positions[j])).collect();
                let got: Vec<usize> = range_in_sight(&queries, t, &positions).collect();
                assert_eq!(got, want, "window {window:?}, row {t}");
            }
        }
    }

    #[test]
    fn a_tile_sees_its_part() {
        assert_eq!(within(&(3..20), 8, 16), 0..8);
        assert_eq!(within(&(3..10), 8, 16), 0..2);
        assert_eq!(within(&(3..5), 8, 16), 0..0);
        assert_eq!(within(&(20..25), 8, 16), 8..8);
    }
}
