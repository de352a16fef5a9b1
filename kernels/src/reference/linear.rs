//! Linear maps: weights widened to f32, or integers as they are.

use std::sync::Arc;

use half::bf16;

use super::logits::dot;
use crate::backend::BackendError;
use crate::int8::{GROUP, Int8Rows};
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{Linear, Matrix, MatrixData};

/// The form this backend packs weights in: `[outputs, inputs]`.
enum Packed {
    F32(Vec<f32>),
    /// Widened; what they are multiplied by is rounded to bf16 first.
    Bf16(Vec<f32>),
    Int8(Int8Rows),
}

/// See [`crate::LayerOps::pack`].
pub(super) fn pack(weight: Matrix, bias: Option<Vec<f32>>) -> Result<Linear, BackendError> {
    shapes::matrix(&weight, bias.as_deref())?;
    let Matrix { outputs, inputs, data } = weight;
    let packed = match data {
        MatrixData::F32(data) => Packed::F32(data),
        MatrixData::Bf16(data) => Packed::Bf16(data.iter().map(|x| x.to_f32()).collect()),
        MatrixData::Int8(data) => Packed::Int8(data),
    };
    let bytes = match &packed {
        Packed::F32(values) | Packed::Bf16(values) => size_of_val(values.as_slice()),
        Packed::Int8(data) => data.bytes(),
    };
    let packed = Arc::new(packed);
    let rounds = matches!(*packed, Packed::Bf16(_));
    Ok(Linear { outputs, inputs, bias: bias.map(Arc::from), rounds, bytes, packed })
}

fn packed<'a>(op: &'static str, weight: &'a Linear) -> Result<&'a Packed, BackendError> {
    weight.packed.downcast_ref().ok_or(BackendError::ForeignWeight { op })
}

/// Row `output` of a weight that [`pack`] made, widened.
pub(super) fn read(
    op: &'static str,
    weight: &Linear,
    output: usize,
    to: &mut [f32],
) -> Result<(), BackendError> {
    match packed(op, weight)? {
        Packed::F32(data) | Packed::Bf16(data) => {
            to.copy_from_slice(&data[output * to.len()..][..to.len()])
        }
        Packed::Int8(data) => data.read(output, to),
    }
    Ok(())
}

/// See [`crate::LayerOps::linear`]; errors name `op`.
pub(super) fn linear(op: &'static str, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
    shapes::linear(op, x, weight)?;
    let packed = packed(op, weight)?;
    let mut y = Rows::zeros(x.rows(), weight.outputs);
    for i in 0..x.rows() {
        let product = packed.product(x.row(i));
        for (o, y) in y.row_mut(i).iter_mut().enumerate() {
            let bias = weight.bias.as_ref().map_or(0.0, |bias| f64::from(bias[o]));
            *y = (product(o) + bias) as f32;
        }
    }
    shapes::finite(op, "the result of a linear map", y.data())?;
    Ok(y)
}

impl Packed {
    /// `x`, in the form in which it is multiplied, times any row of the weight.
    fn product<'a>(&'a self, x: &'a [f32]) -> Box<dyn Fn(usize) -> f64 + 'a> {
        let inputs = x.len();
        let row = move |w: &'a [f32], o: usize| &w[o * inputs..(o + 1) * inputs];
        match self {
            Self::F32(w) => Box::new(move |o| dot(x, row(w, o))),
            Self::Bf16(w) => {
                let x: Vec<f32> = x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
                Box::new(move |o| dot(&x, row(w, o)))
            }
            Self::Int8(w) => {
                let x = Int8Rows::from_f32(x, inputs);
                Box::new(move |o| integer_dot(&x, w, o, inputs))
            }
        }
    }
}

/// The one row of `x` times row `o` of `w`: integers inside a group, f64 over groups.
fn integer_dot(x: &Int8Rows, w: &Int8Rows, o: usize, inputs: usize) -> f64 {
    let groups = inputs.div_ceil(GROUP);
    let w_groups = w.q[o * inputs..][..inputs].chunks(GROUP);
    let scales = x.scales.iter().zip(&w.scales[o * groups..][..groups]);
    let mut sum = 0.0;
    for ((x, w), (&x_scale, &w_scale)) in x.q.chunks(GROUP).zip(w_groups).zip(scales) {
        let products = x.iter().zip(w).map(|(&x, &w)| i32::from(x) * i32::from(w));
        sum += f64::from(products.sum::<i32>()) * f64::from(x_scale) * f64::from(w_scale);
    }
    sum
}
