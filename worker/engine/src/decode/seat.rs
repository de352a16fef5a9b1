//! A sequence's place in a batch: its attention of one layer, and what it remembers of all.

use std::sync::Arc;

use aqueduct_kernels::{
    Array, Attended, BackendError, Choice, Heads, Keys, KvData, KvHeads, LayerWeights, MemorySet,
    Qkv, Queries, Recurred, Recurrent, Rows, Scope, Selection,
};

use super::told::Told;
use crate::error::EngineError;
use crate::model::Model;
use crate::port::{LocalPort, MemoryPort};
use crate::prefill::{Step, nothing_spent};
use crate::seen;
use crate::shards::{Asked, Merged, Past};

/// `P` is where it has its memory.
pub(super) struct Seat<'m, P> {
    /// Which of the turns it is.
    pub(super) turn: usize,
    pub(super) step: Step<'m>,
    past: P,
    /// Of every layer with keys so far, what is yet to be selected from.
    seen: Vec<(Arc<MemorySet>, Seen)>,
}

/// The key that a row adds, and what it spent on that and on those before.
struct Seen {
    layer: usize,
    own: Keys,
    past_mass: Array<f32>,
    own_mass: Array<f32>,
}

impl Seen {
    /// Brings all of it to the host, and says whether it is finite.
    fn is_finite(&self) -> Result<bool, BackendError> {
        let all = |array: &Array<f32>| Ok(array.host()?.iter().all(|x| x.is_finite()));
        let all_of = |heads: &KvHeads| match &heads.data {
            KvData::F32(data) => all(data),
            KvData::Bf16(data) => Ok(data.host()?.iter().all(|x| x.is_finite())),
        };
        let Self { own, past_mass, own_mass, .. } = self;
        Ok(all_of(&own.k)? && all_of(&own.v)? && all(past_mass)? && all(own_mass)?)
    }

    fn choice<'s>(&'s self, past: Arc<MemorySet>, selection: &'s Selection) -> Choice<'s> {
        Choice { past, own: &self.own, masses: (&self.past_mass, &self.own_mass), selection }
    }
}

impl<'m, P> Seat<'m, P> {
    pub(super) fn new(turn: usize, step: Step<'m>, past: P) -> Self {
        Self { turn, step, past, seen: Vec::new() }
    }
}

impl Seat<'_, &mut LocalPort> {
    /// What the row looks at.
    fn block<'s>(
        &'s self,
        (idx, layer): (usize, &'s LayerWeights),
        q: &'s Heads,
        keys: (&'s Keys, &'s Keys),
    ) -> (Queries<'s>, Scope<'s>) {
        let scope = self.step.scope(layer, keys, q.tokens);
        let counts = layer.keys_of.is_none() && !self.has_no_use_for_masses();
        let row_weights = match self.past.is_watched() {
            true => Some(self.step.row_weights()), // also where every key is kept anyway
            false => scope.row_weights.filter(|_| counts),
        };
        (self.step.queries(idx, q), Scope { row_weights, ..scope })
    }

    /// Past and own keys that the row saw in layer `idx`.
    fn lent(&self, idx: usize) -> (&Keys, &Keys) {
        let (past, seen) =
            self.seen.iter().find(|(_, seen)| seen.layer == idx).expect("a lender comes before");
        (&past.keys, &seen.own)
    }

    /// Whether all is finite that the row adds to its memory, and what it spent.
    pub(super) fn is_finite(&self) -> Result<bool, BackendError> {
        self.seen.iter().try_fold(true, |good, (_, seen)| Ok(good && seen.is_finite()?))
    }

    /// Selects what is remembered of every layer.
    ///
    /// Once all of them are passed, so that a step takes the threads once for it. A seat ends
    /// before the next one begins, and one that finds too few pages gives all of its own back.
    pub(super) fn remember(&mut self) -> Result<(), EngineError> {
        let (pasts, seen): (Vec<_>, Vec<_>) = std::mem::take(&mut self.seen).into_iter().unzip();
        let of = |(past, seen): (&Arc<MemorySet>, &Seen)| self.kept_of(seen.layer, past, &seen.own);
        let selections: Vec<Selection> = pasts.iter().zip(&seen).map(of).collect();
        let each = pasts.into_iter().zip(&seen).zip(&selections);
        let choices = each.map(|((past, seen), selection)| seen.choice(past, selection)).collect();
        let selected = self.step.model.backend().select_each(choices).into_iter();
        for (seen, selected) in seen.iter().zip(selected.collect::<Result<Vec<_>, _>>()?) {
            self.past.give(seen.layer, Arc::new(selected.memory))?;
        }
        Ok(())
    }

    fn kept_of(&self, idx: usize, past: &MemorySet, own: &Keys) -> Selection {
        self.step.kept_of(idx, past.keys.len() + own.len())
    }

    /// Where some keys go, none is kept for its rank, and nobody goes on from what is left, nobody
    /// would read what a step adds to the scores.
    fn has_no_use_for_masses(&self) -> bool {
        let Selection { keep_all, heavy, .. } = self.step.selection;
        !keep_all && heavy == 0 && !self.past.is_kept()
    }
}

