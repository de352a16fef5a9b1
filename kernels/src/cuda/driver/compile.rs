//! Kernels for a chip that has no cubin here: NVRTC compiles the sources, where it is installed.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::{ptr, thread};

use cudarc::nvrtc::sys::{self, nvrtcProgram};

use super::library;
use crate::cuda::device::Fault;
use crate::cuda::libraries::file_of;
use crate::cuda::module::{self, Source};
use crate::cuda::table::functions;

functions!(Functions of sys::culib(), {
    nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
    nvrtcCreateProgram(
        *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char,
        *const *const c_char,
    );
    nvrtcDestroyProgram(*mut nvrtcProgram);
    nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
    nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
    nvrtcGetNumSupportedArchs(*mut c_int);
    nvrtcGetPTX(nvrtcProgram, *mut c_char);
    nvrtcGetPTXSize(nvrtcProgram, *mut usize);
    nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
    nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
    nvrtcGetSupportedArchs(*mut c_int);
    nvrtcVersion(*mut c_int, *mut c_int);
});

/// NVRTC's functions.
///
/// # Errors
/// It is not there, or too old.
fn found() -> Result<Functions, String> {
    // SAFETY: this looks whether the system can open the library, which any process may do.
    if !unsafe { sys::is_culib_present() } {
        return Err("there is no libnvrtc".into());
    }
    Functions::look_up().map_err(|name| format!("libnvrtc is too old: it has no {name}"))
}

/// The file of this machine's NVRTC.
///
/// # Errors
/// It is not there, or too old.
pub(in crate::cuda) fn file() -> Result<PathBuf, String> {
    let file = file_of(found()?.nvrtcVersion as *const c_void);
    file.ok_or_else(|| "the file of libnvrtc is not known".into())
}

/// A module of every `.cu` file: machine code where NVRTC knows the chip, else PTX for the newest
/// chip before it that NVRTC knows, which the driver translates.
///
/// # Errors
/// NVRTC is not there or too old, or its words about a file.
pub(super) fn all(capability: u32) -> Result<Vec<Vec<u8>>, Fault> {
    let missing = |what: &str| {
        let (major, minor) = (capability / 10, capability % 10);
        let text = format!(
            "there is no cubin for compute capability {major}.{minor}, and {what}; it comes with \
             the CUDA toolkit and as the Python package nvidia-cuda-nvrtc"
        );
        Fault::new("compile", text)
    };
    let nvrtc = found().map_err(|what| missing(&what))?;
    let known = known_chips(&nvrtc)?;
    let target = Target::of(capability, &known)
        .ok_or_else(|| missing(&format!("libnvrtc knows chips {known:?} alone")))?;
    let headers = Headers::new()?;
    // Half a minute one after the other; the compiler serves many threads.
    thread::scope(|scope| {
        let modules = module::sources().iter().filter(|source| source.is_module(capability));
        let (nvrtc, headers) = (&nvrtc, &headers);
        let start = |source| scope.spawn(move || compile(nvrtc, source, headers, target));
        let under_way: Vec<_> = modules.map(start).collect();
        let panicked = |_| Err(Fault::new("compile", "a thread panicked"));
        under_way.into_iter().map(|it| it.join().unwrap_or_else(panicked)).collect()
    })
}

/// What the driver says of something that NVRTC made: a driver knows what was made before it, and
/// its words for what it does not know tell nobody why.
pub(super) fn explained(fault: Fault) -> Fault {
    let nvrtc = found().ok().and_then(|nvrtc| version(&nvrtc).ok());
    let why = nvrtc.zip(library::version().ok()).and_then(|(nvrtc, driver)| newer(nvrtc, driver));
    match why {
        Some(why) => Fault { what: format!("{}; {why}", fault.what), ..fault },
        None => fault,
    }
}

/// The CUDA that NVRTC is of, as drivers count: 1000 major + 10 minor.
fn version(nvrtc: &Functions) -> Result<c_int, Fault> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are places for one integer.
    let told = unsafe { (nvrtc.nvrtcVersion)(&raw mut major, &raw mut minor) };
    check("nvrtcVersion", told).map(|()| 1000 * major + 10 * minor)
}

/// What is wrong where NVRTC is of a CUDA behind the driver's.
fn newer(nvrtc: c_int, driver: c_int) -> Option<String> {
    let shown = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
    let (made, known) = (shown(nvrtc), shown(driver));
    (nvrtc > driver).then(|| {
        format!(
            "libnvrtc is of CUDA {made} and the driver for {known}, which may not know what it \
             makes: install a newer driver, or nvidia-cuda-nvrtc of {known} or before"
        )
    })
}

/// What `status` says of `call`.
fn check(call: &str, status: c_int) -> Result<(), Fault> {
    match status {
        0 => Ok(()),
        _ => Err(Fault::new(call, format!("nvrtcResult {status}"))),
    }
}

/// Compute capabilities that NVRTC compiles for, ascending.
fn known_chips(nvrtc: &Functions) -> Result<Vec<c_int>, Fault> {
    let mut count = 0;
    // SAFETY: `count` is a place for one integer.
    let counted = unsafe { (nvrtc.nvrtcGetNumSupportedArchs)(&raw mut count) };
    check("nvrtcGetNumSupportedArchs", counted)?;
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for as many as NVRTC said.
    let told = unsafe { (nvrtc.nvrtcGetSupportedArchs)(known.as_mut_ptr()) };
    check("nvrtcGetSupportedArchs", told).map(|()| known)
}

/// What NVRTC compiles for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Machine code.
    Chip(u32),
    /// PTX.
    Before(u32),
}

