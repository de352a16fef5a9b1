//! The library's functions.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cudaDataType_t, cudaStream_t,
};

use crate::cuda::device::Fault;
use crate::cuda::table::functions;

functions!(Functions of sys::culib(), {
    cublasLtCreate(*mut cublasLtHandle_t);
    cublasLtDestroy(cublasLtHandle_t);
    cublasLtMatmul(
        cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void, *const c_void,
        cublasLtMatrixLayout_t, *const c_void, cublasLtMatrixLayout_t, *const c_void,
        *const c_void, cublasLtMatrixLayout_t, *mut c_void, cublasLtMatrixLayout_t,
        *const cublasLtMatmulAlgo_t, *mut c_void, usize, cudaStream_t,
    );
    cublasLtMatmulAlgoGetHeuristic(
        cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, c_int,
        *mut Heuristic, *mut c_int,
    );
    cublasLtMatmulDescCreate(*mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t);
    cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t);
    cublasLtMatmulDescSetAttribute(
        cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, *const c_void, usize,
    );
    cublasLtMatmulPreferenceCreate(*mut cublasLtMatmulPreference_t);
    cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t);
    cublasLtMatmulPreferenceSetAttribute(
        cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, *const c_void, usize,
    );
    cublasLtMatrixLayoutCreate(*mut cublasLtMatrixLayout_t, cudaDataType_t, u64, u64, i64);
    cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t);
});

/// `cublasLtMatmulHeuristicResult_t`, with its status as the number that it is.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Heuristic {
    pub(super) algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
    pub(super) status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(
    size_of::<Heuristic>() == size_of::<sys::cublasLtMatmulHeuristicResult_t>(),
    "field by field what the library's headers say"
);

impl Heuristic {
    /// To be written over.
    pub(super) const NONE: Self = Self {
        algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
        workspace_bytes: 0,
        status: c_int::MAX,
        waves: 0.0,
        reserved: [0; 4],
    };
}

pub(super) const SUCCESS: c_int = 0;

/// The library's functions, where the machine has all of them.
///
/// # Errors
/// The library, or a function of it, is missing.
pub(super) fn found() -> Result<&'static Functions, Fault> {
    static FOUND: OnceLock<Result<Functions, Fault>> = OnceLock::new();
    let look = || {
        // SAFETY: this looks whether the system can open the library, which any process may do.
        if !unsafe { sys::is_culib_present() } {
            return Err(Fault::new("libcublasLt", "it is not installed"));
        }
        Functions::look_up().map_err(|name| Fault::new("libcublasLt", format!("it has no {name}")))
    };
    FOUND.get_or_init(look).as_ref().map_err(Fault::clone)
}

/// What `status` says of `call`.
pub(super) fn check(call: &str, status: c_int) -> Result<(), Fault> {
    match status {
        SUCCESS => Ok(()),
        _ => Err(Fault::new(call, format!("cublasStatus_t {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function that is named wrongly here would be noticed on a machine with a device alone.
    #[test]
    fn the_functions_exist_where_the_library_does() {
        // SAFETY: this looks whether the system can open the library.
        let there = unsafe { sys::is_culib_present() };
        assert_eq!(found().err().map(|fault| fault.to_string()).is_none(), there);
    }
}
