//! What a layer takes at its end besides the stream.

use super::gemm::{Argument, Place, Prepare, gated, linear};
use super::layer::added;
use super::simd::{Kernel, LANES, Simd, load_front, store_front};
use crate::backend::BackendError;
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{Activation, LayerInput, LayerSpec};

/// Rows that a task gates.
const ROWS: usize = 16;

/// See [`crate::MixerOps::take`].
pub(super) fn take(
    place: Place<'_>,
    spec: &LayerSpec,
    own: &LayerInput,
    [x, input]: [&Rows; 2],
) -> Result<Rows, BackendError> {
    shapes::taking(own, x, input)?;
    let plain = |rows| Argument { rows, prepare: Prepare::Nothing };
    let mut gates = linear("take", place, plain(x), &own.gate, None)?;
    let size = ROWS * gates.cols().max(1);
    let tasks = gates.data_mut().chunks_mut(size).zip(input.data().chunks(size)).collect();
    let activation = spec.activation;
    place.crew.map(tasks, |(gates, input)| place.isa.run(Gate { gates, input, activation }));
    let made = linear("take", place, plain(&gates), &own.up, None)?;
    let mut y = added(place, made, Some((&own.norm, spec.norm_eps)), x);
    if let Some(scale) = own.scale {
        scaled(place, &mut y, scale);
    }
    Ok(y)
}

/// Multiplies every row.
pub(super) fn scaled(place: Place<'_>, y: &mut Rows, scale: f32) {
    let size = ROWS * y.cols().max(1);
    place.crew.map(y.data_mut().chunks_mut(size).collect(), |rows: &mut [f32]| {
        rows.iter_mut().for_each(|x| *x *= scale);
    });
}

/// Gates, which become what the activation makes of them and of the input.
struct Gate<'a> {
    gates: &'a mut [f32],
    input: &'a [f32],
    activation: Activation,
}

impl Kernel for Gate<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (gates, input) in self.gates.chunks_mut(LANES).zip(self.input.chunks(LANES)) {
            let (gate, up) = (load_front(simd, gates), load_front(simd, input));
            store_front(gated(simd, self.activation, gate, up), gates);
        }
    }
}
