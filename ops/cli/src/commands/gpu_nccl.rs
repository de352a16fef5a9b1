//! `aqueduct gpu nccl`: memory sets through NCCL, in a group of one.

use std::time::{Duration, Instant};

use anyhow::ensure;
use aqueduct_kernels::cuda::nccl::{self, Group};
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use aqueduct_kernels::{FabricError, Keys, KvDtype, KvHeads, Mark, MemorySet, SetShape};

use super::bench_kernels::noise;
use crate::args::GpuArg;
use crate::lines;

const PATIENCE: Duration = Duration::from_secs(20);

/// Sends sets of several sizes to this device itself and compares what comes.
///
/// # Errors
/// No device, what NCCL says, bits that changed. That NCCL is missing is none.
pub(crate) async fn run(args: GpuArg) -> anyhow::Result<()> {
    Cuda::devices()?;
    let cuda = Cuda::open(args.index, CudaOptions::default())?;
    let id = match nccl::invite() {
        Err(error @ FabricError::Missing { .. }) => {
            return Ok(lines::say(&format!("skipped: {error}\n"))?);
        }
        id => id?,
    };
    let group = Group::join(&cuda, &id, (0, 1), PATIENCE)?;
    for (keys, kv) in [(1, KvDtype::F32), (77, KvDtype::Bf16), (1024, KvDtype::Bf16)] {
        let (set, shape) = set(keys, kv);
        let started = Instant::now();
        let came =
            group.exchange(&cuda, &Mark::default(), &[(0, &set)], &[(0, shape)])?.land(PATIENCE)?;
        let us = started.elapsed().as_secs_f64() * 1e6;
        ensure!(came == [set], "a set of {keys} keys changed on its way");
        lines::say(&format!("{keys:5} keys of {kv:?} came in {us:.0} us\n"))?;
    }
    group.abort();
    let (set, shape) = set(1, KvDtype::F32);
    let refused = group.exchange(&cuda, &Mark::default(), &[(0, &set)], &[(0, shape)]).err();
    ensure!(
        refused == Some(FabricError::GivenUp),
        "a group that was given up goes on: {refused:?}"
    );
    Ok(())
}

/// A set of 8 KV heads of 128.
fn set(keys: usize, kv: KvDtype) -> (MemorySet, SetShape) {
    let (kv_heads, head_dim) = (8, 128);
    let count = kv_heads * keys;
    let heads = || KvHeads::from_f32(kv_heads, keys, head_dim, &noise(count * head_dim), kv);
    let positions: Vec<u32> = (0..keys as u32).map(|j| 3 * j).collect();
    let end = 3 * keys as u32;
    let set = MemorySet {
        keys: Keys::new(positions.repeat(kv_heads), heads(), heads()),
        score: noise(count).into(),
        votes: noise(count).into(),
        end,
    };
    (set, SetShape { kv_heads, keys, head_dim, kv, end })
}
