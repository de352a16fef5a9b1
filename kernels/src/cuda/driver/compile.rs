//! Kernels for a chip that has no cubin here: NVRTC compiles the sources, where it is installed.

use std::ffi::{CString, c_char, c_int};
use std::{ptr, thread};

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;

use crate::cuda::device::Fault;
use crate::cuda::module::{self, Source};

const CALLED: [&str; 11] = [
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetPTX",
    "nvrtcGetPTXSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcGetSupportedArchs",
];

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
    // SAFETY: this looks whether the system can open the library, which any process may do.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing("there is no libnvrtc to make one"));
    }
    if let Some(name) = CALLED.iter().find(|name| !has(name)) {
        return Err(missing(&format!("libnvrtc is too old to make one: it has no {name}")));
    }
    let known = known_chips().map_err(|error| Fault::new("nvrtcGetSupportedArchs", error))?;
    let target = Target::of(capability, &known)
        .ok_or_else(|| missing(&format!("libnvrtc knows chips {known:?} alone")))?;
    let headers = Headers::new()?;
    // Half a minute one after the other; the compiler serves many threads.
    thread::scope(|scope| {
        let modules = module::sources().iter().filter(|source| source.is_module(capability));
        let headers = &headers;
        let start = |source| scope.spawn(move || compile(source, headers, target));
        let under_way: Vec<_> = modules.map(start).collect();
        let panicked = |_| Err(Fault::new("compile", "a thread panicked"));
        under_way.into_iter().map(|it| it.join().unwrap_or_else(panicked)).collect()
    })
}

fn has(name: &str) -> bool {
    // SAFETY: the symbol is looked up and not called.
    unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
}

/// Compute capabilities that NVRTC compiles for, ascending.
fn known_chips() -> Result<Vec<c_int>, NvrtcError> {
    let mut count = 0;
    // SAFETY: `count` is a place for one integer.
    unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }.result()?;
    let mut known = vec![0; count as usize];
    // SAFETY: there is room for as many as NVRTC said.
    unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }.result()?;
    Ok(known)
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
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created in `compile`, destroyed here alone.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn compile(source: &Source, headers: &Headers, target: Target) -> Result<Vec<u8>, Fault> {
    let (name, text) = (terminated(source.name)?, terminated(source.text)?);
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).collect()
    };
    let (texts, names) = (pointers(&headers.texts), pointers(&headers.names));
    let fault = |error: NvrtcError| Fault::new(source.name, error);
    let mut program = Program(ptr::null_mut());
    // SAFETY: all strings end in a zero and outlive the program, and there are as many headers as
    // names of headers.
    let created = unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program.0,
            text.as_ptr(),
            name.as_ptr(),
            texts.len() as c_int,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    created.result().map_err(fault)?;
    let options = [target.option(), "-std=c++17".into()];
    // SAFETY: the program was created above.
    if unsafe { result::compile_program(program.0, &options) }.is_err() {
        // SAFETY: as above.
        let log = unsafe { result::get_program_log(program.0) }.map_err(fault)?;
        let log: Vec<u8> = log.into_iter().map(byte).filter(|&it| it != 0).collect();
        return Err(Fault::new(source.name, String::from_utf8_lossy(&log).trim()));
    }
    image(&program, target).map_err(fault)
}

/// A `c_char` has a sign on some processors and none on others.
fn byte(char: c_char) -> u8 {
    char.to_ne_bytes()[0]
}

/// What the compiled program became; PTX ends in a zero.
fn image(program: &Program, target: Target) -> Result<Vec<u8>, NvrtcError> {
    if let Target::Before(_) = target {
        // SAFETY: the program is compiled, for a virtual chip.
        let ptx = unsafe { result::get_ptx(program.0) }?;
        return Ok(ptx.into_iter().map(byte).collect());
    }
    let mut bytes = 0;
    // SAFETY: the program is compiled, for a chip; `bytes` is a place for one word.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut bytes) }.result()?;
    let mut cubin = vec![0_u8; bytes];
    // SAFETY: there is room for as many bytes as NVRTC said.
    unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()) }.result()?;
    Ok(cubin)
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
