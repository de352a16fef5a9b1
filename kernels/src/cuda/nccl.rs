//! Memory sets from device to device, through NCCL, beside the work of either.
//!
//! Nothing waits without a deadline: joining, sending and receiving are begun, and asked for until
//! they are done or late; what is late is aborted, and the group is then of no more use. The
//! device's own stream never waits for a peer: a set that was received is handed out when it is
//! there.

mod calls;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use self::calls::{Calls, Handle, Piece, Progress};
use super::device::Fault;
use super::driver::side::SideStream;
use super::driver::{Driver, Event, nap};
use super::resident::OnDevice;
use super::{Cuda, Shared};
use crate::array::Array;
use crate::backend::BackendError;
use crate::memory::{Keys, MemorySet, Ranking, Selection};
use crate::tensor::{KvData, KvDtype, KvHeads};

/// What NCCL could not do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// The library, or a device with a driver.
    #[error("no NCCL ({reason})")]
    Missing {
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

/// Names a group; made by one of its members, and told to the others by other means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupId(pub [u8; 128]);

impl GroupId {
    /// A new one.
    ///
    /// # Errors
    /// [`NcclError::Missing`] where there is no library.
    pub fn new() -> Result<Self, NcclError> {
        Calls::get()?.unique_id().map(Self)
    }
}

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
    /// [`MemorySet::end`].
    pub end: u32,
}

