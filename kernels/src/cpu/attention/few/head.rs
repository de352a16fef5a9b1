//! One KV head of a block that looks at past and own keys, and where its results go.

use std::mem::MaybeUninit;

use super::merge::{Merged, spend};
use super::part::Seen;
use super::{Look, PART, finite};
use crate::backend::{Attended, BackendError, Queries, Scope};
use crate::cpu::attention::side::Wanted;
use crate::cpu::attention::sides;
use crate::cpu::isa::Isa;
use crate::cpu::unwritten::{unwritten, written};
use crate::memory::{LeafKeys, Split};
use crate::shapes;
use crate::state::{lse, merge_row};
use crate::tensor::Rows;
use crate::window::Window;

/// What becomes of a block: of each array every KV head's part is one piece.
pub(super) struct Results {
    tokens: usize,
    kv_heads: usize,
    /// `[kv_heads, tokens, R D]`.
    output: Vec<MaybeUninit<f32>>,
    /// `[kv_heads, past keys]`, or empty.
    past_mass: Vec<MaybeUninit<f32>>,
    /// `[kv_heads, own keys]`, or empty.
    own_mass: Vec<MaybeUninit<f32>>,
}

impl Results {
    pub(super) fn new((queries, scope): &(Queries<'_>, Scope<'_>)) -> Self {
        let q = queries.q;
        let masses = |keys: usize| unwritten(if scope.row_weights.is_some() { keys } else { 0 });
        Self {
            tokens: q.tokens,
            kv_heads: scope.own.kv_heads(),
            output: unwritten(q.tokens * q.heads * q.head_dim),
            past_mass: masses(scope.past.positions.len()),
            own_mass: masses(scope.own.positions.len()),
        }
    }

    /// Where those of every KV head go.
    pub(super) fn places(&mut self) -> impl Iterator<Item = Place<'_>> {
        let masses = each_head(&mut self.past_mass, self.kv_heads)
            .zip(each_head(&mut self.own_mass, self.kv_heads));
        let places = each_head(&mut self.output, self.kv_heads).zip(masses);
        places.map(|(output, (past_mass, own_mass))| Place { output, past_mass, own_mass })
    }

    /// # Safety
    /// All places were [cleared](Place::clear).
    pub(super) unsafe fn attended(self) -> Attended {
        let Self { tokens, kv_heads, output, past_mass, own_mass } = self;
        // SAFETY: places cover the arrays, and the caller's.
        let [output, past_mass, own_mass] =
            [output, past_mass, own_mass].map(|all| unsafe { written(all) });
        let columns = output.len() / (tokens * kv_heads);
        let output = match tokens {
            1 => Rows::from_vec(1, kv_heads * columns, output),
            _ => {
                let mut rows = Rows::zeros(tokens, kv_heads * columns);
                for (i, from) in output.chunks_exact(columns).enumerate() {
                    let (g, t) = (i / tokens, i % tokens);
                    rows.row_mut(t)[g * columns..][..columns].copy_from_slice(from);
                }
                rows
            }
        };
        Attended { output, past_mass: past_mass.into(), own_mass: own_mass.into() }
    }
}

/// `[kv_heads, any]` head by head.
pub(super) fn each_head<T>(mut all: &mut [T], kv_heads: usize) -> impl Iterator<Item = &mut [T]> {
    let size = all.len() / kv_heads;
    (0..kv_heads).map(move |_| {
        let (head, rest) = std::mem::take(&mut all).split_at_mut(size);
        all = rest;
        head
    })
}

/// Where the results of a KV head go.
pub(super) struct Place<'a> {
    /// `[tokens, R D]`.
    output: &'a mut [MaybeUninit<f32>],
    /// `[past keys]`, or empty.
    past_mass: &'a mut [MaybeUninit<f32>],
    /// `[own keys]`, or empty.
    own_mass: &'a mut [MaybeUninit<f32>],
}

