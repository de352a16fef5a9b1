//! A merged state beside what f64 makes of the same keys.

use aqueduct_core::work::MergeAudit;
use aqueduct_kernels::{AttentionState, BackendError, Keys, KvDtype, Queries, Shard};
use half::bf16;

/// Computes row `t` of every head of `state`, which is over all keys of `shards`, again from
/// keys and values as they are stored.
///
/// # Errors
/// What a device could not do.
pub(super) fn audit<'s>(
    (layer, t): (usize, usize),
    queries: Queries<'_>,
    shards: impl Iterator<Item = &'s Shard> + Clone,
    state: &AttentionState,
) -> Result<MergeAudit, BackendError> {
    let (m, l, o) = (state.m.host()?, state.l.host()?, state.o.host()?);
    let mut audit = MergeAudit { layer: layer as u32, ..MergeAudit::default() };
    let rows_of = rows_of(queries, t, shards)?;
    for (h, want) in rows_of.into_iter().enumerate() {
        let i = h * state.tokens + t;
        let got = &o[i * state.head_dim..(i + 1) * state.head_dim];
        let (error, lse_error) = want.beside(m[i].into(), l[i].into(), got);
        audit.add(MergeAudit { rows: 1, error, lse_error, ..audit });
    }
    Ok(audit)
}

/// The row of every head, in f64.
fn rows_of<'s>(
    queries: Queries<'_>,
    t: usize,
    shards: impl Iterator<Item = &'s Shard> + Clone,
) -> Result<Vec<Row>, BackendError> {
    let q = queries.q;
    q.data.host()?;
    let mut rows = vec![Row::empty(q.head_dim); q.heads];
    let kv_heads = shards.clone().map(Shard::kv_heads).max().unwrap_or(1);
    for shard in shards {
        shard.fetch()?;
        let mut first = 0;
        for keys in shard.parts().iter().map(|part| &part.keys) {
            for g in 0..keys.kv_heads() {
                let group = q.heads / kv_heads;
                let h = (first + g) * group;
                for (h, row) in (h..).zip(&mut rows[h..h + group]) {
                    row.see(queries, (h, t), (keys, g));
                }
            }
            first += keys.kv_heads();
        }
    }
    Ok(rows)
}

/// Logits and values that one row has seen, as m, l and o.
#[derive(Debug, Clone)]
struct Row {
    m: f64,
    l: f64,
    o: Vec<f64>,
}

impl Row {
    fn empty(head_dim: usize) -> Self {
        Self { m: f64::NEG_INFINITY, l: 0.0, o: vec![0.0; head_dim] }
    }

    /// Row `t` of head `h` sees what it may of KV head `g`.
    fn see(&mut self, queries: Queries<'_>, (h, t): (usize, usize), (keys, g): (&Keys, usize)) {
        let sight = queries.sight(t);
        let round = |&x: &f32| match keys.k.dtype() {
            KvDtype::F32 => f64::from(x),
            KvDtype::Bf16 => bf16::from_f32(x).to_f64(), // as every backend has it
        };
        let q: Vec<f64> = queries.q.row(h, t).iter().map(round).collect();
        let (k, v) = (keys.k_rows(g).to_f32(), keys.v_rows(g).to_f32());
        let rows = k.chunks_exact(q.len()).zip(v.chunks_exact(q.len()));
        for (position, (k, v)) in keys.head_positions(g).iter().zip(rows) {
            if sight.contains(position) {
                let dot: f64 = q.iter().zip(k).map(|(q, &k)| q * f64::from(k)).sum();
                let z = dot * f64::from(queries.scale);
                let cap = queries.softcap.map(f64::from);
                let near = cap.map_or(z, |cap| cap * (z / cap).tanh());
                let slope = queries.slopes.map_or(0.0, |slopes| f64::from(slopes[h]));
                self.add(near - slope * f64::from(sight.end() - position), v);
            }
        }
    }

