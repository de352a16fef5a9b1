//! Memory sets from device to device, through NCCL, beside the work of either.
//!
//! Nothing waits without a deadline: joining, sending and receiving are begun, and asked for until
//! they are done or late; what is late is aborted, and the group is then of no more use. The
//! device's own stream never waits for a peer: a set that was received is handed out when it is
//! there.

mod calls;
mod pair;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use self::calls::{Calls, Handle, Piece, Progress};
pub use self::pair::NcclFabric;
use super::device::{Address, Fault};
use super::driver::side::SideStream;
use super::driver::{Driver, Event, nap};
use super::placed::{Placed, fetch_lists, lies_ready};
use super::{Cuda, Shared, leave};
use crate::fabric::{FabricError, GroupId, Mark, SetShape};
use crate::memory::MemorySet;

const NCCL: &str = "NCCL";

/// Kind and version of this machine's library, as [`Fabric::name`](crate::fabric::Fabric::name).
///
/// # Errors
/// [`FabricError::Missing`] where there is none.
pub fn name() -> Result<String, FabricError> {
    Ok(format!("nccl-{}", Calls::get()?.version))
}

/// The file of this machine's library.
pub(super) fn file() -> Result<PathBuf, FabricError> {
    let unknown =
        || FabricError::Missing { fabric: NCCL, reason: "the file of libnccl is not known".into() };
    Calls::get()?.file().ok_or_else(unknown)
}

/// A group that nobody has joined yet.
///
/// # Errors
/// [`FabricError::Missing`] where there is no library.
pub fn invite() -> Result<GroupId, FabricError> {
    Calls::get()?.unique_id().map(GroupId)
}

/// A member of a group of devices.
pub struct Group {
    calls: &'static Calls,
    shared: Arc<Shared>,
    stream: SideStream,
    driver: Arc<Driver>,
    /// `None` when it was given up.
    member: Mutex<Option<Member>>,
    patience: Duration,
}

struct Member(Handle);

// SAFETY: a communicator may be used from any thread, by one at a time: it lies in a mutex.
unsafe impl Send for Member {}

impl Group {
    /// Joins group `id` of `size` members as member `rank`, and waits for the others.
    ///
    /// # Errors
    /// No library or driver, a member that does not come within `patience`, which is also how
    /// long an exchange may take to begin.
    pub fn join(
        cuda: &Cuda,
        id: &GroupId,
        (rank, size): (usize, usize),
        patience: Duration,
    ) -> Result<Self, FabricError> {
        let calls = Calls::get()?;
        let Some((driver, _)) = &cuda.shared.driver else {
            return Err(FabricError::Missing {
                fabric: NCCL,
                reason: "the device has no driver".into(),
            });
        };
        let failed = |fault: Fault| FabricError::Device(cuda.shared.fault(fault));
        let stream = SideStream::new(driver).map_err(failed)?;
        let handle = calls.join(id.0, (rank, size))?;
        let group = Self {
            calls,
            shared: cuda.shared.clone(),
            driver: driver.clone(),
            stream,
            member: Mutex::new(Some(Member(handle))),
            patience,
        };
        group.settle("joining the group")?;
        Ok(group)
    }

