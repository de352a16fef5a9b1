//! The spine: one block of tokens through every layer.
//!
//! A prefill chunk, a turn appended to a session and a decode step (one token) are this same
//! function. `give` stands before `finish`, so that whoever waits for the memory of a layer
//! waits for as little as possible.

use std::borrow::Cow;
use std::sync::Arc;

use aqueduct_core::work::{MergeAudit, RetainedMass};
use aqueduct_core::{MemoryPolicy, TokenId};
use aqueduct_kernels::backend::Qkv;
use aqueduct_kernels::{
    Angles, Array, Attended, AttentionState, Heads, Keys, LayerWeights, Leaves, MemorySet, Queries,
    Ranking, Recurrent, Rows, Scope, Selected, Selection, Window,
};

use crate::error::EngineError;
use crate::inputs::LayerInputs;
use crate::model::{LayerAngles, Model};
use crate::port::{MemoryPort, beside};
use crate::want::Want;

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
    let mut x = model.embed_block(block)?;
    let inputs = model.inputs(block.tokens, &x)?;
    let first_lender = model.first_lender().filter(|_| want != Want::Memory);
    let (angles, lent) = (model.angles(block), Vec::new());
    let no_mass = || Array::from(vec![0.0; 2]);
    let retained = (0..model.layers()).map(|_| no_mass()).collect();
    let mut spine = Spine { step, angles, inputs, first_lender, lent, retained, port };
    let mut before = None; // the stream as the last layer took it, where the next one takes it too
    for (idx, layer) in model.parts.layers.iter().enumerate() {
        let outputs = spine.step.outputs(idx, want);
        if layer.keys_of.is_some() && outputs == 0 {
            break; // nothing comes of the others either
        }
        let taken = before.as_ref().unwrap_or(&x);
        let output = match (&layer.recurrent, layer.keys_of) {
            (_, Some(lender)) => spine.borrow((idx, layer), lender, taken, outputs)?,
            (Some(recurrent), _) => spine.recur((idx, layer), recurrent, taken, outputs)?,
            (None, None) => spine.through((idx, layer), taken, outputs)?,
        };
        before = model.is_beside_last(idx + 1).then(|| x.clone());
        let Spine { step, inputs, port, .. } = &mut spine;
        x = beside(*port, || step.finish((idx, layer), inputs.as_ref(), x, output))?;
    }
    spine.give_lent()?;
    let hidden = want.of(x)?;
    Ok(Prefilled { hidden, retained: spine.retained, audits: Vec::new() })
}

/// A block under way.
struct Spine<'a, 'p> {
    step: Step<'a>,
    angles: LayerAngles<'a>,
    inputs: Option<LayerInputs>,
    /// The first layer to whose keys a later one will attend.
    first_lender: Option<usize>,
    /// What layers from that one on have seen, ascending. It is selected from in the end: a copy
    /// for later layers would take as much memory again.
    lent: Vec<Seen>,
    /// See [`Prefilled::retained`].
    retained: Vec<Array<f64>>,
    port: &'p mut dyn MemoryPort,
}

/// What a layer's rows have seen and spent.
struct Seen {
    layer: usize,
    past: Arc<MemorySet>,
    own: Keys,
    past_mass: Array<f32>,
    own_mass: Array<f32>,
}

