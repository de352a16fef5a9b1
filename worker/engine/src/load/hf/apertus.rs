//! Apertus' activations, of which every layer has its own.

use super::super::checkpoint::{Checkpoint, Stored};
use super::super::decoder::{Decoder, xielu};
use crate::error::LoadError;

/// What files without them mean.
const BETA: f32 = 0.5;
const EPS: f32 = -1e-6;

/// Takes those of all layers from their tensors.
///
/// # Errors
/// Parameters that are missing, or more than one number.
pub(super) fn activations(
    checkpoint: &Checkpoint<'_>,
    decoder: &mut Decoder,
) -> Result<(), LoadError> {
    for (layer, activation) in decoder.activations.iter_mut().enumerate() {
        let name = |part| format!("model.layers.{layer}.mlp.act_fn.{part}");
        let read = |part| number(checkpoint, &name(part), &[1]);
        let or = |part, usual| match checkpoint.tensors.contains_key(&name(part)) {
            true => number(checkpoint, &name(part), &[]),
            false => Ok(usual),
        };
        *activation =
            xielu([read("alpha_p")?, read("alpha_n")?, or("beta", BETA)?, or("eps", EPS)?]);
    }
    Ok(())
}

fn number(checkpoint: &Checkpoint<'_>, name: &str, shape: &[usize]) -> Result<f32, LoadError> {
    let tensor: &Stored<'_> = checkpoint.find(name, shape)?;
    Ok(tensor.f32(name)?[0])
}
