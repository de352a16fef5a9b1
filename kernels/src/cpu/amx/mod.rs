//! AMX: products of whole tiles. Found by cpuid, and asked for from the system once a process.
//!
//! A tile is a register of up to sixteen rows of up to 64 bytes; there are eight. Compilers
//! never touch them, so a [`Tiles`] that is alive owns those of its thread. Tasks configure
//! tiles when they start and release them when they end: a configured thread costs the system
//! 8 KiB to save at every switch, and keeps some processors from sleeping deeply.

mod blocks;
mod config;
#[cfg(all(feature = "amx-emulator", target_os = "linux", target_env = "gnu"))]
mod emulator;
/// Only a test may do without the processor's instructions.
#[cfg(not(all(feature = "amx-emulator", target_os = "linux", target_env = "gnu")))]
mod emulator {
    pub(super) fn install() -> bool {
        false
    }

    pub(super) fn install_vnni() -> bool {
        false
    }
}
mod groups;
mod squares;

use std::arch::x86_64::__cpuid_count;
use std::sync::LazyLock;

pub(super) use self::blocks::{Block, Reads};
pub(super) use self::config::{TILE_ROWS, Tiles};
pub(super) use self::groups::{AHEAD as GROUPS_AHEAD, Groups};
pub(super) use self::squares::{Ahead, PAIR_BYTES, Square};

/// Rows of the largest block.
pub(super) const BLOCK_ROWS: usize = 2 * TILE_ROWS;

/// `arch_prctl` request: permission to use a part of the processor's state.
const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
/// The part: tile data.
const XFEATURE_XTILEDATA: libc::c_long = 18;

/// AMX-BF16, AMX-TILE and AMX-INT8 in edx of cpuid leaf 7.
const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;

/// Whether this process may use tiles.
pub(super) fn is_enabled() -> bool {
    is_native() || emulator::install()
}

/// Whether products of bytes in vectors of 256 bits are the processor's, or a test may do without.
pub(super) fn has_avx_vnni() -> bool {
    is_x86_feature_detected!("avxvnni") || emulator::install_vnni()
}

/// Whether they are the processor's own.
pub(super) fn is_native() -> bool {
    static NATIVE: LazyLock<bool> = LazyLock::new(|| has_tiles() && request_tiles());
    *NATIVE
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
