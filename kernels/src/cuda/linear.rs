//! Weights on a device, and what they make of rows.

use std::sync::Arc;

use half::bf16;

use super::device::Launch;
use super::gemm;
use super::operands::Elements;
use super::params::layers::LinearParams;
use super::prepare::{
    Factor, Form, Prepare, Unprepared, activation_code, check_finite, scale_stride,
};
use super::resident::OnDevice;
use super::{Broken, Shared};
use crate::backend::BackendError;
use crate::int8::{GROUP, Int8Rows};
use crate::shapes;
use crate::weights::{Activation, Linear, Matrix, MatrixData};

/// A weight on a device.
pub(super) struct Packed {
    shared: Arc<Shared>,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    /// `[outputs, inputs]`.
    pub(super) weight: Factor,
    /// `[outputs]`.
    bias: Option<OnDevice<f32>>,
}

/// See [`crate::LayerOps::pack`].
pub(super) fn pack(
    shared: &Arc<Shared>,
    matrix: &Matrix,
    bias: Option<Vec<f32>>,
) -> Result<Linear, BackendError> {
    shapes::matrix(matrix, bias.as_deref())?;
    let &Matrix { outputs, inputs, ref data } = matrix;
    let weight = match data {
        MatrixData::F32(data) => Factor::F32(OnDevice::of(shared, data)?),
        MatrixData::Bf16(data) => Factor::Bf16(padded(shared, data, inputs, Form::Bf16)?),
        MatrixData::Int8(Int8Rows { q, scales }) => Factor::Int8 {
            q: padded(shared, q, inputs, Form::Int8)?,
            scales: OnDevice::of(shared, &by_group(scales, outputs))?,
        },
    };
    let on_device = bias.as_ref().map(|bias| OnDevice::of(shared, bias)).transpose()?;
    let packed = Packed { shared: shared.clone(), outputs, inputs, weight, bias: on_device };
    Ok(packed.into_linear(bias))
}

/// A weight whose elements `make` makes, as many as it is told.
pub(super) fn bf16_on_device(
    shared: &Arc<Shared>,
    (outputs, inputs): (usize, usize),
    make: impl FnOnce(usize) -> Result<OnDevice<bf16>, BackendError>,
) -> Result<Linear, BackendError> {
    let stride = Form::Bf16.stride(inputs);
    shapes::at_most("pack", "padded inputs", stride, inputs)?;
    let weight = Factor::Bf16(make(outputs * stride)?);
    let packed = Packed { shared: shared.clone(), outputs, inputs, weight, bias: None };
    Ok(packed.into_linear(None))
}

impl Packed {
    fn into_linear(self, bias: Option<Vec<f32>>) -> Linear {
        let (outputs, inputs, bytes) = (self.outputs, self.inputs, self.weight.bytes());
        let rounds = self.weight.form() == Form::Bf16;
        let bias = bias.map(Arc::from);
        Linear { outputs, inputs, bias, rounds, bytes, packed: Arc::new(self) }
    }
}

/// Rows of `inputs` on the device, with zeros up to the form's stride.
fn padded<T: bytemuck::Pod + Send + Sync>(
    shared: &Arc<Shared>,
    data: &[T],
    inputs: usize,
    form: Form,
) -> Result<OnDevice<T>, BackendError> {
    let stride = form.stride(inputs);
    if stride == inputs {
        return OnDevice::of(shared, data);
    }
    let mut wide = vec![T::zeroed(); data.len() / inputs * stride];
    for (to, from) in wide.chunks_exact_mut(stride).zip(data.chunks_exact(inputs)) {
        to[..inputs].copy_from_slice(from);
    }
    OnDevice::of(shared, &wide)
}

