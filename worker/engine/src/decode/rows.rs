//! The rows of a batch, from layer to layer: what all of them have in common.

use std::borrow::Cow;
use std::ops::Range;

use aqueduct_kernels::{LayerWeights, Leaves, Qkv, Recurrent, Rows};

use super::seat::{self, Seat};
use super::told::Told;
use super::{Remembered, Turn};
use crate::error::EngineError;
use crate::inputs::LayerInputs;
use crate::model::{LayerAngles, Model};
use crate::port::LocalPort;
use crate::prefill::Step;
use crate::shards::{Asked, Past};

/// The sequences that are still in a step; row i is that of seat i, those with sets first.
pub(super) struct Batch<'m, 'a> {
    model: &'m Model,
    pub(super) sets: Vec<Seat<'m, &'a mut LocalPort>>,
    pub(super) shards: Vec<Seat<'m, Past<'a>>>,
    /// `[rows, width]`.
    x: Rows,
    /// The same as the last layer took them, where the next one takes them so too.
    before: Option<Rows>,
    /// Of the rows' positions.
    angles: LayerAngles<'m>,
    /// What layers take of the rows' tokens, where they take anything.
    inputs: Option<LayerInputs>,
    told: Told<'m>,
    /// What became of every turn.
    done: Vec<Option<Result<Vec<f32>, EngineError>>>,
}

impl<'m, 'a> Batch<'m, 'a> {
    pub(super) fn new(model: &'m Model, turns: Vec<Turn<'a>>) -> Self {
        let mut done: Vec<_> = turns.iter().map(|_| None).collect();
        let (mut sets, mut shards) = (Vec::new(), Vec::new());
        let (mut tokens, mut tokens_of_shards) = (Vec::new(), Vec::new());
        for (idx, Turn { token, position, policy, past }) in turns.into_iter().enumerate() {
            if let Err(refusal) = model.check_token(0, token) {
                done[idx] = Some(Err(refusal.into()));
                continue;
            }
            if let (Remembered::Shards(_), Err(refusal)) = (&past, model.check_shards()) {
                done[idx] = Some(Err(refusal.into()));
                continue;
            }
            let step = |leaves| Step::new(model, (position, 1), policy, leaves);
            match past {
                Remembered::Sets(port, leaves) => {
                    sets.push(Seat::new(idx, step(leaves), port));
                    tokens.push(token);
                }
                Remembered::Shards(past) => {
                    shards.push(Seat::new(idx, step(Leaves::ONE), past)); // of no set
                    tokens_of_shards.push(token);
                }
            }
        }
        tokens.extend(tokens_of_shards);
        let x = Rows::zeros(tokens.len(), model.shape().width as usize);
        let angles = model.angles_at(&[]);
        let told = Told::new(model, tokens.len());
        let (before, inputs) = (None, None);
        let mut batch = Self { model, sets, shards, x, before, angles, inputs, told, done };
        let positions = batch.positions();
        batch.angles = model.angles_at(&positions);
        let embedded = batch.together(|_, rows| {
            let x = model.embed(&tokens[rows.clone()], &positions[rows.clone()])?;
            let inputs = model.inputs(&tokens[rows], &x)?;
            Ok((x, inputs))
        });
        let (x, inputs): (_, Vec<_>) = embedded.into_iter().unzip();
        batch.x = batch.stack(batch.x.cols(), x);
        batch.inputs = LayerInputs::stack(inputs.into_iter().flatten().collect());
        batch
    }

    /// Queries, keys and values of every row in layer `idx`.
    pub(super) fn project(&mut self, (idx, layer): (usize, &LayerWeights)) -> Vec<Qkv> {
        let project = |batch: &Self, rows: Range<usize>| {
            let positions = &batch.positions()[rows.clone()];
            let angles = match rows.len() == batch.x.rows() {
                true => Cow::Borrowed(&batch.angles),
                false => Cow::Owned(batch.model.angles_at(positions)),
            };
            let x = batch.taken().part(rows);
            let angles = angles.of(idx);
            Ok(batch.model.backend().project_each(layer, &x, positions, angles)?)
        };
        let qkvs = self.together(project).into_iter().flatten().collect();
        self.hear_for_shards(); // which take queries to the host
        qkvs
    }

