//! Attention and masses: tiles of rows against tiles of keys.

mod all;
mod fall;
mod few;
// The forms that it is for are those of x86-64.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod layouts;
mod masses;
mod output;
mod partial;
mod pass;
mod products;
mod rows;
mod side;
mod sight;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // as above
mod stored;

pub(super) use self::all::{attend_all, attend_each, fit_together, fits_one_pass};
pub(super) use self::masses::weigh;
pub(super) use self::partial::{attend, attend_merged, fit_merged};
use crate::backend::Scope;
use crate::memory::{LeafKeys, Split};

/// What rows see: the leaves of the past, and the own keys.
fn sides<'a>(scope: &Scope<'a>, split: Option<&'a Split>) -> Vec<LeafKeys<'a>> {
    let mut sides = LeafKeys::each(scope.past, split);
    sides.push(LeafKeys::all(scope.own));
    sides
}