/// A member of a group of devices.
pub struct Group {
    calls: &'static Calls,
    shared: Arc<Shared>,
    driver: Arc<Driver>,
    stream: SideStream,
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
    ) -> Result<Self, NcclError> {
        let calls = Calls::get()?;
        let Some((driver, _)) = &cuda.shared.driver else {
            return Err(NcclError::Missing { reason: "the device has no driver".into() });
        };
        let failed = |fault: Fault| NcclError::Device(cuda.shared.fault(fault));
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
    fn settle(&self, what: &'static str) -> Result<(), NcclError> {
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
                    return Err(NcclError::Deadline { what, patience: self.patience });
                }
                Err(error) => {
                    self.abort();
                    return Err(error);
                }
            }
        }
    }

    fn with<R>(&self, call: impl FnOnce(Handle) -> Result<R, NcclError>) -> Result<R, NcclError> {
        let member = self.member.lock().unwrap_or_else(PoisonError::into_inner);
        match &*member {
            Some(Member(handle)) => call(*handle),
            None => Err(NcclError::GivenUp),
        }
    }

    /// Gives the group up, with all that is under way; every later call fails at once.
    pub fn abort(&self) {
        let mut member = self.member.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Member(handle)) = member.take()
            && self.driver.bind("ncclCommAbort").is_ok()
        {
            // SAFETY: taken, so nobody uses it afterwards.
            unsafe { self.calls.abort(handle) };
        }
    }

    /// Begins to send sets to ranks, and to receive sets of these shapes from ranks. What the
    /// members of a group exchange must fit together, in the same order.
    ///
    /// # Errors
    /// What device and library say, a group that was given up; the group is then of no use.
    pub fn exchange(
        &self,
        cuda: &Cuda,
        sends: &[(usize, &MemorySet)],
        receives: &[(usize, SetShape)],
    ) -> Result<Flight<'_>, NcclError> {
        let failed = |fault: Fault| NcclError::Device(self.shared.fault(fault));
        let outgoing = sends.iter().map(|(_, set)| Placed::of(cuda, set));
        let outgoing = outgoing.collect::<Result<Vec<_>, _>>()?;
        let incoming = receives.iter().map(|(_, shape)| Placed::room(&self.shared, shape));
        let incoming = incoming.collect::<Result<Vec<_>, _>>()?;
        let pieces = |sets: &[Placed], peers: &mut dyn Iterator<Item = usize>| -> Vec<Piece> {
            sets.iter().zip(peers).flat_map(|(set, peer)| set.pieces(peer)).collect()
        };
        let sending = pieces(&outgoing, &mut sends.iter().map(|it| it.0));
        let receiving = pieces(&incoming, &mut receives.iter().map(|it| it.0));
        self.stream.follow(&self.driver).map_err(failed)?;
        let begun = self.with(|handle| {
            // SAFETY: the arrays are as long as their pieces say, and a flight keeps them until
            // the stream is past them.
            unsafe { self.calls.exchange(handle, self.stream.raw(), &sending, &receiving) }
        });
        let done = begun.and_then(|_| self.settle("an exchange"));
        let landed = done.and_then(|()| self.stream.mark(&self.driver).map_err(failed));
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
    /// Waits, and returns what came.
    ///
    /// # Errors
    /// What has not come within `patience` never will: the group is given up.
    pub fn land(mut self, patience: Duration) -> Result<Vec<MemorySet>, NcclError> {
        self.wait(patience)?;
        let incoming = std::mem::take(&mut self.incoming);
        Ok(incoming.into_iter().zip(&self.shapes).map(|(set, shape)| set.into_set(shape)).collect())
    }

    fn wait(&mut self, patience: Duration) -> Result<(), NcclError> {
        let start = Instant::now();
        while let Some(landed) = &self.landed {
            let fault = |fault| NcclError::Device(self.group.shared.fault(fault));
            if landed.reached().map_err(fault)? {
                self.landed = None;
            } else if start.elapsed() > patience {
                return Err(NcclError::Deadline { what: "an exchange", patience });
            } else {
                self.group.with(|handle| {
                    // SAFETY: a member's handle was joined and not aborted.
                    unsafe { self.group.calls.progress(handle) }
                })?;
                nap();
            }
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

/// A set's arrays on the device, in order of position.
struct Placed {
    positions: OnDevice<u32>,
    score: OnDevice<f32>,
    votes: OnDevice<f32>,
    k: Rows,
    v: Rows,
}

enum Rows {
    F32(OnDevice<f32>),
    Bf16(OnDevice<half::bf16>),
}

impl Rows {
    fn room(shared: &Arc<Shared>, len: usize, kv: KvDtype) -> Result<Self, BackendError> {
        Ok(match kv {
            KvDtype::F32 => Self::F32(OnDevice::room(shared, len)?),
            KvDtype::Bf16 => Self::Bf16(OnDevice::room(shared, len)?),
        })
    }

    fn of(shared: &Arc<Shared>, heads: &KvHeads) -> Result<Self, BackendError> {
        Ok(match &heads.data {
            KvData::F32(data) => Self::F32(shared.place(data)?),
            KvData::Bf16(data) => Self::Bf16(shared.place(data)?),
        })
    }

    /// Address and bytes.
    fn span(&self) -> (u64, usize) {
        match self {
            Self::F32(data) => (data.address(), 4 * data.len()),
            Self::Bf16(data) => (data.address(), 2 * data.len()),
        }
    }

    fn into_heads(self, shape: &SetShape) -> KvHeads {
        let data = match self {
            Self::F32(data) => KvData::F32(data.into_array()),
            Self::Bf16(data) => KvData::Bf16(data.into_array()),
        };
        let SetShape { kv_heads, keys, head_dim, .. } = *shape;
        KvHeads { kv_heads, tokens: keys, head_dim, data }
    }
}

impl Placed {
    fn room(shared: &Arc<Shared>, shape: &SetShape) -> Result<Self, BackendError> {
        let count = shape.kv_heads * shape.keys;
        let rows = || Rows::room(shared, count * shape.head_dim, shape.kv);
        Ok(Self {
            positions: OnDevice::room(shared, count)?,
            score: OnDevice::room(shared, count)?,
            votes: OnDevice::room(shared, count)?,
            k: rows()?,
            v: rows()?,
        })
    }

    fn of(cuda: &Cuda, set: &MemorySet) -> Result<Self, BackendError> {
        let in_order = cuda.in_order(set)?;
        let (shared, keys) = (&cuda.shared, &in_order.keys);
        Ok(Self {
            positions: shared.place(&keys.positions)?,
            score: shared.place(&in_order.score)?,
            votes: shared.place(&in_order.votes)?,
            k: Rows::of(shared, &keys.k)?,
            v: Rows::of(shared, &keys.v)?,
        })
    }

    fn pieces(&self, peer: usize) -> Vec<Piece> {
        let words = |address: u64, count: usize| (address, 4 * count);
        let spans = [
            words(self.positions.address(), self.positions.len()),
            words(self.score.address(), self.score.len()),
            words(self.votes.address(), self.votes.len()),
            self.k.span(),
            self.v.span(),
        ];
        let piece = |(at, bytes)| Piece { at, bytes, peer };
        spans.into_iter().filter(|(_, bytes)| *bytes > 0).map(piece).collect()
    }

    fn into_set(self, shape: &SetShape) -> MemorySet {
        let (k, v) = (self.k.into_heads(shape), self.v.into_heads(shape));
        MemorySet {
            keys: Keys::new(self.positions.into_array(), k, v),
            score: self.score.into_array(),
            votes: self.votes.into_array(),
            end: shape.end,
        }
    }
}

impl Cuda {
    /// The set without tables or cells to spare; gathered on the device where it must be.
    fn in_order(&self, set: &MemorySet) -> Result<MemorySet, BackendError> {
        let keys = &set.keys;
        if keys.table.is_none() && keys.k.tokens == keys.len() {
            return Ok(set.clone());
        }
        let nothing = Keys::empty(keys.kv_heads(), keys.k.head_dim, keys.k.dtype());
        let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
        let all = Selection { keep_all: true, sinks: 0, local: 0, heavy: 0, ranking };
        let no_masses = Array::default();
        let copy =
            self.select_keys(Arc::new(set.clone()), &nothing, (&no_masses, &no_masses), &all)?;
        Ok(copy.memory)
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
        if let Err(error) = GroupId::new() {
            let text = error.to_string();
            assert!(text.starts_with("no NCCL (") && text.ends_with(')'), "{text}");
        }
    }

    #[cfg(all(feature = "cuda-emulator", target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn a_device_without_a_driver_joins_no_group() {
        let cuda = Cuda::emulated(90, CudaOptions::default()).unwrap();
        let joined = Group::join(&cuda, &GroupId([0; 128]), (0, 1), Duration::from_secs(1));
        assert!(matches!(joined, Err(NcclError::Missing { .. })));
    }

    #[cfg(all(feature = "cuda-emulator", target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn cells_are_put_in_order_on_the_device() {
        let cuda = Cuda::emulated(90, CudaOptions::default()).unwrap();
        let rows = |data: &[f32]| KvHeads::from_f32(1, data.len(), 1, data, KvDtype::F32);
        let (k, v) = (rows(&[3.0, 1.0, 2.0, 8.0]), rows(&[6.0, 4.0, 5.0, 8.0]));
        let set = MemorySet {
            keys: Keys::scattered(vec![2, 5, 7], k, v, vec![1, 2, 0]),
            score: vec![0.5, 1.0, 2.0].into(),
            votes: vec![1.0; 3].into(),
            end: 9,
        };
        let moved = cuda.in_order(&set).unwrap();
        assert!(moved.keys.table.is_none() && moved.keys.k.tokens == 3);
        assert_eq!(moved, set);
    }
}
