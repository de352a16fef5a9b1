//! What a layer takes at its end besides the stream.

use super::layers::Block;
use super::linear::packed;
use super::operands::Elements;
use super::prepare::{Prepare, Then};
use super::{Broken, Cuda};
use crate::backend::BackendError;
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{LayerInput, LayerSpec};

/// See [`crate::MixerOps::take`].
pub(super) fn take(
    cuda: &Cuda,
    spec: &LayerSpec,
    own: &LayerInput,
    [x, input]: [&Rows; 2],
) -> Result<Rows, BackendError> {
    shapes::taking(own, x, input)?;
    let (shared, rows) = (&cuda.shared, x.rows());
    let (gate, up) = (packed("take", shared, &own.gate)?, packed("take", shared, &own.up)?);
    if rows == 0 {
        return Ok(Rows::zeros(0, x.cols()));
    }
    let block = Block { shared, rows, broken: Broken::Take, own: false };
    let (x, input) = (shared.place(x.array())?, shared.place(input.array())?);
    let given = block.prepared(Elements::F32(x.clone()), Prepare::Nothing, gate)?;
    let gates = Elements::F32(block.product(&given, gate).sums()?);
    let hidden = block.prepared(gates, Prepare::GateBeside(spec.activation, &input), up)?;
    let made = block.product(&hidden, up).sums()?;
    let then = Then { residual: Some(&x), scale: own.scale };
    let y = block.normed(cuda, made, (&own.norm, spec.norm_eps), then)?;
    shared.done(Rows::new(rows, up.outputs, y.into_array()))
}
