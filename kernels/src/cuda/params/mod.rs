//! The argument of every kernel, field by field what `kernels/cu/params.cuh` says.

pub(super) mod attention;
pub(super) mod attention80;
pub(super) mod attention90;
pub(super) mod latent;
pub(super) mod layers;
pub(super) mod measure;
pub(super) mod recurrent;
pub(super) mod select;
