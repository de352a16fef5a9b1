//! Kernels by name.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{PoisonError, RwLock};

use cudarc::driver::sys;

use super::compile;
use super::handles::Module;
use super::library::{check, driver, params_bytes};
use crate::cuda::device::{Fault, Properties};
use crate::cuda::module;

/// A kernel that can be launched.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub(super) function: sys::CUfunction,
    /// Of its one argument; `None` where the driver (before 12.4) does not tell.
    pub(super) params_bytes: Option<usize>,
}

// SAFETY: a function belongs to its module and may be launched from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// All kernels that the device has machine code for.
pub(super) struct Kernels {
    found: RwLock<HashMap<&'static str, Kernel>>,
    shared_bytes: usize,
    modules: Vec<Module>,
}

impl Kernels {
    /// The cubins for a device like this, or what NVRTC makes of the sources.
    pub(super) fn load(properties: &Properties) -> Result<Self, Fault> {
        let modules: Result<Vec<_>, _> = match module::cubins(properties.capability) {
            Some(cubins) => cubins.map(|(_, image)| Module::load(&image)).collect(),
            None => {
                let images = compile::all(properties.capability)?;
                let load = |it: &Vec<u8>| Module::load(it).map_err(compile::explained);
                images.iter().map(load).collect()
            }
        };
        let modules = modules?;
        modules.iter().try_for_each(Module::load_kernels)?;
        let (found, shared_bytes) = (RwLock::default(), properties.shared_bytes);
        Ok(Self { found, shared_bytes, modules })
    }

    /// The kernel called `name`, with its limit of shared memory raised to the device's.
    pub(super) fn find(&self, name: &'static str) -> Result<Kernel, Fault> {
        let found = self.found.read().unwrap_or_else(PoisonError::into_inner).get(name).copied();
        if let Some(kernel) = found {
            return Ok(kernel);
        }
        let kernel = self.look_up(name)?;
        self.found.write().unwrap_or_else(PoisonError::into_inner).insert(name, kernel);
        Ok(kernel)
    }

    fn look_up(&self, name: &str) -> Result<Kernel, Fault> {
        let symbol = CString::new(name).map_err(|error| Fault::new(name, error))?;
        for module in &self.modules {
            if let Some(function) = module.function(&symbol)? {
                allow_shared(function, self.shared_bytes)?;
                return Ok(Kernel { function, params_bytes: params_bytes(function) });
            }
        }
        Err(Fault::new(name, "there is no kernel of this name for the device"))
    }
}

/// A block's launch may ask for what of `bytes` its kernel does not have anyway.
fn allow_shared(function: sys::CUfunction, bytes: usize) -> Result<(), Fault> {
    use sys::CUfunction_attribute as Attribute;
    let mut own = 0;
    let is = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
    // SAFETY: the function is of a loaded module, and `own` is a place for one integer.
    let told = unsafe { (driver()?.cuFuncGetAttribute)(&raw mut own, is, function) };
    check("cuFuncGetAttribute", told)?;
    let limit = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: as above.
    let raised = unsafe { (driver()?.cuFuncSetAttribute)(function, limit, bytes as i32 - own) };
    check("cuFuncSetAttribute", raised)
}
