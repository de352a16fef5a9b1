//! What the driver hands out, given back when it is dropped.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::library::{self, Functions, check, driver};
use crate::cuda::device::Fault;

/// `CU_STREAM_NON_BLOCKING` and `CU_EVENT_DISABLE_TIMING`.
const WAITS_FOR_NO_OTHER: u32 = 1;
const WITHOUT_TIME: u32 = 2;

/// What giving back says is lost: an error leaves nothing to be done.
fn give_back(call: impl FnOnce(&Functions) -> i32) {
    if let Ok(driver) = driver() {
        call(driver);
    }
}

/// A device's primary context, which every library in the process shares. It is kept for as long
/// as the process lives: what a library has under way when it is told to stop, and what is dropped
/// on other threads, ends after whoever opened the device has gone.
pub(super) struct Context(sys::CUcontext);

// SAFETY: a context belongs to the process; any thread may make it its current one.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn of(device: sys::CUdevice) -> Result<Self, Fault> {
        let mut context = ptr::null_mut();
        // SAFETY: `device` came from the driver; the context is never released.
        let status = unsafe { (driver()?.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
        check("cuDevicePrimaryCtxRetain", status).map(|()| Self(context))
    }

    /// Calls of this thread mean this device from now on.
    pub(super) fn bind(&self) -> Result<(), Fault> {
        // SAFETY: the context is retained for ever.
        check("cuCtxSetCurrent", unsafe { (driver()?.cuCtxSetCurrent)(self.0) })
    }
}

/// Whose blocks a multiprocessor takes first when it has room for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Those of most streams.
    Usual,
    /// Before all others.
    First,
}

/// The current context.
fn current() -> Result<sys::CUcontext, Fault> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is a place for one pointer.
    let status = unsafe { (driver()?.cuCtxGetCurrent)(&raw mut context) };
    check("cuCtxGetCurrent", status).map(|()| context)
}

/// A stream of its own, which waits for no other, and its context: whoever drops it may be on a
/// thread whose calls mean no device.
pub(super) struct Stream(pub(super) sys::CUstream, sys::CUcontext);

// SAFETY: the driver's functions on streams may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Of the current context.
    pub(super) fn new(turn: Turn) -> Result<Self, Fault> {
        let (driver, context) = (driver()?, current()?);
        let (mut last, mut first) = (0, 0);
        // SAFETY: both are places for one integer.
        let range = unsafe { (driver.cuCtxGetStreamPriorityRange)(&raw mut last, &raw mut first) };
        check("cuCtxGetStreamPriorityRange", range)?;
        let priority = match turn {
            Turn::Usual => last,
            Turn::First => first,
        };
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` is a place for one pointer.
        let status = unsafe {
            (driver.cuStreamCreateWithPriority)(&raw mut stream, WAITS_FOR_NO_OTHER, priority)
        };
        check("cuStreamCreateWithPriority", status).map(|()| Self(stream, context))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone; what is under way is finished first.
        // Its context is kept, and all other calls of a thread say first whose they are.
        give_back(|driver| unsafe {
            (driver.cuCtxSetCurrent)(self.1);
            (driver.cuStreamDestroy_v2)(self.0)
        });
    }
}

/// A point in a stream's work.
pub(crate) struct Event {
    event: sys::CUevent,
    /// Whoever drops it may be on a thread whose calls mean no device.
    context: sys::CUcontext,
}

// SAFETY: the driver's functions on events may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Of the current context; `timed` where [`since`](Self::since) will be asked.
    pub(super) fn new(timed: bool) -> Result<Self, Fault> {
        let (mut event, context) = (ptr::null_mut(), current()?);
        let flags = if timed { 0 } else { WITHOUT_TIME };
        // SAFETY: `event` is a place for one pointer.
        let status = unsafe { (driver()?.cuEventCreate)(&raw mut event, flags) };
        check("cuEventCreate", status).map(|()| Self { event, context })
    }

    /// Now stands for everything that `stream` was given so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: both live, and are of one context.
        check("cuEventRecord", unsafe { (driver()?.cuEventRecord)(self.event, stream.0) })
    }

    /// As the driver takes it; lives as long as `self`.
    pub(super) fn raw(&self) -> sys::CUevent {
        self.event
    }

    /// Whether the device has come here.
    pub(crate) fn reached(&self) -> Result<bool, Fault> {
        // SAFETY: the event lives.
        match unsafe { (driver()?.cuEventQuery)(self.event) } {
            library::NOT_READY => Ok(false),
            status => check("cuEventQuery", status).map(|()| true),
        }
    }

    /// Milliseconds that the device took from `start`; both were reached, both are timed.
    pub(super) fn since(&self, start: &Self) -> Result<f32, Fault> {
        let mut milliseconds = 0.0;
        let (start, end) = (start.event, self.event);
        // SAFETY: both events live, and the result is one f32.
        let status = unsafe { (driver()?.cuEventElapsedTime)(&raw mut milliseconds, start, end) };
        check("cuEventElapsedTime", status).map(|()| milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone; the driver may still be on its way to it.
        // Its context is kept, and all other calls of a thread say first whose they are.
        give_back(|driver| unsafe {
            (driver.cuCtxSetCurrent)(self.context);
            (driver.cuEventDestroy_v2)(self.event)
        });
    }
}

/// Host memory that the device reads and writes itself.
pub(super) struct Pinned(*mut c_void);

// SAFETY: it is memory of the process, and belongs to whoever has the `Pinned`.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(bytes: usize) -> Result<Self, Fault> {
        let mut memory = ptr::null_mut();
        // SAFETY: no flags; freed once, in `drop`.
        let status = unsafe { (driver()?.cuMemHostAlloc)(&raw mut memory, bytes, 0) };
        check("cuMemHostAlloc", status).map(|()| Self(memory))
    }

    /// Of the first byte.
    pub(super) fn start(&self) -> *mut u8 {
        self.0.cast()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed here alone.
        give_back(|driver| unsafe { (driver.cuMemFreeHost)(self.0) });
    }
}

/// Machine code on the device.
pub(super) struct Module(sys::CUmodule);

// SAFETY: the driver's functions on modules may be called from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Of a cubin, or of PTX that ends in a zero.
    pub(super) fn load(image: &[u8]) -> Result<Self, Fault> {
        let mut module = ptr::null_mut();
        // SAFETY: both forms say themselves where they end; ours come from our own compiler.
        let status =
            unsafe { (driver()?.cuModuleLoadData)(&raw mut module, image.as_ptr().cast()) };
        check("cuModuleLoadData", status).map(|()| Self(module))
    }

    /// Loads all kernels now: the driver would load each when it is first asked for, and may wait
    /// for what a stream has under way, which may be a wait for a peer.
    pub(super) fn load_kernels(&self) -> Result<(), Fault> {
        library::load_functions(self.0)
    }

    /// The kernel of that name, where the module has it.
    pub(super) fn function(&self, name: &CStr) -> Result<Option<sys::CUfunction>, Fault> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a zero.
        let status =
            unsafe { (driver()?.cuModuleGetFunction)(&raw mut function, self.0, name.as_ptr()) };
        match status {
            library::NOT_FOUND => Ok(None),
            _ => check("cuModuleGetFunction", status).map(|()| Some(function)),
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `load`, unloaded here alone; nobody launches from it any more.
        give_back(|driver| unsafe { (driver.cuModuleUnload)(self.0) });
    }
}
