//! Linear maps, on weights widened to f32.

use std::borrow::Cow;
use std::sync::Arc;

use half::bf16;

use super::logits::dot;
use crate::backend::BackendError;
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{Linear, Matrix, MatrixData};

/// The form this backend packs weights in.
struct Widened {
    /// `[outputs, inputs]`.
    values: Vec<f32>,
    /// Whether what they are multiplied by is rounded to bf16 first.
    is_bf16: bool,
}

/// See [`crate::LayerOps::pack`].
pub(super) fn pack(weight: Matrix, bias: Option<Vec<f32>>) -> Result<Linear, BackendError> {
    shapes::matrix(&weight, bias.as_deref())?;
    let Matrix { outputs, inputs, data } = weight;
    let (values, is_bf16) = match data {
        MatrixData::F32(data) => (data, false),
        MatrixData::Bf16(data) => (data.iter().map(|x| x.to_f32()).collect(), true),
    };
    let bytes = size_of_val(values.as_slice());
    let packed = Arc::new(Widened { values, is_bf16 });
    Ok(Linear { outputs, inputs, bias: bias.map(Arc::from), bytes, packed })
}

fn packed<'a>(op: &'static str, weight: &'a Linear) -> Result<&'a Widened, BackendError> {
    weight.packed.downcast_ref().ok_or(BackendError::ForeignWeight { op })
}

/// `[outputs, inputs]` of a weight that [`pack`] made.
pub(super) fn widened<'a>(op: &'static str, weight: &'a Linear) -> Result<&'a [f32], BackendError> {
    packed(op, weight).map(|packed| packed.values.as_slice())
}

/// See [`crate::LayerOps::linear`]; errors name `op`.
pub(super) fn linear(op: &'static str, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
    shapes::linear(op, x, weight)?;
    let w = packed(op, weight)?;
    let mut y = Rows::zeros(x.rows(), weight.outputs);
    for i in 0..x.rows() {
        let x = w.factor(x.row(i));
        for (o, y) in y.row_mut(i).iter_mut().enumerate() {
            let w = &w.values[o * weight.inputs..(o + 1) * weight.inputs];
            let bias = weight.bias.as_ref().map_or(0.0, |bias| f64::from(bias[o]));
            *y = (dot(&x, w) + bias) as f32;
        }
    }
    shapes::finite(op, "the result of a linear map", y.data())?;
    Ok(y)
}

impl Widened {
    /// A row as it is multiplied.
    fn factor<'x>(&self, row: &'x [f32]) -> Cow<'x, [f32]> {
        if self.is_bf16 {
            row.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
        } else {
            row.into()
        }
    }
}