    /// What the rows of sets make of their keys in layer `idx`.
    pub(super) fn attend(
        &mut self,
        layer: (usize, &LayerWeights),
        qkvs: Vec<Qkv>,
    ) -> Vec<Result<Rows, EngineError>> {
        let outputs = seat::attend(self.model, layer, (&mut self.sets, &mut self.told), qkvs);
        self.hear_for_shards(); // whose states come to the host
        outputs
    }

    /// The same where these are keys of layer `lender`.
    pub(super) fn borrow(
        &mut self,
        layer: (usize, &LayerWeights),
        lender: usize,
        qkvs: &[Qkv],
    ) -> Vec<Result<Rows, EngineError>> {
        seat::borrow(self.model, layer, lender, (&mut self.sets, &mut self.told), qkvs)
    }

    /// The same of the rows of shards.
    pub(super) fn collect(
        &mut self,
        asked: Vec<Result<Asked, EngineError>>,
    ) -> Vec<Result<Rows, EngineError>> {
        seat::collect(&mut self.shards, asked)
    }

    fn hear_for_shards(&mut self) {
        if !self.shards.is_empty() {
            self.told.hear();
        }
    }

    /// What every row and its sequence's state make of each other in layer `idx`.
    pub(super) fn recur(
        &mut self,
        (idx, layer): (usize, &LayerWeights),
        recurrent: &Recurrent,
    ) -> Vec<Result<Rows, EngineError>> {
        let mix = |batch: &Self, rows: Range<usize>| {
            Ok(batch.model.backend().mix(layer, &batch.taken().part(rows))?)
        };
        let columns = self.together(mix);
        let columns = self.stack(recurrent.columns(), columns);
        seat::recur(self.model, (idx, recurrent), &mut self.sets, &columns)
    }

    /// The rest of a layer, for rows whose attention, or state, gave `outputs`.
    pub(super) fn finish(
        &mut self,
        (idx, layer): (usize, &LayerWeights),
        outputs: Vec<Result<Rows, EngineError>>,
    ) {
        let attended = layer.spec.heads * layer.spec.head_dim;
        let cols = layer.recurrent.as_ref().map_or(attended, |recurrent| recurrent.outputs());
        let attention = self.part(outputs);
        let attention = self.stack(cols, attention);
        self.before = self.model.is_beside_last(idx + 1).then(|| self.x.clone());
        self.replace(|batch, rows| {
            if rows.len() < batch.x.rows() {
                attention.array().host()?;
            }
            let (x, attention) = (batch.x.part(rows.clone()), attention.part(rows.clone()));
            let input = batch.inputs.as_ref().map(|inputs| inputs.of_layer(idx, rows));
            Ok(batch.model.finish(layer, &x, attention, input)?)
        });
    }

    /// Ends the sequences of which a device has met a number that is not finite, if it has met one:
    /// then everything that a row left is looked at.
    pub(super) fn end_broken(&mut self) {
        let Some(met) = self.told.take() else { return };
        let whole = |row: usize| {
            let hidden = &self.x.array().host()?[row * self.x.cols()..][..self.x.cols()];
            let is_good = hidden.iter().all(|x| x.is_finite())
                && self.sets.get(row).map_or(Ok(true), Seat::is_finite)?;
            if is_good { Ok(()) } else { Err(met.clone().into()) }
        };
        let results = (0..self.x.rows()).map(whole).collect();
        self.part::<()>(results);
    }

    /// Every sequence remembers the step: here, or its holders of shards have settled.
    pub(super) fn remember(&mut self) {
        let of_sets = self.sets.iter_mut().map(Seat::remember);
        let remembered = of_sets.chain(self.shards.iter_mut().map(Seat::settled)).collect();
        self.part(remembered);
    }

