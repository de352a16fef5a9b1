//! Rows in the form in which a weight multiplies them.

use std::sync::Arc;

use half::bf16;

use super::device::Launch;
use super::operands::Elements;
use super::params::layers::PrepareParams;
use super::resident::OnDevice;
use super::{Broken, Shared};
use crate::backend::BackendError;
use crate::int8::GROUP;
use crate::weights::{Activation, Ungated, Xielu};

/// Rows that a block of a kernel prepares in groups: a warp each.
const WARPS: usize = 8;

/// What both factors of a product are held as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    F32,
    Bf16,
    Int8,
}

impl Form {
    /// Elements from one row of `columns` to the next: 16 bytes at a time, but for f32, which
    /// other operations read too.
    pub(super) fn stride(self, columns: usize) -> usize {
        match self {
            Self::F32 => columns,
            Self::Bf16 => columns.next_multiple_of(8),
            Self::Int8 => columns.next_multiple_of(16),
        }
    }
}

/// Scales of each group for so many rows; 16 bytes at a time.
pub(super) fn scale_stride(rows: usize) -> usize {
    rows.next_multiple_of(4)
}

/// One factor of a product: `[rows, stride]`, zeros beside the columns.
pub(super) enum Factor {
    F32(OnDevice<f32>),
    Bf16(OnDevice<bf16>),
    /// Scales are `[groups, scale_stride]`.
    Int8 {
        q: OnDevice<i8>,
        scales: OnDevice<f32>,
    },
}

impl Factor {
    /// Room for `rows` of `columns`.
    pub(super) fn room(
        shared: &Arc<Shared>,
        form: Form,
        (rows, columns): (usize, usize),
    ) -> Result<Self, BackendError> {
        let elements = rows * form.stride(columns);
        Ok(match form {
            Form::F32 => Self::F32(OnDevice::room(shared, elements)?),
            Form::Bf16 => Self::Bf16(OnDevice::room(shared, elements)?),
            Form::Int8 => Self::Int8 {
                q: OnDevice::room(shared, elements)?,
                scales: OnDevice::room(shared, columns.div_ceil(GROUP) * scale_stride(rows))?,
            },
        })
    }

    pub(super) fn form(&self) -> Form {
        match self {
            Self::F32(_) => Form::F32,
            Self::Bf16(_) => Form::Bf16,
            Self::Int8 { .. } => Form::Int8,
        }
    }

    /// Of the elements, and of the scales or null.
    pub(super) fn addresses(&self) -> (u64, u64) {
        match self {
            Self::F32(data) => (data.address(), 0),
            Self::Bf16(data) => (data.address(), 0),
            Self::Int8 { q, scales } => (q.address(), scales.address()),
        }
    }

    /// Bytes on the device.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::F32(data) => data.len() * size_of::<f32>(),
            Self::Bf16(data) => data.len() * size_of::<bf16>(),
            Self::Int8 { q, scales } => q.len() + scales.len() * size_of::<f32>(),
        }
    }
}

/// What kernels call it.
pub(super) fn activation_code(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::ClampedSilu => 2,
        Activation::ReluSquared => 4,
        Activation::Ungated(Ungated::GeluTanh) => 1,
        Activation::Ungated(Ungated::Gelu) => 3,
        Activation::Ungated(Ungated::ReluSquared) => 4,
        Activation::Ungated(Ungated::Xielu(_)) => 5,
        Activation::Ungated(Ungated::Relu) => 6,
    }
}

/// What is done to every row first.
#[derive(Clone, Copy)]
pub(super) enum Prepare<'a> {
    /// Nothing.
    Nothing,
    /// RMS norm with `weight`, `[columns]`; the rows are f32.
    Norm { weight: &'a OnDevice<f32>, eps: f32, then: Then<'a> },
    /// `[2 columns]` f32, gate first, to activation(gate) * up; `[columns]`, up alone, to
    /// activation(up) where there is no gate.
    Gate(Activation),
    /// `[columns]` f32 gates to activation(gate) times rows like them.
    GateBeside(Activation, &'a OnDevice<f32>),
    /// f32 rows times a number.
    Scale(f32),
}

/// What becomes of rows that were normed.
#[derive(Clone, Copy, Default)]
pub(super) struct Then<'a> {
    /// Added to them: rows like them.
    pub(super) residual: Option<&'a OnDevice<f32>>,
    /// What they are multiplied by behind that.
    pub(super) scale: Option<f32>,
}

impl<'a> Then<'a> {
    /// Added to `residual`.
    pub(super) fn add(residual: &'a OnDevice<f32>) -> Self {
        Self { residual: Some(residual), scale: None }
    }
}

impl<'a> Prepare<'a> {
    /// A norm, if there is one, and nothing added.
    pub(super) fn norm(weight: Option<&'a OnDevice<f32>>, eps: f32) -> Self {
        weight.map_or(Self::Nothing, |weight| Self::Norm { weight, eps, then: Then::default() })
    }
}

/// Rows to be prepared.
pub(super) struct Unprepared<'a> {
    pub(super) source: Elements,
    pub(super) rows: usize,
    /// Of the result.
    pub(super) columns: usize,
    pub(super) prepare: Prepare<'a>,
    /// Who is told of rows that are not finite.
    pub(super) broken: Option<Broken>,
}

