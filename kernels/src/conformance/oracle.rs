//! Attention, masses and memory by definition, in f64: softmax over concatenated keys, full
//! sorts, one entry at a time.

use half::bf16;

use crate::backend::Queries;
use crate::compare::Tolerance;
use crate::memory::{Keys, Ranking, Selection};
use crate::tensor::KvDtype;
use crate::window::Window;

use super::near::Near;
use super::scene::Block;

/// One key of one KV head.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) position: u32,
    /// How k and v are stored.
    pub(super) kv: KvDtype,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) score: f64,
    pub(super) votes: f64,
}

impl Entry {
    /// A query's element as it is multiplied with the key's.
    fn factor(&self, q: f32) -> f64 {
        match self.kv {
            KvDtype::F32 => q.into(),
            KvDtype::Bf16 => bf16::from_f32(q).into(),
        }
    }

    /// `sum` + p v. Beside bf16, p may be rounded to it: to 8 bits, so by a part in 2^8.
    fn added(&self, sum: Near, p: f64, v: f32) -> Near {
        let term = p * f64::from(v);
        let slack = match self.kv {
            KvDtype::F32 => 0.0,
            KvDtype::Bf16 => term.abs() / 256.0,
        };
        Near::computed(sum.value + term, sum.slack + slack)
    }
}

/// Per KV head, its entries.
pub(super) type Entries = Vec<Vec<Entry>>;

/// `keys`, scores and votes zero.
pub(super) fn entries(keys: &Keys) -> Entries {
    let d = keys.k.head_dim;
    let head = |g: usize| {
        let (k, v) = (keys.k_rows(g).to_f32(), keys.v_rows(g).to_f32());
        let rows = k.chunks(d).zip(v.chunks(d));
        let entry = |(&position, (k, v)): (&u32, (&[f32], &[f32]))| Entry {
            position,
            kv: keys.k.dtype(),
            k: k.to_vec(),
            v: v.to_vec(),
            score: 0.0,
            votes: 0.0,
        };
        keys.head_positions(g).iter().zip(rows).map(entry).collect()
    };
    (0..keys.kv_heads()).map(head).collect()
}

/// `past` followed by `own`.
pub(super) fn joined(past: &Entries, own: &Entries) -> Entries {
    past.iter().zip(own).map(|(past, own)| [past.as_slice(), own].concat()).collect()
}

/// What attention over all of a block's keys gives.
pub(super) struct Truth {
    /// `[heads, tokens]`.
    pub(super) lse: Vec<f64>,
    /// `[tokens, heads * head_dim]`.
    pub(super) output: Vec<Near>,
    /// Per KV head, per key.
    pub(super) mass: Vec<Vec<f64>>,
    /// The largest |logit| in sight.
    pub(super) largest: f64,
}

impl Truth {
    /// What f32 arithmetic may be off: a logit's rounding is in proportion to its size.
    pub(super) fn tolerance(&self) -> Tolerance {
        let off = 1e-5 + 2e-6 * self.largest;
        Tolerance { abs: off, rel: off, cosine: off }
    }
}

/// Softmax by definition of every row over every key it sees.
pub(super) fn attention(queries: &Queries<'_>, keys: &Entries, row_weights: &[f64]) -> Truth {
    attention_beside(queries, None, keys, row_weights)
}

/// The same where there is one more column, `sinks` (`[heads]`), whose values are zero.
pub(super) fn attention_beside(
    queries: &Queries<'_>,
    sinks: Option<&[f32]>,
    keys: &Entries,
    row_weights: &[f64],
) -> Truth {
    let q = queries.q;
    let (d, group) = (q.head_dim, q.heads / keys.len());
    let mut truth = Truth {
        lse: Vec::new(),
        output: vec![Near::given(0.0); q.tokens * q.heads * d],
        mass: keys.iter().map(|head| vec![0.0; head.len()]).collect(),
        largest: 0.0,
    };
    for h in 0..q.heads {
        let (entries, mass) = (&keys[h / group], &mut truth.mass[h / group]);
        for (t, &weight) in row_weights.iter().enumerate() {
            let mut logits = logits(queries, (h, t), entries);
            logits.extend(sinks.map(|sinks| f64::from(sinks[h])));
            let lse = log_sum_exp(&logits);
            truth.lse.push(lse);
            let output = &mut truth.output[(t * q.heads + h) * d..][..d];
            for ((entry, mass), &z) in entries.iter().zip(mass.iter_mut()).zip(&logits) {
                if z == f64::NEG_INFINITY {
                    continue;
                }
                truth.largest = truth.largest.max(z.abs());
                let p = (z - lse).exp();
                *mass += weight * p;
                output.iter_mut().zip(&entry.v).for_each(|(o, &v)| *o = entry.added(*o, p, v));
            }
        }
    }
    truth
}

