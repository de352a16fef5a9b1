//! AMX: products of whole tiles. Found by cpuid, and asked for from the system once a process.

use std::arch::x86_64::__cpuid_count;
use std::sync::LazyLock;

/// `arch_prctl` request: permission to use a part of the processor's state.
const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
/// The part: tile data.
const XFEATURE_XTILEDATA: libc::c_long = 18;

/// AMX-BF16, AMX-TILE and AMX-INT8 in edx of cpuid leaf 7.
const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;

/// Whether this process may use tiles.
pub(super) fn is_enabled() -> bool {
    static ENABLED: LazyLock<bool> = LazyLock::new(|| has_tiles() && request_tiles());
    *ENABLED
}

fn has_tiles() -> bool {
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & FEATURES == FEATURES
}

/// Linux keeps the tiles of a process only after it has asked for them.
#[cfg(target_os = "linux")]
fn request_tiles() -> bool {
    // SAFETY: the call reads its two numbers and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_tiles() -> bool {
    false
}
