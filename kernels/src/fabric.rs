//! Memory sets from one device to another, past the memory of their hosts.
//!
//! A [`Fabric`] is what a device brings for it, a [`Pair`] two devices that have joined. How the
//! two agree to join, and that a set is to come, is said by other means: a pair carries arrays.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::BackendError;
use crate::memory::{Keys, MemorySet};
use crate::tensor::KvDtype;

/// What a fabric could not do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The library, or a device that it could work with.
    #[error("no {fabric} ({reason})")]
    Missing {
        /// What it is called.
        fabric: &'static str,
        /// What is missing.
        reason: String,
    },
    /// The library's words.
    #[error("{call}: {what}")]
    Failed {
        /// Its function.
        call: &'static str,
        /// What it said.
        what: String,
    },
    /// A peer did not come in time.
    #[error("{what} took longer than {patience:?}")]
    Deadline {
        /// What was waited for.
        what: &'static str,
        /// How long.
        patience: Duration,
    },
    /// The group was given up before.
    #[error("the group was given up")]
    GivenUp,
    /// The device's words.
    #[error(transparent)]
    Device(#[from] BackendError),
}

/// Names a group of devices; made by one of its members, and told to the others by other means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupId(pub [u8; 128]);

/// The shape of a set that is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetShape {
    /// G.
    pub kv_heads: usize,
    /// Keys of each KV head.
    pub keys: usize,
    /// D.
    pub head_dim: usize,
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// Elements of the state of a layer that has no keys. A [`Pair`] carries none.
    pub state: usize,
    /// [`MemorySet::end`].
    pub end: u32,
}

impl SetShape {
    /// Of `set`.
    pub fn of(set: &MemorySet) -> Self {
        let Keys { k, .. } = &set.keys;
        let (kv_heads, keys, state) = (k.kv_heads, set.keys.len(), set.state.len());
        Self { kv_heads, keys, head_dim: k.head_dim, kv: k.dtype(), state, end: set.end }
    }

    /// [`MemorySet::bytes`] of such a set, in order of position.
    pub fn bytes(&self) -> usize {
        let element = match self.kv {
            KvDtype::F32 => size_of::<f32>(),
            KvDtype::Bf16 => size_of::<half::bf16>(),
        };
        let key = 3 * size_of::<u32>() + 2 * self.head_dim * element;
        self.kv_heads * self.keys * key + self.state * size_of::<f32>()
    }
}

/// Which end of a pair a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Sets leave it.
    Sends,
    /// Sets arrive at it.
    Receives,
}

/// A point in a device's work. What a set is made of is there once the device has come to the
/// point that was marked when the set was given, whatever it was given to do since.
#[derive(Clone, Default)]
pub struct Mark(Option<Arc<dyn Any + Send + Sync>>);

impl Mark {
    /// The point that `at` stands for, to whoever made it.
    pub fn new(at: impl Any + Send + Sync) -> Self {
        Self(Some(Arc::new(at)))
    }

    /// What it was made of; `None` means: behind everything that the device was given so far.
    pub fn at<T: Any>(&self) -> Option<&T> {
        self.0.as_deref()?.downcast_ref()
    }
}

/// What a device brings to reach other devices.
pub trait Fabric: Send + Sync {
    /// Its kind and version. Devices MUST form pairs only if theirs have the same name.
    fn name(&self) -> &str;

    /// A group that nobody has joined yet.
    ///
    /// # Errors
    /// What the library says.
    fn invite(&self) -> Result<GroupId, FabricError>;

    /// Joins group `id` of two and waits for the other end.
    ///
    /// # Errors
    /// The other does not come within `patience`; what the library says.
    fn join(
        &self,
        id: &GroupId,
        end: End,
        patience: Duration,
    ) -> Result<Arc<dyn Pair>, FabricError>;

    /// The point behind everything that the device was given so far; waits for nothing.
    fn mark(&self) -> Mark;
}

/// Two devices that have joined.
///
/// One set goes at a time, without a state, and what the ends send and receive MUST fit together
/// in the same order. Every method but [`abort`](Self::abort) blocks, no longer than its patience;
/// after an error the pair is of no more use. Dropping it aborts it.
pub trait Pair: Send + Sync {
    /// Copies a set's lists (positions, scores and votes) to the host, where reading them is then
    /// free, behind `made` and not behind what the device was given since.
    ///
    /// # Errors
    /// The device does not come to `made` within `patience`; what the device says.
    fn fetch_lists(
        &self,
        set: &MemorySet,
        made: &Mark,
        patience: Duration,
    ) -> Result<(), FabricError>;

    /// Sends a set, its cells in order of position.
    ///
    /// # Errors
    /// The other end did not take it within `patience`, or either gave up.
    fn send(&self, set: &MemorySet, made: &Mark, patience: Duration) -> Result<(), FabricError>;

    /// Receives a set of this shape: on the device, and its lists on the host too. Nothing in it
    /// is checked.
    ///
    /// # Errors
    /// It did not come within `patience`, or either end gave up.
    fn receive(&self, shape: &SetShape, patience: Duration) -> Result<MemorySet, FabricError>;

    /// Gives the pair up, with what is under way: every other call ends soon, and with an error.
    fn abort(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_known_to_who_made_it() {
        let mark = Mark::new(7_u32);
        assert_eq!((mark.at::<u32>(), mark.at::<u64>()), (Some(&7), None));
        assert_eq!(mark.clone().at::<u32>(), Some(&7));
        assert_eq!(Mark::default().at::<u32>(), None);
    }
}
