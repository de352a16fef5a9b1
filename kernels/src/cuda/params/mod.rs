//! The argument of every kernel, field by field what `kernels/cu/params.cuh` says.

pub(super) mod attention;
pub(super) mod layers;
pub(super) mod select;