/// What rows make of the sets of layer `idx`, `[1, heads * head_dim]` each.
pub(super) fn attend(
    model: &Model,
    (idx, layer): (usize, &LayerWeights),
    (seats, told): (&mut [Seat<'_, &mut LocalPort>], &mut Told<'_>),
    qkvs: Vec<Qkv>,
) -> Vec<Result<Rows, EngineError>> {
    let pasts: Result<Vec<_>, _> = seats.iter_mut().map(|seat| seat.past.take(idx)).collect();
    let pasts = pasts.expect("a port of this node always has its sets");
    let each = seats.iter().zip(&pasts).zip(&qkvs);
    let blocks: Vec<_> = each
        .map(|((seat, past), qkv)| seat.block((idx, layer), &qkv.q, (&past.keys, &qkv.keys)))
        .collect();
    let attended = model.backend().attend_each(&blocks);
    hear_before_looking(seats, told);
    let rest = seats.iter_mut().zip(pasts).zip(qkvs);
    attended
        .into_iter()
        .zip(rest)
        .map(|(attended, ((seat, past), qkv))| {
            let mut attended = attended?;
            if seat.past.is_watched() {
                let heads = seen::looked((&past.keys, &qkv.keys), &attended)?;
                seat.past.looked(heads);
                if seat.step.selection.keep_all {
                    // As where nobody watches.
                    (attended.past_mass, attended.own_mass) = (vec![].into(), vec![].into());
                }
            }
            let selection = seat.kept_of(idx, &past, &qkv.keys);
            if seat.has_no_use_for_masses() || selection.keep_all != seat.step.selection.keep_all {
                attended.past_mass = nothing_spent(&past.keys);
                attended.own_mass = nothing_spent(&qkv.keys);
            }
            let Attended { output, past_mass, own_mass } = attended;
            seat.seen.push((past, Seen { layer: idx, own: qkv.keys, past_mass, own_mass }));
            Ok(output)
        })
        .collect()
}

/// What rows make of the keys that they saw in layer `lender`, as [`attend`] gives it.
pub(super) fn borrow(
    model: &Model,
    (idx, layer): (usize, &LayerWeights),
    lender: usize,
    (seats, told): (&mut [Seat<'_, &mut LocalPort>], &mut Told<'_>),
    qkvs: &[Qkv],
) -> Vec<Result<Rows, EngineError>> {
    let each = seats.iter().zip(qkvs);
    let blocks: Vec<_> =
        each.map(|(seat, qkv)| seat.block((idx, layer), &qkv.q, seat.lent(lender))).collect();
    let attended = model.backend().attend_each(&blocks);
    hear_before_looking(seats, told);
    let rest = attended.into_iter().zip(seats);
    rest.map(|(attended, seat)| {
        let attended = attended?;
        if seat.past.is_watched() {
            let heads = seen::looked(seat.lent(lender), &attended)?;
            seat.past.looked(heads);
        }
        Ok(attended.output)
    })
    .collect()
}

/// What is looked at is read.
fn hear_before_looking(seats: &[Seat<'_, &mut LocalPort>], told: &mut Told<'_>) {
    if seats.iter().any(|seat| seat.past.is_watched()) {
        told.hear();
    }
}

/// What rows, `[rows, columns]`, and the states of layer `idx` make of each other.
pub(super) fn recur(
    model: &Model,
    (idx, recurrent): (usize, &Recurrent),
    seats: &mut [Seat<'_, &mut LocalPort>],
    columns: &Rows,
) -> Vec<Result<Rows, EngineError>> {
    let taken: Result<Vec<_>, _> = seats.iter_mut().map(|seat| seat.past.take(idx)).collect();
    let mut sets = taken.expect("a port of this node always has its sets");
    let state = |set: &mut Arc<MemorySet>| std::mem::take(&mut Arc::make_mut(set).state);
    let states = sets.iter_mut().map(state).collect();
    let recurred = model.backend().recur_each(recurrent, columns, states);
    let rest = seats.iter_mut().zip(sets);
    recurred
        .into_iter()
        .zip(rest)
        .map(|(recurred, (seat, mut set))| {
            let Recurred { output, state } = recurred?;
            let new = Arc::make_mut(&mut set);
            (new.state, new.end) = (state, seat.step.end());
            seat.past.give(idx, set)?;
            if seat.past.is_watched() {
                seat.past.looked(Vec::new()); // at no key
            }
            Ok(output)
        })
        .collect()
}

impl Seat<'_, Past<'_>> {
    /// Sends round one.
    pub(super) fn ask(&mut self, idx: usize, qkv: Qkv) -> Result<Asked, EngineError> {
        Asked::new(&self.step, idx, qkv, self.past.port)
    }

    /// Waits for round one, and sends round two where there is one.
    fn merge(&mut self, asked: Asked) -> Result<Merged, EngineError> {
        asked.merge(&self.step, self.past.chunks, self.past.port)
    }

    /// Waits for round two; the row's output.
    fn settle(&mut self, Merged { state, weighed, .. }: Merged) -> Result<Rows, EngineError> {
        if let Some(weighed) = weighed {
            weighed.settle(&self.step, self.past.port)?;
        }
        Ok(state.output())
    }

    /// Waits until every holder has settled.
    pub(super) fn settled(&mut self) -> Result<(), EngineError> {
        Ok(self.past.port.finish().map(drop)?)
    }
}

/// What rows make of their shards: each round is sent for all before the first is waited for.
pub(super) fn collect(
    seats: &mut [Seat<'_, Past<'_>>],
    asked: Vec<Result<Asked, EngineError>>,
) -> Vec<Result<Rows, EngineError>> {
    let merge = |(seat, asked): (&mut Seat<'_, Past<'_>>, Result<_, _>)| seat.merge(asked?);
    let merged: Vec<_> = seats.iter_mut().zip(asked).map(merge).collect();
    let settle = |(seat, merged): (&mut Seat<'_, Past<'_>>, Result<_, _>)| seat.settle(merged?);
    seats.iter_mut().zip(merged).map(settle).collect()
}