    /// What became of every turn.
    pub(super) fn logits(mut self) -> Vec<Result<Vec<f32>, EngineError>> {
        let all = self.together(|batch, rows| {
            let logits = batch.model.logits(&batch.x.part(rows))?;
            logits.array().host()?;
            Ok(logits)
        });
        let each = |logits: Rows| match logits.rows() {
            1 => vec![logits.into_vec()],
            rows => (0..rows).map(|i| logits.row(i).to_vec()).collect(),
        };
        for (row, logits) in all.into_iter().flat_map(each).enumerate() {
            let turn = self.turn(row);
            self.done[turn] = Some(Ok(logits));
        }
        self.done.into_iter().map(|done| done.expect("every turn ends")).collect()
    }

    /// What of the stream the next layer's mixer takes.
    fn taken(&self) -> &Rows {
        self.before.as_ref().unwrap_or(&self.x)
    }

    /// `compute` becomes the rows.
    fn replace(&mut self, compute: impl Fn(&Self, Range<usize>) -> Result<Rows, EngineError>) {
        let rows = self.together(compute);
        self.x = self.stack(self.x.cols(), rows);
    }

    /// `parts`, one below the other, where they lie; where that cannot be, every sequence ends.
    fn stack(&mut self, cols: usize, parts: Vec<Rows>) -> Rows {
        let stacked = self.model.backend().stack(cols, parts);
        stacked.unwrap_or_else(|error| {
            let ended = (0..self.x.rows()).map(|_| Err(error.clone().into())).collect();
            self.part::<()>(ended);
            Rows::zeros(0, cols)
        })
    }

    /// `compute` of all rows at once or, where that fails, of each alone: those with which it
    /// fails then end.
    fn together<T>(
        &mut self,
        compute: impl Fn(&Self, Range<usize>) -> Result<T, EngineError>,
    ) -> Vec<T> {
        let rows = 0..self.x.rows();
        if rows.is_empty() {
            return Vec::new();
        }
        let results = match compute(self, rows.clone()) {
            Err(error) if rows.len() > 1 => {
                if let EngineError::Backend(error) = &error {
                    self.told.note(error);
                }
                self.told.hear();
                rows.map(|row| self.alone(row, &compute)).collect()
            }
            Ok(all) => return vec![all],
            error => vec![error],
        };
        self.part(results)
    }

    /// `compute` of one row, which hears what a device met there.
    fn alone<T>(
        &self,
        row: usize,
        compute: impl Fn(&Self, Range<usize>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.x.array().host()?;
        self.taken().array().host()?;
        let made = compute(self, row..row + 1);
        let sound = self.model.backend().sound();
        let made = made?;
        sound?;
        Ok(made)
    }

    /// What is there of `results`, one for each row. The others end here.
    fn part<T>(&mut self, results: Vec<Result<T, EngineError>>) -> Vec<T> {
        let stays: Vec<bool> = results.iter().map(Result::is_ok).collect();
        let mut kept = Vec::with_capacity(results.len());
        for (row, result) in results.into_iter().enumerate() {
            match result {
                Ok(result) => kept.push(result),
                Err(error) => {
                    let turn = self.turn(row);
                    self.done[turn] = Some(Err(error));
                }
            }
        }
        if kept.len() < stays.len() {
            self.keep(&stays);
        }
        kept
    }

    fn keep(&mut self, stays: &[bool]) {
        let (of_sets, of_shards) = stays.split_at(self.sets.len());
        let mut stay = of_sets.iter();
        self.sets.retain(|_| stay.next() == Some(&true));
        let mut stay = of_shards.iter();
        self.shards.retain(|_| stay.next() == Some(&true));
        self.told.hear();
        self.x.array().host().ok(); // what it may tell was met before
        self.x = self.x.kept(stays);
        if let Some(before) = &mut self.before {
            before.array().host().ok();
            *before = before.kept(stays);
        }
        self.inputs = self.inputs.take().map(|inputs| inputs.kept(stays));
        self.angles = self.model.angles_at(&self.positions());
    }

    fn turn(&self, row: usize) -> usize {
        let of_shards = |row: usize| self.shards[row - self.sets.len()].turn;
        self.sets.get(row).map_or_else(|| of_shards(row), |seat| seat.turn)
    }

    /// Of every row.
    fn positions(&self) -> Vec<u32> {
        let of_sets = self.sets.iter().map(|seat| seat.step.start);
        of_sets.chain(self.shards.iter().map(|seat| seat.step.start)).collect()
    }
}
