//! A device through NVIDIA's driver, which is looked for when a device is opened.

mod compile;
mod handles;
mod kernels;
pub(crate) mod library;
mod progress;
pub(crate) mod side;
mod staging;

use std::collections::VecDeque;
use std::ffi::{CStr, c_int, c_void};
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{ptr, slice, thread};

use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute as Attribute;

pub(super) use self::compile::file as nvrtc;
pub(crate) use self::handles::Event;
use self::handles::{Context, Stream, Turn};
use self::kernels::Kernels;
use self::library::{check, check_memory, driver};
use self::progress::{Progress, Stall};
use self::staging::{Outbox, SLOT_BYTES, Slot};
use super::device::{
    Address, Copied, Copies, Device, Fault, Launch, Properties, TensorMap, TensorMapSpec,
};
use super::leave;

/// The oldest chips served: the first whose matrix instructions take bf16.
const CAPABILITY_MIN: u32 = 80;

/// How long a wait asks again and again before it sleeps in between.
const SPIN: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(50);

/// A device with one stream of its own.
pub(crate) struct Driver {
    properties: Properties,
    patience: Duration,
    /// It did not answer in time. Nothing is asked of it any more, not even to free memory,
    /// because that would wait too.
    lost: AtomicBool,
    parts: ManuallyDrop<Parts>,
}

/// What goes when the device is given back, in this order.
struct Parts {
    kernels: Kernels,
    outbox: Mutex<Outbox>,
    /// For copies to the host, as many as threads ever made at once, two for each.
    inbox: Mutex<Vec<Slot>>,
    progress: Progress,
    stream: Stream,
    context: Context,
}