/// What every layer of one block shares.
pub(crate) struct Step<'a> {
    pub(crate) model: &'a Model,
    /// Position of the first token.
    pub(crate) start: u32,
    pub(crate) tokens: usize,
    /// But for what rows see in a layer: see [`selection_in`](Self::selection_in).
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
        let selection = selection_of(policy, None);
        let row_weights = selection.ranking.row_weights(tokens);
        Self { model, start, tokens, selection, row_weights, leaves }
    }

    /// What is kept in layer `idx`.
    pub(crate) fn selection_in(&self, idx: usize) -> Selection {
        Selection { window: self.model.window(idx), ..self.selection }
    }

    /// What layer `idx` keeps of so many keys, remembered and own: where none are given up for
    /// their rank, those go that no row to come sees.
    pub(crate) fn kept_of(&self, idx: usize, keys: usize) -> Selection {
        let selection = self.selection_in(idx);
        let local = self.end() - selection.first_seen(self.end()).min(self.end());
        match selection.keep_all && (local as usize) < keys {
            true => Selection { keep_all: false, sinks: 0, local, heavy: 0, ..selection },
            false => selection,
        }
    }

    /// Position after the block's last token.
    pub(crate) fn end(&self) -> u32 {
        self.start + self.tokens as u32
    }

    /// Of the block's tokens, or of the last of them.
    pub(crate) fn queries<'q>(&self, idx: usize, q: &'q Heads) -> Queries<'q>
    where
        'a: 'q,
    {
        self.model.queries(idx, q, self.end() - q.tokens as u32)
    }

    /// Keys and values of all tokens, and the queries that anything comes of: of all where the rows
    /// vote on what is kept.
    pub(crate) fn project(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        angles: &Angles,
        outputs: usize,
    ) -> Result<Qkv, EngineError> {
        let queries = match outputs {
            0 if self.selection.keep_all => 0,
            some if self.selection.keep_all => some.max(self.last_rows()),
            _ => self.tokens,
        };
        Ok(self.model.backend().project(layer, x, (self.start, angles), queries)?)
    }

    /// What each row's attention counts for in what is spent on keys.
    pub(crate) fn row_weights(&self) -> &[f32] {
        &self.row_weights
    }

    /// Past and own keys, with masses unless every key is kept anyway.
    pub(crate) fn scope<'s>(
        &'s self,
        layer: &'s LayerWeights,
        (past, own): (&'s Keys, &'s Keys),
        outputs: usize,
    ) -> Scope<'s> {
        let row_weights = (!self.selection.keep_all).then_some(self.row_weights.as_slice());
        let (sinks, leaves) = (layer.sinks.as_ref(), self.leaves);
        // Gates and norms take what is not rounded yet.
        let is_last = layer.gate.is_none() && layer.out_norm.is_none();
        let rounded = layer.out.rounds && is_last;
        Scope { past, leaves, own, row_weights, sinks, outputs, rounded }
    }

    fn attend_own(&self, idx: usize, qkv: &Qkv) -> Result<AttentionState, EngineError> {
        Ok(self.model.backend().attend(self.queries(idx, &qkv.q), &qkv.keys)?)
    }

    /// Over past and own keys, in one pass unless `own` was attended before.
    fn attend(
        &self,
        (idx, layer): (usize, &LayerWeights),
        (qkv, outputs): (&Qkv, usize),
        past: &MemorySet,
        own: Option<AttentionState>,
    ) -> Result<Attended, EngineError> {
        let (backend, queries) = (self.model.backend(), self.queries(idx, &qkv.q));
        let scope = self.scope(layer, (&past.keys, &qkv.keys), outputs);
        Ok(match own {
            None => backend.attend_all(queries, scope)?,
            Some(own) => backend.attend_rest(queries, scope, &own)?,
        })
    }

    fn select(&self, seen: Seen) -> Result<Selected, EngineError> {
        let Seen { layer, past, own, mut past_mass, mut own_mass } = seen;
        let selection = self.kept_of(layer, past.keys.len() + own.len());
        if selection.keep_all != self.selection.keep_all {
            // Nobody counted.
            (past_mass, own_mass) = (nothing_spent(&past.keys), nothing_spent(&own));
        }
        Ok(self.model.backend().select(past, &own, (&past_mass, &own_mass), &selection)?)
    }

    /// The rest of layer `idx`, of the last tokens, whose rows of attention these are.
    pub(crate) fn finish(
        &self,
        (idx, layer): (usize, &LayerWeights),
        inputs: Option<&LayerInputs>,
        x: Rows,
        output: Rows,
    ) -> Result<Rows, EngineError> {
        let x = x.of_last(output.rows())?;
        if x.rows() == 0 {
            return Ok(x);
        }
        let input = inputs.map(|inputs| inputs.of_last(idx, x.rows()));
        Ok(self.model.finish(layer, &x, Cow::Owned(output), input)?)
    }
}

