//! What sm_90a adds.

use half::bf16;

use super::{Case, array, device, noise};
use crate::cuda::device::{Address, Copies, Device, Fault, Launch, TensorMap, TensorMapSpec};
use crate::cuda::emulated::Emulated;

fn case(kernel: &'static str, threads: u32, shared_bytes: usize) -> Case {
    Case { shared_bytes, ..Case::new(kernel, threads) }
}

fn read<T: bytemuck::Pod>(device: &Emulated, at: Address, n: usize) -> Vec<T> {
    let mut seen = vec![T::zeroed(); n];
    device.read(at, bytemuck::cast_slice_mut(&mut seen)).unwrap();
    seen
}

#[test]
fn barriers_pass_stages_on() {
    let from: Vec<u32> = (100..108).collect();
    let device = device();
    for _ in 0..8 {
        let seen = case("selftest_stages", 96, 2048).run_on(&device, &from, &[0; 512]).unwrap();
        for (i, &seen) in seen.iter().enumerate() {
            assert_eq!(seen, from[i / 64], "element {i}");
        }
    }
}

#[test]
fn a_phase_that_nobody_ends_is_reported() {
    let with = "threads 0 to 31 wait for phase 0 of the barrier at byte 0";
    case("selftest_barrier_alone", 32, 1024).fails(&[], with);
}

/// `Boxes` of selftest.cu.
#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Boxes {
    from: TensorMap,
    stored: TensorMap,
    to: u64,
    at: [i32; 3],
    padding: [u32; 11],
}

const SIZE: [usize; 3] = [72, 6, 3];

fn map_of(device: &Emulated, address: Address) -> TensorMap {
    let [x, y, z] = SIZE.map(|it| it as u64);
    let spec = TensorMapSpec {
        address,
        size: [x, y, z],
        stride_bytes: [2 * x, 2 * x * y],
        box_size: [64, 4, 2],
    };
    device.tensor_map(&spec).unwrap()
}

fn check_box(at: [i32; 3]) {
    let device = device();
    let elements: Vec<u16> = (1..=SIZE.iter().product::<usize>() as u16).collect();
    let from = array(&device, &elements).unwrap();
    let stored = array(&device, &vec![0_u16; elements.len()]).unwrap();
    let to = array(&device, &[0_u16; 512]).unwrap();
    let maps = [from, stored].map(|it| map_of(&device, it));
    let params = Boxes { from: maps[0], stored: maps[1], to: to.0, at, padding: [0; 11] };
    launch(&device, &case("selftest_box", 64, 2048), bytemuck::bytes_of(&params)).unwrap();
    let seen: Vec<u16> = read(&device, to, 512);
    let mut copied = vec![0; elements.len()];
    for i in 0..512 {
        let place = [i % 64, i / 64 % 4, i / 256];
        let place: Vec<_> = (0..3).map(|d| at[d] + place[d] as i32).collect();
        let inside = (0..3).all(|d| (0..SIZE[d] as i32).contains(&place[d]));
        let [x, y, z] = [0, 1, 2].map(|d| place[d] as usize);
        let want = if inside { elements[(z * SIZE[1] + y) * SIZE[0] + x] } else { 0 };
        assert_eq!(seen[i ^ ((i / 64 % 8) * 8)], want, "box at {at:?}, element {place:?}");
        if inside {
            copied[(z * SIZE[1] + y) * SIZE[0] + x] = want;
        }
    }
    assert_eq!(read::<u16>(&device, stored, elements.len()), copied, "box at {at:?}");
}

fn launch(device: &Emulated, case: &Case, params: &[u8]) -> Result<(), Fault> {
    let Case { kernel, grid, threads, shared_bytes } = *case;
    device.launch(&Launch { kernel, grid, threads, shared_bytes, params })
}

#[test]
fn boxes_are_swizzled_and_end_where_the_array_ends() {
    check_box([0, 0, 0]);
    check_box([8, 2, 1]);
    check_box([-3, 4, 2]);
    check_box([70, -2, -1]);
}

