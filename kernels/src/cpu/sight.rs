//! Which keys a row sees: because positions ascend, a range.

use std::ops::Range;

use crate::backend::Queries;

/// Indices into `positions`, ascending, that row `t` sees.
pub(super) fn range_in_sight(queries: &Queries<'_>, t: usize, positions: &[u32]) -> Range<usize> {
    let seen = queries.sight(t);
    let below = |bound: u32| positions.partition_point(|&position| position < bound);
    let end = positions.partition_point(|position| position <= seen.end());
    below(*seen.start()).min(end)..end
}

/// The part of the tile `first..last` that lies in `range`, counted from `first`.
pub(super) fn within(range: &Range<usize>, first: usize, last: usize) -> Range<usize> {
    range.start.clamp(first, last) - first..range.end.clamp(first, last) - first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Heads;

    #[test]
    fn agrees_with_the_rule_of_sight() {
        let q = Heads::zeros(1, 4, 2);
        let positions = [0, 3, 9, 10, 11, 12, 13, 20];
        for window in [None, Some(1), Some(2), Some(5), Some(100)] {
            let queries = Queries { q: &q, start: 10, scale: 1.0, window };
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
