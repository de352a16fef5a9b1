//! AMX for tests on processors that lack it: whoever executes one of its instructions is
//! interrupted by the system (SIGILL), and the handler here does what the instruction would.
//!
//! Of AVX-VNNI it does `vpdpbusd` of 256 bits, the only one of it that is used here.
//!
//! Exactly what Sapphire Rapids has: AMX-TILE, AMX-BF16 and AMX-INT8, with the conditions
//! under which the processor refuses (#UD, #GP), which end the process with a message. All
//! other illegal instructions end it as they did before. Written from Intel's manual
//! (Software Developer's Manual, volume 2, "TDPBF16PS" and its neighbours). Not for use
//! outside of tests: an interrupted instruction costs microseconds.

mod arithmetic;
mod decode;
mod handler;
mod machine;
mod vectors;

use std::sync::LazyLock;

/// Takes over this process's illegal instructions, once; false where the arithmetic of the
/// emulator itself has no instructions.
pub(super) fn install() -> bool {
    is_x86_feature_detected!("avx512f") && install_handler()
}

/// The same for AVX-VNNI, whose arithmetic needs none.
pub(super) fn install_vnni() -> bool {
    is_x86_feature_detected!("avx2") && install_handler()
}

fn install_handler() -> bool {
    static INSTALLED: LazyLock<bool> = LazyLock::new(handler::install);
    *INSTALLED
}