/// `[outputs, groups]` as `[groups, scale_stride]`.
fn by_group(scales: &[f32], outputs: usize) -> Vec<f32> {
    let (groups, stride) = (scales.len() / outputs.max(1), scale_stride(outputs));
    let mut turned = vec![0.0; groups * stride];
    for (output, scales) in scales.chunks_exact(groups.max(1)).enumerate() {
        for (group, &scale) in scales.iter().enumerate() {
            turned[group * stride + output] = scale;
        }
    }
    turned
}

/// What [`pack`] made for this device.
pub(super) fn packed<'a>(
    op: &'static str,
    shared: &Arc<Shared>,
    weight: &'a Linear,
) -> Result<&'a Packed, BackendError> {
    let packed: Option<&Packed> = weight.packed.downcast_ref();
    packed.filter(|it| Arc::ptr_eq(&it.shared, shared)).ok_or(BackendError::ForeignWeight { op })
}

/// Rows through a weight.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    /// Who is told of sums that are not finite.
    pub(super) broken: Broken,
    /// At least one.
    pub(super) rows: usize,
    /// In the weight's form.
    pub(super) x: &'a Factor,
    pub(super) weight: &'a Packed,
    /// `[rows, outputs]`.
    pub(super) residual: Option<&'a OnDevice<f32>>,
    /// Of gates.
    pub(super) activation: Activation,
    /// By our kernels alone, of which a row has the same bits among any others. A library chooses
    /// by how many rows there are, and would measure every number of rows that comes.
    pub(super) own: bool,
}

impl Product<'_> {
    /// x Wᵀ + bias + residual, `[rows, outputs]`.
    pub(super) fn sums(&self) -> Result<OnDevice<f32>, BackendError> {
        let (shared, outputs) = (&self.weight.shared, self.weight.outputs);
        let y = OnDevice::room(shared, self.rows * outputs)?;
        if self.by_library(&y)? {
            return Ok(y);
        }
        let params = self.params(y.address(), (outputs, outputs), false);
        self.launch(&params, false)?;
        Ok(y)
    }

    /// Whether [`gated`](Self::gated) can do it, and is the best that there is.
    pub(super) fn gates(&self) -> bool {
        if self.activation.projections() == 1 {
            return false; // what follows is read from the sums
        }
        let outputs = self.weight.outputs;
        match self.weight.weight.form() {
            Form::F32 => false,
            Form::Bf16 => self.library(0).is_none(),
            // Scales of gate and up are copied four at a time.
            Form::Int8 => outputs.is_multiple_of(8),
        }
    }

    /// activation(gate) * up of the sums, `[rows, outputs / 2]` in `form`.
    pub(super) fn gated(&self, form: Form) -> Result<Factor, BackendError> {
        let (shared, rows, columns) = (&self.weight.shared, self.rows, self.weight.outputs / 2);
        if form == Form::Bf16 {
            let y = OnDevice::room(shared, rows * form.stride(columns))?;
            self.launch(&self.params(y.address(), (columns, form.stride(columns)), true), true)?;
            return Ok(Factor::Bf16(y));
        }
        let y = OnDevice::room(shared, rows * columns)?;
        self.launch(&self.params(y.address(), (columns, columns), false), true)?;
        let (source, prepare) = (Elements::F32(y), Prepare::Nothing);
        Unprepared { source, rows, columns, prepare, broken: None }.into_form(shared, form)
    }

    fn params(&self, y: u64, (outputs, y_stride): (usize, usize), rounds: bool) -> LinearParams {
        let Packed { shared, inputs, weight, bias, .. } = self.weight;
        let (x, x_scales) = self.x.addresses();
        let (w, w_scales) = weight.addresses();
        let stride = weight.form().stride(*inputs) as u32;
        LinearParams {
            x,
            w,
            x_scales,
            w_scales,
            bias: bias.as_ref().map_or(0, OnDevice::address),
            residual: self.residual.map_or(0, OnDevice::address),
            y,
            broken: shared.broken_at(),
            rows: self.rows as u32,
            outputs: outputs as u32,
            inputs: *inputs as u32,
            x_stride: stride,
            w_stride: stride,
            y_stride: y_stride as u32,
            x_scale_stride: scale_stride(self.rows) as u32,
            w_scale_stride: scale_stride(self.weight.outputs) as u32,
            rounds: rounds.into(),
            code: self.broken as u32,
            activation: activation_code(self.activation),
            unused: 0,
        }
    }

    fn launch(&self, params: &LinearParams, gated: bool) -> Result<(), BackendError> {
        let kernel = Kernel::of(self.weight.weight.form(), self.rows, gated);
        let rows = params.rows.div_ceil(kernel.rows);
        let columns = params.outputs.div_ceil(kernel.outputs);
        self.weight.shared.run(&Launch {
            kernel: kernel.name,
            grid: [rows * columns, 1, 1],
            threads: kernel.threads,
            shared_bytes: kernel.shared_bytes,
            params: bytemuck::bytes_of(params),
        })
    }

    /// Leaves the product to a library where there is one that takes it.
    fn by_library(&self, y: &OnDevice<f32>) -> Result<bool, BackendError> {
        let shared = &self.weight.shared;
        let Some((library, product)) = self.library(y.address()) else { return Ok(false) };
        if !library.multiply(&product) {
            return Ok(false);
        }
        // Inside a layer, whatever reads the sums next looks at them.
        if self.broken == Broken::Linear || shared.options.checked {
            check_finite(shared, y, self.weight.outputs, self.broken)?;
        }
        Ok(true)
    }

    fn library(&self, out: u64) -> Option<(&dyn gemm::GemmLibrary, gemm::Product)> {
        let Packed { shared, outputs, inputs, weight, bias } = self.weight;
        let (Factor::Bf16(x), Factor::Bf16(weight), false) = (self.x, weight, self.own) else {
            return None;
        };
        let product = gemm::Product {
            rows: self.rows,
            inputs: *inputs,
            outputs: *outputs,
            x: x.address(),
            weight: weight.address(),
            bias: bias.as_ref().map(OnDevice::address),
            residual: self.residual.map(OnDevice::address),
            out,
        };
        shared.gemm_library().filter(|_| product.fits()).map(|library| (library, product))
    }
}