    /// Waits until the library has done what it was last asked to begin.
    fn settle(&self, what: &'static str) -> Result<(), FabricError> {
        let start = Instant::now();
        loop {
            match self.with(|handle| {
                // SAFETY: a member's handle was joined and not aborted.
                unsafe { self.calls.progress(handle) }
            }) {
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::UnderWay) if start.elapsed() < self.patience => nap(),
                Ok(Progress::UnderWay) => {
                    self.abort();
                    return Err(FabricError::Deadline { what, patience: self.patience });
                }
                Err(error) => {
                    self.abort();
                    return Err(error);
                }
            }
        }
    }

    /// Waits until the device has come to `event`, while the group lives.
    fn wait(
        &self,
        event: &Event,
        what: &'static str,
        patience: Duration,
    ) -> Result<(), FabricError> {
        let start = Instant::now();
        while !event.reached().map_err(|fault| self.failed(fault))? {
            if start.elapsed() > patience {
                return Err(FabricError::Deadline { what, patience });
            }
            self.with(|handle| {
                // SAFETY: a member's handle was joined and not aborted.
                unsafe { self.calls.progress(handle) }
            })?;
            nap();
        }
        Ok(())
    }

    fn with<R>(
        &self,
        call: impl FnOnce(Handle) -> Result<R, FabricError>,
    ) -> Result<R, FabricError> {
        let member = self.member.lock().unwrap_or_else(PoisonError::into_inner);
        match &*member {
            Some(Member(handle)) => call(*handle),
            None => Err(FabricError::GivenUp),
        }
    }

    /// Gives the group up, with all that is under way; every later call fails at once.
    pub fn abort(&self) {
        // Not under the lock: this may take a while, and whoever waits is to hear of it at once.
        let member = self.member.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Member(handle)) = member
            && self.driver.bind("ncclCommAbort").is_ok()
        {
            leave::left_behind(); // a thread of the library's goes on with it
            // SAFETY: taken, so nobody uses it afterwards.
            unsafe { self.calls.abort(handle) };
        }
    }

    /// Begins to send sets to ranks, and to receive sets of these shapes from ranks, once the
    /// device has come to `made`, behind which the sets are there. What the members of a group
    /// exchange must fit together, in the same order.
    ///
    /// # Errors
    /// What device and library say, a group that was given up; the group is then of no use.
    pub fn exchange(
        &self,
        cuda: &Cuda,
        made: &Mark,
        sends: &[(usize, &MemorySet)],
        receives: &[(usize, SetShape)],
    ) -> Result<Flight<'_>, FabricError> {
        let outgoing = sends.iter().map(|(_, set)| Placed::of(cuda, set));
        let outgoing = outgoing.collect::<Result<Vec<_>, _>>()?;
        let incoming = receives.iter().map(|(_, shape)| Placed::room(&self.shared, shape));
        let incoming = incoming.collect::<Result<Vec<_>, _>>()?;
        let pieces = |sets: &[Placed], peers: &mut dyn Iterator<Item = usize>| -> Vec<Piece> {
            let piece = |peer| move |(at, bytes): (Address, usize)| Piece { at: at.0, bytes, peer };
            sets.iter().zip(peers).flat_map(|(set, peer)| set.spans().map(piece(peer))).collect()
        };
        let sending = pieces(&outgoing, &mut sends.iter().map(|it| it.0));
        let receiving = pieces(&incoming, &mut receives.iter().map(|it| it.0));
        // The last owner's work may not be done with room, and copies were enqueued just now.
        let lie_ready = sends.iter().all(|(_, set)| lies_ready(&self.shared, set));
        let made = if receives.is_empty() && lie_ready { made } else { &Mark::default() };
        self.follow(made)?;
        let begun = self.with(|handle| {
            // SAFETY: the arrays are as long as their pieces say, and a flight keeps them until
            // the stream is past them.
            unsafe { self.calls.exchange(handle, self.stream.raw(), &sending, &receiving) }
        });
        let done = begun.and_then(|_| self.settle("an exchange"));
        let landed = done.and_then(|()| self.mark());
        let shapes = receives.iter().map(|(_, shape)| *shape).collect();
        match landed {
            Ok(landed) => {
                Ok(Flight { group: self, landed: Some(landed), outgoing, incoming, shapes })
            }
            Err(error) => {
                self.abort();
                std::mem::forget((outgoing, incoming)); // the device may still be at them
                Err(error)
            }
        }
    }

    /// As [`Pair::fetch_lists`](crate::fabric::Pair::fetch_lists) has it.
    ///
    /// # Errors
    /// As there.
    pub fn fetch_lists(
        &self,
        set: &MemorySet,
        made: &Mark,
        patience: Duration,
    ) -> Result<(), FabricError> {
        self.follow(made)?;
        self.wait(&self.mark()?, "the set", patience)?;
        fetch_lists(&self.shared, set, &|from, to| self.stream.read(&self.driver, from, to))?;
        Ok(())
    }

    /// What comes next on the side stream waits until the device has come to `made`.
    fn follow(&self, made: &Mark) -> Result<(), FabricError> {
        match made.at::<Event>() {
            Some(event) => self.stream.follow(&self.driver, event),
            None => self.stream.follow_all(&self.driver),
        }
        .map_err(|fault| self.failed(fault))
    }

    /// A point behind everything that the side stream was given so far.
    fn mark(&self) -> Result<Event, FabricError> {
        self.stream.mark(&self.driver).map_err(|fault| self.failed(fault))
    }

    fn failed(&self, fault: Fault) -> FabricError {
        FabricError::Device(self.shared.fault(fault))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Sets under way.
pub struct Flight<'a> {
    group: &'a Group,
    /// `None` when it has landed.
    landed: Option<Event>,
    outgoing: Vec<Placed>,
    incoming: Vec<Placed>,
    shapes: Vec<SetShape>,
}

impl Flight<'_> {
    /// Waits, and returns what came; its positions, scores and votes are on the host too.
    ///
    /// # Errors
    /// What has not come within `patience` never will: the group is given up.
    pub fn land(mut self, patience: Duration) -> Result<Vec<MemorySet>, FabricError> {
        self.wait(patience)?;
        let Group { stream, driver, .. } = self.group;
        let incoming = std::mem::take(&mut self.incoming).into_iter().zip(&self.shapes);
        let read = |from, to: &mut [u8]| stream.read(driver, from, to);
        let set = |(placed, shape): (Placed, &SetShape)| placed.into_set(shape, &read);
        incoming.map(set).collect::<Result<_, _>>().map_err(|fault| self.group.failed(fault))
    }

    fn wait(&mut self, patience: Duration) -> Result<(), FabricError> {
        if let Some(landed) = &self.landed {
            self.group.wait(landed, "an exchange", patience)?;
            self.landed = None;
        }
        Ok(())
    }
}

impl Drop for Flight<'_> {
    /// Arrays that the device may still be at are given up with the group, and never reused.
    fn drop(&mut self) {
        if self.landed.is_some() && self.wait(Duration::ZERO).is_err() {
            self.group.abort();
            std::mem::forget((
                std::mem::take(&mut self.outgoing),
                std::mem::take(&mut self.incoming),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(feature = "cuda-emulator", target_arch = "x86_64", target_os = "linux"))]
    use crate::cuda::CudaOptions;

    /// Whatever the machine has, asking for NCCL never panics, and what is not there is said.
    #[test]
    fn there_is_nccl_or_a_reason() {
        if let Err(error) = invite() {
            let text = error.to_string();
            assert!(text.starts_with("no NCCL (") && text.ends_with(')'), "{text}");
        }
    }

    #[cfg(all(feature = "cuda-emulator", target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn a_device_without_a_driver_joins_no_group() {
        let cuda = Cuda::emulated(90, CudaOptions::default()).unwrap();
        let joined = Group::join(&cuda, &GroupId([0; 128]), (0, 1), Duration::from_secs(1));
        assert!(matches!(joined, Err(FabricError::Missing { .. })));
    }
}
