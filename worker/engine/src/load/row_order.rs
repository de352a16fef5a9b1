//! In which order files have the rows of heads.

/// Where rows stand that do not stand as they are used.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowOrder {
    /// Of query and key heads.
    Heads(HeadRows),
    /// Of groups that have so many rows of each of these each, one after the other; here the rows
    /// of one that all groups have come together.
    ByGroup { groups: usize, parts: [usize; 4] },
}

impl RowOrder {
    /// Where row `row` is stored.
    pub(super) fn stored(self, row: usize) -> usize {
        match self {
            Self::Heads(heads) => heads.stored(row),
            Self::ByGroup { groups, parts } => by_group(groups, parts, row),
        }
    }
}

fn by_group(groups: usize, parts: [usize; 4], row: usize) -> usize {
    let of_group: usize = parts.iter().sum();
    let (mut left, mut before) = (row, 0);
    for part in parts {
        if left < groups * part {
            return left / part * of_group + before + left % part;
        }
        left -= groups * part;
        before += part;
    }
    row // which belongs to none
}

/// Rows of a tensor of which others are used elsewhere: of every so many some, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Picked {
    /// Rows of the tensor.
    pub(crate) rows: usize,
    pub(crate) of_every: usize,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl Picked {
    /// Where row `row` of those that are picked stands.
    pub(super) fn stored(self, row: usize) -> usize {
        row / self.count * self.of_every + self.first + row % self.count
    }
}

/// Where the rows of query and key heads stand. Here element i of a head is rotated with element
/// i + head_dim / 2, and those that are not rotated stand behind the others in either half.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadRows {
    /// The first that belongs to such a head; those before are as they are.
    pub(crate) first: usize,
    /// So many rows belong to such heads; others follow as they are.
    pub(crate) rows: usize,
    pub(crate) head_dim: usize,
    pub(crate) rotary_dim: usize,
    /// Rotated elements stand beside each other in pairs (llama.cpp's order of most models).
    pub(crate) neighbours: bool,
    /// Of queries, keys and values in one tensor: those of a KV head stand together, so many query
    /// heads before their key and value (1 in GPT-NeoX, more in Falcon). Else all queries come
    /// first.
    pub(crate) by_head: Option<usize>,
    /// What is rotated stands behind what is not.
    pub(crate) rotated_last: bool,
}

impl HeadRows {
    fn stored(self, row: usize) -> usize {
        row.checked_sub(self.first).map_or(row, |row| self.first + self.of_heads(row))
    }

