//! The functions of the NCCL library, looked for when somebody first asks.
//!
//! The library is opened here: its file is `libnccl.so.2`, which is none of the names that cudarc
//! tries, and the name without a number comes with packages for developers alone. cudarc's wrappers
//! panic where a function is missing and take every answer for one that they know, so functions are
//! looked up here too, with plain integers.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys;
use libloading::Library;

use super::NCCL;
use crate::cuda::libraries::file_of;
use crate::fabric::FabricError;

/// The library's file, by the names that it may have: on the loader's path, or in the folders of
/// `LD_LIBRARY_PATH`, where those of Python's packages are not unless somebody puts them there.
const FILES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// 2.18: the first with everything that is called here.
const VERSION_MIN: c_int = 21_800;
/// The configuration that 2.17 knew; later libraries fill in the rest.
const CONFIG_VERSION: u32 = 21_700;
const CONFIG_BYTES: usize = offset_of!(sys::ncclConfig_t, trafficClass);
const CONFIG_MAGIC: u32 = 0xcafe_beef;
const UNDEFINED: c_int = c_int::MIN;
/// The most blocks of the device that a communicator takes: a sender's wait until the receiver
/// comes, and meanwhile compute nothing.
const BLOCKS_MAX: c_int = 2;

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
/// `ncclUint8`.
const BYTES: c_int = 1;

/// A communicator, as the library takes it.
pub(super) type Handle = *mut c_void;
type Id = sys::ncclUniqueId;

/// Every function that is called.
pub(super) struct Calls {
    /// The library's, as 10000 major + 100 minor + patch.
    pub(super) version: c_int,
    unique_id: unsafe extern "C" fn(*mut Id) -> c_int,
    init: unsafe extern "C" fn(*mut Handle, c_int, Id, c_int, *mut sys::ncclConfig_t) -> c_int,
    async_error: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    abort: unsafe extern "C" fn(Handle) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, CUstream) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, CUstream) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// What the functions are in.
    _library: Library,
}

/// Whether what was asked for is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    UnderWay,
}

