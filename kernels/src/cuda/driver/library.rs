//! The driver library, looked for when a device is.
//!
//! cudarc opens a library at the first call of one of its functions, and panics where the library
//! or the function is missing. So nothing of it is called before [`open`] has seen the library
//! and every function that this crate calls.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::cuda::device::Fault;

/// The oldest driver served: 12.0, the first that makes tensor maps.
const VERSION_MIN: i32 = 12_000;

const CALLED: [&str; 35] = [
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    ELAPSED,
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuTensorMapEncodeTiled",
    // for links on streams of their own
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// cudarc for CUDA 13 calls its successor, which drivers before 12.8 lack.
const ELAPSED: &str = "cuEventElapsedTime";

/// [`ELAPSED`] as the driver declares it.
pub(super) type Elapsed =
    unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// Opens the driver library and starts it.
///
/// # Errors
/// What the machine lacks, in words that follow "no CUDA device".
pub(crate) fn open() -> Result<(), String> {
    // SAFETY: this looks whether the system can open the library, which any process may do.
    if !unsafe { sys::is_culib_present() } {
        return Err("there is no driver library libcuda.so.1".into());
    }
    if let Some(missing) = CALLED.iter().find(|name| !has(name)) {
        return Err(format!("the driver is too old: it has no {missing}"));
    }
    match result::init() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => {
            return Err("the driver sees none".into());
        }
        other => other.map_err(describe)?,
    }
    let mut version = 0;
    // SAFETY: `version` is a place for one integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map_err(describe)?;
    if version < VERSION_MIN {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(format!("the driver is for CUDA {major}.{minor}, and 12.0 is needed"));
    }
    Ok(())
}

/// Whether the driver library, which is there, has this function.
pub(super) fn has(name: &str) -> bool {
    // SAFETY: the symbol is looked up and not called.
    unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
}

/// Milliseconds between two events.
pub(super) fn elapsed() -> Result<Elapsed, Fault> {
    // SAFETY: this is the function's type in every driver since it exists.
    match unsafe { sys::culib().get::<Elapsed>(ELAPSED.as_bytes()) } {
        Ok(function) => Ok(*function),
        Err(error) => Err(Fault::new(ELAPSED, error)),
    }
}

/// An error in the driver's words.
pub(super) fn describe(error: DriverError) -> String {
    let text = |words: Result<&std::ffi::CStr, DriverError>| {
        words.map_or("unknown".into(), |words| words.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}

/// `error` came from `call`.
pub(super) fn fault(call: &str) -> impl Fn(DriverError) -> Fault + '_ {
    move |error| Fault::new(call, describe(error))
}
