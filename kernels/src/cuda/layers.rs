//! Everything of a layer that is not attention. Rows stay on the device, in the form in which the
//! next weight multiplies them.

use std::sync::Arc;

use half::bf16;

use super::device::Launch;
use super::linear::{Packed, Product, packed};
use super::params::layers::{EmbedParams, HeadsParams};
use super::prepare::{Factor, Form, Prepare, Source, Unprepared, scale_stride};
use super::resident::{OnDevice, Rounded};
use super::{Broken, Cuda, Shared};
use crate::array::{Array, Resident};
use crate::backend::{BackendError, Qkv};
use crate::memory::Keys;
use crate::shapes;
use crate::tensor::{Heads, KvData, KvDtype, KvHeads, Rows};
use crate::weights::{Angles, LayerSpec, LayerWeights, Linear};

/// Heads that a block of a kernel turns: a warp each.
const WARPS: usize = 8;

/// See [`crate::LayerOps::linear`].
pub(super) fn linear(cuda: &Cuda, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
    shapes::linear("linear", x, weight)?;
    let weight = packed("linear", &cuda.shared, weight)?;
    if x.rows() == 0 {
        return Ok(Rows::zeros(0, weight.outputs));
    }
    let x = Argument { rows: x.rows(), source: x.array(), prepare: Prepare::Nothing };
    let y = x.through(weight, Broken::Linear, None)?;
    cuda.shared.done(y)
}

/// What is multiplied: rows, and what is done to them first.
struct Argument<'a> {
    rows: usize,
    source: &'a Array<f32>,
    prepare: Prepare<'a>,
}