impl Spine<'_, '_> {
    /// A layer with keys: what attention gives, of its last `outputs` rows.
    fn through(
        &mut self,
        (idx, layer): (usize, &LayerWeights),
        x: &Rows,
        outputs: usize,
    ) -> Result<Rows, EngineError> {
        let Self { step, port, .. } = self;
        let angles = self.angles.of(idx);
        let qkv = beside(*port, || step.project(layer, x, angles, outputs))?;
        let own = match port.is_ready(idx) || qkv.q.tokens == 0 {
            true => None,
            // While the past is still on its way.
            false => Some(beside(*port, || step.attend_own(idx, &qkv))?),
        };
        let past = port.take(idx)?; // the previous chunk's memory set
        let Attended { output, past_mass, own_mass } =
            beside(*port, || step.attend((idx, layer), (&qkv, outputs), &past, own))?;
        let seen = Seen { layer: idx, past, own: qkv.keys, past_mass, own_mass };
        match self.first_lender {
            Some(first) if idx >= first => self.lent.push(seen),
            _ => self.give(seen)?,
        }
        Ok(output)
    }

    /// What a layer remembers after the block, of what it has seen.
    fn give(&mut self, seen: Seen) -> Result<(), EngineError> {
        let layer = seen.layer;
        let Selected { memory, retained } = self.step.select(seen)?;
        self.retained[layer] = retained;
        Ok(self.port.give(layer, Arc::new(memory))?)
    }

    /// The same of all that have waited.
    fn give_lent(&mut self) -> Result<(), EngineError> {
        std::mem::take(&mut self.lent).into_iter().try_for_each(|seen| self.give(seen))
    }

    /// A layer that attends to what an earlier one has seen, with its last rows, which are all that
    /// there are: what attention gives.
    fn borrow(
        &mut self,
        (idx, layer): (usize, &LayerWeights),
        lender: usize,
        x: &Rows,
        outputs: usize,
    ) -> Result<Rows, EngineError> {
        let Self { step, port, .. } = self;
        let seen = self.lent.iter().find(|seen| seen.layer == lender);
        let Seen { past, own, .. } = seen.expect("a lender comes before");
        let (backend, start) = (step.model.backend(), step.end() - x.rows() as u32);
        let angles = self.angles.of(idx).last(x.rows());
        let output = beside(*port, || {
            let q = backend.project(layer, x, (start, &angles), x.rows())?.q;
            let scope = step.scope(layer, (&past.keys, own), outputs);
            let scope = Scope { row_weights: None, ..scope }; // nothing is kept for them
            backend.attend_all(step.queries(idx, &q), scope)
        });
        Ok(output?.output)
    }

    /// A layer with a state: what that gives, of the last `outputs` rows.
    fn recur(
        &mut self,
        (idx, layer): (usize, &LayerWeights),
        recurrent: &Recurrent,
        x: &Rows,
        outputs: usize,
    ) -> Result<Rows, EngineError> {
        let Self { step, port, .. } = self;
        let backend = step.model.backend();
        let columns = beside(*port, || backend.mix(layer, x))?;
        let mut memory = port.take(idx)?;
        let state = std::mem::take(&mut Arc::make_mut(&mut memory).state);
        let recurred = beside(*port, || {
            let recurred = backend.recur(recurrent, &columns, state)?;
            Ok::<_, EngineError>((recurred.state, recurred.output.of_last(outputs)?))
        });
        drop(columns); // large, and of no use to what follows
        let (state, output) = recurred?;
        let set = Arc::make_mut(&mut memory);
        (set.state, set.end) = (state, step.end());
        port.give(idx, memory)?;
        Ok(output)
    }
}

/// Of keys that are not kept for what is spent on them.
pub(crate) fn nothing_spent(keys: &Keys) -> Array<f32> {
    vec![0.0; keys.positions.len()].into()
}

/// `[kept, total]` of a layer.
fn retained_mass(sums: &Array<f64>) -> Result<RetainedMass, EngineError> {
    let sums = sums.host()?;
    Ok(RetainedMass { kept: sums[0], total: sums[1] })
}

/// A policy in the kernels' words, for a layer whose rows see no further than `window`.
pub fn selection_of(policy: &MemoryPolicy, window: Option<Window>) -> Selection {
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
        window,
    }
}
