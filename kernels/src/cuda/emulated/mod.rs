//! A device for tests: kernels run on this machine's processor, one thread of theirs after the
//! other, under the rules of the chip that they are written for (`kernels/cu/emulator`).

mod compile;
mod library;
mod memory;
mod pair;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::library::{LaunchCall, Library};
use self::memory::Memory;
use super::device::{
    Address, Copied, Copies, Device, Fault, Launch, Properties, TensorMap, TensorMapSpec,
};
use super::{Cuda, CudaError, CudaOptions, Shared};

const NAME: &str = "emulated";
const MULTIPROCESSORS: u32 = 4;
const MAP_MAGIC: u64 = 0x7061_6d2d_7273_6e74;
const BOX_COLUMNS: u32 = 64;
const ERROR_BYTES: usize = 4096;

impl Cuda {
    /// A device that executes kernels on this machine's processor, with the abilities of a chip
    /// of `capability`: 90 or 80.
    ///
    /// # Errors
    ///
    /// A kernel does not compile, or there is no C++ compiler.
    pub fn emulated(capability: u32, options: CudaOptions) -> Result<Self, CudaError> {
        Self::emulated_and_watched(capability, options).map(|(cuda, _)| cuda)
    }

    /// The same, and what is asked of it.
    ///
    /// # Errors
    ///
    /// As [`emulated`](Self::emulated).
    pub fn emulated_and_watched(
        capability: u32,
        options: CudaOptions,
    ) -> Result<(Self, Watch), CudaError> {
        let broken = |fault: Fault| CudaError::Unusable { index: 0, what: fault.to_string() };
        let device = Arc::new(Emulated::new(capability).map_err(broken)?);
        let shared = Shared::new(Box::new(device.clone()), options).map_err(broken)?;
        Ok((Self::new(shared), Watch(device)))
    }
}

/// How often an emulated device was asked for what, so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calls {
    /// Kernels, each enqueued in some microseconds.
    pub launches: u64,
    /// Copies to the device.
    pub writes: u64,
    /// Waits for all work before, each for one copy to the host or for two.
    pub reads: u64,
}

/// What is asked of an emulated device.
pub struct Watch(Arc<Emulated>);

impl Watch {
    /// What was asked for by `work`, and by whoever else used the device meanwhile.
    pub fn calls(&self, work: impl FnOnce()) -> Calls {
        let before = self.0.calls();
        work();
        let after = self.0.calls();
        Calls {
            launches: after.launches - before.launches,
            writes: after.writes - before.writes,
            reads: after.reads - before.reads,
        }
    }
}

/// This machine's processor as a device.
pub(crate) struct Emulated {
    properties: Properties,
    library: &'static Library,
    memory: Mutex<Memory>,
    launches: AtomicU64,
    writes: AtomicU64,
    reads: AtomicU64,
}

impl Emulated {
    /// With the abilities of a chip of `capability`.
    pub(crate) fn new(capability: u32) -> Result<Self, Fault> {
        let shared_bytes = if capability >= 90 { 227 << 10 } else { 163 << 10 };
        let properties = Properties {
            name: NAME.to_owned(),
            capability,
            multiprocessors: MULTIPROCESSORS,
            shared_bytes,
        };
        Ok(Self {
            properties,
            library: Library::get()?,
            memory: Mutex::default(),
            launches: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        })
    }

    /// The bytes that C++ counts in a kernel's parameters; `None` where there is no such kernel.
    #[cfg_attr(not(test), allow(dead_code, reason = "a launch checks them itself"))]
    pub(crate) fn params_bytes(&self, kernel: &str) -> Option<usize> {
        self.library.params_bytes(&CString::new(kernel).ok()?)
    }

    fn calls(&self) -> Calls {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (launches, writes) = (count(&self.launches), count(&self.writes));
        Calls { launches, writes, reads: count(&self.reads) }
    }

    /// Whoever holds this has the stream for himself.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, launch: &Launch<'_>) -> Result<(), String> {
        let most = self.properties.shared_bytes;
        if launch.shared_bytes > most {
            let asked = launch.shared_bytes;
            return Err(format!("{asked} bytes of shared memory are asked for, {most} there are"));
        }
        let name = CString::new(launch.kernel).map_err(|it| it.to_string())?;
        let mut error = [0_u8; ERROR_BYTES];
        let seed = self.launches.fetch_add(1, Ordering::Relaxed);
        self.library.launch(LaunchCall {
            name: &name,
            launch,
            capability: self.properties.capability,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            error: &mut error,
        })
    }
}

impl Copies for Emulated {
    fn write(&self, to: Address, from: &[u8]) -> Result<(), Fault> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.memory().write(to, from)
    }

    fn read(&self, from: Address, to: &mut [u8]) -> Result<(), Fault> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.memory().read(from, to)
    }

    fn read_both(&self, first: Copied<'_>, second: Copied<'_>) -> Result<(), Fault> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let memory = self.memory();
        memory.read(first.0, first.1)?;
        memory.read(second.0, second.1)
    }
}

impl Device for Emulated {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<Address, Fault> {
        self.memory().allocate(bytes)
    }

    fn release(&self, at: Address) {
        self.memory().release(at);
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<(), Fault> {
        let memory = self.memory();
        let call = || format!("launch of {}", launch.kernel);
        self.run(launch).map_err(|what| Fault::new(call(), memory.explain(&what)))?;
        memory.check().map_err(|what| Fault::new(call(), what))
    }

    fn tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap, Fault> {
        encode(&self.memory(), spec).map_err(|what| Fault::new("tensor_map", what))
    }
}

/// `Map` of engine.cpp, with what the driver would refuse.
fn encode(memory: &Memory, spec: &TensorMapSpec) -> Result<TensorMap, String> {
    let TensorMapSpec { address, size, stride_bytes, box_size } = *spec;
    let refuse = |what: &str| Err(format!("{what}: {spec:?}"));
    if !address.0.is_multiple_of(16) || stride_bytes.iter().any(|it| !it.is_multiple_of(16)) {
        return refuse("address and strides are multiples of 16 bytes");
    }
    if size.contains(&0) || box_size.iter().any(|it| !(1..=256).contains(it)) {
        return refuse("an array has elements, and a box at most 256 along each dimension");
    }
    if box_size[0] != BOX_COLUMNS {
        return refuse("only boxes of 64 columns are emulated");
    }
    let last = (size[1] - 1) * stride_bytes[0] + (size[2] - 1) * stride_bytes[1];
    let bytes = (last + size[0] * size_of::<u16>() as u64) as usize;
    memory.holds(address, bytes).map_err(|fault| fault.to_string())?;
    let [x, y, z] = size;
    let [row, plane] = stride_bytes;
    let [columns, rows, planes] = box_size.map(u64::from);
    let words =
        [MAP_MAGIC, address.0, x, y, z, row, plane, columns, rows, planes, 0, 0, 0, 0, 0, 0];
    Ok(TensorMap(words))
}
