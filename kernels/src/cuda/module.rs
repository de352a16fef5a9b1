//! The kernels as they are shipped: cubins by chip, and the sources for all other chips.

use std::borrow::Cow;

/// One file of `kernels/cu`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    /// As others include it.
    pub(crate) name: &'static str,
    /// C++.
    pub(crate) text: &'static str,
}

impl Source {
    /// Whether it has kernels for a chip of this capability: files for Hopper alone end in 90.
    pub(crate) fn is_module(&self, capability: u32) -> bool {
        self.name.ends_with(".cu") && (capability == 90 || !self.name.ends_with("90.cu"))
    }
}

/// The cubins for a chip, by the name of their source; `None` for one that has none.
pub(crate) fn cubins(
    _capability: u32,
) -> Option<impl Iterator<Item = (&'static str, Cow<'static, [u8]>)>> {
    None::<std::iter::Empty<_>>
}

/// Every file that kernels are compiled from.
pub(crate) fn sources() -> &'static [Source] {
    macro_rules! sources {
        ($($name:literal),+) => {
            &[$(Source { name: $name, text: include_str!(concat!("../../cu/", $name)) }),+]
        };
    }
    sources!["device.cuh", "hopper.cuh", "hopper_wgmma.cuh", "mma.cuh", "params.cuh"]
}