impl Driver {
    /// Devices that the driver, which is open, has.
    pub(crate) fn count() -> Result<usize, Fault> {
        let mut count = 0;
        // SAFETY: `count` is a place for one integer.
        check("cuDeviceGetCount", unsafe { (driver()?.cuDeviceGetCount)(&raw mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// What device `index` of [`count`](Self::count) is.
    pub(crate) fn describe(index: usize) -> Result<Properties, Fault> {
        let device = handle(index)?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the driver gave us the device, and `value` is a place for one integer.
            let status =
                unsafe { (driver()?.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
            check("cuDeviceGetAttribute", status).map(|()| value as u32)
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        Ok(Properties {
            name: name(device)?,
            capability: 10 * major + minor,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_bytes: shared as usize,
        })
    }

    /// Device `index`, which counts as lost when it gets no further within `patience`.
    pub(crate) fn open(index: usize, patience: Duration) -> Result<Self, Fault> {
        let properties = Self::describe(index)?;
        let capability = properties.capability;
        if capability < CAPABILITY_MIN {
            let (major, minor) = (capability / 10, capability % 10);
            let what = format!("its compute capability is {major}.{minor}, and 8.0 is needed");
            return Err(Fault::new(properties.name, what));
        }
        let context = Context::of(handle(index)?)?;
        context.bind()?;
        let parts = Parts {
            kernels: Kernels::load(&properties)?,
            outbox: Mutex::default(),
            inbox: Mutex::default(),
            progress: Progress::default(),
            stream: Stream::new(Turn::Usual)?,
            context,
        };
        let (lost, parts) = (AtomicBool::new(false), ManuallyDrop::new(parts));
        Ok(Self { properties, patience, lost, parts })
    }

    /// Bytes of its memory that nobody has.
    pub(crate) fn free_bytes(&self) -> Result<usize, Fault> {
        self.room().map(|(free, _)| free)
    }

    /// The same, and all bytes of its memory.
    fn room(&self) -> Result<(usize, usize), Fault> {
        self.bind("cuMemGetInfo")?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: both are places for a word.
        let status = unsafe { (driver()?.cuMemGetInfo_v2)(&raw mut free, &raw mut all) };
        check("cuMemGetInfo", status).map(|()| (free, all))
    }

    /// Calls of this thread to NVIDIA's libraries mean this device from now on.
    pub(crate) fn bind(&self, call: &str) -> Result<(), Fault> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Fault::new(call, "the device was given up because it did not answer"));
        }
        self.parts.context.bind()
    }

    /// Where all work goes; lives as long as `self`.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.parts.stream.0
    }

    /// A point behind everything that was enqueued so far; the time there can be asked for.
    pub(crate) fn mark(&self) -> Result<Event, Fault> {
        self.bind("cuEventRecord")?;
        let event = Event::new(true)?;
        event.record(&self.parts.stream)?;
        Ok(event)
    }

    /// Waits until the device has come to `event`, or is lost: gets no further on its way there.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), Fault> {
        let start = Instant::now();
        while !event.reached()? && start.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        let mut stall = Stall::new(start, self.parts.progress.made());
        while !event.reached()? {
            if stall.lasts(Instant::now(), self.parts.progress.passed()) > self.patience {
                self.lost.store(true, Ordering::Release);
                leave::left_behind();
                let what = format!("the device did not answer within {:?}", self.patience);
                return Err(Fault::new("wait", what));
            }
            nap();
        }
        Ok(())
    }

    /// How long the device took from one mark to a later one; waits for both.
    pub(crate) fn between(&self, start: &Event, end: &Event) -> Result<Duration, Fault> {
        self.bind("cuEventElapsedTime")?;
        self.wait(end)?;
        let milliseconds = end.since(start)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds).max(0.0) / 1e3))
    }

    /// Waits for everything before on `stream`, and copies to the host.
    fn read_on(&self, stream: &Stream, from: Address, to: &mut [u8]) -> Result<(), Fault> {
        self.read_parts_on(stream, chunks(from, to))
    }

    /// The same of many parts of at most a slot each. Two are on their way at any time, so as few
    /// as two are one wait.
    fn read_parts_on<'a>(
        &self,
        stream: &Stream,
        mut parts: impl Iterator<Item = Copied<'a>>,
    ) -> Result<(), Fault> {
        self.bind("cuMemcpyDtoHAsync")?;
        let mut flying = VecDeque::new();
        loop {
            while flying.len() < 2
                && let Some((at, part)) = parts.next()
            {
                match self.copy_out(stream, at, part.len()) {
                    Ok(slot) => flying.push_back((slot, part)),
                    Err(fault) => {
                        mem::forget(flying); // the device may still write there
                        return Err(fault);
                    }
                }
            }
            let Some((slot, part)) = flying.pop_front() else { return Ok(()) };
            if let Err(fault) = self.wait(slot.done()) {
                mem::forget((slot, flying)); // as above
                return Err(fault);
            }
            // SAFETY: the device has written as many bytes there, and is done with them.
            part.copy_from_slice(unsafe { slice::from_raw_parts(slot.at(0), part.len()) });
            locked(&self.parts.inbox).push(slot);
        }
    }

    fn copy_out(&self, stream: &Stream, from: Address, len: usize) -> Result<Slot, Fault> {
        let kept = locked(&self.parts.inbox).pop();
        let slot = kept.map_or_else(Slot::new, Ok)?;
        // SAFETY: a slot holds as much as is asked of it, and nobody else has it until the copy
        // is waited for; `from` is the caller's, who vouches for `len` bytes.
        let copied =
            unsafe { (driver()?.cuMemcpyDtoHAsync_v2)(slot.at(0).cast(), from.0, len, stream.0) };
        match check("cuMemcpyDtoHAsync", copied).and_then(|()| slot.used_by(stream)) {
            Ok(()) => Ok(slot),
            Err(fault) => {
                // Nobody knows whether the copy was enqueued: a call reports what became of
                // others before it too.
                mem::forget(slot);
                Err(fault)
            }
        }
    }
}

/// What is copied from `from` on, in parts that a slot holds.
fn chunks(from: Address, to: &mut [u8]) -> impl Iterator<Item = Copied<'_>> {
    let parts = to.chunks_mut(SLOT_BYTES).enumerate();
    parts.map(move |(idx, part)| (Address(from.0 + (idx * SLOT_BYTES) as u64), part))
}

/// The driver's handle of device `index`.
fn handle(index: usize) -> Result<sys::CUdevice, Fault> {
    let ordinal = c_int::try_from(index).map_err(|error| Fault::new("cuDeviceGet", error))?;
    let mut device = 0;
    // SAFETY: `device` is a place for one handle.
    let status = unsafe { (driver()?.cuDeviceGet)(&raw mut device, ordinal) };
    check("cuDeviceGet", status).map(|()| device)
}