impl Unprepared<'_> {
    /// The rows in `form`; as they are where they have it.
    pub(super) fn into_form(
        self,
        shared: &Arc<Shared>,
        form: Form,
    ) -> Result<Factor, BackendError> {
        if self.kernel(form).is_none() {
            return Ok(match self.source {
                Elements::F32(data) => Factor::F32(data),
                Elements::Bf16(data) => Factor::Bf16(data),
            });
        }
        let made = Factor::room(shared, form, (self.rows, self.columns))?;
        self.write(shared, &made)?;
        Ok(made)
    }

    /// `None` where nothing is to be done.
    fn kernel(&self, form: Form) -> Option<&'static str> {
        Some(match (self.prepare, &self.source, form) {
            (Prepare::Nothing, Elements::F32(_), Form::F32) => return None,
            (Prepare::Nothing, Elements::F32(_), Form::Bf16) => "round_f32",
            (Prepare::Nothing, Elements::F32(_), Form::Int8) => "quantise_f32",
            (Prepare::Nothing, Elements::Bf16(_), Form::F32) => "widen_bf16",
            (Prepare::Nothing, Elements::Bf16(_), Form::Bf16) => {
                if form.stride(self.columns) == self.columns {
                    return None;
                }
                "round_bf16"
            }
            (Prepare::Nothing, Elements::Bf16(_), Form::Int8) => "quantise_bf16",
            (Prepare::Norm { .. }, _, Form::F32) => "norm_f32",
            (Prepare::Norm { .. }, _, Form::Bf16) => "norm_bf16",
            (Prepare::Norm { .. }, _, Form::Int8) => "norm_int8",
            (Prepare::Gate(Activation::Ungated(_)), _, Form::F32) => "curve_f32",
            (Prepare::Gate(Activation::Ungated(_)), _, Form::Bf16) => "curve_bf16",
            (Prepare::Gate(Activation::Ungated(_)), _, Form::Int8) => "curve_int8",
            (Prepare::Gate(_) | Prepare::GateBeside(..), _, Form::F32) => "gate_f32",
            (Prepare::Gate(_) | Prepare::GateBeside(..), _, Form::Bf16) => "gate_bf16",
            (Prepare::Gate(_) | Prepare::GateBeside(..), _, Form::Int8) => "gate_int8",
            (Prepare::Scale(_), _, _) => "scale_f32",
        })
    }

    /// Writes them to `made`, unless they lie there as they are.
    pub(super) fn write(&self, shared: &Shared, made: &Factor) -> Result<(), BackendError> {
        let Some(kernel) = self.kernel(made.form()) else { return Ok(()) };
        let (y, scales) = made.addresses();
        let residual = |rows: Option<&OnDevice<f32>>| rows.map_or(0, OnDevice::address);
        let (norm, residual, eps, factor) = match self.prepare {
            Prepare::Norm { weight, eps, then } => {
                (weight.address(), residual(then.residual), eps, then.scale.unwrap_or(1.0))
            }
            Prepare::GateBeside(_, rows) => (0, residual(Some(rows)), 0.0, 1.0),
            Prepare::Scale(factor) => (0, 0, 0.0, factor),
            Prepare::Nothing | Prepare::Gate(_) => (0, 0, 0.0, 1.0),
        };
        let activation = match self.prepare {
            Prepare::Gate(activation) | Prepare::GateBeside(activation, _) => {
                activation_code(activation)
            }
            _ => 0,
        };
        let (eps, [positive, negative, beta]) = match self.prepare {
            Prepare::Gate(Activation::Ungated(Ungated::Xielu(xielu))) => {
                let Xielu { positive, negative, beta, eps } = xielu;
                (eps, [positive, negative, beta])
            }
            _ => (eps, [0.0; 3]),
        };
        let blocks = match self.prepare {
            Prepare::Norm { .. } => self.rows,
            _ => (self.rows * self.columns.div_ceil(GROUP)).div_ceil(WARPS),
        };
        let params = PrepareParams {
            x: self.source.address(),
            norm,
            residual,
            y,
            scales,
            broken: self.broken.map_or(0, |_| shared.broken_at()),
            rows: self.rows as u32,
            columns: self.columns as u32,
            y_stride: made.form().stride(self.columns) as u32,
            scale_stride: scale_stride(self.rows) as u32,
            eps,
            code: self.broken.map_or(0, |broken| broken as u32),
            activation,
            positive,
            negative,
            beta,
            factor,
            unused: 0,
        };
        shared.run(&Launch {
            kernel,
            grid: [blocks as u32, 1, 1],
            threads: 32 * WARPS as u32,
            shared_bytes: WARPS * size_of::<f32>(),
            params: bytemuck::bytes_of(&params),
        })
    }
}

/// Reports to `broken` if an element of `rows`, `[rows, columns]`, is not finite.
pub(super) fn check_finite(
    shared: &Shared,
    rows: &OnDevice<f32>,
    columns: usize,
    broken: Broken,
) -> Result<(), BackendError> {
    let count = rows.len() / columns.max(1);
    let params = PrepareParams {
        x: rows.address(),
        norm: 0,
        residual: 0,
        y: 0,
        scales: 0,
        broken: shared.broken_at(),
        rows: count as u32,
        columns: columns as u32,
        y_stride: 0,
        scale_stride: 0,
        eps: 0.0,
        code: broken as u32,
        activation: 0,
        positive: 0.0,
        negative: 0.0,
        beta: 0.0,
        factor: 1.0,
        unused: 0,
    };
    shared.run(&Launch {
        kernel: "check_f32",
        grid: [(count * columns.div_ceil(GROUP)).div_ceil(WARPS) as u32, 1, 1],
        threads: 32 * WARPS as u32,
        shared_bytes: 0,
        params: bytemuck::bytes_of(&params),
    })
}
