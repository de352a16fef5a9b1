//! The emulator's C functions.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;

use libloading::os::unix;

use super::super::device::{Fault, Launch};
use super::compile;

/// `AqLaunch` of runtime.cpp.
#[repr(C)]
struct AqLaunch {
    name: *const c_char,
    grid: [u32; 3],
    threads: u32,
    capability: u32,
    shared_bytes: u64,
    params: *const c_void,
    params_bytes: u64,
    seed: u64,
    error: *mut u8,
    error_bytes: u64,
}

type LaunchFunction = unsafe extern "C" fn(*const AqLaunch) -> c_int;
type ParamsBytesFunction = unsafe extern "C" fn(*const c_char) -> u64;

/// A launch, and where it is told what went wrong.
pub(super) struct LaunchCall<'a> {
    pub(super) name: &'a CStr,
    pub(super) launch: &'a Launch<'a>,
    /// Of the chip that is emulated.
    pub(super) capability: u32,
    /// Decides the order in which threads come.
    pub(super) seed: u64,
    pub(super) error: &'a mut [u8],
}

/// The runtime, and all kernels, for as long as the process lives.
pub(super) struct Library {
    launch: LaunchFunction,
    params_bytes: ParamsBytesFunction,
}

impl Library {
    /// Compiles and loads them when they are first asked for.
    pub(super) fn get() -> Result<&'static Self, Fault> {
        static LIBRARY: OnceLock<Result<Library, Fault>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, Fault> {
        let broken = |error| Fault::new("loading the emulator", error);
        let mut paths = compile::libraries()?.into_iter();
        let runtime =
            paths.next().ok_or_else(|| Fault::new("loading the emulator", "no runtime"))?;
        let runtime = open(&runtime).map_err(broken)?;
        for path in paths {
            // Kernels register themselves, and nobody asks for the library again.
            std::mem::forget(open(&path).map_err(broken)?);
        }
        // SAFETY: runtime.cpp defines both functions as the types say.
        let (launch, params_bytes) = unsafe {
            (
                *runtime.get::<LaunchFunction>(b"aq_launch\0").map_err(broken)?,
                *runtime.get::<ParamsBytesFunction>(b"aq_params_bytes\0").map_err(broken)?,
            )
        };
        std::mem::forget(runtime);
        Ok(Self { launch, params_bytes })
    }

    pub(super) fn launch(&self, call: LaunchCall<'_>) -> Result<(), String> {
        let LaunchCall { name, launch, capability, seed, error } = call;
        let aq_launch = AqLaunch {
            name: name.as_ptr(),
            grid: launch.grid,
            threads: launch.threads,
            capability,
            shared_bytes: launch.shared_bytes as u64,
            params: launch.params.as_ptr().cast(),
            params_bytes: launch.params.len() as u64,
            seed,
            error: error.as_mut_ptr(),
            error_bytes: error.len() as u64,
        };
        // SAFETY: all pointers are to memory that outlives the call, with the lengths beside
        // them; the function checks the name and the length of the parameters, and catches what
        // a kernel touches outside of arrays.
        if unsafe { (self.launch)(&raw const aq_launch) } == 0 {
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(error).unwrap_or(c"unknown");
        Err(text.to_string_lossy().into_owned())
    }

    pub(super) fn params_bytes(&self, name: &CStr) -> Option<usize> {
        // SAFETY: the name ends in a zero and outlives the call.
        let bytes = unsafe { (self.params_bytes)(name.as_ptr()) };
        (bytes > 0).then_some(bytes as usize)
    }
}

/// Kernels find the runtime's functions because all that is loaded is visible to all.
fn open(path: &Path) -> Result<unix::Library, libloading::Error> {
    // SAFETY: the initialisers of our own libraries add kernels to a list, under the lock that
    // the loader holds.
    unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_GLOBAL) }
}
