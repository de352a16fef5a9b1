//! Through the first product of a feed-forward part, what stands behind it, and the second.

#[cfg(target_arch = "x86_64")]
use std::sync::Arc;

use super::argument::{Argument, Prepare};
use super::gates::{Curved, Gated};
#[cfg(target_arch = "x86_64")]
use super::pack::PackedWeight;
use super::pack::packed_weight;
use super::result::Outcome;
#[cfg(target_arch = "x86_64")]
use super::rounded::{RoundedRows, Rounding};
use super::split::{Block, split};
use super::{PackedFactors, Place, linear};
use crate::backend::BackendError;
use crate::cpu::simd::LANES;
use crate::cpu::unwritten::{unwritten, written};
use crate::tensor::Rows;
use crate::weights::{Activation, Linear, Ungated};

/// What stands between both products.
pub(in crate::cpu) enum Hidden {
    /// Rows, and what is to be done to them before they are multiplied on: nothing where gates
    /// could be computed from the sums at once.
    Rows(Rows, Prepare<'static>),
    /// Rows as the next product reads them, which never stood in memory as f32.
    #[cfg(target_arch = "x86_64")]
    Rounded(Arc<RoundedRows>),
}

/// A first product: of so many rows, named `op` in errors.
#[derive(Clone, Copy)]
struct First<'a> {
    op: &'static str,
    place: Place<'a>,
    rows: usize,
    factors: &'a PackedFactors<'a>,
    weight: &'a Linear,
}

/// `x` through a stacked gate and up projection, or through an up projection alone, for `next`, or
/// for what takes rows of f32 where there is none.
///
/// # Errors
/// As [`linear`].
pub(in crate::cpu) fn up(
    op: &'static str,
    place: Place,
    x: Argument<'_>,
    (weight, activation): (&Linear, Activation),
    next: Option<&Linear>,
) -> Result<Hidden, BackendError> {
    let factors = &PackedFactors::new(place, x, packed_weight(op, weight)?);
    let first = First { op, place, rows: x.rows.rows(), factors, weight };
    if let Activation::Ungated(ungated) = activation {
        return first.curved(ungated, next);
    }
    if !(weight.outputs / 2).is_multiple_of(LANES) || !factors.come_in_twos(place.isa) {
        let sums = factors.sums(op, place, first.rows, weight, None)?;
        return Ok(Hidden::Rows(sums, Prepare::Gate(activation)));
    }
    first.gated(activation, next)
}

impl First<'_> {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "rounded for tiles"))]
    fn gated(&self, activation: Activation, next: Option<&Linear>) -> Result<Hidden, BackendError> {
        let columns = self.weight.outputs / 2;
        let mut block = self.block();
        block.columns /= 2;
        let (panels, bias) = (columns / LANES, self.weight.bias.as_deref());
        #[cfg(target_arch = "x86_64")]
        if let Some(mut hidden) = self.rounding(columns, next)? {
            let tiles = hidden.split(block).into_iter();
            self.compute(tiles.map(|tile| Gated::new(tile, activation, panels, bias)))?;
            // SAFETY: tasks wrote all tiles.
            return Ok(Hidden::Rounded(Arc::new(unsafe { hidden.written() })));
        }
        let mut hidden = unwritten(self.rows * columns);
        let tiles = split(&mut hidden, columns, block).into_iter();
        self.compute(tiles.map(|tile| Gated::new(tile, activation, panels, bias)))?;
        // SAFETY: tiles cover the array, and their tasks wrote them.
        let hidden = Rows::from_vec(self.rows, columns, unsafe { written(hidden) });
        Ok(Hidden::Rows(hidden, Prepare::Nothing))
    }

    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "rounded for tiles"))]
    fn curved(&self, ungated: Ungated, next: Option<&Linear>) -> Result<Hidden, BackendError> {
        let (columns, block) = (self.weight.outputs, self.block());
        let bias = self.weight.bias.as_deref();
        #[cfg(target_arch = "x86_64")]
        if columns.is_multiple_of(LANES)
            && let Some(mut hidden) = self.rounding(columns, next)?
        {
            let tiles = hidden.split(block).into_iter();
            self.compute(tiles.map(|tile| Curved::new(tile, ungated, bias)))?;
            // SAFETY: tasks wrote all tiles.
            return Ok(Hidden::Rounded(Arc::new(unsafe { hidden.written() })));
        }
        let mut hidden = unwritten(self.rows * columns);
        let tiles = split(&mut hidden, columns, block).into_iter();
        self.compute(tiles.map(|tile| Curved::new(tile, ungated, bias)))?;
        // SAFETY: tiles cover the array, and their tasks wrote them.
        let hidden = Rows::from_vec(self.rows, columns, unsafe { written(hidden) });
        Ok(Hidden::Rows(hidden, Prepare::Nothing))
    }

    fn block(&self) -> Block {
        self.factors.block(self.rows, self.place.crew, self.weight.outputs)
    }

    fn compute<O: Outcome + Send>(
        &self,
        outcomes: impl Iterator<Item = O>,
    ) -> Result<(), BackendError> {
        self.factors.compute(self.op, self.place, outcomes.collect())
    }

    /// Room for rows of `columns` as `next` reads them, where it rounds as this product does.
    #[cfg(target_arch = "x86_64")]
    fn rounding(
        &self,
        columns: usize,
        next: Option<&Linear>,
    ) -> Result<Option<Rounding>, BackendError> {
        let Some(next) = next else { return Ok(None) };
        Ok(match (self.factors.rounded(), packed_weight(self.op, next)?) {
            (Some(like), PackedWeight::Bf16(_)) => {
                Some(Rounding::new((self.rows, like.block_rows()), columns))
            }
            _ => None,
        })
    }
}

/// `hidden` of so many rows, which [`up`] made for `weight`, through it, plus `residual`.
///
/// # Errors
/// As [`linear`].
pub(in crate::cpu) fn down(
    op: &'static str,
    place: Place,
    (hidden, rows): (Hidden, usize),
    weight: &Linear,
    residual: Option<&Rows>,
) -> Result<Rows, BackendError> {
    match hidden {
        Hidden::Rows(hidden, prepare) => {
            debug_assert_eq!(hidden.rows(), rows);
            linear(op, place, Argument { rows: &hidden, prepare }, weight, residual)
        }
        #[cfg(target_arch = "x86_64")]
        Hidden::Rounded(x) => {
            let PackedWeight::Bf16(panels) = packed_weight(op, weight)? else {
                unreachable!("`up` rounds for weights of bf16");
            };
            let factors = PackedFactors::of_rounded(place.isa, x, panels);
            factors.sums(op, place, rows, weight, residual)
        }
    }
}