fn name(device: sys::CUdevice) -> Result<String, Fault> {
    let mut name = [0_u8; 256];
    // SAFETY: the driver gave us the device, and writes no more than it is told there is room for.
    let status = unsafe {
        (driver()?.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int, device)
    };
    check("cuDeviceGetName", status)?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

#[expect(clippy::disallowed_methods, reason = "the driver has no wait with a deadline")]
pub(super) fn nap() {
    thread::sleep(NAP);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Copies for Driver {
    fn write(&self, to: Address, from: &[u8]) -> Result<(), Fault> {
        self.bind("cuMemcpyHtoDAsync")?;
        let (driver, mut outbox) = (driver()?, locked(&self.parts.outbox));
        for (part_idx, part) in from.chunks(SLOT_BYTES).enumerate() {
            let to = to.0 + (part_idx * SLOT_BYTES) as u64;
            let (slot, offset) = outbox.room(part.len(), |event| self.wait(event))?;
            // SAFETY: `room` found so many bytes that neither the device nor anybody else uses;
            // they stay as they are until the device was there. `to` is the caller's.
            let copied = unsafe {
                let staged = slot.at(offset);
                ptr::copy_nonoverlapping(part.as_ptr(), staged, part.len());
                (driver.cuMemcpyHtoDAsync_v2)(to, staged.cast(), part.len(), self.stream())
            };
            let used = check("cuMemcpyHtoDAsync", copied);
            if let Err(fault) = used.and_then(|()| slot.used_by(&self.parts.stream)) {
                outbox.forget_last(); // the device may still read there
                return Err(fault);
            }
        }
        Ok(())
    }

    fn read(&self, from: Address, to: &mut [u8]) -> Result<(), Fault> {
        self.read_on(&self.parts.stream, from, to)
    }

    fn read_both(&self, first: Copied<'_>, second: Copied<'_>) -> Result<(), Fault> {
        let parts = chunks(first.0, first.1).chain(chunks(second.0, second.1));
        self.read_parts_on(&self.parts.stream, parts)
    }
}

impl Device for Driver {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<Address, Fault> {
        self.bind("cuMemAlloc")?;
        let mut memory = 0;
        // SAFETY: memory nobody reads before it is written; the driver aligns to 256 bytes.
        let status = unsafe { (driver()?.cuMemAlloc_v2)(&raw mut memory, bytes.max(1)) };
        check_memory("cuMemAlloc", status, bytes, || self.room()).map(|()| Address(memory))
    }

    /// Waits for what is under way, as the driver would, but not for ever.
    fn release(&self, at: Address) {
        let idle = self.mark().and_then(|event| self.wait(&event));
        if let (Ok(()), Ok(driver)) = (idle, driver()) {
            // SAFETY: `at` came from `allocate`, and whoever had it has let go of it.
            let _ = unsafe { (driver.cuMemFree_v2)(at.0) };
        }
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<(), Fault> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        self.bind(launch.kernel)?;
        let kernel = self.parts.kernels.find(launch.kernel)?;
        if let Some(bytes) = kernel.params_bytes
            && bytes != launch.params.len()
        {
            let what = format!("it takes {bytes} bytes and was given {}", launch.params.len());
            return Err(Fault::new(launch.kernel, what));
        }
        let [x, y, z] = launch.grid;
        let mut arguments = [launch.params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the driver copies the argument, whose size was checked, before it returns. What
        // the kernel does with the addresses in it is on whoever filled it in.
        let launched = unsafe {
            (driver()?.cuLaunchKernel)(
                kernel.function,
                x,
                y,
                z,
                launch.threads,
                1,
                1,
                launch.shared_bytes as u32,
                self.stream(),
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(launch.kernel, launched)?;
        self.parts.progress.kernel_went_to(&self.parts.stream)
    }

    fn tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap, Fault> {
        use sys::{
            CUtensorMapDataType as Element, CUtensorMapFloatOOBfill as Outside,
            CUtensorMapInterleave as Interleave, CUtensorMapL2promotion as Promotion,
            CUtensorMapSwizzle as Swizzle,
        };
        self.bind("cuTensorMapEncodeTiled")?;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays have as many elements as a map of three dimensions takes; the
        // address is not followed here.
        let encoded = unsafe {
            (driver()?.cuTensorMapEncodeTiled)(
                &raw mut map,
                Element::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                3,
                ptr::without_provenance_mut(spec.address.0 as usize),
                spec.size.as_ptr(),
                spec.stride_bytes.as_ptr(),
                spec.box_size.as_ptr(),
                [1; 3].as_ptr(),
                Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                Outside::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        let failed = |fault: Fault| Fault::new(format!("{spec:?}"), fault.what);
        check("cuTensorMapEncodeTiled", encoded).map(|()| TensorMap(map.opaque)).map_err(failed)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let idle = self.mark().and_then(|event| self.wait(&event));
        if idle.is_ok() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine's first device, where it has one.
    fn device() -> Option<Driver> {
        library::open().ok()?;
        let device = Driver::open(0, Duration::from_secs(60));
        Some(device.unwrap_or_else(|fault| panic!("{fault}")))
    }

    #[test]
    fn copies_of_every_size_come_back() {
        let Some(device) = device() else { return };
        for len in [0, 1, 63, 4097, SLOT_BYTES - 1, SLOT_BYTES + 1, 20 * SLOT_BYTES + 5] {
            let mut bytes: Vec<u8> = (0..len).map(|idx| (idx % 251) as u8).collect();
            let at = device.allocate(len).unwrap();
            device.write(at, &bytes).unwrap();
            let want = std::mem::take(&mut bytes);
            let mut copied = vec![0; len];
            device.read(at, &mut copied).unwrap();
            assert!(copied == want, "{len} bytes");
            device.release(at);
        }
    }

    #[test]
    fn what_is_written_may_change_at_once() {
        let Some(device) = device() else { return };
        let places: Vec<_> = (0..2000).map(|_| device.allocate(4).unwrap()).collect();
        let mut value = [0; 4];
        for (idx, at) in places.iter().enumerate() {
            value = (idx as u32).to_ne_bytes();
            device.write(*at, &value).unwrap();
            value.fill(0xFF);
        }
        for (idx, at) in places.iter().enumerate() {
            device.read(*at, &mut value).unwrap();
            assert_eq!(u32::from_ne_bytes(value), idx as u32);
            device.release(*at);
        }
    }

    #[test]
    fn threads_share_a_device() {
        let Some(device) = device() else { return };
        thread::scope(|scope| {
            for number in 0..4_u8 {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..50 {
                        let (len, mut copied) = (1 + round * 997, vec![0; 1 + round * 997]);
                        let at = device.allocate(len).unwrap();
                        device.write(at, &vec![number; len]).unwrap();
                        device.read(at, &mut copied).unwrap();
                        assert!(copied.iter().all(|&byte| byte == number));
                        device.release(at);
                    }
                });
            }
        });
    }

    #[test]
    fn time_passes_between_marks() {
        let Some(device) = device() else { return };
        let start = device.mark().unwrap();
        let at = device.allocate(SLOT_BYTES).unwrap();
        device.write(at, &vec![0; SLOT_BYTES]).unwrap();
        let end = device.mark().unwrap();
        assert!(device.between(&start, &end).unwrap() > Duration::ZERO);
        device.release(at);
    }

    #[test]
    fn a_kernel_that_does_not_exist_is_named() {
        let Some(device) = device() else { return };
        let launch =
            Launch { kernel: "nowhere", grid: [1; 3], threads: 32, shared_bytes: 0, params: &[] };
        assert!(device.launch(&launch).unwrap_err().to_string().starts_with("nowhere: "));
        device.launch(&Launch { grid: [1, 0, 1], ..launch }).unwrap();
    }

    #[test]
    fn arrays_that_cannot_be_mapped_are_refused() {
        let Some(device) = device() else { return };
        let at = device.allocate(1 << 16).unwrap();
        let spec = TensorMapSpec {
            address: at,
            size: [64, 16, 2],
            stride_bytes: [128, 2048],
            box_size: [64, 16, 1],
        };
        if device.properties().capability >= 90 {
            assert_ne!(device.tensor_map(&spec).unwrap().0, [0; 16]);
        }
        device.release(at);
    }
}
