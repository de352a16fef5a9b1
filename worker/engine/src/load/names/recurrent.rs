//! What the tensors of layers that remember in a state are called.

use crate::load::decoder::Columns;

/// Names of such a layer's tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecurrentNames {
    /// Of the first product, one after the other.
    pub(crate) first: &'static [FirstPart],
    /// Of the convolution, one after the other, and which channels they have.
    pub(crate) conv: &'static [(&'static str, Columns)],
    /// How fast heads forget; with its suffix, as the next three.
    pub(crate) rate: &'static str,
    pub(crate) rates: Rates,
    /// Added to what makes time steps.
    pub(crate) shift: &'static str,
    /// What multiplies inputs that go past the state.
    pub(crate) skip: &'static str,
    pub(crate) norm: &'static str,
    pub(crate) out: &'static str,
}

/// A part of the first product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FirstPart {
    pub(crate) name: &'static str,
    /// At most four.
    pub(crate) columns: &'static [Columns],
    /// Those of a key head stand together; else those of one kind do.
    pub(crate) by_head: bool,
}

/// What files have of rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rates {
    /// Their logarithms.
    Logarithms,
    /// They are negative there.
    Negative,
}

impl RecurrentNames {
    /// Of models that have no such layers.
    pub(crate) const NONE: Self = Self {
        first: &[],
        conv: &[],
        rate: "",
        rates: Rates::Logarithms,
        shift: "",
        skip: "",
        norm: "",
        out: "",
    };
}