/// A kernel of `linear.cu` or `int8.cu`: its tile, and what it is launched with.
struct Kernel {
    name: &'static str,
    rows: u32,
    outputs: u32,
    threads: u32,
    shared_bytes: usize,
}

impl Kernel {
    fn of(form: Form, rows: usize, gated: bool) -> Self {
        let name = |plain, with_gate| if gated { with_gate } else { plain };
        let parts = if gated { 2 } else { 1 };
        let wide = |name, threads, shared_bytes| Self {
            name,
            rows: 128,
            outputs: 128 / parts,
            threads,
            shared_bytes,
        };
        let few = |name, rows: u32, stages: usize, scales: usize| {
            let lines = rows as usize + 32 * parts as usize;
            let shared_bytes = stages * lines * (16 * 16 + scales * size_of::<f32>());
            Self { name, rows, outputs: 32, threads: 128, shared_bytes }
        };
        match (form, rows) {
            (Form::F32, ..=16) => Self::f32("linear_f32_16", 16),
            (Form::F32, _) => Self::f32("linear_f32", 64),
            (Form::Bf16, ..=16) => {
                few(name("linear_bf16_16", "gate_up_bf16_16"), 16, if gated { 4 } else { 6 }, 0)
            }
            (Form::Bf16, ..=64) => {
                few(name("linear_bf16_64", "gate_up_bf16_64"), 64, if gated { 3 } else { 4 }, 0)
            }
            (Form::Bf16, _) => wide(name("linear_bf16", "gate_up_bf16"), 128, 4 * 2 * 128 * 64),
            (Form::Int8, ..=16) => {
                few(name("linear_int8_16", "gate_up_int8_16"), 16, if gated { 4 } else { 6 }, 2)
            }
            (Form::Int8, ..=64) => {
                few(name("linear_int8_64", "gate_up_int8_64"), 64, if gated { 3 } else { 4 }, 2)
            }
            (Form::Int8, _) => {
                wide(name("linear_int8", "gate_up_int8"), 256, 3 * 2 * 128 * (GROUP + 4))
            }
        }
    }