    fn add(&mut self, z: f64, v: &[f32]) {
        let m = self.m.max(z);
        let (old, new) = ((self.m - m).exp(), (z - m).exp());
        self.m = m;
        self.l = self.l * old + new;
        for (o, &v) in self.o.iter_mut().zip(v) {
            *o = *o * old + new * f64::from(v);
        }
    }

    /// The largest difference of the outputs, relative to the largest element, and that of the
    /// log-sum-exps.
    fn beside(&self, m: f64, l: f64, o: &[f32]) -> (f64, f64) {
        if self.l == 0.0 {
            let empty = m == f64::NEG_INFINITY && l == 0.0;
            return if empty { (0.0, 0.0) } else { (f64::INFINITY, f64::INFINITY) };
        }
        let size = self.o.iter().fold(0.0, |max: f64, o| max.max(o.abs())) / self.l;
        let apart =
            self.o.iter().zip(o).map(|(want, &got)| (f64::from(got) / l - want / self.l).abs());
        // Not `max`, which would lose what is no number.
        let worse = |a: f64, b: f64| if a.is_nan() || b <= a { a } else { b };
        let worst = apart.fold(0.0, worse);
        let lse = (m + l.ln()) - (self.m + self.l.ln());
        (worst / size.max(f64::MIN_POSITIVE), lse.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aqueduct_kernels::{AttentionOps, Heads, KvHeads, Reference};

    const START: u32 = 6;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn shard(positions: std::ops::Range<u32>, seed: u64) -> Shard {
        let tokens = positions.len();
        let rows =
            |seed| KvHeads::from_f32(2, tokens, 8, &numbers(2 * tokens * 8, seed), KvDtype::F32);
        let end = positions.end;
        let positions = positions.collect::<Vec<_>>().repeat(2);
        Shard::new(Keys::new(positions, rows(seed), rows(seed + 100)), end)
    }

    /// Two shards of the past and the block's own, and the state over all of them.
    fn scene() -> (Heads, [Shard; 3], AttentionState) {
        let data = numbers(4 * 3 * 8, 9).into();
        let q = Heads { heads: 4, tokens: 3, head_dim: 8, data };
        let shards = [shard(0..3, 1), shard(3..START, 2), shard(START..START + 3, 3)];
        let state = shards
            .iter()
            .map(|shard| Reference.attend(queries(&q), &shard.parts()[0].keys).unwrap())
            .reduce(|all, state| all.merge(&state))
            .unwrap();
        (q, shards, state)
    }

    fn queries(q: &Heads) -> Queries<'_> {
        let slopes = Some(&[0.5, 0.1, 0.0, 0.02][..]);
        Queries { q, start: START, scale: 0.5, window: None, softcap: Some(0.5), slopes }
    }

    #[test]
    fn a_merged_state_is_what_f64_says() {
        let (q, shards, state) = scene();
        for t in 0..3 {
            let audit = audit((5, t), queries(&q), shards.iter(), &state).unwrap();
            assert_eq!((audit.layer, audit.rows), (5, 4));
            assert!(audit.is_within(1e-6), "{audit:?}");
        }
    }

    #[test]
    fn a_corrupted_state_is_noticed() {
        let (q, shards, state) = scene();
        let check = |spoil: fn(&mut AttentionState), what: &str| {
            let mut state = state.clone();
            spoil(&mut state);
            let audit = audit((0, 1), queries(&q), shards.iter(), &state).unwrap();
            assert!(!audit.is_within(1e-3), "{what}: {audit:?}");
        };
        check(|state| state.o.make_mut()[8] *= 1.5, "an element of o");
        check(|state| state.l.make_mut()[1] *= 1.01, "l");
        check(|state| state.m.make_mut()[1] += 0.01, "m, as of another base");
        check(|state| state.o.make_mut()[8] = f32::NAN, "no number");
        check(|state| state.m.make_mut()[1] = f32::NEG_INFINITY, "a row that saw nothing");
        let some = audit((0, 1), queries(&q), shards[1..].iter(), &state).unwrap();
        assert!(!some.is_within(1e-3), "a shard too many: {some:?}");
    }
}
