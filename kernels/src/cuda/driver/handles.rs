//! What the driver hands out, given back when it is dropped.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::{result, sys};

use super::library::{self, fault};
use crate::cuda::device::Fault;

/// A device's primary context, which every library in the process shares.
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context belongs to the process; any thread may make it its current one.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn of(device: sys::CUdevice) -> Result<Self, Fault> {
        // SAFETY: `device` came from the driver; the context is released once, in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) };
        let context = context.map_err(fault("cuDevicePrimaryCtxRetain"))?;
        Ok(Self { device, context })
    }

    /// Calls of this thread mean this device from now on.
    pub(super) fn bind(&self) -> Result<(), Fault> {
        // SAFETY: the context is retained until `self` is dropped.
        unsafe { result::ctx::set_current(self.context) }.map_err(fault("cuCtxSetCurrent"))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, in `of`. An error leaves nothing to be done.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A stream of its own, which waits for no other.
pub(super) struct Stream(pub(super) sys::CUstream);

// SAFETY: the driver's functions on streams may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Of the current context.
    pub(super) fn new() -> Result<Self, Fault> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        stream.map(Self).map_err(fault("cuStreamCreate"))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone; what is under way is finished first.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// A point in a stream's work.
pub(crate) struct Event(sys::CUevent);

// SAFETY: the driver's functions on events may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Of the current context; `timed` where [`since`](Self::since) will be asked.
    pub(super) fn new(timed: bool) -> Result<Self, Fault> {
        let flags = match timed {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        result::event::create(flags).map(Self).map_err(fault("cuEventCreate"))
    }

    /// Now stands for everything that `stream` was given so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: both live, and are of one context.
        unsafe { result::event::record(self.0, stream.0) }.map_err(fault("cuEventRecord"))
    }

    /// As the driver takes it; lives as long as `self`.
    pub(super) fn raw(&self) -> sys::CUevent {
        self.0
    }

    /// Whether the device has come here.
    pub(crate) fn reached(&self) -> Result<bool, Fault> {
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(self.0) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().map(|()| true).map_err(fault("cuEventQuery")),
        }
    }

    /// Milliseconds that the device took from `start`; both were reached, both are timed.
    pub(super) fn since(&self, start: &Self) -> Result<f32, Fault> {
        let elapsed = library::elapsed()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events live, and the result is one f32.
        let result = unsafe { elapsed(&raw mut milliseconds, start.0, self.0) };
        result.result().map(|()| milliseconds).map_err(fault("cuEventElapsedTime"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone; the driver may still be on its way to it.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Host memory that the device reads and writes itself.
pub(super) struct Pinned(*mut c_void);

// SAFETY: it is memory of the process, and belongs to whoever has the `Pinned`.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(bytes: usize) -> Result<Self, Fault> {
        // SAFETY: no flags; freed once, in `drop`.
        let memory = unsafe { result::malloc_host(bytes, 0) };
        memory.map(Self).map_err(fault("cuMemHostAlloc"))
    }

    /// Of the first byte.
    pub(super) fn start(&self) -> *mut u8 {
        self.0.cast()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed here alone.
        let _ = unsafe { result::free_host(self.0) };
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
        // SAFETY: both forms say themselves where they end; ours come from our own compiler.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
        module.map(Self).map_err(fault("cuModuleLoadData"))
    }

    /// The kernel of that name, where the module has it.
    pub(super) fn function(&self, name: &CStr) -> Result<Option<sys::CUfunction>, Fault> {
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a zero.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, self.0, name.as_ptr()) };
        match found {
            sys::CUresult::CUDA_ERROR_NOT_FOUND => Ok(None),
            other => other.result().map(|()| Some(function)).map_err(fault("cuModuleGetFunction")),
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `load`, unloaded here alone; nobody launches from it any more.
        let _ = unsafe { result::module::unload(self.0) };
    }
}
