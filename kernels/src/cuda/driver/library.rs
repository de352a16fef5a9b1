//! The driver library, looked for when a device is.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUmodule, CUstream, CUtensorMap, CUtensorMapDataType,
    CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};

use crate::cuda::device::{Fault, Shortage};
use crate::cuda::table::functions;

/// The oldest driver served: 12.0, the first that makes tensor maps.
const VERSION_MIN: c_int = 12_000;

pub(super) const SUCCESS: c_int = 0;
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
pub(super) const NOT_FOUND: c_int = 500;
pub(super) const NOT_READY: c_int = 600;

functions!(Functions of sys::culib(), {
    cuCtxGetCurrent(*mut CUcontext);
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuCtxSetCurrent(CUcontext);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDriverGetVersion(*mut c_int);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventElapsedTime(*mut f32, CUevent, CUevent);
    cuEventQuery(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction);
    cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
    cuGetErrorName(c_int, *mut *const c_char);
    cuGetErrorString(c_int, *mut *const c_char);
    cuInit(c_uint);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
        *mut *mut c_void, *mut *mut c_void,
    );
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFreeHost(*mut c_void);
    cuMemFree_v2(CUdeviceptr);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuModuleLoadData(*mut CUmodule, *const c_void);
    cuModuleUnload(CUmodule);
    cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
    cuStreamDestroy_v2(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuTensorMapEncodeTiled(
        *mut CUtensorMap, CUtensorMapDataType, u32, *mut c_void, *const u64, *const u64,
        *const u32, *const u32, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
        CUtensorMapFloatOOBfill,
    );
});

/// `cuFuncGetParamInfo`, which drivers before 12.4 lack.
type ParamInfo = unsafe extern "C" fn(CUfunction, usize, *mut usize, *mut usize) -> c_int;
/// `cuModuleGetFunctionCount`, `cuModuleEnumerateFunctions` and `cuFuncLoad`, which they lack too.
type FunctionCount = unsafe extern "C" fn(*mut c_uint, CUmodule) -> c_int;
type EnumerateFunctions = unsafe extern "C" fn(*mut CUfunction, c_uint, CUmodule) -> c_int;
type LoadFunction = unsafe extern "C" fn(CUfunction) -> c_int;

/// Opens the driver library and starts it.
///
/// # Errors
/// What the machine lacks, in words that follow "no CUDA device".
pub(crate) fn open() -> Result<(), String> {
    let driver = found()?;
    // SAFETY: the one flag that there is means nothing.
    match unsafe { (driver.cuInit)(0) } {
        NO_DEVICE => return Err("the driver sees none".into()),
        status => check("cuInit", status).map_err(|fault| fault.what)?,
    }
    let version = version().map_err(|fault| fault.what)?;
    if version < VERSION_MIN {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(format!("the driver is for CUDA {major}.{minor}, and 12.0 is needed"));
    }
    Ok(())
}

/// The newest CUDA that the driver serves, as 1000 major + 10 minor.
pub(super) fn version() -> Result<c_int, Fault> {
    let mut version = 0;
    // SAFETY: `version` is a place for one integer.
    let status = unsafe { (driver()?.cuDriverGetVersion)(&raw mut version) };
    check("cuDriverGetVersion", status).map(|()| version)
}

/// The driver's functions, where the machine has all of them.
fn found() -> Result<&'static Functions, String> {
    static FOUND: OnceLock<Result<Functions, String>> = OnceLock::new();
    let look = || {
        // SAFETY: this looks whether the system can open the library, which any process may do.
        if !unsafe { sys::is_culib_present() } {
            return Err("there is no driver library libcuda.so.1".into());
        }
        Functions::look_up().map_err(|name| format!("the driver is too old: it has no {name}"))
    };
    FOUND.get_or_init(look).as_ref().map_err(String::clone)
}

/// The driver's functions.
///
/// # Errors
/// It is not there; nobody who has a device sees that.
pub(super) fn driver() -> Result<&'static Functions, Fault> {
    found().map_err(|what| Fault::new("libcuda", what))
}

