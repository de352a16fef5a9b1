//! The emulator against plain loops, and what it must notice.

mod hopper;

use bytemuck::{Pod, cast_slice};

use super::Emulated;
use crate::cuda::device::{Address, Copies, Device, Fault, Launch};

/// `Pair` of selftest.cu.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Pair {
    from: u64,
    to: u64,
}

struct Case {
    kernel: &'static str,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: usize,
}

impl Case {
    fn new(kernel: &'static str, threads: u32) -> Self {
        Self { kernel, grid: [1; 3], threads, shared_bytes: 4096 }
    }

    /// `to` words after the kernel has run over `from`.
    fn run(&self, from: &[u32], to: &[u32]) -> Result<Vec<u32>, Fault> {
        self.run_on(&device(), from, to)
    }

    fn run_on(&self, device: &Emulated, from: &[u32], to: &[u32]) -> Result<Vec<u32>, Fault> {
        let params = Pair { from: array(device, from)?.0, to: array(device, to)?.0 };
        device.launch(&Launch {
            kernel: self.kernel,
            grid: self.grid,
            threads: self.threads,
            shared_bytes: self.shared_bytes,
            params: bytemuck::bytes_of(&params),
        })?;
        let mut after = vec![0; to.len()];
        device.read(Address(params.to), bytemuck::cast_slice_mut(&mut after))?;
        device.release(Address(params.from));
        device.release(Address(params.to));
        Ok(after)
    }

    fn fails(&self, from: &[u32], with: &str) {
        let fault = self.run(from, &[0; 8]).expect_err("a fault").to_string();
        assert!(fault.contains(with), "{fault}, want {with}");
    }
}

fn device() -> Emulated {
    Emulated::new(90).unwrap_or_else(|fault| panic!("{fault}"))
}

fn array<T: Pod>(device: &Emulated, elements: &[T]) -> Result<Address, Fault> {
    let at = device.allocate(size_of_val(elements))?;
    device.write(at, cast_slice(elements))?;
    Ok(at)
}

/// Small numbers that are not the same everywhere.
fn noise(n: usize) -> impl Iterator<Item = i32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as i32 % 100 - 50)
}

/// Registers of the lanes for `[16, k]` a, `[k, 8]` b and `[16, 8]` c, as PTX's manual tells;
/// `pack` makes a register of `k / 8` elements.
fn registers(
    k: usize,
    [a, b, c]: [&[i32]; 3],
    pack: impl Fn(&[i32]) -> u32,
    word: impl Fn(i32) -> u32,
) -> Vec<u32> {
    let per = k / 8;
    let mut words = Vec::new();
    for lane in 0..32 {
        let (group, within) = (lane / 4, lane % 4);
        for r in 0..4 {
            let (row, first) = (group + r % 2 * 8, r / 2 * k / 2 + within * per);
            words.push(pack(&a[row * k + first..][..per]));
        }
        for r in 0..2 {
            let first = r * k / 2 + within * per;
            let column: Vec<_> = (first..first + per).map(|it| b[it * 8 + group]).collect();
            words.push(pack(&column));
        }
        for r in 0..4 {
            words.push(word(c[(group + r / 2 * 8) * 8 + within * 2 + r % 2]));
        }
    }
    words
}

fn check_product(
    kernel: &'static str,
    k: usize,
    pack: impl Fn(&[i32]) -> u32,
    word: impl Fn(i32) -> u32,
) {
    let all: Vec<_> = noise(16 * k + k * 8 + 128).collect();
    let (a, rest) = all.split_at(16 * k);
    let (b, c) = rest.split_at(k * 8);
    let words = registers(k, [a, b, c], pack, &word);
    let seen = Case::new(kernel, 32).run(&words, &[0; 128]).unwrap();
    for (i, &seen) in seen.iter().enumerate() {
        let (lane, r) = (i / 4, i % 4);
        let (row, column) = (lane / 4 + r / 2 * 8, lane % 4 * 2 + r % 2);
        let sum: i32 = (0..k).map(|it| a[row * k + it] * b[it * 8 + column]).sum();
        assert_eq!(seen, word(c[row * 8 + column] + sum), "{kernel}: row {row}, column {column}");
    }
}

#[test]
fn products_of_bf16() {
    let bits = |x: i32| u32::from(half::bf16::from_f32(x as f32).to_bits());
    let pack = |pair: &[i32]| bits(pair[0]) | bits(pair[1]) << 16;
    check_product("selftest_mma_bf16", 16, pack, |x| (x as f32).to_bits());
}

#[test]
fn products_of_integers() {
    let pack = |four: &[i32]| u32::from_le_bytes([0, 1, 2, 3].map(|i| four[i] as u8));
    check_product("selftest_mma_int8", 32, pack, |x| x as u32);
}

#[test]
fn ldmatrix_takes_rows_and_columns() {
    let from: Vec<u32> = (0..128).map(|i| (2 * i) | ((2 * i + 1) << 16)).collect();
    let seen = Case::new("selftest_ldmatrix", 32).run(&from, &[0; 256]).unwrap();
    let element = |m: u32, row: u32, column: u32| m * 64 + row * 8 + column;
    for (i, &seen) in seen.iter().enumerate() {
        let (lane, m) = (i as u32 / 8, i as u32 % 4);
        let (row, column) = (lane / 4, lane % 4 * 2);
        let want = if i % 8 < 4 {
            element(m, row, column + 1) << 16 | element(m, row, column)
        } else {
            element(m, column + 1, row) << 16 | element(m, column, row)
        };
        assert_eq!(seen, want, "lane {lane}, matrix {m}");
    }
}

