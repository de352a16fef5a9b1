//! The choice of what is remembered.

use std::sync::Arc;

use super::BackendError;
use crate::array::Array;
use crate::memory::{Keys, MemorySet, Selection};

/// What [`SelectionOps::select`] leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Selected {
    /// The next memory set.
    pub memory: MemorySet,
    /// `[2]`: the sum of its scores, and what they would sum to had every key been kept; zeros
    /// where `keep_all`.
    pub retained: Array<f64>,
}

/// What [`SelectionOps::select`] chooses from, and by what rule.
#[derive(Debug, Clone)]
pub struct Choice<'a> {
    /// Remembered keys.
    pub past: Arc<MemorySet>,
    /// The block's own.
    pub own: &'a Keys,
    /// `[kv_heads, past keys]` and `[kv_heads, own keys]`.
    pub masses: (&'a Array<f32>, &'a Array<f32>),
    /// The rule.
    pub selection: &'a Selection,
}

/// The choice of what is remembered.
pub trait SelectionOps: Send + Sync {
    /// The next memory set: of past and own keys, those that `selection` keeps.
    ///
    /// `past_mass` is `[kv_heads, past keys]`, `own_mass` `[kv_heads, own keys]`, from
    /// [`weigh`](super::AttentionOps::weigh); both empty where `selection.keep_all`. Scores become
    /// `past.score * fade + mass`, votes alike (a past key gains the sum of all row weights,
    /// own key j the sum of those from row j on), and a total order decides; where
    /// `selection.keep_all`, own keys start at score and votes 0 and nothing is added. `past` is
    /// taken by value so that a set nobody else holds can be changed in place.
    ///
    /// Own keys stand at `past.end..`. Every KV head keeps equally many: where heads differ in
    /// how many of their keys are always kept, those with fewer keep more by rank. A rank that
    /// is NaN is the lowest.
    fn select(
        &self,
        past: Arc<MemorySet>,
        own: &Keys,
        masses: (&Array<f32>, &Array<f32>),
        selection: &Selection,
    ) -> Result<Selected, BackendError>;

    /// [`select`](Self::select) for sets that have nothing to do with each other, as those of the
    /// layers of a decode step are: bit for bit what each gives alone, and one that is refused
    /// leaves the others as they are. It is not said which get the pages of a pool that has too
    /// few for all.
    fn select_each(&self, choices: Vec<Choice<'_>>) -> Vec<Result<Selected, BackendError>> {
        let select =
            |Choice { past, own, masses, selection }| self.select(past, own, masses, selection);
        choices.into_iter().map(select).collect()
    }
}