/// Bytes of a kernel's one argument; `None` where the driver does not tell.
pub(super) fn params_bytes(function: CUfunction) -> Option<usize> {
    // SAFETY: the driver library is there, for a function of its is; this is the type of its
    // headers.
    let told = unsafe { sys::culib().get::<ParamInfo>(b"cuFuncGetParamInfo") }.ok()?;
    let (mut offset, mut bytes) = (0, 0);
    // SAFETY: `function` is of a loaded module, and both results are words.
    let status = unsafe { told(function, 0, &raw mut offset, &raw mut bytes) };
    (status == SUCCESS).then_some(bytes)
}

/// Loads all functions of a loaded module, where the driver has a way to.
pub(super) fn load_functions(module: CUmodule) -> Result<(), Fault> {
    // SAFETY: the driver library is there, for a module of its is; these are the types of its
    // headers.
    let found = unsafe {
        let library = sys::culib();
        let count = library.get::<FunctionCount>(b"cuModuleGetFunctionCount");
        let all = library.get::<EnumerateFunctions>(b"cuModuleEnumerateFunctions");
        (count, all, library.get::<LoadFunction>(b"cuFuncLoad"))
    };
    let (Ok(count), Ok(all), Ok(load)) = found else { return Ok(()) };
    let mut functions_count = 0;
    // SAFETY: the module is loaded, and the count is one integer.
    let status = unsafe { count(&raw mut functions_count, module) };
    check("cuModuleGetFunctionCount", status)?;
    let mut functions: Vec<CUfunction> = vec![ptr::null_mut(); functions_count as usize];
    // SAFETY: there is room for as many as are asked for.
    let status = unsafe { all(functions.as_mut_ptr(), functions_count, module) };
    check("cuModuleEnumerateFunctions", status)?;
    for function in functions.into_iter().filter(|function| !function.is_null()) {
        // SAFETY: it is of the module.
        check("cuFuncLoad", unsafe { load(function) })?;
    }
    Ok(())
}

/// What `status` says of memory of the device that was asked for; `room` is what there is of it,
/// free and in all.
pub(super) fn check_memory(
    call: &str,
    status: c_int,
    wanted_bytes: usize,
    room: impl FnOnce() -> Result<(usize, usize), Fault>,
) -> Result<(), Fault> {
    check(call, status).map_err(|fault| match (status, room()) {
        (OUT_OF_MEMORY, Ok((free_bytes, bytes))) => {
            let shortage = Some(Shortage { wanted_bytes, free_bytes, bytes });
            Fault { shortage, ..fault }
        }
        _ => fault,
    })
}

/// What `status` says of `call`.
pub(super) fn check(call: &str, status: c_int) -> Result<(), Fault> {
    match status {
        SUCCESS => Ok(()),
        _ => Err(Fault::new(call, describe(status))),
    }
}

/// A status in the driver's words.
fn describe(status: c_int) -> String {
    let Ok(driver) = found() else { return format!("status {status}") };
    let words = |tell: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
        let mut words = ptr::null();
        // SAFETY: `words` is a place for one pointer, which stays null for an unknown status.
        unsafe { tell(status, &raw mut words) };
        // SAFETY: the driver's words last as long as it does, and end in a zero.
        (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) }.to_string_lossy())
    };
    let name = words(driver.cuGetErrorName).unwrap_or_else(|| format!("status {status}").into());
    format!("{} ({name})", words(driver.cuGetErrorString).unwrap_or_else(|| "unknown".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_missing_is_told_from_other_faults() {
        let check = |status, room, want: Option<Shortage>| {
            let fault = check_memory("cuMemAlloc", status, 5, || room).unwrap_err();
            assert_eq!((fault.call.as_str(), fault.shortage), ("cuMemAlloc", want), "{status}");
        };
        let room = || Ok((3, 80));
        let shortage = Shortage { wanted_bytes: 5, free_bytes: 3, bytes: 80 };
        check(OUT_OF_MEMORY, room(), Some(shortage));
        check(OUT_OF_MEMORY, Err(Fault::new("cuMemGetInfo", "lost")), None);
        check(NOT_FOUND, room(), None);
        assert!(check_memory("cuMemAlloc", SUCCESS, 5, room).is_ok());
    }
}