#[test]
fn maps_that_the_driver_would_refuse() {
    let device = device();
    let address = device.allocate(1024).unwrap();
    let good =
        TensorMapSpec { address, size: [64, 4, 2], stride_bytes: [128, 512], box_size: [64, 4, 1] };
    assert!(device.tensor_map(&good).is_ok());
    for bad in [
        TensorMapSpec { address: Address(address.0 + 2), ..good },
        TensorMapSpec { size: [64, 4, 3], ..good },
        TensorMapSpec { stride_bytes: [136, 512], ..good },
        TensorMapSpec { box_size: [64, 257, 1], ..good },
        TensorMapSpec { size: [64, 0, 1], ..good },
    ] {
        assert!(device.tensor_map(&bad).is_err(), "{bad:?}");
    }
}

/// `Products` of selftest.cu.
#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Products {
    a: TensorMap,
    b: TensorMap,
    c: u64,
    early: u64,
    forget: u32,
    padding: [u32; 11],
}

/// c `[64, 128]` of a `[64, 64]` and b `[64, 128]`, and what c held before the wait.
fn products(
    device: &Emulated,
    kernel: &'static str,
    forget: u32,
) -> Result<(Vec<f32>, f32), Fault> {
    let across = kernel.ends_with("across");
    let numbers = |n| noise(n).map(|it| bf16::from_f32(it as f32)).collect::<Vec<_>>();
    let map = |address, [columns, rows]: [u64; 2]| {
        let (size, stride_bytes) = ([columns, rows, 1], [2 * columns, 2 * columns * rows]);
        device.tensor_map(&TensorMapSpec { address, size, stride_bytes, box_size: [64, 64, 1] })
    };
    let a = array(device, &numbers(64 * 64))?;
    let b = array(device, &numbers(64 * 128))?;
    let c = device.allocate(64 * 128 * 4)?;
    let early = device.allocate(4)?;
    let params = Products {
        a: map(a, [64, 64])?,
        b: map(b, if across { [128, 64] } else { [64, 128] })?,
        c: c.0,
        early: early.0,
        forget,
        padding: [0; 11],
    };
    launch(device, &case(kernel, 128, 25_600), bytemuck::bytes_of(&params))?;
    Ok((read(device, c, 64 * 128), read(device, early, 1)[0]))
}

fn check_products(kernel: &'static str) {
    let device = device();
    let (across, kept) = (kernel.ends_with("across"), kernel.contains("registers"));
    let (a, b): (Vec<_>, Vec<_>) = (noise(64 * 64).collect(), noise(64 * 128).collect());
    let mut is_late = false;
    for _ in 0..8 {
        let (c, early) = products(&device, kernel, 0).unwrap();
        is_late |= early.is_nan();
        for (i, &seen) in c.iter().enumerate() {
            let (row, column) = (i / 128, i % 128);
            let b_at = |k| if across { b[k * 128 + column] } else { b[column * 64 + k] };
            let sum: i32 = (0..64).map(|k| -a[row * 64 + k] * b_at(k)).sum();
            assert_eq!(seen, (sum + i32::from(kept)) as f32, "{kernel}: {row}, {column}");
        }
    }
    assert!(is_late, "{kernel}");
}

#[test]
fn products_of_a_warpgroup() {
    check_products("selftest_products");
    check_products("selftest_products_across");
    check_products("selftest_products_registers");
    check_products("selftest_products_registers_across");
}

#[test]
fn what_a_kernel_forgets_is_noticed() {
    let device = device();
    let check = |forget, with: &str| {
        let fault = products(&device, "selftest_products", forget).unwrap_err().to_string();
        assert!(fault.contains(with), "{fault}, want {with}");
    };
    check(1, "no fence_async came");
    check(2, "no wgmma_fence came");
    let wrong = (0..8)
        .any(|_| products(&device, "selftest_products", 3).map_or(true, |(c, _)| c[0].is_nan()));
    assert!(wrong, "boxes come before anybody waits for them");
}
