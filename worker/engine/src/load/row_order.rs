//! In which order files have the rows of heads.

/// Where rows stand that do not stand as they are used.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowOrder {
    /// Of query and key heads.
    Heads(HeadRows),
    /// Each head has so many rows of its key, and then so many of its value; here keys of all
    /// heads come first.
    KeysFirst { heads: usize, key: usize, value: usize },
}

impl RowOrder {
    /// Where row `row` is stored.
    pub(super) fn stored(self, row: usize) -> usize {
        match self {
            Self::Heads(heads) => heads.stored(row),
            Self::KeysFirst { heads, key, value } => match row.checked_sub(heads * key) {
                None => row / key * (key + value) + row % key,
                Some(row) => row / value * (key + value) + key + row % value,
            },
        }
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
    fn keys_of_all_heads_come_first() {
        let order = RowOrder::KeysFirst { heads: 2, key: 3, value: 2 };
        let want = "ka0 ka1 ka2 kb0 kb1 kb2 va0 va1 vb0 vb1";
        check(order, "ka0 ka1 ka2 va0 va1 kb0 kb1 kb2 vb0 vb1", want);
    }
}