    /// The same, counted from the first of them.
    fn of_heads(self, row: usize) -> usize {
        let row = self.turned(row);
        let Some(group) = self.by_head else { return row };
        let kv_heads = self.rows / self.head_dim / (group + 1);
        let (head, row) = (row / self.head_dim, row % self.head_dim);
        let head = match head.checked_sub(kv_heads * group) {
            None => head / group * (group + 2) + head % group,
            Some(head) => head % kv_heads * (group + 2) + group + head / kv_heads,
        };
        head * self.head_dim + row
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
        let [rotated, others] =
            if self.rotated_last { [head_dim - rotary_dim, 0] } else { [0, rotary_dim] };
        head + match pair.checked_sub(pairs) {
            None if neighbours => rotated + 2 * pair + second,
            None => rotated + pair + second * pairs,
            Some(still) => others + still + second * (firsts - pairs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(order: RowOrder, stored: &str, want: &str) {
        let stored: Vec<&str> = stored.split(' ').collect();
        let seen: Vec<_> = (0..stored.len()).map(|row| stored[order.stored(row)]).collect();
        assert_eq!(seen.join(" "), want, "{order:?}");
    }

    #[test]
    fn heads_become_half_split() {
        let check = |order: HeadRows, stored: &str, want: &str| {
            check(RowOrder::Heads(order), stored, want);
        };
        // Two heads of four rows, named by head, pair and half, and a row that is in none.
        let all = HeadRows {
            first: 0,
            rows: 8,
            head_dim: 4,
            rotary_dim: 4,
            neighbours: true,
            by_head: None,
            rotated_last: false,
        };
        let stored = "000 001 010 011 100 101 110 111 v";
        check(all, stored, "000 010 001 011 100 110 101 111 v");
        let halves = "000 010 001 011 100 110 101 111 v";
        check(HeadRows { neighbours: false, ..all }, halves, halves);
        // The same behind a row that belongs to none.
        let behind = format!("c {stored}");
        let want = "c 000 010 001 011 100 110 101 111 v";
        check(HeadRows { first: 1, ..all }, &behind, want);
        // One head of eight, of which four are rotated and w to z are not.
        let part = HeadRows { head_dim: 8, ..all };
        check(part, "00 01 10 11 w x y z", "00 10 w x 01 11 y z");
        let last = HeadRows { rotated_last: true, ..part };
        check(last, "w x y z 00 01 10 11", "00 10 w x 01 11 y z");
        let last = HeadRows { neighbours: false, ..last };
        check(last, "w x y z 00 10 01 11", "00 10 w x 01 11 y z");
        let part = HeadRows { neighbours: false, ..part };
        check(part, "00 10 01 11 w x y z", "00 10 w x 01 11 y z");
        // Six of eight: one pair is left.
        let most = HeadRows { rotary_dim: 6, ..part };
        check(most, "00 10 20 01 11 21 y z", "00 10 20 y 01 11 21 z");
        // Two heads of queries, keys and values, of which two of four elements are rotated.
        let of_head = |head: &str| {
            let of = |part| format!("{part}{head}0 {part}{head}1 {part}{head}w {part}{head}x");
            ["q", "k", "v"].map(of).join(" ")
        };
        let by_head = HeadRows { rows: 16, rotary_dim: 2, neighbours: false, ..all };
        let by_head = HeadRows { by_head: Some(1), ..by_head };
        let want = "qa0 qaw qa1 qax qb0 qbw qb1 qbx ka0 kaw ka1 kax kb0 kbw kb1 kbx \
                    va0 va1 vaw vax vb0 vb1 vbw vbx";
        check(by_head, &[of_head("a"), of_head("b")].join(" "), want);
        // Two of keys and values, with two of queries each.
        let of_group = |group: &str| {
            let of = |head| format!("{head}{group}0 {head}{group}1");
            ["q", "p", "k", "v"].map(of).join(" ")
        };
        let groups = HeadRows { rows: 12, head_dim: 2, rotary_dim: 2, by_head: Some(2), ..by_head };
        let want = "qa0 qa1 pa0 pa1 qb0 qb1 pb0 pb1 ka0 ka1 kb0 kb1 va0 va1 vb0 vb1";
        check(groups, &[of_group("a"), of_group("b")].join(" "), want);
    }

    #[test]
    fn what_all_groups_have_comes_together() {
        let of = |groups, parts| RowOrder::ByGroup { groups, parts };
        let want = "ka0 ka1 ka2 kb0 kb1 kb2 va0 va1 vb0 vb1";
        check(of(2, [3, 2, 0, 0]), "ka0 ka1 ka2 va0 va1 kb0 kb1 kb2 vb0 vb1", want);
        let stored = "qa ka va0 va1 za0 za1 qb kb vb0 vb1 zb0 zb1";
        let want = "qa qb ka kb va0 va1 vb0 vb1 za0 za1 zb0 zb1";
        check(of(2, [1, 1, 2, 2]), stored, want);
        check(of(3, [1, 1, 0, 0]), "ba aa bb ab bc ac x", "ba bb bc aa ab ac x");
    }

    #[test]
    fn some_rows_are_picked() {
        let picked = |first| Picked { rows: 8, of_every: 4, first, count: 2 };
        let stored = |first| [0, 1, 2, 3].map(|row| picked(first).stored(row));
        assert_eq!([stored(0), stored(2)], [[0, 1, 4, 5], [2, 3, 6, 7]]);
    }
}