    fn f32(name: &'static str, rows: u32) -> Self {
        let shared_bytes = 16 * (rows as usize + 4 + 64 + 4) * size_of::<f32>();
        Self { name, rows, outputs: 64, threads: 256, shared_bytes }
    }
}

#[cfg(all(test, feature = "cuda-emulator", target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use std::sync::Mutex;

    use half::bf16;

    use super::*;
    use crate::backend::LayerOps;
    use crate::cuda::emulated::Emulated;
    use crate::cuda::{Cuda, CudaOptions};
    use crate::tensor::Rows;

    /// Notes what it is asked, and multiplies nothing.
    struct Notes(Arc<Mutex<Vec<gemm::Product>>>);

    impl gemm::GemmLibrary for Notes {
        /// Takes no bias beside a residual.
        fn multiply(&self, product: &gemm::Product) -> bool {
            self.0.lock().unwrap().push(*product);
            product.bias.is_none() || product.residual.is_none()
        }
    }

    fn with_library() -> (Cuda, Arc<Mutex<Vec<gemm::Product>>>) {
        let (device, asked) = (Box::new(Emulated::new(90).unwrap()), Arc::default());
        let mut shared = Shared::new(device, CudaOptions::default()).unwrap();
        shared.library = Some(Box::new(Notes(Arc::clone(&asked))));
        (Cuda::new(shared), asked)
    }

    #[test]
    fn a_library_gets_what_it_takes_and_is_looked_after() {
        let (cuda, asked) = with_library();
        let data = MatrixData::Bf16(vec![bf16::ONE; 16 * 8]);
        let matrix = Matrix { outputs: 16, inputs: 8, data };
        let packed = cuda.pack(matrix, Some(vec![1.0; 16])).unwrap();
        let linear = |rows: usize| {
            let x = Rows::from_vec(rows, 8, vec![1.0; rows * 8]);
            cuda.linear(&x, &packed).unwrap()
        };
        assert_eq!(linear(gemm::LIBRARY_ROWS_MIN - 1).row(0), [9.0; 16]);
        let unwritten = linear(gemm::LIBRARY_ROWS_MIN);
        let read = unwritten.array().host();
        assert!(matches!(read, Err(BackendError::NotFinite { op: "linear", .. })), "{read:?}");
        let asked = asked.lock().unwrap();
        let shapes: Vec<_> = asked.iter().map(|it| (it.rows, it.inputs, it.outputs)).collect();
        assert_eq!(shapes, [(gemm::LIBRARY_ROWS_MIN, 8, 16)]);
        assert!(asked[0].bias.is_some() && asked[0].residual.is_none());
    }

    #[test]
    fn what_a_library_does_not_take_is_multiplied_all_the_same() {
        let (cuda, asked) = with_library();
        let data = MatrixData::Bf16(vec![bf16::ONE; 16 * 8]);
        let matrix = Matrix { outputs: 16, inputs: 8, data };
        let packed = cuda.pack(matrix, Some(vec![1.0; 16])).unwrap();
        let rows = gemm::LIBRARY_ROWS_MIN;
        let x = Rows::from_vec(rows, 8, vec![1.0; rows * 8]);
        let residual = Rows::from_vec(rows, 16, vec![0.5; rows * 16]);
        for own in [false, true] {
            let made = cuda.product_by(&x, &packed, Some(&residual), own).unwrap();
            assert_eq!(made.row(rows - 1), [9.5; 16], "own: {own}");
        }
        assert_eq!(asked.lock().unwrap().len(), 1);
    }
}
