//! A fabric between workers of one process: sets go through its memory, or go wrong.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aqueduct_kernels::{End, Fabric, FabricError, GroupId, Mark, MemorySet, Pair, SetShape};

/// What goes wrong at one end.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Trouble {
    #[default]
    None,
    /// The library is missing where a group is to be made.
    NoLibrary,
    /// This end never joins.
    NeverJoins,
    /// This end never sends, or never receives.
    NeverMoves,
    /// The device fails as soon as it is to send or to receive.
    Fails,
    /// What is sent changes on its way.
    Changes(fn(&mut MemorySet)),
}

/// Where the ends of groups meet, and what was seen there.
#[derive(Default)]
pub(crate) struct Meeting {
    groups: Mutex<HashMap<u64, Arc<Between>>>,
    next: AtomicUsize,
    /// Sets that were received from device to device.
    moved: AtomicUsize,
    /// Exchanges that an end has begun.
    begun: AtomicUsize,
    /// Pairs that were given up.
    given_up: AtomicUsize,
}

impl Meeting {
    pub(crate) fn moved(&self) -> usize {
        self.moved.load(Ordering::SeqCst)
    }

    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    pub(crate) fn given_up(&self) -> usize {
        self.given_up.load(Ordering::SeqCst)
    }

    /// Groups that were made.
    pub(crate) fn groups(&self) -> usize {
        self.next.load(Ordering::SeqCst)
    }

    /// A device that meets others here.
    pub(crate) fn fabric(self: &Arc<Self>, trouble: Trouble) -> Arc<dyn Fabric> {
        self.named("in-process", trouble)
    }

    /// The same by another name.
    pub(crate) fn named(self: &Arc<Self>, name: &'static str, trouble: Trouble) -> Arc<dyn Fabric> {
        Arc::new(InProcess { meeting: self.clone(), name, trouble })
    }
}

struct InProcess {
    meeting: Arc<Meeting>,
    name: &'static str,
    trouble: Trouble,
}

/// What the ends of one group share.
#[derive(Default)]
struct Between {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    joined: usize,
    set: Option<MemorySet>,
    given_up: bool,
}

impl Between {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the state is as wanted.
    fn wait(
        &self,
        patience: Duration,
        wanted: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>, FabricError> {
        let under_way = |state: &mut State| !wanted(state) && !state.given_up;
        let waited = self.changed.wait_timeout_while(self.lock(), patience, under_way);
        let (state, late) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.given_up {
            Err(FabricError::GivenUp)
        } else if late.timed_out() {
            Err(FabricError::Deadline { what: "the other end", patience })
        } else {
            Ok(state)
        }
    }
}

impl Fabric for InProcess {
    fn name(&self) -> &str {
        self.name
    }

    fn invite(&self) -> Result<GroupId, FabricError> {
        if matches!(self.trouble, Trouble::NoLibrary) {
            return Err(FabricError::Missing { fabric: "NCCL", reason: "not here".into() });
        }
        let number = self.meeting.next.fetch_add(1, Ordering::SeqCst) as u64;
        let mut id = [0; 128];
        id[..8].copy_from_slice(&number.to_le_bytes());
        Ok(GroupId(id))
    }

    fn join(&self, id: &GroupId, _: End, patience: Duration) -> Result<Arc<dyn Pair>, FabricError> {
        let (number, _) = id.0.split_first_chunk().expect("an id has 128 bytes");
        let mut groups = self.meeting.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let between = groups.entry(u64::from_le_bytes(*number)).or_default().clone();
        drop(groups);
        if matches!(self.trouble, Trouble::NeverJoins) {
            between.wait(patience, |_| false).map(drop)?;
        }
        between.lock().joined += 1;
        between.changed.notify_all();
        between.wait(patience, |state| state.joined == 2).map(drop)?;
        let (meeting, trouble) = (self.meeting.clone(), self.trouble);
        Ok(Arc::new(InProcessPair { meeting, between, trouble }))
    }

    fn mark(&self) -> Mark {
        Mark::default()
    }
}

struct InProcessPair {
    meeting: Arc<Meeting>,
    between: Arc<Between>,
    trouble: Trouble,
}

impl InProcessPair {
    /// Begins an exchange, as far as the trouble lets it.
    fn begin(&self, patience: Duration) -> Result<(), FabricError> {
        self.meeting.begun.fetch_add(1, Ordering::SeqCst);
        match self.trouble {
            Trouble::NeverMoves => self.between.wait(patience, |_| false).map(drop),
            Trouble::Fails => {
                Err(FabricError::Failed { call: "exchange", what: "the device is lost".into() })
            }
            _ => Ok(()),
        }
    }
}

impl Pair for InProcessPair {
    fn fetch_lists(&self, _: &MemorySet, _: &Mark, _: Duration) -> Result<(), FabricError> {
        Ok(())
    }

    fn send(&self, set: &MemorySet, _: &Mark, patience: Duration) -> Result<(), FabricError> {
        self.begin(patience)?;
        let mut sent = set.in_order();
        if let Trouble::Changes(change) = self.trouble {
            change(&mut sent);
        }
        self.between.lock().set = Some(sent);
        self.between.changed.notify_all();
        self.between.wait(patience, |state| state.set.is_none()).map(drop)
    }

    fn receive(&self, shape: &SetShape, patience: Duration) -> Result<MemorySet, FabricError> {
        self.begin(patience)?;
        let mut state = self.between.wait(patience, |state| state.set.is_some())?;
        let set = state.set.take().ok_or(FabricError::GivenUp)?;
        drop(state);
        self.between.changed.notify_all();
        self.meeting.moved.fetch_add(1, Ordering::SeqCst);
        assert_eq!(SetShape::of(&set), *shape, "the receiver was told what comes");
        Ok(set)
    }

    fn abort(&self) {
        self.between.lock().given_up = true;
        self.between.changed.notify_all();
        self.meeting.given_up.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for InProcessPair {
    fn drop(&mut self) {
        self.between.lock().given_up = true;
        self.between.changed.notify_all();
    }
}
