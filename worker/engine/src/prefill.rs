//! The spine: one block of tokens through every layer.
//!
//! A prefill chunk, a turn appended to a session and a decode step (one token) are this same
//! function. `give` stands before `finish`, so that whoever waits for the memory of a layer
//! waits for as little as possible.

use std::sync::Arc;

use aqueduct_core::work::{MergeAudit, RetainedMass};
use aqueduct_core::{MemoryPolicy, TokenId};
use aqueduct_kernels::backend::Qkv;
use aqueduct_kernels::{
    Angles, Array, Attended, AttentionState, Heads, LayerWeights, Leaves, MemorySet, Queries,
    Ranking, Recurrent, Rows, Scope, Selected, Selection,
};

use crate::error::EngineError;
use crate::model::Model;
use crate::port::{MemoryPort, beside};

/// Consecutive tokens, and where they stand.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    /// At least one token.
    pub tokens: &'a [TokenId],
    /// Position of the first.
    pub start: u32,
    /// Which keys of a memory set are summed together.
    pub leaves: Leaves,
}

/// Where every key is kept and only the last token's hidden state is wanted, so many of the block's
/// last rows attend in the last layer: enough that every backend computes them as it computes many,
/// so that the bits are those which they have among all.
const LAST_ROWS: usize = 64;

/// Which hidden states the caller has a use for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// None: the block is prefilled for its memory.
    Memory,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

/// What a block leaves besides its memory.
#[derive(Debug, Clone)]
pub struct Prefilled {
    /// `[0, 1 or tokens, width]` hidden states of the last layer, as wanted.
    pub hidden: Rows,
    /// `[2]` of each layer, see [`Selected::retained`](aqueduct_kernels::Selected).
    pub(crate) retained: Vec<Array<f64>>,
    /// Of the layers whose shards came to be audited.
    pub audits: Vec<MergeAudit>,
}

impl Prefilled {
    /// Share of attention mass kept, per layer. Waits for the device, and reads of every layer:
    /// a decode step has no use for it.
    ///
    /// # Errors
    /// What the device could not do.
    pub fn retained(&self) -> Result<Vec<RetainedMass>, EngineError> {
        self.retained.iter().map(retained_mass).collect()
    }
}

/// Sends `block` through every layer: the past comes from `port`, the future goes to it.
///
/// # Errors
/// Tokens outside the vocabulary, what the backend refuses, what the port could not do.
pub fn prefill(
    model: &Model,
    block: Block<'_>,
    policy: &MemoryPolicy,
    port: &mut dyn MemoryPort,
    want: Want,
) -> Result<Prefilled, EngineError> {
    let step = Step::new(model, (block.start, block.tokens.len()), policy, block.leaves);
    let angles = model.angles(block);
    let mut x = model.embed(block.tokens)?;
    let mut retained = Vec::with_capacity(model.layers());
    for (idx, layer) in model.parts.layers.iter().enumerate() {
        let want = step.want_of(idx, want);
        let (next, sums) = match &layer.recurrent {
            Some(recurrent) => {
                let next = step.recur((idx, layer), (recurrent, want), x, port)?;
                (next, Array::from(vec![0.0; 2])) // there is no mass
            }
            None => step.through((idx, layer), (angles.of(idx), want), x, port)?,
        };
        retained.push(sums);
        x = next;
    }
    Ok(Prefilled { hidden: x, retained, audits: Vec::new() })
}

/// What every layer of one block shares.
pub(crate) struct Step<'a> {
    pub(crate) model: &'a Model,
    /// Position of the first token.
    pub(crate) start: u32,
    tokens: usize,
    pub(crate) selection: Selection,
    row_weights: Vec<f32>,
    leaves: Leaves,
}

impl<'a> Step<'a> {
    pub(crate) fn new(
        model: &'a Model,
        (start, tokens): (u32, usize),
        policy: &MemoryPolicy,
        leaves: Leaves,
    ) -> Self {
        let selection = selection_of(policy);
        let row_weights = selection.ranking.row_weights(tokens);
        Self { model, start, tokens, selection, row_weights, leaves }
    }

    /// Position after the block's last token.
    pub(crate) fn end(&self) -> u32 {
        self.start + self.tokens as u32
    }

