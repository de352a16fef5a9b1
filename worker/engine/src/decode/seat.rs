//! A sequence's place in a batch: its attention of one layer.

use std::sync::Arc;

use aqueduct_kernels::{LayerWeights, MemorySet, Qkv, Queries, Rows, Scope};

use crate::error::EngineError;
use crate::model::Model;
use crate::port::{LocalPort, MemoryPort};
use crate::prefill::{Step, Want};
use crate::seen;
use crate::shards::{Asked, Merged, Past};

/// `P` is where it has its memory.
pub(super) struct Seat<'m, P> {
    /// Which of the turns it is.
    pub(super) turn: usize,
    pub(super) step: Step<'m>,
    past: P,
}

impl<'m, P> Seat<'m, P> {
    pub(super) fn new(turn: usize, step: Step<'m>, past: P) -> Self {
        Self { turn, step, past }
    }
}

impl Seat<'_, &mut LocalPort> {
    /// What the row looks at.
    fn block<'s>(
        &'s self,
        idx: usize,
        layer: &LayerWeights,
        past: &'s MemorySet,
        qkv: &'s Qkv,
    ) -> (Queries<'s>, Scope<'s>) {
        let scope = self.step.scope(layer, past, qkv, Want::All);
        let row_weights =
            scope.row_weights.filter(|_| !self.has_no_use_for_masses() || self.past.is_watched());
        (self.step.queries(idx, &qkv.q), Scope { row_weights, ..scope })
    }

    /// Where some keys go, and none is kept for its rank, nobody would read what a step adds to
    /// the scores.
    fn has_no_use_for_masses(&self) -> bool {
        !self.step.selection.keep_all && self.step.selection.heavy == 0
    }
}

/// What rows make of the sets of layer `idx`, `[1, heads * head_dim]` each, and what is
/// remembered after them.
pub(super) fn attend(
    model: &Model,
    (idx, layer): (usize, &LayerWeights),
    seats: &mut [Seat<'_, &mut LocalPort>],
    qkvs: &[Qkv],
) -> Vec<Result<Rows, EngineError>> {
    let pasts: Result<Vec<_>, _> = seats.iter_mut().map(|seat| seat.past.take(idx)).collect();
    let pasts = pasts.expect("a port of this node always has its sets");
    let each = seats.iter().zip(&pasts).zip(qkvs);
    let blocks: Vec<_> =
        each.map(|((seat, past), qkv)| seat.block(idx, layer, past, qkv)).collect();
    let attended = model.backend().attend_each(&blocks);
    let rest = seats.iter_mut().zip(pasts).zip(qkvs);
    attended
        .into_iter()
        .zip(rest)
        .map(|(attended, ((seat, past), qkv))| {
            let mut attended = attended?;
            if seat.past.is_watched() {
                let heads = seen::looked(&past, qkv, &attended)?;
                seat.past.looked(heads);
            }
            if seat.has_no_use_for_masses() {
                attended.past_mass = vec![0.0; past.keys.positions.len()].into();
                attended.own_mass = vec![0.0; qkv.keys.positions.len()].into();
            }
            let selected = seat.step.select(past, qkv, &attended)?;
            seat.past.give(idx, Arc::new(selected.memory))?;
            Ok(attended.output)
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
    pub(super) fn finish(&mut self) -> Result<(), EngineError> {
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
