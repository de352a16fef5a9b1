//! Where kernels run: a driver's stream, or the emulator of the tests.

use std::sync::Arc;

/// An address in a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) u64);

/// What a device cannot do, in its driver's words, and during which call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {what}")]
pub(crate) struct Fault {
    /// The call.
    pub(crate) call: String,
    /// What the driver says.
    pub(crate) what: String,
    /// Set where nothing but memory is missing: the device is well, and may have some later.
    pub(crate) shortage: Option<Shortage>,
}

/// Memory of a device that was asked for and is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// What was asked for.
    pub(crate) wanted_bytes: usize,
    /// What of it could be had.
    pub(crate) free_bytes: usize,
    /// All that may be held.
    pub(crate) bytes: usize,
}

impl Fault {
    /// `what` went wrong in `call`.
    pub(crate) fn new(call: impl Into<String>, what: impl ToString) -> Self {
        Self { call: call.into(), what: what.to_string(), shortage: None }
    }
}

/// What dispatch asks of a device.
#[derive(Debug, Clone)]
pub(crate) struct Properties {
    /// The driver's name for it.
    pub(crate) name: String,
    /// Compute capability, 90 for 9.0.
    pub(crate) capability: u32,
    /// Streaming multiprocessors.
    pub(crate) multiprocessors: u32,
    /// Most bytes of shared memory that a block may ask for.
    pub(crate) shared_bytes: usize,
}

/// One kernel on one grid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch<'a> {
    /// The C name in `kernels/cu`.
    pub(crate) kernel: &'static str,
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Dynamic shared memory of a block.
    pub(crate) shared_bytes: usize,
    /// The kernel's one argument.
    pub(crate) params: &'a [u8],
}

/// An array of bf16 in device memory that the copy engine takes boxes of, dimensions fastest
/// first; what a box has outside of the array is zero. Boxes have the 128-byte swizzle, so
/// `box_size[0]` is at most 64 elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorMapSpec {
    /// Of the first element.
    pub(crate) address: Address,
    /// Elements of each dimension.
    pub(crate) size: [u64; 3],
    /// Bytes from one index to the next of the second and third dimension.
    pub(crate) stride_bytes: [u64; 2],
    /// Elements of a box.
    pub(crate) box_size: [u32; 3],
}

/// A tensor map as kernels take it.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct TensorMap(pub(crate) [u64; 16]);

/// Where bytes lie on a device, and where they go on the host.
pub(crate) type Copied<'a> = (Address, &'a mut [u8]);

/// What goes to a device and comes from it, as calls of [`Device`] do.
pub(crate) trait Copies: Send + Sync {
    /// Copies to the device; `from` may change as soon as this returns.
    fn write(&self, to: Address, from: &[u8]) -> Result<(), Fault>;

    /// Waits for everything before, and copies to the host.
    fn read(&self, from: Address, to: &mut [u8]) -> Result<(), Fault>;

    /// The same of two places, behind one wait: the second is copied behind the first.
    fn read_both(&self, first: Copied<'_>, second: Copied<'_>) -> Result<(), Fault>;
}

/// A device with one stream: calls take effect in their order, and return at once unless they
/// say otherwise.
pub(crate) trait Device: Copies {
    /// What it is.
    fn properties(&self) -> &Properties;

    /// Memory, aligned to 256 bytes; its content is left over from others.
    fn allocate(&self, bytes: usize) -> Result<Address, Fault>;

    /// Gives memory back; what is under way may still use it.
    fn release(&self, at: Address);

    /// Runs a kernel.
    fn launch(&self, launch: &Launch<'_>) -> Result<(), Fault>;

    /// Describes an array for the copy engine (capability 90 and up).
    fn tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap, Fault>;
}

impl<D: Copies + ?Sized> Copies for Arc<D> {
    fn write(&self, to: Address, from: &[u8]) -> Result<(), Fault> {
        (**self).write(to, from)
    }

    fn read(&self, from: Address, to: &mut [u8]) -> Result<(), Fault> {
        (**self).read(from, to)
    }

    fn read_both(&self, first: Copied<'_>, second: Copied<'_>) -> Result<(), Fault> {
        (**self).read_both(first, second)
    }
}

impl<D: Device + ?Sized> Device for Arc<D> {
    fn properties(&self) -> &Properties {
        (**self).properties()
    }

    fn allocate(&self, bytes: usize) -> Result<Address, Fault> {
        (**self).allocate(bytes)
    }

    fn release(&self, at: Address) {
        (**self).release(at);
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<(), Fault> {
        (**self).launch(launch)
    }

    fn tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap, Fault> {
        (**self).tensor_map(spec)
    }
}