    /// Of the block's tokens, or of the last of them.
    pub(crate) fn queries<'q>(&self, idx: usize, q: &'q Heads) -> Queries<'q> {
        self.model.queries(idx, q, self.end() - q.tokens as u32)
    }

    /// Which of its hidden states anything comes of in layer `idx`, where the caller has a use for
    /// these of the last one.
    pub(crate) fn want_of(&self, idx: usize, want: Want) -> Want {
        if idx + 1 == self.model.layers() { want } else { Want::All }
    }

    /// How many of the last hidden states that is.
    pub(crate) fn outputs(&self, want: Want) -> usize {
        match want {
            Want::Memory => 0,
            Want::Last => 1,
            Want::All => self.tokens,
        }
    }

    /// Keys and values of all tokens, and the queries that anything comes of: of all where the rows
    /// vote on what is kept.
    pub(crate) fn project(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        angles: &Angles,
        want: Want,
    ) -> Result<Qkv, EngineError> {
        let queries = match want {
            Want::Memory if self.selection.keep_all => 0,
            Want::Last if self.selection.keep_all => self.tokens.min(LAST_ROWS),
            _ => self.tokens,
        };
        Ok(self.model.backend().project(layer, x, (self.start, angles), queries)?)
    }

    /// A layer with keys: the rows behind it, and [`Selected::retained`].
    fn through(
        &self,
        (idx, layer): (usize, &LayerWeights),
        (angles, want): (&Angles, Want),
        x: Rows,
        port: &mut dyn MemoryPort,
    ) -> Result<(Rows, Array<f64>), EngineError> {
        let qkv = beside(port, || self.project(layer, &x, angles, want))?;
        let own = match port.is_ready(idx) || qkv.q.tokens == 0 {
            true => None,
            // While the past is still on its way.
            false => Some(beside(port, || self.attend_own(idx, &qkv))?),
        };
        let past = port.take(idx)?; // the previous chunk's memory set
        let attended = beside(port, || self.attend((idx, layer), (&qkv, want), &past, own))?;
        let selected = self.select(past, &qkv, &attended)?;
        port.give(idx, Arc::new(selected.memory))?;
        let x = beside(port, || self.finish(layer, x, attended.output))?;
        Ok((x, selected.retained))
    }

    /// A layer with a state: the rows behind it.
    fn recur(
        &self,
        (idx, layer): (usize, &LayerWeights),
        (recurrent, want): (&Recurrent, Want),
        x: Rows,
        port: &mut dyn MemoryPort,
    ) -> Result<Rows, EngineError> {
        let backend = self.model.backend();
        let columns = beside(port, || backend.mix(layer, &x))?;
        let mut memory = port.take(idx)?;
        let state = std::mem::take(&mut Arc::make_mut(&mut memory).state);
        let recurred = beside(port, || {
            let recurred = backend.recur(recurrent, &columns, state)?;
            Ok::<_, EngineError>((recurred.state, recurred.output.of_last(self.outputs(want))?))
        });
        drop(columns); // large, and of no use to what follows
        let (state, output) = recurred?;
        let set = Arc::make_mut(&mut memory);
        (set.state, set.end) = (state, self.end());
        port.give(idx, memory)?;
        beside(port, || self.finish(layer, x, output))
    }

    /// Past and own keys, with masses unless every key is kept anyway.
    pub(crate) fn scope<'s>(
        &'s self,
        layer: &'s LayerWeights,
        past: &'s MemorySet,
        qkv: &'s Qkv,
        want: Want,
    ) -> Scope<'s> {
        let row_weights = (!self.selection.keep_all).then_some(self.row_weights.as_slice());
        let (past, own, leaves) = (&past.keys, &qkv.keys, self.leaves);
        let (sinks, outputs) = (layer.sinks.as_ref(), self.outputs(want));
        // A gate multiplies what is not rounded yet.
        let rounded = layer.out.rounds && layer.gate.is_none();
        Scope { past, leaves, own, row_weights, sinks, outputs, rounded }
    }

    fn attend_own(&self, idx: usize, qkv: &Qkv) -> Result<AttentionState, EngineError> {
        Ok(self.model.backend().attend(self.queries(idx, &qkv.q), &qkv.keys)?)
    }

    /// Over past and own keys, in one pass unless `own` was attended before.
    fn attend(
        &self,
        (idx, layer): (usize, &LayerWeights),
        (qkv, want): (&Qkv, Want),
        past: &MemorySet,
        own: Option<AttentionState>,
    ) -> Result<Attended, EngineError> {
        let (backend, queries) = (self.model.backend(), self.queries(idx, &qkv.q));
        let scope = self.scope(layer, past, qkv, want);
        Ok(match own {
            None => backend.attend_all(queries, scope)?,
            Some(own) => backend.attend_rest(queries, scope, &own)?,
        })
    }

    pub(crate) fn select(
        &self,
        past: Arc<MemorySet>,
        qkv: &Qkv,
        attended: &Attended,
    ) -> Result<Selected, EngineError> {
        let masses = (&attended.past_mass, &attended.own_mass);
        Ok(self.model.backend().select(past, &qkv.keys, masses, &self.selection)?)
    }

    /// The rest of the layer, of the last tokens, whose rows of attention these are.
    pub(crate) fn finish(
        &self,
        layer: &LayerWeights,
        x: Rows,
        output: Rows,
    ) -> Result<Rows, EngineError> {
        let (backend, x) = (self.model.backend(), x.of_last(output.rows())?);
        match x.rows() {
            0 => Ok(x),
            _ => Ok(backend.finish(layer, &x, &backend.gate(layer, &x, output)?)?),
        }
    }
}

/// `[kept, total]` of a layer.
fn retained_mass(sums: &Array<f64>) -> Result<RetainedMass, EngineError> {
    let sums = sums.host()?;
    Ok(RetainedMass { kept: sums[0], total: sums[1] })
}

/// A policy in the kernels' words.
pub fn selection_of(policy: &MemoryPolicy) -> Selection {
    Selection {
        keep_all: policy.keeps_all(),
        sinks: policy.sinks,
        local: policy.local,
        heavy: policy.heavy as usize,
        ranking: Ranking {
            decay: policy.scoring.decay,
            window: policy.scoring.window as usize,
            age_normalised: policy.scoring.age_normalised,
        },
    }
}
