//! In which order files have the rows of query and key heads.

/// Where the rows of query and key heads stand. Here element i of a head is rotated with element
/// i + head_dim / 2, and those that are not rotated stand behind the others in either half.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowOrder {
    /// So many rows belong to such heads; others follow as they are.
    pub(crate) rows: usize,
    pub(crate) head_dim: usize,
    pub(crate) rotary_dim: usize,
    /// Rotated elements stand beside each other in pairs (llama.cpp's order of most models).
    pub(crate) neighbours: bool,
    /// Of queries, keys and values in one tensor, of as many heads each: those of a head stand
    /// together (GPT-NeoX). Else all queries come first.
    pub(crate) by_head: bool,
}

impl RowOrder {
    /// Where row `row` is stored.
    pub(super) fn stored(self, row: usize) -> usize {
        let row = self.turned(row);
        if !self.by_head {
            return row;
        }
        let heads = self.rows / 2 / self.head_dim; // of queries, and of keys
        let (head, row) = (row / self.head_dim, row % self.head_dim);
        (head % heads * 3 + head / heads) * self.head_dim + row
    }

    /// The same, where all queries come first.
    fn turned(self, row: usize) -> usize {
        let Self { rows, head_dim, rotary_dim, neighbours, .. } = self;
        if row >= rows {
            return row;
        }
        let (head, row) = (row / head_dim * head_dim, row % head_dim);
        let (firsts, pairs) = (head_dim.div_ceil(2), rotary_dim / 2);
        let (second, pair) = (row / firsts, row % firsts);
        head + match pair.checked_sub(pairs) {
            None if neighbours => 2 * pair + second,
            None => pair + second * pairs,
            Some(still) => rotary_dim + still + second * (firsts - pairs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_become_half_split() {
        let check = |order: RowOrder, stored: &str, want: &str| {
            let stored: Vec<&str> = stored.split(' ').collect();
            let seen: Vec<_> = (0..stored.len()).map(|row| stored[order.stored(row)]).collect();
            assert_eq!(seen.join(" "), want, "{order:?}");
        };
        // Two heads of four rows, named by head, pair and half, and a row that is in none.
        let all =
            RowOrder { rows: 8, head_dim: 4, rotary_dim: 4, neighbours: true, by_head: false };
        let stored = "000 001 010 011 100 101 110 111 v";
        check(all, stored, "000 010 001 011 100 110 101 111 v");
        let halves = "000 010 001 011 100 110 101 111 v";
        check(RowOrder { neighbours: false, ..all }, halves, halves);
        // One head of eight, of which four are rotated and w to z are not.
        let part = RowOrder { head_dim: 8, ..all };
        check(part, "00 01 10 11 w x y z", "00 10 w x 01 11 y z");
        let part = RowOrder { neighbours: false, ..part };
        check(part, "00 10 01 11 w x y z", "00 10 w x 01 11 y z");
        // Six of eight: one pair is left.
        let most = RowOrder { rotary_dim: 6, ..part };
        check(most, "00 10 20 01 11 21 y z", "00 10 20 y 01 11 21 z");
        // Two heads of queries, keys and values, of which two of four elements are rotated.
        let of_head = |head: &str| {
            let of = |part| format!("{part}{head}0 {part}{head}1 {part}{head}w {part}{head}x");
            ["q", "k", "v"].map(of).join(" ")
        };
        let by_head =
            RowOrder { rows: 16, head_dim: 4, rotary_dim: 2, neighbours: false, by_head: true };
        let want = "qa0 qaw qa1 qax qb0 qbw qb1 qbx ka0 kaw ka1 kax kb0 kbw kb1 kbx \
                    va0 va1 vaw vax vb0 vb1 vbw vbx";
        check(by_head, &[of_head("a"), of_head("b")].join(" "), want);
    }
}
