//! Linear maps, on weights widened to f32.

use std::sync::Arc;

use super::logits::dot;
use crate::backend::BackendError;
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{Linear, Matrix, MatrixData};

/// `[outputs, inputs]` f32: the form this backend packs weights in.
struct Widened(Vec<f32>);

/// See [`crate::LayerOps::pack`].
pub(super) fn pack(weight: Matrix, bias: Option<Vec<f32>>) -> Result<Linear, BackendError> {
    shapes::matrix(&weight, bias.as_deref())?;
    let Matrix { outputs, inputs, data } = weight;
    let widened = match data {
        MatrixData::F32(data) => data,
        MatrixData::Bf16(data) => data.iter().map(|x| x.to_f32()).collect(),
    };
    let bytes = size_of_val(widened.as_slice());
    let packed = Arc::new(Widened(widened));
    Ok(Linear { outputs, inputs, bias: bias.map(Arc::from), bytes, packed })
}

/// `[outputs, inputs]` of a weight that [`pack`] made.
pub(super) fn widened<'a>(op: &'static str, weight: &'a Linear) -> Result<&'a [f32], BackendError> {
    let packed = weight.packed.downcast_ref::<Widened>();
    packed.map(|widened| widened.0.as_slice()).ok_or(BackendError::ForeignWeight { op })
}

/// See [`crate::LayerOps::linear`]; errors name `op`.
pub(super) fn linear(op: &'static str, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
    shapes::linear(op, x, weight)?;
    let w = widened(op, weight)?;
    let mut y = Rows::zeros(x.rows(), weight.outputs);
    for i in 0..x.rows() {
        for (o, y) in y.row_mut(i).iter_mut().enumerate() {
            let w = &w[o * weight.inputs..(o + 1) * weight.inputs];
            let bias = weight.bias.as_ref().map_or(0.0, |bias| f64::from(bias[o]));
            *y = (dot(x.row(i), w) + bias) as f32;
        }
    }
    shapes::finite(op, "the result of a linear map", y.data())?;
    Ok(y)
}
