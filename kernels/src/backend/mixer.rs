//! What some layers have besides attention over keys, or instead of it.

use super::{BackendError, LayerOps};
use crate::array::Array;
use crate::recurrent::{Recurred, Recurrent};
use crate::reference::{gate, gated, recur};
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{LayerInput, LayerWeights, Linear};

/// Gates behind attention, layers that remember in a state of fixed size, and how what rows of a
/// batch were given alone comes together. What is given here
/// reads on the host what a device made; a backend that has kernels for it does better.
pub trait MixerOps: LayerOps {
    /// The norm before a recurrent layer and its first product: `[tokens, width]` ->
    /// `[tokens, columns]`, of [`Recurrent::columns`].
    fn mix(&self, layer: &LayerWeights, x: &Rows) -> Result<Rows, BackendError> {
        shapes::mixing(layer, x)?;
        normed_product(self, layer, (x, &layer.qkv))
    }

    /// What the rows of a block, `[tokens, columns]`, and the state before it make of each other.
    /// The bits are the same wherever blocks are cut.
    fn recur(
        &self,
        recurrent: &Recurrent,
        columns: &Rows,
        state: Array<f32>,
    ) -> Result<Recurred, BackendError> {
        recur_on_host(recurrent, columns, state)
    }

    /// The same where each row is a block of its own, with a state of its own.
    fn recur_each(
        &self,
        recurrent: &Recurrent,
        columns: &Rows,
        states: Vec<Array<f32>>,
    ) -> Vec<Result<Recurred, BackendError>> {
        let row = |(i, state)| {
            shapes::at_most("recur", "states", i + 1, columns.rows())?;
            columns.array().host()?;
            self.recur(recurrent, &columns.part(i..i + 1), state)
        };
        states.into_iter().enumerate().map(row).collect()
    }

    /// The rows of `parts`, all of `cols` columns, one below the other, where the backend has them.
    ///
    /// # Panics
    /// As [`Rows::stack`] does.
    fn stack(&self, cols: usize, parts: Vec<Rows>) -> Result<Rows, BackendError> {
        if parts.len() != 1 {
            parts.iter().try_for_each(|part| part.array().host().map(drop))?;
        }
        Ok(Rows::stack(cols, parts))
    }

    /// What attention gave, `[tokens, H D]`, times σ of what the layer's gate makes of the normed
    /// `x`; as it is where the layer has none.
    fn gate(&self, layer: &LayerWeights, x: &Rows, attention: Rows) -> Result<Rows, BackendError> {
        let Some(weight) = &layer.gate else { return Ok(attention) };
        shapes::gating(layer, x, &attention)?;
        let gates = normed_product(self, layer, (x, weight))?;
        gates.array().host()?;
        attention.array().host()?;
        Ok(gate(&gates, attention))
    }

    /// The stream behind a layer, `[tokens, width]`, with what comes of the layer's own numbers,
    /// `[tokens, inputs]`: see [`LayerInput`]. The bits of a row do not depend on those beside it.
    fn take(
        &self,
        layer: &LayerWeights,
        own: &LayerInput,
        x: &Rows,
        input: &Rows,
    ) -> Result<Rows, BackendError> {
        shapes::taking(own, x, input)?;
        let gates = self.linear(x, &own.gate)?;
        gates.array().host()?;
        input.array().host()?;
        let made = self.linear(&gated(&gates, input, layer.spec.activation), &own.up)?;
        let mut y = self.norm(&made, &own.norm, layer.spec.norm_eps);
        y.array().host()?;
        x.array().host()?;
        let scale = own.scale.unwrap_or(1.0);
        y.data_mut().iter_mut().zip(x.data()).for_each(|(y, x)| *y = (*y + x) * scale);
        Ok(y)
    }
}

/// `x`, normed where the layer does that, through `weight`.
fn normed_product(
    backend: &(impl LayerOps + ?Sized),
    layer: &LayerWeights,
    (x, weight): (&Rows, &Linear),
) -> Result<Rows, BackendError> {
    match &layer.attn_norm {
        Some(norm) => backend.linear(&backend.norm(x, norm, layer.spec.norm_eps), weight),
        None => backend.linear(x, weight),
    }
}

/// What [`MixerOps::recur`] is where a backend does no better.
pub(crate) fn recur_on_host(
    recurrent: &Recurrent,
    columns: &Rows,
    state: Array<f32>,
) -> Result<Recurred, BackendError> {
    shapes::recurring(recurrent, columns, &state)?;
    columns.array().host()?;
    state.host()?;
    let recurred = recur(recurrent, columns, state);
    shapes::finite("recur", "a state", &recurred.state)?;
    Ok(recurred)
}
