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

/// Threads of a core that the system lets be seen, all of which share its caches; one where it does
/// not say.
pub(super) fn threads_of_core() -> usize {
    static COUNT: LazyLock<usize> = LazyLock::new(|| {
        let list = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
        std::fs::read_to_string(list).ok().and_then(|list| listed(list.trim())).unwrap_or(1)
    });
    *COUNT
}

/// How many processors a list of the system's names, as in `0,64` or `0-1`; none where it is no
/// such list.
fn listed(list: &str) -> Option<usize> {
    let number = |text: &str| text.parse::<usize>().ok();
    let count = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some(number(last)?.checked_sub(number(first)?)? + 1),
        None => number(part).map(|_| 1),
    };
    list.split(',').map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: &str, count: Option<usize>) {
        assert_eq!(listed(list), count, "{list:?}");
    }

    #[test]
    fn processors_are_counted() {
        check("0", Some(1));
        check("0,64", Some(2));
        check("0-1", Some(2));
        check("3-5,7,10-11", Some(6));
        for wrong in ["", "a", "1-", "5-3", "1,,2"] {
            check(wrong, None);
        }
        assert!(threads_of_core() >= 1);
    }
}