/// -inf where row `t` of head `h` does not see the key.
fn logits(queries: &Queries<'_>, (h, t): (usize, usize), entries: &[Entry]) -> Vec<f64> {
    let p = u64::from(queries.start) + t as u64;
    let sees = |s: u64| s <= p && in_window(queries.window, s, p);
    let capped =
        |z: f64| queries.softcap.map_or(z, |cap| f64::from(cap) * (z / f64::from(cap)).tanh());
    let slope = queries.slopes.map_or(0.0, |slopes| f64::from(slopes[h]));
    let logit = |entry: &Entry| {
        let products = queries.q.row(h, t).iter().zip(&entry.k);
        let dot: f64 = products.map(|(&q, &k)| entry.factor(q) * f64::from(k)).sum();
        let seen = sees(u64::from(entry.position));
        let far = || slope * (p - u64::from(entry.position)) as f64;
        if seen { capped(dot * f64::from(queries.scale)) - far() } else { f64::NEG_INFINITY }
    };
    entries.iter().map(logit).collect()
}

/// A row at `p` sees a key at `s` before it.
fn in_window(window: Option<Window>, s: u64, p: u64) -> bool {
    match window {
        None => true,
        Some(Window::Last(count)) => s + u64::from(count) > p,
        Some(Window::Block(count)) => s / u64::from(count) == p / u64::from(count),
    }
}

fn log_sum_exp(logits: &[f64]) -> f64 {
    let m = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if m == f64::NEG_INFINITY {
        return m;
    }
    m + logits.iter().map(|z| (z - m).exp()).sum::<f64>().ln()
}

/// What row i of a block weighs in the votes, in f64.
pub(super) fn row_weights(ranking: &Ranking, tokens: usize) -> Vec<f64> {
    let decay = f64::from(ranking.decay);
    let weight = |i: usize| {
        let moving =
            if decay == 1.0 { 1.0 } else { (1.0 - decay) * decay.powi((tokens - 1 - i) as i32) };
        let votes = ranking.window == 0 || i + ranking.window >= tokens;
        if votes { moving } else { 0.0 }
    };
    (0..tokens).map(weight).collect()
}

/// One block through one layer: its attention, and what is remembered after it.
pub(super) fn advance(past: &Entries, block: &Block, selection: &Selection) -> (Truth, Entries) {
    let ranking = &selection.ranking;
    let weights = row_weights(ranking, block.tokens());
    let mut keys = joined(past, &entries(&block.keys));
    let truth = attention(&block.queries(), &keys, &weights);
    let fade = f64::from(ranking.decay).powi(block.tokens() as i32);
    let end = block.start + block.tokens() as u32;
    for (head, mass) in keys.iter_mut().zip(&truth.mass) {
        for (entry, mass) in head.iter_mut().zip(mass) {
            // A row votes on the keys that stood before it and on its own.
            let first = entry.position.saturating_sub(block.start) as usize;
            entry.score = entry.score * fade + mass;
            entry.votes = entry.votes * fade + weights[first..].iter().sum::<f64>();
        }
        *head = kept(head, end, selection);
    }
    (truth, keys)
}

/// By one full sort, ascending by position.
pub(super) fn kept(entries: &[Entry], end: u32, selection: &Selection) -> Vec<Entry> {
    let always = |entry: &Entry| {
        let recent = u64::from(entry.position) + u64::from(selection.local) >= u64::from(end);
        selection.keep_all || entry.position < selection.sinks || recent
    };
    let rank = |entry: &Entry| {
        let votes = if selection.ranking.age_normalised { entry.votes.max(1e-30) } else { 1.0 };
        // What the next row does not see, none behind it does.
        let seen = in_window(selection.window, entry.position.into(), end.into());
        if seen { entry.score / votes } else { f64::NEG_INFINITY }
    };
    let (mut kept, mut rest): (Vec<_>, Vec<_>) = entries.iter().cloned().partition(always);
    rest.sort_by(|a, b| rank(b).total_cmp(&rank(a)).then(a.position.cmp(&b.position)));
    kept.extend(rest.into_iter().take(selection.heavy));
    kept.sort_by_key(|entry| entry.position);
    kept
}
