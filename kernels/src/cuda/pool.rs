//! A caching allocator between operations and a device.
//!
//! Operations make and drop an array at every step, and asking the driver for memory costs more
//! than most kernels. So what is released stays here, by size, and the next who wants as much
//! gets it. That needs no wait although the work that uses the old array may still be under way:
//! all work is on one stream, so what the new owner enqueues runs after it.
//!
//! Sizes are rounded up to eight steps per power of two, at least 512 bytes and at most 2 MiB
//! apart, so at most an eighth is lost; a block that is up to a quarter larger than wanted serves
//! too. What is kept for nobody goes back to the device when the limit, or the device, says no.
//!
//! One lock guards the books, and is held for a look-up alone: a device that gives memory out or
//! takes it back may wait for all of its work, also for a peer of which a link waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::device::{
    Address, Copied, Copies, Device, Fault, Launch, Properties, Shortage, TensorMap, TensorMapSpec,
};

const STEP_BYTES_MIN: usize = 512;
const STEP_BYTES_MAX: usize = 2 << 20;

/// Bytes of a device's memory.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MemoryUse {
    /// Held by arrays.
    used_bytes: usize,
    /// Held for arrays to come.
    kept_bytes: usize,
    /// The most that both may be.
    limit_bytes: usize,
}

/// A device whose memory is reused.
pub(crate) struct Pool<D: Device> {
    device: D,
    limit_bytes: usize,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// Size of every block that somebody has.
    used: HashMap<u64, usize>,
    used_bytes: usize,
    /// Blocks that nobody has, by size.
    kept: BTreeMap<usize, Vec<Address>>,
    kept_bytes: usize,
}

impl Books {
    /// The smallest kept block that serves for `bytes`.
    fn reuse(&mut self, bytes: usize) -> Option<(usize, Address)> {
        let (&size, blocks) = self.kept.range_mut(bytes..=bytes + bytes / 4).next()?;
        let at = blocks.pop()?;
        if blocks.is_empty() {
            self.kept.remove(&size);
        }
        self.kept_bytes -= size;
        Some((size, at))
    }

    /// The largest kept block.
    fn discard(&mut self) -> Option<Address> {
        let (&size, _) = self.kept.last_key_value()?;
        self.reuse(size).map(|(_, at)| at)
    }

    /// Blocks to be given back, the largest first, so that at most `bytes` are kept.
    #[must_use]
    fn shrink(&mut self, bytes: usize) -> Vec<Address> {
        let surplus = || (self.kept_bytes > bytes).then(|| self.discard()).flatten();
        std::iter::from_fn(surplus).collect()
    }

    fn hand_out(&mut self, size: usize, at: Address) -> Address {
        self.used.insert(at.0, size);
        self.used_bytes += size;
        at
    }

    fn keep(&mut self, at: Address) {
        let Some(size) = self.used.remove(&at.0) else { return };
        self.used_bytes -= size;
        self.kept_bytes += size;
        self.kept.entry(size).or_default().push(at);
    }
}

impl<D: Device> Pool<D> {
    /// `device` with at most `limit_bytes` of its memory, counted in blocks as they are rounded.
    pub(crate) fn new(device: D, limit_bytes: usize) -> Self {
        Self { device, limit_bytes, books: Mutex::default() }
    }

    /// What is in use now.
    #[cfg(test)]
    pub(crate) fn memory_use(&self) -> MemoryUse {
        let books = self.books();
        MemoryUse {
            used_bytes: books.used_bytes,
            kept_bytes: books.kept_bytes,
            limit_bytes: self.limit_bytes,
        }
    }