#[test]
fn lanes_exchange_values() {
    let from: Vec<u32> = noise(32).map(|it| it as u32).collect();
    let seen = Case::new("selftest_shuffles", 32).run(&from, &[0; 160]).unwrap();
    let votes = (0..32).filter(|&i| from[i] & 1 == 1).map(|i| 1_u32 << i).sum::<u32>();
    for (lane, seen) in seen.chunks(5).enumerate() {
        let up = from[lane.checked_sub(3).unwrap_or(lane)];
        assert_eq!(seen, [from[lane ^ 5], from[7], up, votes, votes.count_ones()], "{lane}");
    }
}

#[test]
fn named_barriers_hand_over() {
    let from: Vec<u32> = (0..256).collect();
    let device = device();
    for _ in 0..8 {
        let case = Case::new("selftest_named", 64);
        let seen = case.run_on(&device, &from, &[0; 256]).unwrap();
        let want: Vec<u32> = (0..256).map(|i| i / 32 * 32 + 31 - i % 32).collect();
        assert_eq!(seen, want);
    }
}

#[test]
fn copies_come_as_late_as_they_may() {
    let from: Vec<u32> = (1..=256).collect();
    let device = device();
    let mut is_late = false;
    for _ in 0..16 {
        let case = Case::new("selftest_copies", 32);
        let seen = case.run_on(&device, &from, &[0; 192]).unwrap();
        for (lane, seen) in seen.chunks(6).enumerate() {
            let (first, last) = (from[8 * lane], from[8 * lane + 7]);
            let last = if lane % 2 == 0 { last } else { 0 };
            assert_eq!([seen[2], seen[4], seen[5]], [first, first, last], "lane {lane}");
            is_late |= seen[..2] == [u32::MAX; 2] && seen[3] == u32::MAX;
        }
    }
    assert!(is_late);
}

#[test]
fn a_block_goes_on_without_those_who_ended() {
    let from: Vec<u32> = (0..128).collect();
    let case = Case { grid: [2, 3, 4], ..Case::new("selftest_early_end", 128) };
    let seen = case.run(&from, &[0; 6]).unwrap();
    assert_eq!(seen, [4 * 64 * 127 * 64; 6]);
}

#[test]
fn who_waits_for_whom_is_reported() {
    let case = Case::new("selftest_deadlock", 64);
    case.fails(&[], "threads 0 to 31 wait at barrier 3; threads 32 to 39 wait for its warp at");
    case.fails(&[], "threads 40 to 63 have ended");
    Case::new("selftest_parted_warp", 32).fails(&[], "lanes of one warp part");
}

#[test]
fn fresh_memory_is_poisoned() {
    assert_eq!(Case::new("selftest_poison", 1).run(&[], &[0]).unwrap(), [u32::MAX]);
    let device = device();
    let at = device.allocate(3).unwrap();
    let mut seen = [0; 3];
    device.read(at, &mut seen).unwrap();
    assert_eq!(seen, [0xff; 3]);
    assert!(device.read(at, &mut [0; 4]).is_err());
}

#[test]
fn what_is_touched_outside_is_reported() {
    let case = Case { shared_bytes: 400, ..Case::new("selftest_touch", 1) };
    for (word, place, with) in [
        (100, 0, "byte 400 of 400 bytes of shared memory was written"),
        (256, 0, "byte 1024 of 400 bytes of shared memory is touched"),
        (-5000, 0, "byte -20000 of 400 bytes of shared memory is touched"),
        (8, 1, "bytes around an array of 32 bytes were written"),
        (64, 1, "that is byte 256 of an array of 32 bytes"),
        (16, 2, "address 0x10 is touched"),
        (0, 3, "divided by zero"),
    ] {
        case.fails(&[word as u32, place], with);
    }
}

#[test]
fn kernels_for_hopper_run_on_no_other_chip() {
    for (capability, refused) in [(80, true), (90, false), (120, true)] {
        let device = Emulated::new(capability).unwrap_or_else(|fault| panic!("{fault}"));
        for kernel in ["attention90_128", "masses90_64"] {
            let (params, shared_bytes) = (vec![0; device.params_bytes(kernel).unwrap()], 0);
            let launch =
                Launch { kernel, grid: [0, 1, 1], threads: 384, shared_bytes, params: &params };
            let fault = device.launch(&launch).err().map(|fault| fault.to_string());
            let said = fault.as_ref().is_some_and(|it| it.contains("capability 9.0 alone"));
            assert_eq!(said, refused, "{kernel} on {capability}: {fault:?}");
        }
    }
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let check = |case: Case, with| case.fails(&[0; 32], with);
    check(Case::new("selftest_nothing", 32), "there is no such kernel");
    check(Case::new("selftest_poison", 32), "at most 1 threads");
    check(Case { shared_bytes: 1 << 20, ..Case::new("selftest_poison", 1) }, "1048576 bytes");
    let params = [0; 24];
    let launch = Launch {
        kernel: "selftest_poison",
        grid: [1; 3],
        threads: 1,
        shared_bytes: 0,
        params: &params,
    };
    let fault = device().launch(&launch).unwrap_err().to_string();
    assert!(fault.contains("parameters have 16 bytes, not 24"), "{fault}");
    assert_eq!(device().params_bytes("selftest_poison"), Some(16));
}