impl Calls {
    /// The library of this machine.
    pub(super) fn get() -> Result<&'static Self, FabricError> {
        static CALLS: OnceLock<Result<Calls, String>> = OnceLock::new();
        let calls = CALLS.get_or_init(|| Self::of(open(&FILES)?)).as_ref();
        calls.map_err(|reason| FabricError::Missing { fabric: NCCL, reason: reason.clone() })
    }

    fn of(library: Library) -> Result<Self, String> {
        let version: unsafe extern "C" fn(*mut c_int) -> c_int = find(&library, "ncclGetVersion")?;
        let mut found = 0;
        // SAFETY: `found` is a place for one integer.
        let answer = unsafe { version(&raw mut found) };
        if answer != SUCCESS || found < VERSION_MIN {
            return Err(format!("it is version {found}, and {VERSION_MIN} is needed"));
        }
        Ok(Self {
            version: found,
            unique_id: find(&library, "ncclGetUniqueId")?,
            init: find(&library, "ncclCommInitRankConfig")?,
            async_error: find(&library, "ncclCommGetAsyncError")?,
            abort: find(&library, "ncclCommAbort")?,
            group_start: find(&library, "ncclGroupStart")?,
            group_end: find(&library, "ncclGroupEnd")?,
            send: find(&library, "ncclSend")?,
            receive: find(&library, "ncclRecv")?,
            error_string: find(&library, "ncclGetErrorString")?,
            _library: library,
        })
    }

    /// The file that the library was opened from.
    pub(super) fn file(&self) -> Option<PathBuf> {
        file_of(self.group_start as *const c_void)
    }

    pub(super) fn unique_id(&self) -> Result<[u8; 128], FabricError> {
        let mut id = Id { internal: [0; 128] };
        // SAFETY: the library writes the 128 bytes of one id.
        let answer = unsafe { (self.unique_id)(&raw mut id) };
        self.judge("ncclGetUniqueId", answer)?;
        Ok(bytemuck::cast(id.internal)) // c_char has a sign on some processors
    }

    /// Begins to join; the communicator can be used when [`progress`](Self::progress) says so.
    pub(super) fn join(
        &self,
        id: [u8; 128],
        (rank, size): (usize, usize),
    ) -> Result<Handle, FabricError> {
        let mut config = sys::ncclConfig_t {
            size: CONFIG_BYTES,
            magic: CONFIG_MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            cgaClusterSize: UNDEFINED,
            minCTAs: UNDEFINED,
            maxCTAs: BLOCKS_MAX,
            netName: std::ptr::null(),
            splitShare: UNDEFINED,
            // SAFETY: plain integers and pointers, of which the library reads none.
            ..unsafe { std::mem::zeroed() }
        };
        let mut handle = std::ptr::null_mut();
        let id = Id { internal: bytemuck::cast(id) };
        // SAFETY: the library copies id and configuration, and writes one handle.
        let answer = unsafe {
            (self.init)(&raw mut handle, size as c_int, id, rank as c_int, &raw mut config)
        };
        let joined = self.judge("ncclCommInitRankConfig", answer);
        if joined.is_err() && !handle.is_null() {
            // SAFETY: the library's own, which nobody else has.
            unsafe { self.abort(handle) };
        }
        joined.map(|_| handle)
    }

    /// What has become of what was last asked of a communicator.
    ///
    /// # Safety
    /// `handle` came from [`join`](Self::join) and was not aborted.
    pub(super) unsafe fn progress(&self, handle: Handle) -> Result<Progress, FabricError> {
        let mut state = SUCCESS;
        // SAFETY: the caller's handle lives; `state` is a place for one integer.
        let answer = unsafe { (self.async_error)(handle, &raw mut state) };
        self.judge("ncclCommGetAsyncError", answer)?;
        self.judge("ncclCommGetAsyncError", state)
    }

    /// Gives up a communicator and what is under way on it.
    ///
    /// # Safety
    /// As for [`progress`](Self::progress), once.
    pub(super) unsafe fn abort(&self, handle: Handle) {
        // SAFETY: the caller vouches for the handle. An error leaves nothing to be done.
        let _ = unsafe { (self.abort)(handle) };
    }

    /// Enqueues `sends` and `receives`, each of so many bytes at an address to or from a rank, as
    /// one.
    ///
    /// # Safety
    /// As for [`progress`](Self::progress); the arrays live, as long as they are said to be,
    /// until `stream` is past them.
    pub(super) unsafe fn exchange(
        &self,
        handle: Handle,
        stream: CUstream,
        sends: &[Piece],
        receives: &[Piece],
    ) -> Result<Progress, FabricError> {
        // SAFETY: takes nothing; every start has its end below.
        self.judge("ncclGroupStart", unsafe { (self.group_start)() })?;
        let mut outcome = Ok(Progress::Done);
        for &Piece { at, bytes, peer } in sends {
            let from = std::ptr::without_provenance(at as usize);
            // SAFETY: the caller's.
            let answer = unsafe { (self.send)(from, bytes, BYTES, peer as c_int, handle, stream) };
            outcome = outcome.and_then(|_| self.judge("ncclSend", answer));
        }
        for &Piece { at, bytes, peer } in receives {
            let to = std::ptr::without_provenance_mut(at as usize);
            // SAFETY: the caller's.
            let answer = unsafe { (self.receive)(to, bytes, BYTES, peer as c_int, handle, stream) };
            outcome = outcome.and_then(|_| self.judge("ncclRecv", answer));
        }
        // SAFETY: ends what was started above, on this thread.
        let ended = self.judge("ncclGroupEnd", unsafe { (self.group_end)() });
        outcome.and(ended)
    }

    fn judge(&self, call: &'static str, answer: c_int) -> Result<Progress, FabricError> {
        match answer {
            SUCCESS => Ok(Progress::Done),
            IN_PROGRESS => Ok(Progress::UnderWay),
            error => {
                // SAFETY: the library returns a string of its own for every integer.
                let words = unsafe { CStr::from_ptr((self.error_string)(error)) };
                let what = words.to_string_lossy().into_owned();
                Err(FabricError::Failed { call, what })
            }
        }
    }
}

/// Bytes at an address, and whom they go to or come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) bytes: usize,
    pub(super) peer: usize,
}

/// The first of `files` that there is.
///
/// # Errors
/// All of them, with what the loader says of the first.
fn open(files: &[&str]) -> Result<Library, String> {
    let mut words = None;
    for file in files {
        // SAFETY: what the library does when it is loaded is NVIDIA's, as all that it does later.
        match unsafe { Library::new(*file) } {
            Ok(library) => return Ok(library),
            Err(error) => words = words.or_else(|| error.source().map(ToString::to_string)),
        }
    }
    let (files, words) = (files.join(" or "), words.unwrap_or_default());
    Err(format!("there is no library {files}: {words}"))
}

fn find<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: callers ask for functions as the library's header declares them, and keep the
    // library as long as the functions.
    unsafe { library.get::<F>(name.as_bytes()) }
        .map(|function| *function)
        .map_err(|_| format!("it has no {name}"))
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// C's library is everywhere, and under a numbered name alone, as NCCL is.
    const THERE: &str = "libc.so.6";
    const NOWHERE: [&str; 2] = ["libnowhere.so.2", "libnowhere.so"];

    #[test]
    fn the_numbered_file_is_looked_for_first() {
        assert_eq!(FILES, ["libnccl.so.2", "libnccl.so"]);
        assert!(open(&[THERE, NOWHERE[1]]).is_ok());
        assert!(open(&[NOWHERE[0], THERE]).is_ok());
    }

    #[test]
    fn files_that_were_tried_are_named() {
        let error = open(&NOWHERE).unwrap_err();
        let want = "there is no library libnowhere.so.2 or libnowhere.so: libnowhere.so.2: ";
        assert!(error.starts_with(want), "{error}");
    }

    #[test]
    fn a_library_that_is_another_is_refused_by_the_function_that_it_lacks() {
        let library = open(&[THERE]).unwrap();
        assert_eq!(Calls::of(library).err(), Some("it has no ncclGetVersion".into()));
    }
}
