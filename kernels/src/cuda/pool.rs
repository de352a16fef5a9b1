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
//! One lock guards the books. It is held for a look-up, and while the device allocates.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::device::{Address, Device, Fault, Launch, Properties, TensorMap, TensorMapSpec};

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
        self.shrink(&mut self.books(), 0);
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives blocks back, the largest first, until at most `bytes` are kept.
    fn shrink(&self, books: &mut Books, bytes: usize) {
        while books.kept_bytes > bytes
            && let Some(at) = books.discard()
        {
            self.device.release(at);
        }
    }

    fn refusal(&self, books: &Books, bytes: usize, why: &str) -> Fault {
        let (used, limit) = (books.used_bytes, self.limit_bytes);
        let what = format!("{bytes} bytes wanted, {used} in use, {limit} at most: {why}");
        Fault::new("allocate", what)
    }
}

/// What a block for `bytes` holds.
fn rounded(bytes: usize) -> usize {
    let floor = bytes.checked_ilog2().map_or(0, |power| 1_usize << power);
    bytes.max(1).next_multiple_of((floor / 8).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX))
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
        self.shrink(&mut books, room);
        let allocated = match self.device.allocate(size) {
            Err(_) if books.kept_bytes > 0 => {
                self.shrink(&mut books, 0);
                self.device.allocate(size)
            }
            other => other,
        };
        match allocated {
            Ok(at) => Ok(books.hand_out(size, at)),
            Err(fault) => Err(self.refusal(&books, bytes, &fault.to_string())),
        }
    }

    fn release(&self, at: Address) {
        self.books().keep(at);
    }

    fn write(&self, to: Address, from: &[u8]) -> Result<(), Fault> {
        self.device.write(to, from)
    }

    fn read(&self, from: Address, to: &mut [u8]) -> Result<(), Fault> {
        self.device.read(from, to)
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

    use proptest::prelude::*;

    use super::*;

    /// Memory without content: counts what it gives, and has only so much.
    struct Fake {
        properties: Properties,
        state: Mutex<FakeState>,
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
            Arc::new(Self { properties, state: Mutex::new(state) })
        }

        fn live_bytes(&self) -> usize {
            self.state.lock().unwrap().live.values().sum()
        }

        fn calls(&self) -> usize {
            self.state.lock().unwrap().calls
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
                return Err(Fault::new("cuMemAlloc", "out of memory"));
            }
            let at = state.next;
            state.next += bytes as u64;
            state.live.insert(at, bytes);
            Ok(Address(at))
        }

        fn release(&self, at: Address) {
            assert!(self.state.lock().unwrap().live.remove(&at.0).is_some(), "released twice");
        }

        fn write(&self, _: Address, _: &[u8]) -> Result<(), Fault> {
            Err(Fault::new("write", "not here"))
        }

        fn read(&self, _: Address, _: &mut [u8]) -> Result<(), Fault> {
            Err(Fault::new("read", "not here"))
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