    /// Gives the device back what nobody has.
    pub(crate) fn trim(&self) {
        let all = self.books().shrink(0);
        self.give_back(all);
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody who calls this holds the books.
    fn give_back(&self, blocks: Vec<Address>) {
        blocks.into_iter().for_each(|at| self.device.release(at));
    }

    /// A block of `size` from the device, which may need what is kept for it.
    fn obtain(&self, size: usize) -> Result<Address, Fault> {
        self.device.allocate(size).or_else(|fault| {
            let all = self.books().shrink(0);
            if all.is_empty() {
                return Err(fault);
            }
            self.give_back(all);
            self.device.allocate(size)
        })
    }

    fn refusal(&self, books: &Books, bytes: usize, why: &str) -> Fault {
        let (used, limit) = (books.used_bytes, self.limit_bytes);
        let what = format!("{bytes} bytes wanted, {used} in use, {limit} at most: {why}");
        let free_bytes = limit.saturating_sub(used);
        let shortage = Shortage { wanted_bytes: bytes, free_bytes, bytes: limit };
        Fault { shortage: Some(shortage), ..Fault::new("allocate", what) }
    }
}

/// What a block for `bytes` holds.
fn rounded(bytes: usize) -> usize {
    let floor = bytes.checked_ilog2().map_or(0, |power| 1_usize << power);
    bytes.max(1).next_multiple_of((floor / 8).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX))
}

impl<D: Device> Copies for Pool<D> {
    fn write(&self, to: Address, from: &[u8]) -> Result<(), Fault> {
        self.device.write(to, from)
    }

    fn read(&self, from: Address, to: &mut [u8]) -> Result<(), Fault> {
        self.device.read(from, to)
    }

    fn read_both(&self, first: Copied<'_>, second: Copied<'_>) -> Result<(), Fault> {
        self.device.read_both(first, second)
    }
}

impl<D: Device> Device for Pool<D> {
    fn properties(&self) -> &Properties {
        self.device.properties()
    }

    fn allocate(&self, bytes: usize) -> Result<Address, Fault> {
        if bytes > self.limit_bytes {
            return Err(self.refusal(&self.books(), bytes, "more than there is"));
        }
        let size = rounded(bytes);
        let mut books = self.books();
        if let Some((size, at)) = books.reuse(size) {
            return Ok(books.hand_out(size, at));
        }
        let Some(room) = self.limit_bytes.checked_sub(books.used_bytes + size) else {
            return Err(self.refusal(&books, bytes, "the limit is reached"));
        };
        books.used_bytes += size; // nobody else is promised it meanwhile
        let surplus = books.shrink(room);
        drop(books);
        self.give_back(surplus);
        let obtained = self.obtain(size);
        let mut books = self.books();
        books.used_bytes -= size;
        match obtained {
            Ok(at) => Ok(books.hand_out(size, at)),
            Err(fault) => {
                let Fault { what, .. } = self.refusal(&books, bytes, &fault.to_string());
                Err(Fault { call: "allocate".into(), what, shortage: fault.shortage })
            }
        }
    }

