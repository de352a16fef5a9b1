//! NVIDIA's libraries beside the driver, each of which a machine may lack.

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::{mem, ptr};

use super::driver::nvrtc;
use super::{cublaslt, nccl};

/// A library that is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvidiaLibrary {
    /// As NVIDIA calls it.
    pub name: &'static str,
    /// The file that was opened, or why none was.
    pub file: Result<PathBuf, String>,
}

/// cuBLASLt, NCCL and NVRTC as this process has them; those that nobody has asked for yet are
/// opened.
pub fn libraries() -> [NvidiaLibrary; 3] {
    [
        NvidiaLibrary { name: "cuBLASLt", file: cublaslt::file().map_err(|it| it.to_string()) },
        NvidiaLibrary { name: "NCCL", file: nccl::file().map_err(|it| it.to_string()) },
        NvidiaLibrary { name: "NVRTC", file: nvrtc() },
    ]
}

/// The file of the library that a function is in.
pub(super) fn file_of(function: *const c_void) -> Option<PathBuf> {
    // SAFETY: plain pointers, for which null is a value.
    let mut found: libc::Dl_info = unsafe { mem::zeroed() };
    // SAFETY: `found` is a place for one answer, and the loader only compares the address.
    let known = unsafe { libc::dladdr(function, ptr::from_mut(&mut found)) };
    if known == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's string ends in a zero, and lasts as long as the library, which stays.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(OsStr::from_bytes(name.to_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_there_or_there_is_a_reason() {
        let found = libraries();
        assert_eq!(found.each_ref().map(|it| it.name), ["cuBLASLt", "NCCL", "NVRTC"]);
        for NvidiaLibrary { name, file } in found {
            match file {
                Ok(file) => assert!(file.to_string_lossy().contains("lib"), "{name}: {file:?}"),
                Err(why) => assert!(why.contains("lib"), "{name}: {why}"),
            }
        }
    }

    #[test]
    fn the_file_of_a_function_is_known() {
        let file = file_of(libc::getpid as *const c_void).unwrap();
        assert!(file.to_string_lossy().contains("libc"), "{file:?}");
        assert_eq!(file_of(ptr::null()), None);
    }
}
