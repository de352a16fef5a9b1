//! Pairs of emulated devices: what one sends is copied, through this process's memory.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::cuda::Cuda;
use crate::cuda::placed::{Placed, fetch_lists};
use crate::fabric::{FabricError, Mark, Pair, SetShape};
use crate::memory::MemorySet;

/// An emulated device that has joined another.
struct EmulatedPair {
    cuda: Arc<Cuda>,
    between: Arc<Between>,
}

/// What both ends see.
#[derive(Default)]
struct Between {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A set's arrays in the order of [`Placed::spans`], until they are received.
    arrays: Option<Vec<Vec<u8>>>,
    given_up: bool,
}

impl Cuda {
    /// The ends of a pair of emulated devices.
    pub fn emulated_pair(ends: [Arc<Self>; 2]) -> [Arc<dyn Pair>; 2] {
        let between = Arc::new(Between::default());
        ends.map(|cuda| Arc::new(EmulatedPair { cuda, between: between.clone() }) as Arc<dyn Pair>)
    }
}

impl Between {
    /// Waits until `done` has something to say about the arrays.
    fn wait<R>(
        &self,
        patience: Duration,
        mut done: impl FnMut(&mut Option<Vec<Vec<u8>>>) -> Option<R>,
    ) -> Result<R, FabricError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut result = None;
        let under_way = |state: &mut State| {
            result = done(&mut state.arrays);
            result.is_none() && !state.given_up
        };
        let waited = self.changed.wait_timeout_while(state, patience, under_way);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let given_up = state.given_up;
        drop(state);
        self.changed.notify_all();
        match result {
            Some(result) => Ok(result),
            None if given_up => Err(FabricError::GivenUp),
            None => Err(FabricError::Deadline { what: "an exchange", patience }),
        }
    }
}

impl Pair for EmulatedPair {
    fn fetch_lists(&self, set: &MemorySet, _: &Mark, _: Duration) -> Result<(), FabricError> {
        let shared = &self.cuda.shared;
        fetch_lists(shared, set, &|from, to| shared.device.read(from, to))?;
        Ok(())
    }

    fn send(&self, set: &MemorySet, _: &Mark, patience: Duration) -> Result<(), FabricError> {
        let shared = &self.cuda.shared;
        let copy = |(at, bytes)| {
            let mut copied = vec![0; bytes];
            shared.device.read(at, &mut copied).map(|()| copied)
        };
        let placed = Placed::of(&self.cuda, set)?;
        let arrays = placed.spans().map(copy).collect::<Result<_, _>>();
        let mut sending = Some(arrays.map_err(|fault| shared.fault(fault))?);
        self.between.wait(patience, |arrays| match sending.take() {
            Some(sent) => {
                *arrays = Some(sent);
                self.between.changed.notify_all();
                None
            }
            None => arrays.is_none().then_some(()),
        })
    }

    fn receive(&self, shape: &SetShape, patience: Duration) -> Result<MemorySet, FabricError> {
        let shared = &self.cuda.shared;
        let failed = |fault| FabricError::Device(shared.fault(fault));
        let placed = Placed::room(shared, shape)?;
        let arrays = self.between.wait(patience, Option::take)?;
        for ((at, bytes), array) in placed.spans().zip(&arrays) {
            assert_eq!(array.len(), bytes, "what is sent is what is received");
            shared.device.write(at, array).map_err(failed)?;
        }
        placed.into_set(shape, &|from, to| shared.device.read(from, to)).map_err(failed)
    }

    fn abort(&self) {
        self.between.state.lock().unwrap_or_else(PoisonError::into_inner).given_up = true;
        self.between.changed.notify_all();
    }
}

impl Drop for EmulatedPair {
    fn drop(&mut self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::CudaOptions;
    use crate::memory::Keys;
    use crate::tensor::{KvDtype, KvHeads};

    const PATIENCE: Duration = Duration::from_secs(20);

    fn device(capability: u32) -> Arc<Cuda> {
        Arc::new(Cuda::emulated(capability, CudaOptions::default()).unwrap())
    }

    /// Cells 1, 2, 0 of four hold the keys at positions 2, 5, 7.
    fn scattered(kv: KvDtype) -> MemorySet {
        let rows = |data: &[f32]| KvHeads::from_f32(1, data.len(), 1, data, kv);
        let (k, v) = (rows(&[3.0, 1.0, 2.0, 8.0]), rows(&[6.0, 4.0, 5.0, 8.0]));
        MemorySet {
            keys: Keys::scattered(vec![2, 5, 7], k, v, vec![1, 2, 0]),
            score: vec![0.5, 1.0, 2.0].into(),
            votes: vec![1.0; 3].into(),
            state: Default::default(),
            end: 9,
        }
    }

    #[test]
    fn a_set_arrives_on_the_other_device_in_order_of_position() {
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            let [a, b] = [device(90), device(80)];
            let [from, to] = Cuda::emulated_pair([a.clone(), b.clone()]);
            let mut set = scattered(kv);
            set.keys = a.keys_here(&set.keys).unwrap();
            let shape = SetShape::of(&set);
            let came = std::thread::scope(|scope| {
                let receives = scope.spawn(|| to.receive(&shape, PATIENCE));
                from.send(&set, &Mark::default(), PATIENCE).unwrap();
                receives.join().unwrap().unwrap()
            });
            assert!(came.keys.positions.on_host().is_some() && came.score.on_host().is_some());
            assert!(came.keys.table.is_none() && crate::cuda::placed::lies_ready(&b.shared, &came));
            assert_eq!(came, set);
        }
    }

    #[test]
    fn lists_come_to_the_host_alone() {
        let a = device(90);
        let [from, _] = Cuda::emulated_pair([a.clone(), a.clone()]);
        let mut set = scattered(KvDtype::F32);
        set.keys = a.keys_here(&set.keys).unwrap();
        set.score = a.here(&set.score).unwrap();
        assert!(set.keys.positions.on_host().is_none() && set.score.on_host().is_none());
        from.fetch_lists(&set, &Mark::default(), PATIENCE).unwrap();
        assert_eq!(set.keys.positions.on_host(), Some(&[2, 5, 7][..]));
        assert_eq!(set.score.on_host(), Some(&[0.5, 1.0, 2.0][..]));
        let crate::tensor::KvData::F32(k) = &set.keys.k.data else { panic!("f32 was asked for") };
        assert!(k.on_host().is_none());
    }

    #[test]
    fn nobody_waits_for_ever() {
        let a = device(90);
        let [from, to] = Cuda::emulated_pair([a.clone(), a]);
        let set = scattered(KvDtype::F32);
        let late = to.receive(&SetShape::of(&set), Duration::ZERO);
        assert!(matches!(late, Err(FabricError::Deadline { .. })));
        std::thread::scope(|scope| {
            let sends = scope.spawn(|| from.send(&set, &Mark::default(), PATIENCE));
            to.abort();
            assert_eq!(sends.join().unwrap(), Err(FabricError::GivenUp));
        });
    }
}