impl Target {
    fn of(capability: u32, known: &[c_int]) -> Option<Self> {
        let known = known.iter().filter_map(|&chip| u32::try_from(chip).ok());
        match known.filter(|&chip| chip <= capability).max()? {
            chip if chip == capability => Some(Self::Chip(chip)),
            chip => Some(Self::Before(chip)),
        }
    }

    fn option(self) -> String {
        match self {
            Self::Chip(90) => "--gpu-architecture=sm_90a".into(),
            Self::Chip(chip) => format!("--gpu-architecture=sm_{chip}"),
            Self::Before(chip) => format!("--gpu-architecture=compute_{chip}"),
        }
    }
}

/// Every source as something that others may include.
struct Headers {
    names: Vec<CString>,
    texts: Vec<CString>,
}

impl Headers {
    fn new() -> Result<Self, Fault> {
        let of = |part: fn(&Source) -> &'static str| -> Result<Vec<_>, _> {
            module::sources().iter().map(|source| terminated(part(source))).collect()
        };
        Ok(Self { names: of(|source| source.name)?, texts: of(|source| source.text)? })
    }
}

fn terminated(text: &str) -> Result<CString, Fault> {
    CString::new(text).map_err(|error| Fault::new("compile", error))
}

/// A program of NVRTC's, destroyed when it is dropped.
struct Program<'a> {
    nvrtc: &'a Functions,
    handle: nvrtcProgram,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: created in `compile`, destroyed here alone. An error leaves nothing to be done.
        let _ = unsafe { (self.nvrtc.nvrtcDestroyProgram)(&raw mut self.handle) };
    }
}

/// A question for the bytes of something, and one for how many they are.
type Ask<T> = unsafe extern "C" fn(nvrtcProgram, *mut T) -> c_int;

impl Program<'_> {
    fn bytes(&self, size: Ask<usize>, content: Ask<c_char>) -> Result<Vec<u8>, Fault> {
        let mut count = 0;
        // SAFETY: the program lives, and `count` is a place for one word.
        check("nvrtcGet", unsafe { size(self.handle, &raw mut count) })?;
        let mut bytes = vec![0_u8; count];
        // SAFETY: there is room for as many bytes as NVRTC said.
        check("nvrtcGet", unsafe { content(self.handle, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }

    /// What it became; PTX ends in a zero.
    fn image(&self, target: Target) -> Result<Vec<u8>, Fault> {
        let nvrtc = self.nvrtc;
        match target {
            Target::Chip(_) => self.bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
            Target::Before(_) => self.bytes(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
        }
    }
}

fn compile(
    nvrtc: &Functions,
    source: &Source,
    headers: &Headers,
    target: Target,
) -> Result<Vec<u8>, Fault> {
    let (name, text) = (terminated(source.name)?, terminated(source.text)?);
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).collect()
    };
    let (texts, names) = (pointers(&headers.texts), pointers(&headers.names));
    let mut program = Program { nvrtc, handle: ptr::null_mut() };
    // SAFETY: all strings end in a zero and outlive the program, and there are as many headers as
    // names of headers.
    let created = unsafe {
        (nvrtc.nvrtcCreateProgram)(
            &raw mut program.handle,
            text.as_ptr(),
            name.as_ptr(),
            texts.len() as c_int,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    check(source.name, created)?;
    let options = [terminated(&target.option())?, terminated("-std=c++17")?];
    let options = pointers(&options);
    // SAFETY: the program was created above, and the options outlive the call.
    let compiled = unsafe {
        (nvrtc.nvrtcCompileProgram)(program.handle, options.len() as c_int, options.as_ptr())
    };
    if check(source.name, compiled).is_err() {
        let log = program.bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)?;
        let log = String::from_utf8_lossy(&log).replace('\0', "");
        return Err(Fault::new(source.name, log.trim()));
    }
    program.image(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_chips_that_the_compiler_knows() {
        let check = |capability, known: &[c_int], want: Option<&str>| {
            let option = Target::of(capability, known).map(Target::option);
            let want = want.map(|it| format!("--gpu-architecture={it}"));
            assert_eq!(option, want, "{capability} of {known:?}");
        };
        let known = [75, 80, 89, 90, 100];
        check(80, &known, Some("sm_80"));
        check(86, &known, Some("compute_80"));
        check(90, &known, Some("sm_90a"));
        check(120, &known, Some("compute_100"));
        check(70, &known, None);
    }

    #[test]
    fn a_compiler_that_is_newer_than_the_driver_is_told() {
        assert_eq!(newer(12_090, 12_090), None);
        assert_eq!(newer(12_040, 13_000), None);
        let told = newer(13_000, 12_040).unwrap();
        assert!(told.starts_with("libnvrtc is of CUDA 13.0 and the driver for 12.4, "), "{told}");
        let fault = Fault::new("cuModuleLoadData", "no");
        if library::version().is_err() {
            assert_eq!(explained(fault.clone()), fault, "nothing is known of a driver");
        }
    }

    /// Where the library is not installed, that is said; where it is, the sources compile.
    #[test]
    fn sources_compile_or_the_library_is_named() {
        for (capability, code) in [(120, "\x7fELF"), (990, "//\n// Generated by NVIDIA NVVM")] {
            match all(capability) {
                Ok(images) => assert!(images.iter().all(|it| it.starts_with(code.as_bytes()))),
                Err(fault) => {
                    let fault = fault.to_string();
                    let (major, minor) = (capability / 10, capability % 10);
                    let chip = format!("no cubin for compute capability {major}.{minor}, and ");
                    assert!(fault.contains(&chip) && fault.contains("libnvrtc"), "{fault}");
                }
            }
        }
    }
}