impl<'a> Place<'a> {
    /// All zero: output, past and own masses. By who writes them next, as lines of the cache that
    /// another thread has written have to come from there.
    fn clear(self) -> [&'a mut [f32]; 3] {
        [self.output, self.past_mass, self.own_mass].map(|all| {
            all.fill(MaybeUninit::new(0.0));
            // SAFETY: all of them were written just now.
            unsafe { all.assume_init_mut() }
        })
    }
}

/// One KV head of one of several blocks.
pub(super) struct Head<'a> {
    /// Which of the blocks.
    pub(super) block: usize,
    pub(super) queries: &'a Queries<'a>,
    pub(super) scope: &'a Scope<'a>,
    pub(super) g: usize,
    pub(super) place: Place<'a>,
}

impl<'a> Head<'a> {
    /// Whether its rows see no more keys than a task has.
    pub(super) fn has_few_keys(&self) -> bool {
        let Self { queries, scope: Scope { past, own, .. }, .. } = self;
        let keys = past.len() + own.len();
        let most = queries
            .window
            .map_or(keys, |(Window::Last(most) | Window::Block(most))| most as usize + own.len());
        keys.min(most) <= PART
    }

    /// Its keys of the past leaf by leaf, if several leaves have some.
    pub(super) fn split(&self) -> Option<Split> {
        self.scope.past.split_head(self.g, self.scope.leaves)
    }

    /// Its rows before all keys, of which `sides` are the parts.
    pub(super) fn look<'s>(&self, sides: &'s [LeafKeys<'s>]) -> Look<'s>
    where
        'a: 's,
    {
        let wanted = Wanted { o: true, p: self.scope.row_weights.is_some() };
        Look { queries: self.queries, sides, g: self.g, wanted }
    }

    /// All of it, by one thread.
    ///
    /// # Errors
    /// What is not finite.
    pub(super) fn run(self, isa: Isa, leaves: &[(usize, usize)]) -> Result<(), BackendError> {
        let split = self.split();
        let sides = sides(self.scope, split.as_ref());
        let seen = self.look(&sides).tasks().into_iter().map(|task| isa.run(task)).collect();
        self.end(isa, leaves, &sides, seen)
    }

    /// From all that its rows saw, parts ascending.
    ///
    /// # Errors
    /// What is not finite.
    pub(super) fn end(
        self,
        isa: Isa,
        leaves: &[(usize, usize)],
        sides: &[LeafKeys<'_>],
        mut seen: Vec<Seen>,
    ) -> Result<(), BackendError> {
        let Self { queries, scope: Scope { row_weights, sinks, .. }, g, place, .. } = self;
        let [output, past_mass, own_mass] = place.clear();
        finite(&seen)?;
        let own = sides.len() - 1;
        let leaves = if own > 1 { leaves } else { &[] };
        let merges = leaves.iter().copied().chain([(0, own)]);
        let Some(mut merged) = Merged::new(&mut seen, merges) else { return Ok(()) };
        let (tokens, head_dim) = (queries.q.tokens, queries.q.head_dim);
        let columns = output.len() / tokens;
        let nothing = vec![0.0; if sinks.is_some() { head_dim } else { 0 }];
        for row in 0..merged.rows {
            let to = row % tokens * columns + row / tokens * head_dim;
            let to = &mut output[to..to + head_dim];
            merged.put(row, to);
            let (m, l) = (&mut merged.m[row], &mut merged.l[row]);
            if let Some(sinks) = sinks {
                let sink = sinks[(g * columns / head_dim) + row / tokens];
                merge_row((m, l, to), (sink, 1.0, &nothing));
            }
            match *l > 0.0 {
                true => to.iter_mut().for_each(|o| *o /= *l),
                false => to.fill(0.0),
            }
        }
        if let Some(row_weights) = row_weights {
            let (mut all, rows) = (merged.m, merged.rows);
            all.iter_mut().zip(merged.l).for_each(|(m, l)| *m = lse(*m, l));
            let masses = &mut [past_mass, own_mass];
            spend(isa, (g, sides), &seen, (&all[..rows], row_weights), masses);
            for masses in masses {
                shapes::finite("weigh", "a column mass", masses)?;
            }
        }
        Ok(())
    }
}