    fn release(&self, at: Address) {
        self.books().keep(at);
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<(), Fault> {
        self.device.launch(launch)
    }

    fn tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap, Fault> {
        self.device.tensor_map(spec)
    }
}

impl<D: Device> Drop for Pool<D> {
    fn drop(&mut self) {
        self.trim();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::backend::BackendError;
    use crate::cuda::{CudaOptions, Shared};

    /// Memory without content: counts what it gives, and has only so much.
    struct Fake {
        properties: Properties,
        state: Mutex<FakeState>,
        /// What taking memory back waits for.
        gate: Option<Mutex<Receiver<()>>>,
    }

    #[derive(Default)]
    struct FakeState {
        next: u64,
        live: HashMap<u64, usize>,
        calls: usize,
        capacity: usize,
    }

    impl Fake {
        fn new(capacity: usize) -> Arc<Self> {
            let properties = Properties {
                name: "fake".into(),
                capability: 90,
                multiprocessors: 1,
                shared_bytes: 0,
            };
            let state = FakeState { next: 256, capacity, ..FakeState::default() };
            Arc::new(Self { properties, state: Mutex::new(state), gate: None })
        }

        /// The same with work under way that ends when somebody says so.
        fn busy(capacity: usize) -> (Arc<Self>, SyncSender<()>) {
            let (end, gate) = sync_channel(2);
            let mut fake = Self::new(capacity);
            Arc::get_mut(&mut fake).unwrap().gate = Some(Mutex::new(gate));
            (fake, end)
        }

        fn live_bytes(&self) -> usize {
            self.state.lock().unwrap().live.values().sum()
        }

        fn calls(&self) -> usize {
            self.state.lock().unwrap().calls
        }
    }

    impl Copies for Fake {
        fn write(&self, _: Address, _: &[u8]) -> Result<(), Fault> {
            Ok(())
        }

        fn read(&self, _: Address, _: &mut [u8]) -> Result<(), Fault> {
            Err(Fault::new("read", "not here"))
        }

        fn read_both(&self, _: Copied<'_>, _: Copied<'_>) -> Result<(), Fault> {
            Err(Fault::new("read", "not here"))
        }
    }

    impl Device for Fake {
        fn properties(&self) -> &Properties {
            &self.properties
        }

        fn allocate(&self, bytes: usize) -> Result<Address, Fault> {
            let mut state = self.state.lock().unwrap();
            state.calls += 1;
            if state.live.values().sum::<usize>() + bytes > state.capacity {
                let shortage = Shortage { wanted_bytes: bytes, free_bytes: 7, bytes: 8 };
                let fault = Fault::new("cuMemAlloc", "out of memory");
                return Err(Fault { shortage: Some(shortage), ..fault });
            }
            let at = state.next;
            state.next += bytes as u64;
            state.live.insert(at, bytes);
            Ok(Address(at))
        }

        fn release(&self, at: Address) {
            if let Some(gate) = &self.gate {
                gate.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            }
            assert!(self.state.lock().unwrap().live.remove(&at.0).is_some(), "released twice");
        }

        fn launch(&self, _: &Launch<'_>) -> Result<(), Fault> {
            Err(Fault::new("launch", "not here"))
        }

        fn tensor_map(&self, _: &TensorMapSpec) -> Result<TensorMap, Fault> {
            Err(Fault::new("tensor_map", "not here"))
        }
    }

    const MIB: usize = 1 << 20;

    #[test]
    fn what_was_released_is_used_again() {
        let device = Fake::new(64 * MIB);
        let pool = Pool::new(device.clone(), 64 * MIB);
        let first = pool.allocate(1000).unwrap();
        assert_ne!(pool.allocate(1000).unwrap(), first, "somebody has it");
        pool.release(first);
        assert_eq!(pool.allocate(900).unwrap(), first);
        assert_eq!(device.calls(), 2);
        pool.release(first);
        assert_ne!(pool.allocate(100).unwrap(), first, "far too large for so little");
        assert_ne!(pool.allocate(0).unwrap(), first);
    }

    #[test]
    fn the_limit_is_named() {
        let pool = Pool::new(Fake::new(64 * MIB), 3 * MIB);
        let held = pool.allocate(2 * MIB).unwrap();
        let fault = pool.allocate(2 * MIB).unwrap_err().to_string();
        let want = "allocate: 2097152 bytes wanted, 2097152 in use, 3145728 at most: \
                    the limit is reached";
        assert_eq!(fault, want);
        assert!(pool.allocate(usize::MAX).is_err(), "and nothing overflows");
        pool.release(held);
        pool.allocate(3 * MIB).unwrap();
    }

    #[test]
    fn what_is_kept_makes_way() {
        let device = Fake::new(64 * MIB);
        let pool = Pool::new(device.clone(), 10 * MIB);
        let blocks = [MIB, 2 * MIB, 4 * MIB].map(|bytes| pool.allocate(bytes).unwrap());
        blocks.into_iter().for_each(|at| pool.release(at));
        assert_eq!(pool.memory_use().kept_bytes, 7 * MIB);
        pool.allocate(6 * MIB).unwrap();
        let now = pool.memory_use();
        assert_eq!((now.used_bytes, now.kept_bytes), (6 * MIB, 3 * MIB), "the largest went");
        assert_eq!(device.live_bytes(), 9 * MIB);
        pool.trim();
        assert_eq!(device.live_bytes(), 6 * MIB);
    }

    #[test]
    fn a_device_that_others_fill_is_asked_again_after_trimming() {
        let device = Fake::new(4 * MIB);
        let pool = Pool::new(device.clone(), 64 * MIB);
        let held = pool.allocate(3 * MIB).unwrap();
        pool.release(held);
        pool.allocate(2 * MIB).unwrap();
        let fault = pool.allocate(3 * MIB).unwrap_err().to_string();
        assert!(fault.ends_with("67108864 at most: cuMemAlloc: out of memory"), "{fault}");
    }

    /// Who is short of memory may come again later, so it is told from what is broken.
    #[test]
    fn a_shortage_is_told_with_its_figures() {
        let device = Fake::new(4 * MIB);
        let shared = |limit| {
            let pool = Pool::new(device.clone(), limit);
            Shared::new(Box::new(pool), CudaOptions::default()).unwrap()
        };
        let refused = |shared: &Shared, bytes: usize| {
            let fault = shared.device.allocate(bytes).unwrap_err();
            shared.fault(fault)
        };
        let exhausted = |wanted_bytes, free_bytes, bytes| BackendError::Exhausted {
            wanted_bytes: wanted_bytes as u64,
            free_bytes: free_bytes as u64,
            bytes: bytes as u64,
        };
        // The pool itself has handed out the words of numbers that are not finite.
        let (limited, open) = (shared(2 * MIB), shared(64 * MIB));
        let free = 2 * MIB - STEP_BYTES_MIN;
        assert_eq!(refused(&limited, 2 * MIB), exhausted(2 * MIB, free, 2 * MIB));
        assert_eq!(refused(&limited, 3 * MIB), exhausted(3 * MIB, free, 2 * MIB));
        assert_eq!(refused(&open, 8 * MIB), exhausted(8 * MIB, 7, 8), "the device's own figures");
        let broken = shared(64 * MIB).fault(Fault::new("cuLaunchKernel", "an illegal address"));
        assert!(matches!(broken, BackendError::Device { .. }));
    }

    /// What is under way may wait for a peer, which may wait for us.
    #[test]
    fn others_are_served_while_the_device_takes_memory_back() {
        let (device, end) = Fake::busy(64 * MIB);
        let pool = Pool::new(device, 8 * MIB);
        let [large, small] = [4 * MIB, MIB].map(|bytes| pool.allocate(bytes).unwrap());
        pool.release(large);
        thread::scope(|scope| {
            let waits = scope.spawn(|| pool.allocate(6 * MIB));
            while pool.memory_use().used_bytes < 7 * MIB {
                thread::yield_now(); // it has made its entries, and waits for the device
            }
            pool.release(small);
            assert_eq!(pool.allocate(MIB).unwrap(), small);
            assert!(pool.allocate(2 * MIB).is_err(), "the other one was promised the rest");
            assert!(!waits.is_finished());
            end.send(()).unwrap();
            let large = waits.join().unwrap().unwrap();
            assert_eq!(pool.memory_use().used_bytes, 7 * MIB);
            pool.release(large);
            pool.release(small);
        });
        [(); 2].into_iter().for_each(|()| end.send(()).unwrap());
        drop(pool);
    }

    #[test]
    fn nothing_is_lost_when_it_ends() {
        let device = Fake::new(64 * MIB);
        let pool = Pool::new(device.clone(), 64 * MIB);
        let held = pool.allocate(MIB).unwrap();
        pool.release(held);
        drop(pool);
        assert_eq!(device.live_bytes(), 0);
    }

    proptest! {
        #[test]
        fn rounding_loses_an_eighth_at_most(bytes in 0_usize..1 << 40) {
            let size = rounded(bytes);
            prop_assert!(size >= bytes && size.is_multiple_of(STEP_BYTES_MIN));
            prop_assert!(size - bytes <= (bytes / 8).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX));
            prop_assert_eq!(rounded(size), size);
        }

        /// Whatever is asked for, blocks do not overlap and the books are right.
        #[test]
        fn blocks_belong_to_one(
            steps in prop::collection::vec((any::<bool>(), 0_usize..3000), 60)
        ) {
            let device = Fake::new(64 * MIB);
            let pool = Pool::new(device.clone(), 40_000);
            let mut held: Vec<(u64, usize)> = Vec::new();
            for (take, number) in steps {
                if take {
                    let Ok(at) = pool.allocate(number) else { continue };
                    let apart = |&(other, len): &(u64, usize)| {
                        at.0 + number as u64 <= other || other + len as u64 <= at.0
                    };
                    prop_assert!(held.iter().all(apart));
                    held.push((at.0, number));
                } else if !held.is_empty() {
                    let (at, _) = held.swap_remove(number % held.len());
                    pool.release(Address(at));
                }
                let now = pool.memory_use();
                prop_assert_eq!(device.live_bytes(), now.used_bytes + now.kept_bytes);
                prop_assert!(now.used_bytes + now.kept_bytes <= now.limit_bytes);
            }
        }
    }
}
